"""What is wrong with annotated images: objects, or a class for every pixel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from ziggurat.data.check import Look, Report, Split, digest_of, look_through, sum_up_files, tallied
from ziggurat.data.coco import ObjectImages, open_objects
from ziggurat.data.images import BadImage, listed
from ziggurat.data.scenes import VOID, BadIds, Scenes, open_scenes
from ziggurat.data.sized import as_sized


@dataclass
class ObjectSplit(Split):
    """Images with objects; ``per_class`` and ``ignored`` are of objects, not of images."""

    objects: int = 0
    crowds: int = 0  # of them
    without: int = 0  # images

    def counts(self) -> str:
        """How many of each class, for a terminal."""
        crowds = f" ({self.crowds} crowds)" if self.crowds else ""
        empty = f"; {self.without} images without objects" if self.without else ""
        return f", {self.objects} objects{crowds}{extremes(self.per_class)}{empty}"


@dataclass
class SceneSplit(Split):
    """Images with maps; ``per_class`` is how many maps have pixels of it."""

    shares: dict[str, float] = field(default_factory=dict)  # of all pixels
    void: float = 0  # their share, too
    out_of_range: list[str] = field(default_factory=list)  # "path: id"

    def counts(self) -> str:
        """How much of each class, for a terminal."""
        percent = {name: f"{100 * share:.1f}%" for name, share in self.shares.items()}
        few, many = (f(self.shares, key=lambda name: self.shares[name]) for f in (min, max))
        return f", {percent[few]} {few} to {percent[many]} {many}, {100 * self.void:.1f}% void"


def extremes(per_class: dict[str, int]) -> str:
    """Of which class there is least, and of which most."""
    few, many = (f(per_class, key=lambda name: per_class[name]) for f in (min, max))
    return f", {per_class[few]} {few} to {per_class[many]} {many}"


def check_annotations(
    spec: str | Path, kind: Literal["objects", "scenes"], limit: int | None, progress: bool
) -> Report:
    """Read what ``--data`` names as ``kind``."""
    try:
        if kind == "objects":
            found = open_objects(spec)
            report = Report(found.name, found.classes)
            look_through(report, (found.train, found.test), limit, progress, examined_objects)
        else:
            data = open_scenes(spec)
            report = Report(data.name, data.classes)
            look_through(report, (data.train, data.test), limit, progress, examined_scenes)
    except (ValueError, OSError, ImportError) as error:
        return Report(str(spec), problems=[str(error)])
    sum_up_files(report, "left out")
    of = "objects" if kind == "objects" else "pixels"
    train, test = report.train.per_class, report.test.per_class
    untrained = [name for name in report.classes if not train[name]]
    untested = [name for name in report.classes if train[name] and not test[name]]
    for name, split in (("training", report.train), ("test", report.test)):
        if isinstance(split, SceneSplit) and split.out_of_range:
            report.problems.append(
                f"{len(split.out_of_range)} of {split.read} {name} maps have ids out of range, the "
                f"first: {split.out_of_range[0]}"
            )
    if untrained:
        report.remarks.append(f"no {of} to train on of {listed(untrained)}")
    if untested:
        report.remarks.append(f"{of} to train on, but none to test, of {listed(untested)}")
    return report


def examined_objects(
    images: ObjectImages, chosen: list[int], advance: Callable[[], None]
) -> tuple[ObjectSplit, np.ndarray]:
    """What the chosen images are like, and all objects."""
    found = images.found
    counts = np.bincount(found.labels, minlength=len(images.classes)).tolist()
    split = ObjectSplit(
        images=len(images),
        per_class=dict(zip(images.classes, counts, strict=True)),
        ignored=images.ignored,
        objects=len(found.labels),
        crowds=int(found.crowd.sum()),
        without=len(images) - len(np.unique(found.owners)),
    )

    def seen(index: int) -> Look | str:
        try:
            contents, size = images.contents(index), images.size(index)
            _, mode = as_sized(contents, images.name(index), size)
            objects = images.objects(index)
            for i in range(len(objects.ids)):
                images.mask(index, objects, i)
        except ValueError as error:
            return str(error)
        return Look(size, mode, digest_of(contents))

    return split, tallied(split, seen, chosen, advance)


def examined_scenes(
    images: Scenes, chosen: list[int], advance: Callable[[], None]
) -> tuple[SceneSplit, np.ndarray]:
    """What the chosen images and their maps are like."""
    split = SceneSplit(images=len(images))
    pixels = np.zeros(VOID + 1, np.int64)  # of each class, and void
    maps = np.zeros(VOID + 1, np.int64)  # that have some
    lock = Lock()

    def seen(index: int) -> Look | str:
        try:
            contents, size = images.contents(index), images.size(index)
            _, mode = as_sized(contents, images.name(index), size)
            counts = np.bincount(images.labels(index).ravel(), minlength=VOID + 1)
            with lock:
                np.add(pixels, counts, out=pixels)
                np.add(maps, counts > 0, out=maps)
        except BadIds as error:
            with lock:
                split.out_of_range.append(str(error))
        except BadImage as error:
            return str(error)
        return Look(size, mode, digest_of(contents))

    kept = tallied(split, seen, chosen, advance)
    split.out_of_range.sort()
    total = max(int(pixels.sum()), 1)
    split.per_class = dict(zip(images.classes, maps.tolist(), strict=False))
    split.shares = dict(zip(images.classes, (pixels / total).tolist(), strict=False))
    split.void = float(pixels[VOID] / total)
    return split, kept
