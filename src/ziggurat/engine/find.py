"""What saved detectors and segmenters see in images: drawn, and as COCO writes results down."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError

from ziggurat.data.coco import ObjectImages, annotation_files, open_objects
from ziggurat.data.files import written_whole
from ziggurat.data.images import BadImage, as_rgb, read_image
from ziggurat.data.masks import encoded
from ziggurat.engine.recipe import mistake
from ziggurat.models.pretrained import from_pretrained
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks import TASKS, overlay
from ziggurat.tasks.dense import Normaliser, as_image, scaled
from ziggurat.tasks.detect import detector
from ziggurat.tasks.heads import load_head, read_head
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

    def as_results(self, found: Finding, image_id: int | str) -> list[dict[str, Any]]:
        """COCO's result format: a line for each object, or for each class that pixels have."""
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
            line: dict[str, Any] = {
                "image_id": image_id,
                "category_id": self.ids[one.number],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": one.score,
            }
            if one.mask is not None:
                line["segmentation"] = encoded(one.mask)
            lines.append(line)
        return lines


# Where it is written.


class Place(NamedTuple):
    """Of an image in what is written."""

    file: str
    image_id: int | str
    stem: str  # of its picture's name


def places(
    files: Sequence[str], folder: Path, labels: bool, data: str | None = None
) -> list[Place]:
    """A place for each file, with ``labels`` of two pictures; no input is written over.

    ``data`` are COCO annotations that number the images; else their names do.
    """
    ids = listed_ids(files, data) if data else [named_id(file) for file in files]
    first: dict[int | str, str] = {}
    for file, image_id in zip(files, ids, strict=True):
        if image_id in first:
            way = "leave one of them out" if data else "number them by COCO annotations, --data"
            raise ValueError(
                f"{first[image_id]} and {file} would both be image {image_id} in {RESULTS}: {way}"
            )
        first[image_id] = file
    taken: set[str] = set()
    found = []
    for file, image_id in zip(files, ids, strict=True):
        stem, number = Path(file).stem, 1
        while taken.intersection(pictures(stem, labels)):  # files of one name in several folders
            number += 1
            stem = f"{Path(file).stem}-{number}"
        taken.update(pictures(stem, labels))
        found.append(Place(file, image_id, stem))
    given = {Path(file).resolve() for file in (*files, *([data] if data else []))}
    for name in (RESULTS, *sorted(taken)):
        if (folder / name).resolve() in given:
            raise ValueError(
                f"{folder / name} is given and would be written over: take another --out"
            )
    return found


def pictures(stem: str, labels: bool) -> list[str]:
    """The files that an image is drawn into."""
    return [f"{stem}.png", f"{stem}-labels.png"] if labels else [f"{stem}.png"]


def named_id(file: str) -> int | str:
    """The number that ends a file's name, as in COCO_val2014_000000000042.jpg; else the name."""
    number = re.fullmatch(r"(?:.*_)?([0-9]+)", Path(file).stem, re.DOTALL)
    return int(number[1]) if number else Path(file).name


def listed_ids(files: Sequence[str], data: str) -> list[int | str]:
    """The ids that COCO annotations give to files of these names.

    Of several images of a name it is the one whose path ends most like the file's.
    """
    splits = [open_objects(data, None).test]
    folder = Path(data).expanduser()
    if folder.is_dir():
        splits += [open_objects(file, None).test for file in annotation_files(folder, "train")]
    named: dict[str, list[tuple[ObjectImages, int]]] = defaultdict(list)
    for images in splits:
        for i, path in enumerate(images.paths):
            named[Path(path).name].append((images, i))
    ids: list[int | str] = []
    for file in files:
        own = named.get(Path(file).name, [])
        alike = [common_end(file, images.name(i)) if len(own) > 1 else 0 for images, i in own]
        most = max(alike, default=0)
        best = [one for one, parts in zip(own, alike, strict=True) if parts == most]
        if len(best) != 1:
            lacks = "does not list" if not best else f"lists {len(best)} images of the name of"
            raise ValueError(f"{data} {lacks} {file}: it cannot be numbered")
        images, i = best[0]
        ids.append(images.image_id(i))
    return ids


def common_end(one: str, other: str) -> int:
    """How many parts two paths share at their ends."""
    parts = [os.path.abspath(path).split(os.sep)[::-1] for path in (one, other)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False)))


def write(
    finder: Finder, chosen: Sequence[Place], folder: Path, least: float = SURE
) -> Iterator[Finding]:
    """Findings in files, each drawn into ``folder`` on the way; at the end all results as json."""
    lines: list[dict[str, Any]] = []
    findings = finder([place.file for place in chosen])
    for place, found in zip(chosen, findings, strict=True):
        if found.picture is not None:
            drawn = [finder.drawn(found, least)]
            if found.labels is not None:
                drawn.append(Image.fromarray(found.labels))
            names = pictures(place.stem, found.labels is not None)
            for name, picture in zip(names, drawn, strict=True):
                with written_whole(folder / name) as file:
                    picture.save(file, format="PNG")
            lines += finder.as_results(found, place.image_id)
        yield found
    with written_whole(folder / RESULTS) as file:
        file.write(json.dumps(lines).encode())
