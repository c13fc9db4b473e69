"""What a model makes its answer of, and how that lies on the image: nobody has to choose a layer.

A view is the last map whose every position still counts: what the head pools. Where the head reads
tokens that are not of the image (a class token, RegionViT's regional ones), the patches' last word
comes before: there it is the last map that these tokens look at.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ziggurat.explain.linear import FixedDeviation
from ziggurat.models.backbone import Backbone
from ziggurat.models.hvt import HVT, stretch
from ziggurat.models.regionvit import RegionViT

Lay = Callable[[Tensor], Tensor]


class View(NamedTuple):
    """A map in the graph of the logits."""

    values: Tensor  # as the model has it
    logits: Tensor  # (B, classes)
    positions: Lay  # values, or their gradients, as (B, P, C)
    lay: Lay  # something of each position, (K, P), on the image: (K, H', W')
    covered: tuple[int, int]  # height and width in pixels; more than the image where it is padded


class Unseen(ValueError):
    """Why a model cannot be seen through; goes on from its name."""


def look(model: nn.Module, images: Tensor, linear: bool = False) -> View:
    """The view of one forward; ``linear`` takes the deviations of the head's norms for constants.

    No gradient goes further down than the view, so nothing is kept for one.
    """
    if isinstance(model, HVT):
        return of_tokens(model, images, linear)
    if isinstance(model, RegionViT) and model.regional_embed is not None:
        return last_local(model, images)
    if not reads_positions(model):
        with torch.enable_grad(), entering_last_block(model) as found:
            logits = model(images)
        values = found[0]
    else:
        with torch.no_grad():
            values = model.forward_features(images)  # type: ignore[operator]
        if not isinstance(values, Tensor) or values.ndim not in (3, 4):
            raise Unseen("gives no map of features")
        values, logits = answered(model, values, linear)
    return View(values, logits, *layout(model, values, images))


def answered(model: nn.Module, values: Tensor, linear: bool) -> tuple[Tensor, Tensor]:
    """What the head says of values, in a graph that begins at them."""
    values = values.detach().requires_grad_()
    with torch.enable_grad(), FixedDeviation() if linear else nullcontext():
        return values, model.forward_head(values)  # type: ignore[operator]


def averages(model: nn.Module, images: Tensor) -> bool:
    """Whether logits are a mean over positions of something linear, norms taken as linear.

    If so, one gradient holds for all positions, whatever they hold.
    """
    if not hasattr(model, "forward_features") or not hasattr(model, "forward_head"):
        raise Unseen("has no forward_features and forward_head, as timm's models have")
    view = look(model, images)
    if not reads_positions(model):
        return False
    found = []
    for values in (view.values, torch.randn_like(view.values)):
        values = values.detach().requires_grad_()
        with torch.enable_grad(), FixedDeviation(1.0):
            logits = model.forward_head(values)  # type: ignore[operator]
        found.append(view.positions(torch.autograd.grad(logits[0, 0], values)[0])[0])
    other = torch.stack([*(found[0] - found[1]), *(found[0] - found[0][:1])])
    return bool(other.abs().amax() <= 1e-4 * found[0].abs().amax())


def reads_positions(model: nn.Module) -> bool:
    """Whether the head takes all positions; not so if it takes the class token alone."""
    if isinstance(model, HVT):
        return model.cls_token is None
    return getattr(model, "global_pool", "avg") != "token"


def of_tokens(model: HVT, images: Tensor, linear: bool) -> View:
    """HVT's tokens; pooled in 1-D, they are stretched back to all patches (its Fig. 3)."""
    with torch.enable_grad(), entering_last_block(model) as found:
        state = model.embed(model.checked(images))
        for stage in model.stages:
            state = stage(state)
        tokens = model.finish(state)
        logits = model.forward_head(tokens)
    first, values = 1, found[0]
    if model.cls_token is None:
        first = 0
        values, logits = answered(model, tokens, linear)
    grid, stride = state.grid, model.strides[-1]

    def lay(heat: Tensor) -> Tensor:
        return stretch(heat[..., None], grid[0] * grid[1])[..., 0].unflatten(1, grid)

    covered = grid[0] * stride, grid[1] * stride
    return View(values, logits, lambda x: x[:, first:], lay, covered)


def last_local(model: RegionViT, images: Tensor) -> View:
    """RegionViT's local tokens on entering its last stage, where regional ones look at them."""
    with torch.no_grad():
        state = model.embed(model.checked(images))
        for stage in model.stages[:-1]:
            state = stage(state)
    local = state.local.detach().requires_grad_()
    with torch.enable_grad():
        last = model.finish(model.stages[-1](state._replace(local=local)))
        logits = model.forward_head(last)
    rows, cols = local.shape[1:3]
    stride = model.strides[max(len(model.strides) - 2, 0)]
    covered = rows * stride, cols * stride
    return View(local, logits, lambda x: x.flatten(1, 2), onto(rows, cols), covered)


@contextmanager
def entering_last_block(model: nn.Module) -> Iterator[list[Tensor]]:
    """The tokens that the last block takes: a class token looks at them there for the last time.

    The graph begins there.
    """
    found: list[Tensor] = []

    def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        found.append(args[0].detach().requires_grad_())
        return (found[0], *args[1:])

    handle = last_block(model).register_forward_pre_hook(begin)
    try:
        yield found
    finally:
        handle.remove()


def last_block(model: nn.Module) -> nn.Module:
    """The last block of a plain transformer."""
    blocks = model.stage(-1).blocks if isinstance(model, Backbone) else getattr(model, "blocks", ())
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        raise Unseen("reads a class token and has no list of blocks")
    return blocks[-1]


def layout(model: nn.Module, values: Tensor, images: Tensor) -> tuple[Lay, Lay, tuple[int, int]]:
    """How values become positions, how positions lie on the image, and what they cover of it."""
    size = images.shape[2], images.shape[3]
    if values.ndim == 3:
        first = int(getattr(model, "num_prefix_tokens", 0))
        rows, cols = grid_of(model, values.shape[1] - first, size)
        return lambda x: x[:, first:], onto(rows, cols), size
    if channels_last(model, values):
        return lambda x: x.flatten(1, 2), onto(*values.shape[1:3]), size
    rows, cols = values.shape[2:]
    if isinstance(model, Backbone):
        size = rows * model.strides[-1], cols * model.strides[-1]
    return lambda x: x.flatten(2).transpose(1, 2), onto(rows, cols), size


def onto(height: int, width: int) -> Lay:
    """Positions row by row."""
    return lambda heat: heat.unflatten(1, (height, width))


def channels_last(model: nn.Module, values: Tensor) -> bool:
    """Whether a map of timm's is (B, H, W, C)."""
    said = getattr(model, "output_fmt", None)
    if said is not None:
        return str(getattr(said, "value", said)) == "NHWC"
    return values.shape[1] != model.num_features and values.shape[3] == model.num_features


def grid_of(model: nn.Module, tokens: int, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a plain transformer's patches."""
    embed = getattr(model, "patch_embed", None)
    asked = getattr(embed, "dynamic_feat_size", None)
    for grid in (asked(size) if asked else None, getattr(embed, "grid_size", None)):
        if grid is not None and grid[0] * grid[1] == tokens:
            return int(grid[0]), int(grid[1])
    rows = round((tokens * size[0] / size[1]) ** 0.5)
    if rows < 1 or tokens % rows:
        raise Unseen(f"has {tokens} tokens that lie on no known grid")
    return rows, tokens // rows


def gradients(view: View, classes: Sequence[int]) -> list[Tensor]:
    """Of each class's logit, by the view's positions: (P, C). One forward serves all."""
    found = []
    for number in classes:
        gradient = torch.autograd.grad(view.logits[0, number], view.values, retain_graph=True)[0]
        found.append(view.positions(gradient)[0])
    return found


def kind(model: nn.Module) -> str:
    """What to call it."""
    if isinstance(model, Backbone):
        return model.name
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    return str(config.get("architecture") or type(model).__name__)
