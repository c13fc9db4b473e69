"""The papers' architecture tables, and whether our models are what they print.

``ziggurat/tables`` has a file for each paper. A row says which model it is about and what is
printed of it, digits as printed. ``check`` measures what an architecture fixes:

    params_m, flops_g                           millions of parameters, billions of FLOPs
    dims, depths, heads, blocks, window         a number for each stage, finest first
    dim, heads, blocks                          one for all, of a plain transformer and of HVT
    local, regional                             how RegionViT makes its tokens

A row with a ``detector`` is of the model inside one, at ``size``. A row with a ``setting`` prints
that setting of several recipes. Accuracies and throughputs are data for those who train. A printed
number that the official code does not bear out is marked ``contradicted``, with the reason; a row
without a model ``absent``.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch

from ziggurat.engine import detection_cost, measure
from ziggurat.engine.recipe import load
from ziggurat.layers.attention import Attention
from ziggurat.layers.convolution import Conv
from ziggurat.models.registry import VARIANTS, create_model, family_of
from ziggurat.tasks.detect import detector

Options = tuple[tuple[str, Any], ...]  # overrides that a cache can keep


@dataclass(frozen=True)
class Row:
    """One row of one table."""

    name: str  # as printed
    printed: Mapping[str, str | Sequence[int]]
    model: str = ""  # as ``create_model`` takes it
    img_size: int | None = None  # what the model was trained at, if not given
    overrides: Mapping[str, Any] = field(default_factory=dict)
    counts: str = "macs"  # what a FLOP is: "macs", or "fvcore", which counts norms as well
    rounding: str = "nearest"  # or "twice": to two decimals, and from there to those printed
    detector: str = ""  # that the model is the backbone of: retinanet, maskrcnn
    size: Sequence[int] = ()  # height and width of its images
    setting: str = ""  # of recipes, which are the columns
    absent: str = ""  # why there is no model
    contradicted: Mapping[str, str] = field(default_factory=dict)  # quantity -> why it is wrong

    def __post_init__(self) -> None:
        given = (self.model, self.setting, self.absent)
        assert sum(map(bool, given)) == 1, f"{self.name}: a model, or why there is none"
        assert self.counts in ("macs", "fvcore"), self.counts
        assert self.rounding in ("nearest", "twice"), self.rounding
        assert self.contradicted.keys() <= self.printed.keys(), self.name


@dataclass(frozen=True)
class Table:
    """One table of one paper."""

    paper: str  # the file's name
    source: str  # "arXiv:2105.12723"
    number: str  # as printed; "README" for what only the official code's README has
    title: str
    rows: tuple[Row, ...]


class Cell(NamedTuple):
    """One printed number beside ours."""

    quantity: str
    printed: str | Sequence[int]
    ours: float | str | list[int] | None  # None where there is no model
    agrees: bool
    reason: str  # why it does not agree; empty if it does, or if nobody knows

    @property
    def explained(self) -> bool:
        """It agrees and needs no reason, or does not and has one."""
        return self.agrees != bool(self.reason)


def papers() -> list[str]:
    """Names of the papers that have tables."""
    files = (file.name for file in resources.files("ziggurat").joinpath("tables").iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


@cache
def tables(paper: str) -> tuple[Table, ...]:
    """All tables of a paper, in its order.

    What a table says of ``img_size``, ``overrides``, ``counts`` and ``rounding`` holds for its
    rows, unless they say otherwise.
    """
    if paper not in papers():
        raise ValueError(f"no tables of {paper!r}: there are those of {', '.join(papers())}")
    file = resources.files("ziggurat").joinpath("tables", f"{paper}.toml")
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    found = []
    for table in data["tables"]:
        number, title, rows = (table.pop(key) for key in ("number", "title", "rows"))
        common = table.pop("overrides", {})
        merged = (
            Row(**{**table, **row, "overrides": {**common, **row.get("overrides", {})}})
            for row in rows
        )
        found.append(Table(paper, data["source"], number, title, tuple(merged)))
    return tuple(found)


def rows() -> Iterator[tuple[Table, Row]]:
    """Every row of every table of every paper."""
    for paper in papers():
        for table in tables(paper):
            for row in table.rows:
                yield table, row


def printed(model: str) -> dict[str, str]:
    """What its paper prints of one of our variants as it is: ``params_m`` and ``flops_g``.

    Of several tables, the one with the most digits; nothing for other models.
    """
    found: dict[str, str] = {}
    if model not in VARIANTS:
        return found
    paper = family_of(model).__module__.rpartition(".")[2]
    for table in tables(paper):
        for row in table.rows:
            if row.model != model or row.overrides or row.img_size is not None or row.detector:
                continue
            for key in MEASURED:
                value = row.printed.get(key)
                if isinstance(value, str) and len(value) > len(found.get(key, "")):
                    found[key] = value
    return found


def best_printed(model: str, img_size: int | None = None) -> float | None:
    """The best ImageNet top-1 that a paper prints of a model as it is; None is its own size."""
    own = [family_of(model).__module__.rpartition(".")[2]] if model in VARIANTS else papers()
    found = [
        float(str(row.printed["top1"]))
        for paper in own
        for table in tables(paper)
        for row in table.rows
        if row.model == model and "top1" in row.printed and row.overrides.keys() <= {"num_classes"}
        if row.img_size == img_size
    ]
    return max(found, default=None)


def check(row: Row) -> list[Cell]:
    """Measure what the row prints of its architecture, or of its recipes."""
    return [
        cell(row, quantity, printed)
        for quantity, printed in row.printed.items()
        if quantity in MEASURED + SINGLE or not isinstance(printed, str) or row.setting
    ]


def cell(row: Row, quantity: str, printed: str | Sequence[int]) -> Cell:
    """One printed number, or one for each stage, beside ours."""
    if row.absent:
        return Cell(quantity, printed, None, False, row.absent)
    reason = row.contradicted.get(quantity, "")
    if not isinstance(printed, str):
        stages = stages_of(row.model, row.img_size, hashable(row.overrides))
        ours = [getattr(stage, STRUCTURE[quantity]) for stage in stages]
        return Cell(quantity, printed, ours, ours == list(printed), reason)
    if row.setting or quantity in SINGLE:
        found = setting(row, quantity) if row.setting else single(row, quantity)
        agrees = found == (printed.lower() if isinstance(found, str) else value(printed))
        return Cell(quantity, printed, found, agrees, reason)
    exact = number(row, quantity)
    agrees = rounds_to(exact, printed, row.rounding)
    return Cell(quantity, printed, float(exact), agrees, reason)


MEASURED = ("params_m", "flops_g")
SINGLE = ("dim", "heads", "blocks", "local", "regional")
STRUCTURE = {
    "dims": "dim", "depths": "depth", "heads": "heads", "blocks": "windows", "window": "side",
    "head_dims": "head_dim",
}  # fmt: skip


def number(row: Row, quantity: str) -> Decimal:
    """Parameters or FLOPs in the printed unit, exactly."""
    options = hashable(row.overrides)
    if row.detector:
        params, macs = detector_cost(row.model, row.detector, (row.size[0], row.size[1]), options)
        return Decimal(params) / 10**6 if quantity == "params_m" else Decimal(macs) / 10**9
    cost = cost_of(row.model, row.img_size, options)
    if quantity == "params_m":
        return Decimal(cost.params) / 10**6
    return Decimal(cost.macs if row.counts == "macs" else cost.fvcore) / 10**9


def single(row: Row, quantity: str) -> float | str:
    """What holds for a whole model: its width, heads and blocks, or how its tokens are made."""
    model: Any = measure.build(row.model, row.img_size, **dict(hashable(row.overrides)))
    match quantity:
        case "local":
            convolutions = [part for part in model.local_embed.modules() if isinstance(part, Conv)]
            return f"{len(convolutions)}-conv"
        case "regional":
            embed = model.regional_embed
            return "linear" if embed.kernel_size == embed.stride else "overlapping"
        case "dim":
            return int(model.num_features)
    heads = [m.heads for m in model.modules() if isinstance(m, Attention)]
    heads = heads or [block.attn.num_heads for block in model.blocks]  # timm's
    return heads[0] if quantity == "heads" else len(heads)


def setting(row: Row, name: str) -> float | str:
    """A setting of the recipe of that name."""
    found = load(name, "regionvit_s", {"init": "a run"})  # the tiny ones are trained otherwise
    place: Any = found if hasattr(found, row.setting) else found.settings
    return getattr(place, row.setting)


def value(printed: str) -> float:
    """A printed number: 4,096 or 1e-8."""
    return float(printed.replace(",", ""))


def rounds_to(value: Decimal, printed: str, rounding: str = "nearest") -> bool:
    """Whether ``value`` is what was printed, in all its digits."""
    if rounding == "twice":
        value = value.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return value.quantize(Decimal(printed), ROUND_HALF_UP) == Decimal(printed)


@cache
def cost_of(model: str, img_size: int | None, overrides: Options) -> measure.Cost:
    """``measure.count``, once for all rows of one model."""
    return measure.count(model, img_size, **dict(overrides))


@cache
def detector_cost(
    model: str, framework: str, size: tuple[int, int], overrides: Options
) -> tuple[int, int]:
    """Parameters and multiply-adds of a detector of COCO's 80 classes."""
    settings: Any = load(f"regionvit/coco_{framework}").settings
    with torch.device("meta"):
        found = detector(create_model(model, num_classes=0, **dict(overrides)), settings, 80)
    macs = sum(detection_cost.cost(found, *size).values())
    return sum(parameter.numel() for parameter in found.parameters()), macs


@cache
def stages_of(model: str, img_size: int | None, overrides: Options) -> list[measure.Level]:
    """``measure.levels``, once for all rows of one model."""
    return measure.levels(model, img_size, **dict(overrides))


def hashable(overrides: Mapping[str, Any]) -> Options:
    """Overrides as a cache can keep them, TOML's lists as tuples."""
    return tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in sorted(overrides.items())
    )
