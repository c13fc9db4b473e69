"""Parameters and multiply-adds of a model, counted on the meta device: nothing is allocated.

A multiply-add is one (a MAC), as in every table of the papers; convolutions, linear layers and all
matrix products are counted, attention's own included, for one image in inference.
"""

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.models import registry


class Cost(NamedTuple):
    """What a model weighs and what one image costs."""

    params: int  # parameters, trained or not; buffers are none
    macs: int  # multiply-adds of convolutions, linear layers and matrix products
    norms: int  # FLOPs of normalisation, at the rates of fvcore

    @property
    def fvcore(self) -> int:
        """What fvcore's ``flop_count`` answers: HiViT's tables were counted with it."""
        return self.macs + self.norms


def count(
    model: nn.Module | str,
    img_size: int | tuple[int, int] = 224,
    in_chans: int = 3,
    **overrides: Any,
) -> Cost:
    """Count a model, or the one that ``create_model`` builds under that name.

    Our families are built for ``img_size`` (their positions depend on it); timm's models only run
    at it: where they can be built for another size, ``overrides`` has to say so as well.

        count("nest_tiny").macs / 1e9  # 5.807
        count("timm/vit_base_patch16_224", 384, img_size=384)
    """
    if isinstance(model, str):
        if model in registry.VARIANTS:
            overrides = {"img_size": img_size, **overrides}
        with torch.device("meta"):
            model = registry.create_model(model, in_chans=in_chans, **overrides)
    elif overrides:
        raise TypeError(
            f"{', '.join(overrides)} can be changed while a model is built: give its name"
        )
    model = on_meta(model).eval()
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    images = torch.empty(1, in_chans, height, width, device="meta")
    counter = FlopCounterMode(display=False, custom_mapping=NORMS)
    with counter, torch.inference_mode():
        model(images)
    norms = sum(counter.get_flop_counts()["Global"].get(op, 0) for op in NORMS)
    params = sum(parameter.numel() for parameter in model.parameters())
    return Cost(params, (counter.get_total_flops() - norms) // 2, norms)


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model without its numbers; the model stays as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    copies: dict[int, Any] = {id(tensor): without_numbers(tensor) for tensor in tensors}
    return copy.deepcopy(model, copies)


def without_numbers(tensor: Tensor) -> Tensor:
    """The same shape and type on the meta device; a parameter stays one, but wants no gradient."""
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


def layer_norm(shape: torch.Size, normalized: Any, weight: Any, *rest: Any, **out: Any) -> int:
    """fvcore: 5 FLOPs an element, 4 without weight and bias."""
    return math.prod(shape) * (5 if weight is not None else 4)


def group_norm(shape: torch.Size, weight: Any, *rest: Any, **out: Any) -> int:
    """fvcore: as a layer norm."""
    return layer_norm(shape, None, weight)


def batch_norm(
    shape: torch.Size, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any,
    **out: Any,
) -> int:
    """fvcore: one multiply-add in inference; an instance norm, always training, as a layer norm."""
    if training:
        return layer_norm(shape, None, weight)
    return math.prod(shape) * (2 if weight is not None else 1)


NORMS: dict[Any, Any] = {
    torch.ops.aten.native_layer_norm: layer_norm,
    torch.ops.aten.native_group_norm: group_norm,
    torch.ops.aten.native_batch_norm: batch_norm,
}
