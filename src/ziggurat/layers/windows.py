"""Cut a map into windows that do not overlap, and put it together again.

A map whose sides are not whole numbers of windows is padded at the bottom and on the right; the
padding is masked in attention and cut off again. A side shorter than a window makes that window
shorter instead, so a map that fits into one window is never padded.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Partition(NamedTuple):
    """How a map of ``height`` x ``width`` is cut: ``rows`` x ``cols`` windows of ``h`` x ``w``."""

    height: int
    width: int
    h: int
    w: int
    rows: int
    cols: int

    @property
    def windows(self) -> int:
        """Windows in one map."""
        return self.rows * self.cols

    @property
    def padding(self) -> tuple[int, int]:
        """Rows added at the bottom, columns added on the right."""
        return self.rows * self.h - self.height, self.cols * self.w - self.width


def partition(height: int, width: int, window: int) -> Partition:
    """Cut a map into windows of at most ``window`` x ``window``."""
    rows, cols = math.ceil(height / window), math.ceil(width / window)
    return Partition(
        height, width, height if rows == 1 else window, width if cols == 1 else window, rows, cols
    )


def split(x: Tensor, cut: Partition) -> Tensor:
    """(B, H, W, C) -> (B * windows, h * w, C), windows and their tokens row by row."""
    B, C = x.shape[0], x.shape[-1]
    bottom, right = cut.padding
    if bottom or right:
        x = F.pad(x, (0, 0, 0, right, 0, bottom))
    x = x.reshape(B, cut.rows, cut.h, cut.cols, cut.w, C).transpose(2, 3)
    return x.reshape(B * cut.windows, cut.h * cut.w, C)


def join(x: Tensor, cut: Partition) -> Tensor:
    """(B * windows, h * w, C) -> (B, H, W, C); undoes ``split``, padding included."""
    C = x.shape[-1]
    x = x.reshape(-1, cut.rows, cut.cols, cut.h, cut.w, C).transpose(2, 3)
    x = x.reshape(-1, cut.rows * cut.h, cut.cols * cut.w, C)
    return x[:, : cut.height, : cut.width]


def key_mask(cut: Partition, like: Tensor) -> Tensor | None:
    """What to add to attention logits, (windows, 1, 1, h * w): -inf on padding, else 0.

    None if nothing is padded. Every window holds at least one real token, so no row is all -inf.
    """
    bottom, right = cut.padding
    if not (bottom or right):
        return None
    real = like.new_zeros(1, cut.height, cut.width, 1)
    padded = F.pad(real, (0, 0, 0, right, 0, bottom), value=-math.inf)
    whole = Partition(cut.rows * cut.h, cut.cols * cut.w, *cut[2:])
    return split(padded, whole).reshape(cut.windows, 1, 1, cut.h * cut.w)


def repeat_for_batch(mask: Tensor | None, tokens: Tensor) -> Tensor | None:
    """(windows, ...) -> (B * windows, ...), to go with ``tokens`` out of ``split``."""
    if mask is None:
        return None
    images = tokens.shape[0] // mask.shape[0]
    return mask.repeat(images, *[1] * (mask.ndim - 1)) if images > 1 else mask


def pad_to_multiple(images: Tensor, size: int) -> Tensor:
    """Zero-pad (B, C, H, W) at the bottom and on the right to whole patches of ``size``."""
    bottom, right = -images.shape[-2] % size, -images.shape[-1] % size
    if bottom or right:
        images = torch.nn.functional.pad(images, (0, right, 0, bottom))
    return images
