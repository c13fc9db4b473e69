"""Linear layers and the MLP; on a CPU large float32 products are oneDNN's, not MKL's.

Eager torch gives float32 products to MKL, behind a pass that writes the bias and before one that
applies GELU. oneDNN, which torch carries along for ``torch.compile``, does all three in one, and
is up to 1.4 times as fast where matrices are tall and narrow, as a first stage's are.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
MACHINE: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch: nothing
WIDE_AMD = "AMD" in MACHINE.get("cpu_name", "") and bool(MACHINE.get("avx_vnni"))  # Zen 5 and on
SMALL = 2**24  # multiply-adds; below, preparing oneDNN's call takes longer than it saves
LARGE = 3 * 2**21  # numbers; 24 MiB leave caches, and from 32 on glibc asks the system every time
PART = 2**20  # numbers of a hidden layer that is computed in parts


def is_plain(x: Tensor) -> bool:
    """Whether these are real float32 numbers on a CPU, outside of graphs."""
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and type(x) is Tensor
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
    )


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is to multiply."""
    return (
        ONEDNN
        and is_plain(x)
        and weight.dtype is torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and x.ndim > 1
        and x.numel() * weight.shape[0] >= SMALL
    )


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None = None) -> Tensor:
    """x W^T + b or, with one of GELU's forms, GELU of it; knows no gradient."""
    return torch.ops.mkldnn._linear_pointwise(
        x, weight, bias, "none" if gelu is None else "gelu", [], gelu or ""
    )


class Product(torch.autograd.Function):
    """x W^T + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(..., C) -> (..., C')."""
        ctx.save_for_backward(x, weight)
        return onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """By x, W and b; can be differentiated again."""
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_weight = by_weight(rows, x.flatten(0, -2)) if ctx.needs_input_grad[1] else None
        return (  # the largest last: what was in the way of the others is gone
            linear(grad, weight.t(), None) if ctx.needs_input_grad[0] else None,
            of_weight,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


def by_weight(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient by W (C', C), of rows (N, C') and (N, C).

    Here oneDNN is not the faster one, unless MKL leaves half of each vector unused; then the wider
    of the two is to be what oneDNN takes for the weight.
    """
    if not WIDE_AMD:
        return grad.t() @ x
    if grad.shape[1] < x.shape[1]:
        return linear(grad.t(), x.t(), None)
    return linear(x.t(), grad.t(), None).t().contiguous()  # else autograd would copy it


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b."""
    if not by_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return Product.apply(x, weight, bias)
    return onednn(x, weight, bias)


class Linear(nn.Linear):
    """torch's, faster on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C')."""
        return linear(x, self.weight, self.bias)


class Mlp(nn.Module):
    """Linear, GELU, linear; ``gelu`` is its form, "none" (erf) or "tanh"."""

    def __init__(self, dim: int, hidden: int, gelu: str = "none") -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.act = nn.GELU(gelu)
        self.fc2 = Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        fc1, act, fc2 = self.fc1, self.act, self.fc2
        together = not torch.is_grad_enabled() and untouched(fc1) and untouched(act, nn.GELU)
        if not together or not by_onednn(x, fc1.weight):
            return fc2(act(fc1(x)))
        rows = x.flatten(0, -2)
        if len(rows) * fc1.out_features <= LARGE or not untouched(fc2):
            return fc2(onednn(x, fc1.weight, fc1.bias, act.approximate))
        out = rows.new_empty(len(rows), fc2.out_features)
        part = max(1, PART // fc1.out_features)  # its pages, once touched, are used again
        for given, found in zip(rows.split(part), out.split(part), strict=True):
            found.copy_(fc2(onednn(given, fc1.weight, fc1.bias, act.approximate)))
        return out.unflatten(0, x.shape[:-1])


def untouched(layer: nn.Module, kind: type[nn.Module] = Linear) -> bool:
    """Whether a layer is what it was built as, and nobody listens to it."""
    return type(layer) is kind and not heard(layer)


def heard(layer: nn.Module) -> bool:
    """Whether somebody listens to it."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


if ONEDNN:

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def flops(x: torch.Size, weight: torch.Size, *rest: Any, **out: Any) -> int:
        """Two for each multiply-add."""
        return 2 * x.numel() * weight[0]
