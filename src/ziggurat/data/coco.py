"""Objects in images, as COCO writes them down: boxes, classes, masks.

    "coco/" -> open_objects -> ObjectData(train, test, classes) -> train.image(7), train.objects(7)

COCO has 860,000 objects. They are kept in a few flat arrays and one long text, which forked
workers share, not in a million small dictionaries, which each of them would come to copy.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ziggurat.data.files import ImageFiles, Texts, held_out
from ziggurat.data.images import BadImage
from ziggurat.data.instances import Annotated, read
from ziggurat.data.masks import encoded as encoded
from ziggurat.data.masks import masks
from ziggurat.data.sized import sized

LOOKED_FOR = 20  # image files whose absence says that the folder is a wrong one
ROBOFLOW = "_annotations.coco.json"
LAYOUT = (
    "annotations/instances_train*.json and instances_val*.json with the images in train*/ and "
    f"val*/, or train/{ROBOFLOW} and valid/{ROBOFLOW}"
)


class Objects(NamedTuple):
    """What one image shows."""

    boxes: np.ndarray  # (n, 4) float32: x1, y1, x2, y2 in pixels, within the image
    labels: np.ndarray  # (n,) int64: the place among the classes
    crowd: np.ndarray  # (n,) bool: many of a kind in one
    areas: np.ndarray  # (n,) float32: as annotated, else of the mask, else of the box
    segments: list[Any]  # polygons or RLE, as COCO stores them; None: only a box
    ids: np.ndarray  # (n,) int64: of the annotations


class ObjectImages(ImageFiles):
    """Images with any number of objects each."""

    def __init__(self, root: Path, found: Annotated, ignored: Mapping[str, int]) -> None:
        super().__init__(root, found.paths)
        self.found = found._replace(paths=[], segments=Texts(found.segments))
        self.ends = np.searchsorted(found.owners, np.arange(len(self.paths) + 1))
        self.classes, self.ignored = found.classes, dict(ignored)

    def size(self, index: int) -> tuple[int, int]:
        """Width and height as annotated."""
        width, height = self.found.sizes[index].tolist()
        return width, height

    def image_id(self, index: int) -> int:
        """COCO's number of an image."""
        return int(self.found.image_ids[index])

    def image(self, index: int) -> Image.Image:
        """An image in RGB, of the size annotated; raises BadImage."""
        return sized(self.contents(index), self.name(index), self.size(index))

    def objects(self, index: int) -> Objects:
        """What is in an image, arrays of none where there is nothing; raises BadImage."""
        of = slice(int(self.ends[index]), int(self.ends[index + 1]))
        texts = [self.found.segments[i] for i in range(of.start, of.stop)]
        segments = [json.loads(text) if text else None for text in texts]
        boxes, areas = self.found.boxes[of].copy(), self.found.areas[of].copy()
        found = Objects(
            boxes,
            self.found.labels[of].copy(),
            self.found.crowd[of].copy(),
            areas,
            segments,
            self.found.ids[of].copy(),
        )
        for i in np.flatnonzero(np.isnan(areas)).tolist():
            areas[i] = (boxes[i, 2:] - boxes[i, :2]).prod()
            if segments[i] is not None:
                areas[i] = self.mask(index, found, i).sum()
        return found

    def boxed(self) -> int:
        """How many objects have a box alone, and no mask."""
        assert isinstance(self.found.segments, Texts)
        return int((np.diff(self.found.segments.ends) == 0).sum())

    def mask(self, index: int, objects: Objects, i: int) -> np.ndarray:
        """The pixels (H, W) of one of an image's objects; raises BadImage."""
        width, height = self.size(index)
        try:
            return masks([objects.segments[i]], height, width)[0]
        except ValueError as error:
            raise BadImage(f"{self.name(index)}: annotation {objects.ids[i]}: {error}") from None


class ObjectData(NamedTuple):
    """What a detector is trained and tested on."""

    train: ObjectImages
    test: ObjectImages
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  # COCO's numbers of the classes
    mean: None
    std: None
    name: str


# Opening.


def open_objects(spec: str | Path, seed: int | None = 0) -> ObjectData:
    """Open COCO's folder, Roboflow's export, or one ``.json`` with a tenth held out.

    ``seed`` decides which images are held out. Without one (None) it is for testing alone: all of
    a ``.json``, and of a folder only what is for testing is read.
    """
    if str(spec) == "coco":
        raise ValueError(
            "coco (20 GB) is not fetched for you: unpack it from cocodataset.org and give "
            "`--data DIR`, a folder with annotations/, train2017/ and val2017/"
        )
    path = Path(spec).expanduser()
    if path.is_file():
        data = one_file(path, seed)
    elif path.is_dir():
        data = two_files(path, seed)
    else:
        raise ValueError(f"there is no {path}: give a COCO .json, or a folder with {LAYOUT}")
    for split, images in (("train", data.train), ("test", data.test)):
        if split == "train" and seed is None:
            continue
        if not len(images):
            raise ValueError(f"{data.name} has no images to {split} on")
        if not len(images.found.ids):
            raise ValueError(f"{data.name} has no objects to {split} on")
    return data


def is_objects(path: Path) -> bool:
    """Whether a file or folder looks as ``open_objects`` takes it."""
    if path.is_dir():
        return any(annotation_files(path, split) for split in ("train", "val"))
    return path.is_file() and path.suffix == ".json"


def annotation_files(path: Path, split: str) -> list[Path]:
    """The files of a split; there should be one."""
    if found := sorted((path / "annotations").glob(f"instances_{split}*.json")):
        return found
    folders = ("train",) if split == "train" else ("valid", "val", "test")
    return [path / name / ROBOFLOW for name in folders if (path / name / ROBOFLOW).is_file()][:1]


def one_file(path: Path, seed: int | None) -> ObjectData:
    """A file that does not say what is for testing."""
    found = read(path)
    root = image_folder(path, found.paths)
    test = held_out(found.paths, np.zeros(len(found.paths), int), seed)
    train = ObjectImages(root, part(found, ~test), {} if seed is None else found.ignored)
    rest = ObjectImages(root, part(found, test), found.ignored if seed is None else {})
    name = path.resolve().parent.name if path.name == ROBOFLOW else path.stem
    return ObjectData(train, rest, found.classes, found.category_ids, None, None, name)


def two_files(path: Path, seed: int | None) -> ObjectData:
    """A folder with a file for each split."""
    sets: list[ObjectImages] = []
    for split in ("train", "val") if seed is not None else ("val",):
        files = annotation_files(path, split)
        if not files and (others := annotation_files(path, "val" if split == "train" else "train")):
            raise ValueError(
                f"{path} has {others[0].relative_to(path)} but no file for {split}: add one, or "
                f"give {others[0]} to have a tenth of it held out"
            )
        if not files:
            raise ValueError(f"{path} is no COCO data: it must have {LAYOUT}")
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ValueError(f"{path / 'annotations'} has {names}: leave one of them there")
        found = read(files[0])
        if sets and (wrong := differences(sets[0].found, found)):
            raise ValueError(f"{path}: train and val must have the same categories, but {wrong}")
        sets.append(ObjectImages(image_folder(files[0], found.paths), found, found.ignored))
    if seed is None:
        sets.insert(0, ObjectImages(path, part(found, np.zeros(len(found.paths), bool)), {}))
    name = path.resolve().name
    return ObjectData(sets[0], sets[1], found.classes, found.category_ids, None, None, name)


def differences(train: Annotated, val: Annotated) -> str:
    """Where the categories of two files are not the same, in words."""
    own = dict(zip(train.category_ids, train.classes, strict=True))
    other = dict(zip(val.category_ids, val.classes, strict=True))
    for one in sorted(own.keys() | other.keys()):
        if own.get(one) != other.get(one):
            a, b = (repr(names[one]) if one in names else "missing" for names in (own, other))
            return f"{one} is {a} in train and {b} in val"
    return ""


def image_folder(path: Path, paths: list[str]) -> Path:
    """Where the images of a file are: beside it, or in a folder of its own name's last part."""
    split = path.stem.removeprefix("instances_")
    bare = re.sub(r"\d+$", "", split)
    above = path.parent.parent if path.parent.name == "annotations" else path.parent
    names = (split, f"images/{split}", bare, f"images/{bare}", "images", ".")
    places = [path.parent, *(above / name for name in names)]
    for place in places:
        if any((place / name).is_file() for name in paths[:LOOKED_FOR]):
            return place
    if not paths:
        return path.parent
    likely = path.parent
    if likely != above:
        likely = next((place for place in places[1:-1] if place.is_dir()), places[1])
    some = "the image" if len(paths) == 1 else f"any of the first {len(paths[:LOOKED_FOR])} images"
    raise ValueError(f"{path}: cannot find {some}, such as {likely / paths[0]}")


def part(found: Annotated, chosen: np.ndarray) -> Annotated:
    """Some of the images, with their objects."""
    of = np.flatnonzero(chosen[found.owners])
    return found._replace(
        paths=[found.paths[i] for i in np.flatnonzero(chosen)],
        image_ids=found.image_ids[chosen],
        sizes=found.sizes[chosen],
        owners=(np.cumsum(chosen) - 1)[found.owners[of]],
        boxes=found.boxes[of],
        labels=found.labels[of],
        crowd=found.crowd[of],
        areas=found.areas[of],
        segments=[found.segments[i] for i in of.tolist()],
        ids=found.ids[of],
    )
