"""Where a run can go on from: folders that appear whole or not at all.

checkpoints/step-00001200/task.safetensors   weights of the task, as they are trained
                          ema.safetensors    their average, if there is one
                          optimizer.pt       optimisers and the loss scale (tensors only)
                          state.json         step, best result, what was skipped
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

TASK, EMA, OPTIMIZER, STATE = "task.safetensors", "ema.safetensors", "optimizer.pt", "state.json"


class Checkpoint(NamedTuple):
    """Everything that a step leaves behind but the random numbers, which follow from the step."""

    task: Mapping[str, Tensor]
    ema: Mapping[str, Tensor] | None
    optimizer: dict[str, Any]
    state: dict[str, Any]


def save(folder: Path, step: int, found: Checkpoint, keep: int) -> Path:
    """Write a checkpoint; older ones but ``keep`` go once it is safely there."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:08d}"
    for left in folder.glob(".part-*"):
        shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
    part = folder / f".part-{step:08d}"
    try:
        part.mkdir()
        save_file(contiguous(found.task), part / TASK)
        if found.ema is not None:
            save_file(contiguous(found.ema), part / EMA)
        torch.save(found.optimizer, part / OPTIMIZER)
        (part / STATE).write_text(json.dumps(found.state, indent=2) + "\n")
        for file in part.iterdir():
            sync(file)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
        sync(folder)
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(part, ignore_errors=True)
        before = saved(folder)
        rest = f"the one before is whole: {before[-1]}" if before else "there is none before it"
        raise OSError(f"checkpoint of step {step} could not be written ({error}); {rest}") from None
    for old in saved(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def saved(folder: Path) -> list[Path]:
    """Whole checkpoints, the oldest first."""
    return sorted(folder.glob("step-*"))


def load(folder: Path) -> Checkpoint:
    """The latest checkpoint of a run."""
    found = saved(folder)
    if not found:
        raise FileNotFoundError(f"{folder.parent} has no checkpoint to resume from")
    last = found[-1]
    try:
        ema = last / EMA
        return Checkpoint(
            load_file(last / TASK),
            load_file(ema) if ema.exists() else None,
            torch.load(last / OPTIMIZER, map_location="cpu", weights_only=True),
            json.loads((last / STATE).read_text()),
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{last} cannot be read ({str(error).splitlines()[0]}): "
            f"remove it to resume from the one before"
        ) from None


def contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors wants them."""
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def sync(path: Path) -> None:
    """See to it that a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
