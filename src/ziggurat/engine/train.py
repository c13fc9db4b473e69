"""The training loop; there is no second one.

A step is a function of the weights, the seed and its number: the sampler, the augmentation and
the model's own random numbers are all seeded by where they stand. A killed run that is resumed
therefore ends with the same bits as one that was not, and there is little to save.

    run = train("nest/digits", "runs/digits", epochs=5)
    run.metrics["top1"]
"""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, send_to_device
from safetensors import SafetensorError
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ziggurat.data.loading import Steps, loader, seed_all
from ziggurat.engine import checkpoint, optim, report, results
from ziggurat.engine.checkpoint import Checkpoint
from ziggurat.engine.evaluate import measure, test_batch, unreadable
from ziggurat.engine.folder import begin, check, default_folder
from ziggurat.engine.log import Log, State
from ziggurat.engine.processes import accelerator, spare_cores
from ziggurat.engine.progress import Progress
from ziggurat.engine.recipe import Recipe, RecipeError, load
from ziggurat.engine.results import BAD, RESULTS, SNAPSHOTS
from ziggurat.engine.signals import Interrupted, Signals
from ziggurat.tasks import TASKS, curves
from ziggurat.tasks.task import Task, Wanted, over_processes

WHOLE = StateDictOptions(full_state_dict=True)  # of what FSDP keeps in parts
PATIENCE = 20  # steps without a finite loss, one after the other, after which a run stops


class Run(NamedTuple):
    """A finished run."""

    folder: Path  # from_pretrained loads it
    metrics: dict[str, float]  # of the saved model on the held-out data
    history: list[dict[str, Any]]  # the lines of metrics.jsonl


class Diverged(ValueError):
    """A run whose loss is no number any more."""


def build(recipe: Recipe) -> Task:
    """The task of a recipe, its model freshly initialised by the recipe's seed."""
    kind = TASKS[recipe.task]
    data = kind.open(recipe.data, recipe.settings, recipe.seed)
    seed_all(recipe.seed)
    wanted = Wanted(recipe.model, dict(recipe.model_args), recipe.init)
    return kind.build(wanted, recipe.settings, data)


def train(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    model: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    **changes: Any,
) -> Run:
    """Train as a recipe says, into the folder ``out``; ``changes`` are settings of the recipe.

    ``resume`` goes on from the last checkpoint there, to the very weights that an uninterrupted
    run would have given; without it, a folder that has a run is left alone unless ``overwrite``.
    Under ``torchrun`` or ``accelerate launch`` all processes share the work.
    """
    if not isinstance(recipe, Recipe):
        recipe = load(recipe, model, changes)
    elif model or changes:
        raise TypeError("a loaded recipe takes no changes: give its name, or load it with them")
    folder = default_folder(recipe) if out is None else Path(out)
    devices = accelerator(recipe.precision, len(TASKS[recipe.task].players))
    check(folder, recipe, resume, overwrite)
    loop = Loop(recipe, folder, devices, resume)
    devices.wait_for_everyone()  # all have looked before one writes
    if devices.is_main_process and not resume:
        begin(folder, recipe)
    return loop.run()


class Loop:
    """One run: what it is made of, and how a step goes."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path | None,
        devices: Accelerator,
        resume: bool = False,
    ) -> None:
        self.recipe, self.devices = recipe, devices
        self.folder = folder or Path()
        self.main = devices.is_main_process and folder is not None  # else it writes nothing
        self.sharded = devices.distributed_type == DistributedType.FSDP
        if self.sharded and recipe.ema:
            raise RecipeError(
                f"{recipe.name}: under FSDP no process has all weights to average, got "
                f"ema = {recipe.ema}: leave it out, or launch without FSDP"
            )
        self.rank, self.world = devices.process_index, devices.num_processes
        self.task = build(recipe)
        self.workers = spare_cores(self.world) if recipe.workers is None else recipe.workers
        self.samples = self.task.train_samples()
        self.state = State()
        self.task.check_share(recipe.batch // (self.world * recipe.accumulate))
        self.per_epoch = self.order(0, 1).per_epoch
        made = [optim.optimizer(self.task.player(name), recipe) for name in self.task.players]
        wrapped, *optimizers = devices.prepare(self.task, *made)
        self.wrapped: nn.Module = wrapped
        self.optimizers: list[Any] = optimizers
        self.schedules = [
            optim.Schedule(optimizer.optimizer, recipe, self.per_epoch)
            for optimizer in self.optimizers
        ]
        self.steps = self.schedules[0].steps
        self.ema = ModelEmaV3(self.task.model, recipe.ema, use_warmup=True) if recipe.ema else None
        self.buffers = [b for b in self.task.buffers() if b.is_floating_point()]  # BatchNorm's
        self.new_bad: list[str] = []
        self.whole: Task | None = None  # a second copy, unsharded, to measure and save
        self.log: Log | None = None
        if resume and checkpoint.saved(self.folder / "checkpoints"):
            self.restore()
        self.progress = Progress(
            self.steps, self.step, self.state.minutes, self.main, self.task.noun
        )
        self.progress.sums = self.state.sums

    @property
    def step(self) -> int:
        """How many are done."""
        return self.state.step

    def order(self, start: int, stop: int) -> Steps:
        """The sampler of this process."""
        return Steps(
            self.samples.source,
            self.recipe.batch,
            start,
            stop,
            self.recipe.seed,
            self.rank,
            self.world,
            self.recipe.accumulate,
            self.samples.repeats,
        )

    # The way of a run.

    def run(self) -> Run:
        """All steps that are left, then the evaluation of what is saved, then the report."""
        done = self.step == self.steps
        self.log = Log(self.folder, self.step, done) if self.main else None
        saved_at = time.monotonic()
        with Signals() as signals, self.progress:
            self.evaluate_if_due()  # what a kill may have cut off
            for parts in self.batches(self.steps):
                self.train_step(parts)
                due = time.monotonic() - saved_at >= 60 * self.recipe.save_minutes
                late, stop = self.agree(due, signals.number or 0)
                if late or stop or self.step == self.steps:
                    self.save()
                    saved_at = time.monotonic()
                if stop and self.step < self.steps:
                    raise Interrupted(int(stop), self.step, self.folder)
                self.evaluate_if_due()
        with self.progress:
            return self.finish()

    def batches(self, stop: int) -> Iterator[list[Any]]:
        """The parts of each step that is left until ``stop``."""
        order = self.order(self.step, stop)
        parts = loader(
            self.samples.make, self.samples.collate, order, self.recipe.seed, self.workers
        )
        found: list[Any] = []
        began = time.perf_counter()
        for part in parts:
            found.append(part)
            if len(found) == self.recipe.accumulate:
                self.progress.waited(time.perf_counter() - began)
                yield found
                found = []
                began = time.perf_counter()

    def train_step(self, parts: list[Any]) -> None:
        """One update of each player."""
        began = time.perf_counter()
        for part in parts:
            self.note_bad(unreadable(part))
        rates = [schedule.set(self.step) for schedule in self.schedules]
        line: dict[str, float] = {"lr": rates[0]}
        self.task.train()
        for name, optimizer in zip(self.task.players, self.optimizers, strict=True):
            found = self.update(name, optimizer, parts)
            others = name != self.task.players[-1]  # whose model is kept
            line |= {f"{name}_{key}" if others else key: value for key, value in found.items()}
        if self.state.skipped[-1:] != [self.step + 1]:  # every player took its step
            self.state.in_a_row = 0
        if self.ema is not None:
            self.ema.update(self.task.model, step=self.step)
        self.state.step += 1
        self.progress.stepped(line, self.recipe.batch, time.perf_counter() - began)
        if self.step % self.recipe.log_steps == 0 or self.step == self.steps:
            self.gather_bad()
            self.write({"epoch": self.step / self.per_epoch} | self.progress.flush(self.mean))

    def update(self, player: str, optimizer: Any, parts: list[Any]) -> dict[str, float]:
        """One player's gradients over all parts of the step, and its step if they are numbers."""
        found: dict[str, float] = {}
        before = [buffer.clone() for buffer in self.buffers]
        for i, part in enumerate(parts):
            seed_all(self.recipe.seed, self.step, i, self.rank)
            last = i == len(parts) - 1
            quiet = contextlib.nullcontext() if last else self.devices.no_sync(self.wrapped)
            with quiet:
                losses = self.wrapped(send_to_device(part, self.devices.device), player)
                values = torch.stack([value.detach().float() for value in losses.values()])
                for key, value in zip(losses, values.tolist(), strict=True):  # one look a part
                    found[key] = found.get(key, 0.0) + value / len(parts)
                if any(self.agree(not math.isfinite(found["loss"]))):
                    self.skip(optimizer, before, f"{player}'s loss is {found['loss']}")
                    return {}
                self.devices.backward(losses["loss"] / len(parts))
        norm = self.gradient_norm(optimizer)
        (bad,) = self.agree(not math.isfinite(norm))
        if bad and self.devices.scaler is None:  # which skips such a step by itself
            self.skip(optimizer, before, f"the norm of {player}'s gradient is {norm}")
            return {}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return found if bad else found | {"grad_norm": norm}

    def gradient_norm(self, optimizer: Any) -> float:
        """The norm of all gradients together, clipped if the recipe says so."""
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        if self.sharded:  # accelerate compares lists
            weights = list(self.wrapped.parameters())
        self.devices.unscale_gradients(optimizer)
        if self.recipe.clip_grad:
            return float(self.devices.clip_grad_norm_(weights, self.recipe.clip_grad))
        gradients = [p.grad for p in weights if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        full: Any = getattr(norm, "full_tensor", lambda: norm)
        return float(full())

    def skip(self, optimizer: Any, buffers: list[Tensor], why: str) -> None:
        """Leave the model as it was before the step, or stop, as the recipe says."""
        optimizer.zero_grad(set_to_none=True)
        for buffer, value in zip(self.buffers, buffers, strict=True):
            buffer.copy_(value)  # the forward pass may have put no numbers into them
        step = self.step + 1
        if self.state.skipped[-1:] != [step]:  # not by the player before
            self.state.skipped.append(step)
            self.state.in_a_row += 1
        advice = "a lower lr, more warm-up, clip_grad or bf16 instead of fp16 may help"
        if self.recipe.nonfinite == "stop":
            raise Diverged(f"step {step}: {why}; {advice}")
        if self.state.in_a_row >= PATIENCE:
            raise Diverged(f"step {step}: {why}, {PATIENCE} steps in a row; {advice}")
        self.progress.say(f"step {step} skipped: {why}")

    def note_bad(self, files: tuple[str, ...]) -> None:
        """Remember files that cannot be read; alone, tell at once."""
        self.new_bad += files
        if files and self.world == 1:
            self.gather_bad()

    def gather_bad(self) -> None:
        """Files that any process could not read; too many stop the run."""
        known = set(self.state.bad)
        for file in (file for share in over_processes(self.new_bad) for file in share):
            if file not in known:
                known.add(file)
                self.state.bad.append(file)
                self.tell_bad(file)
        self.new_bad = []
        self.limit_bad(self.state.bad, len(self.samples.source), "training")

    def tell_bad(self, file: str) -> None:
        """In the log and in a file."""
        self.progress.say(f"skipped {file}")
        if self.main:
            with open(self.folder / BAD, "a") as log:
                log.write(file + "\n")

    def limit_bad(self, bad: list[str], count: int, split: str) -> None:
        """Stop if there are too many."""
        if len(bad) > self.recipe.max_bad * count:
            raise ValueError(
                f"{len(bad)} of {count} {split} files cannot be read, more than max_bad = "
                f"{self.recipe.max_bad:.1%}; the last: {bad[-1]} (`ziggurat data check` lists them)"
            )

    # Between steps.

    def evaluated(self) -> nn.Module:
        """The model as users would load it now, the same in all processes."""
        if self.world > 1:  # each has seen other images; DDP sends buffers around only in training
            average = [] if self.ema is None else list(self.ema.module.buffers())
            for buffer in [*self.buffers, *(b for b in average if b.is_floating_point())]:
                torch.distributed.broadcast(buffer, 0)
        if self.sharded:  # all of it in every process: they may have different numbers of batches
            if self.whole is None:
                self.whole = build(self.recipe).to(self.devices.device)
            self.whole.load_state_dict(get_model_state_dict(self.wrapped, options=WHOLE))
            return self.task.deployed(self.whole.model)
        return self.task.deployed(self.task.model if self.ema is None else self.ema.module)

    def measured(self, model: nn.Module) -> dict[str, float]:
        """Its measures on the held-out data."""
        batch = test_batch(self.recipe, self.world)
        with self.progress.evaluation() as tick:
            found, bad, _ = measure(self.task, model, self.devices, batch, self.workers, tick)
        for file in bad:
            self.tell_bad(file)
        self.limit_bad(bad, len(self.task.test_samples().source), "test")
        return found

    def evaluate_if_due(self) -> None:
        """Every so many epochs, but for the end."""
        every = max(1, round(self.recipe.eval_epochs * self.per_epoch))
        if self.step % every == 0 and self.state.tested < self.step < self.steps:
            self.evaluate_now()

    def evaluate_now(self) -> dict[str, float]:
        """Measure, note it, keep the model if it is the best so far."""
        model = self.evaluated()
        found = self.measured(model)
        self.state.tested = self.step
        self.write({"epoch": self.step / self.per_epoch, "test": found})
        self.progress.tested(self.step / self.per_epoch, found)
        for alarm in self.task.alarms():
            self.progress.say(alarm)
        if self.main:
            epoch = f"{self.step / self.per_epoch:08.2f}"
            self.task.snapshot(self.folder / SNAPSHOTS / f"epoch-{epoch}.png", model)
        best = self.state.best
        key = self.task.best
        if best is None or curves.worth(key, found[key]) > curves.worth(key, best["test"][key]):
            self.state.best = {"step": self.step, "test": found}
            self.write_model(self.folder / "best", model)
        if self.step == self.steps:
            self.write_model(self.folder, model)
        return found

    def write_model(self, folder: Path, model: nn.Module) -> None:
        """As users load it."""
        if self.main:
            try:
                self.task.save(folder, model)
            except SafetensorError as error:
                raise OSError(f"the model could not be written to {folder}: {error}") from None

    def finish(self) -> Run:
        """Measure and save the model, and write the report."""
        found = self.evaluate_now()
        lines = self.log.lines() if self.log else []
        if self.main:
            measured = {
                "test": found,
                "best": self.state.best,
                "steps": self.steps,
                "skipped_steps": self.state.skipped,
                "bad_files": len(self.state.bad),
                "minutes": round(self.progress.minutes, 2),
                "processes": self.world,
                "recipe": self.recipe.flat(),
                "history": lines,
            }
            if classes := self.task.by_class():
                measured["by_class"] = classes
            if alarms := self.task.alarms():
                measured["alarms"] = alarms
            results.write(self.folder / RESULTS, measured, self.recipe.seed)
            self.task.figures(self.folder)
            self.progress.say(f"report: {report.write(self.folder)}")
        self.devices.wait_for_everyone()
        return Run(self.folder, found, lines)

    def write(self, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        if self.log is not None:
            minutes = round(self.progress.minutes, 3)
            self.log.write({"step": self.step, "minutes": minutes} | line)

    # Processes.

    def agree(self, *mine: float) -> list[float]:
        """The largest of all processes' answers to each question."""
        if self.world == 1:
            return list(mine)
        worst = torch.tensor(list(map(float, mine)), device=self.devices.device)
        torch.distributed.all_reduce(worst, torch.distributed.ReduceOp.MAX)
        return list(worst.tolist())

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """The mean over all processes."""
        if self.world == 1:
            return values
        keys = sorted(values)
        found = torch.tensor([values[key] for key in keys], device=self.devices.device)
        found = self.devices.reduce(found, "mean")
        return dict(zip(keys, found.tolist(), strict=True))

    # Checkpoints.

    def save(self) -> None:
        """A checkpoint of this step."""
        task: Any
        if self.sharded:
            task = get_model_state_dict(self.wrapped, options=WHOLE)
            optimizers = [
                get_optimizer_state_dict(self.wrapped, optimizer.optimizer, options=WHOLE)
                for optimizer in self.optimizers
            ]
        else:
            task = self.task.state_dict()
            optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        scaler = self.devices.scaler
        if self.main:
            found = Checkpoint(
                task,
                None if self.ema is None else self.ema.module.state_dict(),
                {"optimizers": optimizers, "scaler": scaler.state_dict() if scaler else None},
                asdict(replace(self.state, minutes=self.progress.minutes)),
            )
            checkpoint.save(self.folder / "checkpoints", self.step, found, self.recipe.keep)
        self.devices.wait_for_everyone()

    def restore(self) -> None:
        """Go on from the last checkpoint."""
        found = checkpoint.load(self.folder / "checkpoints")
        states = found.optimizer["optimizers"]
        if self.sharded:
            set_model_state_dict(self.wrapped, dict(found.task), options=WHOLE)
        else:
            self.task.load_state_dict(found.task)
        if self.ema is not None and found.ema is not None:
            self.ema.module.load_state_dict(found.ema)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            if self.sharded:
                set_optimizer_state_dict(self.wrapped, optimizer.optimizer, state, options=WHOLE)
            else:
                optimizer.load_state_dict(state)
        if self.devices.scaler is not None:
            self.devices.scaler.load_state_dict(found.optimizer["scaler"])
        self.state = State(**found.state)
