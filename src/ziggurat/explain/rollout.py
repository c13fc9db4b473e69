"""Attention rollout: which patches a model's attention leads to (arXiv:2005.00928).

A skeleton has a model's routes and none of its features: a token is one number. A block gives a
token its own number and those that its attention finds, with the attention as weights, all of it
over the sum of the weights. A merge gives it the mean of the tokens that it stands for: those its
stride covers, so that none counts twice where windows overlap. The answer is what the head reads,
the mean or the class token. It is linear in the patches' numbers, and its gradient by them is the
rollout: shares of the answer, none negative, that sum to 1 (less what a class token starts with).
For a plain ViT that is the product of all (A + I) / 2, rows made to sum to 1.

NesT's paper follows "an improved version" (its Appendix A.5, Gildenblat 2021), and so do we: of
the heads the strongest counts, and the lowest nine tenths of each attention matrix are dropped. No
gradient of a class is in it: the rollout of an image is the same for every class.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ziggurat.explain.view import grid_of
from ziggurat.layers import windows
from ziggurat.models.backbone import Backbone
from ziggurat.models.hivit import HiViT, WindowStage
from ziggurat.models.hvt import HVT, GridPool, PoolingStage, SequencePool
from ziggurat.models.nest import Level, NesT, QueryDown
from ziggurat.models.regionvit import R2LStage, Regions, RegionViT, Tokens
from ziggurat.models.rest import EMSA, ResT

DROPPED = 0.9  # of each attention matrix, the lowest

Maps = Iterator[Tensor]  # (windows, queries, keys), in the order they are met


class Recorded(TorchFunctionMode):
    """Keeps what softmax gives to attention, the strongest of all heads: (B, N, N')."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Attention is computed in the open; everything else as ever."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self.attend(*args, **kwargs)
        found = func(*args, **kwargs)
        if func in (Tensor.softmax, torch.softmax, F.softmax) and found.ndim == 4:
            self.maps.append(self.kept(found))
        return found

    def kept(self, attention: Tensor) -> Tensor:
        """(B, heads, N, N') -> (B, N, N')."""
        return attention.amax(1)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
        **others: object,
    ) -> Tensor:
        """softmax(q k^T / sqrt(d) + mask) v; no model here asks for more."""
        logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        found = (logits if attn_mask is None else logits + attn_mask).softmax(-1)
        self.maps.append(self.kept(found))
        return found @ v


def rollout(model: nn.Module, image: Tensor) -> tuple[Tensor, int]:
    """Each patch's share of the answer, (H, W), and how many pixels a side a patch has."""
    skeleton, stride = known(model)
    with torch.no_grad(), Recorded() as found:
        model(image)
    maps = iter([strongest(one) for one in found.maps])
    height, width = image.shape[2:]
    grid = -(-height // stride), -(-width // stride)
    if isinstance(model, VisionTransformer):
        tokens = found.maps[0].shape[2] - model.num_prefix_tokens
        grid = grid_of(model, tokens, (height, width))
    patches = image.new_zeros(1, *grid, 1)
    with torch.enable_grad():
        answer = skeleton(model, patches.requires_grad_(), maps)
        shares = torch.autograd.grad(answer, patches)[0]
    assert next(maps, None) is None, "a skeleton has as many attentions as its model"
    return shares[0, :, :, 0], stride


def undefined(model: nn.Module) -> str | None:
    """Why there is no skeleton of a model; None if there is one."""
    if isinstance(model, NesT) and any(isinstance(m, QueryDown) for m in model.modules()):
        return "merges blocks by attention, which rollout is not defined for"
    if isinstance(model, HiViT) and any(isinstance(m, WindowStage) for m in model.stages):
        return "shifts windows in its first stages, which rollout is not defined for"
    if isinstance(model, VisionTransformer):
        plain = all(isinstance(block, Block | ResPostBlock) for block in model.blocks)
        if plain and model.global_pool in ("avg", "token"):
            return None
    if type(model) not in SKELETONS:
        return "has no attention, or none whose way through the image is known"
    return None


def strongest(attention: Tensor) -> Tensor:
    """Without the lowest of each matrix; what is as strong as the weakest kept is kept, too."""
    flat = attention.flatten(1)
    least = flat.kthvalue(int(DROPPED * flat.shape[1]) + 1, dim=1).values
    return attention.where(attention >= least[:, None, None], 0)


# What a skeleton is made of: numbers are (B, N, 1) in a row, or (B, H, W, 1) on a map.


def attended(x: Tensor, attention: Tensor, keys: Tensor | None = None) -> Tensor:
    """A block: what was there and what is found, by weight."""
    found = attention @ (x if keys is None else keys)
    return (x + found) / (1 + attention.sum(-1, keepdim=True))


def through(x: Tensor, maps: Maps, blocks: int) -> Tensor:
    """Several blocks."""
    for _ in range(blocks):
        x = attended(x, next(maps))
    return x


def merged(x: Tensor, side: int = 2) -> Tensor:
    """(B, H, W, 1) -> (B, ceil(H / side), ceil(W / side), 1): the mean of what there is."""
    x = x.permute(0, 3, 1, 2)
    x = F.avg_pool2d(x, side, ceil_mode=True, count_include_pad=False)
    return x.permute(0, 2, 3, 1)


def left(length: int, kernel: int, stride: int, padding: int) -> int:
    """How many tokens a pooling leaves of so many."""
    return (length + 2 * padding - kernel) // stride + 1


# The skeletons.


def of_nest(model: NesT, x: Tensor, maps: Maps) -> Tensor:
    """Blocks attend by themselves; four are merged into one."""
    for i, level in enumerate(model.stages):
        assert isinstance(level, Level)
        x = merged(x) if i else x
        cut = windows.cut(x.shape[1], x.shape[2], level.block)
        x = cut.join([through(group, maps, len(level.blocks)) for group in cut.split(x)])
    return x.mean()


def of_hvt(model: HVT, x: Tensor, maps: Maps) -> Tensor:
    """Tokens are pooled behind a stage's first block, on the grid or along the sequence."""
    H, W = x.shape[1:3]
    first = 0 if model.cls_token is None else 1
    x = F.pad(x.flatten(1, 2), (0, 0, first, 0))
    for stage in model.stages:
        assert isinstance(stage, PoolingStage)
        x = through(x, maps, 1)
        if isinstance(stage.pool, GridPool):
            window = pooling(stage.pool.down)
            x = merged(x.unflatten(1, (H, W)), window[1])
            H, W = left(H, *window), left(W, *window)
            x = x[:, :H, :W].flatten(1, 2)
        elif isinstance(stage.pool, SequencePool):
            window = pooling(stage.pool.down)
            length = left(x.shape[1], *window)
            x = F.avg_pool1d(x.mT, window[1], ceil_mode=True, count_include_pad=False).mT
            x = x[:, :length]
        x = through(x, maps, len(stage.blocks) - 1)
    return x[:, 0].sum() if first else x.mean()


def pooling(down: Any) -> tuple[int, int, int]:
    """Kernel, stride and padding of a pooling or convolution, the same on all axes."""
    sizes = (down.kernel_size, down.stride, down.padding)
    kernel, stride, padding = (n[0] if isinstance(n, tuple) else n for n in sizes)
    return kernel, stride, padding


def of_hivit(model: HiViT, x: Tensor, maps: Maps) -> Tensor:
    """Below the main stage nothing leaves its unit, so that units are the patches."""
    return through(x.flatten(1, 2), maps, len(model.stage(-1).blocks)).mean()


def of_rest(model: ResT, x: Tensor, maps: Maps) -> Tensor:
    """Keys are of the map shrunk: each is the mean of the tokens it covers."""
    for i in range(len(model.stages)):
        x = merged(x) if i else x
        for block in model.stage(i).blocks:
            emsa = block.attn
            assert isinstance(emsa, EMSA)
            keys = merged(x, emsa.reduction).flatten(1, 2)
            x = attended(x.flatten(1, 2), next(maps), keys).view_as(x)
    return x.mean()


def of_regionvit(model: RegionViT, x: Tensor, maps: Maps) -> Tensor:
    """A regional token starts as the mean of its region, if it is computed from the image."""
    regional = None if model.regional_embed is None else merged(x, model.region)
    if regional is not None and not isinstance(model.regional_embed, nn.Conv2d):
        regional = torch.zeros_like(regional)
    tokens = Tokens(regional, x)
    for i, stage in enumerate(model.stages):
        assert isinstance(stage, R2LStage)
        tokens = tokens.each(merged) if i else tokens
        height, width = tokens.local.shape[1:3]
        side = min(stage.region, max(stage.side, height, width))
        regions = Regions(side, windows.cut(height, width, side))
        groups = regions.split(tokens)
        for _ in stage.blocks:
            if tokens.regional is not None:
                groups = among_regions(groups, regions.cut.counts, next(maps))
            groups = [attended(group, next(maps)) for group in groups]
        tokens = regions.join(groups)
    return (tokens.local if tokens.regional is None else tokens.regional).mean()


def among_regions(groups: list[Tensor], counts: list[int], attention: Tensor) -> list[Tensor]:
    """Regional tokens, the first of each window, attend to each other."""
    found = [x[:, 0].unflatten(0, (-1, n)) for x, n in zip(groups, counts, strict=True)]
    seen = attended(torch.cat(found, 1), attention).split(counts, 1)
    return [
        torch.cat([own.reshape(-1, 1, 1), x[:, 1:]], 1) for own, x in zip(seen, groups, strict=True)
    ]


def of_vit(model: VisionTransformer, x: Tensor, maps: Maps) -> Tensor:
    """A plain ViT: the class token, or the mean of the patches."""
    first = model.num_prefix_tokens
    x = through(F.pad(x.flatten(1, 2), (0, 0, first, 0)), maps, len(model.blocks))
    return x[:, 0].sum() if model.global_pool == "token" else x[:, first:].mean()


SKELETONS: dict[type[nn.Module], Callable[[Any, Tensor, Maps], Tensor]] = {
    NesT: of_nest,
    HVT: of_hvt,
    HiViT: of_hivit,
    ResT: of_rest,
    RegionViT: of_regionvit,
}


def known(model: nn.Module) -> tuple[Callable[[Any, Tensor, Maps], Tensor], int]:
    """A model's skeleton, and the side of its patches in pixels."""
    if isinstance(model, VisionTransformer):
        sides: Any = model.patch_embed.patch_size
        return of_vit, sides[0]
    assert isinstance(model, Backbone)
    if isinstance(model, HVT):
        return of_hvt, model.patch_size
    if isinstance(model, HiViT):
        return of_hivit, model.unit
    return SKELETONS[type(model)], model.strides[0]
