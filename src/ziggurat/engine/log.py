"""What a run has met so far, and the curves it writes down."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ziggurat.data.files import written_whole
from ziggurat.engine.results import METRICS, history


@dataclass
class State:
    """What a run has met so far, beside the weights; kept in its checkpoints."""

    step: int = 0
    minutes: float = 0.0
    tested: int = 0  # the step of the last evaluation
    best: dict[str, Any] | None = None
    skipped: list[int] = field(default_factory=list)  # steps without a finite loss
    in_a_row: int = 0  # of them, now
    bad: list[str] = field(default_factory=list)  # training files that cannot be read
    sums: dict[str, list[float]] = field(default_factory=dict)  # since the last line of the log


class Log:
    """metrics.jsonl, and TensorBoard where it is installed."""

    def __init__(self, folder: Path, step: int, done: bool) -> None:
        self.file = folder / METRICS
        kept = [line for line in self.lines() if line["step"] <= step]
        if done:  # the last evaluation is made again
            kept = [line for line in kept if line["step"] < step or "test" not in line]
        with written_whole(self.file) as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
        self.board: Any = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(folder / "tensorboard", purge_step=step + 1)

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return list(history(self.file))

    def write(self, line: dict[str, Any]) -> None:
        """Append a line."""
        with open(self.file, "a") as file:
            file.write(json.dumps(line) + "\n")
        if self.board is not None:
            flat = {f"train/{k}": v for k, v in line.items() if isinstance(v, float)}
            flat |= {f"test/{k}": v for k, v in line.get("test", {}).items()}
            for key, value in flat.items():
                self.board.add_scalar(key, value, line["step"])
