"""Asked to stop: Ctrl-C and SIGTERM."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """A run that was asked to stop, and saved."""

    def __init__(self, number: int, step: int, folder: Path) -> None:
        super().__init__(
            f"stopped and saved at step {step}: go on with `ziggurat train --out {folder} --resume`"
        )
        self.exit_code = 128 + number


class Stopped(Exception):
    """Work of several processes that was asked to stop; each of them has saved."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped and saved: the same command goes on")
        self.exit_code = 128 + number


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Stopped here at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # not in the main thread: leave them alone
        for caught in (signal.SIGINT, signal.SIGTERM):
            before[caught] = signal.signal(caught, stop)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


class Signals:
    """Notes Ctrl-C and SIGTERM, so that a step is not cut in two; a second Ctrl-C is at once."""

    number: int | None = None

    def __enter__(self) -> "Signals":
        self.before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not in the main thread: leave them alone
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember it; the loop looks after each step."""
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
