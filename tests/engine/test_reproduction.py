"""One page and one Markdown file with everything, and no number that is in no file."""

import re
from pathlib import Path

import pytest

from tests.engine.test_reproduce import keep
from ziggurat.engine import claims
from ziggurat.engine.reproduce import Places
from ziggurat.engine.reproduction import report, tidy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Three studies that were trained, each with another kind of picture."""
    made = Places(tmp_path / "results", tmp_path / "runs", tmp_path / "benchmarks")
    for arm, base in {"deit": 30.0, "pooled": 29.0, "scaled": 33.0}.items():
        keep(made, "hvt/scaled", arm, [base, base + 0.5, base + 1])
    for arm, base in {"nest-30": 20.0, "deit-30": 15.0, "nest-300": 40.0, "deit-300": 38.0}.items():
        keep(made, "nest/convergence", arm, [base, base + 1])
    for arm in ("image-avg3", "block-avg3"):
        keep(made, "nest/aggregation", arm, [30.0])
    return made


def test_the_report_has_every_table_and_claim(places: Places, tmp_path: Path) -> None:
    out = tmp_path / "docs"
    page, text = report(places, "laptop", out)
    html, markdown = page.read_text(), text.read_text()
    for name, item in claims.items().items():
        assert f'id="{name.replace("/", "-")}"' in html
        assert f"### {item.name}: " in markdown
    assert html.count("“") == markdown.count("“") >= len(claims.every()) >= 40
    assert "http" not in re.sub(r"arXiv:\S+", "", html).replace("http-equiv", "")
    assert "<script" not in html
    drawn = {file.name for file in (out / "reproduction").iterdir()}
    assert {"hvt-scaled-cost.png", "hvt-scaled-curves.png", "nest-convergence-lines.png"} <= drawn
    assert {"nest-aggregation-rows.png", "hvt-verdicts.png"} <= drawn
    for file in re.findall(r"!\[.*?\]\((.*?)\)", markdown):
        assert (out / file).is_file()
    assert "| DeiT-Ti | 72.20 | 30.50 (29.26 to 31.74) | -41.70 | 3 | – | – |" in markdown
    assert "75.23 | 33.50 (32.26 to 34.74) | -41.73 | 3 | +3.03 | +3.00 |" in markdown


def test_a_report_without_results_says_that_there_are_none(tmp_path: Path) -> None:
    nowhere = Places(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    _, text = report(nowhere, "laptop", tmp_path / "docs")
    assert text.read_text().count("not measured yet") >= len(claims.every())
    assert not (tmp_path / "docs" / "reproduction").exists()


def test_the_committed_report_is_what_the_committed_results_say(tmp_path: Path) -> None:
    """Nobody has typed a number into it."""
    benchmarks = ROOT / "benchmarks" / "results"
    made = Places(benchmarks / "reproduce", tmp_path, benchmarks)
    for file in ("canvases.png", "generated.png"):
        (tmp_path / file).write_bytes((ROOT / "docs" / file).read_bytes())
    _, text = report(made, "laptop", tmp_path)
    assert text.read_text() == (ROOT / "docs" / "reproduction.md").read_text()


def test_a_cell_of_markdown_stays_one() -> None:
    assert tidy("a | b\n<c>  d") == "a \\| b<br>&lt;c> d"
