"""NesT: Nested Hierarchical Transformer (https://arxiv.org/abs/2105.12723).

The image is cut into blocks that attend only within themselves; between levels, four neighbouring
blocks are aggregated into one, on the image plane, so that neighbours exchange what they know.

    image -> embed -> [Level -> Aggregate] x (levels - 1) -> Level -> LN -> mean -> head

Table A1's ImageNet row is misprinted (columns reversed, heads wrong; authors' issue 2): the
variants below are the official code's. The paper's FFN is ReLU, the code's GELU (tanh).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import (
    Attention,
    Block,
    drop_path_rates,
    head_width,
    heads_together,
)
from ziggurat.layers.convolution import Conv
from ziggurat.layers.linear import Linear
from ziggurat.layers.position import GridPosition
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, pair, per_stage

EPS = 1e-6


class Pool(nn.Module):
    """Max or average pooling of 2 x 2 or 3 x 3 at stride 2 on (B, H, W, C).

    ``same`` is TensorFlow's padding, as in the official code: an even side gets its one row of
    padding at the end, which ``ceil_mode`` gives without a copy. The other is timm's symmetric one.
    """

    def __init__(self, kind: str, kernel: int, same: bool) -> None:
        super().__init__()
        self.kind, self.kernel, self.same = kind, kernel, same

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), C)."""
        x = x.permute(0, 3, 1, 2)
        pad = (0, 0)
        if self.kernel == 3:
            pad = (x.shape[2] % 2, x.shape[3] % 2) if self.same else (1, 1)
        ceil = self.same or self.kernel == 2
        if self.kind == "max":
            x = F.max_pool2d(x, self.kernel, 2, pad, ceil_mode=ceil)
        else:
            x = F.avg_pool2d(x, self.kernel, 2, pad, ceil_mode=ceil, count_include_pad=False)
        return x.permute(0, 2, 3, 1)


class Subsample(nn.Module):
    """Every second token of every second row (2 x 2 sub-sampling, Fig. A1)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), C)."""
        return x[:, ::2, ::2]


class PatchMerge(nn.Module):
    """Swin's merging: 2 x 2 neighbours side by side, LN, linear (Fig. A1)."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim_in, eps=EPS)
        self.linear = Linear(4 * dim_in, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), dim)."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        B, H, W, C = x.shape
        x = x.reshape(B, H // 2, 2, W // 2, 2, C).transpose(2, 3).reshape(B, H // 2, W // 2, 4 * C)
        return self.linear(self.norm(x))


class QueryDown(nn.Module):
    """Attention whose queries are sub-sampled (HaloNet's way, Section 4.3).

    All tokens of the four blocks to be merged are keys, every second of every second row a query;
    the skip connection is sub-sampled alike.
    """

    def __init__(self, dim_in: int, dim: int, heads: int, block: int) -> None:
        super().__init__()
        self.heads, self.block = heads, block
        head_width(dim, heads)
        self.norm = nn.LayerNorm(dim_in, eps=EPS)
        self.q = Linear(dim_in, dim)
        self.kv = Linear(dim_in, 2 * dim)
        self.proj = Linear(dim, dim)
        self.skip = Linear(dim_in, dim) if dim_in != dim else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), dim)."""
        keys = windows.cut(x.shape[1], x.shape[2], 2 * self.block)
        queries = keys.resized(half)
        known = self.norm(x)
        found = []
        for q, kv in zip(
            queries.split(self.q(known[:, ::2, ::2])), keys.split(self.kv(known)), strict=True
        ):
            heads = (t.unflatten(2, (self.heads, -1)) for t in (q, *kv.chunk(2, dim=-1)))
            q, k, v = (t.transpose(1, 2) for t in heads)
            found.append(heads_together(F.scaled_dot_product_attention(q, k, v)))
        return self.skip(x[:, ::2, ::2]) + self.proj(queries.join(found))


class Aggregate(nn.Sequential):
    """Block aggregation (Section 2.2): the steps named in ``steps``, joined by ``-``.

    ``conv3-norm-max3`` is the paper's; Figures 5 and A1 are spelled the same way:
    ``conv3s2`` (strided), ``conv1``, ``avg3``, ``max2``, ``merge``, ``subsample``, ``query``,
    ``max3-conv3-norm`` (convolution after pooling), ``max3`` (none). Where no step can change the
    width, a ``conv1`` is put behind, as the paper does for AvgPool on ImageNet.

    On the ``image`` plane steps see across the borders of the blocks to be merged; on the
    ``block`` plane they do not (Fig. 2).
    """

    STEPS = (
        "conv1", "conv3", "conv3s2", "norm", "max2", "max3", "avg2", "avg3", "subsample", "merge",
        "query",
    )  # fmt: skip
    WIDEN = ("conv1", "conv3", "conv3s2", "merge", "query")
    HALVE = ("conv3s2", "max2", "max3", "avg2", "avg3", "subsample", "merge", "query")

    def __init__(
        self, steps: str, plane: str, dim_in: int, dim: int, heads: int, block: int, same: bool
    ) -> None:
        names = [choice(name, self.STEPS, "a step of aggregate") for name in steps.split("-")]
        halving = [name for name in names if name in self.HALVE]
        if len(halving) != 1:
            raise ValueError(
                f"aggregate halves the map exactly once, got {steps!r}: "
                f"take one of {', '.join(self.HALVE)}"
            )
        if dim_in != dim and not any(name in self.WIDEN for name in names):
            names.append("conv1")
        layers: list[nn.Module] = []
        for name in names:
            width = dim if name in self.WIDEN else dim_in
            match name:
                case "conv1" | "conv3" | "conv3s2":
                    kernel = int(name[4])
                    stride = 2 if name == "conv3s2" else 1
                    layers.append(Conv(dim_in, dim, kernel, stride, padding=kernel // 2))
                case "norm":
                    layers.append(nn.LayerNorm(dim_in, eps=EPS))
                case "subsample":
                    layers.append(Subsample())
                case "merge":
                    layers.append(PatchMerge(dim_in, dim))
                case "query":
                    layers.append(QueryDown(dim_in, dim, heads, block))
                case _:
                    layers.append(Pool(name[:3], int(name[3]), same))
            dim_in = width
        super().__init__(*layers)
        self.plane = choice(plane, ("image", "block"), "plane")
        self.block = block
        self.halving = names.index(halving[0])

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), dim)."""
        return self.halved(self.whole(x))

    def whole(self, x: Tensor) -> Tensor:
        """The map on entering the step that halves it: (B, H, W, C) -> (B, H, W, C')."""
        return self.steps(x, slice(0, self.halving), lambda side: side)

    def halved(self, x: Tensor) -> Tensor:
        """That step, and what comes behind it."""
        return self.steps(x, slice(self.halving, None), half)

    def steps(self, x: Tensor, which: slice, size: Callable[[int], int]) -> Tensor:
        """Some of the steps, on their plane; ``size`` is what they do to a side."""
        layers = list(self)[which]
        if self.plane == "image" or not layers:
            for layer in layers:
                x = layer(x)
            return x
        cut = windows.cut(x.shape[1], x.shape[2], 2 * self.block)
        groups = []
        for group, (h, w, _, _) in zip(cut.split(x), cut.parts, strict=True):
            group = group.unflatten(1, (h, w))
            for layer in layers:
                group = layer(group)
            groups.append(group.flatten(1, 2))
        return cut.resized(size).join(groups)


class Level(Stage):
    """Attention inside each block, none between blocks (Eq. 1 and 2)."""

    def __init__(
        self, down: nn.Module, dim: int, grid: tuple[int, int], block: int, blocks: list[nn.Module]
    ) -> None:
        super().__init__()
        self.block = block
        self.down = down
        self.pos = GridPosition(*grid, dim)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H', W', dim)."""
        return self.attended(self.down(x))

    def attended(self, x: Tensor) -> Tensor:
        """Positions and blocks alone: (B, H, W, dim) -> (B, H, W, dim)."""
        H, W = x.shape[1:3]
        cut = windows.cut(H, W, self.block)
        groups = cut.split(x + self.pos(H, W))  # (B * blocks, N, C) for each size of block
        return cut.join([self.run(group) for group in groups])


class NesT(Backbone):
    """The whole of Fig. 1: levels of blocks, four times fewer blocks a level.

    ``dims``, ``heads`` and ``depths`` are given from the finest level on; their number is the
    hierarchy's depth T_d. ``patch_size`` is the word size S. ``attention`` is ``multi_head``, or
    ``multi_query`` as in the official CIFAR models (the paper does not say so).
    ``act_layer="gelu"`` (erf) gives timm's numbers for timm's ``_jx`` weights; with
    ``pad_type=""`` besides, those of timm's ``nest_*`` without ``_jx``.

    Departs: the official code takes only its own size. Here the block size stays and the number
    of blocks follows the image, so cost stays linear; blocks at the border may be smaller.
    Positions are resized over the whole image (the official tool, the number of blocks fixed,
    resizes inside each block).
    """

    first_conv = "patch_embed"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        patch_size: int = 4,
        dims: int | Sequence[int] = (96, 192, 384),
        heads: int | Sequence[int] = (3, 6, 12),
        depths: Sequence[int] = (2, 2, 8),
        attention: str = "multi_head",
        aggregate: str = "conv3-norm-max3",
        plane: str = "image",
        act_layer: str = "gelu_tanh",
        pad_type: str = "same",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        levels = len(depths)
        if not levels or patch_size < 1:
            raise ValueError(
                f"NesT has at least one level and words of at least one pixel, "
                f"got depths={depths}, patch_size={patch_size}"
            )
        dims = per_stage(dims, levels, "dims")
        heads = per_stage(heads, levels, "heads")
        strides = [patch_size * 2**i for i in range(levels)]
        super().__init__(img_size, in_chans, num_classes, dims, strides, drop_rate, global_pool)
        self.patch_size = patch_size
        choice(attention, ("multi_head", "multi_query"), "attention")
        choice(pad_type, ("same", ""), "pad_type")
        gelu = {"gelu_tanh": "tanh", "gelu": "none"}[
            choice(act_layer, ("gelu_tanh", "gelu"), "act_layer")
        ]
        rates = drop_path_rates(drop_path_rate, depths)
        grid = [math.ceil(side / patch_size) for side in pair(img_size)]
        block = math.ceil(min(grid) / 2 ** (levels - 1))

        self.patch_embed = nn.Conv2d(in_chans, dims[0], patch_size, patch_size)
        self.stages = nn.ModuleList()
        for i, (dim, head, drops) in enumerate(zip(dims, heads, rates, strict=True)):
            down: nn.Module = nn.Identity()
            if i:
                down = Aggregate(
                    aggregate, plane, dims[i - 1], dim, head, block, same=pad_type == "same"
                )
            kv_heads = 1 if attention == "multi_query" else head
            layers: list[nn.Module] = [
                Block(dim, Attention(dim, head, kv_heads), drop, gelu=gelu, eps=EPS)
                for drop in drops
            ]
            size = math.ceil(grid[0] / 2**i), math.ceil(grid[1] / 2**i)
            self.stages.append(Level(down, dim, size, block, layers))
        self.norm = nn.LayerNorm(dims[-1], eps=EPS)
        self.head = classifier(dims[-1], num_classes)
        self.apply(init_weights)

    def embed(self, images: Tensor) -> Tensor:
        """Linear projection of S x S words: (B, H, W, C)."""
        return self.patch_embed(windows.pad_to_multiple(images, self.patch_size)).permute(
            0, 2, 3, 1
        )

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official Flax names (``a/b``), or timm's."""
        tables = {n: v for n, v in state.items() if n.endswith(("pos_embed", "pos_embedding"))}
        odd = {  # no square of square blocks: left as it is, for load_checkpoint to report
            name: table
            for name, table in tables.items()
            if table.ndim != 4 or any(math.isqrt(n) ** 2 != n for n in table.shape[1:3])
        }
        known = {name: value for name, value in state.items() if name not in odd}
        if any("/" in name for name in state):
            return self.from_flax(known) | odd
        if any(name.startswith("levels.") for name in state):
            return self.from_timm(known) | odd
        return state

    def from_timm(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """timm joins heads channel by channel (d * heads + h), the official code head by head.

        What this model has no place for stays as it is, and is reported by ``load_checkpoint``.
        """
        heads = {n: m.heads for n, m in self.named_modules() if isinstance(m, Attention)}
        ours = {}
        for name, value in state.items():
            name = name.replace("levels.", "stages.").replace(".transformer_encoder.", ".blocks.")
            name = name.replace("patch_embed.proj.", "patch_embed.")
            name = name.replace(".pool.conv.", ".down.0.").replace(".pool.norm.", ".down.1.")
            if name.endswith("pos_embed"):
                name = name.replace("pos_embed", "pos.table")
                value = grid_of_blocks(value)
            elif name.endswith("attn.proj.weight"):
                count = heads.get(name.removesuffix(".proj.weight"))
                if count and value.ndim == 2 and value.shape[1] % count == 0:
                    value = value.unflatten(1, (-1, count)).transpose(1, 2).flatten(1)
            ours[name] = value
        return ours

    def from_flax(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Flax numbers layers through all levels; kernels are (in, out); q is beside [k | v].

        What this model has no place for stays as it is, and is reported by ``load_checkpoint``.
        """
        starts = [0]
        for i in range(len(self.stages)):
            starts.append(starts[-1] + len(self.stage(i).blocks))

        def renamed(name: str) -> str | None:
            module, *rest = name.split("/")
            kind, _, number = module.rpartition("_")
            if not rest or not number.isdecimal():
                return None
            i = int(number)
            match kind:
                case "PatchEmbedding":
                    return "patch_embed"
                case "PositionEmbedding":
                    return f"stages.{i}.pos.table"
                case "ConvPool":
                    return f"stages.{i + 1}.down.{0 if rest[0] == 'Conv_0' else 1}"
                case "LayerNorm":
                    return "norm"
                case "Dense":
                    return "head"
            if kind != "EncoderNDBlock" or i >= starts[-1]:
                return None
            level = next(n for n, end in enumerate(starts[1:]) if i < end)
            inner = {
                ("LayerNorm_0",): "norm1",
                ("LayerNorm_1",): "norm2",
                ("MlpBlock_0", "Dense_0"): "mlp.fc1",
                ("MlpBlock_0", "Dense_1"): "mlp.fc2",
            }.get(tuple(rest[:-1]), "attn.proj")
            return f"stages.{level}.blocks.{i - starts[level]}.{inner}"

        ours = {}
        for name, value in state.items():
            target = renamed(name)
            last = name.rsplit("/", 1)[-1]
            if target is None:
                ours[name] = value
            elif "/DenseGeneral_" in name or "Attention_0/Dense_0/" in name:
                continue
            elif last == "pos_embedding":
                ours[target] = grid_of_blocks(value)
            elif last == "kernel" and value.ndim == 4:
                ours[f"{target}.weight"] = value.permute(3, 2, 0, 1)
            elif last == "kernel":
                ours[f"{target}.weight"] = value.T
            elif last == "proj_kernel":  # (heads, head_dim, out)
                ours[f"{target}.weight"] = value.flatten(0, 1).T
            else:
                ours[f"{target}.weight" if last == "scale" else f"{target}.bias"] = value
        for name in [name for name in state if name.endswith("Attention_0/proj_kernel")]:
            attention = name.removesuffix("/proj_kernel")
            target = renamed(name)
            if target is None:
                continue
            target = target.replace(".proj", ".qkv")
            shared = f"{attention}/Dense_0" in {n.rsplit("/", 1)[0] for n in state}
            kv = f"{attention}/{'Dense_0' if shared else 'DenseGeneral_1'}"
            for last, ends in (("kernel", "weight"), ("bias", "bias")):
                if not {f"{attention}/DenseGeneral_0/{last}", f"{kv}/{last}"} <= state.keys():
                    continue
                q = state[f"{attention}/DenseGeneral_0/{last}"].flatten(-2)
                k, v = state[f"{kv}/{last}"].chunk(2, dim=-1)  # [k | v] within each head
                if not shared:
                    k, v = k.flatten(-2), v.flatten(-2)
                ours[f"{target}.{ends}"] = torch.cat([q, k, v], dim=-1).t()
        return ours


def grid_of_blocks(table: Tensor) -> Tensor:
    """A table of (1, blocks, tokens, C), blocks and tokens square, as the grid it stands for."""
    blocks, tokens = (math.isqrt(n) for n in table.shape[1:3])
    return windows.join(table[0], tokens, tokens, blocks, blocks)


def half(side: int) -> int:
    """A side after halving, what is begun included."""
    return math.ceil(side / 2)


def init_weights(module: nn.Module) -> None:
    """Appendix A.1: truncated normal (cut at two sigma, as in the code), biases 0."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, GridPosition):
        nn.init.trunc_normal_(module.table, std=0.02, a=-0.04, b=0.04)


CIFAR = dict(
    img_size=32, num_classes=10, patch_size=1, depths=(3, 3, 3, 3), attention="multi_query"
)
VARIANTS: dict[str, dict[str, Any]] = {
    "nest_tiny": dict(dims=(96, 192, 384), heads=(3, 6, 12), depths=(2, 2, 8)),
    "nest_small": dict(dims=(96, 192, 384), heads=(3, 6, 12), depths=(2, 2, 20)),
    "nest_base": dict(dims=(128, 256, 512), heads=(4, 8, 16), depths=(2, 2, 20)),
    "nest_tiny_cifar": dict(dims=192, heads=3, **CIFAR),
    "nest_small_cifar": dict(dims=384, heads=6, **CIFAR),
    "nest_base_cifar": dict(dims=768, heads=12, **CIFAR),
}
