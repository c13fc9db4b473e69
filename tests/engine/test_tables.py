"""Every cell of the papers' tables that an architecture fixes is ours, or known to be wrong."""

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from ziggurat.engine import tables
from ziggurat.engine.tables import (
    Cell,
    Row,
    Table,
    best_printed,
    check,
    papers,
    printed,
    rounds_to,
    rows,
)
from ziggurat.models.registry import VARIANTS

PAPERS = Path(__file__).parents[3] / "shared" / "papers"
WANTED = {
    "nest": ["1", "2", "A1", "A3", "A4"],
    "hvt": ["1", "2", "3", "4", "5", "6", "7", "8", "9"],
    "rest": ["1"],
    "hivit": ["1", "2", "3", "4", "7", "9"],
    "regionvit": ["2", "3", "4", "6", "7", "9", "10", "11"],
}
COUNTED = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduce" / "counts"
COLUMNS = [("hivit", "1"), ("nest", "A3")]  # tables whose columns are models
ROWS = [pytest.param(t, row, id=f"{t.paper}-{t.number}-{row.name}") for t, row in rows()]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_is_ours_or_known_to_be_wrong(table: Table, row: Row) -> None:
    cells = check(row)
    assert cells, f"nothing to check in {row}"
    for cell in cells:
        if cell.reason:
            assert not cell.agrees, f"{cell} agrees: take the excuse away"
        else:
            assert cell.agrees, f"{cell}: neither ours nor excused"
    if table.number != "README":
        file = COUNTED / f"{table.paper}-table{table.number}.json"
        kept = json.loads(file.read_text())["measured"]["cells"]
        ours = json.loads(json.dumps([[cell.quantity, cell.ours, cell.agrees] for cell in cells]))
        reported = [[k["quantity"], k["ours"], k["agrees"]] for k in kept if k["row"] == row.name]
        assert all(cell in reported for cell in ours), "`ziggurat reproduce` counts it anew"


def test_all_tables_are_there() -> None:
    for paper, numbers in WANTED.items():
        found = [table.number for table in tables.tables(paper)]
        assert [number for number in found if number != "README"] == numbers
    assert papers() == sorted(WANTED)


def test_all_variants_are_in_a_table() -> None:
    missing = set(VARIANTS) - {row.model for _, row in rows()}
    assert missing == {"hvt_ti_2", "hvt_ti_3"}  # the paper's HVT-Ti pool 0, 1 and 4 times


def test_every_one_of_our_rows_has_a_model() -> None:
    ours = re.compile("nest|hvt|rest|hivit|regionvit", re.IGNORECASE)
    assert not [row.name for _, row in rows() if row.absent and ours.match(row.name)]


@pytest.mark.parametrize(
    ("value", "number", "is_it"),
    [
        ("16.5", "17", True),
        ("17.4999", "17", True),
        ("17.5", "17", False),
        ("17.058", "17.0", False),  # a zero is a digit
        ("5.849", "5.8", True),
        ("5.85", "5.8", False),
        ("152.4309", "152.43", True),
    ],
)
def test_a_number_has_to_agree_in_every_printed_digit(value: str, number: str, is_it: bool) -> None:
    assert rounds_to(Decimal(value), number) == is_it


@pytest.mark.parametrize(("value", "number"), [("15.84670", "15.9"), ("71.7477", "71.8")])
def test_hivit_rounds_what_its_code_had_rounded(value: str, number: str) -> None:
    assert rounds_to(Decimal(value), number, "twice")
    assert not rounds_to(Decimal(value), number)


def test_a_cell_needs_a_reason_exactly_if_it_does_not_agree() -> None:
    assert Cell("params_m", "17", 17.1, True, "").explained
    assert Cell("params_m", "17", 18.1, False, "misprinted").explained
    assert not Cell("params_m", "17", 18.1, False, "").explained
    assert not Cell("params_m", "17", 17.1, True, "stale").explained


def test_a_row_without_model_says_why() -> None:
    row = Row("CCT", printed={"params_m": "3.7"}, absent="timm has no CCT")
    assert check(row) == [Cell("params_m", "3.7", None, False, "timm has no CCT")]
    with pytest.raises(AssertionError, match="CCT: a model, or why there is none"):
        Row("CCT", printed={"params_m": "3.7"})


def test_what_a_paper_prints_of_a_variant() -> None:
    assert printed("nest_tiny") == {"params_m": "17", "flops_g": "5.8"}
    assert printed("nest_base_cifar") == {"params_m": "90.1"}
    assert printed("hvt_s_2") == {"flops_g": "1.94", "params_m": "22.11"}  # not of 100 classes
    assert printed("regionvit_b_plus") == {"params_m": "73.8", "flops_g": "13.6"}
    assert printed("resnet50") == {}


def test_a_paper_that_is_not_there_is_said() -> None:
    with pytest.raises(ValueError, match="no tables of 'swin': there are those of hivit, hvt, "):
        tables.tables("swin")


@pytest.mark.shared
@pytest.mark.parametrize("paper", sorted(WANTED))
def test_rows_are_printed_so(paper: str) -> None:
    if not PAPERS.exists():
        pytest.skip("the papers are not part of the repository")
    name = "rest_supplement" if paper == "rest" else paper
    text = (PAPERS / f"{name}.txt").read_text()
    if paper == "rest":  # a cell to a line there
        text = re.sub(r"\n+", " ", text)
    for table in tables.tables(paper):
        for row in table.rows if table.number != "README" else ():
            numbers = [value for value in row.printed.values() if isinstance(value, str)]
            together = [[n] for n in numbers] if (paper, table.number) in COLUMNS else [numbers]
            for some in together:
                assert any(
                    all(re.search(rf"(?<![\d.]){re.escape(n)}(?!\.?\d)", line) for n in some)
                    for line in text.splitlines()
                ), f"no line of {name}.txt has all of {row}"


def test_the_best_accuracy_is_found_of_a_model_as_it_is() -> None:
    assert best_printed("rest_lite") == 77.2  # 72.88 in the supplement's short training
    assert best_printed("hvt_s_4") == 75.23  # ImageNet's, not CIFAR's
    assert best_printed("timm/deit_small_patch16_224") == 79.9
    assert best_printed("restv2_tiny", 384) == 83.7
    assert best_printed("hvt_s_2_2d") is None
