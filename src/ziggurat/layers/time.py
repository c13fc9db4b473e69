"""Attention over time, put before a block that knows only space: divided space-time attention.

Frames are folded into the batch with time as its slowest part, (T * B, ...): whatever a family
does to its tokens frame by frame, what stands at one place in all frames is found by cutting the
first dimension into T.
"""

from typing import Any

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ziggurat.layers.attention import Attention


class TimeAttention(nn.Module):
    """x + W Attention(LN(x) + when): every token looks at its own place in all frames.

    TimeSformer's (arXiv:2102.05095, Section 3), which RegionViT puts before every encoder (Section
    4.3). W starts at zero, so that a fresh one changes nothing.

    Departs: TimeSformer tells frames apart by vectors that are learned from zero and added to the
    tokens themselves. Here ``when`` is sines and cosines of the frame's number, seen by this
    attention alone: an image model is not disturbed, order is known from the first step on, and
    nothing depends on how many frames there were.
    """

    when: Tensor

    def __init__(self, dim: int, heads: int, frames: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.frames = frames
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.fc = nn.Linear(dim, dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.register_buffer("when", moments(frames, dim), persistent=False)
        for linear in (self.attn.qkv, self.attn.proj, self.fc):
            nn.init.zeros_(linear.bias)
        nn.init.xavier_uniform_(self.attn.qkv.weight)  # frames differ from the start, behind W
        nn.init.xavier_uniform_(self.attn.proj.weight)
        nn.init.zeros_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(T * anything, ..., C) -> the same."""
        C = x.shape[-1]
        y = self.norm(x).reshape(self.frames, -1, C).transpose(0, 1)  # (places, T, C)
        y = self.fc(self.attn(y + self.when.to(y.dtype)))
        return x + self.drop_path(y).transpose(0, 1).reshape(x.shape)


class SpaceTimeBlock(nn.Module):
    """A block of any family that first looks through time: all its tokens, not what comes beside.

    Tokens are what is real-valued among what the block is given: one tensor, or several groups
    of windows.
    """

    def __init__(self, time: TimeAttention, space: nn.Module) -> None:
        super().__init__()
        self.time = time
        self.space = space

    def forward(self, *given: Any, **options: Any) -> Any:
        """As ``space`` takes and gives it."""
        timed = (
            self.time(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in given
        )
        return self.space(*timed, **options)


def moments(frames: int, dim: int) -> Tensor:
    """Sines, then cosines of 0 .. frames - 1 at rates from 1 down to 1 / 10000: (frames, dim)."""
    half = (dim + 1) // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(frames)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :dim]
