"""Measure a model on held-out data, every sample once over all processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from ziggurat.data.loading import Once, loader
from ziggurat.engine.processes import accelerator, spare_cores
from ziggurat.engine.recipe import RECIPE, Recipe, parse, read
from ziggurat.models.pretrained import is_of_clips, locate
from ziggurat.tasks import TASKS
from ziggurat.tasks.heads import read_head
from ziggurat.tasks.task import Task, over_processes

MANY = 256  # images at a time in an evaluation


class Measured(NamedTuple):
    """What an evaluation found."""

    measures: dict[str, float]
    bad: list[str]  # files that could not be read
    by_class: dict[str, dict[str, float]]  # where the task measures classes


def measure(
    task: Task,
    model: nn.Module,
    devices: Accelerator,
    batch: int,
    workers: int,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """What ``task`` measures of a deployed model.

    ``batch`` images at a time in each process.
    """
    samples = task.test_samples()
    order = Once(samples.source, batch, devices.process_index, devices.num_processes)
    batches = loader(samples.make, samples.collate, order, seed=0, workers=workers)
    was_training = task.training
    task.eval()
    model.eval()
    bad: list[str] = []
    with torch.inference_mode(), devices.autocast():
        for i, found in enumerate(batches):
            bad += unreadable(found)
            task.measure(model, send_to_device(found, devices.device))
            tick(i + 1, len(order))
    task.train(was_training)
    measures = task.measured()
    every = [file for share in over_processes(bad) for file in share]
    return Measured(measures, every, task.by_class())


def unreadable(batch: Any) -> tuple[str, ...]:
    """The files a batch could not read."""
    return getattr(batch, "bad", ())


def evaluate(
    source: str | Path,
    data: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """What a saved model measures on the held-out data of its run, or on other ``data``.

    With the run's own data, batch and precision: the number that training printed. Of other data
    the part that is for testing is measured or, if it has none, all.
    """
    locate(str(source))  # or say that it is not there
    found = recipe_of(source)
    if found is None and data is None:
        raise ValueError(f"{source} does not say what it was trained on: give --data")
    if found is None:
        head = read_head(source)
        kind = "video" if is_of_clips(source) else "classify"
        said: dict[str, Any] = {"name": "eval", "data": data, "model": "any", "task": kind}
        said |= {} if head is None else {"task": head.task, "batch": 16} | head.settings
        found = parse(said, "eval")
    task_of = TASKS[found.task]
    own = data is None or data == found.data
    held_out = task_of.open(data or found.data, found.settings, found.seed if own else None)
    there = found.precision != "fp16" or torch.accelerator.is_available()
    devices = accelerator(found.precision if there else "fp32")
    task = task_of.saved(source, found.settings, held_out).to(devices.device)
    if workers is None:
        workers = spare_cores(devices.num_processes)
    batch = batch or test_batch(found, devices.num_processes)
    return measure(task, task.model, devices, batch, workers, tick)


def test_batch(recipe: Recipe, processes: int) -> int:
    """Images at a time: as in training, but no more than are of use."""
    return max(1, min(MANY, recipe.batch // (processes * recipe.accumulate)))


def recipe_of(source: str | Path) -> Recipe | None:
    """The recipe of the run that a folder belongs to: beside the model, or above its best."""
    folder = Path(source)
    file = folder / RECIPE
    if folder.name == "best" and not file.is_file():
        file = folder.parent / RECIPE
    return parse(read(file)[1], str(file)) if file.is_file() else None
