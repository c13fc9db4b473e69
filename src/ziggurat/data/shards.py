"""Sets that outgrow a disk: tar files in WebDataset's layout, near or far, read by index.

    train-0000.tar: dog_1.jpg dog_1.cls dog_2.jpg dog_2.cls ...   or dog_1.json {"label": 3}

Each tar is read through once and its index kept, so that samples have numbers: a run can stop and
go on anywhere, and an evaluation sees each of them once. A shard that is a URL is fetched when it
is first needed (``fetch.py``).
"""

import glob
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ziggurat.data.fetch import fetched, kept_for, read_at, read_fetched, small
from ziggurat.data.files import (
    TEST_SPLITS,
    Texts,
    class_names,
    grouped,
    held_out,
    names_in,
    numbered,
    split_data,
    written_whole,
)
from ziggurat.data.images import EXTENSIONS, BadImage, Data, Encoded, Images, bad_image

GROUP = 4  # shards that are read at a time
VERSION = 2  # of the index files
INDEX = ".index.npz"


# Which shards.


def in_folder(path: Path) -> bool:
    """Whether a folder holds shards, or a list of them."""
    return (path / "shards.txt").is_file() or any(path.glob("*.tar"))


def is_pattern(text: str) -> bool:
    """Whether a text stands for tar files by a URL, a wildcard or braces."""
    return text.endswith(".tar") and any(mark in text for mark in ("://", "*", "?", "[", "{"))


def is_list(path: Path) -> bool:
    """Whether a text file names tar files, not images with labels."""
    if path.suffix != ".txt" or not path.is_file():
        return False
    with open(path, encoding="utf-8-sig") as file:
        return next((line for line in file if line.strip()), "").strip().endswith(".tar")


def named_shards(spec: Path | str) -> list[str]:
    """Paths and URLs that a folder, a list or a pattern stands for, sorted."""
    path = Path(spec).expanduser()
    if path.is_dir():
        if not (path / "shards.txt").is_file():
            return sorted(map(str, path.glob("*.tar")))
        path = path / "shards.txt"
    if path.suffix == ".txt":
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        patterns = [line.strip() for line in lines if line.strip()]
        patterns = [p if is_url(p) else str(path.parent / p) for p in patterns]
    else:
        patterns = [str(spec) if is_url(str(spec)) else str(path)]
    found: list[str] = []
    for pattern in patterns:
        for each in [pattern] if os.path.exists(pattern) else expanded(pattern):
            local = not is_url(each) and not os.path.exists(each)
            matches = sorted(glob.glob(each)) if local else [each]
            if not matches:
                raise ValueError(f"there is no shard {each}")
            found += matches
    return sorted(set(found))


def is_url(text: str) -> bool:
    """Whether a shard is far away."""
    return text.startswith(("http://", "https://"))


def expanded(pattern: str) -> list[str]:
    """A pattern with its braces written out: ``{00..12}`` counts, ``{a,b}`` lists."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    if span := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
        width = len(span[1])
        words = [f"{i:0{width}d}" for i in range(int(span[1]), int(span[2]) + 1)]
    else:
        words = match[1].split(",")
    if len(words) < 2 and not span:
        raise ValueError(f"{match[0]} in {pattern} must be {{00..12}} or {{a,b}}")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [text for word in words for text in expanded(before + word + after)]


def split_of(shard: str) -> str | None:
    """``train``, ``val``, ``validation`` or ``test``: a word of its name, or its folder's name."""
    folder, name = shard.lower().split("/")[-2:] if "/" in shard else ("", shard.lower())
    words = [*re.findall("[a-z]+", name), folder]
    return next((word for word in words if word in ("train", *TEST_SPLITS)), None)


# The set.


class Shards(Encoded):
    """Images in tar files, found by offset."""

    def __init__(
        self,
        shards: Sequence[str],
        shard: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        names: Sequence[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
    ) -> None:
        super().__init__(labels, classes)
        self.shards = tuple(shards)
        self.shard = shard.astype(np.int32)  # (N,), which of the shards, rising
        self.offsets, self.sizes = offsets, sizes  # (N,) in bytes
        self.names = Texts(names)

    def name(self, index: int) -> str:
        """Shard and member, as ``shards/train-0000.tar: dog_1.jpg``."""
        return f"{self.shards[self.shard[index]]}: {self.names[index]}"

    def contents(self, index: int) -> bytes:
        """The member's bytes; opened anew each time, which forks, threads and the cache like."""
        shard, size = self.shards[self.shard[index]], int(self.sizes[index])
        name = self.name(index)
        if is_url(shard):
            found = read_fetched(shard, int(self.offsets[index]), size)
        else:
            with bad_image(name):
                found = read_at(Path(shard), int(self.offsets[index]), size)
        if len(found) < size:
            raise BadImage(f"{name}: the shard ends after {len(found)} of its {size} bytes")
        return found

    def order(self, generator: torch.Generator) -> Tensor:
        """Shuffled shards, and shuffled samples in each few that are neighbours then.

        So each step reads from GROUP shards, not from all, and each shard is read once an epoch.
        """
        present, first, counts = np.unique(self.shard, return_index=True, return_counts=True)
        turn = torch.randperm(len(present), generator=generator).tolist()
        parts = []
        for i in range(0, len(turn), GROUP):
            spans = [torch.arange(first[s], first[s] + counts[s]) for s in turn[i : i + GROUP]]
            group = torch.cat(spans)
            parts.append(group[torch.randperm(len(group), generator=generator)])
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def sharded(spec: Path | str, seed: int | None, labelled: bool = True) -> Data:
    """Data of the shards that ``spec`` stands for; without any for testing, a tenth is held out.

    Images without a label are passed over if they should be ``labelled``.
    """
    shards = named_shards(spec)
    if not shards:
        raise ValueError(f"no shards at {spec}")
    splits = [split_of(shard) for shard in shards]
    other = next((split for split in TEST_SPLITS if split in splits), None)
    if other:  # with val/ and test/, the one that is not asked for is left out
        pairs = zip(shards, splits, strict=True)
        shards = [shard for shard, split in pairs if split in ("train", None, other)]
    console = Console(stderr=True)
    indices = [
        used(index_of(shard), labelled)
        for shard in track(shards, "shards", console=console, transient=True)
    ]
    words = [word or "" for index in indices for word in index.words]
    if labelled:
        classes, labels = numbered(words, names_beside(spec, shards[0]), str(spec))
    else:
        classes, labels = grouped(words)
    counts = [len(index.words) for index in indices]
    shard = np.repeat(np.arange(len(shards)), counts)
    offsets = np.concatenate([index.offsets for index in indices])
    sizes = np.concatenate([index.sizes for index in indices])
    names = [name for index in indices for name in index.names]
    if other:
        test = np.repeat([split_of(shard) == other for shard in shards], counts)
    else:
        keys = [f"{Path(shards[s]).name}/{name}" for s, name in zip(shard, names, strict=True)]
        test = held_out(keys, labels, seed, labelled)

    def part(of: np.ndarray) -> Images:
        chosen = [names[i] for i in of]
        return Shards(shards, shard[of], offsets[of], sizes[of], chosen, labels[of], classes)

    title = Path(spec).expanduser()
    data = split_data(part, test, classes, title.stem if title.suffix else title.resolve().name)
    data.train.ignored.update(sum((Counter(index.ignored) for index in indices), Counter()))
    return data


def names_beside(spec: Path | str, shard: str) -> tuple[str, ...] | None:
    """Class names beside the shards, or beside the list of them."""
    beside = Path(spec).expanduser()
    if beside.exists():
        names = class_names(beside if beside.is_dir() else beside.parent)
        if names or not is_url(shard):
            return names
    if not is_url(shard):
        return class_names(Path(shard).parent)
    base = shard.rsplit("/", 1)[0]
    if text := small(f"{base}/classes.txt"):
        return tuple(line.strip() for line in text.decode().splitlines() if line.strip())
    if text := small(f"{base}/classes.json"):
        return names_in(text.decode(), f"{base}/classes.json")
    return None


# The index of a shard.


class Index(NamedTuple):
    """Where the first image of each sample of a tar file is, and its label as it was written."""

    offsets: np.ndarray
    sizes: np.ndarray
    more: np.ndarray  # how many images more the sample has
    names: list[str]
    words: list[str | None]  # None: it has no label
    ignored: dict[str, int]


def used(index: Index, labelled: bool) -> Index:
    """The samples that can be used, and a count of the images that are not."""
    some = [i for i, word in enumerate(index.words) if word is not None or not labelled]
    ignored = index.ignored | {
        "images without a label": len(index.words) - len(some),
        "more images of one sample": int(index.more[some].sum()),
    }
    return Index(
        index.offsets[some],
        index.sizes[some],
        index.more[some],
        [index.names[i] for i in some],
        [index.words[i] for i in some],
        {kind: count for kind, count in ignored.items() if count},
    )


def index_of(shard: str) -> Index:
    """The index of a shard, kept beside it or in the cache, made anew if the shard has changed.

    What is at a URL is taken never to change. An index that lies beside a far shard, as one made
    before uploading does, spares fetching the shard for its sake.
    """
    kept = kept_for(shard if is_url(shard) else os.path.abspath(shard))
    if is_url(shard):
        if (found := load_index(kept, None)) is not None:
            return found
        if small(shard + INDEX) and (found := load_index(kept_for(shard + INDEX), None)):
            return found
        index = read_tar(fetched(shard), shard)
        save_index(kept, index, (0, 0))
        return index
    at = os.stat(shard)
    stamp = (at.st_size, at.st_mtime_ns)
    beside = Path(shard + INDEX)
    for place in (beside, kept):
        if (found := load_index(place, stamp)) is not None:
            return found
    index = read_tar(Path(shard), shard)
    try:
        save_index(beside, index, stamp)
    except OSError:  # a folder of someone else's
        save_index(kept, index, stamp)
    return index


def read_tar(path: Path, shard: str) -> Index:
    """Go through a tar file once."""
    samples: dict[str, dict[str, tuple[str, int, int]]] = {}
    labels: dict[str, str] = {}
    ignored: Counter[str] = Counter()
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                key, extension = f"{folder}/{stem}", extension.lower()
                if extension in EXTENSIONS:
                    images = samples.setdefault(key, {})
                    if extension in images:
                        raise ValueError(f"{shard} has two images called {member.name}")
                    images[extension] = (member.name, member.offset_data, member.size)
                elif extension == "cls" or (extension == "json" and key not in labels):
                    opened = tar.extractfile(member)
                    assert opened is not None  # it is a file
                    label = label_in(opened.read(), extension)
                    if label is not None:
                        labels[key] = label
                else:
                    ignored[f".{extension}"] += 1
    except tarfile.TarError as error:
        raise ValueError(f"{shard} is damaged or is no plain tar file: {error}") from None
    first = [next(iter(images.values())) for images in samples.values()]
    return Index(
        np.array([offset for _, offset, _ in first], dtype=np.int64),
        np.array([size for _, _, size in first], dtype=np.int64),
        np.array([len(images) - 1 for images in samples.values()], dtype=np.int64),
        [name for name, _, _ in first],
        [labels.get(key) for key in samples],
        dict(ignored),
    )


def label_in(contents: bytes, extension: str) -> str | None:
    """The label that a ``.cls`` is, or a ``.json`` has."""
    text = contents.decode("utf-8", "replace").strip()
    if extension == "cls":
        return text or None
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    label = found.get("label") if isinstance(found, dict) else None
    return None if label is None else str(label)


def save_index(path: Path, index: Index, stamp: tuple[int, int]) -> None:
    """Write an index that is good while the shard has this size and time."""
    names, words = Texts(index.names), Texts(word or "" for word in index.words)
    with written_whole(path) as file:
        np.savez_compressed(
            file,
            stamp=np.array([VERSION, *stamp]),
            offsets=index.offsets,
            sizes=index.sizes,
            more=index.more,
            names=names.joined,
            name_ends=names.ends,
            words=words.joined,
            word_ends=words.ends,
            labelled=np.array([word is not None for word in index.words], dtype=bool),
            ignored=np.array(json.dumps(index.ignored)),
        )


def load_index(path: Path, stamp: tuple[int, int] | None) -> Index | None:
    """An index if it is there, whole, and of the shard with this stamp (None: any)."""
    try:
        with np.load(path, allow_pickle=False) as found:
            version, *made_for = found["stamp"].tolist()
            if version != VERSION or (stamp and made_for != list(stamp)):
                return None
            names, words = Texts(()), Texts(())
            names.joined, names.ends = found["names"], found["name_ends"]
            words.joined, words.ends = found["words"], found["word_ends"]
            known = zip(words, found["labelled"].tolist(), strict=True)
            return Index(
                found["offsets"],
                found["sizes"],
                found["more"],
                list(names),
                [word if labelled else None for word, labelled in known],
                json.loads(str(found["ignored"])),
            )
    except Exception:  # numpy raises nearly anything on a damaged file: it is made again
        return None
