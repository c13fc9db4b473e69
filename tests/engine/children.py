"""Runs in processes of their own, forked from one that has imported everything."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.engine.small_runs import small
from ziggurat.cli import main
from ziggurat.engine import train

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["ziggurat.engine.train", "tests.engine.children"])


def run_small(folder: Path, changes: dict[str, Any], resume: bool) -> None:
    """A child process's work."""
    torch.set_num_threads(1)
    train.train(small(**changes), folder, resume=resume)


def child(folder: Path, changes: dict[str, Any], resume: bool = False) -> Any:
    """A process that trains the small recipe with changes, started."""
    process = PROCESSES.Process(target=run_small, args=(folder, changes, resume))
    process.start()
    return process


def two(work: Callable[..., None], *args: Any) -> None:
    """Let two processes do the work together, with what torchrun would tell them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [PROCESSES.Process(target=share, args=(rank, port, work, args)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
        process.kill()  # if it has not ended
        process.join()
    assert [process.exitcode for process in both] == [0, 0]


def share(rank: int, port: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({key: str(value) for key, value in places.items()})
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    work(*args)


def ziggurat(*words: str | Path) -> None:
    """The command line's work."""
    assert main([str(word) for word in words]) == 0
