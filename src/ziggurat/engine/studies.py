"""Studies: which arms are trained for a table or figure, at which scale, as data.

``ziggurat/studies`` has a file for each. A scale says what all arms share, an arm what is its own:

    a recipe | [scales.laptop] | the arm's ``set`` | the arm's ``laptop``

the later ones counting more; ``model_args`` are joined key by key, unless the arm names a model of
its own. Arms of one study, or of two, that come to the same recipe are one run. An arm ``after``
another starts from what that one has learned with the same seed.

A study with a ``script`` is a benchmark's: its runs are kept by that script.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from ziggurat.engine.claims import Data
from ziggurat.engine.recipe import ROWS, Recipe, parse, read, row_of

FOLDER = resources.files("ziggurat") / "studies"
Scale = Literal["laptop", "workstation", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "workstation", "paper")
APART = ("name", "source", "note", "paper", "seed", "init", "data", "workers", "save_minutes")


class Arm(Data):
    """One row of a study; a ``step`` is none, but others start from it."""

    id: str = Field(pattern=r"^[a-z0-9_-]+$")
    label: str
    row: str = ""  # of the paper's table: "3:Max"
    printed: str = ""  # what the paper has of it
    series: str = ""  # of a picture: "image plane"
    at: str = ""  # its place in it, a number where lines are drawn
    step: bool = False
    after: str = ""  # the arm it starts from
    set: dict[str, Any] = Field({})  # at every scale
    laptop: dict[str, Any] | None = None
    workstation: dict[str, Any] | None = None
    paper: dict[str, Any] | None = None

    def own(self, scale: Scale) -> dict[str, Any] | None:
        """What it changes at a scale; None: it is not there."""
        chosen: dict[str, Any] | None = getattr(self, scale)
        if chosen is None and any(getattr(self, other) is not None for other in SCALES):
            return None
        own = chosen or {}
        args = {**self.set.get("model_args", {}), **own.get("model_args", {})}
        return {**self.set, **own} | ({"model_args": args} if args else {})


class Study(Data):
    """Arms that differ in what is studied, trained alike."""

    id: str
    title: str
    about: str = ""
    measure: str = "top1"  # by which arms are compared
    x: str = ""  # what a picture's lines are drawn against
    scales: dict[Scale, dict[str, Any]] = Field({})
    script: str = ""  # that runs it instead,
    kept: str = ""  # and where, below its results, it keeps NAME-SEED.json
    arms: tuple[Arm, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def consistent(self) -> "Study":
        """Arms are known, and there is a way to run them."""
        names = [arm.id for arm in self.arms]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{self.id} has {', '.join(sorted(twice))} twice")
        for at, arm in enumerate(self.arms):
            if arm.after and arm.after not in names[:at]:
                raise ValueError(f"{self.id}: {arm.id} comes after {arm.after}, which is not above")
        if bool(self.script) == bool(self.scales) or bool(self.script) != bool(self.kept):
            raise ValueError(f"{self.id} has scales, or a script and where it keeps its runs")
        return self

    def arm(self, name: str) -> Arm:
        """One of its arms."""
        return next(arm for arm in self.arms if arm.id == name)

    def at(self, scale: Scale) -> list[Arm]:
        """The arms there are at a scale."""
        return [arm for arm in self.arms if scale in self.scales and arm.own(scale) is not None]


class Run(NamedTuple):
    """One training: an arm with a seed."""

    study: str
    arm: str
    scale: Scale
    seed: int
    recipe: Recipe  # without what it starts from
    after: "Run | None"

    @property
    def name(self) -> str:
        """``laptop/nest-aggregation/image-max3-0``, for folders and files."""
        return f"{self.scale}/{self.study.replace('/', '-')}/{self.arm}-{self.seed}"


def names() -> list[str]:
    """All studies."""
    return sorted(
        f"{family.name}/{file.name.removesuffix('.toml')}"
        for family in FOLDER.iterdir()
        if family.is_dir()
        for file in family.iterdir()
        if file.name.endswith(".toml")
    )


@cache
def study(name: str) -> Study:
    """One by its name, ``nest/aggregation``."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        raise ValueError(f"no study is called {name!r}: {hint}")
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return Study(id=name, **table)


def recipe_of(study: Study, arm: Arm, scale: Scale, seed: int = 0) -> Recipe:
    """What an arm is trained by."""
    own = arm.own(scale)
    if scale not in study.scales or own is None:
        raise ValueError(f"{study.id} has no arm {arm.id!r} at scale {scale}")
    shared = dict(study.scales[scale])
    if "model" in own:
        shared.pop("model_args", None)
    if "recipe" in own:  # another task, perhaps: of the scale, only the model is for it
        shared = {key: shared[key] for key in ("model", "model_args") if key in shared}
    args = {**shared.get("model_args", {}), **own.get("model_args", {})}
    changes = {**shared, **own, "model_args": args, "seed": seed}
    origin, table = read(changes.pop("recipe"))
    row = row_of(table.pop(ROWS, []), changes.get("model"), changes, origin)
    base = table | row
    changes["model_args"] = {**base.get("model_args", {}), **args}
    base.pop("paper", None)  # of the whole recipe
    base.pop("needs_init", None)  # it gets what it starts from when it is run
    return parse(base | changes | {"name": f"{study.id}/{arm.id}"}, f"{study.id} at {scale}")


def run_of(study: Study, arm: Arm, scale: Scale, seed: int) -> Run:
    """An arm with a seed, and what comes before it."""
    before = run_of(study, study.arm(arm.after), scale, seed) if arm.after else None
    return Run(study.id, arm.id, scale, seed, recipe_of(study, arm, scale, seed), before)


def fingerprint(run: Run) -> str:
    """The same for two runs that would end with the same weights, but for their seeds."""
    return json.dumps(
        [essence(run.recipe.flat()), run.recipe.data, run.after and fingerprint(run.after)]
    )


def essence(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that decide what is learned, whatever the data is called."""
    return {key: flat[key] for key in sorted(flat) if key not in APART}


@cache
def owners(scale: Scale) -> dict[str, tuple[str, str]]:
    """For every fingerprint, the study and arm whose files it has: the first there is."""
    found: dict[str, tuple[str, str]] = {}
    for name in names():
        one = study(name)
        for arm in one.at(scale):
            found.setdefault(fingerprint(run_of(one, arm, scale, 0)), (name, arm.id))
    return found


def owner(run: Run) -> Run:
    """The run that this one is: its own, or that of another arm with the same recipe.

    What it comes after is that run's owner, too.
    """
    name, arm = owners(run.scale)[fingerprint(run)]
    found = run_of(study(name), study(name).arm(arm), run.scale, run.seed)
    return found._replace(after=owner(found.after)) if found.after else found


def runs(study: Study, scale: Scale, seeds: int) -> Iterator[Run]:
    """All of a study, one seed after the other: whenever it stops, arms have had the same."""
    for seed in range(seeds):
        for arm in study.at(scale):
            yield owner(run_of(study, arm, scale, seed))


def kept(run: Run, out: Path) -> dict[str, Any] | None:
    """The result of a run, if there is one of this very recipe."""
    file = out / f"{run.name}.json"
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    measured = found["measured"]
    same = essence(measured["recipe"]) == essence(run.recipe.flat())
    return found if same and measured["recipe"]["data"] == run.recipe.data else None


def results(
    study: Study, scale: Scale, out: Path, benchmarks: Path
) -> dict[str, list[dict[str, Any]]]:
    """Kept results of each arm, in the order of their seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for arm in study.arms:
        if study.script:
            files = sorted((benchmarks / study.kept).glob(f"{arm.id}-[0-9]*.json"))
            ones = [json.loads(file.read_text()) for file in files] if scale == "laptop" else []
        elif arm in study.at(scale):
            run = owner(run_of(study, arm, scale, 0))
            folder = (out / run.name).parent
            seeds = sorted(
                int(file.stem.rpartition("-")[2]) for file in folder.glob(f"{run.arm}-[0-9]*.json")
            )
            each = (kept(owner(run_of(study, arm, scale, seed)), out) for seed in seeds)
            ones = [one for one in each if one is not None]
        else:
            ones = []
        if ones:
            found[arm.id] = ones
    return found
