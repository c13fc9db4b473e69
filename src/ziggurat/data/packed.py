"""Whole sets in one ``.npz``: an array of images, and one of labels, for each split."""

import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ziggurat.data.files import MOST_CLASSES, counted, held_out, split_data, written_whole
from ziggurat.data.images import Arrays, Data, Images

KEYS = ("train_images", "train_labels", "test_images", "test_labels")


class Rows(Arrays):
    """Some images of an array that stays whole, so that it stays mapped."""

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray,
        classes: tuple[str, ...],
        called: str,
        rows: np.ndarray,
    ) -> None:
        super().__init__(pixels, labels[rows], classes, called)
        self.rows = rows  # (N,)

    def name(self, index: int) -> str:
        """As the array counts them."""
        return super().name(int(self.rows[index]))

    def image(self, index: int) -> Image.Image:
        """One of the rows."""
        return super().image(int(self.rows[index]))


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


def packed(path: Path, seed: int | None = 0, labelled: bool = True) -> Data:
    """What ``save_npz`` wrote, or another ``.npz`` with the same arrays.

    Not ``labelled``: training images suffice, and labels are not looked at.
    """
    try:
        with zipfile.ZipFile(path) as file:
            present = {name.removesuffix(".npy") for name in file.namelist()}
            if missing := [key for key in KEYS if labelled and key not in present]:
                raise ValueError(f"{path} has no {', '.join(missing)}: `save_npz` writes them all")
            if KEYS[0] not in present:
                raise ValueError(
                    f"{path} needs train_images and perhaps test_images, got "
                    f"{', '.join(sorted(present)) or 'nothing'}"
                )
            wanted = KEYS if labelled else KEYS[::2]  # the images
            arrays = {key: stored(file, path, key) for key in wanted if key in present}
            names = stored(file, path, "classes") if labelled and "classes" in present else None
    except (zipfile.BadZipFile, EOFError, struct.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    splits = [split for split in ("train", "test") if f"{split}_images" in arrays]
    for split in splits:
        images = arrays[f"{split}_images"]
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or images.shape[3:] not in ((), (3,))
        ):
            raise ValueError(
                f"{path}: {split}_images must be bytes (N, H, W, 3) or (N, H, W), got "
                f"{images.dtype} {images.shape}"
            )
        labels = arrays.get(f"{split}_labels", np.zeros(len(images), np.int64)).reshape(-1)
        if len(labels) != len(images) or not np.issubdtype(labels.dtype, np.integer):
            raise ValueError(
                f"{path}: {split}_labels must be {len(images)} whole numbers, got {labels.dtype} "
                f"{labels.shape}"
            )
        arrays[f"{split}_labels"] = labels
    both = np.concatenate([arrays[f"{split}_labels"] for split in splits])
    if np.abs(both).max(initial=0) >= MOST_CLASSES:
        raise ValueError(f"{path} has label {both[np.abs(both).argmax()]}: classes count from 0")
    classes = counted(both) if names is None else tuple(map(str, names.tolist()))
    H, W = arrays["train_images"].shape[1:3]
    size = H if H == W else None
    sets = [
        Arrays(
            arrays[f"{split}_images"], arrays[f"{split}_labels"], classes, f"{path.stem} {split}"
        )
        for split in splits
    ]
    if len(sets) == 2:
        return Data(sets[0], sets[1], classes, None, None, size, path.stem)

    def part(of: np.ndarray) -> Images:
        return Rows(sets[0].pixels, both, classes, sets[0].called, of)

    test = held_out([str(i) for i in range(len(both))], both, seed)
    return split_data(part, test, classes, path.stem)._replace(size=size)


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
