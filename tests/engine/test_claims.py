"""What the papers claim is theirs, word for word, and can be checked by what is named."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ziggurat.engine import claims, studies, tables
from ziggurat.engine.claims import CountClaim, Counted, Item, Paper, RatioClaim, TrainedClaim

PAPERS = Path(__file__).parents[3] / "shared" / "papers"
LISTED = {  # the issue's
    "nest": "table1 table2 figure4 figure5 figure6 figure7 figure8 tableA1 tableA2 tableA3 tableA4 "
    "figureA1 figureA2 figureA3",
    "hvt": "table1 table2 table3 table4 table5 table6 table7 table8 table9 figure1 figure3 figure4",
    "rest": "table1 table2 figure1 figure2",
    "hivit": "table1 table2 table3 table4 table5 table6 table7 table8 table9 figure2",
    "regionvit": "table1 table2 table3 table4 table5 table6 table7 table8 table9 table10 table11",
}
SAID: dict[str, Any] = {"id": "a", "item": "table1", "quote": "a beats b", "where": "1"}


@pytest.mark.parametrize("paper", claims.PAPERS)
def test_every_table_and_figure_is_listed(paper: str) -> None:
    assert [item.id for item in claims.paper(paper).items] == LISTED[paper].split()


def test_there_are_claims_of_every_kind_and_paper() -> None:
    every = claims.every()
    assert len(every) >= 40
    assert {claim.kind for claim in every.values()} == {"count", "ratio", "trained"}
    assert {name.partition("/")[0] for name in every} == set(claims.PAPERS)


@pytest.mark.shared
@pytest.mark.parametrize("paper", claims.PAPERS)
def test_every_quoted_sentence_is_in_the_paper(paper: str) -> None:
    if not PAPERS.exists():
        pytest.skip("the papers are not part of the repository")
    name = "rest_supplement" if paper == "rest" else paper
    text = " ".join((PAPERS / f"{name}.txt").read_text().split())
    for claim in claims.paper(paper).claims:
        assert " ".join(claim.quote.split()) in text, claim.id


@pytest.mark.shared
@pytest.mark.parametrize("study", studies.names())
def test_every_printed_accuracy_is_in_the_paper(study: str) -> None:
    if not PAPERS.exists():
        pytest.skip("the papers are not part of the repository")
    name = study.partition("/")[0]
    text = (PAPERS / f"{'rest_supplement' if name == 'rest' else name}.txt").read_text()
    for arm in studies.study(study).arms:
        if arm.printed:
            assert re.search(rf"(?<![\d.]){re.escape(arm.printed)}(?!\.?\d)", text), arm


def test_counted_rows_are_rows_of_tables() -> None:
    for name, claim in claims.every().items():
        for counted in (claim.of, claim.against) if isinstance(claim, CountClaim) else ():
            if counted and counted.row:
                number, _, row = counted.row.partition(":")
                found = [t for t in tables.tables(name.partition("/")[0]) if t.number == number]
                assert [one.name for one in found[0].rows].count(row) == 1, (name, counted)


def test_contrasts_are_of_arms_that_are_trained() -> None:
    for name, claim in claims.every().items():
        if isinstance(claim, TrainedClaim):
            study = studies.study(claim.study)
            steps = {arm.id for arm in study.arms if arm.step}
            there = {arm.id for arm in (study.arms if study.script else study.at("laptop"))}
            assert set(claim.arms) <= there - steps, name


def test_what_a_claim_is_decided_by_is_named_by_its_table() -> None:
    """Else the report would not show it where it belongs."""
    for name, claim in claims.every().items():
        item = claims.items()[f"{name.partition('/')[0]}/{claim.item}"]
        assert claim.kind in item.checks, name
        if isinstance(claim, TrainedClaim):
            assert claim.study in item.studies, name
        if isinstance(claim, RatioClaim):
            assert claim.results in item.results, name


def test_every_study_is_of_a_table_and_has_a_claim() -> None:
    named = {study for item in claims.items().values() for study in item.studies}
    claimed = {c.study for c in claims.every().values() if isinstance(c, TrainedClaim)}
    assert named == claimed == set(studies.names())


def test_a_table_or_figure_is_found_by_its_name() -> None:
    assert claims.find("nest/figure5").name == "Figure 5"
    assert claims.find("nest/tableA1").number == "A1"
    with pytest.raises(ValueError, match="did you mean 'hvt/table3'"):
        claims.find("hvt/tabel3")
    with pytest.raises(ValueError, match="no claims of 'swin': there are those of nest, hvt"):
        claims.paper("swin")


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (TrainedClaim, {"study": "x", "contrasts": [{"a": 1, "b": -0.5}]}, "sum to 0"),
        (TrainedClaim, {"study": "x", "contrasts": [{"a": 0}]}, "sum to 0"),
        (RatioClaim, {"results": "x", "value": "time", "claimed": 0}, "greater than 0"),
        (
            CountClaim,
            {"quantity": "params_m", "of": {"row": "1:A"}, "form": "less", "claimed": "5"},
            "are against something",
        ),
    ],
)
def test_a_claim_that_says_nothing_is_refused(kind: Any, wrong: dict[str, Any], said: str) -> None:
    names = {TrainedClaim: "trained", RatioClaim: "ratio", CountClaim: "count"}
    with pytest.raises(ValidationError, match=said):
        kind(**SAID, kind=names[kind], **wrong)


def test_a_table_needs_a_check_or_a_reason() -> None:
    about = {"id": "table1", "title": "t", "about": "a"}
    with pytest.raises(ValidationError, match="does not say why"):
        Item(**about)
    with pytest.raises(ValidationError, match="trained goes with what checks it"):
        Item(**about, checks=("trained",))
    with pytest.raises(ValidationError, match="one of them"):
        Counted(row="1:A", model="nest_tiny")


def test_names_are_used_once() -> None:
    item = Item(id="table1", title="t", about="a", gap="none")
    paper = {"id": "x", "name": "X", "source": "s"}
    with pytest.raises(ValidationError, match="x has table1 twice"):
        Paper(**paper, items=(item, item), claims=())
    ratio = RatioClaim(**SAID | {"item": "table2"}, kind="ratio", results="a", value="b", claimed=1)
    with pytest.raises(ValidationError, match="a is about table2, which is not there"):
        Paper(**paper, items=(item,), claims=(ratio,))
