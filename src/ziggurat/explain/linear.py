"""Layer norms as linear layers."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FixedDeviation(TorchFunctionMode):
    """Layer norms divide by a deviation that is taken for a constant, so that they are linear.

    For a norm behind the mean (HiViT) this is what lets a logit be a sum over positions: the
    deviation is one number, found when all positions are known. ``value`` is taken instead of it.
    """

    def __init__(self, value: float | None = None) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """F.layer_norm alone is replaced."""
        if func is not F.layer_norm:
            return func(*args, **(kwargs or {}))
        return linear_norm(self.value, *args, **(kwargs or {}))


def linear_norm(
    value: float | None,
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm whose deviation has no gradient."""
    dims = tuple(range(-len(shape), 0))
    deviation = (x.detach().var(dims, unbiased=False, keepdim=True) + eps).sqrt()
    x = (x - x.mean(dims, keepdim=True)) / (deviation if value is None else value)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias
