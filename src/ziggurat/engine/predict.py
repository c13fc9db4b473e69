"""Classes of images, in batches, from whatever a user points at."""

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from ziggurat.data.images import EXTENSIONS, BadImage, as_rgb, read_image
from ziggurat.models.pretrained import from_pretrained
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import as_bytes, test_transform


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
    """

    def __init__(self, source: str | Path | Any, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = from_pretrained(source) if isinstance(source, str | Path) else source
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
        self.mean, self.std = (as_bytes(config[key]).to(self.device) for key in ("mean", "std"))
        names = config.get("label_names") or [f"class {i}" for i in range(model.num_classes)]
        self.classes: tuple[str, ...] = tuple(names)

    def __call__(
        self, images: Iterable[str | Path | Image.Image], top: int = 5, batch: int = 32
    ) -> Iterator[Answer]:
        """An answer for each image, in their order."""
        waiting: list[tuple[str, Any]] = []
        for number, image in enumerate(images):
            name = str(image) if isinstance(image, str | Path) else f"image {number}"
            try:
                opened = image if isinstance(image, Image.Image) else read_image(image, name)
                waiting.append((name, self.transform(as_rgb(opened))))
            except BadImage as error:
                waiting.append((name, error))
            if len(waiting) == batch:
                yield from self.answers(waiting, top)
                waiting = []
        yield from self.answers(waiting, top)

    @torch.inference_mode()
    def answers(self, waiting: Sequence[tuple[str, Any]], top: int) -> Iterator[Answer]:
        """One batch."""
        pixels = [torch.as_tensor(found) for _, found in waiting if not isinstance(found, BadImage)]
        rows: Iterator[tuple[list[int], list[float]]] = iter(())
        if pixels:
            images = (torch.stack(pixels).to(self.device).float() - self.mean) / self.std
            best = self.model(images).float().softmax(1).topk(min(top, len(self.classes)))
            rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        for name, found in waiting:
            if isinstance(found, BadImage):
                yield Answer(name, [], str(found))
                continue
            index, probability = next(rows)
            guesses = zip(index, probability, strict=True)
            yield Answer(name, [Guess(self.classes[i], p) for i, p in guesses])


def predict(
    source: str | Path | Any,
    images: Sequence[str | Path | Image.Image] | str | Path | Image.Image,
    top: int = 5,
    batch: int = 32,
) -> list[Answer]:
    """The likeliest classes of each image, by a saved model (or one at hand)."""
    if isinstance(images, str | Path | Image.Image):
        images = [images]
    return list(Classifier(source)(images, top, batch))


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
