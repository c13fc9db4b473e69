from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from tests.tasks.test_drawing import ODD, check_matplotlib_is_left_alone, texts
from ziggurat.tasks import drawing, figures


def counted(classes: int, each: int = 20) -> Tensor:
    """A confusion matrix: mostly right, the next class next to it, the rest anywhere."""
    generator = torch.Generator().manual_seed(classes)
    guesses = torch.arange(classes)[:, None].repeat(1, each)
    guesses[:, 0] = torch.randint(classes, (classes,), generator=generator)
    guesses[::3, 1:5] = (guesses[::3, 1:5] + 1) % classes
    return torch.nn.functional.one_hot(guesses, classes).sum(1)


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


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


def test_names_of_classes_are_shown_as_they_are(tmp_path: Path, drawn: list[Figure]) -> None:
    """None is read as TeX, which would raise."""
    matrix = counted(len(ODD))
    figures.confusion(matrix, ODD, tmp_path / "a.png")
    figures.per_class(matrix, ODD, tmp_path / "b.png")
    figures.mistakes([Image.new("RGB", (8, 8))] * len(ODD), ODD, tmp_path / "c.png")
    for figure in drawn[:2]:
        assert {r"$\frac{", "a $b$ c", "two lines", "_hidden", "猫"} <= set(texts(figure))


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


@pytest.mark.parametrize(("count", "across"), [(1, 1), (5, 5), (7, 4), (24, 6)])
def test_the_grid_has_no_ragged_row(tmp_path: Path, count: int, across: int) -> None:
    images = [Image.new("RGB", (8, 8))] * count
    path = figures.mistakes(images, ["cat: 97 % — was dog"] * count, tmp_path / "a.png")
    with Image.open(path) as image:
        assert image.width == figures.GAP + across * (drawing.TILE + figures.GAP)


def test_the_pixels_of_a_mistake_are_those_of_the_image(tmp_path: Path) -> None:
    colours = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    path = figures.mistakes([Image.fromarray(colours)], ["a"], tmp_path / "a.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    start = figures.GAP + 2
    found = pixels[start : start + drawing.TILE : 36, start : start + drawing.TILE : 36]
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


DRAWERS: list[Callable[[Path], Path]] = [
    lambda path: figures.confusion(counted(3), names(3), path),
    lambda path: figures.per_class(counted(3), names(3), path),
    lambda path: figures.mistakes([Image.new("L", (8, 8))], ["a"], path),
]


@pytest.mark.parametrize("draw", DRAWERS)
def test_a_picture_leaves_matplotlib_as_it_was(
    tmp_path: Path, draw: Callable[[Path], Path]
) -> None:
    check_matplotlib_is_left_alone(draw, tmp_path)
