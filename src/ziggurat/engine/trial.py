"""Real images on which an exported model is tried beside the original, and calibrated.

Those that the user names, else the test images of the run that the model is from, else cut-outs of
photographs that every machine with matplotlib or scikit-learn has.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ziggurat.data.images import BadImage, Data, Images, as_rgb, open_data, read_image
from ziggurat.engine.evaluate import recipe_of
from ziggurat.engine.predict import files_of
from ziggurat.engine.recipe import Recipe
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import test_transform
from ziggurat.tasks.classify import check_classes

FEW = 64  # images to compare logits on
CALIBRATION = 300  # images to see the range of activations on, as nncf's own default
LEAST = 20  # images without labels to calibrate with and to try it on, half of them each
PHOTOS = {
    "matplotlib": "mpl-data/sample_data/grace_hopper.jpg",
    "sklearn": "datasets/images/china.jpg",
}
CUTS = 16  # of each photograph


class Trial(NamedTuple):
    """Images as the model takes them, but in bytes: (N, 3, H, W), of clips (N, T, 3, H, W)."""

    images: Tensor
    what: str  # they are
    labels: Tensor | None = None  # (N,)
    seen: Tensor | None = None  # other images, of the same kind, to calibrate with


def trial(
    source: Any,
    model: Any,
    images: Sequence[str] = (),
    data: str | None = None,
    most: int = FEW,
    calibrate: bool = False,
) -> Trial:
    """At most so many images; with ``calibrate`` others besides, which photographs do not do."""
    transform = test_transform(model.pretrained_cfg)
    if isinstance(model, SpaceTime):
        if images or data or calibrate:
            raise ValueError(
                "a model of clips is tried on photographs alone: leave images and data"
            )
        clips = [panned(photo, transform, model.frames) for photo in photographs()]
        return Trial(torch.stack(clips), "clips that pan over photographs")
    if images:
        files = spread(files_of(images), most + (CALIBRATION if calibrate else 0))
        found = pixels((as_read(file) for file in files), transform)
        half = len(found) // 2 if calibrate else 0
        if calibrate and len(found) < LEAST:
            raise ValueError(
                f"int8 is calibrated on half of the --images and tried on the others: give {LEAST} "
                f"or more, got {len(found)} that can be read"
            )
        return Trial(found[half:], "given images", seen=found[:half] if half else None)
    if (opened := opened_data(source, model, data)) is not None:
        at = spread(range(len(opened.test)), most)
        tested, kept = readable(opened.test, at, transform)
        labels = torch.as_tensor(opened.test.labels[kept])
        seen = None
        if calibrate:
            chosen = spread(range(len(opened.train)), CALIBRATION)
            seen, _ = readable(opened.train, chosen, transform)
        return Trial(tested, f"test images of {opened.name}", labels, seen)
    if calibrate:
        raise ValueError("int8 is calibrated on images like yours: give --data or --images")
    return Trial(pixels(cuts(), transform), "cut-outs of photographs")


def opened_data(source: Any, model: Any, data: str | None) -> Data | None:
    """The data a user names, or that of the run, if it is still there."""
    recipe = recipe_of(source) if isinstance(source, str | Path) else None
    if data is None:
        if recipe is None or recipe.task not in ("classify", "distill"):
            return None
        try:
            found = open_data(recipe.data, recipe.seed)
        except (OSError, ValueError, ImportError):
            return None
    else:
        found = open_data(data, recipe.seed if recipe and recipe.data == data else 0)
    check_classes(str(source), model, found, "give data with its own classes, or --images")
    return found


def write_tested(recipe: Recipe, folder: Path, most: int = FEW) -> None:
    """Test images of the data that a recipe is trained on, as files."""
    tested = open_data(recipe.data, recipe.seed).test
    folder.mkdir()
    for index in spread(range(len(tested)), most):
        as_rgb(tested.image(index)).save(folder / f"{index:06}.png")


def readable(images: Images, at: Sequence[int], transform: Any) -> tuple[Tensor, list[int]]:
    """Those that can be read, and which they are."""
    found, kept = [], []
    for index in at:
        try:
            found.append(torch.as_tensor(transform(as_rgb(images.image(index)))))
        except BadImage:
            continue
        kept.append(index)
    if not found:
        raise ValueError("no image could be read: `ziggurat data check` says why")
    return torch.stack(found), kept


def as_read(file: str) -> Image.Image | None:
    """An image, or none where there is none to be read."""
    try:
        return read_image(file, file)
    except BadImage:
        return None


def pixels(images: Iterable[Image.Image | None], transform: Any) -> Tensor:
    """All of them as the model takes them."""
    found = [torch.as_tensor(transform(as_rgb(image))) for image in images if image is not None]
    if not found:
        raise ValueError("none of the images can be read")
    return torch.stack(found)


def spread(of: Sequence[Any], most: int) -> list[Any]:
    """At most so many, from all over."""
    count = min(most, len(of))
    return [of[i * len(of) // count] for i in range(count)]


def photographs() -> list[Image.Image]:
    """Those that are here."""
    found = []
    for package, file in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).parent / file
            found += [read_image(path, str(path))] if path.is_file() else []
    if not found:
        raise ValueError("there is no photograph to try the model on: give --images")
    return found


def cuts() -> list[Image.Image]:
    """Each photograph whole, and parts of it."""
    chance = np.random.default_rng(0)
    found = []
    for photo in photographs():
        found.append(photo)
        for _ in range(CUTS - 1):
            side = int(chance.integers(min(photo.size) // 4, min(photo.size)))
            x, y = (int(chance.integers(0, whole - side + 1)) for whole in photo.size)
            found.append(photo.crop((x, y, x + side, y + side)))
    return found


def panned(photo: Image.Image, transform: Any, frames: int) -> Tensor:
    """A clip: the camera goes from one end of the photograph to the other."""
    side = min(photo.size)
    right, down = (whole - side for whole in photo.size)
    shares = np.linspace(0, 1, frames)
    boxes = [(int(right * s), int(down * s)) for s in shares]
    return pixels((photo.crop((x, y, x + side, y + side)) for x, y in boxes), transform)
