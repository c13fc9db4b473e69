"""Trains what a study lacks: in processes side by side, within a time, and nothing twice.

A result that is kept is not trained again; a run that was killed goes on from its checkpoint. Each
run is locked while it is trained, so that two commands, on one machine or on several that share a
disk, divide the work. Under ``torchrun`` all processes share each run, as in any training.

    found = work(missing([study("hvt/pooling")], "laptop", 3, out, runs), out, runs, jobs=2)
"""

import contextlib
import fcntl
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ziggurat.data.files import written_whole
from ziggurat.engine import checkpoint, recipe
from ziggurat.engine.results import RESULTS
from ziggurat.engine.signals import Interrupted, stopping
from ziggurat.engine.studies import Run, Scale, Study, essence, kept, runs
from ziggurat.engine.train import train

BUSY = 75  # exit code: another process trains it
LOG, LOCK = "log.txt", ".lock"  # beside a run's folder
PRELOADED = ["ziggurat.engine.rerun", "matplotlib.backends.backend_agg"]  # once for all processes
Tell = Callable[[str], None]


class Worked(NamedTuple):
    """What came of it."""

    done: list[Run]
    left: list[Run]  # for want of time, or because another process trains them
    failed: dict[str, str]  # run -> the last thing it said


def missing(
    studies: Sequence[Study],
    scale: Scale,
    seeds: int,
    out: Path,
    at: Path,
    folders: Sequence[Run] = (),
) -> list[Run]:
    """What is not kept yet, seed by seed, and before each what it starts from.

    Of ``folders``, a result is not enough: something is drawn from them.
    """
    found: dict[str, Run] = {}
    every = (run for study in studies for run in runs(study, scale, seeds))
    for run in sorted(every, key=lambda run: run.seed):  # else in the studies' order
        if kept(run, out) is None:
            add(run, found, at)
    for run in folders:
        if not trained(run, at):
            add(run, found, at)
    return list(found.values())


def add(run: Run, found: dict[str, Run], at: Path) -> None:
    """Note a run, behind what it needs."""
    if run.after is not None and not trained(run.after, at):
        add(run.after, found, at)
    found.setdefault(run.name, run)


def trained(run: Run, at: Path) -> bool:
    """Whether its folder has all that a finished run leaves, of this recipe."""
    file = at / run.name / RESULTS
    if not file.is_file():
        return False
    return essence(json.loads(file.read_text())["measured"]["recipe"]) == essence(run.recipe.flat())


# One run.


def resolved(run: Run, at: Path) -> recipe.Recipe:
    """Its recipe, with the folder that it starts from."""
    start = {"init": str(at / run.after.name)} if run.after else {}
    return run.recipe.model_copy(update=start)


def one(run: Run, out: Path, at: Path) -> None:
    """Train it, or go on with it, and keep its result."""
    folder = at / run.name
    if not trained(run, at):
        wanted, before = resolved(run, at), folder / recipe.RECIPE
        begun = before.is_file() and essence(recipe.load(before).flat()) == essence(wanted.flat())
        resume = begun and bool(checkpoint.saved(folder / "checkpoints"))
        train(wanted, folder, resume=resume, overwrite=not resume)
    if os.environ.get("RANK", "0") == "0":
        keep(run, out, at)


def keep(run: Run, out: Path, at: Path) -> Path:
    """Its result among the others, with the command that makes it again; a kept one stays."""
    file = out / f"{run.name}.json"
    if kept(run, out) is not None:
        return file
    found: dict[str, Any] = json.loads((at / run.name / RESULTS).read_text())
    found["command"] = f"ziggurat reproduce {run.study} --scale {run.scale} --seeds {run.seed + 1}"
    if run.after is not None:  # a folder of this machine says nothing on another
        found["measured"]["recipe"]["init"] = run.after.name
    with written_whole(file) as part:
        part.write(json.dumps(found, indent=1).encode() + b"\n")
    return file


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether nobody else trains there; the lock goes with the process that holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}{LOCK}"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def child(run: Run, out: Path, at: Path, threads: int, device: int | None) -> None:
    """A process's work: what it says goes into a file."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    torch.set_num_threads(threads)
    with locked(at / run.name) as free:
        if not free:
            sys.exit(BUSY)
        log = os.open(log_of(run, at), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(log, stream)
        try:
            one(run, out, at)
        except Interrupted as stopped:
            print(f"stopped: {stopped}", file=sys.stderr)
            sys.exit(stopped.exit_code)
        except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(1)


def log_of(run: Run, at: Path) -> Path:
    """Beside its folder, which a new start clears."""
    return at / f"{run.name}.{LOG}"


# Many.


def work(
    todo: Sequence[Run],
    out: Path,
    at: Path,
    jobs: int = 1,
    minutes: float | None = None,
    tell: Tell = print,
) -> Worked:
    """Train them in their order, so many at a time; after ``minutes`` all are stopped and saved."""
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return together(todo, out, at, end, tell)
    return Pool(out, at, jobs, end, tell, len(todo)).run(list(todo))


class Pool:
    """Processes side by side."""

    def __init__(
        self, out: Path, at: Path, jobs: int, end: float | None, tell: Tell, count: int
    ) -> None:
        self.out, self.at, self.jobs, self.end, self.tell = out, at, jobs, end, tell
        self.count = count
        kinds = multiprocessing.get_all_start_methods()
        self.processes: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in kinds else "spawn"
        )
        self.processes.set_forkserver_preload(PRELOADED)
        self.devices = list(range(torch.cuda.device_count()))
        self.running: dict[Any, tuple[Run, int | None]] = {}
        self.done: list[Run] = []
        self.left: list[Run] = []
        self.failed: dict[str, str] = {}

    def run(self, waiting: list[Run]) -> Worked:
        """Until nothing is left to do, or no time; asked to stop, it stops them, too."""
        try:
            with stopping():
                while (waiting or self.running) and not self.late():
                    self.start(waiting)
                    if not self.running:
                        break  # what is left waits for what failed
                    self.look()
        finally:
            self.stop()
        self.left += waiting
        return Worked(self.done, self.left, self.failed)

    @property
    def used(self) -> list[int | None]:
        """The accelerators that are at work, as often as they are."""
        return [device for _, device in self.running.values()]

    def late(self) -> bool:
        """Whether the time is up."""
        return self.end is not None and time.monotonic() >= self.end

    def start(self, waiting: list[Run]) -> None:
        """Fill the free places with runs that have what they start from."""
        for run in list(waiting):
            if len(self.running) == self.jobs:
                return
            if run.after is None or trained(run.after, self.at):
                waiting.remove(run)
                cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
                device = min(self.devices, key=self.used.count, default=None)
                process = self.processes.Process(
                    target=child,
                    args=(run, self.out, self.at, max(1, cores // self.jobs), device),
                )
                process.start()
                self.running[process] = run, device

    def look(self) -> None:
        """Wait for one of them to end, or for the time to be up."""
        rest = None if self.end is None else max(0.0, self.end - time.monotonic())
        wait([process.sentinel for process in self.running], rest)
        for process in [process for process in self.running if process.exitcode is not None]:
            self.ended(process)

    def ended(self, process: Any) -> None:
        """Note what became of a run."""
        process.join()
        run, _ = self.running.pop(process)
        if process.exitcode == 0:
            self.done.append(run)
            self.tell(f"{len(self.done)} of {self.count}  {run.name}  {said(run, self.out)}")
        elif process.exitcode == BUSY or process.exitcode in (
            -signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGINT,
        ):  # fmt: skip
            self.left.append(run)
        else:
            lines = log_of(run, self.at).read_text(errors="replace").strip().splitlines()
            self.failed[run.name] = lines[-1] if lines else f"exit code {process.exitcode}"
            self.tell(f"failed: {run.name}: {self.failed[run.name]}")

    def stop(self) -> None:
        """Ask those that run to save and end."""
        for process in self.running:
            process.terminate()
        for process in list(self.running):
            process.join()
            self.ended(process)


def together(todo: Sequence[Run], out: Path, at: Path, end: float | None, tell: Tell) -> Worked:
    """One after the other, all processes of a launcher on each."""
    done: list[Run] = []
    timer = None
    left = math.inf if end is None else end - time.monotonic()
    if 0 < left < math.inf and os.environ.get("RANK") == "0":  # the others stop with it
        timer = threading.Timer(left, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
    try:
        for run in todo:
            if end is not None and time.monotonic() >= end:
                break
            one(run, out, at)
            done.append(run)
            if os.environ.get("RANK") == "0":
                tell(f"{len(done)} of {len(todo)}  {run.name}  {said(run, out)}")
    except Interrupted:
        pass
    finally:
        if timer is not None:
            timer.cancel()
    return Worked(done, list(todo[len(done) :]), {})


def said(run: Run, out: Path) -> str:
    """The measure that decides, and how long it took."""
    from ziggurat.tasks import TASKS

    measured = json.loads((out / f"{run.name}.json").read_text())["measured"]
    key = TASKS[run.recipe.task].best
    return f"{key} {measured['test'][key]:.2f} after {measured['minutes']:.1f} minutes"
