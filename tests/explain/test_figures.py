from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from tests.explain.painted import BLUE, GREEN, RED, counts_colours, painted
from ziggurat.explain import Explanation, explain
from ziggurat.explain.figures import COLOURS, figure, overlay, per_cent, short, thousands


class Explained(NamedTuple):
    image: Image.Image
    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    found: Explanation


def explained(method: str, size: tuple[int, int] = (64, 96), classes: int = 3) -> Explained:
    pixels = painted(size, {RED: 5, GREEN: 15, BLUE: 2})
    numbers = [i % 3 for i in range(classes)]
    found = explain(counts_colours(), pixels, numbers, method)
    image = Image.fromarray((pixels[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8))
    words = ("a $ name, 猫 and so on, that is far too long for its place", "green", "蓝")
    shares = (0.934, 0.04, 0.00123)
    names, probabilities = zip(*((words[i], shares[i]) for i in numbers), strict=True)
    return Explained(image, names, probabilities, found)


def has(picture: Image.Image, colour: str) -> bool:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.asarray(picture) == wanted).all(-1).any())


def test_a_tree_has_a_colour_for_each_class() -> None:
    one, three = (figure(explained("gradcat", classes=n)) for n in (1, 3))
    assert has(one, COLOURS[0])
    assert not has(one, COLOURS[1])
    assert all(has(three, colour) for colour in COLOURS[:3])
    assert three.width > one.width


@pytest.mark.parametrize("method", ["cam", "gradcam++", "groupcam"])
def test_heat_is_drawn_for_each_class_beside_the_image(method: str) -> None:
    one, three = (figure(explained(method, classes=n)) for n in (1, 3))
    assert one.height == three.height
    assert three.width > 1.8 * one.width


def test_rollout_is_drawn_once() -> None:
    one, three = (figure(explained("rollout", classes=n)) for n in (1, 3))
    assert one.size == three.size


@pytest.mark.parametrize("size", [(16, 300), (300, 16), (8, 8)])
def test_any_shape_and_many_classes_can_be_drawn(size: tuple[int, int]) -> None:
    for method in ("gradcat", "cam"):
        found = explained(method, size, classes=9)
        assert figure(found).mode == "RGB"


def test_an_overlay_is_hot_where_the_map_is() -> None:
    heat = torch.zeros(10, 20)
    heat[:5] = 1
    found = np.asarray(overlay(Image.new("RGB", (40, 20), "grey"), heat, 0.8)).astype(int)
    assert found.shape == (20, 40, 3)
    assert (found[:8, :, 0] > found[:8, :, 2]).all()  # red above
    assert (found[12:, :, 2] > found[12:, :, 0]).all()  # blue below
    plain = Image.new("RGB", (20, 10), "grey")
    assert overlay(plain, heat, 0.0).tobytes() == plain.tobytes()


def test_values_are_short() -> None:
    assert [thousands([v]) for v in (0.0, 0.0004, -0.2, 5.0, 1234.0)] == [0, -6, -3, 0, 3]
    assert [short(v) for v in (-0.001, 1.234, -12.34, 999.6)] == ["−0.00", "1.23", "−12.3", "1000"]
    assert [per_cent(v) for v in (0.934, 0.0951, 0.04, 0.00123)] == [
        "93 %",
        "10 %",
        "4 %",
        "0.12 %",
    ]
