"""ResT: An Efficient Transformer for Visual Recognition (https://arxiv.org/abs/2105.13677).

Four stages of global attention whose keys are few, read off a map shrunk by a depth-wise
convolution, and whose heads hear each other; positions come from a depth-wise convolution too.

    image -> stem -> [EMSA, MLP] x depth -> [down -> [EMSA, MLP] x depth] x 3 -> LN -> mean -> head

``version=2`` is ResT V2 (https://arxiv.org/abs/2204.07366): heads do not mix, but the values,
enlarged again, are added to what attention found. "Supplement" is the NeurIPS paper's.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers.attention import Block, drop_path_rates, head_width, heads_together
from ziggurat.layers.convolution import Conv, normed
from ziggurat.layers.linear import Linear
from ziggurat.layers.position import GridPosition
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, per_stage

EPS = 1e-5  # of batch and instance norm, and of layer norm in version 1
EPS_V2 = 1e-6  # of layer norm in version 2
POSITIONS = ("pa", "gl", "learned", "none")


class GroupLinear(Conv):
    """GL: x + depth-wise 3 x 3 convolution, a group for each channel (supplement A.4)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        return x + super().forward(x)


class PixelAttention(Conv):
    """PA, the models' own: x times the sigmoid of a depth-wise convolution."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        return x * super().forward(x).sigmoid()


class LearnedPosition(nn.Module):
    """A learned vector for each cell of the map, as in ViT; resized to other maps."""

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.grid = GridPosition(*grid, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        return x + self.grid(x.shape[1], x.shape[2])


def position_of(kind: str, dim: int, grid: tuple[int, int]) -> nn.Module:
    """What tells a stage where its tokens are."""
    match choice(kind, POSITIONS, "position"):
        case "pa":
            return PixelAttention(dim)
        case "gl":
            return GroupLinear(dim)
        case "learned":
            return LearnedPosition(grid, dim)
        case _:
            return nn.Identity()


class Stem(nn.Module):
    """Three convolutions to a quarter of the image's sides, then positions.

    The official code has two stems; this is the one its models use. Version 2 widens and halves
    one convolution earlier, and ends in LN.
    """

    def __init__(self, in_chans: int, dim: int, pos: nn.Module, version: int) -> None:
        super().__init__()
        first, second = dim // 2, dim // 2 if version == 1 else dim
        self.conv1 = nn.Conv2d(in_chans, first, 3, 2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(first, eps=EPS)
        self.conv2 = nn.Conv2d(first, second, 3, version, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(second, eps=EPS)
        if version == 1:
            self.conv3 = nn.Conv2d(second, dim, 3, 2, padding=1, bias=False)
        else:
            self.conv3 = nn.Conv2d(second, dim, 1)
        self.pos = pos
        self.norm = nn.Identity() if version == 1 else nn.LayerNorm(dim, eps=EPS_V2)

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B, ceil(H / 4), ceil(W / 4), dim)."""
        x = images.contiguous(memory_format=torch.channels_last)
        x = F.relu(normed(self.conv1, self.norm1, x), inplace=True)
        x = F.relu(normed(self.conv2, self.norm2, x), inplace=True)
        return self.norm(self.pos(self.conv3(x).permute(0, 2, 3, 1)))


class Down(nn.Module):
    """A strided convolution, norm and positions; in version 2 positions come before the norm."""

    def __init__(self, dim_in: int, dim: int, pos: nn.Module, version: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim_in, dim, 3, 2, padding=1)
        self.norm: nn.Module = (
            nn.BatchNorm2d(dim, eps=EPS) if version == 1 else nn.LayerNorm(dim, eps=EPS_V2)
        )
        self.pos = pos
        self.version = version

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), dim)."""
        x = x.permute(0, 3, 1, 2)
        if self.version == 1:
            return self.pos(normed(self.conv, self.norm, x).permute(0, 2, 3, 1))
        return self.norm(self.pos(self.conv(x).permute(0, 2, 3, 1)))


class HeadMix(nn.Conv2d):
    """A 1 x 1 convolution across heads, on (B, heads, N, N').

    Computed as a product: with so few channels torch's convolution is tens of times slower (CPU,
    16 images). The bias, a constant in each softmax, changes nothing; checkpoints have it.
    """

    def __init__(self, heads: int) -> None:
        super().__init__(heads, heads, 1)

    def forward(self, logits: Tensor) -> Tensor:
        """(B, heads, N, N') -> (B, heads, N, N')."""
        assert self.bias is not None
        weight = self.weight.flatten(1).expand(logits.shape[0], -1, -1)
        return torch.baddbmm(self.bias[:, None], weight, logits.flatten(2)).view_as(logits)


class EMSA(nn.Module):
    """Efficient multi-head self-attention: IN(Softmax(Conv(q k^T / sqrt(d)))) v (supplement A.2).

    Keys and values are of the map shrunk ``reduction`` times; one head alone has nothing to mix
    and needs neither Conv nor IN. With ``mix=False`` and no reduction this is the MSA of the
    supplement's Table 1; with ``up`` instead of ``mix`` the EMSAv2 of version 2, which enlarges
    the values by convolution and pixel shuffle and adds them.
    """

    def __init__(
        self, dim: int, heads: int, reduction: int, mix: bool, up: bool, eps: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.scale = head_width(dim, heads) ** -0.5
        self.reduction = reduction
        self.q = Linear(dim, dim)
        self.kv = Linear(dim, 2 * dim)
        self.sr: nn.Module = nn.Identity()
        self.sr_norm: nn.Module = nn.Identity()
        if reduction > 1:
            self.sr = nn.Conv2d(dim, dim, reduction + 1, reduction, reduction // 2, groups=dim)
            self.sr_norm = nn.LayerNorm(dim, eps=eps)
        self.mix = HeadMix(heads) if mix and heads > 1 else None
        self.up = nn.Conv2d(dim, reduction**2 * dim, 3, padding=1, groups=dim) if up else None
        self.up_norm = nn.LayerNorm(dim, eps=eps) if up else None
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """(B, N, C) -> (B, N, C) for N = height * width."""
        q = self.q(x)
        few = self.sr(x.unflatten(1, (height, width)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        kv = self.kv(self.sr_norm(few))  # (B, H', W', 2 C)
        k, v = kv.flatten(1, 2).chunk(2, dim=2)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        if self.mix is None:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = self.normalised(self.mix(q @ (k * self.scale).mT), v)
        x = heads_together(x)
        if self.up is not None and self.up_norm is not None:
            values = self.up(kv.chunk(2, dim=3)[1].permute(0, 3, 1, 2))
            values = F.pixel_shuffle(values, self.reduction).permute(0, 2, 3, 1)
            x = x + self.up_norm(values[:, :height, :width]).flatten(1, 2)
        return self.proj(x)

    def normalised(self, logits: Tensor, v: Tensor) -> Tensor:
        """IN(Softmax(logits)) v, with each head's mean and variance over the whole map.

        Rows of a softmax sum to 1, so the mean is 1 / keys. Little is left of a flat map without
        it: this is done in float32 at least. Dividing v instead of the map saves a pass.
        """
        wide = torch.promote_types(logits.dtype, torch.float32)
        centred = logits.softmax(-1, dtype=wide) - 1 / v.shape[2]
        norm = torch.linalg.vector_norm(centred, dim=(2, 3), keepdim=True)
        gain = (norm.square() / (logits.shape[2] * logits.shape[3]) + EPS).rsqrt()
        return centred.to(v.dtype) @ (v * gain.to(v.dtype))


class Level(Stage):
    """Blocks at one resolution."""

    def __init__(self, down: nn.Module, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H', W', dim)."""
        x = self.down(x)
        H, W = x.shape[1:3]
        return self.run(x.flatten(1, 2), H, W).unflatten(1, (H, W))


class ResT(Backbone):
    """The whole, version 1 or 2.

    ``reductions`` say how many times keys and values are fewer, in each direction; with
    ``attention="msa"`` (supplement, Table 1) they are not and heads do not mix. ``position`` is
    ``pa`` (pixel attention), ``gl``, ``learned`` at ``img_size``, or ``none``.

    Departs: the official code takes a map's sides for half of those before, which a strided
    convolution makes true of even ones only, and refuses an instance norm of a 1 x 1 map; here
    any size works.
    """

    first_conv = "stem.conv1"
    graph_for_each_size = False
    exports_any_size = True

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        dims: Sequence[int] = (64, 128, 256, 512),
        heads: Sequence[int] = (1, 2, 4, 8),
        depths: Sequence[int] = (2, 2, 2, 2),
        reductions: Sequence[int] = (8, 4, 2, 1),
        attention: str = "emsa",
        position: str = "pa",
        version: int = 1,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        stages = len(depths)
        if not stages:
            raise ValueError("depths has the number of blocks of each stage, got none")
        dims = per_stage(dims, stages, "dims")
        heads = per_stage(heads, stages, "heads")
        reductions = per_stage(reductions, stages, "reductions")
        strides = [4 * 2**i for i in range(stages)]
        super().__init__(img_size, in_chans, num_classes, dims, strides, drop_rate, global_pool)
        if version not in (1, 2):
            raise ValueError(f"ResT has version 1 and version 2, got {version}")
        efficient = choice(attention, ("emsa", "msa"), "attention") == "emsa"
        if efficient and any(n < 1 or (n > 1 and n % 2) for n in reductions):
            raise ValueError(
                f"reductions are 1 or even, got {reductions}: only then does the convolution of "
                "reduction + 1 have a middle, and cover the map"
            )
        eps = EPS if version == 1 else EPS_V2
        rates = drop_path_rates(drop_path_rate, depths)

        places = []
        for dim, stride in zip(dims, strides, strict=True):
            height, width = (math.ceil(side / stride) for side in self.img_size)
            places.append(position_of(position, dim, (height, width)))
        self.stem = Stem(in_chans, dims[0], places[0], version)
        self.stages = nn.ModuleList()
        for i, (dim, head, drops) in enumerate(zip(dims, heads, rates, strict=True)):
            down = Down(dims[i - 1], dim, places[i], version) if i else nn.Identity()
            blocks: list[nn.Module] = []
            for drop in drops:
                attn = EMSA(
                    dim,
                    head,
                    reduction=reductions[i] if efficient else 1,
                    mix=efficient and version == 1,
                    up=efficient and version == 2,
                    eps=eps,
                )
                blocks.append(Block(dim, attn, drop, eps=eps))
            self.stages.append(Level(down, blocks))
        self.norm = nn.LayerNorm(dims[-1], eps=eps)
        self.head = classifier(dims[-1], num_classes)
        self.version = version
        self.apply(self.init_weights)

    def init_weights(self, module: nn.Module) -> None:
        """As in the code: normal weights, zero biases but for version 1's convolutions."""
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None and (self.version == 2 or isinstance(module, nn.Linear)):
                nn.init.zeros_(module.bias)
        elif isinstance(module, GridPosition):
            nn.init.normal_(module.table, std=0.02)

    def embed(self, images: Tensor) -> Tensor:
        """The stem: (B, H / 4, W / 4, C)."""
        return self.stem(images)

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official names of either version."""
        return {ours(name): value for name, value in state.items()}


def ours(name: str) -> str:
    """Our name for an official one: stages count from 0 and own what leads into them."""
    first, _, rest = name.partition(".")
    if first == "stem":
        for i, part in enumerate(("conv1", "norm1", "", "conv2", "norm2", "", "conv3")):
            rest = rest.replace(f"proj.{i}.", f"{part}.")
        name = f"stem.{rest}"
    elif first.startswith(("patch_embed_", "patch_")):
        rest = rest.replace("proj.", "conv.")
        name = f"stages.{int(first[-1]) - 1}.down.{rest}"
    elif first != "stages" and first.startswith("stage"):
        rest = rest.replace(".transform_conv.", ".mix.").replace(".up.0.", ".up.")
        name = f"stages.{int(first[-1]) - 1}.blocks.{rest}"
    return name.replace(".pos.pa_conv.", ".pos.")


WIDE = (96, 192, 384, 768)
VARIANTS: dict[str, dict[str, Any]] = {
    "rest_lite": dict(depths=(2, 2, 2, 2)),
    "rest_small": dict(depths=(2, 2, 6, 2)),
    "rest_base": dict(dims=WIDE, depths=(2, 2, 6, 2)),
    "rest_large": dict(dims=WIDE, depths=(2, 2, 18, 2)),
    "restv2_tiny": dict(dims=WIDE, depths=(1, 2, 6, 2), version=2),
    "restv2_small": dict(dims=WIDE, depths=(1, 2, 12, 2), version=2),
    "restv2_base": dict(dims=WIDE, depths=(1, 3, 16, 3), version=2),
    "restv2_large": dict(
        dims=(128, 256, 512, 1024), heads=(2, 4, 8, 16), depths=(2, 3, 16, 2), version=2
    ),
}
