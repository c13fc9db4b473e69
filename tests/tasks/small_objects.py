"""A few small images with coloured rectangles on noise, as COCO writes them down."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ziggurat.data.masks import encoded

CATEGORIES = [{"id": 3, "name": "red"}, {"id": 7, "name": "green"}, {"id": 9, "name": "blue"}]
SIZES = ((48, 40), (37, 52), (41, 41))  # width, height


def rectangle(box: tuple[int, int, int, int]) -> list[float]:
    """The polygon of x, y, width, height."""
    x, y, w, h = box
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def annotated(
    chance: np.random.Generator, image: dict[str, Any], first: int, crowds: bool
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Pixels, and what they show: of every third image nothing, of every fourth a crowd besides."""
    W, H, number = image["width"], image["height"], image["id"]
    pixels = chance.integers(0, 80, (H, W, 3), np.uint8)
    found: list[dict[str, Any]] = []
    for _ in range(0 if number % 3 == 0 else int(chance.integers(1, 3))):
        kind = int(chance.integers(0, 2))  # nothing is blue
        w, h = (int(v) for v in chance.integers(10, 22, 2))
        x, y = int(chance.integers(0, W - w)), int(chance.integers(0, H - h))
        pixels[y : y + h, x : x + w, kind] = 250
        found.append({
            "category_id": CATEGORIES[kind]["id"], "bbox": [x, y, w, h], "area": w * h,
            "iscrowd": 0, "segmentation": [rectangle((x, y, w, h))],
        })  # fmt: skip
    if crowds and number % 4 == 0:
        mask = np.zeros((H, W), bool)
        mask[2:12, 3:30] = True
        found.append({
            "category_id": 7, "bbox": [3, 2, 27, 10], "area": 270, "iscrowd": 1,
            "segmentation": encoded(mask),
        })  # fmt: skip
    own = {"image_id": number}
    return pixels, [own | {"id": first + i} | one for i, one in enumerate(found)]


def write(root: Path, counts: dict[str, int], crowds: bool = True, masks: bool = True) -> Path:
    """COCO's folder: files are named by their image's number."""
    (root / "annotations").mkdir(parents=True)
    for seed, (split, count) in enumerate(counts.items()):
        (root / split).mkdir()
        chance = np.random.default_rng(seed)
        images: list[dict[str, Any]] = []
        objects: list[dict[str, Any]] = []
        for i in range(count):
            W, H = SIZES[i % len(SIZES)]
            number = 100 * (seed + 1) + i
            image = {"id": number, "file_name": f"{number:012}.png", "width": W, "height": H}
            pixels, own = annotated(chance, image, 10 * len(objects) + 1, crowds)
            Image.fromarray(pixels).save(root / split / image["file_name"])
            images.append(image)
            objects += own if masks else [one | {"segmentation": []} for one in own]
        found = {"images": images, "annotations": objects, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return root
