"""What a run will take, from a few measured steps of it."""

import statistics
import time
from itertools import pairwise
from typing import NamedTuple

import torch
from accelerate.utils import send_to_device

from ziggurat.engine.evaluate import test_batch
from ziggurat.engine.measure import peak_memory
from ziggurat.engine.processes import accelerator
from ziggurat.engine.recipe import Recipe
from ziggurat.engine.train import Loop
from ziggurat.tasks import TASKS
from ziggurat.tasks.task import Task

STEPS = 6  # timed, after one to warm up, one for the memory, and those made ahead


class Estimate(NamedTuple):
    """Of a run on this machine."""

    images: int  # to train on
    test_images: int
    per_epoch: int  # steps
    steps: int
    step_seconds: float
    test_seconds: float  # one evaluation
    memory: int  # bytes of a step beyond weights and optimiser
    task: Task  # after these steps

    @property
    def epoch_seconds(self) -> float:
        """One epoch of training."""
        return self.per_epoch * self.step_seconds

    def seconds(self, epochs: float, eval_epochs: float) -> float:
        """The whole run, evaluations included."""
        tests = max(1.0, epochs / eval_epochs)
        return epochs * self.epoch_seconds + tests * self.test_seconds

    def epochs_in(self, minutes: float, eval_epochs: float) -> float:
        """How many epochs fit."""
        per_epoch = self.epoch_seconds + self.test_seconds / eval_epochs
        return max(1 / self.per_epoch, 60 * minutes / per_epoch)


def estimate(recipe: Recipe) -> Estimate:
    """Run a few steps of a recipe, write nothing, keep nothing."""
    players = len(TASKS[recipe.task].players)
    loop = Loop(recipe, None, accelerator(recipe.precision, players))
    ahead = 4 * loop.workers  # batches that workers make while the first step is slow
    batches = loop.batches(2 + ahead + STEPS)
    loop.train_step(next(batches))
    where = loop.devices.device.type
    memory = peak_memory(lambda: loop.train_step(next(batches)), where)
    times = []
    for parts in batches:
        loop.train_step(parts)
        times.append(time.perf_counter())
    between = [later - earlier for earlier, later in pairwise(times[-STEPS:])]
    share = test_batch(recipe, loop.world)
    samples = loop.task.test_samples()
    few = min(3 * share, len(samples.source))
    model = loop.evaluated().eval()
    with torch.inference_mode(), loop.devices.autocast():
        began = time.perf_counter()
        for first in range(0, few, share):
            made = [samples.make(i) for i in range(first, min(first + share, few))]
            loop.task.measure(model, send_to_device(samples.collate(made), loop.devices.device))
        part = (time.perf_counter() - began) / few
    step, test = loop.agree(statistics.median(between), part)  # the slowest process decides
    return Estimate(
        images=len(loop.samples.source),
        test_images=len(samples.source),
        per_epoch=loop.per_epoch,
        steps=loop.steps,
        step_seconds=step,
        test_seconds=test * len(samples.source) / loop.world,
        memory=memory,
        task=loop.task,
    )
