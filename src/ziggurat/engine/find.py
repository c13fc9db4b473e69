"""What saved detectors and segmenters see in images: drawn, and as COCO writes results down."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError

from ziggurat.data.files import written_whole
from ziggurat.data.images import BadImage, as_rgb, read_image
from ziggurat.data.masks import encoded
from ziggurat.engine.recipe import mistake
from ziggurat.models.pretrained import from_pretrained
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks import TASKS, overlay
from ziggurat.tasks.dense import Normaliser, as_image, load_head, read_head, scaled
from ziggurat.tasks.detect import detector
from ziggurat.tasks.segment import labels_of, segmenter

RESULTS = "predictions.json"
SURE = 0.3  # score of an object that is drawn and told


class Object(NamedTuple):
    """One thing in an image."""

    name: str
    number: int  # of its class, from 0
    score: float
    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels
    mask: np.ndarray | None  # (H, W) bool


class Finding(NamedTuple):
    """What an image shows; or why it could not be read."""

    image: str
    picture: Image.Image | None
    objects: list[Object]  # of a detector, the surest first
    labels: np.ndarray | None  # (H, W) uint8 of a segmenter: the class of each pixel
    error: str | None = None


class Finder:
    """A saved detector or segmenter with its own preprocessing and class names.

    for finding in Finder("runs/regionvit-pets")(["a.jpg", "b.jpg"]): ...
    """

    def __init__(self, source: str | Path, device: str | None = None) -> None:
        head = read_head(source)
        if head is None:
            raise CheckpointError(f"{source} neither detects nor segments: it is a backbone alone")
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.task = head.task
        kind: Any = TASKS[head.task]
        try:
            self.settings = kind.Settings(**head.settings)
        except ValidationError as error:
            raise CheckpointError(f"{source}: the settings of its head: {mistake(error)}") from None
        self.classes: tuple[str, ...] = tuple(head.about["classes"])
        self.ids: list[int] = head.about.get("category_ids") or list(range(len(self.classes)))
        backbone = from_pretrained(source)
        build: Any = detector if head.task == "detect" else segmenter
        self.model: Any = build(backbone, self.settings, len(self.classes))
        load_head(self.model, source)
        self.model.to(self.device).eval()
        self.normaliser = Normaliser(backbone.pretrained_cfg).to(self.device)
        self.scale = scaled((self.settings.short,), self.settings.longest)

    def __call__(self, images: Iterable[str | Path | Image.Image]) -> Iterator[Finding]:
        """A finding for each image, in their order."""
        for number, image in enumerate(images):
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                opened = image if isinstance(image, Image.Image) else read_image(image, name)
                yield self.look(name, as_rgb(opened))
            except BadImage as error:
                yield Finding(name, None, [], None, str(error))

    @torch.inference_mode()
    def look(self, name: str, picture: Image.Image) -> Finding:
        """One image."""
        size = (picture.height, picture.width)
        image = self.normaliser([self.scale(as_image(picture)).to(self.device)])[0]
        if self.task == "segment":
            labels = labels_of(self.model, image, size, self.settings)
            return Finding(name, picture, [], labels.cpu().numpy())
        found = self.model.found(image, size)
        masks = None if found.masks is None else found.masks.cpu().numpy()
        rows = zip(found.labels.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
        objects = [
            Object(
                self.classes[label], label, score, tuple(box), None if masks is None else masks[i]
            )
            for i, (label, score, box) in enumerate(rows)
        ]
        return Finding(name, picture, objects, None)

    def drawn(self, found: Finding, least: float = SURE) -> Image.Image:
        """The picture with its objects, or with a colour for each pixel's class."""
        assert found.picture is not None
        if found.labels is not None:
            return overlay.with_map(found.picture, found.labels, self.classes)
        sure = [one for one in found.objects if one.score >= least]
        masks = [one.mask for one in sure if one.mask is not None]
        return overlay.with_objects(
            found.picture,
            np.array([one.box for one in sure]).reshape(-1, 4),
            np.array([one.number for one in sure], int),
            self.classes,
            np.array([one.score for one in sure]),
            np.stack(masks) if masks else None,
        )

    def rows(self, found: Finding, least: float = SURE) -> Iterator[tuple[str, ...]]:
        """A line for each object that is sure, or for each class that pixels have."""
        if found.labels is not None:
            numbers, counts = np.unique(found.labels, return_counts=True)
            for i in counts.argsort()[::-1]:
                share = f"{counts[i] / found.labels.size:6.1%}"
                yield self.classes[numbers[i]], share
        for one in found.objects:
            if one.score >= least:
                yield one.name, f"{one.score:.2f}", " ".join(f"{value:.0f}" for value in one.box)

    def as_results(self, found: Finding) -> list[dict[str, Any]]:
        """COCO's result format: a line for each object, or for each class that pixels have."""
        name = Path(found.image)
        image_id: Any = int(name.stem) if name.stem.isdecimal() else name.name
        if found.labels is not None:
            return [
                {
                    "image_id": image_id,
                    "category_id": self.ids[number],
                    "segmentation": encoded(found.labels == number),
                }
                for number in np.unique(found.labels).tolist()
            ]
        lines = []
        for one in found.objects:
            x1, y1, x2, y2 = one.box
            line = {
                "image_id": image_id,
                "category_id": self.ids[one.number],
                "bbox": [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)],
                "score": round(one.score, 5),
            }
            if one.mask is not None:
                line["segmentation"] = encoded(one.mask)
            lines.append(line)
        return lines


def write(
    finder: Finder, findings: Iterable[Finding], folder: Path, least: float = SURE
) -> Iterator[Finding]:
    """Pass findings on, each drawn into ``folder`` on the way; at the end all results as json."""
    lines: list[dict[str, Any]] = []
    taken: set[str] = set()
    for found in findings:
        if found.picture is not None:
            stem, number = Path(found.image).stem, 1
            while stem in taken:  # files of one name in several folders
                number += 1
                stem = f"{Path(found.image).stem}-{number}"
            taken.add(stem)
            with written_whole(folder / f"{stem}.png") as file:
                finder.drawn(found, least).save(file, format="PNG")
            if found.labels is not None:
                with written_whole(folder / f"{stem}-labels.png") as file:
                    Image.fromarray(found.labels).save(file, format="PNG")
            lines += finder.as_results(found)
        yield found
    with written_whole(folder / RESULTS) as file:
        file.write(json.dumps(lines).encode())
