"""A model taken apart: its stages' shapes and what each costs."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.models.backbone import Backbone
from ziggurat.models.registry import create_model
from ziggurat.models.video import INNER


def describe(
    name: str, size: tuple[int, int] | None = None, frames: int | None = None
) -> dict[str, Any]:
    """Parts of a model in order: name, output shape, stride, blocks, parameters, multiply-adds.

    With ``frames`` the model is one of clips, which cost what all their frames cost.
    """
    with torch.device("meta"):
        whole = create_model(name, frames=frames).eval()
        model = whole.image_model if frames else whole
        channels, *trained = whole.pretrained_cfg["input_size"]
        height, width = size or trained
        images = torch.empty(frames or 1, channels, height, width)
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            whole(images[None] if frames else images)
    except (AssertionError, RuntimeError) as error:  # timm's models, for a size they do not take
        reason = str(error).splitlines()[0]
        raise ValueError(f"{name} does not take {height} x {width} images: {reason}") from None
    flops = counter.get_flop_counts()

    where = f"{type(whole).__name__}.{INNER if frames else ''}"

    def macs(module: str) -> int:
        return sum(flops.get(f"{where}{module}", {}).values()) // 2

    parts = []
    if isinstance(model, Backbone):
        with torch.no_grad():
            maps = model.forward_intermediates(images, intermediates_only=True)
        head = {"norm", "head_drop", "head"}
        stem = [n for n, _ in model.named_children() if n not in head | {"stages"}]
        parts.append(part(model, "embedding", stem, macs))
        for i, found in enumerate(maps):
            one = part(model, f"stage {i + 1}", [f"stages.{i}"], macs)
            one |= {
                "shape": list(found.shape[1:]),
                "stride": model.strides[i],
                "blocks": len(model.stage(i).blocks),
            }
            parts.append(one)
        parts.append(part(model, "head", sorted(head), macs) | {"shape": [model.num_classes]})
    else:
        for child, _ in model.named_children():
            parts.append(part(model, child, [child], macs))
    total = counter.get_total_flops() // 2
    loose = total - sum(one["macs"] for one in parts)  # of the model itself, as its parameters
    parts[0]["macs"] += loose
    params = sum(p.numel() for p in model.parameters())
    parts[0]["params"] += params - sum(one["params"] for one in parts)
    home = inspect.getmodule(type(model))
    sketch = (
        "\n".join(line for line in (home.__doc__ or "").splitlines() if line.startswith("    "))
        if home
        else ""
    )
    return {
        "name": name,
        "family": type(model).__name__,
        "input": [*([frames] if frames else []), channels, height, width],
        "params": params,
        "macs": total,
        "parts": parts,
        "sketch": sketch if isinstance(model, Backbone) else "",
    }


def part(model: nn.Module, name: str, modules: list[str], macs: Any) -> dict[str, Any]:
    """One part: the modules it is made of, added up."""
    params = [p for m in modules for p in model.get_submodule(m).parameters()]
    return {
        "name": name,
        "shape": None,
        "stride": None,
        "blocks": None,
        "params": sum(p.numel() for p in params),
        "macs": sum(macs(m) for m in modules),
    }
