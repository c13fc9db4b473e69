"""What the papers claim, as data: every table and figure, and the sentences that compare things.

``ziggurat/claims`` has a file for each paper. ``[[items]]`` are its numbered tables and figures in
the paper's order, ``[[claims]]`` its sentences, verbatim, each of one kind:

    count     an architecture decides: parameters, FLOPs, entries of attention's maps
    ratio     a benchmark decides: how many times faster or smaller, in one interleaved run
    trained   a study decides: a contrast of its arms, over seeds (engine/studies.py)

    claims.paper("nest").claims[0].quote
"""

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FOLDER = resources.files("ziggurat") / "claims"
PAPERS = ("nest", "hvt", "rest", "hivit", "regionvit")  # in which they are reported
Kind = Literal["count", "ratio", "trained", "picture"]


class Data(BaseModel):
    """Checked when it is read, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Draw(Data):
    """A command that draws a figure; RUN, PHOTOS and OUT are folders, TESTED of a run's images."""

    command: str
    runs: tuple[str, ...]  # for each RUN a study, an arm and a seed: "rest/attention/emsa-0"
    picture: str  # what it leaves in OUT

    @model_validator(mode="after")
    def filled(self) -> "Draw":
        """Every RUN is given."""
        if self.command.split().count("RUN") != len(self.runs):
            raise ValueError(f"{self.command}: has {len(self.runs)} runs for its RUN")
        return self


class Item(Data):
    """A numbered table or figure."""

    id: str = Field(pattern=r"^(table|figure)A?\d+$")
    title: str  # the paper's, shortened
    about: str  # what it claims
    checks: tuple[Kind, ...] = ()
    studies: tuple[str, ...] = ()  # whose arms are its rows
    results: tuple[str, ...] = ()  # of benchmarks that measure its ratios: pretrain.json
    draw: Literal["rows", "lines", "curves", "cost"] = "rows"  # how its studies are shown
    draws: tuple[Draw, ...] = ()  # its pictures
    pictures: tuple[str, ...] = ()  # in docs, that benchmarks have drawn
    gap: str = ""  # what of it is not checked, and why

    @model_validator(mode="after")
    def complete(self) -> "Item":
        """What a check needs is named, and what nothing checks has a reason."""
        named = {"trained": self.studies, "ratio": self.results, "picture": self.draws}
        for kind, needed in named.items():
            if (kind in self.checks) != bool(needed):
                raise ValueError(f"{self.id}: {kind} goes with what checks it")
        if not self.checks and not self.gap:
            raise ValueError(f"{self.id} has no check, and does not say why")
        return self

    @property
    def number(self) -> str:
        """As ``tables`` numbers it; empty for a figure."""
        return self.id.removeprefix("table") if self.id.startswith("table") else ""

    @property
    def name(self) -> str:
        """``Table 1``, ``Figure A2``."""
        kind = "Table" if self.number else "Figure"
        return f"{kind} {self.id.removeprefix(kind.lower())}"


class Said(Data):
    """A sentence of a paper that compares things."""

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    item: str  # the table or figure it is about
    quote: str  # verbatim
    where: str  # "Section 4.3"
    rows: tuple[str, ...] = ()  # that it compares, as the paper names them
    note: str = ""  # how we read it


class Counted(Data):
    """A model whose parameters or FLOPs are counted: a row of a table, or one built for this."""

    row: str = ""  # "2:Swin-B"
    model: str = ""
    img_size: int | None = None
    overrides: dict[str, Any] = {}
    counts: Literal["macs", "fvcore"] = "macs"
    tokens: int = 0  # entries of attention's maps: of so many tokens,
    window: int = 0  # in windows of so many a side, each with a regional token

    @model_validator(mode="after")
    def one(self) -> "Counted":
        """A row, a model or a map."""
        if sum(map(bool, (self.row, self.model, self.tokens))) != 1:
            raise ValueError("takes a row, a model or tokens: one of them")
        return self


class CountClaim(Said):
    """``value`` of one model; or ``times`` (against / of), ``less`` and ``more`` in per cent."""

    kind: Literal["count"]
    quantity: Literal["params_m", "flops_g", "attention"]
    of: Counted
    against: Counted | None = None
    form: Literal["value", "difference", "times", "less", "more"]
    relation: Literal["equals", "at least", "at most"] = "equals"
    claimed: str  # as printed; its last digit is how exactly

    @model_validator(mode="after")
    def two(self) -> "CountClaim":
        """A comparison compares."""
        if (self.form == "value") != (self.against is None):
            raise ValueError(f"{self.id}: all but a value are against something")
        return self


class RatioClaim(Said):
    """How many times more, or how many per cent: a row of a benchmark's results."""

    kind: Literal["ratio"]
    results: str  # pretrain.json
    under: str = ""  # the key of its rows, where there are several tables
    find: dict[str, Any] = {}  # what the row has
    value: str  # its key; a list is least, middle and most
    spread: str = ""  # the key of least and most
    unit: str = "times"
    relation: Literal["at least", "about", "at most"] = "at least"
    claimed: float = Field(gt=0)


class TrainedClaim(Said):
    """One or more contrasts of a study's arms; a contrast's weights sum to 0."""

    kind: Literal["trained"]
    study: str
    measure: str = "top1"
    less: bool = False  # of the measure is better
    contrasts: tuple[dict[str, float], ...] = Field(min_length=1)
    claimed: float | None = None  # points; None: what the arms' printed values come to
    within: float | None = Field(None, gt=0)  # claimed is that there is less difference than this

    @model_validator(mode="after")
    def balanced(self) -> "TrainedClaim":
        """Equal arms make no difference."""
        for contrast in self.contrasts:
            if len(contrast) < 2 or abs(sum(contrast.values())) > 1e-9:
                raise ValueError(f"{self.id}: weights of a contrast sum to 0, got {contrast}")
        return self

    @property
    def arms(self) -> tuple[str, ...]:
        """All that are compared."""
        return tuple(dict.fromkeys(arm for contrast in self.contrasts for arm in contrast))


Claim = Annotated[CountClaim | RatioClaim | TrainedClaim, Field(discriminator="kind")]


class Paper(Data):
    """What one paper has."""

    id: str
    name: str
    source: str
    items: tuple[Item, ...]
    claims: tuple[Claim, ...]

    @model_validator(mode="after")
    def consistent(self) -> "Paper":
        """Names are used once, and those that are used are there."""
        for kind in (self.items, self.claims):
            names = [one.id for one in kind]
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"{self.id} has {', '.join(sorted(twice))} twice")
        known = {item.id: item for item in self.items}
        for claim in self.claims:
            if claim.item not in known:
                raise ValueError(f"{self.id}: {claim.id} is about {claim.item}, which is not there")
        return self


@cache
def paper(name: str) -> Paper:
    """One paper's tables, figures and claims."""
    if name not in PAPERS:
        raise ValueError(f"no claims of {name!r}: there are those of {', '.join(PAPERS)}")
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return Paper(id=name, **table)


def items() -> dict[str, Item]:
    """Every table and figure by its full name, ``nest/figure5``."""
    return {f"{name}/{item.id}": item for name in PAPERS for item in paper(name).items}


def find(name: str) -> Item:
    """A table or figure by its full name."""
    known = items()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "`ziggurat reproduce --list` shows them"
        raise ValueError(f"no table or figure is called {name!r}: {hint}")
    return known[name]


def every() -> dict[str, Claim]:
    """All claims by their full names, ``nest/image-plane``."""
    return {f"{name}/{claim.id}": claim for name in PAPERS for claim in paper(name).claims}
