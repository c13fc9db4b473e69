"""Image files in folders or on a list, and whole sets packed in one ``.npz``.

Where data does not say which images are for testing, a hash of each one's path does: the same on
every machine, whatever the order of the listing, and still the same when files are added.
"""

import csv
import json
import os
import re
import struct
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np

from ziggurat.data.images import EXTENSIONS, Arrays, Data, Encoded, Images, bad_image, listed

TEST_SPLITS = ("val", "validation", "test")
HELD_OUT = 0.1
MOST_CLASSES = 1_000_000
KEYS = ("train_images", "train_labels", "test_images", "test_labels")


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


class Files(Encoded):
    """Image files below one folder."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
        ignored: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(labels, classes, ignored)
        self.root = root
        self.paths = Texts(paths)

    def name(self, index: int) -> str:
        """Its path."""
        return str(self.root / self.paths[index])

    def contents(self, index: int) -> bytes:
        """What the file holds."""
        name = self.name(index)
        with bad_image(name):
            return Path(name).read_bytes()


# Labels and splits.


def place(key: str) -> float:
    """A number in 0..1 that belongs to a string."""
    digest = blake2b(os.fsencode(key), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def held_out(keys: Sequence[str], labels: np.ndarray, seed: int | None) -> np.ndarray:
    """Which samples are for testing: about a tenth of each class, each by its own key alone.

    A class of two or more has at least one on either side, so the one with the lowest hash is
    always tested and the one with the highest never. Without a seed all are for testing.
    """
    if seed is None:
        return np.ones(len(keys), bool)
    places = np.array([place(f"{seed}/{key}") for key in keys])
    test = places < HELD_OUT
    order = np.lexsort((places, labels))
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    test[order[first]] = True
    test[order[first + counts - 1]] = False
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
    names = tuple(sorted(distinct))
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


def folder(path: Path, seed: int | None, strict: bool = True) -> Data:
    """``train/`` and ``val/`` of class folders, or class folders of which a tenth is held out."""
    names = folders_in(path)
    other = next((split for split in TEST_SPLITS if split in names), None)
    if "train" in names and other:
        return two_folders(path, other, strict)
    if names == {"train"}:
        raise ValueError(
            f"{path} has train/ but no val/, validation/ or test/: add one, or give "
            f"{path / 'train'} to have a tenth of it held out"
        )
    if not names:
        raise ValueError(f"{path} holds no folders: put the images of each class in a folder")
    paths, owners, ignored = scanned(path)
    classes = tuple(sorted(names))
    labels = numbers(owners, classes)
    test = held_out(paths, labels, seed)

    def part(of: np.ndarray) -> Images:
        return Files(path, [paths[i] for i in of], labels[of], classes, ignored)

    data = split_data(part, test, classes, path.resolve().name)
    data.test.ignored.clear()  # counted once
    return data


def two_folders(path: Path, other: str, strict: bool) -> Data:
    """One folder of class folders to train on, another to test on."""
    own = {split: folders_in(path / split) for split in ("train", other)}
    if strict and own["train"] != own[other]:
        differences = [
            f"{listed(sorted(own[a] - own[b]))} only in {a}/"
            for a, b in (("train", other), (other, "train"))
            if own[a] - own[b]
        ]
        raise ValueError(
            f"{path}: train/ and {other}/ must have the same class folders, but has "
            f"{' and '.join(differences)}"
        )
    classes = tuple(sorted(own["train"] | own[other]))
    sets = []
    for split in ("train", other):
        paths, owners, ignored = scanned(path / split)
        sets.append(Files(path / split, paths, numbers(owners, classes), classes, ignored))
    return Data(sets[0], sets[1], classes, None, None, None, path.resolve().name)


def folders_in(path: Path) -> set[str]:
    """Names of the folders in a folder, hidden ones left out."""
    return {entry.name for entry in os.scandir(path) if entry.name[0] != "." and entry.is_dir()}


def scanned(root: Path) -> tuple[list[str], list[str], Counter[str]]:
    """Image files in class folders, sorted; the class folder of each; what was passed over."""
    ignored: Counter[str] = Counter()
    found: list[str] = []
    for entry in os.scandir(root):
        if entry.name[0] == ".":
            ignored["hidden"] += 1
        elif entry.is_dir():
            found.extend(below(entry.path, entry.name, frozenset(), ignored))
        else:
            ignored["outside class folders"] += 1
    found.sort()
    return found, [path.split("/", 1)[0] for path in found], ignored


def below(
    folder: str, prefix: str, above: frozenset[tuple[int, int]], ignored: Counter[str]
) -> Iterator[str]:
    """Image files at any depth, links followed; a link to a folder it lies in is not."""
    here = os.stat(folder)
    if (here.st_dev, here.st_ino) in above:
        return
    for entry in os.scandir(folder):
        extension = os.path.splitext(entry.name)[1]
        if entry.name[0] == ".":
            ignored["hidden"] += 1
        elif entry.is_dir():
            within = above | {(here.st_dev, here.st_ino)}
            yield from below(entry.path, f"{prefix}/{entry.name}", within, ignored)
        elif extension[1:].lower() in EXTENSIONS:
            yield f"{prefix}/{entry.name}"
        else:
            ignored[extension or "no extension"] += 1


# Lists.


def listing(path: Path, seed: int | None) -> Data:
    """A ``.csv`` with path, label and perhaps split, or a ``.txt`` of ``path label`` lines."""
    rows = list(csv_rows(path) if path.suffix == ".csv" else txt_rows(path))
    if not rows:
        raise ValueError(f"{path} lists no images")
    paths, words, splits = map(list, zip(*rows, strict=True))
    classes, labels = numbered(words, class_names(path.parent), str(path))
    if any(splits):
        other = next((split for split in TEST_SPLITS if split in splits), None)
        rows = [row for row in rows if row[2] in ("train", other)]  # one to test on, as of folders
        paths, words, splits = map(list, zip(*rows, strict=True))
        classes, labels = numbered(words, class_names(path.parent), str(path))
        test = np.array([split != "train" for split in splits])
    else:
        test = held_out(paths, labels, seed)

    def part(of: np.ndarray) -> Images:
        return Files(path.parent, [paths[i] for i in of], labels[of], classes)

    return split_data(part, test, classes, path.stem)


def csv_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Path, label and split ("" where there is no such column) of each line."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        if not {"path", "label"} <= columns.keys():
            raise ValueError(
                f"{path} needs a first line that names its columns: path, label and perhaps split; "
                f"got {', '.join(columns) or 'nothing'}"
            )
        for row in reader:
            image, label, split = ((row.get(columns.get(name, "")) or "").strip()
                                   for name in ("path", "label", "split"))  # fmt: skip
            where = f"{path} line {reader.line_num}"
            if not image or not label:
                raise ValueError(f"{where} has no {'label' if image else 'path'}")
            if "split" in columns and split not in ("train", *TEST_SPLITS):
                raise ValueError(
                    f"{where} has split {split!r}: it must be train, {', '.join(TEST_SPLITS)}"
                )
            yield image, label, split


def txt_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Path and label of each line; the path may have spaces, the label not."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            words = line.rsplit(maxsplit=1)
            if len(words) == 1:
                raise ValueError(f"{path} line {number} must be `path label`, got {line.strip()!r}")
            if words:
                yield words[0].strip(), words[1], ""


# One array for each split.


def save_npz(
    path: str | Path,
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
    classes: Sequence[str] = (),
) -> Path:
    """Pack (N, H, W, 3) or (N, H, W) bytes and their labels as ``--data`` takes them.

    Not compressed, so that images are mapped from the file: workers share them, and a set may be
    larger than the memory.
    """
    path = Path(path)
    arrays = dict(zip(KEYS, (train_images, train_labels, test_images, test_labels), strict=True))
    if classes:
        arrays["classes"] = np.array(classes, dtype=np.str_)
    with written_whole(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its allow_pickle is no array
    return path


def packed(path: Path) -> Data:
    """What ``save_npz`` wrote, or another ``.npz`` with the same arrays."""
    try:
        with zipfile.ZipFile(path) as file:
            present = {name.removesuffix(".npy") for name in file.namelist()}
            if missing := [key for key in KEYS if key not in present]:
                raise ValueError(f"{path} has no {', '.join(missing)}: `save_npz` writes them all")
            arrays = {key: stored(file, path, key) for key in KEYS}
            names = stored(file, path, "classes") if "classes" in present else None
    except (zipfile.BadZipFile, EOFError, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"].reshape(-1)
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or images.shape[3:] not in ((), (3,))
        ):
            raise ValueError(
                f"{path}: {split}_images must be bytes (N, H, W, 3) or (N, H, W), got "
                f"{images.dtype} {images.shape}"
            )
        if len(labels) != len(images) or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"{path}: {split}_labels must be {len(images)} whole numbers, got {labels.dtype} "
                f"{labels.shape}"
            )
    both = np.concatenate([arrays["train_labels"].reshape(-1), arrays["test_labels"].reshape(-1)])
    if np.abs(both).max(initial=0) >= MOST_CLASSES:
        raise ValueError(f"{path} has label {both[np.abs(both).argmax()]}: classes count from 0")
    classes = counted(both) if names is None else tuple(map(str, names.tolist()))
    H, W = arrays["train_images"].shape[1:3]
    train, test = (
        Arrays(
            arrays[f"{split}_images"],
            arrays[f"{split}_labels"].reshape(-1),
            classes,
            f"{path.stem} {split}",
        )
        for split in ("train", "test")
    )
    return Data(train, test, classes, None, None, H if H == W else None, path.stem)


def stored(file: zipfile.ZipFile, path: Path, key: str) -> np.ndarray:
    """One array of an ``.npz``, mapped where it is large and not compressed."""
    info = file.getinfo(f"{key}.npy")
    with file.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(member)
        header = member.tell()
    if dtype.hasobject:
        raise ValueError(
            f"{path}: {key} holds pickled objects, which run code when they are read: save plain "
            "arrays, as `save_npz` does"
        )
    if info.compress_type != zipfile.ZIP_STORED or fortran or info.file_size < 2**20:
        with file.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)
    with open(path, "rb") as raw:
        raw.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", raw.read(4))  # lengths of what precedes the data
    offset = info.header_offset + 30 + name + extra + header
    return np.memmap(path, dtype, "r", offset, shape)
