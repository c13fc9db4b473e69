"""Tables of text."""

from pathlib import Path

import pytest

from tests.engine.test_reproduce import keep
from ziggurat.engine import claims
from ziggurat.engine.beside import cells, dump, interval, overview, quoted, sources, verdict_lines
from ziggurat.engine.reproduce import Places, find
from ziggurat.engine.reproduction import gather
from ziggurat.engine.verdicts import Interval


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """One study that was trained."""
    made = Places(tmp_path / "results", tmp_path / "runs", tmp_path / "benchmarks")
    for arm, base in {"deit": 30.0, "pooled": 29.0, "scaled": 33.0}.items():
        keep(made, "hvt/scaled", arm, [base, base + 0.5, base + 1])
    return made


def test_other_programs_get_data(places: Places) -> None:
    seen: list[int] = []
    found = gather("laptop", places, lambda done, total: seen.append(total))
    assert set(seen) == {len(claims.items())}
    text = dump(found)
    assert '"name": "hvt/table1"' in text
    assert "NaN" not in text


def test_a_terminal_gets_lines(places: Places) -> None:
    lines = list(verdict_lines(find("hvt/figure4", "laptop", places).judged))
    assert all("; paper: " in line and "; measured: " in line for line in lines)
    assert cells(find("hvt/table3", "laptop", places)).rows == []


def test_numbers_and_quotations_in_words() -> None:
    assert interval(None) == "–"
    assert interval(Interval(1, 0, 2), sign=True) == "+1.00 (+0.00 to +2.00)"
    assert interval(Interval(1, float("nan"), float("nan"))) == "1.00"
    assert quoted("nearly  $2 \\times$  FLOPs") == "nearly 2 × FLOPs"


def test_the_papers_are_summed_up(places: Places) -> None:
    table = overview(gather("laptop", places, lambda done, total: None))
    assert [row[0] for row in table.rows] == ["NesT", "HVT", "ResT", "HiViT", "RegionViT"]
    assert [row[-1] for row in table.rows] == ["0", "9", "0", "0", "0"]
    assert sum(int(row[1]) for row in table.rows) == len(claims.items())


def test_what_made_a_number_is_named_once(places: Places) -> None:
    (line,) = sources(find("hvt/figure1", "laptop", places))
    assert "; seeds 0, 1, 2]" in line
