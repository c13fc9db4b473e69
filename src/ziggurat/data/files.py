"""Image files in folders; labels, and which images are held out, of every kind of set.

Where data does not say which images are for testing, a hash of each one's path does: the same on
every machine, whatever the order of the listing, and still the same when files are added.
"""

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ziggurat.data.images import EXTENSIONS, Data, Encoded, Images, bad_image, listed

TEST_SPLITS = ("val", "validation", "test")
HELD_OUT = 0.1
MOST_HELD_OUT = 0.25  # of images without labels
MOST_CLASSES = 1_000_000


def cache() -> Path:
    """The folder of all that can be fetched or made again."""
    return Path(os.environ.get("ZIGGURAT_CACHE") or Path.home() / ".cache" / "ziggurat")


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at ``path`` once it is complete, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as part:
        try:
            yield part.file
            part.flush()
            os.fsync(part.fileno())
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


class Texts:
    """Many strings in two arrays: workers share them, where a list is copied as it is read."""

    def __init__(self, texts: Iterable[str]) -> None:
        parts = [os.fsencode(text) for text in texts]
        self.joined = np.frombuffer(b"".join(parts), np.uint8)
        self.ends = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[str]:
        """All of them."""
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> str:
        """One of them."""
        first, last = self.ends[index], self.ends[index + 1]
        return os.fsdecode(self.joined[first:last].tobytes())


class ImageFiles:
    """Image files below one folder, whatever is known of them."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root, self.paths = root, Texts(paths)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.paths)

    def order(self, generator: torch.Generator) -> Tensor:
        """A permutation of all indices for one epoch."""
        return torch.randperm(len(self), generator=generator)

    def name(self, index: int) -> str:
        """An image's path."""
        return str(self.root / self.paths[index])

    def contents(self, index: int) -> bytes:
        """An image file's bytes; raises BadImage."""
        name = self.name(index)
        with bad_image(name):
            return Path(name).read_bytes()


class ClassFiles(ImageFiles, Images):
    """Files of one kind below one folder, with one class each."""

    extensions: ClassVar[frozenset[str]]

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
        ignored: Mapping[str, int] | None = None,
    ) -> None:
        Images.__init__(self, labels, classes, ignored)
        ImageFiles.__init__(self, root, paths)


class Files(ClassFiles, Encoded):
    """Image files below one folder, with one class each."""

    extensions = EXTENSIONS


# Labels and splits.


def place(key: str) -> float:
    """A number in 0..1 that belongs to a string."""
    digest = blake2b(os.fsencode(key), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def held_out(
    keys: Sequence[str], labels: np.ndarray, seed: int | None, labelled: bool = True
) -> np.ndarray:
    """Which samples are for testing: about a tenth of each class, each by its own key alone.

    A class of two or more has at least one on either side, so the one with the lowest hash is
    always tested and the one with the highest never. Without a seed all are for testing.

    Not ``labelled``: the labels, if there are any, still split, so that no image is learned from
    that a classifier would be tested on; only where they are too many to be classes, as a folder
    for each image or two, it is a tenth of all.
    """
    if seed is None:
        return np.ones(len(keys), bool)
    places = np.array([place(f"{seed}/{key}") for key in keys])
    test = places < HELD_OUT
    order = np.lexsort((places, labels))
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    test[order[first]] = True
    test[order[first + counts - 1]] = False
    if not labelled and not 0 < test.sum() <= MOST_HELD_OUT * len(test):
        return held_out(keys, np.zeros_like(labels), seed)
    return test


def numbered(
    words: Sequence[str], names: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names, and for each word its number: words are names or, all of them, numbers."""
    distinct = set(words)
    if names and distinct <= set(names):
        return names, numbers(words, names)
    if all(re.fullmatch(r"0|-?[1-9]\d*", word) for word in distinct):  # "007" is a name
        labels = np.array([int(word) for word in words], dtype=np.int64)
        if np.abs(labels).max(initial=0) >= MOST_CLASSES:
            raise ValueError(
                f"{where} has label {labels[np.abs(labels).argmax()]}: a label is the number of "
                "its class, counted from 0, or its name"
            )
        return names or counted(labels), labels
    if names:
        strange = sorted(distinct - set(names))
        raise ValueError(f"{where} has {listed(strange)}, which its class names lack")
    return grouped(words)


def grouped(words: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct words, sorted, and for each word its number."""
    names = tuple(sorted(set(words)))
    return names, numbers(words, names)


def numbers(words: Sequence[str], names: tuple[str, ...]) -> np.ndarray:
    """The place of each word among the names."""
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[word] for word in words], dtype=np.int64)


def counted(labels: np.ndarray) -> tuple[str, ...]:
    """Names for classes that have only numbers."""
    return tuple(str(i) for i in range(int(labels.max(initial=-1)) + 1))


def class_names(folder: Path) -> tuple[str, ...] | None:
    """What ``classes.txt`` or ``classes.json`` says, if there is one."""
    if (file := folder / "classes.txt").is_file():
        return tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    if (file := folder / "classes.json").is_file():
        return names_in(file.read_text(), str(file))
    return None


def names_in(text: str, where: str) -> tuple[str, ...]:
    """Class names of a JSON list, or of an object that gives each name its number."""
    try:
        found: Any = json.loads(text)
        if isinstance(found, dict) and sorted(found.values()) == list(range(len(found))):
            found = sorted(found, key=found.__getitem__)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{where} must be a list of class names, or an object of name: number")
    return tuple(found)


def split_data(
    part: Callable[[np.ndarray], Images], test: np.ndarray, classes: tuple[str, ...], name: str
) -> Data:
    """Two sets, each made by ``part`` of the indices that ``test`` gives it."""
    train = part(np.flatnonzero(~test))
    return Data(train, part(np.flatnonzero(test)), classes, None, None, None, name)


# Folders.


def folder(
    path: Path,
    seed: int | None,
    strict: bool = True,
    labelled: bool = True,
    kind: type[ClassFiles] = Files,
) -> Data:
    """``train/`` and ``val/`` of class folders, or class folders of which a tenth is held out.

    Not ``labelled``: images may lie anywhere, and ``train/`` may be alone.
    """
    names = folders_in(path)
    other = next((split for split in TEST_SPLITS if split in names), None)
    if "train" in names and other:
        return two_folders(path, other, strict, labelled, kind)
    name = path.resolve().name
    if names == {"train"} and not labelled:
        path = path / "train"
        names = folders_in(path)
    elif names == {"train"}:
        raise ValueError(
            f"{path} has train/ but no val/, validation/ or test/: add one, or give "
            f"{path / 'train'} to have a tenth of it held out"
        )
    if not names and labelled:
        raise ValueError(f"{path} holds no folders: put the {kind.noun} of each class in a folder")
    paths, owners, ignored = scanned(path, labelled, kind.extensions)
    classes = tuple(sorted(names if labelled else names | {""}))  # "": in no folder
    labels = numbers(owners, classes)
    test = held_out(paths, labels, seed, labelled)

    def part(of: np.ndarray) -> Images:
        return kind(path, [paths[i] for i in of], labels[of], classes, ignored)

    data = split_data(part, test, classes, name)
    data.test.ignored.clear()  # counted once
    return data


def two_folders(
    path: Path, other: str, strict: bool, labelled: bool, kind: type[ClassFiles]
) -> Data:
    """One folder of class folders to train on, another to test on."""
    own = {split: folders_in(path / split) for split in ("train", other)}
    if strict and labelled and own["train"] != own[other]:
        differences = [
            f"{listed(sorted(own[a] - own[b]))} only in {a}/"
            for a, b in (("train", other), (other, "train"))
            if own[a] - own[b]
        ]
        raise ValueError(
            f"{path}: train/ and {other}/ must have the same class folders, but has "
            f"{' and '.join(differences)}"
        )
    names = own["train"] | own[other]
    classes = tuple(sorted(names if labelled else names | {""}))
    sets = []
    for split in ("train", other):
        paths, owners, ignored = scanned(path / split, labelled, kind.extensions)
        sets.append(kind(path / split, paths, numbers(owners, classes), classes, ignored))
    return Data(sets[0], sets[1], classes, None, None, None, path.resolve().name)


def folders_in(path: Path) -> set[str]:
    """Names of the folders in a folder, hidden ones left out."""
    return {entry.name for entry in os.scandir(path) if entry.name[0] != "." and entry.is_dir()}


def scanned(
    root: Path, labelled: bool, extensions: frozenset[str]
) -> tuple[list[str], list[str], Counter[str]]:
    """Files of a kind, sorted; the folder below ``root`` that each is in; what was passed over.

    If ``labelled`` that folder is the class, else it may be none ("").
    """
    ignored: Counter[str] = Counter()
    found: list[str] = []
    if not labelled:
        found.extend(below(str(root), "", frozenset(), ignored, extensions))
    else:
        for entry in os.scandir(root):
            if entry.name[0] == ".":
                ignored["hidden"] += 1
            elif entry.is_dir():
                found.extend(below(entry.path, f"{entry.name}/", frozenset(), ignored, extensions))
            else:
                ignored["outside class folders"] += 1
    found.sort()
    return found, [path[: max(path.find("/"), 0)] for path in found], ignored


def below(
    folder: str,
    prefix: str,
    above: frozenset[tuple[int, int]],
    ignored: Counter[str],
    extensions: frozenset[str] = EXTENSIONS,
) -> Iterator[str]:
    """Files of a kind at any depth, links followed; a link to a folder it lies in is not."""
    here = os.stat(folder)
    if (here.st_dev, here.st_ino) in above:
        return
    for entry in os.scandir(folder):
        extension = os.path.splitext(entry.name)[1]
        if entry.name[0] == ".":
            ignored["hidden"] += 1
        elif entry.is_dir():
            within = above | {(here.st_dev, here.st_ino)}
            yield from below(entry.path, f"{prefix}{entry.name}/", within, ignored, extensions)
        elif extension[1:].lower() in extensions:
            yield f"{prefix}{entry.name}"
        else:
            ignored[extension or "no extension"] += 1
