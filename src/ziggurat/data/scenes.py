"""Images with a class for every pixel: a map of ids beside each image.

    "camvid/" -> open_scenes -> SceneData(train, test, classes) -> train.image(7), train.labels(7)

A map is a grey or palette PNG of the image's size; ``VOID`` in it is no class at all.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ziggurat.data.files import TEST_SPLITS, ImageFiles, Texts, below, class_names, held_out
from ziggurat.data.images import BadImage, bad_image, decoded
from ziggurat.data.sized import BACK, header, other_size, sized

VOID = 255
MOST_CLASSES = 254
SCANNED = 200  # maps that are read for their ids where nothing names the classes
MAPS = ("masks", "labels", "annotations")
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip
LAYOUT = (
    "train/ and val/ with images/ and masks/ each (or images/ and masks/ with train/ and val/ "
    "each, or images/ and masks/ alone), ADE20K's or Pascal VOC's own"
)


class BadIds(BadImage):
    """A map with ids that are no classes."""


class Scenes(ImageFiles):
    """Images with a map of classes each."""

    def __init__(
        self,
        root: Path,
        pairs: Sequence[tuple[str, str]],
        classes: tuple[str, ...],
        from_one: bool = False,
    ) -> None:
        super().__init__(root, [image for image, _ in pairs])
        self.maps = Texts(found for _, found in pairs)
        self.classes = classes
        self.from_one = from_one  # ids count from 1, and 0 is void, as in ADE20K

    def map_name(self, index: int) -> str:
        """The path of its map."""
        return str(self.root / self.maps[index])

    def size(self, index: int) -> tuple[int, int]:
        """Width and height of the map; raises BadImage."""
        name = self.map_name(index)
        size, turn = header(Path(name), name)
        return (size[1], size[0]) if turn in BACK else size

    def image(self, index: int) -> Image.Image:
        """An image in RGB, of its map's size; raises BadImage."""
        return sized(self.contents(index), self.name(index), self.size(index))

    def labels(self, index: int) -> np.ndarray:
        """The class of each pixel (H, W) as uint8, or VOID; raises BadImage."""
        name, image = self.map_name(index), self.name(index)
        ids = read_map(name)
        H, W = ids.shape
        size, turn = header(Path(image), image)
        if size != (W, H) and not (turn in BACK and size == (H, W)):
            raise BadImage(other_size(image, size, (W, H)))
        return labelled(ids, len(self.classes), self.from_one, name)


class SceneData(NamedTuple):
    """What is segmented, to train and to test on."""

    train: Scenes
    test: Scenes
    classes: tuple[str, ...]
    mean: None
    std: None
    name: str


# A map.


def read_map(name: str) -> np.ndarray:
    """The ids (H, W) that a file holds, as whole numbers of any kind."""
    with bad_image(name):
        image = decoded(Path(name), name)
        if image.format in ("JPEG", "MPO"):
            raise BadImage(f"{name}: a JPEG, which changes the ids of a label map: take PNG")
        if image.mode not in ("1", "L", "P", "I") and not image.mode.startswith("I;16"):
            raise BadImage(
                f"{name}: an image of mode {image.mode}, but label maps hold ids, not colours: "
                "take 8-bit grey or palette PNG"
            )
        ids = np.asarray(image)
    return ids.astype(np.uint8) if ids.dtype == bool else ids


def labelled(ids: np.ndarray, classes: int, from_one: bool, name: str) -> np.ndarray:
    """Ids as classes from 0, or VOID."""
    first = int(from_one)
    void = ids == VOID
    if from_one:
        void |= ids == 0
    wrong = ((ids < first) | (ids >= classes + first)) & ~void
    if wrong.any():
        raise BadIds(
            f"{name}: id {ids[wrong][0]}, but there are {classes} classes, {first} to "
            f"{classes + first - 1}, and {'0 or ' if from_one else ''}{VOID} for none"
        )
    labels = ids.astype(np.uint8) - np.uint8(first)
    labels[void] = VOID
    return labels


# Opening.


def open_scenes(spec: str | Path, seed: int | None = 0) -> SceneData:
    """Open a folder of images and maps: a plain one, ADE20K's or Pascal VOC's.

    Where it has no splits a tenth is held out; ``seed`` decides which, and without one (None) all
    of it is for testing.
    """
    if str(spec) == "ade20k":
        raise ValueError(
            "ade20k is not fetched for you: unpack ADEChallengeData2016.zip of MIT's scene parsing "
            "benchmark and give `--data DIR`, a folder with images/ and annotations/"
        )
    path = Path(spec).expanduser()
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}: give one with {LAYOUT}")
    if is_voc(path):
        train, test = (list(voc_pairs(path, split)) for split in ("train", "val"))
    elif folders := split_folders(path):
        train, test = (pairs(path, images, maps) for images, maps in folders)
    elif maps := map_folder(path):
        whole = pairs(path, path / "images", maps)
        held = held_out([image for image, _ in whole], np.zeros(len(whole), int), seed)
        train = [pair for pair, out in zip(whole, held, strict=True) if not out]
        test = [pair for pair, out in zip(whole, held, strict=True) if out]
    else:
        raise ValueError(f"{path} holds no label maps: it must have {LAYOUT}")
    for split, found in (("train", train), ("test", test)):
        if not found and (split == "test" or seed is not None):
            raise ValueError(f"{path} has no images to {split} on")
    ade = (path / "images" / "training").is_dir()
    classes = names_of(path, train + test, ade)
    sets = [Scenes(path, found, classes, from_one=ade) for found in (train, test)]
    return SceneData(sets[0], sets[1], classes, None, None, path.resolve().name)


def is_scenes(path: Path) -> bool:
    """Whether a folder looks as ``open_scenes`` takes it."""
    return path.is_dir() and bool(is_voc(path) or split_folders(path) or map_folder(path))


def map_folder(path: Path) -> Path | None:
    """The folder of maps that is beside ``images/``."""
    if not (path / "images").is_dir():
        return None
    return next((path / name for name in MAPS if (path / name).is_dir()), None)


def split_folders(path: Path) -> list[tuple[Path, Path]]:
    """Folders of images and of maps: to train on, to test on; empty where there are no splits."""
    for test in TEST_SPLITS:
        both = [(path / split / "images", map_folder(path / split)) for split in ("train", test)]
        if all(maps for _, maps in both):
            return [(images, maps) for images, maps in both if maps]
    if maps := map_folder(path):
        for train, test in (("training", "validation"), *(("train", t) for t in TEST_SPLITS)):
            tops = (path / "images", maps)
            if all((top / split).is_dir() for top in tops for split in (train, test)):
                return [(tops[0] / split, tops[1] / split) for split in (train, test)]
    return []


def pairs(root: Path, images: Path, maps: Path) -> list[tuple[str, str]]:
    """Images and maps of the same name, as paths below ``root``."""
    own, other = stems(images), stems(maps)
    for here, there, which in ((own, maps, other), (other, images, own)):
        if lacking := sorted(here.keys() - which.keys()):
            kind = "label map" if which is other else "image"
            raise ValueError(
                f"{(images if which is other else maps) / here[lacking[0]]} has no {kind} in "
                f"{there} ({len(lacking)} such of {len(here)})"
            )
    tops = [folder.relative_to(root) for folder in (images, maps)]
    return [(str(tops[0] / own[stem]), str(tops[1] / other[stem])) for stem in sorted(own)]


def stems(folder: Path) -> dict[str, str]:
    """Image files below a folder, by their paths without the last suffix."""
    ignored: Counter[str] = Counter()
    found: dict[str, str] = {}
    for path in sorted(below(str(folder), "", frozenset(), ignored)):
        stem = os.path.splitext(path)[0]
        if stem in found:
            raise ValueError(f"{folder} has both {found[stem]} and {path}: leave one of them there")
        found[stem] = path
    if not found:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in ignored.items())
        raise ValueError(f"{folder} holds no image files{f', only {kinds}' if kinds else ''}")
    return found


def is_voc(path: Path) -> bool:
    """Whether a folder is laid out as Pascal VOC's."""
    return (path / "JPEGImages").is_dir() and (path / "SegmentationClass").is_dir()


def voc_pairs(path: Path, split: str) -> Iterator[tuple[str, str]]:
    """The images that a split lists, and their maps."""
    file = path / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not file.is_file():
        raise ValueError(f"{path} has no {file.relative_to(path)}, which lists images to {split}")
    names = file.read_text().split()
    found = [stems(path / folder) for folder in ("JPEGImages", "SegmentationClass")]
    for folder, own in zip(("JPEGImages", "SegmentationClass"), found, strict=True):
        if lacking := [name for name in names if name not in own]:
            raise ValueError(
                f"{file} lists {lacking[0]}, which {path / folder} lacks ({len(lacking)} such of "
                f"{len(names)})"
            )
    for name in names:
        yield f"JPEGImages/{found[0][name]}", f"SegmentationClass/{found[1][name]}"


# Classes.


def names_of(path: Path, found: list[tuple[str, str]], ade: bool) -> tuple[str, ...]:
    """What the classes are called; numbers, where nothing says so."""
    names = class_names(path)
    if names is None and ade:
        names = ade_names(path)
    if names is None and is_voc(path):
        names = VOC
    if names is None:
        names = counted(path, [pair[1] for pair in found])
    if not 1 < len(names) <= MOST_CLASSES:
        raise ValueError(f"{path} has {len(names)} classes: 2 to {MOST_CLASSES} can be told apart")
    return names


def ade_names(path: Path) -> tuple[str, ...]:
    """The last column of ``objectInfo150.txt`` below its head, or the numbers to 150."""
    file = path / "objectInfo150.txt"
    if not file.is_file():
        return tuple(str(i) for i in range(1, 151))
    rows = [line.split("\t") for line in file.read_text().splitlines() if line.strip()]
    return tuple(row[-1].strip() for row in rows if row[0].strip().isdigit())


def counted(path: Path, maps: list[str]) -> tuple[str, ...]:
    """Numbers up to the greatest id of some maps."""
    most, wrong = -1, None
    chosen = np.linspace(0, len(maps) - 1, min(len(maps), SCANNED)).astype(int)
    for at in chosen:
        name = str(path / maps[at])
        try:
            ids = read_map(name)
        except BadImage as error:  # read again, and refused, when its turn comes
            wrong = wrong or error
            continue
        most = max(most, int(ids[ids != VOID].max(initial=0)))
        if most >= MOST_CLASSES:
            raise ValueError(
                f"{name}: id {most}, but without a classes.txt ids count classes from 0, of which "
                f"{MOST_CLASSES} can be told apart; {VOID} is for none"
            )
    if wrong and most < 0:
        raise wrong
    if most < 1:
        raise ValueError(
            f"{path}: its maps hold no id but 0 and {VOID}, which is no class: take "
            "the ids 0 and 1 for two classes"
        )
    return tuple(str(i) for i in range(most + 1))
