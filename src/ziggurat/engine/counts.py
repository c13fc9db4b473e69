"""What is counted and what benchmarks have measured, beside what the papers print of it."""

import json
from pathlib import Path
from typing import Any

from ziggurat.complexity import attention_map, regional_maps
from ziggurat.engine import tables, verdicts
from ziggurat.engine.claims import CountClaim, Counted, RatioClaim, paper
from ziggurat.engine.verdicts import MISSING, Interval, Word

Cells = list[dict[str, Any]]


def cells(name: str, number: str) -> Cells:
    """Every count-type cell of a paper's table: printed, ours, the difference."""
    found: Cells = []
    for table in tables.tables(name):
        for row in table.rows if table.number == number else ():
            for cell in tables.check(row):
                found.append(
                    {
                        "row": row.name,
                        "quantity": cell.quantity,
                        "printed": cell.printed,
                        "ours": cell.ours,
                        "difference": difference(cell),
                        "agrees": cell.agrees,
                        "reason": cell.reason,
                    }
                )
    return found


def difference(cell: tables.Cell) -> float | None:
    """Ours less the printed one; None where they are no numbers."""
    if not isinstance(cell.printed, str) or not isinstance(cell.ours, int | float):
        return None
    return round(cell.ours - tables.value(cell.printed), 6)


def counted_items() -> list[str]:
    """Tables that have count-type cells, ``nest/table1``."""
    return [
        f"{name}/{item.id}"
        for name in tables.papers()
        for item in paper(name).items
        if "count" in item.checks
    ]


# Claims.


def count(name: str, claim: CountClaim) -> tuple[Word, float]:
    """The verdict on a claim about counted things, and what is counted."""
    of = number(name, claim.of, claim.quantity)
    against = number(name, claim.against, claim.quantity) if claim.against else 0.0
    value = {
        "value": lambda: of,
        "difference": lambda: of - against,
        "times": lambda: against / of,
        "less": lambda: 100 * (1 - of / against),
        "more": lambda: 100 * (of / against - 1),
    }[claim.form]()
    return verdicts.count(value, claim.claimed, claim.relation), value


def number(name: str, counted: Counted, quantity: str) -> float:
    """What is counted of a row, a model or a map."""
    if quantity == "attention":
        whole = attention_map(counted.tokens)
        return regional_maps(counted.tokens, counted.window) if counted.window else whole
    if counted.row:
        at, _, title = counted.row.partition(":")
        (table,) = (one for one in tables.tables(name) if one.number == at)
        (row,) = (one for one in table.rows if one.name == title)
    else:
        row = tables.Row(
            counted.model,
            printed={},
            model=counted.model,
            img_size=counted.img_size,
            overrides=counted.overrides,
            counts=counted.counts,
        )
    return float(tables.number(row, quantity))


def ratio(claim: RatioClaim, benchmarks: Path) -> tuple[Word, Interval | None]:
    """The verdict on a claim that a benchmark decides, and what it measured."""
    file = benchmarks / claim.results
    if not file.is_file():
        return MISSING, None
    measured = json.loads(file.read_text())["measured"]
    table = measured[claim.under] if claim.under else measured
    rows = [
        row
        for row in (table if isinstance(table, list) else [table])
        if all(row.get(key) == value for key, value in claim.find.items())
    ]
    if len(rows) != 1:
        raise ValueError(f"{claim.results} has {len(rows)} rows of {claim.find}, not one")
    found = interval(rows[0], claim)
    return verdicts.ratio(found, claim.claimed, claim.relation), found


def interval(row: dict[str, Any], claim: RatioClaim) -> Interval:
    """A measured value with its quartiles, or alone."""
    value = row[claim.value]
    if isinstance(value, list):
        low, middle, high = value
        return Interval(middle, low, high)
    low, high = row[claim.spread] if claim.spread else (value, value)
    return Interval(value, low, high)
