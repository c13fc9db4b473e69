"""A backbone's stages as the pyramid that dense tasks want: maps of strides 4, 8, 16 and 32.

    images -> backbone -> a map a stage -> resampled where a stride is missing -> LN -> levels

The papers' own detectors are cases of it. RegionViT's local tokens and ResT's stages have the four
strides. HiViT has three; the fourth is its main stage's map, pooled (so has NesT). HVT's stages
share one stride: each makes a level, the fine ones by transposed convolutions, as plain ViTs do
(BEiT, arXiv:2106.08254). A LayerNorm of its own stands on each level, beside the path from stage to
stage (ResT, supplement, Table 2; RegionViT, Section 4.2).

Departs: the official dense code of ResT and RegionViT puts these norms into the path, so that the
next stage gets the normed map, and HiViT's takes its two fine maps from the middle of a stage. The
papers show neither.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STRIDES = (4, 8, 16, 32)
EPS = 1e-6


class Up(nn.Sequential):
    """A map twice, or four times, as fine: transposed convolutions, LN and GELU between two."""

    def __init__(self, dim: int, times: int) -> None:
        parts: list[nn.Module] = []
        for i in range(int(math.log2(times))):
            parts += [LayerNorm2d(dim, eps=EPS), nn.GELU()] if i else []
            parts.append(nn.ConvTranspose2d(dim, dim, 2, stride=2))
        super().__init__(*parts)


class Down(nn.Module):
    """A map pooled to a coarser one; its last row and column count, too."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, ceil(H / times), ceil(W / times))."""
        return F.max_pool2d(x, self.times, ceil_mode=True)


class Pyramid(nn.Module):
    """A backbone and its levels: ``channels`` and ``strides`` of each, the finest first.

    Images may have different sizes. Each is seen by itself, or with those of its own size, so that
    no padding ever enters the backbone; only the levels are padded, with zeros. A backbone's
    BatchNorm would then see a batch in parts: a backbone that comes ``trained`` keeps its
    statistics, as detectors do everywhere; one from scratch wants images of one size (``crop``).
    """

    def __init__(
        self,
        backbone: Any,
        strides: Sequence[int] = STRIDES,
        norm: bool = True,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        if not hasattr(backbone, "forward_intermediates"):
            name = getattr(backbone, "name", None) or type(backbone).__name__
            raise ValueError(f"{name} gives no maps of its stages: take another model")
        every = [
            (i, info["num_chs"], info["reduction"]) for i, info in enumerate(backbone.feature_info)
        ]
        stages = [stage for stage in every if stage[2] >= min(STRIDES)] or every
        self.strides = tuple(strides)
        own = [stride for _, _, stride in stages]
        level_of = spread if len(set(own)) < len(own) else nearest
        chosen = [stages[level_of(own, stride)] for stride in strides]
        self.taken = sorted({stage for stage, _, _ in chosen})
        self.stage = [self.taken.index(stage) for stage, _, _ in chosen]
        self.channels = tuple(dim for _, dim, _ in chosen)
        self.resample = nn.ModuleList(
            resampler(dim, stride, wanted)
            for (_, dim, stride), wanted in zip(chosen, strides, strict=True)
        )
        self.norms = nn.ModuleList(
            LayerNorm2d(dim, eps=EPS) if norm else nn.Identity() for dim in self.channels
        )
        self.backbone = backbone = copy.deepcopy(backbone)
        backbone.prune_intermediate_layers(self.taken, prune_norm=True, prune_head=True)
        self.freeze, self.trained = freeze, False
        if freeze:
            backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "Pyramid":
        """A frozen backbone stays as in inference, and so do the BatchNorms of a trained one."""
        super().train(mode)
        if self.freeze:
            self.backbone.eval()
        elif self.trained:
            for norm in self.batch_norms():
                norm.eval()
        return self

    def batch_norms(self) -> list[nn.Module]:
        """Those of the backbone, where it has any."""
        return [m for m in self.backbone.modules() if isinstance(m, _BatchNorm)]

    def forward(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Images (C, H, W) -> levels (B, dim, h, w), as large as the largest image needs."""
        if not images:
            raise ValueError("there is no image in this batch: none of its files could be read")
        places: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            places.setdefault(tuple(image.shape), []).append(i)
        if len(places) == 1:
            return self.levels(torch.stack(list(images)))
        if any(norm.training for norm in self.batch_norms()):
            sizes = sorted({f"{height} x {width}" for _, height, width in places})
            raise ValueError(
                f"{type(self.backbone).__name__} has BatchNorms, which learn from a whole batch, "
                f"got images of {', '.join(sizes[:3])} pixels in one: start from a trained model "
                "(--init), or set crop to the size of them all"
            )
        found: list[list[Tensor]] = [[] for _ in images]
        for own in places.values():
            levels = self.levels(torch.stack([images[i] for i in own]))
            for at, i in enumerate(own):
                found[i] = [level[at] for level in levels]
        return [stacked(level) for level in zip(*found, strict=True)]

    def levels(self, images: Tensor) -> list[Tensor]:
        """(B, C, H, W) of one size -> levels of ceil(H / stride) x ceil(W / stride)."""
        try:
            maps = self.backbone.forward_intermediates(
                images, self.taken, intermediates_only=True, stop_early=True
            )
        except AssertionError as error:  # timm's way to say it; ours take any size
            height, width = images.shape[2:]
            raise ValueError(
                f"{type(self.backbone).__name__} takes no images of {height} x {width} pixels: "
                f"{error} Take another model, or crop and test_side that fit this one"
            ) from None
        found = []
        for stage, stride, resample, norm in zip(
            self.stage, self.strides, self.resample, self.norms, strict=True
        ):
            height, width = (-(-side // stride) for side in images.shape[2:])
            found.append(norm(resample(maps[stage])[:, :, :height, :width]))
        return found


def nearest(strides: Sequence[int], wanted: int) -> int:
    """The stage of a stride, else the one next to it: the finest for finer, the coarsest beyond."""
    return min(range(len(strides)), key=lambda i: abs(math.log2(strides[i] / wanted)))


def spread(strides: Sequence[int], wanted: int) -> int:
    """Of stages with one stride, the last of each quarter: the deeper, the coarser its level."""
    quarter = STRIDES.index(wanted) + 1
    return math.ceil(quarter * len(strides) / len(STRIDES)) - 1


def resampler(dim: int, stride: int, wanted: int) -> nn.Module:
    """What brings a map to another stride."""
    if stride == wanted:
        return nn.Identity()
    larger, smaller = max(stride, wanted), min(stride, wanted)
    if larger % smaller or (larger // smaller) & (larger // smaller - 1):
        raise ValueError(
            f"levels have strides of {', '.join(map(str, STRIDES))} pixels, and a stage's differs "
            f"by a power of two, got {stride}: take another patch size"
        )
    return Up(dim, larger // smaller) if stride > wanted else Down(larger // smaller)


def stacked(maps: Sequence[Tensor]) -> Tensor:
    """(C, h, w) of different sizes, padded with zeros at the bottom and on the right."""
    height, width = (max(x.shape[side] for x in maps) for side in (1, 2))
    return torch.stack([F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in maps])


def layers_of(pyramid: Pyramid, prefix: str) -> Callable[[str], tuple[float, ...]]:
    """The layer of a parameter, for layer-wise decay: the backbone's own; all else is the last."""
    backbone = pyramid.backbone
    own = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)
    found = {f"{prefix}backbone.{name}": (float(layer),) for name, layer in own.items()}
    return lambda name: found.get(name, (float("inf"),))


def undecayed(pyramid: Pyramid, prefix: str) -> set[str]:
    """What the backbone names as not to be decayed, under the names it has here."""
    named: Any = getattr(pyramid.backbone, "no_weight_decay", set)()  # timm's ResNets name nothing
    return {f"{prefix}backbone.{name}" for name in named}


class OnPyramid(nn.Module):
    """A model on a ``pyramid``: how its parameters are decayed is the backbone's to say."""

    pyramid: Pyramid

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> Any:
        """The backbone's layers; everything else is one more."""
        return layers_of(self.pyramid, "pyramid.")

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """What the backbone says."""
        return undecayed(self.pyramid, "pyramid.")
