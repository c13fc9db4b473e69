"""Folders as a run leaves them, without the run."""

import json
from pathlib import Path
from typing import Any

from ziggurat.engine import results
from ziggurat.engine.recipe import Recipe, load


def history(epochs: int = 4, top: float = 80.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        step = 100 * epoch
        speed = {"lr": 1e-3, "loss": 2 / epoch, "images_per_s": 200.0, "waiting": 0.01}
        test = {"top1": top - 10 * abs(epoch - 3), "loss": 1.0, "images": 10000.0}
        found += [
            {"step": step, "epoch": float(epoch)} | speed,
            {"step": step, "epoch": float(epoch), "minutes": 2.0 * epoch, "test": test},
        ]
    return found


def make(folder: Path, recipe: Recipe, lines: list[dict[str, Any]], finished: bool = True) -> Path:
    """A folder as the loop leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(recipe.dump())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        tests = [line for line in lines if "test" in line]
        best = max(tests, key=lambda line: line["test"]["top1"])
        measured = {
            "test": tests[-1]["test"],
            "best": {"step": best["step"], "test": best["test"]},
            "steps": lines[-1]["step"],
            "skipped_steps": [3, 4],
            "bad_files": 5,
            "minutes": 8.04,
            "processes": 1,
            "recipe": recipe.flat(),
            "history": lines,
        }
        results.write(folder / "results.json", measured, recipe.seed)
    return folder


def cifar(**changes: Any) -> Recipe:
    return load("nest/cifar10", changes=changes)
