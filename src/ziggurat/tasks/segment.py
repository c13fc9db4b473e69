"""Semantic segmentation: UPerNet (arXiv:1807.10221) over any family's stages.

    images -> Pyramid -> pooled and joined (UPerNet) -> a class for each 4 x 4 pixels -> each pixel

HiViT, Section 4.3 and Table 6, whose head is BEiT's (arXiv:2106.08254), which is mmsegmentation's.

Departs: the loss is the mean over pixels that have a class; mmsegmentation's counts void ones, too.
It also stretches logits to the size of an image, which moves them where that is no multiple of 4;
here they are scaled by 4 and cut.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix
from torchvision.transforms import v2

from ziggurat.data.scenes import VOID, SceneData, Scenes, open_scenes
from ziggurat.tasks import drawing, figures, overlay
from ziggurat.tasks.dense import (
    DenseBatch,
    DenseSettings,
    DenseTask,
    Labels,
    Marked,
    MarkedReader,
    Side,
    TestScale,
    collate_marked,
    scaled,
    train_steps,
)
from ziggurat.tasks.pyramid import STRIDES
from ziggurat.tasks.task import Samples, Settings, over_processes
from ziggurat.tasks.upernet import UPerNet, starts, stretched

REDRAWS = 10  # of a part that shows too much of one class
AT_ONCE = 2**27  # numbers of a map that is scaled to the size of a file


class SegmentSettings(DenseSettings):
    """How parts are chosen to train on, and how images are tested."""

    aux_weight: float = Field(0.0, ge=0)  # of a second loss, at stride 16; 0: none
    most_of_one: float = Field(0.75, gt=0, le=1)  # share of a crop that one class should have
    slide: tuple[Side, Side] | None = None  # a test's window; None: the whole image
    slide_stride: tuple[Side, Side] | None = None  # None: two thirds of the window

    @model_validator(mode="after")
    def slides(self) -> Self:
        """Windows leave nothing out."""
        if self.slide_stride is None:
            return self
        if self.slide is None:
            raise ValueError("slide_stride should come with slide, the window's height and width")
        if any(step > side for step, side in zip(self.slide_stride, self.slide, strict=True)):
            raise ValueError(f"slide_stride should be no more than the window's {self.slide}")
        return self


# The model, and what it says of an image.


def segmenter(backbone: Any, settings: SegmentSettings, classes: int) -> UPerNet:
    """As the settings say."""
    return UPerNet(
        backbone, classes, settings.norm, settings.freeze, settings.width, settings.aux_weight > 0
    )


def logits_of(model: UPerNet, image: Tensor, settings: SegmentSettings) -> Tensor:
    """(classes, H, W) of a normalised image (C, H, W): the mean of all windows on a pixel."""
    H, W = image.shape[1:]
    sides = settings.slide or (H, W)
    steps = settings.slide_stride or [max(1, side * 2 // 3) for side in sides]
    height, width = min(H, sides[0]), min(W, sides[1])
    total, count = image.new_zeros(model.classes, H, W), image.new_zeros(H, W)
    for top in starts(H, height, steps[0]):
        for left in starts(W, width, steps[1]):
            window = slice(top, top + height), slice(left, left + width)
            logits = model([image[:, *window]])
            total[:, *window] += stretched(logits, STRIDES[0], (height, width))[0]
            count[*window] += 1
    return total / count


@torch.no_grad()
def labels_of(
    model: UPerNet, image: Tensor, size: tuple[int, int], settings: SegmentSettings
) -> Tensor:
    """The class of each pixel (H, W), uint8, of a normalised image (C, h, w) that had this size.

    Logits are scaled, not labels; a few classes at a time, as photographs can be large.
    """
    logits = logits_of(model, image, settings)[None]
    best, labels = torch.empty(0), torch.empty(0)
    share = max(1, AT_ONCE // (size[0] * size[1]))
    for first in range(0, logits.shape[1], share):
        part = logits[:, first : first + share]
        most, at = F.interpolate(part, size, mode="bilinear", align_corners=False)[0].max(0)
        at = (at + first).to(torch.uint8)
        labels = torch.where(most > best, at, labels) if first else at
        best = torch.maximum(most, best) if first else most
    return labels


# The task.


class Segment(DenseTask):
    """One label for each pixel."""

    Settings: ClassVar[type[Settings]] = SegmentSettings
    best: ClassVar[str] = "miou"
    kind: ClassVar[Literal["detect", "segment"]] = "segment"
    columns: ClassVar[tuple[str, ...]] = ("picture", "marked", "found", "classes")
    settings: SegmentSettings
    model: UPerNet
    data: SceneData

    def __init__(self, backbone: Any, settings: SegmentSettings, data: SceneData) -> None:
        super().__init__(backbone, settings, data)
        classes = len(data.classes)
        self.model = segmenter(backbone, settings, classes)
        self.confusion = MulticlassConfusionMatrix(
            classes, ignore_index=VOID, validate_args=False, sync_on_compute=False
        )
        self.images = 0
        self.counts = torch.zeros(classes, classes, dtype=torch.long)  # of the last evaluation

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> SceneData:
        """A folder of images and label maps."""
        return open_scenes(spec, seed)

    def check_share(self, images: int) -> None:
        """BatchNorm on what is pooled to one place has nothing to go by in one image."""
        if images < 2:
            raise ValueError(
                "UPerNet's BatchNorm goes by at least 2 images at a time in a process, got "
                f"{images}: take a larger batch, or fewer parts (accumulate)"
            )

    # Data.

    def train_samples(self) -> Samples:
        """Augmented images with their maps; an unreadable one is replaced by the next."""
        train = self.data.train
        transform = train_transform(self.settings)
        reader = MarkedReader(Mapped(train), len(train), transform, replace=True)
        return Samples(train, reader, collate_marked)

    def test_samples(self) -> Samples:
        """Each image once, scaled; its map as the file has it."""
        test = self.data.test
        reader = MarkedReader(Mapped(test), len(test), TestScale(self.settings), replace=False)
        return Samples(test, reader, collate_marked)

    # Training and evaluation.

    def forward(self, batch: DenseBatch, player: str = "model") -> dict[str, Tensor]:
        """Cross-entropy, and per cent of the pixels that are right; void ones do not count."""
        if self.training:
            self.check_share(len(batch.images))
        targets = joined([target["labels"] for target in batch.targets])
        H, W = targets.shape[1:]
        images, weight = self.normaliser(batch.images), self.settings.aux_weight
        found = self.model(images, auxiliary=True) if weight else [self.model(images)]
        logits = stretched(found[0], STRIDES[0], (H, W))
        loss = cross_entropy(logits, targets)
        right = (logits.argmax(1) == targets).sum() / known(targets)
        if not weight:
            return {"loss": loss, "accuracy": 100 * right}
        aux = cross_entropy(stretched(found[1], STRIDES[2], (H, W)), targets)
        return {"loss": loss + weight * aux, "accuracy": 100 * right, "aux_loss": aux}

    def measure(self, model: nn.Module, batch: DenseBatch) -> None:
        """Count one batch, an image at a time: what is beside it changes nothing."""
        assert isinstance(model, UPerNet)
        images = self.normaliser(batch.images)
        for image, target, size in zip(images, batch.targets, batch.sizes, strict=True):
            labels = labels_of(model, image, size, self.settings)
            self.confusion.update(labels, target["labels"])
            self.images += 1

    def measured(self) -> dict[str, float]:
        """Mean intersection over union, and shares of pixels that are right, in per cent.

        All pixels of all images are counted together. ``miou`` is the mean over the classes that
        are there or were found, ``class_accuracy`` over those that are there; others have none.
        """
        shares = over_processes((self.confusion.confmat.cpu(), self.images))
        self.confusion.reset()
        images, self.images = sum(share[1] for share in shares), 0
        if not images:
            raise ValueError("no test image could be read: `ziggurat data check` says why")
        self.counts = torch.stack([share[0] for share in shares]).sum(0)
        if not self.counts.any():
            raise ValueError(
                f"no pixel of the {images} test images has a class: their maps are all void"
            )
        iou, accuracy = scores(self.counts)
        return {
            "miou": float(iou.nanmean()),
            "accuracy": 100 * int(self.counts.diag().sum()) / int(self.counts.sum()),
            "class_accuracy": float(accuracy.nanmean()),
            "images": images,
        }

    def by_class(self) -> dict[str, dict[str, float]]:
        """``iou`` of each class that is there or was found, ``accuracy`` of each that is there."""
        found: dict[str, dict[str, float]] = {}
        for name, iou, accuracy in zip(self.data.classes, *scores(self.counts), strict=True):
            values = {"iou": float(iou), "accuracy": float(accuracy)}
            if own := {key: value for key, value in values.items() if value == value}:
                found[name] = own
        return found

    # What is left behind.

    def row(self, model: Any, picture: Image.Image, sample: Marked) -> list[Image.Image]:
        """The picture, and on it the classes that are marked, and that are found; their key."""
        found = labels_of(model, self.prepared(sample), sample.size, self.settings).cpu().numpy()
        maps: list[np.ndarray] = [sample.target["labels"].numpy(), found]
        classes = self.data.classes
        drawn = [overlay.coloured(picture, one, classes) for one in maps]
        key = Image.new("RGB", drawn[0].size, "white")
        key.paste(overlay.keyed(key.crop((0, 0, 1, key.height)), maps, classes))
        return [picture, *drawn, key]

    def figures(self, folder: Path) -> list[Path]:
        """The last snapshot, and how well each class was found."""
        made = super().figures(folder)
        if self.counts.any():
            iou = scores(self.counts)[0]
            numbers = {i: float(value) for i, value in enumerate(iou) if value == value}
            pixels = 100 * self.counts.sum(1).double() / self.counts.sum()
            notes = {i: f"{drawing.number(float(pixels[i]))} % of pixels" for i in numbers}
            mean = float(iou.nanmean())
            words = ("intersection over union by class, %", f"line: {mean:.4g} %, their mean")
            path = folder / "iou.png"
            made.append(figures.by_class(numbers, notes, self.data.classes, mean, words, path))
        return made


# Pixels and their classes.


def known(targets: Tensor) -> Tensor:
    """How many pixels have a class, at least 1."""
    return (targets != VOID).sum().clamp_min(1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Its mean over all pixels of a class; 0 if there are none."""
    total = F.cross_entropy(logits, targets, ignore_index=VOID, reduction="sum")
    return total / known(targets)


def joined(maps: Sequence[Tensor]) -> Tensor:
    """(H, W) of different sizes -> (B, H, W), void at the bottom and on the right."""
    height, width = (max(x.shape[side] for x in maps) for side in (0, 1))
    padded = [F.pad(x, (0, width - x.shape[1], 0, height - x.shape[0]), value=VOID) for x in maps]
    return torch.stack(padded).long()


def scores(counts: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and accuracy of each class in per cent, of a confusion matrix (true, found).

    Not a number: the IoU of a class that is neither there nor found, the accuracy of one that is
    not there.
    """
    counts = counts.double()
    right, there, found = counts.diag(), counts.sum(1), counts.sum(0)
    return 100 * right / (there + found - right), 100 * right / there


class Mapped:
    """index -> a picture and its map as torchvision's transforms take them."""

    def __init__(self, images: Scenes) -> None:
        self.images = images

    def __call__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        """Raises BadImage."""
        picture = self.images.image(index)
        return picture, {"labels": Labels(torch.from_numpy(self.images.labels(index)))}


def train_transform(settings: SegmentSettings) -> v2.Transform:
    """Scaling, a part that shows more than one class, colours, padding, a flip."""
    first = scaled(settings.sides, settings.longest)
    if settings.crop:
        first = v2.Compose([first, Part(settings.crop, settings.most_of_one)])
    return train_steps(settings, first)


class Part(nn.Module):
    """mmsegmentation's crop: drawn again while one class has more than a share of its pixels."""

    def __init__(self, crop: tuple[int, int], most_of_one: float) -> None:
        super().__init__()
        self.crop, self.most_of_one = crop, most_of_one

    def forward(self, image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """As large as the image allows."""
        H, W = v2.functional.get_size(image)
        height, width = min(H, self.crop[0]), min(W, self.crop[1])
        for _ in range(1 + REDRAWS):
            top = int(torch.randint(H - height + 1, ()))
            left = int(torch.randint(W - width + 1, ()))
            labels = v2.functional.crop(target["labels"], top, left, height, width)
            if self.varied(labels):
                break
        return v2.functional.crop(image, top, left, height, width), {"labels": labels}

    def varied(self, labels: Tensor) -> bool:
        """Whether it can be taken."""
        if self.most_of_one == 1:
            return True
        counts = torch.bincount(labels.as_subclass(Tensor).flatten(), minlength=VOID)[:VOID]
        return 0 < int(counts.max()) <= self.most_of_one * int(counts.sum())
