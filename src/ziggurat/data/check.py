"""What is wrong with data, found before a long run: every image or clip is decoded once."""

import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import Progress

from ziggurat.data import clips
from ziggurat.data.frames import viewed
from ziggurat.data.images import (
    LEAST,
    NAMES,
    BadImage,
    Encoded,
    Images,
    as_rgb,
    bad_image,
    decoded,
    listed,
    mistakes,
    opened,
    too_small,
)

AT_A_TIME = 512  # images in the hands of the threads
FRAMES = 8  # of a clip that are decoded


@dataclass
class Split:
    """What one split holds; sizes and modes are of the images that were read."""

    noun: ClassVar[str] = "images"
    images: int = 0
    per_class: dict[str, int] = field(default_factory=dict)
    read: int = 0
    smallest: tuple[int, int] | None = None  # width and height; by area
    median: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    modes: dict[str, int] = field(default_factory=dict)  # as stored: RGB, L, CMYK, P, I;16 ...
    unreadable: list[str] = field(default_factory=list)  # "path: reason"
    ignored: dict[str, int] = field(default_factory=dict)  # files passed over, by kind

    def lines(self, name: str) -> list[str]:
        """For a terminal."""
        found = []
        if self.images:
            some = f", {self.read} of them read" if self.read < self.images else ""
            found.append(f"{name:6}{self.images} {self.noun}{self.counts()}{some}")
        if self.smallest and self.median and self.largest:
            sides = (self.smallest, self.median, self.largest)
            small, median, large = (f"{width} x {height}" for width, height in sides)
            modes = ", ".join(f"{mode} {count}" for mode, count in self.modes.items())
            found.append(f"      {small} to {large} pixels, median {median}; {modes}")
        return found

    def counts(self) -> str:
        """How many of each class, for a terminal."""
        counts = sorted(self.per_class.values())
        return f", {counts[0]} to {counts[-1]} a class" if counts else ""


@dataclass
class ClipSplit(Split):
    """Clips; sizes are of their frames, modes are their codecs."""

    noun = "clips"
    seconds: tuple[float, float, float] | None = None  # shortest, median and longest

    def lines(self, name: str) -> list[str]:
        """For a terminal."""
        found = super().lines(name)
        if self.seconds:
            short, median, long = (f"{seconds:.1f}" for seconds in self.seconds)
            found.append(f"      {short} to {long} seconds, median {median}")
        return found


@dataclass
class Report:
    """Everything found; ``problems`` want mending, ``remarks`` a look."""

    name: str
    classes: tuple[str, ...] = ()
    train: Split = field(default_factory=Split)
    test: Split = field(default_factory=Split)
    duplicates: list[tuple[str, str]] = field(default_factory=list)  # training image, test image
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether a run can start."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"ok": self.ok}

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [f"{self.name}: {len(self.classes)} classes" if self.classes else self.name]
        for name, split in (("train", self.train), ("test", self.test)):
            found += split.lines(name)
        found += [f"problem: {text}" for text in self.problems]
        found += [f"remark: {text}" for text in self.remarks]
        return [*found, "ready to train on" if self.ok else f"{len(self.problems)} to mend"]


def check(
    spec: str | Path, limit: int | None = None, progress: bool = True, labelled: bool = True
) -> Report:
    """Read what ``--data`` names; of each split only ``limit`` images, evenly spread, if given.

    Not ``labelled``: as pre-training reads it, which asks for no classes and reports none.
    """
    kind = kind_of(spec) if labelled else None
    if kind == "objects" or kind == "scenes":
        from ziggurat.data.annotations import check_annotations  # it builds on this file

        return check_annotations(spec, kind, limit, progress)
    open_ = clips.opened if kind == "clips" else functools.partial(opened, labelled=labelled)
    problems: list[str] = []
    for strict in (True, False):  # what training refuses is a problem, and looked at further
        try:
            data = open_(spec, seed=0, strict=strict)
            break
        except (ValueError, OSError, ImportError) as error:
            problems = [str(error)]
    else:
        return Report(str(spec), problems=problems)
    classes = data.classes if labelled else ()
    report = Report(data.name, classes, problems=problems + mistakes(data))
    least = 1 if labelled else LEAST
    look_through(
        report, (data.train, data.test), limit, progress, functools.partial(examined, least)
    )
    if not labelled:
        report.train.per_class = report.test.per_class = {}
    sum_up(report)
    return report


def kind_of(spec: str | Path) -> Literal["objects", "scenes", "clips"] | None:
    """What has labels: objects (COCO), every pixel, clips, or just images."""
    from ziggurat.data import coco, scenes

    if str(spec) in NAMES:
        return None
    path = Path(spec).expanduser()
    if str(spec) == "coco" or coco.is_objects(path):
        return "objects"
    if str(spec) == "ade20k" or scenes.is_scenes(path):
        return "scenes"
    with suppress(OSError):  # which is raised again where the set is opened
        return "clips" if clips.is_clips(path) else None
    return None


class Named(Protocol):
    """A set whose samples have names."""

    def __len__(self) -> int:
        """How many there are."""

    def name(self, index: int) -> str:
        """Where one is, for a person."""


Set = TypeVar("Set", bound=Named)


def look_through(
    report: Report,
    sets: tuple[Set, Set],
    limit: int | None,
    progress: bool,
    examine: Callable[[Set, list[int], Callable[[], None]], tuple[Split, np.ndarray]],
) -> None:
    """Examine both splits, and what is in both, behind a bar of progress."""
    with Progress(console=Console(stderr=True), transient=True, disable=not progress) as bars:
        chosen = [spread(len(images), limit) for images in sets]
        bar = bars.add_task("reading", total=sum(map(len, chosen)))
        step = functools.partial(bars.advance, bar)
        report.train, train = examine(sets[0], chosen[0], step)
        report.test, test = examine(sets[1], chosen[1], step)
    report.duplicates = [
        (sets[0].name(int(a)), sets[1].name(int(b))) for a, b in in_both(train, test)
    ]


def spread(count: int, limit: int | None) -> list[int]:
    """All indices, or ``limit`` of them at even distances."""
    if limit is None or limit >= count:
        return list(range(count))
    return np.linspace(0, count - 1, limit).astype(int).tolist()


def in_both(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Places (N, 2) of a training image for each test image with the same digest."""
    if not len(train):
        return np.empty((0, 2), dtype=np.int64)
    train = np.sort(train, order="digest")
    near = np.searchsorted(train["digest"], test["digest"]).clip(max=len(train) - 1)
    same = train["digest"][near] == test["digest"]
    return np.stack([train["at"][near[same]], test["at"][same]], axis=1)


# One split.


class Look(NamedTuple):
    """One image or clip that could be read."""

    size: tuple[int, int]
    mode: str
    digest: bytes
    seconds: float = 0.0


def examined(
    least: int, images: Images, chosen: list[int], advance: Callable[[], None]
) -> tuple[Split, np.ndarray]:
    """What the chosen images of a split are like; place and digest of those that can be read."""
    inside = images.labels[(images.labels >= 0) & (images.labels < len(images.classes))]
    counts = np.bincount(inside, minlength=len(images.classes)).tolist()
    kind = ClipSplit if isinstance(images, clips.Clips) else Split
    seconds: list[float] = []
    split = kind(
        images=len(images),
        per_class=dict(zip(images.classes, counts, strict=True)),
        ignored=images.ignored,
    )

    def seen(index: int) -> Look | str:
        found = look(images, index)
        if isinstance(found, Look) and min(found.size) < least:
            return too_small(images.name(index), found.size, least)
        if isinstance(found, Look):
            seconds.append(found.seconds)
        return found

    kept = tallied(split, seen, chosen, advance)
    if isinstance(split, ClipSplit) and seconds:
        split.seconds = (min(seconds), float(np.median(seconds)), max(seconds))
    return split, kept


def tallied(
    split: Split,
    seen: Callable[[int], Look | str],
    chosen: list[int],
    advance: Callable[[], None],
) -> np.ndarray:
    """Look at the chosen images and note it in ``split``; place and digest of those it can read."""
    split.read = len(chosen)
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    kept = np.zeros(len(chosen), dtype=[("at", np.int64), ("digest", np.uint64)])
    count = 0
    for at, found in zip(chosen, looked_at(seen, chosen), strict=True):
        advance()
        if isinstance(found, str):
            split.unreadable.append(found)
            continue
        sizes[found.size] += 1
        modes[found.mode] += 1
        kept[count] = (at, int.from_bytes(found.digest, "big"))
        count += 1
    split.modes = dict(modes.most_common())
    if sizes:
        by_area = sorted(sizes, key=lambda size: size[0] * size[1])
        split.smallest, split.largest = by_area[0], by_area[-1]
        up_to = np.cumsum([sizes[size] for size in by_area])
        split.median = by_area[int(np.searchsorted(up_to, up_to[-1] / 2))]
    return kept[:count]


def looked_at(seen: Callable[[int], Look | str], chosen: list[int]) -> Iterator[Look | str]:
    """Decode images by several threads, a few hundred at a time."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        warnings.simplefilter("ignore")  # PIL's: what matters is whether it reads the image
        for i in range(0, len(chosen), AT_A_TIME):
            yield from threads.map(seen, chosen[i : i + AT_A_TIME])


def look(images: Images, index: int) -> Look | str:
    """Read one image or clip as training would, and note how it was stored; or why it cannot be."""
    try:
        if isinstance(images, clips.Clips):
            name = images.name(index)
            clip = viewed(name, name, FRAMES)
            size = (clip.frames.shape[2], clip.frames.shape[1])
            return Look(size, clip.codec, digest_of(clip.frames.tobytes()), clip.seconds)
        if isinstance(images, Encoded):
            contents, name = images.contents(index), images.name(index)
            with bad_image(name):
                stored = decoded(contents, name)
                mode, size = stored.mode, as_rgb(stored).size
        else:
            image = images.image(index)
            contents, mode, size = image.tobytes(), image.mode, image.size
    except BadImage as error:
        return str(error)
    return Look(size, mode, digest_of(contents))


def digest_of(contents: bytes) -> bytes:
    """What tells one file from another."""
    return blake2b(contents, digest_size=8).digest()


# Both.


def sum_up(report: Report) -> None:
    """Put what was found into words."""
    sum_up_files(report, "files passed over")
    sum_up_classes(report)


def sum_up_files(report: Report, ignored: str) -> None:
    """What any kind of set may have; ``ignored`` says what those of each split are."""
    for name, split in (("training", report.train), ("test", report.test)):
        if split.unreadable:
            report.problems.append(
                f"{len(split.unreadable)} of {split.read} {name} {split.noun} cannot be read, the "
                f"first: {split.unreadable[0]}"
            )
        if split.ignored:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in split.ignored.items())
            report.remarks.append(f"{ignored} among {name} {split.noun}: {kinds}")
    if report.duplicates:
        report.problems.append(
            f"{len(report.duplicates)} {report.test.noun} are for training and for testing, the "
            f"first: {' and '.join(report.duplicates[0])}"
        )


def sum_up_classes(report: Report) -> None:
    """What is wrong with classes that have images."""
    train, test, noun = report.train.per_class, report.test.per_class, report.train.noun
    empty = [name for name in report.classes if not train[name] and not test[name]]
    untested = [name for name in report.classes if train[name] and not test[name]]
    tiny = [name for name in report.classes if train[name] == 1]
    if len(report.classes) == 1:
        report.problems.append(f"there is only one class, {report.classes[0]!r}")
    if empty:
        report.problems.append(f"no {noun} at all of {listed(empty)}")
    if untested:
        report.remarks.append(f"{noun} to train on, but none to test, of {listed(untested)}")
    if tiny:
        report.remarks.append(f"a single {noun.removesuffix('s')} to train on of {listed(tiny)}")
