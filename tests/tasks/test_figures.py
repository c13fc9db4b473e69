import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from ziggurat.tasks import figures

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


def counted(classes: int, each: int = 20) -> Tensor:
    """A confusion matrix: mostly right, the next class next to it, the rest anywhere."""
    generator = torch.Generator().manual_seed(classes)
    guesses = torch.arange(classes)[:, None].repeat(1, each)
    guesses[:, 0] = torch.randint(classes, (classes,), generator=generator)
    guesses[::3, 1:5] = (guesses[::3, 1:5] + 1) % classes
    return torch.nn.functional.one_hot(guesses, classes).sum(1)


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    found: list[Figure] = []
    save = figures.save

    def keep(figure: Figure, path: Path) -> Path:
        found.append(figure)
        return save(figure, path)

    monkeypatch.setattr(figures, "save", keep)
    return found


def texts(figure: Figure) -> list[str]:
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


# Confusion.


@pytest.mark.parametrize("count", [1, 2, 10, 20, 40, 100, 1000])
def test_a_confusion_matrix_has_a_readable_size_at_any_number_of_classes(
    tmp_path: Path, count: int
) -> None:
    path = figures.confusion(counted(count), names(count), tmp_path / "a.png")
    with Image.open(path) as image:
        assert min(image.size) > 300
        assert max(image.size) < 3000


def test_few_classes_have_numbers_and_names(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.confusion(torch.tensor([[7, 3], [0, 5]]), ["cat", "dog"], tmp_path / "a.png")
    found = texts(drawn[0])
    assert {"cat", "dog", "7\n70 %", "3\n30 %", "5\n100 %"} <= set(found)
    assert "80 % of 15 images are right" in found
    assert not any(text.startswith("0") for text in found)


def test_of_many_classes_the_worst_confusions_are_listed_the_most_frequent_first(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    matrix = 50 * torch.eye(100, dtype=torch.long)
    matrix[7, 9], matrix[30, 2] = 5, 30
    figures.confusion(matrix, names(100), tmp_path / "a.png")
    labels = [label.get_text() for label in drawn[0].axes[1].get_yticklabels()]
    assert labels == ["class 30 → class 2", "class 7 → class 9"]
    assert "37.5 %, 30 images" in texts(drawn[0])
    assert "class 50" not in texts(drawn[0])


def test_a_model_without_a_mistake_is_told_so(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.confusion(torch.eye(50), names(50), tmp_path / "a.png")
    assert "nothing was confused" in texts(drawn[0])


def test_right_is_blue_and_wrong_is_red_and_never_is_white() -> None:
    cells = figures.colours(torch.tensor([[0.5, 0.5], [0.0, 1.0]]).double())
    red, blue = cells[..., 0], cells[..., 2]
    assert blue[0, 0] > red[0, 0]
    assert red[0, 1] > blue[0, 1]
    np.testing.assert_array_equal(cells[1, 0], 1)
    assert cells[1, 1].sum() < cells[0, 0].sum()  # a larger share is darker


def test_one_confused_pair_among_1000_is_seen() -> None:
    shares = torch.eye(1000).double()
    shares[700, 3] = 0.3
    cells = figures.colours(shares)
    assert cells.shape == (250, 250, 3)
    assert (cells[700 // 4, 3 // 4] < 0.9).any()
    off = ~np.eye(250, dtype=bool)
    assert (cells[off] < 0.9).any(-1).sum() == 1


def test_a_class_without_images_is_no_division_by_zero(tmp_path: Path, drawn: list[Figure]) -> None:
    matrix = torch.tensor([[3, 1], [0, 0]])
    figures.confusion(matrix, ["a", "b"], tmp_path / "a.png")
    figures.per_class(matrix, ["a", "b"], tmp_path / "b.png")
    assert "1 classes without images" in texts(drawn[1])
    figures.per_class(torch.zeros(2, 2), ["a", "b"], tmp_path / "c.png")
    assert "no class has images" in texts(drawn[2])


ODD = [r"$\frac{", "a $b$ c", "<script>alert(1)</script>", "two\nlines", "", "_hidden", "猫", "%"]


def test_names_are_shown_as_they_are(tmp_path: Path, drawn: list[Figure]) -> None:
    """None is read as TeX, which would raise, or hidden as matplotlib hides underscores."""
    matrix = counted(len(ODD))
    figures.confusion(matrix, ODD, tmp_path / "a.png")
    figures.per_class(matrix, ODD, tmp_path / "b.png")
    figures.mistakes([Image.new("RGB", (8, 8))] * len(ODD), ODD, tmp_path / "c.png")
    figures.compare({name: history() for name in ODD}, tmp_path / "d.png")
    for figure in drawn[:2]:
        assert {r"$\frac{", "a $b$ c", "two lines", "_hidden", "猫"} <= set(texts(figure))
    assert sum("_hidden" in text for text in texts(drawn[3])) == 1


# Classes.


def test_the_worst_class_is_on_top(tmp_path: Path, drawn: list[Figure]) -> None:
    matrix = torch.tensor([[9, 1, 0], [5, 5, 0], [0, 0, 10]])
    figures.per_class(matrix, ["cat", "dog", "eel"], tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dog", "cat", "eel"]
    assert axes.yaxis_inverted()
    assert {"50.0   5 of 10", "90.0   9 of 10", "line: 80 % of all images"} <= set(texts(drawn[0]))


def test_of_many_classes_the_ends_are_shown(tmp_path: Path, drawn: list[Figure]) -> None:
    each = 200
    right = torch.arange(100) + 50
    matrix = right.diag() + torch.diag(each - right, 1)[:100, :100]
    matrix[-1, 0] = each - right[-1]
    figures.per_class(matrix, names(100), tmp_path / "a.png")
    labels = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    worst, best = names(100)[:20], names(100)[-10:]
    assert labels == [*worst, "70 classes between these", *best]


# Mistakes.


@pytest.mark.parametrize("side", [1, 8, 28, 32, 96])
def test_a_small_image_is_enlarged_by_whole_pixels(side: int) -> None:
    image = Image.effect_noise((side, side), 60).convert("RGB")
    tile = figures.enlarged(image)
    inner = tile.crop((2, 2, tile.width - 2, tile.height - 2))
    assert 250 <= inner.width <= figures.TILE
    assert inner.width % side == 0
    again = inner.resize((side, side), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(image))


@pytest.mark.parametrize("size", [(500, 300), (97, 97), (4000, 3), (150, 400)])
def test_a_photo_fits_its_tile_and_keeps_its_shape(size: tuple[int, int]) -> None:
    tile = figures.enlarged(Image.new("L", size))
    width, height = tile.width - 4, tile.height - 4
    assert max(width, height) == figures.TILE
    assert min(width, height) == max(1, round(figures.TILE * min(size) / max(size)))


@pytest.mark.parametrize(("count", "across"), [(1, 1), (5, 5), (7, 4), (24, 6)])
def test_the_grid_has_no_ragged_row(tmp_path: Path, count: int, across: int) -> None:
    images = [Image.new("RGB", (8, 8))] * count
    path = figures.mistakes(images, ["cat: 97 % — was dog"] * count, tmp_path / "a.png")
    with Image.open(path) as image:
        assert image.width == figures.GAP + across * (figures.TILE + figures.GAP)


def test_the_pixels_of_a_mistake_are_those_of_the_image(tmp_path: Path) -> None:
    colours = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    path = figures.mistakes([Image.fromarray(colours)], ["a"], tmp_path / "a.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    start = figures.GAP + 2
    found = pixels[start : start + figures.TILE : 36, start : start + figures.TILE : 36]
    np.testing.assert_array_equal(found, colours)


def test_a_caption_is_wrapped_and_never_longer_than_four_lines() -> None:
    assert figures.wrapped("cat: 97 % — was dog") == (["cat: 97 %"], ["was dog"])
    assert figures.wrapped("nothing else") == (["nothing else"], [])
    said, was = figures.wrapped("word " * 40 + "— was " + "x" * 200)
    assert max(len(said), len(was)) == 2
    assert max(map(len, said + was)) <= 21


def test_no_mistakes_are_a_picture_too(tmp_path: Path, drawn: list[Figure]) -> None:
    path = figures.mistakes([], [], tmp_path / "a.png")
    assert path.exists()
    assert texts(drawn[0]) == ["no mistakes: every test image was classified correctly"]


# Curves.


def test_curves_show_the_best_and_the_end(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = history()
    lines[-1]["test"]["top1"] = 50.0
    figures.curves(lines, tmp_path / "a.png")
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
    assert figures.curves(lines, tmp_path / "a.png").exists()
    assert said in texts(drawn[0])


def test_a_single_point_can_be_seen(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.curves([TRAINED, TESTED], tmp_path / "a.png")
    for axes in drawn[0].axes:
        assert any(line.get_marker() == "o" for line in axes.get_lines())


def test_any_measure_can_be_the_main_one(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [
        {"step": i, "epoch": float(i), "test": {"loss": 1.0, "box_map": 0.1 * i}} for i in (1, 2)
    ]
    figures.curves(lines, tmp_path / "a.png")
    assert {"box map", "at the end 0.2"} <= set(texts(drawn[0]))  # is more better? it is not said
    figures.curves(lines, tmp_path / "a.png", "box_map")
    assert "best 0.2 at epoch 2" in texts(drawn[1])
    figures.curves([line | {"test": {"loss": 1.0}} for line in lines], tmp_path / "a.png")
    assert "at the end 1.00" in texts(drawn[2])


def test_a_spike_does_not_flatten_the_curve(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = history()
    lines[30]["loss"] = 1e6
    figures.curves(lines, tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[1] < 4


def test_a_loss_over_decades_is_drawn_by_decades(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [{"epoch": i / 100, "loss": 10 ** (-i / 100)} for i in range(400)]
    figures.curves(lines, tmp_path / "a.png")
    assert drawn[0].axes[0].get_yscale() == "log"


def test_smoothing_keeps_a_level_and_calms_noise() -> None:
    np.testing.assert_allclose(figures.smoothed(np.full(500, 3.0)), 3.0)
    noise = np.random.default_rng(0).normal(size=2000)
    assert figures.smoothed(noise).std() < 0.25
    few = np.arange(20.0)
    assert figures.smoothed(few) is few


# Several runs.


def test_runs_are_compared_over_epochs_and_minutes(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {"worse": history(top=60), "better": history(top=80), "none yet": history()[:3]}
    figures.compare(runs, tmp_path / "a.png")
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ["epochs", "minutes"]
    key = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert key == ["79.46   better", "59.60   worse"]


def test_minutes_are_left_out_where_none_were_logged(tmp_path: Path, drawn: list[Figure]) -> None:
    lines = [{k: v for k, v in line.items() if k != "minutes"} for line in history()]
    figures.compare({"a": lines}, tmp_path / "a.png")
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ["epochs"]


def test_many_runs_differ_by_their_dashes(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.compare({f"run {i}": history(top=i) for i in range(30)}, tmp_path / "a.png")
    drawn_lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn_lines}) == 30


def test_nothing_to_compare_is_said(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.compare({"a": []}, tmp_path / "a.png")
    assert texts(drawn[0]) == ["nothing was measured yet"]


DRAWERS: list[Callable[[Path], Path]] = [
    lambda path: figures.confusion(counted(3), names(3), path),
    lambda path: figures.per_class(counted(3), names(3), path),
    lambda path: figures.mistakes([Image.new("L", (8, 8))], ["a"], path),
    lambda path: figures.curves(history(), path),
    lambda path: figures.compare({"a": history()}, path),
]


@pytest.mark.parametrize("draw", DRAWERS)
def test_a_picture_leaves_matplotlib_as_it_was(
    tmp_path: Path, draw: Callable[[Path], Path]
) -> None:
    before = dict(matplotlib.rcParams)
    first = draw(tmp_path / "new" / "a.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert draw(tmp_path / "b.png").read_bytes() == first
