"""Detectors: as large and as costly as the paper's, on true strides; they find what is there."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou, roi_align

import ziggurat
from tests.engine.test_recipe import rows_of
from tests.models.small import small
from ziggurat.data.loading import seed_all
from ziggurat.engine.detection_cost import cost, counted
from ziggurat.engine.recipe import Recipe
from ziggurat.tasks.detect import detector
from ziggurat.tasks.detectors import Anchors, Detector, Framework, RoIAlign
from ziggurat.tasks.pyramid import STRIDES

BOTH: tuple[Framework, ...] = ("retinanet", "maskrcnn")
EVERY = pytest.mark.parametrize("framework", BOTH)
ROWS = [row for framework in BOTH for row in rows_of(f"regionvit/coco_{framework}")]
Targets = list[dict[str, Tensor]]


def label(row: Recipe) -> str:
    """framework, model, what is changed of it, height."""
    peg = " peg" if row.model_args.get("peg") else ""
    return f"{framework_of(row)} {row.model}{peg} {size_of(row)[0]}"


def framework_of(row: Recipe) -> str:
    settings: Any = row.settings
    return str(settings.framework)


def size_of(row: Recipe) -> tuple[int, int]:
    settings: Any = row.settings
    return settings.short, settings.longest


def on_meta(row: Recipe) -> Detector:
    """A row's detector for COCO's 80 classes."""
    settings: Any = row.settings
    with torch.device("meta"):
        backbone = ziggurat.create_model(row.model, num_classes=0, **row.model_args)
        return detector(backbone, settings, 80)


# Table 6 of RegionViT.

EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=label)
OFF_BY_ONE = {  # the last digit printed: what is counted, in millions
    "retinanet regionvit_s_plus peg 672": 41.538,
    "maskrcnn regionvit_b 672": 92.125,
}


@EVERY_ROW
def test_parameters_are_the_papers(row: Recipe) -> None:
    millions = sum(p.numel() for p in on_meta(row).parameters()) / 1e6
    printed = row.paper["params_m"]
    if label(row) in OFF_BY_ONE:
        assert round(millions, 3) == OFF_BY_ONE[label(row)]
        assert round(millions, 1) == pytest.approx(printed - 0.1)
    else:
        assert round(millions, 1) == printed


def test_every_exception_is_a_row() -> None:
    assert OFF_BY_ONE.keys() <= {label(row) for row in ROWS}


@cache
def last_stage(model: str, peg: bool, height: int, width: int) -> int:
    """Multiply-adds of the backbone's last stage: of all four without those of three."""
    with torch.device("meta"):
        backbone = ziggurat.create_model(model, num_classes=0, windows=14, peg=peg).eval()
        image = torch.empty(1, 3, height, width)
    upto = partial(backbone.forward_intermediates, image, stop_early=True, intermediates_only=True)
    return counted(lambda: upto(indices=[3]))[0] - counted(lambda: upto(indices=[2]))[0]


@EVERY_ROW
def test_multiply_adds_are_the_papers(row: Recipe) -> None:
    """Where windows of 14 do not fit the last map (21 x 35), the code pads it to 28 x 42."""
    found = cost(on_meta(row), *size_of(row))
    total, printed = sum(found.values()) / 1e9, row.paper["flops_g"]
    if "plus" in row.model and size_of(row) == (672, 1120):
        assert 0.033 < 1 - total / printed < 0.040
        one = row.model, "peg" in row.model_args
        total += (last_stage(*one, 896, 1344) - last_stage(*one, 672, 1120)) / 1e9
        assert total == pytest.approx(printed, rel=0.01)
    else:
        assert total == pytest.approx(printed, rel=0.005)


def test_masks_and_boxes_cost_by_their_number() -> None:
    model = Detector(small("nest_tiny"), "maskrcnn", 3, width=16)
    few, many = cost(model, 97, 131, 10), cost(model, 97, 131, 30, masks=2)
    assert many["boxes"] == 3 * few["boxes"] == 30 * (16 * 49 * 64 + 64 * 64 + 64 * 4 * 5)
    head, up, out = 4 * 16 * 16 * 9 * 14**2, 16 * 16 * 4 * 14**2, 16 * 4 * 28**2
    assert (few["masks"], many["masks"]) == (0, 2 * (head + up + out))
    assert all(few[term] == many[term] > 0 for term in ("backbone", "fpn", "rpn"))
    assert not any(p.is_meta for p in model.parameters())


# Where levels and anchors are.


@EVERY
@pytest.mark.parametrize("size", [(97, 131), (33, 70), (256, 128)])
def test_levels_are_as_many_cells_as_their_strides_begin(
    framework: Framework, size: tuple[int, int]
) -> None:
    model = Detector(small("nest_tiny"), framework, 3, width=16).eval()
    with torch.no_grad():
        levels = model.features([torch.randn(3, *size)]).values()
    strides = (8, 16, 32, 64, 128) if framework == "retinanet" else (4, 8, 16, 32, 64)
    for level, stride in zip(levels, strides, strict=True):
        assert level.shape[2:] == (-(-size[0] // stride), -(-size[1] // stride))


def test_anchors_are_torchvisions_where_sides_are_whole_strides() -> None:
    sizes, strides, ratios = [(32, 40), (64, 80)], (8, 16), (0.5, 1.0, 2.0)
    ours, theirs = Anchors(sizes, strides, ratios), AnchorGenerator(sizes, (ratios,) * 2)
    images = ImageList(torch.zeros(2, 3, 128, 256), [(128, 256)] * 2)
    maps = [torch.zeros(2, 4, 128 // stride, 256 // stride) for stride in strides]
    for mine, other in zip(ours(images, maps), theirs(images, maps), strict=True):
        assert torch.equal(mine, other)


def test_anchors_keep_their_stride_where_sides_are_not() -> None:
    """torchvision's divide 97 pixels by 7 cells of 16 and come to 13."""
    anchors = Anchors([(32,)], (16,), (1.0,))
    (found,) = anchors(
        ImageList(torch.zeros(1, 3, 97, 131), [(97, 131)]), [torch.zeros(1, 4, 7, 9)]
    )
    centres = ((found[:, :2] + found[:, 2:]) / 2).view(7, 9, 2)
    assert centres[6, 8].tolist() == [128, 96]
    assert centres[0, 0].tolist() == [0, 0]
    assert centres[:, 0, 1].diff().eq(16).all()


def test_objects_are_looked_at_on_true_strides_whatever_came_first() -> None:
    """torchvision's take 2 cells of 36 pixels for a stride of 16, and keep to it."""
    pool = RoIAlign(7, STRIDES)
    for side in (36, 600):
        levels = {str(i): torch.randn(1, 2, *[-(-side // s)] * 2) for i, s in enumerate(STRIDES)}
        box = torch.tensor([[0.1, 0.2, 0.95, 0.97]]) * side
        found = pool(levels, [box], [(side, side)])
        at = 0 if side == 36 else 3
        expected = roi_align(levels[str(at)], [box], 7, 1 / STRIDES[at], 2)
        torch.testing.assert_close(found, expected)


def test_the_coarsest_levels_come_from_the_backbones_last_however_wide_it_is() -> None:
    model = Detector(small("nest_tiny"), "retinanet", 3, width=64)
    assert model.pyramid.channels[-1] == 64
    found: list[Tensor] = []
    model.fpn.extra_blocks.p6.register_forward_hook(lambda _, given, __: found.append(given[0]))
    image = torch.randn(3, 64, 64)
    with torch.no_grad():
        model.eval().features([image])
        assert torch.equal(found[0], model.pyramid([image])[-1])


@EVERY
def test_boxes_have_all_their_digits_in_half_precision(framework: Framework) -> None:
    model = Detector(small("nest_tiny"), framework, 3, width=16, least_score=0).eval()
    with torch.autocast("cpu", torch.bfloat16):
        found = model.found(torch.randn(3, 97, 131), (97, 131))
    assert found.boxes.dtype == found.scores.dtype == torch.float32
    assert not torch.equal(found.boxes, found.boxes.bfloat16().float())


# Learning and finding.


def picture(size: tuple[int, int], box: tuple[int, int, int, int], label: int) -> dict[str, Tensor]:
    """Noise with a bright rectangle in the channel of its class, and what is marked in it."""
    image = 0.3 * torch.randn(3, *size)
    x1, y1, x2, y2 = box
    image[label, y1:y2, x1:x2] += 2
    mask = torch.zeros(1, *size, dtype=torch.uint8)
    mask[:, y1:y2, x1:x2] = 1
    boxes = torch.tensor([box], dtype=torch.float32)
    return {"image": image, "boxes": boxes, "labels": torch.tensor([label]), "masks": mask}


def learnt(framework: Framework) -> tuple[Detector, Targets]:
    """A detector that knows two pictures of different sizes by heart."""
    seed_all(0)
    targets = [picture((60, 76), (8, 12, 40, 52), 0), picture((49, 64), (24, 4, 56, 40), 2)]
    width, steps, rate = (32, 80, 2e-3) if framework == "retinanet" else (16, 40, 4e-3)
    model = Detector(small("nest_tiny"), framework, 3, width=width, anchor=16)
    if framework == "maskrcnn":
        model.heads.rpn._post_nms_top_n = {"training": 50, "testing": 50}  # is quicker
    rule = torch.optim.AdamW(model.parameters(), rate)
    for step in range(steps):
        rule.param_groups[0]["lr"] = rate * min(1, 2 - 2 * step / steps)
        loss = sum(model([t["image"] for t in targets], targets).values())
        rule.zero_grad()
        loss.backward()
        rule.step()
    return model.eval(), targets


@EVERY
def test_what_was_learnt_is_found_with_its_class_in_pixels_of_the_file(
    framework: Framework,
) -> None:
    """Twice as high and three times as wide as what the detector sees; class 0 is no background."""
    model, targets = learnt(framework)
    for target in targets:
        H, W = target["image"].shape[1:]
        found = model.found(target["image"], (2 * H, 3 * W))
        true = target["boxes"] * torch.tensor([3, 2, 3, 2])
        assert found.labels[0] == target["labels"][0]
        assert box_iou(found.boxes[:1], true) > 0.4
        assert found.scores.diff().le(0).all()
        assert len(found.boxes) == len(found.labels) == len(found.scores)
        if framework == "retinanet":
            assert found.masks is None
        else:
            assert found.masks is not None
            assert found.masks.dtype == torch.bool
            assert found.masks.shape == (len(found.boxes), 2 * H, 3 * W)
            truth = target["masks"][0].repeat_interleave(2, 0).repeat_interleave(3, 1).bool()
            assert (found.masks[0] & truth).sum() > 0.4 * (found.masks[0] | truth).sum()


@EVERY
def test_no_more_is_found_than_asked_and_nothing_less_sure(framework: Framework) -> None:
    seed_all(0)
    image = torch.randn(3, 64, 64)
    few = Detector(small("nest_tiny"), framework, 3, width=16, most=7, least_score=0).eval()
    assert len(few.found(image, (64, 64)).boxes) == 7
    sure = Detector(small("nest_tiny"), framework, 3, width=16, least_score=0.99).eval()
    found = sure.found(image, (64, 50))
    assert found.boxes.shape == (0, 4)
    assert found.masks is None or found.masks.shape == (0, 64, 50)


@EVERY
def test_images_without_objects_train_every_parameter(framework: Framework) -> None:
    """Of several processes one may have no object at all: all must have the same gradients."""
    seed_all(0)
    model = Detector(small("rest_lite"), framework, 3, width=16, anchor=16)
    images = [torch.randn(3, 60, 76), torch.randn(3, 60, 76)]
    targets = [
        {
            "boxes": torch.zeros(0, 4),
            "labels": torch.zeros(0, dtype=torch.long),
            "masks": torch.zeros(0, *image.shape[1:], dtype=torch.uint8),
        }
        for image in images
    ]
    loss = torch.stack(list(model(images, targets).values())).sum()
    loss.backward()
    assert loss.isfinite()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_callers_targets_stay_as_they_are() -> None:
    target = picture((60, 76), (8, 12, 40, 52), 1)
    before = {key: value.clone() for key, value in target.items()}
    Detector(small("nest_tiny"), "maskrcnn", 3, width=16)([target["image"]], [target])
    assert target.keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in target.items())
