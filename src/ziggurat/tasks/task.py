"""What the training loop asks of a task; it knows nothing else of any."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from ziggurat.data.loading import Ordered


def over_processes(found: Any) -> list[Any]:
    """What every process found; a list of one where there is one."""
    if not (dist.is_available() and dist.is_initialized()):
        return [found]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    return gathered


class Settings(BaseModel):
    """A task's own part of a recipe: pydantic fields with ranges; anything else is refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class Wanted(NamedTuple):
    """The model a recipe names."""

    name: str
    options: dict[str, Any]
    init: str | None  # a run's folder, a checkpoint or a hub id to start from


class Samples(NamedTuple):
    """One split of the data, as the loop reads it."""

    source: Ordered
    make: Callable[[int], Any]  # index -> a sample, augmented with the global random numbers
    collate: Callable[[Sequence[Any]], Any]  # samples -> a batch
    repeats: int = 1


class Task(nn.Module):
    """A model being trained: its loss, its measures, its data.

    The loop optimises each of ``players`` in turn (one for all tasks but the adversarial one),
    calls ``forward`` for the loss, ``measure`` and ``measured`` for an evaluation, and ``save`` for
    the model that users load. ``model`` is what is evaluated, averaged (EMA) and saved.
    """

    Settings: ClassVar[type[Settings]]
    players: ClassVar[tuple[str, ...]] = ("model",)
    noun: ClassVar[str] = "images"  # what its samples are called
    best: ClassVar[str]  # the measure that decides which model is best
    model: nn.Module

    def player(self, name: str) -> nn.Module:
        """What one player optimises."""
        return self.model

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> Any:
        """The data that a recipe's ``data`` names; without a seed all of it, to test on."""
        raise NotImplementedError

    @classmethod
    def build(cls, wanted: "Wanted", settings: Any, data: Any) -> Self:
        """The task around a model made for this data."""
        raise NotImplementedError

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """The task around a model that ``save`` wrote, to measure it."""
        raise NotImplementedError

    def check_share(self, images: int) -> None:
        """Refuse a number of images at a time in a process that the task cannot train on."""

    def train_samples(self) -> Samples:
        """What it is trained on."""
        raise NotImplementedError

    def test_samples(self) -> Samples:
        """What it is measured on."""
        raise NotImplementedError

    def forward(self, batch: Any, player: str = "model") -> dict[str, Tensor]:
        """``loss``, and what else is worth a curve, of one batch."""
        raise NotImplementedError

    def measure(self, model: nn.Module, batch: Any) -> None:
        """Count one batch of an evaluation of a deployed model."""
        raise NotImplementedError

    def measured(self) -> dict[str, float]:
        """What was counted since the last call, over all processes; starts afresh."""
        raise NotImplementedError

    def alarms(self) -> list[str]:
        """What people should be told of the last evaluation, a line each."""
        return []

    def by_class(self) -> dict[str, dict[str, float]]:
        """Measures of each class at the last evaluation, by its name; not all tasks have any."""
        return {}

    def deployed(self, model: nn.Module) -> nn.Module:
        """``model``, this task's own or its average, as users will load it."""
        return model

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write a deployed model so that ``from_pretrained(folder)`` gives it back."""
        raise NotImplementedError

    def snapshot(self, path: Path, model: nn.Module) -> None:
        """A picture, at each evaluation, of how a deployed model stands; not all tasks have one."""

    def figures(self, folder: Path) -> list[Path]:
        """Pictures of the last evaluation for the report."""
        return []
