"""What is known of a table or figure comes from files, and from nothing else."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ziggurat.engine import claims, reproduce, results, studies
from ziggurat.engine.reproduce import Places, count, find, is_counted, scales, spread, state, tally
from ziggurat.engine.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, Interval

ROOT = Path(__file__).parents[2]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "results", tmp_path / "runs", tmp_path / "benchmarks")


def keep(places: Places, study: str, arm: str, tops: list[float]) -> None:
    """Results of an arm as a training leaves them, a seed each."""
    one = studies.study(study)
    for seed, top in enumerate(tops):
        run = studies.owner(studies.run_of(one, one.arm(arm), "laptop", seed))
        measured: dict[str, Any] = {
            "recipe": run.recipe.flat(),
            "test": {"top1": top},
            "minutes": 1.5,
            "history": [{"epoch": 0.1, "loss": 2.0, "top1": 20.0}],
        }
        results.write(places.results / f"{run.name}.json", measured, seed)


def test_counts_are_kept_and_not_counted_again_by_the_same_code(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    assert is_counted("hvt/table3")
    assert count("hvt/table3", places)
    file = places.results / "counts" / "hvt-table3.json"
    kept = json.loads(file.read_text())
    assert kept["command"] == "ziggurat reproduce hvt/table3"
    assert len(kept["measured"]["cells"]) == 6
    written = file.stat().st_mtime_ns
    assert not count("hvt/table3", places)
    monkeypatch.setattr(results, "commit", lambda: "def5678")
    assert count("hvt/table3", places)  # other code counts again,
    assert file.stat().st_mtime_ns == written  # and writes only what is new
    found = find("hvt/table3", "laptop", places)
    assert [cell["agrees"] for cell in found.cells] == [True] * 6
    assert found.sources[0]["commit"] == "abc1234"
    assert "measured" not in found.sources[0]


def test_a_claim_that_is_counted_is_judged_from_the_file(places: Places) -> None:
    assert find("hvt/table1", "laptop", places).judged[0].verdict == MISSING
    kept = {"cells": [], "claims": {"hvt/halves-the-flops": [HOLDS, 1.9]}}
    results.write(places.results / "counts" / "hvt-table1.json", kept)
    first = find("hvt/table1", "laptop", places).judged[0]
    assert (first.name, first.verdict, first.unit) == ("hvt/halves-the-flops", HOLDS, "times")
    assert first.parts[0].found == Interval(1.9, 1.9, 1.9)


def test_a_trained_claim_is_judged_by_its_seeds(places: Places) -> None:
    keep(places, "hvt/pooling", "avg", [30.0, 31.0, 30.5])
    keep(places, "hvt/pooling", "max", [36.0, 36.5, 35.5])
    keep(places, "hvt/pooling", "conv", [33.0, 33.2, 33.1])
    found = find("hvt/table3", "laptop", places)
    better, worst = found.judged
    assert (better.verdict, better.unit) == (HOLDS, "points")
    assert better.parts[0].words == "max pooling − average pooling"
    assert better.parts[0].claimed == pytest.approx(5.05)  # of the rows that the paper prints
    assert better.parts[0].found is not None
    assert better.parts[0].found.value == pytest.approx(5.5)
    assert worst.verdict == FAILS  # average pooling is behind convolution here
    assert tally(found.judged) == {HOLDS: 1, FAILS: 1, UNDECIDED: 0, MISSING: 0}
    assert [len(study.results) for study in found.studies] == [3]
    assert found.studies[0].seeds == 3
    assert "9 of 9 runs; claims: 1 holds, 1 does not hold" in state(found)


def test_less_is_better_where_the_measure_says_so(places: Places) -> None:
    for arm, values in {"shuffle": [10.0, 11.0], "conv": [30.0, 31.0]}.items():
        for seed, fid in enumerate(values):
            file = places.benchmarks / "generate" / f"{arm}-{seed}.json"
            results.write(file, {"test": {"fid": fid}}, seed)
    file = places.benchmarks / "generators.json"
    results.write(
        file, json.loads((ROOT / "benchmarks/results/generators.json").read_text())["measured"]
    )
    judged = {one.claim.id: one for one in find("nest/figure7", "laptop", places).judged}
    images = judged["better-images-than-convolutions"]
    assert images.verdict == HOLDS
    assert images.parts[0].found is not None
    assert images.parts[0].found.value == pytest.approx(20)
    assert judged["pixel-shuffle-works-best"].verdict == MISSING
    assert judged["eight-times-transgan"].verdict == HOLDS


def test_what_nothing_is_known_of_says_so(places: Places) -> None:
    states = {name: state(find(name, "laptop", places)) for name in claims.items()}
    assert states["nest/table2"] == "not counted yet; claims: 1 not measured yet"
    assert states["hvt/table3"].startswith("not counted yet; 0 of 9 runs; claims: ")
    assert all(states.values())


def test_recipes_are_listed_by_scale() -> None:
    assert scales(claims.find("nest/table1")) == ["laptop", "workstation", "paper"]
    assert scales(claims.find("rest/table2")) == ["laptop"]
    assert scales(claims.find("nest/tableA4")) == []


def test_the_interval_of_a_mean_is_students() -> None:
    assert spread([]) is None
    one, found = spread([3.0]), spread([1.0, 2.0, 3.0])
    assert one is not None
    assert found is not None
    assert one.value == 3
    assert math.isnan(one.low)
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)  # t of 2 at 97.5 %


def test_every_ratio_names_the_script_that_measures_it() -> None:
    wanted = {file for item in claims.items().values() for file in item.results}
    assert set(reproduce.SCRIPTS) == wanted
    assert all((ROOT / words.split()[0]).is_file() for words in reproduce.SCRIPTS.values())


def test_every_picture_is_drawn_from_runs_there_are() -> None:
    drawn = {name: reproduce.runs_of(name, "laptop") for name in claims.items()}
    assert {name for name, runs in drawn.items() if runs} == {
        "nest/figure8", "hvt/figure3", "rest/figure1", "rest/figure2", "hivit/figure2",
    }  # fmt: skip
    assert [run.seed for run in drawn["hivit/figure2"][0]] == [0, 1, 2]
