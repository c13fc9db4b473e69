"""Objects as Pascal VOC writes them down: an XML file for each image.

    "VOC2012/" -> open_voc -> the images of ImageSets/Main/test.txt or val.txt, else all

What is ``difficult`` counts as a crowd: VOC does not ask for it either.
"""

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from ziggurat.data.coco import ObjectImages, is_objects, open_objects
from ziggurat.data.files import class_names
from ziggurat.data.instances import Annotated, clipped
from ziggurat.data.sized import header

IMAGES, NOTES, LISTS = "JPEGImages", "Annotations", "ImageSets/Main"


class Noted(NamedTuple):
    """What one XML file says."""

    image: str
    size: tuple[int, int]  # width, height
    names: list[str]
    boxes: list[list[float]]  # x, y, width, height
    difficult: list[bool]


def open_boxes(spec: str | Path) -> ObjectImages:
    """The images to test on, with their boxes, of a COCO json, a COCO folder or a VOC folder."""
    path = Path(spec).expanduser()
    if (path / NOTES).is_dir() and not is_objects(path):
        return open_voc(path)
    if path.is_dir() and not is_objects(path):
        raise ValueError(
            f"{path} has no boxes that can be read: give a COCO .json, COCO's folder (annotations/"
            f"instances_val*.json, val*/) or VOC's ({NOTES}/*.xml, {IMAGES}/)"
        )
    return open_objects(path, seed=None).test


def open_voc(path: Path) -> ObjectImages:
    """VOC's folder, or one like it."""
    files = chosen(path)
    images = {file.stem: file.name for file in sorted((path / IMAGES).glob("*"))}
    noted = [read(file, path / IMAGES, images) for file in files]
    names = class_names(path) or tuple(sorted({name for one in noted for name in one.names}))
    if not names:
        raise ValueError(f"{path / NOTES} has no objects")
    number = {name: i for i, name in enumerate(names)}
    for file, one in zip(files, noted, strict=True):
        if strange := next((name for name in one.names if name not in number), None):
            raise ValueError(f"{file} has an object {strange!r}, which the class names lack")
    sizes = np.array([one.size for one in noted], np.int64).reshape(-1, 2)
    owners = np.repeat(np.arange(len(noted)), [len(one.names) for one in noted])
    ignored: Counter[str] = Counter()
    boxes = np.array([box for one in noted for box in one.boxes], float).reshape(-1, 4)
    corners, solid = clipped(boxes, sizes[owners], ignored)
    labels = np.array([number[name] for one in noted for name in one.names], np.int64)
    difficult = np.array([flag for one in noted for flag in one.difficult], bool)
    found = Annotated(
        paths=[one.image for one in noted],
        image_ids=np.arange(len(noted)),
        sizes=sizes,
        owners=owners[solid],
        boxes=corners[solid],
        labels=labels[solid],
        crowd=difficult[solid],
        areas=np.full(len(solid), np.nan, np.float32),
        segments=[""] * len(solid),
        ids=solid,
        ignored=ignored,
        classes=names,
        category_ids=tuple(range(len(names))),
    )
    return ObjectImages(path / IMAGES, found, ignored)


def chosen(path: Path) -> list[Path]:
    """The XML files of the images to test on."""
    for split in ("test", "val"):
        listing = path / LISTS / f"{split}.txt"
        if listing.is_file():
            stems = [line.split()[0] for line in listing.read_text().splitlines() if line.split()]
            files = [path / NOTES / f"{stem}.xml" for stem in stems]
            if missing := next((file for file in files if not file.is_file()), None):
                raise ValueError(f"{listing} names {missing.stem}, but there is no {missing}")
            break
    else:
        files = sorted((path / NOTES).glob("*.xml"))
    if not files:
        raise ValueError(f"{path} has no images to test on: {NOTES}/ has no .xml")
    return files


def read(file: Path, folder: Path, images: dict[str, str]) -> Noted:
    """One file, checked; ``images`` are the names in ``folder`` by their stem."""
    try:
        root = ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{file} is not XML: {error}") from None
    named = (root.findtext("filename") or "").strip()
    image = named if (folder / named).is_file() and named else images.get(file.stem)
    if image is None:
        raise ValueError(f"{file}: there is no image {folder / (named or file.stem)}")
    width, height = (int(value(root, f"size/{side}", file, 0)) for side in ("width", "height"))
    size = (width, height) if width > 0 and height > 0 else header(folder / image, image)[0]
    names, boxes, difficult = [], [], []
    for one in root.iterfind("object"):
        name = (one.findtext("name") or "").strip()
        if not name:
            raise ValueError(f"{file} has an object without a name")
        x0, y0, x1, y1 = (
            value(one, f"bndbox/{side}", file) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        names.append(name)
        # VOC counts pixels from 1, and the last belongs to the box.
        boxes.append([x0 - 1, y0 - 1, x1 - x0 + 1, y1 - y0 + 1])
        difficult.append(value(one, "difficult", file, 0) > 0)
    return Noted(image, size, names, boxes, difficult)


def value(element: Element, key: str, file: Path, otherwise: float | None = None) -> float:
    """A number in the file."""
    text = element.findtext(key)
    if text is None and otherwise is not None:
        return otherwise
    try:
        if math.isfinite(found := float(text or "")):
            return found
    except ValueError:
        pass
    raise ValueError(f"{file} must have a number as {key}, got {text!r:.60}")
