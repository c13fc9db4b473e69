"""Small sets of objects and of scenes: bright rectangles on noise."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 48


def made(chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[int], int]:
    """An image, its label map, the box (x, y, w, h) of its rectangle and the class, 1 or 2."""
    pixels = chance.integers(0, 90, (SIDE, SIDE, 3), np.uint8)
    w, h = (int(v) for v in chance.integers(12, 30, 2))
    x, y = int(chance.integers(0, SIDE - w)), int(chance.integers(0, SIDE - h))
    kind = int(chance.integers(1, 3))
    pixels[y : y + h, x : x + w, kind] += 160
    labels = np.zeros((SIDE, SIDE), np.uint8)
    labels[y : y + h, x : x + w] = kind
    return pixels, labels, [x, y, w, h], kind


def made_objects(root: Path, count: int) -> Path:
    """``count`` images to train on and as many to test on, in COCO's layout."""
    chance = np.random.default_rng(0)
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        images, objects = [], []
        for i in range(count):
            pixels, _, box, kind = made(chance)
            Image.fromarray(pixels).save(root / split / f"{i:04}.png")
            images.append({"id": i, "file_name": f"{i:04}.png", "width": SIDE, "height": SIDE})
            x, y, w, h = box
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            objects.append(
                {
                    "id": i + 1, "image_id": i, "category_id": 10 * kind, "bbox": box,
                    "area": w * h, "iscrowd": 0, "segmentation": [corners],
                }
            )  # fmt: skip
        categories = [{"id": 10, "name": "green"}, {"id": 20, "name": "blue"}]
        found = {"images": images, "annotations": objects, "categories": categories}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return root


def made_scenes(root: Path, count: int) -> Path:
    """The same as label maps."""
    chance = np.random.default_rng(1)
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for i in range(count):
            pixels, labels, _, _ = made(chance)
            Image.fromarray(pixels).save(root / split / "images" / f"{i}.png")
            Image.fromarray(labels).save(root / split / "masks" / f"{i}.png")
    (root / "classes.txt").write_text("ground\ngreen\nblue\n")
    return root
