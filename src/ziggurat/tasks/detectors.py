"""RetinaNet and Mask R-CNN, torchvision's, on the pyramid of any backbone.

    images -> Pyramid -> FPN -> RetinaNet's heads            -> boxes
                             -> proposals -> Mask R-CNN's -> boxes and masks

Only what lies between backbone and heads is ours. torchvision's own models pad images to whole
multiples of 32 and take the quotient of image and map for the stride, which is another number where
that is not whole; here nothing is padded before the backbone, and each level knows its stride.

Departs: the papers' detectors are detectron2's and mmdetection's; losses are torchvision's here
(RetinaNet's is divided by an image's own objects, and boxes are compared by L1), and HiViT's box
head of four convolutions with GIoU is Mask R-CNN's own two layers.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7
from torchvision.ops.poolers import LevelMapper

from ziggurat.tasks.pyramid import STRIDES, OnPyramid, Pyramid

Framework = Literal["retinanet", "maskrcnn"]
RATIOS = (0.5, 1.0, 2.0)


class Found(NamedTuple):
    """What a detector found in one image, the surest first."""

    boxes: Tensor  # (n, 4) x1, y1, x2, y2
    labels: Tensor  # (n,) numbers of classes, from 0
    scores: Tensor  # (n,)
    masks: Tensor | None  # (n, H, W) bool; RetinaNet has none


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """torchvision's, on levels whose strides are known."""

    def __init__(
        self, sizes: Sequence[tuple[int, ...]], strides: Sequence[int], ratios: tuple[float, ...]
    ) -> None:
        super().__init__(tuple(sizes), (ratios,) * len(sizes))
        self.strides = tuple(strides)

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        """(anchors, 4) for each image: the same for all of a batch."""
        first = feature_maps[0]
        strides = [[torch.tensor(s, device=first.device)] * 2 for s in self.strides]
        self.set_cell_anchors(wide(first).dtype, first.device)
        sizes = [list(level.shape[-2:]) for level in feature_maps]
        anchors = torch.cat(self.grid_anchors(sizes, strides))
        return [anchors] * len(image_list.image_sizes)


class RoIAlign(MultiScaleRoIAlign):  # type: ignore[misc]
    """torchvision's, which would guess the strides from the first images it sees, once for all."""

    def __init__(self, size: int, strides: Sequence[int]) -> None:
        super().__init__([str(i) for i in range(len(strides))], size, sampling_ratio=2)
        self.scales = [1 / stride for stride in strides]
        self.map_levels = LevelMapper(int(math.log2(strides[0])), int(math.log2(strides[-1])))


def wide(x: Tensor) -> Tensor:
    """In float32 at least: half precision has too few digits for where a box is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Proposals(RPNHead):  # type: ignore[misc]
    """torchvision's, with digits enough."""

    def forward(self, levels: list[Tensor]) -> tuple[list[Tensor], ...]:
        """Scores and offsets of every anchor, a tensor for each level."""
        return tuple([wide(level) for level in found] for found in super().forward(levels))


class Boxes(FastRCNNPredictor):  # type: ignore[misc]
    """torchvision's, with digits enough."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Scores of every class, and a box for each."""
        return tuple(wide(found) for found in super().forward(x))


class Levels(nn.Module):
    """Stands where torchvision's detectors expect a backbone; ours comes before them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_channels = width


class Detector(OnPyramid):
    """A backbone, its pyramid, an FPN of ``width`` channels, and torchvision's heads.

    RetinaNet takes levels of strides 8 to 128, of which the last two come from the backbone's
    last, as in detectron2; Mask R-CNN 4 to 64. ``anchor`` is the side in pixels of the smallest
    anchors, those of the finest level. The widths of Mask R-CNN's heads follow ``width``.
    """

    def __init__(
        self,
        backbone: Any,
        framework: Framework,
        classes: int,
        norm: bool = True,
        freeze: bool = False,
        width: int = 256,
        anchor: int = 32,
        most: int = 100,
        least_score: float = 0.05,
    ) -> None:
        super().__init__()
        self.framework = framework
        self.classes = classes
        strides = STRIDES[1:] if framework == "retinanet" else STRIDES
        self.pyramid = Pyramid(backbone, strides, norm, freeze)
        channels = list(self.pyramid.channels)
        more = [strides[-1] * 2] if framework == "maskrcnn" else [64, 128]
        anchors = [anchor * 2**i for i in range(len(strides) + len(more))]
        stub, every = Levels(width), [*strides, *more]
        self.heads: Any
        if framework == "retinanet":
            last = LastLevelP6P7(channels[-1], width)
            last.use_P5 = False  # also where it is as wide as the backbone's last
            self.fpn = FeaturePyramidNetwork(channels, width, last)
            scaled = [tuple(int(side * 2 ** (i / 3)) for i in range(3)) for side in anchors]
            self.heads = RetinaNet(
                stub,
                classes,
                anchor_generator=Anchors(scaled, every, RATIOS),
                score_thresh=least_score,
                detections_per_img=most,
            )
        else:
            self.fpn = FeaturePyramidNetwork(channels, width, LastLevelMaxPool())
            self.heads = MaskRCNN(
                stub,
                rpn_anchor_generator=Anchors([(side,) for side in anchors], every, RATIOS),
                rpn_head=Proposals(width, len(RATIOS)),
                rpn_post_nms_top_n_train=1000,  # detectron2's
                box_roi_pool=RoIAlign(7, strides),
                box_head=TwoMLPHead(width * 7**2, 4 * width),
                box_predictor=Boxes(4 * width, classes + 1),  # background is 0
                mask_roi_pool=RoIAlign(14, strides),
                mask_head=MaskRCNNHeads(width, (width,) * 4, 1),
                mask_predictor=MaskRCNNPredictor(width, width, classes + 1),
                box_score_thresh=least_score,
                box_detections_per_img=most,
            )

    def features(self, images: Sequence[Tensor]) -> OrderedDict[str, Tensor]:
        """The FPN's levels, the finest first."""
        levels = self.pyramid(images)
        return self.fpn(OrderedDict((str(i), level) for i, level in enumerate(levels)))

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[dict[str, Tensor]] | None = None
    ) -> Any:
        """Normalised images (C, H, W): with ``targets`` the losses, else what is found in each.

        A target has ``boxes`` (n, 4), ``labels`` (n,) and, for Mask R-CNN, ``masks`` (n, H, W).
        What is found is in pixels of the image given, masks not yet pasted into it (``found``).
        """
        features = self.features(images)
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in images]
        batch = ImageList(features["0"], sizes)
        if self.framework == "retinanet":
            return self.retinanet(batch, list(features.values()), targets)
        return self.maskrcnn(batch, features, targets)

    def retinanet(
        self, batch: ImageList, levels: list[Tensor], targets: Sequence[dict[str, Tensor]] | None
    ) -> Any:
        """Classes and boxes of every anchor."""
        outputs = {key: wide(value) for key, value in self.heads.head(levels).items()}
        anchors = self.heads.anchor_generator(batch, levels)
        if targets is not None:
            return self.heads.compute_loss(targets, outputs, anchors)
        each = self.heads.anchor_generator.num_anchors_per_location()
        counts = [
            level.shape[2] * level.shape[3] * n for level, n in zip(levels, each, strict=True)
        ]
        split = {key: list(value.split(counts, 1)) for key, value in outputs.items()}
        places = [list(own.split(counts)) for own in anchors]
        return self.heads.postprocess_detections(split, places, batch.image_sizes)

    def maskrcnn(
        self,
        batch: ImageList,
        features: OrderedDict[str, Tensor],
        targets: Sequence[dict[str, Tensor]] | None,
    ) -> Any:
        """Proposals, then the class, box and mask of each."""
        if targets is not None:
            targets = [t | {"labels": t["labels"] + 1} for t in targets]
        proposals, losses = self.heads.rpn(batch, features, targets)
        found, more = self.heads.roi_heads(features, proposals, batch.image_sizes, targets)
        if targets is not None:
            return losses | more
        return [one | {"labels": one["labels"] - 1} for one in found]

    @torch.no_grad()
    def found(self, image: Tensor, size: tuple[int, int]) -> Found:
        """What one normalised image (C, H, W) shows, in pixels of the ``size`` (H, W) it had."""
        one = self([image])[0]
        order = one["scores"].argsort(descending=True, stable=True)
        boxes = resize_boxes(one["boxes"][order], list(image.shape[1:]), list(size))
        masks = None
        if "masks" in one:
            masks = torch.zeros(len(order), *size, dtype=torch.bool, device=boxes.device)
            for i, at in enumerate(order.tolist()):  # one by one: a photo's worth of numbers each
                masks[i] = (
                    paste_masks_in_image(one["masks"][at][None], boxes[i][None], size)[0, 0] >= 0.5
                )
        return Found(boxes, one["labels"][order], one["scores"][order], masks)
