"""Measure a model on held-out data, every sample once over all processes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from ziggurat.data.loading import Once, loader
from ziggurat.engine.processes import accelerator, spare_cores
from ziggurat.engine.recipe import RECIPE, Recipe, parse, read
from ziggurat.models.pretrained import from_pretrained
from ziggurat.tasks import TASKS
from ziggurat.tasks.task import Task


def measure(
    task: Task,
    model: nn.Module,
    devices: Accelerator,
    batch: int,
    workers: int,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, float], list[str]]:
    """What ``task`` measures of a deployed model, and the files that could not be read."""
    samples = task.test_samples()
    share = max(1, batch // devices.num_processes)
    order = Once(samples.source, share, devices.process_index, devices.num_processes)
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
    return task.measured(), bad


def unreadable(batch: Any) -> tuple[str, ...]:
    """The files a batch could not read."""
    return getattr(batch, "bad", ())


def evaluate(
    source: str | Path,
    data: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, float], list[str]]:
    """What a saved model measures on the held-out data of its run, or of ``data``.

    With the run's own data, batch and precision: the number that training printed.
    """
    model = from_pretrained(source)
    found = recipe_of(source)
    if found is None and data is None:
        raise ValueError(f"{source} does not say what it was trained on: give --data")
    if found is None:
        found = parse({"name": "eval", "task": "classify", "data": data, "model": "any"}, "eval")
    kind = TASKS[found.task]
    held_out = kind.open(data or found.data, found.settings, found.seed)
    known = model.pretrained_cfg.get("label_names")
    if known and list(known) != list(held_out.classes):
        raise ValueError(
            f"{source} knows the classes {some(known)}, the data has {some(held_out.classes)}: "
            "measure it on data with its own classes"
        )
    if model.num_classes != len(held_out.classes):
        raise ValueError(
            f"{source} knows {model.num_classes} classes, the data has {len(held_out.classes)}"
        )
    devices = accelerator(found.precision)
    task = kind.around(model, found.settings, held_out).to(devices.device)
    if workers is None:
        workers = spare_cores(devices.num_processes)
    return measure(task, task.model, devices, batch or found.batch, workers, tick)


def recipe_of(source: str | Path) -> Recipe | None:
    """The recipe of the run that a folder belongs to: beside the model, or above its best."""
    for folder in (Path(source), Path(source).parent):
        file = folder / RECIPE
        if file.is_file():
            return parse(read(file)[1], str(file))
    return None


def some(names: Sequence[str]) -> str:
    """The first few of many."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
