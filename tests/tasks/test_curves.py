import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.tasks.test_drawing import ODD, check_matplotlib_is_left_alone, texts
from ziggurat.tasks import curves

Line = dict[str, Any]


def history(epochs: int = 5, per_epoch: int = 40, top: float = 90.0) -> list[Line]:
    """A run as metrics.jsonl has it."""
    found: list[Line] = []
    for step in range(1, epochs * per_epoch + 1):
        epoch, minutes = step / per_epoch, step / 100
        if step % 2 == 0:
            loss = 0.5 + 2 * math.exp(-epoch) + 0.1 * math.sin(7 * step)
            line = {"lr": 1e-3 * (1 - epoch / epochs), "loss": loss, "waiting": 0.01}
            found.append({"step": step, "epoch": epoch, "minutes": minutes} | line)
        if step % per_epoch == 0:
            test = {"top1": top * (1 - math.exp(-epoch)), "loss": 1 / epoch, "images": 100.0}
            found.append({"step": step, "epoch": epoch, "minutes": minutes, "test": test})
    return found


# One run.


def test_curves_show_the_best_and_the_end(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = history()
    lines[-1]["test"]["top1"] = 50.0
    curves.curves(lines, tmp_path / "a.png")
    best = 90 * (1 - math.exp(-4))
    assert f"best {best:.2f} at epoch 4, at the end 50.00" in texts(drawn[0])
    assert {"loss", "learning rate", "top-1 accuracy, %", "training", "test"} <= set(
        texts(drawn[0])
    )


TRAINED, TESTED = history()[0], history()[-1]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "nothing was logged yet"),
        ([TRAINED], "nothing was measured yet"),
        ([TESTED], "no step was logged yet"),
        ([TRAINED, TESTED], "best 89.39 at epoch 5"),
        ([TRAINED | {"loss": math.nan}], "no step was logged yet"),
        ([{"step": 1, "epoch": 1.0}], "no step was logged yet"),
        ([{"step": 1, "epoch": 1.0, "test": {}}], "nothing was measured yet"),
    ],
)
def test_hardly_any_history_is_enough(
    tmp_path: Path, drawn: list[Figure], lines: list[Line], said: str
) -> None:
    assert curves.curves(lines, tmp_path / "a.png").exists()
    assert said in texts(drawn[0])


def test_a_single_point_can_be_seen(tmp_path: Path, drawn: list[Figure]) -> None:
    curves.curves([TRAINED, TESTED], tmp_path / "a.png")
    for axes in drawn[0].axes:
        assert any(line.get_marker() == "o" for line in axes.get_lines())


def test_any_measure_can_be_the_main_one(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [
        {"step": i, "epoch": float(i), "test": {"loss": 1.0, "box_map": 0.1 * i}} for i in (1, 2)
    ]
    curves.curves(lines, tmp_path / "a.png")
    assert {"box map", "at the end 0.2"} <= set(texts(drawn[0]))  # is more better? it is not said
    curves.curves(lines, tmp_path / "a.png", "box_map")
    assert "best 0.2 at epoch 2" in texts(drawn[1])
    curves.curves([line | {"test": {"loss": 1.0}} for line in lines], tmp_path / "a.png")
    assert "at the end 1.00" in texts(drawn[2])


def test_a_spike_does_not_flatten_the_curve(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = history()
    lines[30]["loss"] = 1e6
    curves.curves(lines, tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[1] < 4


def test_a_loss_over_decades_is_drawn_by_decades(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [{"epoch": i / 100, "loss": 10 ** (-i / 100)} for i in range(400)]
    curves.curves(lines, tmp_path / "a.png")
    assert drawn[0].axes[0].get_yscale() == "log"


def test_smoothing_keeps_a_level_and_calms_noise() -> None:
    np.testing.assert_allclose(curves.smoothed(np.full(500, 3.0)), 3.0)
    noise = np.random.default_rng(0).normal(size=2000)
    assert curves.smoothed(noise).std() < 0.25
    few = np.arange(20.0)
    assert curves.smoothed(few) is few


# Several runs.


def test_runs_are_compared_over_epochs_and_minutes(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {"worse": history(top=60), "better": history(top=80), "none yet": history()[:3]}
    curves.compare(runs, tmp_path / "a.png")
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ["epochs", "minutes"]
    key = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert key == ["79.46   better", "59.60   worse"]


def test_minutes_are_left_out_where_none_were_logged(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [{k: v for k, v in line.items() if k != "minutes"} for line in history()]
    curves.compare({"a": lines}, tmp_path / "a.png")
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ["epochs"]


def test_many_runs_differ_by_their_dashes(tmp_path: Path, drawn: list[Figure]) -> None:
    curves.compare({f"run {i}": history(top=i) for i in range(30)}, tmp_path / "a.png")
    drawn_lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn_lines}) == 30


def test_names_of_runs_are_shown_as_they_are(tmp_path: Path, drawn: list[Figure]) -> None:
    """None is read as TeX, which would raise, or hidden as matplotlib hides underscores."""
    curves.compare({name: history() for name in ODD}, tmp_path / "a.png")
    assert sum("_hidden" in text for text in texts(drawn[0])) == 1


def test_nothing_to_compare_is_said(tmp_path: Path, drawn: list[Figure]) -> None:
    curves.compare({"a": []}, tmp_path / "a.png")
    assert texts(drawn[0]) == ["nothing was measured yet"]


DRAWERS: list[Callable[[Path], Path]] = [
    lambda path: curves.curves(history(), path),
    lambda path: curves.compare({"a": history()}, path),
]


@pytest.mark.parametrize("draw", DRAWERS)
def test_a_picture_leaves_matplotlib_as_it_was(
    tmp_path: Path, draw: Callable[[Path], Path]
) -> None:
    check_matplotlib_is_left_alone(draw, tmp_path)
