import pytest
import torch
from torch import Tensor

from ziggurat.explain.fidelity import area, curves, first

INSIDE = (slice(8, 16), slice(16, 24))  # where the class is


class Sees:
    """Class 1 is what is bright inside; and how many images were seen."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        bright = images[:, :, *INSIDE].mean((1, 2, 3))
        return torch.stack([torch.full_like(bright, 2), 4 * bright], 1)


def scene() -> tuple[Tensor, Tensor]:
    """An image with its evidence, and the map that says where it is."""
    image = torch.full((1, 3, 32, 32), -1.0)
    image[:, :, *INSIDE] = 1
    heat = torch.zeros(32, 32)
    heat[INSIDE] = 1
    return image, heat


def test_the_true_map_loses_the_class_sooner_and_gains_it_sooner() -> None:
    image, heat = scene()
    right, wrong = (curves(Sees(), image, map_, 1) for map_ in (heat, 1 - heat))
    assert area(right.deletion) < area(wrong.deletion)
    assert area(right.insertion) > area(wrong.insertion)
    assert area(right.deletion) < area(right.insertion)


def test_curves_begin_and_end_at_the_image_and_at_what_replaces_it() -> None:
    image, heat = scene()
    model = Sees()
    found = curves(model, image, heat, 1, steps=4)
    assert model.seen == 2 * 4 + 1
    whole = model(image).softmax(1)[0, 1]
    mean = model(torch.zeros_like(image)).softmax(1)[0, 1]
    assert found.deletion[0] == found.insertion[-1] == pytest.approx(whole.item())
    assert found.deletion[-1] == pytest.approx(mean.item())
    assert len(found.deletion) == len(found.insertion) == 5


def test_each_step_takes_as_many_pixels_the_highest_first() -> None:
    heat = torch.rand(10, 6, generator=torch.Generator().manual_seed(0))
    masks = first(heat, 7)
    assert masks.sum((1, 2, 3)).tolist() == [round(i * 60 / 7) for i in range(8)]
    for mask in masks[1:-1, 0]:
        assert heat[mask].min() > heat[~mask].max()


def test_among_equals_no_side_is_favoured_and_nothing_changes_from_call_to_call() -> None:
    flat = torch.ones(32, 32)
    half = first(flat, 2)[1, 0]
    assert 200 < half[:16].sum() < 312
    assert torch.equal(half, first(flat, 2)[1, 0])


def test_the_area_is_that_of_trapezoids() -> None:
    assert area(torch.tensor([1.0, 0.5, 0.0])) == 0.5
    assert area(torch.full((17,), 0.3)) == pytest.approx(0.3)
