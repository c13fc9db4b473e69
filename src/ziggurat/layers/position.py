"""Learned positions: a grid added to tokens, a relative bias added to attention, resized at need.

Both are used at the size they were learned at as they are, bit by bit; at any other size they are
resized (bicubic). In inference the resized or spread-out form is kept from call to call.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resize(grid: Tensor, height: int, width: int) -> Tensor:
    """Bicubic resizing of (1, H, W, C), as it is where the size already fits."""
    if grid.shape[1:3] == (height, width):
        return grid
    wide = grid if grid.dtype in (torch.float32, torch.float64) else grid.float()
    wide = F.interpolate(
        wide.permute(0, 3, 1, 2), size=(height, width), mode="bicubic", antialias=True
    )
    return wide.permute(0, 2, 3, 1).to(grid.dtype)


def resize_bias(table: Tensor, height: int, width: int) -> Tensor:
    """Bicubic resizing of (heads, H, W)."""
    return resize(table.permute(1, 2, 0)[None], height, width)[0].permute(2, 0, 1)


LARGEST_KEPT = 4 * 2**20  # bytes; at 224 px the largest bias is of 2.5 MB (RegionViT-B+)


def same(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors on the CPU have the same values; elsewhere their stamp has told."""
    return new.device.type != "cpu" or torch.equal(old, new)


class LearnedTable(nn.Module):
    """A parameter ``table`` and, in inference only, what was last made of it."""

    table: nn.Parameter

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self._kept: tuple[Hashable, Tensor, Any] | None = None

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, or the last answer if neither key nor table changed since.

        Nothing is kept in training, where gradients must flow, while a graph is traced, or if it
        is large: every block has a table. A change is seen however it is made: an average that
        writes through ``table.data`` leaves no trace but the values, so these are compared (they
        are few beside what is made of them). On an accelerator that would mean waiting for it;
        there, address and version are compared.
        """
        table = self.table
        if (
            self.training
            or type(table) is not nn.Parameter  # put in its place by torch.func
            or table.is_meta
            or torch.compiler.is_compiling()
            or (torch.is_grad_enabled() and table.requires_grad)
        ):
            return make()
        stamp: Hashable = (key, table.dtype, table.device, torch.is_inference_mode_enabled())
        if table.device.type != "cpu":
            if table.is_inference():
                return make()  # such a tensor does not count its changes
            stamp = (stamp, table.data_ptr(), table._version)
        kept = self._kept
        if kept is not None and kept[0] == stamp and same(kept[1], table):
            return kept[2]
        self._kept, made = None, make()
        parts = made if isinstance(made, list) else [made]
        if sum(part.nbytes for part in parts) <= LARGEST_KEPT:
            snapshot = table.detach().clone() if table.device.type == "cpu" else table.detach()
            self._kept = (stamp, snapshot, made)
        return made

    def fit(self, table: Tensor) -> Tensor:
        """A table learned at another size, resized to this one's."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> "LearnedTable":
        """Forget what was kept: training changes the table."""
        self._kept = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """What ``pickle`` and ``deepcopy`` take along: everything but what can be made again."""
        return {**self.__dict__, "_kept": None}


class GridPosition(LearnedTable):
    """An absolute position for each cell of a grid; ``table`` is (1, H, W, C)."""

    def __init__(self, height: int, width: int, dim: int) -> None:
        super().__init__(torch.zeros(1, height, width, dim))

    def forward(self, height: int, width: int) -> Tensor:
        """(1, height, width, C), resized if the grid was learned at another size."""
        if self.table.shape[1:3] == (height, width):
            return self.table
        return self.kept((height, width), lambda: resize(self.table, height, width))

    def fit(self, table: Tensor) -> Tensor:
        """Bicubic, over the whole grid."""
        return resize(table, *self.table.shape[1:3]) if table.ndim == 4 else table


class RelativeBias(LearnedTable):
    """A bias for each head and offset; ``table`` is (heads, 2 H - 1, 2 W - 1).

    Entry (H - 1 + dy, W - 1 + dx) is for a query dy rows below and dx columns right of its key.
    """

    def __init__(self, heads: int, height: int, width: int) -> None:
        super().__init__(torch.zeros(heads, 2 * height - 1, 2 * width - 1))

    def forward(self, height: int, width: int) -> Tensor:
        """(heads, N, N) for N = height * width tokens in row-major order."""
        return self.kept((height, width), lambda: self.spread(height, width))

    def fit(self, table: Tensor) -> Tensor:
        """Bicubic: an offset stands for the same share of the window as before."""
        return resize_bias(table, *self.table.shape[1:]) if table.ndim == 3 else table

    def spread(self, height: int, width: int) -> Tensor:
        """Read each pair's entry off the table.

        The keys of one query lie in a height x width cut-out of the mirrored table; all
        cut-outs together are its sliding windows, so no index table is needed.
        """
        table = resize_bias(self.table, 2 * height - 1, 2 * width - 1)
        windows = table.flip(1, 2).unfold(1, height, 1).unfold(2, width, 1).flip(1, 2)
        return windows.reshape(table.shape[0], height * width, height * width)


def sin_cos(height: int, width: int, dim: int) -> Tensor:
    """The fixed 2-D sine-cosine table of MAE, (1, height, width, dim).

    The first half of the channels encodes the column, the second the row; each half is
    [sin | cos] of position / 10000^(i / (dim / 4)).
    """
    if dim % 4:
        raise ValueError(f"a 2-D sine-cosine table needs a width divisible by 4, got {dim}")
    omega = torch.arange(dim // 4, dtype=torch.float64) / (dim / 4)
    omega = torch.exp(-math.log(10000.0) * omega)
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64),
        torch.arange(width, dtype=torch.float64),
        indexing="ij",
    )
    x, y = x[..., None] * omega, y[..., None] * omega
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)[None].float()
