"""A file of COCO's instances, checked line by line, as flat arrays.

What a person has to mend is an error that names file and annotation. What real files are full of
(boxes that reach out of the image, boxes and polygons of no area) is clipped, or left out and
counted.
"""

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ziggurat.data.files import Texts
from ziggurat.data.images import MAX_PIXELS

RUNS = re.compile("[0-o]*[0-O]")  # compressed: of a number's letters the last is low
FAR = 10  # sides of the image: a polygon that goes further would fill the memory


class Annotated(NamedTuple):
    """All that a file says, objects sorted by their image."""

    paths: list[str]
    image_ids: np.ndarray  # (N,) int64
    sizes: np.ndarray  # (N, 2) int64: width, height
    owners: np.ndarray  # (n,) int64: the place of each object's image
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray  # nan: not said
    segments: Sequence[str] | Texts  # JSON, or ""
    ids: np.ndarray
    ignored: Mapping[str, int]  # boxes and polygons left out, by kind
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]


def read(path: Path) -> Annotated:
    """All of a file, checked."""
    found = parsed(path)
    classes, category_ids = categories(found["categories"], path)
    paths, image_ids, sizes = images_of(found["images"], path)
    place = {one: i for i, one in enumerate(image_ids.tolist())}
    label = {one: i for i, one in enumerate(category_ids)}
    shapes = sizes.tolist()
    ignored: Counter[str] = Counter()
    ids, owners, labels = array("q"), array("q"), array("q")
    boxes, areas, crowd, segments = array("d"), array("d"), array("b"), []
    entry = ""
    try:
        for i, one in enumerate(found.pop("annotations")):
            entry = f"{path}: annotation {i + 1}, by its place,"
            ids.append(whole(one, "id", entry))
            entry = f"{path}: annotation {ids[-1]}"
            owners.append(known(place, one, "image_id", entry))
            labels.append(known(label, one, "category_id", entry))
            boxes.extend(box(one.get("bbox"), entry))
            crowd.append(bool(one.get("iscrowd")))
            areas.append(area(one.get("area")))
            kept = segment(one.pop("segmentation", None), shapes[owners[-1]], entry, ignored)
            segments.append("" if kept is None else json.dumps(kept, separators=(",", ":")))
    except OverflowError:  # a whole number of hundreds of digits
        raise ValueError(f"{entry} has a number that is too large") from None
    numbers = np.array(ids, np.int64)
    distinct, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{path}: {distinct[counts > 1][0]} is the id of several annotations")
    of = np.array(owners, np.int64)
    corners, solid = clipped(np.array(boxes).reshape(-1, 4), sizes[of], ignored)
    order = solid[np.argsort(of[solid], kind="stable")]
    return Annotated(
        paths,
        image_ids,
        sizes,
        of[order],
        corners[order],
        np.array(labels, np.int64)[order],
        np.array(crowd, bool)[order],
        np.array(areas, np.float32)[order],
        [segments[i] for i in order],
        numbers[order],
        ignored,
        classes,
        category_ids,
    )


def parsed(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The three lists of a file."""
    try:
        found: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object with images, annotations and categories")
    for key in ("images", "annotations", "categories"):
        if not isinstance(found.get(key), list):
            raise ValueError(
                f"{path} has no list of {key}: COCO's files of instances have images, annotations "
                "and categories"
            )
        for i, one in enumerate(found[key]):
            if not isinstance(one, dict):
                raise ValueError(f"{path}: entry {i + 1} of {key} must be a JSON object")
    return {key: found[key] for key in ("images", "annotations", "categories")}


def categories(found: list[dict[str, Any]], path: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and numbers of the classes, by number; one name of two classes is told apart."""
    names: dict[int, str] = {}
    for one in found:
        number = whole(one, "id", f"{path}: a category")
        if not isinstance(one.get("name"), str):
            raise ValueError(f"{path}: category {number} has no name")
        if number in names:
            raise ValueError(f"{path}: {number} is the id of several categories")
        names[number] = one["name"]
    if not names:
        raise ValueError(f"{path} has no categories")
    often = Counter(names.values())
    ids = tuple(sorted(names))
    return tuple(names[i] if often[names[i]] == 1 else f"{names[i]} ({i})" for i in ids), ids


def images_of(found: list[dict[str, Any]], path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """File names, numbers and sizes of the images."""
    ids = [whole(one, "id", f"{path}: an image") for one in found]
    sizes = []
    for number, one in zip(ids, found, strict=True):
        if not isinstance(one.get("file_name"), str) or not one["file_name"]:
            raise ValueError(f"{path}: image {number} has no file_name")
        W, H = (whole(one, key, f"{path}: image {number}") for key in ("width", "height"))
        if W < 1 or H < 1 or W * H > MAX_PIXELS:
            raise ValueError(f"{path}: image {number} cannot be {W} x {H} pixels")
        sizes.append((W, H))
    if len(set(ids)) < len(ids):
        twice = next(number for number, count in Counter(ids).items() if count > 1)
        raise ValueError(f"{path}: {twice} is the id of several images")
    return (
        [one["file_name"] for one in found],
        np.array(ids, np.int64),
        np.array(sizes, np.int64).reshape(-1, 2),
    )


def whole(one: dict[str, Any], key: str, entry: str) -> int:
    """A whole number that an entry must have."""
    value = one.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"{entry} must have a whole number as its {key}, got {value!r:.60}")
    return value


def known(table: dict[int, int], one: dict[str, Any], key: str, entry: str) -> int:
    """The place that an entry's number has in a table."""
    value = one.get(key)
    if not isinstance(value, int | float) or value not in table:
        raise ValueError(f"{entry} has {key} {value!r:.60}, which the file does not list")
    return table[int(value)]


def box(found: Any, entry: str) -> list[float]:
    """x, y, width, height."""
    if (
        isinstance(found, list)
        and len(found) == 4
        and all(isinstance(value, int | float) for value in found)
    ):
        return found
    raise ValueError(f"{entry} must have 4 numbers as its bbox, got {found!r:.60}")


def area(found: Any) -> float:
    """A number above 0, or nan."""
    return found if isinstance(found, int | float) and 0 < found < math.inf else math.nan


def clipped(
    boxes: np.ndarray, sizes: np.ndarray, ignored: Counter[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Corners (n, 4) within the images, and which are boxes still."""
    finite = np.isfinite(boxes).all(1)
    boxes = np.where(finite[:, None], boxes, 0)
    with np.errstate(over="ignore"):
        corners = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)  # (n, 2, 2)
    solid = finite & (boxes[:, 2:] > 0).all(1)
    corners = corners.clip(0, sizes[:, None]).astype(np.float32)
    within = solid & (corners[:, 1] > corners[:, 0]).all(1)
    for kind, wrong in (
        ("boxes that are not finite", ~finite),
        ("boxes without width or height", finite & ~solid),
        ("boxes outside the image", solid & ~within),
    ):
        if wrong.any():
            ignored[kind] += int(wrong.sum())
    return corners.reshape(-1, 4), np.flatnonzero(within)


def segment(found: Any, size: list[int], entry: str, ignored: Counter[str]) -> Any:
    """Polygons or RLE that can be drawn, or None."""
    W, H = size
    if found is None or found == []:
        return None
    if isinstance(found, dict):
        if found.get("size") != [H, W]:
            raise ValueError(
                f"{entry} has an RLE of size {found.get('size')!r:.60}, but its image has {[H, W]} "
                "(height, width)"
            )
        counts = found.get("counts")
        if isinstance(counts, str) and not RUNS.fullmatch(counts):
            raise ValueError(f"{entry} has an RLE whose counts are damaged: {counts!r:.60}")
        if not isinstance(counts, str) and not covers(counts, H * W):
            raise ValueError(f"{entry} has an RLE whose counts do not add up to {H} x {W} pixels")
        return {"size": [H, W], "counts": counts}
    if not isinstance(found, list) or not all(isinstance(polygon, list) for polygon in found):
        raise ValueError(f"{entry} must have polygons or an RLE as its segmentation")
    kept = []
    for polygon in found:
        try:
            finite = math.isfinite(sum(polygon))
        except TypeError:
            raise ValueError(f"{entry} has a polygon of something else than numbers") from None
        if len(polygon) < 6 or len(polygon) % 2:
            ignored["polygons that are not 3 points or more"] += 1
        elif not finite:
            ignored["polygons that are not finite"] += 1
        elif max(max(polygon), -min(polygon)) > FAR * max(W, H):
            ignored["polygons far outside the image"] += 1
        else:
            kept.append(polygon)
    return kept or None


def covers(counts: Any, pixels: int) -> bool:
    """Whether runs are whole numbers that fill an image."""
    return (
        isinstance(counts, list)
        and all(type(count) is int and count >= 0 for count in counts)
        and sum(counts) == pixels
    )
