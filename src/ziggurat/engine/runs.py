"""What a run has left in its folder, finished or not, as data for the pages about it."""

import contextlib
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ziggurat.engine import checkpoint
from ziggurat.engine.recipe import RECIPE, ROWS, RecipeError, names, parse
from ziggurat.engine.recipe import read as read_recipe
from ziggurat.engine.results import METRICS, RESULTS
from ziggurat.engine.results import history as history_of
from ziggurat.models.pretrained import CONFIG, WEIGHTS
from ziggurat.tasks import TASKS, curves
from ziggurat.tasks.heads import HEAD


class Folder(NamedTuple):
    """What there is of a run."""

    path: Path
    recipe: dict[str, Any]  # flat
    history: list[dict[str, Any]]  # metrics.jsonl
    results: dict[str, Any]  # results.json; empty: not finished
    state: dict[str, Any]  # of the last checkpoint, where there are no results
    config: dict[str, Any]  # config.json of the saved model
    main: str  # the measure that decides

    @property
    def model(self) -> str:
        """What was trained."""
        return str(self.recipe.get("model", self.path.name))

    @property
    def data(self) -> str:
        """What it was trained on."""
        return str(self.recipe.get("data", "unknown data"))

    @property
    def measured(self) -> dict[str, Any]:
        """What a finished run found."""
        return dict(self.results.get("measured") or {})

    @property
    def tests(self) -> list[dict[str, Any]]:
        """Its evaluations."""
        return [line for line in self.history if line.get("test")]

    @property
    def last(self) -> dict[str, float]:
        """Measures at the end, or the last there are."""
        return self.measured.get("test") or (self.tests[-1]["test"] if self.tests else {})

    @property
    def best(self) -> dict[str, Any]:
        """Step and measures of the best model."""
        found = self.measured.get("best") or self.state.get("best")
        known = [line for line in self.tests if self.main in line["test"]]
        return found or max(known, key=self.worth, default={})

    def worth(self, line: dict[str, Any]) -> float:
        """How good a measured model is."""
        return curves.worth(self.main, line["test"][self.main])

    @property
    def epoch(self) -> float:
        """How far it came."""
        return max((line["epoch"] for line in self.history), default=0)

    @property
    def minutes(self) -> float | None:
        """How long it took."""
        logged = [line["minutes"] for line in self.history[-1:] if "minutes" in line]
        found = self.measured.get("minutes", self.state.get("minutes"))
        return (logged or [None])[0] if found is None else found

    def logged(self, key: str) -> list[float]:
        """All values of a key of the training steps."""
        return [line[key] for line in self.history if key in line]


def read(folder: Path) -> Folder:
    """Collect what a run has left so far."""
    results = read_json(folder / RESULTS)
    measured = results.get("measured") or {}
    recipe: dict[str, Any] = dict(measured.get("recipe") or {})
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError):
        recipe = tomllib.loads((folder / RECIPE).read_text())
    history = list(history_of(folder / METRICS)) or measured.get("history") or []
    if not (recipe or history):
        raise FileNotFoundError(f"{folder} has no run: there is neither {RECIPE} nor {METRICS}")
    saved = checkpoint.saved(folder / "checkpoints")
    state = read_json(saved[-1] / checkpoint.STATE) if saved and not results else {}
    task = TASKS.get(str(recipe.get("task")))
    main = task.best if task else curves.main_measure([history])
    return Folder(folder, recipe, history, results, state, read_json(folder / CONFIG), main)


def read_json(file: Path) -> dict[str, Any]:
    """A file's table; empty if it is not there or not whole."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def read_text(file: Path) -> str:
    """A file's text; empty if there is none."""
    return file.read_text(errors="replace") if file.exists() else ""


def parameters(folder: Path) -> int | None:
    """How many there are, by the headers of the weights; a norm's statistics are none."""
    for place in (folder, folder / "best"):
        counts = [counted(place / file) for file in (WEIGHTS, HEAD)]
        if counts[0] is not None:
            return sum(count or 0 for count in counts)
    return None


def counted(file: Path) -> int | None:
    """The parameters in one file; None if there is none to read."""
    with contextlib.suppress(OSError, SafetensorError), safe_open(file, "pt") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        return sum(
            math.prod(part.get_shape())
            for name, part in slices.items()
            if part.get_dtype() in ("F64", "F32", "F16", "BF16")
            and not name.endswith(("running_mean", "running_var"))
        )
    return None


def departures(recipe: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a run changed of the recipe that ships under its name: key -> (there, here)."""
    name = str(recipe.get("name"))
    if name not in names():
        return {}
    origin, table = read_recipe(name)
    rows = [row for row in table.pop(ROWS, []) if row.get("model") == recipe.get("model")]
    found = []
    for row in rows or [{"model": recipe.get("model")}]:
        with contextlib.suppress(RecipeError):
            start = {"init": recipe["init"]} if recipe.get("init") else {}  # is the user's to give
            ours = parse({"name": name} | table | row | start, origin).flat()
            keys = [key for key in {**ours, **recipe} if ours.get(key) != recipe.get(key)]
            found.append({key: (ours.get(key), recipe.get(key)) for key in keys})
    return min(found, key=lambda changed: ("data" in changed, len(changed)), default={})


def defaults(model: Any) -> dict[str, Any]:
    """The fields of a pydantic model: its default, or the ellipsis if there is none."""
    return {
        key: ... if field.is_required() else plain(field.get_default(call_default_factory=True))
        for key, field in model.model_fields.items()
    }


def plain(value: Any) -> Any:
    """A value as it comes back from a file."""
    return list(map(plain, value)) if isinstance(value, list | tuple) else value


def titles(folders: Sequence[Path]) -> list[str]:
    """The shortest paths that tell the folders apart."""
    whole = [folder.resolve() for folder in folders]
    shared = os.path.commonpath([path.parent for path in whole])
    return [path.relative_to(shared).as_posix() for path in whole]
