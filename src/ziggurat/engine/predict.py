"""Classes of images, in batches, from whatever a user points at."""

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data import ImageNetInfo
from torch import Tensor

from ziggurat.data.images import EXTENSIONS, BadImage, TooLarge, as_rgb, read_image
from ziggurat.engine.backends import fastest, runner
from ziggurat.models.pretrained import from_pretrained, open_model
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import as_bytes, test_transform

LONGEST = 100  # times as long as wide: the thinnest image that is looked at


class Guess(NamedTuple):
    """One class and how likely it is."""

    name: str
    probability: float


class Answer(NamedTuple):
    """What an image shows, the most likely first; or why it could not be read."""

    image: str
    top: list[Guess]
    error: str | None = None


class Classifier:
    """A saved model with its own preprocessing and class names.

    Classifier("runs/digits")(["a.png", "b.png"])

    ``source`` is what ``opened`` takes. It runs on ``backend``, one of ``engine.backends`` or
    ``auto``, the fastest there is here.
    """

    def __init__(
        self, source: str | Path | Any, device: str | None = None, backend: str = "eager"
    ) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = opened(source)
        if not model.num_classes:
            raise ValueError(
                f"{source if isinstance(source, str | Path) else 'the model'} knows no classes: "
                "fine-tune or probe it first (`ziggurat finetune --init ...`)"
            )
        if isinstance(model, SpaceTime):
            raise ValueError("the model is one of clips: take ziggurat.engine.watch.Watcher")
        self.model = model.to(self.device).eval()
        config = model.pretrained_cfg
        self.transform = test_transform(config)
        self.shape: tuple[int, ...] = tuple(config["input_size"])  # (3, H, W)
        self.mean, self.std = (as_bytes(config[key]).to(self.device) for key in ("mean", "std"))
        names = config.get("label_names") or [f"class {i}" for i in range(model.num_classes)]
        self.classes: tuple[str, ...] = tuple(names)
        backend = fastest(self.device) if backend == "auto" else backend
        _, height, width = self.shape
        self.runner = runner(self.model, backend, (height, width))

    def __call__(
        self, images: Iterable[str | Path | Image.Image], top: int = 5, batch: int = 32
    ) -> Iterator[Answer]:
        """An answer for each image, in their order."""
        waiting: list[tuple[str, Tensor | BadImage]] = []
        for number, image in enumerate(images):
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                found = image if isinstance(image, Image.Image) else read_image(image, name)
                waiting.append((name, self.pixels(found, name)))
            except BadImage as error:
                waiting.append((name, error))
            if len(waiting) == batch:
                yield from self.answers(waiting, top)
                waiting = []
        yield from self.answers(waiting, top)

    def pixels(self, image: Image.Image, name: str = "the image") -> Tensor:
        """An image as the model takes it, but in bytes (3, H, W); ``name`` is for the TooLarge.

        The shorter side is scaled to the model's, so that a line of 4000 x 1 would become an image
        of a million columns: what is that thin is refused.
        """
        short, long = sorted(image.size)
        if long > LONGEST * short:
            W, H = image.size
            raise TooLarge(f"{name}: {W} x {H}, more than {LONGEST} times as long as wide")
        return torch.as_tensor(np.asarray(self.transform(as_rgb(image))))

    def normalised(self, pixels: Sequence[Tensor]) -> Tensor:
        """Such images together, as the model takes them: (B, 3, H, W).

        On a CPU by numpy, and ``probabilities`` row by row: what is this small torch would share
        among threads, which wait at full speed for each other whenever others have the cores.
        """
        together = np.stack(list(pixels))
        if self.mean.device.type != "cpu":
            return (torch.from_numpy(together).to(self.device).float() - self.mean) / self.std
        images = together - self.mean.numpy()
        images /= self.std.numpy()
        return torch.from_numpy(images)

    def probabilities(self, pixels: Sequence[Tensor]) -> Tensor:
        """Those of all classes for each of such images, computed together: (B, classes)."""
        return torch.stack([row.softmax(0) for row in self.runner(self.normalised(pixels)).cpu()])

    def guesses(self, probabilities: Tensor, top: int) -> list[Guess]:
        """The likeliest classes of one image."""
        best = probabilities.topk(min(top, len(self.classes)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Guess(self.classes[i], probability) for i, probability in pairs]

    def answers(
        self, waiting: Sequence[tuple[str, Tensor | BadImage]], top: int
    ) -> Iterator[Answer]:
        """One batch."""
        pixels = [found for _, found in waiting if not isinstance(found, BadImage)]
        rows = iter(self.probabilities(pixels) if pixels else ())
        for name, found in waiting:
            if isinstance(found, BadImage):
                yield Answer(name, [], str(found))
            else:
                yield Answer(name, self.guesses(next(rows), top))


def opened(source: str | Path | Any) -> Any:
    """A model at hand, a folder's or a hub's, or one by its name and weights.

    The last as ``open_model`` takes them: ``timm/resnet50:published``, ``nest_tiny:FILE``,
    ``timm/NAME:package:NAME``.
    """
    if not isinstance(source, str | Path):
        return source
    name, colon, weights = str(source).partition(":")
    if Path(source).exists() or not colon:
        return from_pretrained(source)
    model = open_model(name, weights)
    if model.num_classes == 1000 and not model.pretrained_cfg.get("label_names"):
        model.pretrained_cfg["label_names"] = imagenet_names()
    return model


def imagenet_names() -> list[str]:
    """The first name of each of ImageNet's classes, or all of them where two share the first."""
    told = ImageNetInfo().label_descriptions()
    first = [names.split(",")[0] for names in told]
    return [own if first.count(own) == 1 else names for own, names in zip(first, told, strict=True)]


def predict(
    source: str | Path | Any,
    images: Sequence[str | Path | Image.Image] | str | Path | Image.Image,
    top: int = 5,
    batch: int = 32,
    backend: str = "eager",
) -> list[Answer]:
    """The likeliest classes of each image, by a saved model (or one at hand)."""
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    return list(Classifier(source, backend=backend)(images, top, batch))


def files_of(
    words: Sequence[str], extensions: Collection[str] = EXTENSIONS, kind: str = "image"
) -> list[str]:
    """Image files of paths, folders (all below them) and patterns, in a stable order."""
    found: list[str] = []
    for word in words:
        path = Path(word)
        if path.is_dir():
            inside = sorted(f for f in path.rglob("*") if f.suffix[1:].lower() in extensions)
            if not inside:
                raise ValueError(f"{word} has no {kind} in it")
            found += map(str, inside)
        elif path.exists():
            found.append(word)
        else:
            matches = sorted(glob.glob(word, recursive=True))
            if not matches:
                raise FileNotFoundError(f"there is no {kind}, folder or pattern {word!r}")
            found += [match for match in matches if Path(match).is_file()]
    return found
