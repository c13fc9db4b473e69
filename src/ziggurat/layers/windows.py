"""Cut a map into windows that do not overlap, and put it together again.

Where a map is not a whole number of windows, those in its last row and column are smaller.
Windows of one size are computed together, so there are at most four groups: inside, right,
bottom and corner. Nothing is padded, so nothing has to be masked.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Band = tuple[int, int]  # windows, and tokens a window along this side


def split(x: Tensor, h: int, w: int) -> Tensor:
    """(B, H, W, C) -> (B * windows, h * w, C), windows and their tokens row by row."""
    B, H, W, C = x.shape
    x = x.reshape(B, H // h, h, W // w, w, C).transpose(2, 3)
    return x.reshape(-1, h * w, C)


def join(x: Tensor, h: int, w: int, rows: int, cols: int) -> Tensor:
    """(B * rows * cols, h * w, C) -> (B, H, W, C); undoes ``split``."""
    C = x.shape[-1]
    x = x.reshape(-1, rows, cols, h, w, C).transpose(2, 3)
    return x.reshape(-1, rows * h, cols * w, C)


class Cut(NamedTuple):
    """Where a map is cut: its bands of windows from the top down and from left to right."""

    rows: list[Band]
    cols: list[Band]

    @property
    def parts(self) -> list[tuple[int, int, int, int]]:
        """Of each group, row by row: height and width of its windows, rows and columns of them."""
        return [(h, w, rows, cols) for rows, h in self.rows for cols, w in self.cols]

    @property
    def counts(self) -> list[int]:
        """Windows of each group."""
        return [rows * cols for _, _, rows, cols in self.parts]

    def split(self, x: Tensor) -> list[Tensor]:
        """(B, H, W, C) -> (B * windows, h * w, C) for each group."""
        found = pieces(x, [n * h for n, h in self.rows], [n * w for n, w in self.cols])
        return [split(piece, *part[:2]) for piece, part in zip(found, self.parts, strict=True)]

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """Undo ``split``."""
        joined = [join(x, *part) for x, part in zip(groups, self.parts, strict=True)]
        return mosaic(joined, len(self.cols))

    def resized(self, size: Callable[[int], int]) -> "Cut":
        """The same windows on another map, each side's length through ``size``."""
        return Cut([(n, size(h)) for n, h in self.rows], [(n, size(w)) for n, w in self.cols])


def cut(height: int, width: int, side: int) -> Cut:
    """Windows of ``side`` x ``side``, and what is left over at the bottom and on the right."""
    return Cut(bands(height, side), bands(width, side))


def bands(length: int, side: int) -> list[Band]:
    """Whole windows along one side of a map, then what is left as one more."""
    whole, rest = length // side, length % side  # torch.compile knows no divmod of sizes
    return [(n, size) for n, size in ((whole, side), (1, rest)) if n and size]


def pieces(x: Tensor, heights: list[int], widths: list[int]) -> list[Tensor]:
    """Cut (B, H, W, C) into rectangles, row by row.

    One that is all of it is not cut: others than torch would copy it.
    """
    if len(heights) == len(widths) == 1:
        return [x]
    return [piece for band in x.split(heights, 1) for piece in band.split(widths, 2)]


def mosaic(parts: list[Tensor], across: int) -> Tensor:
    """Put (B, h, w, C) together, ``across`` of them to a row."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([torch.cat(parts[i : i + across], 2) for i in range(0, len(parts), across)], 1)


def pad_to_multiple(images: Tensor, size: int) -> Tensor:
    """Zero-pad (B, C, H, W) at the bottom and on the right to whole patches of ``size``."""
    bottom, right = -images.shape[-2] % size, -images.shape[-1] % size
    if bottom or right:
        images = F.pad(images, (0, right, 0, bottom))
    return images
