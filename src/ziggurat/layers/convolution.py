"""Convolutions on maps whose channels come last, in memory at least."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers.linear import untouched


class Conv(nn.Conv2d):
    """A convolution on (B, H, W, C) that gives one token for every stride, begun ones included."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), C'); zeros beyond the border."""
        bottom, right = self.lacking(x.shape[1]), self.lacking(x.shape[2])
        if bottom or right:
            x = F.pad(x, (0, 0, 0, right, 0, bottom))
        # Channels stay last in memory: the permutations are free.
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def lacking(self, length: int) -> int:
        """What the last token's kernel lacks: 0 if it has ``padding`` enough."""
        kernel, stride, padding = self.weight.shape[2], self.stride[0], int(self.padding[0])
        return max((math.ceil(length / stride) - 1) * stride + kernel - 2 * padding - length, 0)


def normed(conv: nn.Conv2d, norm: nn.Module, x: Tensor) -> Tensor:
    """``norm(conv(x))``; a batch norm in evaluation is put into the weights, which saves a pass.

    Not in a graph: who runs it does that by itself, and nncf wants a convolution's own weights.
    """
    plain = untouched(conv, nn.Conv2d) and untouched(norm, nn.BatchNorm2d)
    plain = plain and not torch.compiler.is_compiling()
    if not plain or not isinstance(norm, nn.BatchNorm2d) or norm.training:
        return norm(conv(x))
    if norm.running_mean is None or norm.running_var is None or not norm.affine:
        return norm(conv(x))
    gain = norm.weight * (norm.running_var + norm.eps).rsqrt()
    mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
    weight, bias = conv.weight * gain[:, None, None, None], norm.bias - mean * gain
    return F.conv2d(x, weight, bias, conv.stride, conv.padding)
