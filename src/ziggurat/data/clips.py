"""Sets of clips: what a set of videos is, and what ``--data`` takes to recognise actions.

    "kinetics/" -> open_clips -> Data(train, test, classes) -> train.clip(7, 8) -> 8 frames

Lists, Kinetics' and others', may name clips that are gone: those are left out, and counted.
"""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ziggurat.data import images
from ziggurat.data.files import ClassFiles, below, class_names, folder, folders_in
from ziggurat.data.frames import EXTENSIONS, library, read_clip
from ziggurat.data.frames import BadClip as BadClip
from ziggurat.data.images import Data, checked
from ziggurat.data.lists import Row, csv_rows, data_of, txt_rows

LOOKED_AT = 200  # files or lines that tell what a set is of
VAL = ("val", "validate", "validation")
BARE = re.compile(rf"(.+\.(?:{'|'.join(EXTENSIONS)}))(?:\s*,\s*|\s+)(\S.*)", re.IGNORECASE)
FORMS = (
    "take a folder of class folders of videos, or one of train/ and val/ with such, a list (.csv, "
    ".txt), or a folder of Kinetics (train.csv, val.csv) or Something-Something V2 (labels.json, "
    "train.json, validation.json)"
)


class Clips(ClassFiles):
    """Video files below one folder, with one class each."""

    noun = "clips"
    extensions = EXTENSIONS

    def clip(self, index: int, count: int, jitter: bool = False) -> np.ndarray:
        """Frames (count, H, W, 3) as ``read_clip`` spreads them; raises BadClip."""
        name = self.name(index)
        return read_clip(name, name, count, jitter)

    def image(self, index: int) -> Image.Image:
        """The frame in the middle; raises BadClip."""
        return Image.fromarray(self.clip(index, 1)[0])


def open_clips(spec: str | Path, seed: int | None = 0) -> Data:
    """Open a folder of class folders, a list, Kinetics or Something-Something V2 by its path.

    Folders and lists are as for ``open_data``, but of videos. Kinetics is a folder with
    ``train.csv`` and ``val.csv``, beside the clips or in ``annotations/``: with the official
    columns, or with a path and a label a line as for SlowFast. Something-Something V2 has its
    three ``.json`` files beside the clips or in ``labels/``. Where nothing says what is for
    testing, a tenth is held out; ``seed`` decides which, and without one (None) all of it is for
    testing.
    """
    return checked(opened(spec, seed), seed)


def opened(spec: str | Path, seed: int | None, strict: bool = True) -> Data:
    """``open_clips`` before its last checks; not ``strict``: splits may have different classes."""
    library()
    path = Path(spec).expanduser()
    if path.is_dir() and (place := something_in(path)):
        data = something(path, *place, seed)
    elif path.is_dir() and (lists := kinetics_in(path)):
        data = kinetics(path, *lists, seed)
    elif path.is_dir():
        data = folder(path, seed, strict, kind=Clips)
    elif path.is_file() and path.suffix in (".csv", ".txt"):
        data = listing(path, seed)
    elif path.is_file():
        kind = "one clip, not a set" if is_video(path.name) else "not data of clips"
        raise ValueError(f"{path} is {kind}: {FORMS}")
    else:
        raise ValueError(f"there is no {path}: {FORMS}")
    names = [part.name(0) for part in (data.train, data.test) if len(part)]
    kinds = names or [*data.train.ignored, *data.test.ignored]
    if any(map(is_picture, kinds)) and not any(map(is_video, kinds)):
        raise ValueError(f"{path} holds images, not clips: {FORMS}")
    return data


def is_clips(path: Path) -> bool:
    """Whether a file or folder is of clips rather than of images, by the first names in it."""
    if path.is_file():
        return path.suffix in (".csv", ".txt") and lists_clips(path)
    if not path.is_dir():
        return False
    if something_in(path) or kinetics_in(path):
        return True
    found = below(str(path), "", frozenset(), Counter(), EXTENSIONS | images.EXTENSIONS)
    some = list(islice(found, LOOKED_AT))
    return sum(map(is_video, some)) > sum(map(is_picture, some))


def is_video(name: str) -> bool:
    """Whether a file, or an extension with its dot, is of videos alone: GIF is of images, too."""
    return name.rpartition(".")[2].lower() in EXTENSIONS - images.EXTENSIONS


def is_picture(name: str) -> bool:
    """Whether a file, or an extension with its dot, is of images alone."""
    return name.rpartition(".")[2].lower() in images.EXTENSIONS - EXTENSIONS


# Lists.


def listing(path: Path, seed: int | None) -> Data:
    """A ``.csv`` of any of the three kinds, or a ``.txt`` of ``path label`` lines."""
    root = path.parent.parent if path.parent.name == "annotations" else path.parent
    names = class_names(path.parent)
    return present(data_of(rows_in(path, root), path, root, names, seed, kind=Clips), seed)


def rows_in(path: Path, root: Path) -> list[Row]:
    """What a list names, below ``root``: by Kinetics' columns, by ours, or without any."""
    first = first_line(path)
    columns = {name.strip(' "') for name in first.lower().split(",")}
    if path.suffix == ".txt":
        rows = txt_rows(path, labelled=True)
    elif {"youtube_id", "label"} <= columns:
        return list(kinetics_rows(path, root))
    elif "label" not in columns and BARE.fullmatch(first):
        rows = bare_rows(path)
    else:
        rows = csv_rows(path, labelled=True)
    beside = path.parent.relative_to(root)
    return [(str(beside / name), label, split) for name, label, split in rows]


def first_line(path: Path) -> str:
    """Of a list."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        return file.readline(10_000).strip()


def lists_clips(path: Path) -> bool:
    """Whether a list names videos, or what Kinetics takes from YouTube."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        words = re.split(r"[\s,\"]+", " ".join(islice(file, LOOKED_AT)))
    return "youtube_id" in words or any(map(is_video, words))


def bare_rows(path: Path) -> Iterator[Row]:
    """``path label`` or ``path,label`` a line, as SlowFast, TimeSformer and VideoMAE have it."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if found := BARE.fullmatch(line.strip()):
                yield found[1], found[2], ""
            elif line.strip():
                raise ValueError(
                    f"{path} line {number} must be `path label` or `path,label` of a video, got "
                    f"{line.strip()!r}"
                )


def present(data: Data, seed: int | None) -> Data:
    """Data without the clips that are missing, which are counted."""
    sets = []
    for split, clips in (("training", data.train), ("test", data.test)):
        assert isinstance(clips, Clips)
        there = np.array([os.path.isfile(clips.name(i)) for i in range(len(clips))], bool)
        gone = int((~there).sum())
        if gone and gone == len(clips) and (split == "test" or seed is not None):
            raise ValueError(
                f"none of the {gone} {split} clips that {data.name} lists is there, such as "
                f"{clips.name(0)}"
            )
        paths = [clips.paths[i] for i in np.flatnonzero(there).tolist()]
        ignored = clips.ignored | ({"missing": gone} if gone else {})
        sets.append(Clips(clips.root, paths, clips.labels[there], clips.classes, ignored))
    return data._replace(train=sets[0], test=sets[1])


def clips_by_stem(root: Path, places: Sequence[str]) -> dict[str, str]:
    """Clips in the first of some folders that has any, else anywhere, by their names alone."""
    for place in (*places, ""):
        if (root / place).is_dir():
            prefix = f"{place}/" if place else ""
            found = below(str(root / place), prefix, frozenset(), Counter(), EXTENSIONS)
            if stems := {Path(path).stem: path for path in found}:
                return stems
    return {}


# Kinetics.


def kinetics_in(path: Path) -> tuple[Path, Path] | None:
    """The lists of a folder, or of its ``annotations/``: what to train on, what to test on."""
    for place in (path, path / "annotations"):
        train = list_in(place, "train")
        test = next(filter(None, (list_in(place, split) for split in (*VAL, "test"))), None)
        if train and test:
            return train, test
    return None


def list_in(place: Path, split: str) -> Path | None:
    """``train.csv``, or what ends so, as ``kinetics400_train.csv``, if it lists clips."""
    names = (f"{split}.csv", f"*[-_]{split}.csv")
    files = (file for name in names for file in sorted(place.glob(name)))
    return next(filter(lists_clips, files), None)


def kinetics(path: Path, train: Path, test: Path, seed: int | None) -> Data:
    """Two lists; their classes stay, and keep their numbers, if no clip of some is there."""
    rows = [
        (name, label, split)
        for file, split in ((train, "train"), (test, "test"))
        for name, label, _ in rows_in(file, path)
    ]
    data = data_of(rows, train, path, class_names(path), seed, kind=Clips)
    return present(data._replace(name=path.resolve().name), seed)


def kinetics_rows(path: Path, root: Path) -> Iterator[Row]:
    """A list with the official columns: label, youtube_id, time_start, time_end, split.

    A clip is a file called by its id and its times, or by its id alone, wherever it lies in the
    folder of its split: in ``train/``, or in a class folder there, whatever that is called.
    """
    found: dict[str, dict[str, str]] = {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for row in reader:
            values = {str(key).strip().lower(): str(row[key] or "").strip() for key in row}
            label, youtube, split = (
                values.get(key, "") for key in ("label", "youtube_id", "split")
            )
            if not label or not youtube:
                missing = "youtube_id" if label else "label"
                raise ValueError(f"{path} line {reader.line_num} has no {missing}")
            split = "val" if split in VAL else split
            if split not in found:
                found[split] = clips_by_stem(root, folders_of(root, split))
            stem = f"{youtube}_{seconds(values, 'time_start')}_{seconds(values, 'time_end')}"
            name = found[split].get(stem) or found[split].get(youtube)
            yield (
                name or f"{split}/{label}/{stem}.mp4",
                label,
                split if split in ("train", "val", "test") else "",
            )


def seconds(values: dict[str, str], key: str) -> str:
    """A time as the names of clips have it: 000012."""
    text = values.get(key, "")
    return f"{int(float(text)):06}" if re.fullmatch(r"\d+(\.\d*)?", text) else text


def folders_of(root: Path, split: str) -> list[str]:
    """``train``, or what is called after it, as ``videos_train``; the shortest first."""
    words = "|".join(VAL) if split == "val" else re.escape(split)
    called = re.compile(rf"(.*[-_])?({words})([-_].*)?")
    return sorted(filter(called.fullmatch, folders_in(root)), key=len) if split else []


# Something-Something.


def something_in(path: Path) -> tuple[Path, str] | None:
    """Where its annotations are, and what their names begin with."""
    for place in (path, path / "labels", path / "annotations"):
        for prefix in ("something-something-v2-", ""):
            if all((place / f"{prefix}{part}.json").is_file() for part in ("labels", "train")):
                return place, prefix
    return None


def something(path: Path, place: Path, prefix: str, seed: int | None) -> Data:
    """Something-Something V2: classes are templates, in the order of their numbers."""
    labels = from_json(place / f"{prefix}labels.json")
    if not isinstance(labels, dict) or sorted(map(str, labels.values())) != sorted(
        map(str, range(len(labels)))
    ):
        raise ValueError(f"{place / f'{prefix}labels.json'} must give each class its number")
    classes = tuple(sorted(labels, key=lambda name: int(labels[name])))
    found = clips_by_stem(path, ("20bn-something-something-v2", "videos"))
    rows = []
    for part, split in (("train", "train"), ("validation", "validation")):
        file = place / f"{prefix}{part}.json"
        try:
            for one in from_json(file):
                template = one["template"].replace("[", "").replace("]", "")
                name = found.get(str(one["id"]), f"20bn-something-something-v2/{one['id']}.webm")
                rows.append((name, template, split))
        except (TypeError, KeyError):
            raise ValueError(f"{file} must be a list of objects with id and template") from None
    data = data_of(rows, place / f"{prefix}train.json", path, classes, seed, kind=Clips)
    return present(data._replace(name=path.resolve().name), seed)


def from_json(path: Path) -> Any:
    """What a file holds."""
    if not path.is_file():
        raise ValueError(f"there is no {path}, which Something-Something V2 has")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
