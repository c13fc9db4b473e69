"""What a model weighs, costs and is built of, found on the meta device: nothing is allocated.

A multiply-add counts once (a MAC), as in every table of the papers; convolutions, linear layers
and all matrix products are counted, attention's own included, for one image in inference.
"""

import copy
import inspect
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.layers.attention import Attention
from ziggurat.models.backbone import Backbone, Stage, pair
from ziggurat.models.generators import GENERATORS, Generator, TokenGenerator, create_generator
from ziggurat.models.registry import create_model
from ziggurat.models.video import SpaceTime


class Cost(NamedTuple):
    """What a model weighs and what one image, or one clip, costs."""

    params: int  # parameters, trained or not; buffers are none
    macs: int  # multiply-adds of convolutions, linear layers and matrix products
    norms: int  # FLOPs of normalisation, at the rates of fvcore
    input_size: tuple[int, int, int]  # channels, height and width of that image
    dims: tuple[int, ...] = ()  # each stage's width and stride, of our models
    strides: tuple[int, ...] = ()

    @property
    def fvcore(self) -> int:
        """What fvcore's ``flop_count`` answers: HiViT's tables were counted with it."""
        return self.macs + self.norms


def count(
    model: nn.Module | str,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
    **overrides: Any,
) -> Cost:
    """Count a model, or the one that ``create_model`` builds under that name, or a generator.

    ``img_size`` is the size it was trained at if not given; a model whose positions depend on
    the size is built for it.

        count("nest_tiny").macs / 1e9  # 5.807
    """
    if isinstance(model, str):
        model = build(model, img_size, in_chans=in_chans or 3, **overrides)
    elif overrides:
        raise TypeError(f"a built model takes no {', '.join(overrides)}: give its name instead")
    model = on_meta(model).eval()
    if isinstance(model, Generator):
        return cost(model, model.noise(1), (model.out_chans, model.img_size, model.img_size))
    images = model.image_model if isinstance(model, SpaceTime) else model
    if in_chans is None:
        in_chans = images.in_chans if isinstance(images, Backbone) else 3
    height, width = pair(trained_size(model) if img_size is None else img_size)
    frames = (model.frames,) if isinstance(model, SpaceTime) else ()
    given = torch.empty(1, *frames, in_chans, height, width, device="meta")
    found = cost(model, given, (in_chans, height, width))
    if isinstance(images, Backbone):
        return found._replace(dims=images.dims, strides=images.strides)
    return found


def cost(model: nn.Module, given: Tensor, size: tuple[int, int, int]) -> Cost:
    """What a model on the meta device does with ``given``."""
    counter = FlopCounterMode(display=False, custom_mapping=NORMS)
    with counter, torch.no_grad():
        model(given)
    norms = sum(counter.get_flop_counts()["Global"].get(op, 0) for op in NORMS)
    return Cost(
        params=sum(parameter.numel() for parameter in model.parameters()),
        macs=(counter.get_total_flops() - norms) // 2,
        norms=norms,
        input_size=size,
    )


def peak_memory(run: Callable[[], object], device: str = "cpu") -> int:
    """Bytes by which tensors made while ``run`` runs exceed what was there before, at the most.

    The same every time: allocations are counted, not pages of the process, which move with the
    state of the heap. Scratch space inside a kernel is not a tensor and not counted.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its start and stop are no user's news
    with profile(profile_memory=True) as seen:
        run()
    live = peak = 0
    assert seen.kineto_results is not None
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


class Level(NamedTuple):
    """One stage of a model. Where nothing attends, the last three are 0."""

    dim: int
    depth: int  # blocks
    heads: int
    windows: int  # that attention is cut into: NesT's blocks, RegionViT's regions, or 1
    side: int  # tokens a side of a window; a regional token more does not matter

    @property
    def head_dim(self) -> int:
        """Channels of each head."""
        return self.dim // self.heads if self.heads else 0


def levels(
    name: str, img_size: int | tuple[int, int] | None = None, **overrides: Any
) -> list[Level]:
    """The stages of one of our models, finest first, as an image of that size meets them."""
    model = build(name, img_size, **overrides).eval()
    assert isinstance(model, Backbone | TokenGenerator), f"{name} is none of ours"
    met: dict[nn.Module, torch.Size] = {}

    def meet(attention: nn.Module, args: tuple[Tensor, ...]) -> None:
        met[attention] = args[0].shape  # (windows, tokens, C); RegionViT's regional call is first

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(meet)
    with torch.no_grad():
        if isinstance(model, Backbone):
            size = pair(trained_size(model) if img_size is None else img_size)
            model(torch.empty(1, model.in_chans, *size, device="meta"))
        else:
            model(model.noise(1))
    found = []
    for dim, stage in zip(model.dims, model.stages, strict=True):
        assert isinstance(stage, Stage)
        heads = windows = side = 0
        for module in stage.modules():
            if isinstance(module, Attention):
                windows, tokens, _ = met[module]
                heads, side = module.heads, math.isqrt(tokens)
        found.append(Level(dim, len(stage.blocks), heads, windows, side))
    return found if isinstance(model, Backbone) else found[::-1]


def build(name: str, img_size: int | tuple[int, int] | None, **options: Any) -> nn.Module:
    """The model of that name on the meta device, for that size if it has to know it."""
    with torch.device("meta"):
        return sized(name, img_size, **options)


def sized(name: str, img_size: int | tuple[int, int] | None, **options: Any) -> nn.Module:
    """The same with its weights."""
    if name in GENERATORS:
        options = {key: value for key, value in options.items() if key != "in_chans"}
        return create_generator(name, **options | ({"img_size": img_size} if img_size else {}))
    model = create_model(name, **options)
    if img_size is None or pair(img_size) == trained_size(model):
        return model
    inner = model.image_model if isinstance(model, SpaceTime) else model
    if "img_size" not in inspect.signature(type(inner)).parameters:
        return model
    return create_model(name, img_size=img_size, **options)


def trained_size(model: nn.Module) -> tuple[int, int]:
    """Height and width that timm's configuration of a model names."""
    config = getattr(model, "pretrained_cfg", None)
    if config is None:
        raise TypeError(f"{type(model).__name__} does not say what size it is for: give img_size")
    _, height, width = config["input_size"]
    return height, width


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
) -> int:  # fmt: skip
    """fvcore: 2 in inference, 1 without weight; an instance norm, always training, as above."""
    if training:
        return layer_norm(shape, None, weight)
    return math.prod(shape) * (2 if weight is not None else 1)


NORMS: dict[Any, Any] = {
    torch.ops.aten.native_layer_norm: layer_norm,
    torch.ops.aten.native_group_norm: group_norm,
    torch.ops.aten.native_batch_norm: batch_norm,
}
