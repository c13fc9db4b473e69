"""What the papers print beside what we get: tables of text, for a terminal, a page and Markdown."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ziggurat.engine import claims
from ziggurat.engine.claims import PAPERS
from ziggurat.engine.reproduce import Found, Judged, Part, Trained, cell_kinds, spread, tally
from ziggurat.engine.verdicts import WORDS, Interval

NONE = "–"


class Table(NamedTuple):
    """Cells of text; ``kind`` is how a page lays them out."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = "numbers"


def cells(found: Found) -> Table:
    """Every count-type cell: the paper's, ours, the difference."""
    rows = [
        [
            cell["row"],
            cell["quantity"],
            shown(cell["printed"]),
            shown(cell["ours"]),
            NONE if cell["difference"] is None else f"{cell['difference']:+.4g}",
            "agrees" if cell["agrees"] else cell["reason"],
        ]
        for cell in found.cells
    ]
    return Table(["row", "quantity", "paper", "counted", "difference", ""], rows, "cells")


def shown(value: Any) -> str:
    """A printed or counted value."""
    if value is None:
        return NONE
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def arms(found: Trained) -> Table:
    """A study's rows: the paper's, ours, and both against the first."""
    means = {arm.id: spread(found.values(arm.id)) for arm in found.arms}
    first, base = found.arms[0], means[found.arms[0].id]
    rows = []
    for arm in found.arms:
        mean, printed = means[arm.id], float(arm.printed) if arm.printed else None
        ours = None if mean is None or base is None else mean.value - base.value
        theirs = printed - float(first.printed) if printed is not None and first.printed else None
        rows.append(
            [
                arm.label,
                arm.printed or NONE,
                interval(mean),
                f"{mean.value - printed:+.2f}" if mean and printed is not None else NONE,
                str(len(found.values(arm.id))),
                NONE if arm is first or theirs is None else f"{theirs:+.2f}",
                NONE if arm is first or ours is None else f"{ours:+.2f}",
            ]
        )
    heads = ["row", "paper", "measured", "difference", "seeds", "paper: to first", "ours: to first"]
    return Table(heads, rows)


def interval(found: Interval | None, sign: bool = False) -> str:
    """A mean, and between what it lies."""
    if found is None:
        return NONE
    form = "+.2f" if sign else ".2f"
    value = format(found.value, form)
    if found.low != found.low or found.low == found.high:
        return value
    return f"{value} ({found.low:{form}} to {found.high:{form}})"


def verdict_rows(judged: Iterable[Judged]) -> Table:
    """A line for each claim: the sentence, the paper's size, ours, the verdict."""
    rows = [
        [
            f"“{quoted(one.claim.quote)}”" + (f" ({one.claim.note})" if one.claim.note else ""),
            f"{item_name(one)}, {one.claim.kind}",
            "\n".join(dict.fromkeys(size(part, one) for part in one.parts)),
            "\n".join(measured(part, one) for part in one.parts) if has_any(one) else NONE,
            one.verdict,
        ]
        for one in judged
    ]
    return Table(["claim", "of", "paper", "measured", "verdict"], rows, "verdicts")


def quoted(text: str) -> str:
    """A quotation without TeX."""
    return " ".join(
        text.replace("$", "")
        .replace("\\times", "×")
        .replace("\\sim", "~")
        .replace("\\%", "%")
        .split()
    )


def has_any(one: Judged) -> bool:
    """Whether anything of a claim is measured."""
    return any(part.found is not None for part in one.parts)


def verdict_lines(judged: Iterable[Judged]) -> Iterator[str]:
    """The same for a terminal."""
    for claim, of, paper, ours, verdict in verdict_rows(judged).rows:
        paper, ours = (text.replace("\n", ", ") for text in (paper, ours))
        yield f"{verdict}: {claim}\n    {of}; paper: {paper}; measured: {ours}"


def item_name(one: Judged) -> str:
    """The table or figure that a claim is about."""
    return claims.find(f"{one.name.partition('/')[0]}/{one.claim.item}").name


def size(part: Part, one: Judged) -> str:
    """How much the paper claims."""
    if one.claim.kind == "trained" and one.claim.within is not None:
        return f"within {one.claim.within:g} points"
    if part.claimed is None:
        return "more than 0"
    return f"{part.claimed:+g}" if one.claim.kind == "trained" else f"{part.claimed:g} {one.unit}"


def measured(part: Part, one: Judged) -> str:
    """What we get of it."""
    if one.claim.kind == "trained":
        return interval(part.found, sign=True)
    return NONE if part.found is None else f"{interval(part.found)} {one.unit}"


def overview(found: Sequence[Found]) -> Table:
    """A line for each paper: cells, claims, trainings."""
    rows = []
    for paper in PAPERS:
        own = [one for one in found if one.paper == paper]
        counts = tally(j for one in own for j in one.judged)
        kinds = cell_kinds([cell for one in own for cell in one.cells])
        rows.append(
            [
                claims.paper(paper).name,
                str(len(own)),
                *map(str, kinds.values()),
                *(str(counts[word]) for word in WORDS),
                str(len(trainings(own))),
            ]
        )
    words = [word.removesuffix(" at this scale") for word in WORDS]
    heads = ["paper", "tables, figures", "cells agree", "differ", "no model", *words, "trainings"]
    return Table(heads, rows)


def trainings(found: Iterable[Found]) -> set[tuple[Any, ...]]:
    """Every training that is in it once: studies share some."""
    return {
        (one["command"], one["measured"].get("recipe", {}).get("name"), one["seed"], one["date"])
        for item in found
        for study in item.studies
        for ones in study.results.values()
        for one in ones
    }


def sources(found: Found) -> list[str]:
    """Commands, commits and hardware behind an item, each once."""
    by_command: dict[str, list[Any]] = {}
    for one in found.sources:
        words = one["command"].rpartition(" --seeds ")[0] or one["command"]
        by_command.setdefault(words, []).append(one)
    lines = []
    for command, ones in by_command.items():
        seeds = sorted({one["seed"] for one in ones if one["seed"] is not None})
        commits = sorted({str(one["commit"]) for one in ones})
        machines = sorted({machine(one["hardware"]) for one in ones})
        lines.append(
            f"{command}"
            + (f" --seeds {len(seeds)}" if " --scale " in command else "")
            + f"  [commit {', '.join(commits)}; {', '.join(machines)}"
            + (f"; seeds {', '.join(map(str, seeds))}" if seeds else "")
            + "]"
        )
    return lines


def machine(hardware: dict[str, Any]) -> str:
    """Where it ran."""
    extra = ", ".join(hardware.get("accelerators") or [])
    return f"{hardware['processor']}, {hardware['cores']} cores" + (f", {extra}" if extra else "")


def as_data(found: Found) -> dict[str, Any]:
    """What is known of an item, for another program."""
    return {
        "name": found.name,
        "title": found.item.title,
        "about": found.item.about,
        "checks": list(found.item.checks),
        "cells": found.cells,
        "studies": {
            one.study.id: {arm.id: one.values(arm.id) for arm in one.arms} for one in found.studies
        },
        "claims": [
            {
                "name": one.name,
                "quote": one.claim.quote,
                "verdict": one.verdict,
                "unit": one.unit,
                "parts": [
                    {
                        "of": part.words,
                        "claimed": part.claimed,
                        "found": part.found and list(vars(part.found).values()),
                    }
                    for part in one.parts
                ],
            }
            for one in found.judged
        ],
    }


def dump(found: Sequence[Found]) -> str:
    """As JSON."""
    return json.dumps([as_data(one) for one in found], indent=2)
