"""A picture of each kind; the report's tests look at which are drawn."""

from pathlib import Path

import pytest
from PIL import Image

from tests.engine.test_reproduce import keep
from ziggurat.engine.reproduce import Places, find, trained
from ziggurat.engine.studyplots import draw, macs, verdicts


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "results", tmp_path / "runs", tmp_path / "benchmarks")
    keep(made, "hvt/scaled", "deit", [30.0, 31.0])
    keep(made, "hvt/scaled", "scaled", [33.0])
    keep(made, "nest/convergence", "nest-30", [20.0, 21.0])
    keep(made, "nest/convergence", "nest-300", [40.0])
    return made


@pytest.mark.parametrize(
    ("how", "study"),
    [("rows", "hvt/scaled"), ("curves", "hvt/scaled"), ("cost", "hvt/scaled"),
     ("lines", "nest/convergence")],
)  # fmt: skip
def test_what_is_there_is_drawn(how: str, study: str, places: Places, tmp_path: Path) -> None:
    """Arms and seeds may be missing."""
    file = draw(how, trained(study, "laptop", places), tmp_path / "a.png")
    assert file is not None
    with Image.open(file) as image:
        assert min(image.size) > 200
    assert draw(how, trained("hivit/shallow", "laptop", places), tmp_path / "b.png") is None


def test_costs_are_of_what_is_trained(places: Places) -> None:
    found = trained("hvt/scaled", "laptop", places)
    plain, pooled, scaled = (macs(found, arm) for arm in found.arms)
    assert pooled < plain
    assert scaled == pytest.approx(plain, rel=0.5)  # about the same cost


def test_verdicts_are_drawn_once_something_is_measured(places: Places, tmp_path: Path) -> None:
    judged = find("hvt/table1", "laptop", places).judged
    none = [one for one in judged if one.claim.kind == "trained"]
    assert verdicts(none, tmp_path / "a.png") is None
    for arm in ("pooled", "scaled"):
        keep(places, "hvt/scaled", arm, [30.0, 31.0, 35.0])
    judged = find("hvt/table1", "laptop", places).judged
    assert verdicts([j for j in judged if j.claim.kind == "trained"], tmp_path / "a.png")
