"""Detection and instance segmentation: RetinaNet or Mask R-CNN over any family's stages.

RegionViT, Section 4.2 and Table 6; HiViT, Section 4.3 and Table 5; ResT, supplement, Table 2.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from ziggurat.data.coco import ObjectData, ObjectImages, open_objects
from ziggurat.tasks import figures, overlay
from ziggurat.tasks.dense import (
    DenseBatch,
    DenseSettings,
    DenseTask,
    Marked,
    MarkedReader,
    TestScale,
    collate_marked,
    scaled,
    train_steps,
)
from ziggurat.tasks.detectors import Detector, Found, Framework
from ziggurat.tasks.task import Samples, Settings, over_processes

SURE = 0.3  # score of a box that is drawn
FEW = 0.01  # of the objects may be without the mask that Mask R-CNN learns
MEASURES = {  # torchmetrics' names to ours
    "map": "ap", "map_50": "ap50", "map_75": "ap75", "map_small": "ap_small",
    "map_medium": "ap_medium", "map_large": "ap_large",
}  # fmt: skip


class DetectSettings(DenseSettings):
    """Which detector, and what it looks for."""

    framework: Framework
    anchor: int = Field(32, ge=1)  # pixels a side of the smallest anchors
    crop_first: float = Field(0.0, ge=0, le=1)  # how often a part is cut out first, as DETR does
    most: int = Field(100, ge=1)  # objects in an image
    least_score: float = Field(0.05, ge=0, lt=1)


class Detect(DenseTask):
    """Boxes, and masks with Mask R-CNN."""

    Settings: ClassVar[type[Settings]] = DetectSettings
    best: ClassVar[str] = "ap"
    kind: ClassVar[Literal["detect", "segment"]] = "detect"
    columns: ClassVar[tuple[str, ...]] = ("marked", "found")
    settings: DetectSettings
    model: Detector
    data: ObjectData

    def __init__(self, backbone: Any, settings: DetectSettings, data: ObjectData) -> None:
        super().__init__(backbone, settings, data)
        self.model = detector(backbone, settings, len(data.classes))
        self.kinds = ("bbox", "segm") if settings.framework == "maskrcnn" else ("bbox",)
        self.metric = average_precision(self.kinds)
        self.images = 0
        self.classes: dict[str, dict[str, float]] = {}  # of the last evaluation

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> ObjectData:
        """COCO's folders, or one json file; for Mask R-CNN with masks."""
        data = open_objects(spec, seed)
        for images in (data.train, data.test) if settings.framework == "maskrcnn" else ():
            boxed, count = images.boxed(), len(images.found.ids)
            if boxed > FEW * count:
                raise ValueError(
                    f"{data.name}: {boxed} of {count} objects have a box but no mask, which Mask "
                    "R-CNN learns: take framework = retinanet, or mark them"
                )
        return data

    # Data.

    def train_samples(self) -> Samples:
        """Augmented images with their objects; crowds are not learned from."""
        reader = MarkedReader(
            Objects(self.data.train, "segm" in self.kinds, crowds=False),
            len(self.data.train),
            train_transform(self.settings),
            replace=True,
        )
        return Samples(self.data.train, reader, collate_marked)

    def test_samples(self) -> Samples:
        """Each image once, scaled; its objects as the file has them."""
        reader = MarkedReader(
            Objects(self.data.test, "segm" in self.kinds, crowds=True),
            len(self.data.test),
            TestScale(self.settings),
            replace=False,
        )
        return Samples(self.data.test, reader, collate_marked)

    # Training and evaluation.

    def forward(self, batch: DenseBatch, player: str = "model") -> dict[str, Tensor]:
        """The sum of the detector's losses, and each of them."""
        losses = self.model(self.normaliser(batch.images), batch.targets)
        parts = {name.removeprefix("loss_"): value for name, value in losses.items()}
        return {"loss": torch.stack(list(parts.values())).sum()} | parts

    def measure(self, model: nn.Module, batch: DenseBatch) -> None:
        """Count one batch, an image at a time: what is beside it changes nothing."""
        assert isinstance(model, Detector)
        images = self.normaliser(batch.images)
        for image, target, size in zip(images, batch.targets, batch.sizes, strict=True):
            found = model.found(image, size)
            said = {"boxes": found.boxes, "labels": found.labels, "scores": found.scores}
            true = {key: target[key] for key in ("boxes", "labels", "iscrowd", "area")}
            if found.masks is not None:
                said["masks"], true["masks"] = found.masks, target["masks"].bool()
            self.metric.update(*([{k: v.cpu() for k, v in x.items()}] for x in (said, true)))
            self.images += 1

    def measured(self) -> dict[str, float]:
        """COCO's average precisions in per cent; those of no object are left out."""
        shares = over_processes((self.metric.metric_state, self.images))
        images = sum(share[1] for share in shares)
        if not images:
            raise ValueError("no test image could be read: `ziggurat data check` says why")
        for name in self.metric.metric_state:
            setattr(self.metric, name, [x for share in shares for x in share[0][name]])
        found = {key: value.double() for key, value in self.metric.compute().items()}
        self.metric.reset()
        self.images = 0
        measures: dict[str, float] = {}
        self.classes = {}
        numbers = found["classes"].long().reshape(-1).tolist()
        for kind, ours in zip(self.kinds, ("", "mask_"), strict=False):
            prefix = f"{kind}_" if len(self.kinds) > 1 else ""
            for theirs, name in MEASURES.items():
                if (value := float(found[prefix + theirs])) >= 0:
                    measures[ours + name] = 100 * value
            each = found[f"{prefix}map_per_class"].reshape(-1).tolist()
            for number, value in zip(numbers, each, strict=True):
                if value >= 0:
                    own = self.classes.setdefault(self.data.classes[number], {})
                    own[f"{ours}ap"] = 100 * value
        if self.best not in measures:
            raise ValueError(f"the {images} test images that could be read show crowds at most")
        return measures | {"images": images}

    def by_class(self) -> dict[str, dict[str, float]]:
        """Average precision of each class that has objects."""
        return self.classes

    # What is left behind.

    def about(self) -> dict[str, Any]:
        """Classes, and COCO's numbers of them."""
        return super().about() | {"category_ids": self.data.category_ids}

    def row(self, model: Any, picture: Image.Image, sample: Marked) -> list[Image.Image]:
        """Boxes and masks that are marked, and that are found."""
        true = {key: value.numpy() for key, value in sample.target.items()}
        boxes, labels, truth = true["boxes"], true["labels"], true.get("masks")
        found = model.found(self.prepared(sample), sample.size)
        return [
            overlay.with_objects(picture, boxes, labels, self.data.classes, masks=truth),
            drawn(picture, found, self.data.classes),
        ]

    def figures(self, folder: Path) -> list[Path]:
        """The last snapshot, and the average precision of each class."""
        made = super().figures(folder)
        if self.classes:
            numbers = {self.data.classes.index(name): v["ap"] for name, v in self.classes.items()}
            mean = sum(numbers.values()) / len(numbers)
            words = ("average precision by class, %", f"line: {mean:.4g} %, their mean")
            notes = dict.fromkeys(numbers, "")
            path = folder / "precision.png"
            made.append(figures.by_class(numbers, notes, self.data.classes, mean, words, path))
        return made


def detector(backbone: Any, settings: DetectSettings, classes: int) -> Detector:
    """As the settings say."""
    return Detector(
        backbone,
        settings.framework,
        classes,
        settings.norm,
        settings.freeze,
        settings.width,
        settings.anchor,
        settings.most,
        settings.least_score,
    )


def average_precision(kinds: tuple[str, ...]) -> Any:
    """torchmetrics' with faster-coco-eval; sharing between processes is the task's."""
    from torchmetrics.detection import MeanAveragePrecision

    return MeanAveragePrecision(
        iou_type=kinds,  # type: ignore[arg-type]
        class_metrics=True,
        backend="faster_coco_eval",
        sync_on_compute=False,
    )


def drawn(picture: Image.Image, found: Found, classes: tuple[str, ...]) -> Image.Image:
    """The picture with what a detector is sure of."""
    sure = found.scores >= SURE
    boxes, labels, scores = (x[sure].cpu().numpy() for x in found[:3])
    shapes = None if found.masks is None else found.masks[sure].cpu().numpy()
    return overlay.with_objects(picture, boxes, labels, classes, scores, shapes)


class Objects:
    """index -> a picture and its objects as torchvision's transforms take them."""

    def __init__(self, images: ObjectImages, masked: bool, crowds: bool) -> None:
        self.images, self.masked, self.crowds = images, masked, crowds

    def __call__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        """Raises BadImage."""
        picture = self.images.image(index)
        height, width = picture.height, picture.width
        found = self.images.objects(index)
        keep = [i for i in range(len(found.labels)) if self.crowds or not found.crowd[i]]
        target: dict[str, Any] = {
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(found.boxes[keep]).reshape(-1, 4),
                format="XYXY",
                canvas_size=(height, width),
            ),
            "labels": torch.from_numpy(found.labels[keep]),
        }
        if self.crowds:
            target["iscrowd"] = torch.from_numpy(found.crowd[keep]).long()
            target["area"] = torch.from_numpy(found.areas[keep])
        if self.masked:
            shapes = torch.zeros(len(keep), height, width, dtype=torch.uint8)
            for shape, i in zip(shapes, keep, strict=True):
                shape.copy_(torch.from_numpy(self.images.mask(index, found, i)))
            target["masks"] = tv_tensors.Mask(shapes)
        return picture, target


def train_transform(settings: DetectSettings) -> v2.Transform:
    """Scaling, perhaps of a part, colours, a cut, a flip; objects that are gone are gone."""
    first: v2.Transform = scaled(settings.sides, settings.longest)
    if settings.crop_first:
        part = v2.Compose([scaled((400, 500, 600), None), Cut(384, 600), first])
        chances = [1 - settings.crop_first, settings.crop_first]
        first = v2.RandomChoice([first, part], p=chances)
    return v2.Compose([train_steps(settings, first), DropEmpty()])


class Cut(nn.Module):
    """DETR's: a random part, each side between two lengths or the image's own."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__()
        self.least, self.most = least, most

    def forward(self, *inputs: Any) -> Any:
        """Image and target."""
        size = []
        for side in v2.functional.get_size(inputs[0]):
            low, high = min(side, self.least), min(side, self.most)
            size.append(int(torch.randint(low, high + 1, ())))
        return v2.RandomCrop(tuple(size))(*inputs)


class DropEmpty(nn.Module):
    """Leave out objects of which a cut has left less than a pixel, or none of the mask."""

    def forward(self, image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """All that belongs to an object goes together."""
        boxes = target["boxes"].as_subclass(Tensor)
        keep = ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(1)
        if "masks" in target:
            keep &= target["masks"].as_subclass(Tensor).bool().flatten(1).any(1)
        return image, {key: value[keep] for key, value in target.items()}
