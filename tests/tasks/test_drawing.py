from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ziggurat.tasks import drawing

ODD = [r"$\frac{", "a $b$ c", "<script>alert(1)</script>", "two\nlines", "", "_hidden", "猫", "%"]


def texts(figure: Figure) -> list[str]:
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def check_matplotlib_is_left_alone(draw: Callable[[Path], Path], folder: Path) -> None:
    """Its settings are as before, and the same picture comes out again."""
    before = dict(matplotlib.rcParams)
    first = draw(folder / "new" / "a.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert draw(folder / "b.png").read_bytes() == first


def test_a_notice_is_a_picture_of_its_words(tmp_path: Path, drawn: list[Figure]) -> None:
    check_matplotlib_is_left_alone(lambda path: drawing.notice("nothing yet", path), tmp_path)
    assert texts(drawn[0]) == ["nothing yet"]


@pytest.mark.parametrize("side", [1, 8, 28, 32, 96])
def test_a_small_image_is_enlarged_by_whole_pixels(side: int) -> None:
    image = Image.effect_noise((side, side), 60).convert("RGB")
    tile = drawing.enlarged(image)
    inner = tile.crop((2, 2, tile.width - 2, tile.height - 2))
    assert 250 <= inner.width <= drawing.TILE
    assert inner.width % side == 0
    again = inner.resize((side, side), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(image))


@pytest.mark.parametrize("size", [(500, 300), (97, 97), (4000, 3), (150, 400)])
def test_a_photo_fits_its_tile_and_keeps_its_shape(size: tuple[int, int]) -> None:
    tile = drawing.enlarged(Image.new("L", size))
    width, height = tile.width - 4, tile.height - 4
    assert max(width, height) == drawing.TILE
    assert min(width, height) == max(1, round(drawing.TILE * min(size) / max(size)))
