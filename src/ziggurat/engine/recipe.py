"""A recipe: one table of a paper, how its rows were trained and what they gave, as data.

The defaults are DeiT's, so a file states only what differs. Keys of the loop and keys of the task
stand side by side in the file; the task checks its own.

    recipe = recipe.load("nest/cifar10_small", changes={"epochs": 3})
"""

import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from ziggurat.models.pretrained import saved_name
from ziggurat.tasks import TASKS
from ziggurat.tasks.task import Settings

RECIPES = resources.files("ziggurat") / "recipes"
ROWS = "rows"
RECIPE = "recipe.toml"  # the resolved one in a run's folder


class RecipeError(ValueError):
    """A recipe that cannot be run: the file, the key, what is allowed."""


class Recipe(BaseModel):
    """What the training loop goes by; ``settings`` is the task's part."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    name: str  # of the file: nest/imagenet
    source: str = ""  # the paper's section or table
    note: str = ""  # where paper and code disagree, and what we took
    paper: dict[str, float] = {}  # what the paper prints for this row
    task: str
    data: str  # a name that `ziggurat data` knows, or a path
    model: str
    model_args: dict[str, Any] = {}
    init: str | None = None  # a run's folder, a checkpoint or a hub id to start from
    needs_init: bool = False  # the recipe makes no sense from scratch
    seed: int = Field(0, ge=0, lt=2**31)

    epochs: float = Field(300, gt=0)
    batch: int = Field(1024, ge=1)  # images a step, over all processes
    accumulate: int = Field(1, ge=1)  # parts a process computes its share in
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    optimizer: str = "adamw"  # any of timm's
    lr: float = Field(5e-4, gt=0)  # at a batch of lr_per images
    lr_per: int = Field(512, ge=0)  # 0: lr as it is
    betas: tuple[float, float] | None = None
    eps: float | None = Field(None, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.05, ge=0)
    layer_decay: float | None = Field(None, gt=0, le=1)
    clip_grad: float | None = Field(None, gt=0)  # the largest norm of all gradients together
    ema: float | None = Field(None, gt=0, lt=1)  # grows to it: 1 - (1 + step)^(-2/3) if less

    schedule: Literal["cosine", "step", "poly", "constant"] = "cosine"
    warmup_epochs: float = Field(5, ge=0)
    warmup_lr: float = Field(1e-6, ge=0)  # where the warm-up starts
    min_lr: float = Field(1e-5, ge=0)  # where the cosine ends
    cooldown_epochs: float = Field(0, ge=0)  # at min_lr, after epochs
    decay_epochs: float = Field(30, gt=0)  # step: how often lr is multiplied
    decay_at: tuple[Annotated[float, Field(gt=0)], ...] = ()  # step: or at these epochs
    decay_rate: float = Field(0.1, gt=0, le=1)  # step: by what
    power: float = Field(1.0, gt=0)  # poly: lr falls as (1 - share done) to this power

    workers: int | None = Field(None, ge=0)  # None: what the machine has to spare
    eval_epochs: float = Field(1, gt=0)  # between evaluations
    save_minutes: float = Field(5, ge=0)  # between checkpoints
    keep: int = Field(2, ge=1)  # checkpoints
    log_steps: int = Field(10, ge=1)  # between lines of metrics.jsonl
    nonfinite: Literal["skip", "stop"] = "skip"  # a step whose loss is none
    max_bad: float = Field(0.01, ge=0, le=1)  # share of unreadable files that stops a run

    settings: SerializeAsAny[Settings]

    @property
    def peak_lr(self) -> float:
        """The learning rate after warm-up."""
        return self.lr * self.batch / self.lr_per if self.lr_per else self.lr

    def flat(self) -> dict[str, Any]:
        """All keys side by side, as a file has them; what is not set is left out."""
        found = self.model_dump(mode="json", exclude={"settings"}) | self.settings.model_dump(
            mode="json"
        )
        return {key: value for key, value in found.items() if value is not None}

    def dump(self) -> str:
        """A file that ``load`` reads back to this recipe."""
        return tomli_w.dumps(self.flat())


def load(
    name: str | Path, model: str | None = None, changes: Mapping[str, Any] | None = None
) -> Recipe:
    """A recipe by its name (``nest/imagenet``) or file, the row of ``model``, then ``changes``."""
    origin, table = read(name)
    rows = table.pop(ROWS, [])
    title = Path(name).stem if origin == str(name) else str(name)
    changes = dict(changes or {})
    model = model or changes.get("model")
    row = row_of(rows, model, changes, origin)
    found = {"name": title} | table | row | changes
    if "paper" not in changes and found.get("data") != (table | row).get("data"):
        found.pop("paper", None)  # printed for other data
    if "model" not in found and found.get("init"):
        found["model"] = saved_name(str(found["init"]))
    return parse(found, origin)


def names() -> list[str]:
    """All recipes that ship with us."""
    return sorted(
        f"{family.name}/{file.name.removesuffix('.toml')}"
        for family in RECIPES.iterdir()
        if family.is_dir()
        for file in family.iterdir()
        if file.name.endswith(".toml")
    )


def read(name: str | Path) -> tuple[str, dict[str, Any]]:
    """Where a recipe is, and what it says."""
    file = Path(name)
    if file.suffix == ".toml":
        if not file.is_file():
            raise RecipeError(f"there is no recipe file {name}")
        try:
            origin, text = str(name), file.read_text()
        except UnicodeDecodeError:
            raise RecipeError(f"{name} is not text in UTF-8") from None
    else:
        if str(name) not in names():
            near = difflib.get_close_matches(str(name), names(), n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else "`ziggurat train --list` shows them"
            raise RecipeError(f"no recipe is called {str(name)!r}: {hint}")
        origin = f"{name}.toml"
        text = (RECIPES / origin).read_text()
    try:
        return origin, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {error}") from None


def row_of(
    rows: list[dict[str, Any]], model: str | None, changes: Mapping[str, Any], origin: str
) -> dict[str, Any]:
    """The row of a model, or the first; of several the one that is most like ``changes``.

    For a model that has none, what all rows share.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecipeError(f"{origin}: rows is a list of tables, written [[rows]]")
    chosen = [row for row in rows if model is None or row.get("model") == model]
    if chosen:
        return max(chosen, key=lambda row: sum(row.get(k) == v for k, v in changes.items()))
    return {} if model is None else {"model": model}


def parse(flat: Mapping[str, Any], origin: str) -> Recipe:
    """Checked settings of flat keys; the first mistake as one line."""
    found = dict(flat)
    task = TASKS.get(str(found.get("task")))
    if task is None:
        raise RecipeError(f"{origin}: task is one of {', '.join(TASKS)}, got {found.get('task')!r}")
    ours = set(Recipe.model_fields) - {"settings"}
    theirs = set(task.Settings.model_fields)
    for key in found:
        if key not in ours | theirs:
            near = difflib.get_close_matches(key, sorted(ours | theirs), n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"it takes {', '.join(sorted(ours | theirs))}"
            )
            raise RecipeError(f"{origin}: {found['task']} has no setting {key!r}: {hint}")
        switch = (Recipe.model_fields | task.Settings.model_fields)[key].annotation is bool
        if isinstance(found[key], bool) and not switch:  # pydantic takes true for 1
            raise RecipeError(f"{origin}: {key} is no switch, got {str(found[key]).lower()}")
    if found.get("needs_init") and not found.get("init"):
        raise RecipeError(
            f"{origin}: it goes on from a trained model: give --init (a run's folder, a checkpoint "
            "or a hub id)"
        )
    try:
        settings = task.Settings(**{key: found.pop(key) for key in theirs & found.keys()})
        return Recipe(**found, settings=settings)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {mistake(error)}") from None


def mistake(error: ValidationError) -> str:
    """The first thing wrong: key, what is allowed, what came."""
    first = error.errors()[0]
    kinds = ("int", "float", "str", "constrained-int")  # pydantic names the kind it tried, too
    places = [str(place) for place in first["loc"]]
    key = ".".join(p for p in places if p not in kinds and not p.startswith("tuple["))
    if first["type"] == "missing":
        return f"{key} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key} {message}, got {first['input']!r}"


def value_of(text: str) -> Any:
    """What stands behind ``--set key=``: TOML if it is, else a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
