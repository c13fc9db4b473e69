"""What is seen of a run while it goes: a bar on a terminal, plain lines in a pipe."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

QUIET = 20.0  # seconds between lines in a pipe


class Progress:
    """Counts steps, averages what they gave, and shows both."""

    def __init__(
        self, steps: int, step: int, minutes: float, shown: bool, noun: str = "images"
    ) -> None:
        self.noun = noun
        self.console = Console(stderr=True, quiet=not shown, soft_wrap=True)
        self.steps, self.step = steps, step
        self.before, self.began = minutes, time.monotonic()
        self.sums: dict[str, list[float]] = {}  # of each value: sum and number
        self.images, self.spent, self.idle = 0, 0.0, 0.0
        self.told = 0.0
        self.bar = Bar(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (shown and self.console.is_terminal),
        )
        self.line = self.bar.add_task("train", total=steps, completed=step, text="")
        self.text = ""

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    @property
    def minutes(self) -> float:
        """Of this run, what came before a resume included."""
        return self.before + (time.monotonic() - self.began) / 60

    def waited(self, seconds: float) -> None:
        """A step waited so long for its data."""
        self.idle += seconds

    def stepped(self, found: dict[str, float], images: int, seconds: float) -> None:
        """A step is done."""
        self.step += 1
        self.images += images
        self.spent += seconds
        for key, value in found.items():
            total, count = self.sums.get(key, (0.0, 0))
            self.sums[key] = [total + value, count + 1]
        self.bar.update(self.line, completed=self.step, text=self.text)

    def flush(self, mean: Callable[[dict[str, float]], dict[str, float]]) -> dict[str, Any]:
        """Means since the last time, over processes by ``mean``; speed and waiting beside them."""
        found = mean({key: total / count for key, (total, count) in self.sums.items()})
        whole = self.spent + self.idle
        speed = {"images_per_s": self.images / whole, "waiting": self.idle / whole}
        self.sums.clear()
        self.images, self.spent, self.idle = 0, 0.0, 0.0
        shown = [f"{key} {found[key]:.4g}" for key in ("loss", "top1") if key in found]
        self.text = "  ".join([*shown, f"{speed['images_per_s']:.0f} {self.noun}/s"])
        self.bar.update(self.line, text=self.text)
        if self.bar.disable and time.monotonic() - self.told > QUIET:
            self.told = time.monotonic()
            self.say(f"step {self.step}/{self.steps}  {self.text}")
        return found | speed

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, highlight=False, markup=False)

    def tested(self, epoch: float, found: dict[str, float]) -> None:
        """An evaluation, as a line."""
        values = "  ".join(f"{key} {value:.4g}" for key, value in found.items())
        self.say(f"epoch {epoch:.4g}  step {self.step}/{self.steps}  test: {values}")

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[Callable[[int, int], None]]:
        """A second bar while a model is measured."""
        line = self.bar.add_task("test", total=None, text="measuring")
        yield lambda done, total: self.bar.update(line, completed=done, total=total)
        self.bar.remove_task(line)
