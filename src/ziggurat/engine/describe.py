"""A model taken apart: its stages' shapes and what each costs."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.models.backbone import Backbone, Stage
from ziggurat.models.generators import ConvGenerator, TokenGenerator, create_generator
from ziggurat.models.registry import create_model
from ziggurat.models.video import INNER


def describe(
    name: str, size: tuple[int, int] | None = None, frames: int | None = None
) -> dict[str, Any]:
    """Parts of a model in order: name, output shape, stride, blocks, parameters, multiply-adds.

    With ``frames`` the model is one of clips, which cost what all their frames cost.
    """
    if "generat" in name:
        if size or frames:
            raise ValueError(f"{name} makes images, of one size: leave --size and --frames out")
        return describe_generator(name)
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

    parts: list[dict[str, Any]] = []
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
    given = [*([frames] if frames else []), channels, height, width]
    return whole_of(name, model, given, parts, counter)


def describe_generator(name: str) -> dict[str, Any]:
    """The same of a generator, whose image is its output: from noise to pixels."""
    with torch.device("meta"):
        model = create_generator(name).eval()
        noise = model.noise(1)
    inner = [*(model.stages if isinstance(model, TokenGenerator) else convolutions(model))]
    shapes: dict[nn.Module, list[int]] = {}
    for module in inner:
        module.register_forward_hook(lambda one, _, out: shapes.update({one: [*out.shape[1:]]}))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        made = model(noise)
    flops = counter.get_flop_counts()

    def macs(module: str) -> int:
        return sum(flops.get(f"{type(model).__name__}.{module}", {}).values()) // 2

    parts = [part(model, "embedding", ["embed"], macs)]
    for i, module in enumerate(inner):
        tokens = isinstance(module, Stage)
        modules = [f"stages.{i}", f"grow.{i}"] if tokens else [f"blocks.{i}"]
        shape = shapes[module]  # tokens have their channels last
        parts.append(
            part(model, f"level {i + 1}", modules, macs)
            | {
                "shape": [shape[-1], *shape[:-1]] if tokens else shape,
                "blocks": len(module.blocks) if tokens else 1,
            }
        )
    parts.append(part(model, "head", ["norm", "head"], macs) | {"shape": [*made.shape[1:]]})
    return whole_of(name, model, [model.latent], parts, counter)


def convolutions(model: nn.Module) -> nn.Sequential:
    """The blocks of the convolutional one."""
    assert isinstance(model, ConvGenerator)
    return model.blocks


def whole_of(
    name: str, model: nn.Module, given: list[int], parts: list[dict[str, Any]], counter: Any
) -> dict[str, Any]:
    """All parts; what is in none of them belongs to the first."""
    total = counter.get_total_flops() // 2
    params = sum(p.numel() for p in model.parameters())
    parts[0]["macs"] += total - sum(one["macs"] for one in parts)
    parts[0]["params"] += params - sum(one["params"] for one in parts)
    home = inspect.getmodule(type(model))
    ours = isinstance(model, Backbone | TokenGenerator) and home is not None
    lines = (home.__doc__ or "").splitlines() if ours and home else []
    return {
        "name": name,
        "family": type(model).__name__,
        "input": given,
        "params": params,
        "macs": total,
        "parts": parts,
        "sketch": "\n".join(line for line in lines if line.startswith("    ")),
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
