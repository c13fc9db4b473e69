"""Counts beside the papers', and claims that they decide."""

import json
from pathlib import Path

import pytest

from ziggurat.engine import claims, counts, tables
from ziggurat.engine.claims import CountClaim, RatioClaim
from ziggurat.engine.verdicts import FAILS, HOLDS, MISSING, Interval

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "results"
RATIO = {"id": "a", "item": "table1", "quote": "q", "where": "w", "kind": "ratio"}


def test_every_table_that_is_counted_has_cells_and_no_other() -> None:
    """Without counting any: that is done in test_tables.py."""
    listed = {f"{t.paper}/table{t.number}" for p in tables.papers() for t in tables.tables(p)}
    assert set(counts.counted_items()) == {name for name in listed if "README" not in name}


def test_a_cell_is_shown_beside_the_papers() -> None:
    found = counts.cells("hvt", "3")
    assert {cell["row"] for cell in found} == {"Conv", "Avg", "Max"}
    (one,) = (c for c in found if c["row"] == "Conv" and c["quantity"] == "params_m")
    assert (one["printed"], one["agrees"], one["reason"]) == ("23.54", True, "")
    assert one["difference"] == pytest.approx(one["ours"] - 23.54, abs=1e-6)


def test_settings_and_structure_are_cells_too() -> None:
    found = counts.cells("regionvit", "11")
    assert len(found) == 13 * 4
    assert all(cell["agrees"] for cell in found)
    assert {c["difference"] for c in found if c["row"] == "Optimizer"} == {None}
    shapes = [cell for cell in counts.cells("nest", "A3") if cell["quantity"] == "head_dims"]
    assert [cell["ours"][0] for cell in shapes] == [768, 384, 256, 128, 64, 32, 16, 8]


@pytest.mark.parametrize("name", [n for n, c in claims.every().items() if c.kind == "count"])
def test_every_count_that_is_claimed_can_be_judged(name: str) -> None:
    claim = claims.every()[name]
    assert isinstance(claim, CountClaim)
    verdict, value = counts.count(name.partition("/")[0], claim)
    assert verdict in (HOLDS, FAILS)
    assert value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nest/fewer-parameters-than-swin", 56.3),
        ("hvt/halves-the-flops", 1.9146),
        ("rest/fewer-computations", -2.94),
        ("hivit/base-has-fewer-parameters", 24.33),
        ("regionvit/memory-of-attention", 73.93),
    ],
)
def test_counts_are_compared_as_the_sentence_does(name: str, value: float) -> None:
    claim = claims.every()[name]
    assert isinstance(claim, CountClaim)
    verdict, found = counts.count(name.partition("/")[0], claim)
    assert verdict == HOLDS
    assert found == pytest.approx(value, rel=1e-3)


def test_committed_benchmarks_decide_their_ratios() -> None:
    for claim in claims.every().values():
        if isinstance(claim, RatioClaim) and (BENCHMARKS / claim.results).exists():
            verdict, found = counts.ratio(claim, BENCHMARKS)
            assert verdict != MISSING
            assert found is not None
            assert found.low <= found.value <= found.high


def test_a_ratio_is_found_in_its_row(tmp_path: Path) -> None:
    rows = [{"way": "a", "time": 2.5, "quartiles": [2.4, 2.6]}, {"way": "b", "time": 1.0}]
    (tmp_path / "list.json").write_text(json.dumps({"measured": rows}))
    measured = {"claims": [{"about": "x", "speed": [1.9, 2.0, 2.1]}], "memory": {"saved": 70.0}}
    (tmp_path / "tables.json").write_text(json.dumps({"measured": measured}))
    listed = RatioClaim(
        **RATIO, results="list.json", find={"way": "a"}, value="time", spread="quartiles", claimed=2
    )
    assert counts.ratio(listed, tmp_path) == (HOLDS, Interval(2.5, 2.4, 2.6))
    three = RatioClaim(**RATIO, results="tables.json", under="claims", value="speed", claimed=4)
    assert counts.ratio(three, tmp_path) == (FAILS, Interval(2.0, 1.9, 2.1))
    alone = RatioClaim(**RATIO, results="tables.json", under="memory", value="saved", claimed=73)
    assert counts.ratio(alone, tmp_path) == (HOLDS, Interval(70, 70, 70))
    gone = RatioClaim(**RATIO, results="gone.json", value="x", claimed=1)
    assert counts.ratio(gone, tmp_path) == (MISSING, None)
    vague = RatioClaim(**RATIO, results="list.json", value="time", claimed=1)
    with pytest.raises(ValueError, match=r"list.json has 2 rows of \{\}, not one"):
        counts.ratio(vague, tmp_path)
