import pytest
import torch
from torchvision import tv_tensors

from ziggurat.tasks.dense import THIN, scaled


@pytest.mark.parametrize(
    ("size", "side", "longest", "expected"),
    [
        ((333, 500), 672, 1120, (672, 1009)),
        ((335, 500), 800, 1333, (800, 1194)),
        ((428, 640), 512, 4096, (512, 766)),
        ((480, 1200), 672, 1120, (448, 1120)),
        ((1, 3000), 800, 1333, (1, 1333)),
        ((5000, 2), 672, 1120, (1120, 1)),
    ],
)
def test_the_short_side_is_the_one_asked_for(
    size: tuple[int, int], side: int, longest: int, expected: tuple[int, int]
) -> None:
    found = scaled((side,), longest)(tv_tensors.Image(torch.zeros(3, *size, dtype=torch.uint8)))
    assert tuple(found.shape[1:]) == expected


def test_a_thin_image_is_not_enlarged_without_end() -> None:
    found = scaled((64,), None)(tv_tensors.Image(torch.zeros(3, 1, 10_000, dtype=torch.uint8)))
    assert tuple(found.shape[1:]) == (1, THIN * 64)


def test_boxes_and_masks_are_scaled_with_their_image() -> None:
    image = tv_tensors.Image(torch.zeros(3, 10, 20, dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes([[2, 1, 12, 5]], format="XYXY", canvas_size=(10, 20))
    mask = tv_tensors.Mask(torch.zeros(1, 10, 20, dtype=torch.uint8))
    mask[:, 1:5, 2:12] = 1
    target = {"boxes": boxes, "masks": mask, "labels": torch.tensor([7])}
    found, moved = scaled((20,), None)(image, target)
    assert tuple(found.shape) == (3, 20, 40)
    assert moved["boxes"].tolist() == [[4, 2, 24, 10]]
    assert moved["masks"][0].nonzero().amax(0).tolist() == [9, 23]
    assert moved["labels"].tolist() == [7]


def test_all_sides_are_chosen() -> None:
    image = tv_tensors.Image(torch.zeros(3, 8, 8, dtype=torch.uint8))
    step = scaled((4, 6, 9), None)
    assert {step(image).shape[1] for _ in range(60)} == {4, 6, 9}
