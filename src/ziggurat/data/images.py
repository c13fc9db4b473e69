"""Sets of images: how a file becomes pixels, what a set is, what ``--data`` takes.

    "pets/" -> open_data -> Data(train, test, classes) -> train.image(7) -> 8-bit RGB
    "photos/" -> open_images -> the same, whether there are classes or not

Every kind of set gives the same: a label, a name and an image for each index, so that tasks, the
sampler and ``ziggurat data check`` know none of the kinds.
"""

import difflib
import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

LEAST = 4  # pixels a side of an image that can be pre-trained on
MAX_PIXELS = 178_956_970  # where PIL sees an attack on the memory, too
SCANS = 16  # passes over all pixels that a JPEG may have, at most; usual are 1 and 10
# Not all that PIL knows: EPS would start Ghostscript, TGA takes some texts for pictures.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "PPM", "JPEG2000", "AVIF")
EXTENSIONS = frozenset({
    "jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib", "tif", "tiff", "mpo",
    "ppm", "pgm", "pbm", "pnm", "jp2", "avif",
})  # fmt: skip
NAMES = (
    "digits", "cifar10", "cifar100", "fashion-mnist", "pets", "cars", "imagenet", "imagenet21k",
)  # fmt: skip
UNLABELLED = ("image",)  # the one class of images whose labels are missing, or not wanted


class BadImage(ValueError):
    """An image that cannot be read; the message is ``path: reason``."""


class TooLarge(BadImage):
    """An image of more pixels than are taken, or that would have as many once scaled."""


# A file to pixels.


def read_image(
    file: str | Path | bytes | BinaryIO, name: str, most: int = MAX_PIXELS
) -> Image.Image:
    """Decode a path, bytes or an open file as an 8-bit RGB image; ``name`` is for the BadImage.

    Turned upright as its EXIF says; of an animation the first frame. What is transparent is laid
    on white, as most pages show it: the colours stored under it were never meant to be seen.
    """
    with bad_image(name):
        return as_rgb(decoded(file, name, most))


@contextmanager
def bad_image(name: str) -> Iterator[None]:
    """Whatever goes wrong with an image, as a BadImage in one line."""
    try:
        yield
        return
    except BadImage:
        raise
    except UnidentifiedImageError:
        reason = "not an image of a kind that can be read"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise TooLarge(f"{name}: more than {MAX_PIXELS / 1e6:.0f} million pixels") from None
    except Exception as error:  # damaged bytes make decoders raise nearly anything
        said = getattr(error, "strerror", None) or str(error).strip()
        reason = said.splitlines()[0] if said else type(error).__name__
    raise BadImage(f"{name}: {reason}")


def decoded(file: str | Path | bytes | BinaryIO, name: str, most: int = MAX_PIXELS) -> Image.Image:
    """An upright image in the mode it was stored in."""
    with streamed(file) as stream:
        if not stream.read(1):
            raise BadImage(f"{name}: the file is empty")
        image = Image.open(stream, formats=known_formats())
        W, H = image.size
        if most < W * H:
            raise TooLarge(f"{name}: {W} x {H}, more than {most / 1e6:.3g} million pixels")
        if not W * H:
            raise BadImage(f"{name}: {W} x {H}, no pixels at all")
        check_work(image, stream, name, most)
        image.load()
        with suppress(Exception):  # EXIF that is damaged says nothing
            ImageOps.exif_transpose(image, in_place=True)
    return image


def check_work(image: Image.Image, stream: BinaryIO, name: str, most: int) -> None:
    """Refuse a file whose decoder would take or do more than so many pixels ask for.

    A JPEG may go over its pixels again and again, a TIFF be cut into tiles larger than itself.
    """
    W, H = image.size
    tags = getattr(image, "tag_v2", {})
    tile = tags.get(322, 0) * tags.get(323, 0)  # width and height
    if tile > most:
        raise TooLarge(f"{name}: tiles of more than {most / 1e6:.3g} million pixels")
    if image.format in ("JPEG", "MPO"):
        at = stream.tell()
        stream.seek(0)
        scans = stream.read().count(b"\xff\xda")  # never among its pixels, where ff is ff 00
        stream.seek(at)
        if scans * W * H > SCANS * most:
            raise TooLarge(f"{name}: {scans} passes over {W} x {H} pixels")


def too_small(name: str, size: tuple[int, int], least: int) -> str:
    """What to say of an image with fewer pixels a side than there must be."""
    return f"{name}: {size[0]} x {size[1]}, smaller than {least}"


def streamed(file: str | Path | bytes | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Something to read from; a file that came open stays open."""
    if isinstance(file, bytes):
        return BytesIO(file)
    if isinstance(file, str | Path):
        return open(file, "rb")
    return nullcontext(file)


@functools.cache
def known_formats() -> list[str]:
    """Those of FORMATS that this build of PIL can read."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def as_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB of any mode."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = as_grey(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def as_grey(image: Image.Image) -> Image.Image:
    """8-bit grey of deeper grey, which PIL's own ``convert`` clips at 255.

    Integers are of 16 bits, real numbers of 0..1, 0..255 or 0..65535, the first that holds them
    all; those that fit none are stretched from their least to their greatest.
    """
    values = np.asarray(image).astype(np.float32)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all():
        raise ValueError("pixels that are not finite numbers")
    for full in (1, 255, 65535) if image.mode == "F" else (65535,):
        if low >= 0 and high <= full:
            low, high = 0, full
            break
    scaled = (values - low) * (255 / ((high - low) or 1))
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


# Sets of images.


class Images(ABC):
    """Images with one class each, read one at a time, in any order, by any process."""

    noun: ClassVar[str] = "images"

    def __init__(
        self,
        labels: np.ndarray,
        classes: tuple[str, ...],
        ignored: Mapping[str, int] | None = None,
    ) -> None:
        self.labels = labels.astype(np.int32)  # (N,)
        self.classes = classes
        self.ignored = dict(ignored or {})  # how many files were passed over, by kind

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def label(self, index: int) -> int:
        """The number of an image's class."""
        return int(self.labels[index])

    @abstractmethod
    def name(self, index: int) -> str:
        """Where an image is, for a person."""

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """An image in RGB; raises BadImage."""

    def order(self, generator: torch.Generator) -> Tensor:
        """A permutation of all indices for one epoch."""
        return torch.randperm(len(self), generator=generator)


class Encoded(Images):
    """Images that are files, alone or in archives."""

    @abstractmethod
    def contents(self, index: int) -> bytes:
        """A file's bytes; raises BadImage."""

    def image(self, index: int) -> Image.Image:
        """A file as ``read_image`` decodes it."""
        return read_image(self.contents(index), self.name(index))


class Arrays(Images):
    """Images of one size in one array, in memory or mapped from a file."""

    def __init__(
        self, pixels: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], called: str
    ) -> None:
        super().__init__(labels, classes)
        self.pixels = pixels  # (N, H, W, 3) or (N, H, W) uint8
        self.called = called

    def name(self, index: int) -> str:
        """As ``cifar10 test 17``."""
        return f"{self.called} {index}"

    def image(self, index: int) -> Image.Image:
        """A row of the array."""
        return Image.fromarray(np.asarray(self.pixels[index])).convert("RGB")

    def __getstate__(self) -> dict[str, Any]:
        """A mapped file is mapped again where this is unpickled, not sent."""
        state = dict(self.__dict__)
        if isinstance(self.pixels, np.memmap):
            mapped = self.pixels
            state["pixels"] = (mapped.filename, mapped.dtype, "r", mapped.offset, mapped.shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Undo ``__getstate__``."""
        if isinstance(state["pixels"], tuple):
            state["pixels"] = np.memmap(*state["pixels"])
        self.__dict__.update(state)


class Data(NamedTuple):
    """What a classifier is trained and tested on."""

    train: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, float, float] | None  # of pixels in 0..1; None: not known
    std: tuple[float, float, float] | None
    size: int | None  # pixels a side, where all images are squares of one size
    name: str


def mistakes(data: Data, trained: bool = True) -> list[str]:
    """What makes data unfit for training, or for testing alone, in words."""
    found = []
    for split, images in (("training", data.train), ("test", data.test)):
        if not len(images) and (trained or split == "test"):
            found.append(f"{data.name} has no {split} {images.noun}")
        wrong = np.flatnonzero((images.labels < 0) | (images.labels >= len(data.classes)))
        if len(wrong):
            found.append(
                f"{images.name(int(wrong[0]))} has label {images.label(int(wrong[0]))}, but there "
                f"are {len(data.classes)} classes, 0 to {len(data.classes) - 1} "
                f"({len(wrong)} such {split} {images.noun})"
            )
    unseen = np.setdiff1d(data.test.labels, data.train.labels)
    names = [data.classes[i] for i in unseen if 0 <= i < len(data.classes)]
    if names and len(data.train):
        found.append(f"{listed(names)} in {data.name}: test {data.test.noun}, but none to train on")
    return found


def listed(names: list[str]) -> str:
    """``class 'a'``, or ``classes 'a', 'b' and 7 more``."""
    shown = ", ".join(repr(name) for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{'class' if len(names) == 1 else 'classes'} {shown}{more}"


# What --data takes.


def open_data(spec: str | Path, seed: int | None = 0) -> Data:
    """Open a set by its name, or a folder, a list, an ``.npz`` or shards by their path.

    ``cifar10:5000`` has that many of its training images, as many of each class.
    A folder holds ``train/`` and ``val/`` (or ``validation/``, ``test/``) of class folders, or
    class folders alone. A list is a ``.csv`` with columns path, label and perhaps split, or a
    ``.txt`` of ``path label`` lines. Shards are tar files: a folder of them, a pattern such as
    ``{train,val}-{0000..0099}.tar``, local or a URL, or a ``shards.txt`` that names them.
    Where the data does not say what is for testing, a tenth is held out; ``seed`` decides which,
    and without one (None) all of it is for testing.
    """
    return checked(opened(spec, seed), seed)


def open_images(spec: str | Path, seed: int | None = 0) -> Data:
    """Open what ``open_data`` opens, or images without classes; all are of one class, "image".

    A folder, or its ``train/`` and ``val/``, holds images at any depth; ``train/`` may be alone. A
    list needs no labels, an ``.npz`` only ``train_images``, a shard's sample only its image. Of
    what has labels, the same is held out as by ``open_data``, unless it is more than a quarter.
    """
    return checked(opened(spec, seed, labelled=False), seed)


def checked(data: Data, seed: int | None) -> Data:
    """Data that is fit for training, or for testing alone without a seed."""
    if wrong := mistakes(data, trained=seed is not None):
        raise ValueError("; ".join(wrong))
    return data


def opened(spec: str | Path, seed: int | None, strict: bool = True, labelled: bool = True) -> Data:
    """``open_data`` before its last checks; not ``strict``: splits may have different classes.

    Not ``labelled``: ``open_images``.
    """
    data = read(str(spec), seed, strict, labelled)
    if labelled:
        return data
    sets = (data.train, data.test)
    if not any(map(len, sets)):
        passed = sum((Counter(images.ignored) for images in sets), Counter[str]())
        kinds = ", ".join(f"{kind} ({count})" for kind, count in passed.items())
        raise ValueError(
            f"{spec} has no images{f', only {kinds}' if kinds else ''}: {forms(labelled)}"
        )
    for images in sets:
        images.labels, images.classes = np.zeros_like(images.labels), UNLABELLED
    return data._replace(classes=UNLABELLED)


def read(text: str, seed: int | None, strict: bool, labelled: bool) -> Data:
    """Whatever kind of set it is."""
    from ziggurat.data import few, files, get, lists, packed, shards  # they build on this file

    path = Path(text).expanduser()
    name, _, count = text.partition(":")
    if name in NAMES and (text == name or count.isdecimal()):  # a folder of that name is ./digits
        data = get.named(name)
        return few.fewer(data, int(count)) if count else data
    if path.is_dir():
        if shards.in_folder(path):
            return shards.sharded(path, seed, labelled)
        return files.folder(path, seed, strict, labelled)
    if path.is_file() and path.suffix == ".npz":
        return packed.packed(path, seed, labelled)
    if path.suffix == ".tar" or shards.is_pattern(text) or shards.is_list(path):
        return shards.sharded(text, seed, labelled)
    if path.is_file() and path.suffix in (".csv", ".txt"):
        return lists.listing(path, seed, labelled)
    raise ValueError(unknown(text, labelled))


def unknown(text: str, labelled: bool) -> str:
    """What to say of a ``--data`` that is none."""
    near = difflib.get_close_matches(text, NAMES, n=1)
    if Path(text).expanduser().exists():
        return f"{text} is not data that can be read: {forms(labelled)}"
    if near:
        return f"no data is called {text!r}: did you mean {near[0]!r}? Else {forms(labelled)}"
    return f"no data is called {text!r}, and there is no such file or folder: {forms(labelled)}"


def forms(labelled: bool) -> str:
    """What ``--data`` takes."""
    return (
        f"take one of {', '.join(NAMES)}, or the path of a folder of "
        f"{'class folders' if labelled else 'images'}, a list (.csv, .txt), an .npz, or shards "
        "(.tar)"
    )
