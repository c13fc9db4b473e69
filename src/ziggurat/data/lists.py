"""Files on a list: a ``.csv``, or a ``.txt`` of one image or clip a line."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ziggurat.data.files import (
    TEST_SPLITS,
    ClassFiles,
    Files,
    class_names,
    grouped,
    held_out,
    numbered,
    split_data,
)
from ziggurat.data.images import EXTENSIONS, Data, Images

PATHS = ("path", "file", "video")  # what the column of paths may be called
Row = tuple[str, str, str]  # path, label and split; "" for none


def listing(path: Path, seed: int | None, labelled: bool = True) -> Data:
    """A ``.csv`` with path, label and perhaps split, or a ``.txt`` of ``path label`` lines.

    Not ``labelled``: all labels may be missing, or some, and all images may be for training.
    """
    read = csv_rows if path.suffix == ".csv" else txt_rows
    rows = list(read(path, labelled))
    return data_of(rows, path, path.parent, class_names(path.parent), seed, labelled)


def data_of(
    rows: list[Row],
    path: Path,
    root: Path,
    names: tuple[str, ...] | None,
    seed: int | None,
    labelled: bool = True,
    kind: type[ClassFiles] = Files,
) -> Data:
    """The files below ``root`` that the rows of ``path`` name; ``names`` are those of classes.

    Where some rows have a split, those that have none are passed over.
    """
    if not rows:
        raise ValueError(f"{path} lists no {kind.noun}{'' if labelled else ': give a path a line'}")
    classes, labels = labels_of(rows, path, names, labelled)
    splits = {split for _, _, split in rows}
    other = next((split for split in TEST_SPLITS if split in splits), None)
    ignored = {}
    if other or (labelled and splits != {""}):
        if none := sum(split == "" for _, _, split in rows):
            ignored = {"in no split": none}
        rows = [row for row in rows if row[2] in ("train", other)]  # one to test on, as of folders
        classes, labels = labels_of(rows, path, names, labelled)
        test = np.array([row[2] != "train" for row in rows], bool)
    else:
        test = held_out([row[0] for row in rows], labels, seed, labelled)

    def part(of: np.ndarray) -> Images:
        return kind(root, [rows[i][0] for i in of], labels[of], classes, ignored)

    data = split_data(part, test, classes, path.stem)
    data.test.ignored.clear()  # counted once
    return data


def labels_of(
    rows: list[Row], path: Path, names: tuple[str, ...] | None, labelled: bool
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the number of each row's class; of what need be no classes, any names."""
    words = [label for _, label, _ in rows]
    return numbered(words, names, str(path)) if labelled else grouped(words)


def csv_rows(path: Path, labelled: bool) -> Iterator[Row]:
    """Path, label and split ("" where there is no such column) of each line."""
    needed = ("path", "label") if labelled else ("path",)
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = {name.strip().lower(): name for name in reader.fieldnames or () if name}
        if called := next((name for name in PATHS if name in columns), None):
            columns["path"] = columns[called]
        if not set(needed) <= columns.keys():
            raise ValueError(
                f"{path} needs a first line that names its columns: {', '.join(needed)} and "
                f"perhaps split; got {', '.join(columns) or 'nothing'}"
            )
        for row in reader:
            image, label, split = ((row.get(columns.get(name, "")) or "").strip()
                                   for name in ("path", "label", "split"))  # fmt: skip
            where = f"{path} line {reader.line_num}"
            if not image or (labelled and not label):
                raise ValueError(f"{where} has no {'label' if image else 'path'}")
            if split not in ("", "train", *TEST_SPLITS):
                raise ValueError(
                    f"{where} has split {split!r}: it must be train, {', '.join(TEST_SPLITS)}"
                )
            yield image, label, split


def txt_rows(path: Path, labelled: bool) -> Iterator[Row]:
    """Path and label of each line; the path may have spaces, the label not."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            words = line.rsplit(maxsplit=1)
            if not labelled and words and is_path(line.strip(), words[0].strip(), path.parent):
                words = [line.strip(), ""]
            if len(words) == 1:
                raise ValueError(f"{path} line {number} must be `path label`, got {line.strip()!r}")
            if words:
                yield words[0].strip(), words[1], ""


def is_path(whole: str, start: str, folder: Path) -> bool:
    """Whether a line that may have a label is a path as a whole, not up to its last word.

    The file's name tells; where both could be images, or neither, the file itself.
    """
    if whole == start:
        return True
    image, other = (os.path.splitext(text)[1][1:].lower() in EXTENSIONS for text in (whole, start))
    if image != other:
        return image
    return os.path.isfile(folder / whole) or (image and not os.path.isfile(folder / start))
