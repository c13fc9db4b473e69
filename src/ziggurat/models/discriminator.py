"""StyleGAN2's residual discriminator (https://arxiv.org/abs/1912.04958), which NesT trains against.

    images -> 1x1 -> [conv3, blur, conv3 / 2  +  blur / 2, 1x1] ... 4 x 4 -> deviation -> logit

All generators of NesT's Figure 7 play against it (Appendix A.4), under the R1 penalty: the gradient
of the logits by the images has itself to be differentiated, so every step here can be.
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 4  # the side at which the blocks end
GROUP = 4  # images whose deviation is taken together
SLOPE = 0.2
BLUR = (1.0, 3.0, 3.0, 1.0)


class Equal(nn.Module):
    """Equalised learning rate (arXiv:1710.10196, Section 4.1): N(0, 1) weights, scaled when used.

    All weights then move at one pace under Adam, however many there are in a layer.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...], bias: bool = True) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None


class Linear(Equal):
    """A linear layer."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__((dim, dim_in))

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim_in) -> (B, dim)."""
        return F.linear(x, self.weight * self.scale, self.bias)


class Conv(Equal):
    """A convolution on (B, C, H, W): with zeros around it as it is, or blurred and halved."""

    kernel: Tensor

    def __init__(
        self, dim_in: int, dim: int, size: int, halve: bool = False, bias: bool = True
    ) -> None:
        super().__init__((dim, dim_in, size, size), bias)
        self.size, self.halve = size, halve
        if halve:
            self.register_buffer("kernel", blur_kernel(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim_in, H, W) -> (B, dim, H, W), or half of both."""
        weight = self.weight * self.scale
        if not self.halve:
            return F.conv2d(x, weight, self.bias, padding=self.size // 2)
        if self.size == 1:  # every second pixel is looked at: only these are blurred
            return F.conv2d(blur(x, self.kernel, 1, stride=2), weight, self.bias)
        return F.conv2d(blur(x, self.kernel, 2), weight, self.bias, stride=2)


def blur_kernel() -> Tensor:
    """[1, 3, 3, 1] down times across, of sum 1: (4, 4)."""
    line = torch.tensor(BLUR)
    square = line[:, None] * line
    return square / square.sum()


def blur(x: Tensor, kernel: Tensor, padding: int, stride: int = 1) -> Tensor:
    """Each channel by itself."""
    C = x.shape[1]
    return F.conv2d(x, kernel.expand(C, 1, -1, -1), padding=padding, stride=stride, groups=C)


def rectified(x: Tensor) -> Tensor:
    """Leaky ReLU that keeps the second moment near 1."""
    return F.leaky_relu(x, SLOPE) * math.sqrt(2)


class Down(nn.Module):
    """One resolution: two convolutions and a skip, half the side (its Fig. 7c)."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.conv1 = Conv(dim_in, dim_in, 3)
        self.conv2 = Conv(dim_in, dim, 3, halve=True)
        self.skip = Conv(dim_in, dim, 1, halve=True, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim_in, H, W) -> (B, dim, H / 2, W / 2)."""
        y = rectified(self.conv2(rectified(self.conv1(x))))
        return (y + self.skip(x)) / math.sqrt(2)


def deviation(x: Tensor) -> Tensor:
    """How much images of a group differ, as one more map (arXiv:1710.10196, Section 3).

    The deviation over the group at each place of each channel, averaged: one number a group.

    Departs: the official code takes only batches that GROUP divides, or smaller ones; here the
    group is the largest divisor of the batch up to GROUP. At a prime number of images from 5 up
    that is 1, and nothing is told: take even batches.
    """
    B, _, H, W = x.shape
    group = next(n for n in range(min(GROUP, B), 0, -1) if B % n == 0)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # half precision has no 1e-8
    spread = wide.unflatten(0, (group, -1)).var(0, unbiased=False)  # images B / group apart
    found = (spread + 1e-8).sqrt().mean((1, 2, 3)).to(x.dtype)
    return found.repeat(group)[:, None, None, None].expand(B, 1, H, W)


class Discriminator(nn.Module):
    """Images (B, in_chans, img_size, img_size) to logits (B,): higher for what looks real.

    Maps are ``dim`` wide up to the side ``full_to``; beyond, each doubling of the side halves the
    width. 512 and 64 are StyleGAN2's (configuration F); 128 and 8 are for a laptop.

    NesT names no width. At 64 x 64, StyleGAN2's is 512 throughout.
    """

    def __init__(self, img_size: int, dim: int = 512, full_to: int = 64, in_chans: int = 3) -> None:
        super().__init__()
        if img_size < 2 * SMALLEST or img_size & (img_size - 1):
            raise ValueError(
                f"a discriminator halves its images down to {SMALLEST} x {SMALLEST}: img_size is "
                f"8, 16, 32, 64 and so on, got {img_size}"
            )
        sides = [img_size >> i for i in range(int(math.log2(img_size // SMALLEST)) + 1)]
        dims = [dim * min(full_to, side) // side for side in sides]
        if min(dims) < 1:
            raise ValueError(
                f"dim={dim} halved from side {full_to} to {img_size} leaves no channel: "
                f"take dim={-(-img_size // full_to)} or more, or a larger full_to"
            )
        self.img_size, self.in_chans, self.dims = img_size, in_chans, tuple(dims)
        self.embed = Conv(in_chans, dims[0], 1)
        self.blocks = nn.Sequential(*(Down(fine, coarse) for fine, coarse in pairwise(dims)))
        self.conv = Conv(dims[-1] + 1, dims[-1], 3)
        self.linear = Linear(dims[-1] * SMALLEST**2, dims[-1])
        self.head = Linear(dims[-1], 1)

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B,)."""
        wanted = (self.in_chans, self.img_size, self.img_size)
        if images.ndim != 4 or images.shape[1:] != wanted:
            raise ValueError(
                f"this discriminator takes images as (batch, {', '.join(map(str, wanted))}), "
                f"got {tuple(images.shape)}: build it with another img_size or in_chans"
            )
        x = self.blocks(rectified(self.embed(images)))
        x = rectified(self.conv(torch.cat([x, deviation(x)], 1)))
        return self.head(rectified(self.linear(x.flatten(1)))).squeeze(1)


DISCRIMINATORS: dict[str, dict[str, Any]] = {
    "discriminator": dict(dim=512, full_to=64),
    "discriminator_small": dict(dim=128, full_to=8),
}
