"""A few small scenes with their label maps."""

from pathlib import Path

import numpy as np
from PIL import Image

from ziggurat.data.scenes import VOID

CLASSES = ("ground", "square", "disc", "unicorn")  # the last is nowhere


def scene(number: int, size: tuple[int, int]) -> tuple[Image.Image, np.ndarray]:
    """A red square and a blue disc on green ground, void around the square."""
    chance = np.random.default_rng(number)
    H, W = size
    y, x = np.mgrid[:H, :W]
    labels = np.zeros(size, np.uint8)
    top, left = (int(chance.integers(0, side // 3)) for side in size)
    side = min(size) // 3
    near = (abs(y - top - side // 2) <= side // 2 + 1) & (
        abs(x - left - side // 2) <= side // 2 + 1
    )
    labels[near] = VOID
    labels[top : top + side, left : left + side] = 1
    labels[(y - 0.75 * H) ** 2 + (x - 0.75 * W) ** 2 < (min(size) / 5) ** 2] = 2
    colours = np.array([(40, 160, 60), (200, 40, 40), (40, 60, 200)])
    pixels = colours[np.where(labels == VOID, 0, labels)] + chance.integers(-30, 30, (*size, 3))
    return Image.fromarray(pixels.astype(np.uint8)), labels


def write(root: Path, counts: dict[str, int]) -> Path:
    """So many of each split, in folders of images and masks."""
    for split, count in counts.items():
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for i in range(count):
            picture, labels = scene(i + 100 * (split == "val"), ((32, 40), (45, 36))[i % 2])
            picture.save(root / split / "images" / f"{i}.png")
            Image.fromarray(labels).save(root / split / "masks" / f"{i}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root
