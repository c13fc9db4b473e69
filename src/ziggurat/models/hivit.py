"""HiViT: hierarchical ViT (https://arxiv.org/abs/2205.14949).

A plain ViT whose 16 x 16 patch embedding is itself a small hierarchy: 4 x 4 patches, MLPs and
merges that never look outside their 16 x 16 unit. Units meet only in the main stage's global
attention, so a masked unit can be left out before the first layer.

    image -> units of 4 x 4 cells -> MLPs -> merge -> MLPs -> merge -> + position
          -> attention (relative bias) x depth -> mean -> LN -> head

The code goes beyond the paper in ways its weights need: a block of stage 1 or 2 is two MLPs of
ratio 3, and the absolute position stays beside the relative one (Step (b) says "replacing").
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers import DropPath
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block, drop_path_rates
from ziggurat.layers.linear import Linear, Mlp, linear
from ziggurat.layers.position import GridPosition, RelativeBias
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, init_weights

EPS = 1e-6
WINDOW_HEAD_DIM = 32  # Swin's


class Units(NamedTuple):
    """Tokens grouped by unit, row by row, all units or only the visible ones."""

    tokens: Tensor  # (B, units, cells, cells, C)
    size: tuple[int, int]  # of the image, in pixels
    grid: tuple[int, int]  # units down and across, the last ones perhaps padded
    ids: Tensor | None  # (B, visible) which units these are; None for all, in order
    pos: Tensor | None  # absolute positions: (1, rows, cols, C), or (B, visible, C)
    side: int  # pixels a side of a unit

    def map(self) -> Tensor:
        """(B, H, W, C): the image's tokens, neighbours side by side, without padding."""
        if self.ids is not None:
            raise ValueError("a masked image has no full map: take the visible units' tokens")
        cells = self.tokens.shape[2]
        height, width = self.begun(cells)
        whole = windows.join(self.tokens.flatten(2, 3).flatten(0, 1), cells, cells, *self.grid)
        return whole[:, :height, :width]

    def begun(self, cells: int) -> tuple[int, int]:
        """Rows and columns of cells that have pixels of the image, with ``cells`` to a unit."""
        height, width = (-(-side * cells // self.side) for side in self.size)
        return height, width

    def inside(self) -> Tensor:
        """The tokens; zeros, as around a convolution, for cells wholly beyond the image."""
        cells = self.tokens.shape[2]
        rows, cols = self.grid
        height, width = self.begun(cells)
        if (height, width) == (rows * cells, cols * cells):
            return self.tokens
        at = [torch.arange(n * cells, device=self.tokens.device) for n in self.grid]
        known = (at[0] < height)[:, None] & (at[1] < width)
        known = windows.split(known[None, :, :, None], cells, cells).unflatten(1, (cells, cells))
        if self.ids is not None:
            known = known[self.ids]
        return self.tokens.masked_fill(~known, 0)


class PatchEmbed(nn.Module):
    """4 x 4 patches to tokens, unit by unit: what is not visible is never embedded."""

    def __init__(self, in_chans: int, dim: int, cells: int, patch: int) -> None:
        super().__init__()
        self.cells = cells
        self.patch = patch
        self.proj = nn.Conv2d(in_chans, dim, self.patch, self.patch)
        # One patch a unit is plain ViT's embedding, which has no norm.
        self.norm = nn.LayerNorm(dim, eps=EPS) if cells > 1 else nn.Identity()

    def forward(self, images: Tensor, ids: Tensor | None) -> Tensor:
        """(B, in_chans, H, W) -> (B, units, cells, cells, C), the convolution as a product."""
        B, channels, H, W = images.shape
        cells, patch = self.cells, self.patch
        rows, cols = H // (cells * patch), W // (cells * patch)
        x = images.reshape(B, channels, rows, cells, patch, cols, cells, patch)
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)  # unit row, unit column, cell row, cell column
        if ids is not None:
            x = x[torch.arange(B, device=x.device)[:, None], ids // cols, ids % cols]
        x = x.reshape(B, -1, cells, cells, channels * patch * patch)
        return self.norm(linear(x, self.proj.weight.flatten(1), self.proj.bias))


class PatchMerge(nn.Module):
    """2 x 2 cells side by side, column by column as in the code; LN; linear to twice the width."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim_in, eps=EPS)
        self.reduction = Linear(4 * dim_in, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, units, 2 n, 2 n, C) -> (B, units, n, n, dim)."""
        B, L, cells, _, C = x.shape
        x = x.reshape(B, L, cells // 2, 2, cells // 2, 2, C).permute(0, 1, 2, 4, 5, 3, 6)
        return self.reduction(self.norm(x.reshape(B, L, cells // 2, cells // 2, 4 * C)))


class MlpBlock(nn.Module):
    """x + MLP(LN(x)): what is left of a block without attention (Fig. 1, top)."""

    def __init__(self, dim: int, drop_path: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, 3 * dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Each token by itself."""
        return x + self.drop_path(self.mlp(self.norm(x)))


class MlpStage(Stage):
    """Stage 1 or 2: tokens of one unit know nothing of any other."""

    def __init__(self, down: nn.Module, dim: int, drops: list[float]) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(MlpBlock(dim, drop) for drop in drops)

    def forward(self, units: Units) -> Units:
        """The same cells, or half as many a side behind a merge."""
        return units._replace(tokens=self.run(self.down(units.inside())))


class WindowBlock(SwinTransformerBlock):
    """timm's Swin block; tokens attend only to what lies beside them on the map.

    Departs: on maps that are not whole windows, timm's lets padding be attended, and tokens that
    the shift brings round from the other side of the map.
    """

    def _attn(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        _, H, W, _ = x.shape
        (h, w), (down, right) = self.window_size, self.shift_size
        x = nn.functional.pad(x, (0, 0, 0, -W % w, 0, -H % h))
        rows, cols = x.shape[1] // h, x.shape[2] // w
        mask = None
        if down or right or x.shape[1:3] != (H, W):
            part = torch.zeros(1, *x.shape[1:3], 1, dtype=torch.int, device=x.device)
            part[:, :down] += 1  # goes round to the other side
            part[:, :, :right] += 2
            part[:, H:] = part[:, :, W:] = -1  # padding
            part = windows.split(part.roll((-down, -right), (1, 2)), h, w)  # (windows, N, 1)
            mask = x.new_zeros(()).where(part == part.mT, -torch.inf)
        x = self.attn(windows.split(x.roll((-down, -right), (1, 2)), h, w), mask=mask)
        return windows.join(x, h, w, rows, cols).roll((down, right), (1, 2))[:, :H, :W]


class WindowStage(Stage):
    """Stage 1 or 2 with Swin's shifted windows of 7 x 7 instead (Table 2, c')."""

    def __init__(
        self, down: nn.Module, dim: int, size: tuple[int, int], drops: list[float]
    ) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(
            WindowBlock(
                dim,
                size,
                num_heads=dim // WINDOW_HEAD_DIM,
                window_size=7,
                shift_size=0 if i % 2 == 0 else 3,
                dynamic_mask=True,  # none is kept: the map's size may change
                drop_path=drop,
                norm_layer=partial(nn.LayerNorm, eps=EPS),  # type: ignore[arg-type]
            )
            for i, drop in enumerate(drops)
        )

    def forward(self, units: Units) -> Units:
        """Windows cross the borders of units, so all units have to be there."""
        if units.ids is not None:
            raise ValueError('masked units can be left out only with shallow="mlp"')
        units = units._replace(tokens=self.down(units.inside()))
        B, L, cells = units.tokens.shape[:3]
        x = self.run(units.map()).permute(0, 3, 1, 2)  # padding is not there to be attended to
        x = windows.pad_to_multiple(x, cells).permute(0, 2, 3, 1)
        x = windows.split(x, cells, cells).reshape(B, L, cells, cells, -1)
        return units._replace(tokens=x)


class UnitAttention(Attention):
    """Global attention between units, with a relative bias of its own in each block."""

    def __init__(self, dim: int, heads: int, grid: tuple[int, int] | None) -> None:
        super().__init__(dim, heads)
        self.bias = RelativeBias(heads, *grid) if grid else None

    def forward(self, x: Tensor, grid: tuple[int, int], ids: Tensor | None) -> Tensor:  # type: ignore[override]
        """(B, N, C) -> (B, N, C); for visible units, their rows and columns of the bias."""
        if self.bias is None:
            return super().forward(x)
        bias = self.bias(*grid)[None]
        if ids is not None:
            bias = bias[0][:, ids[:, :, None], ids[:, None, :]].transpose(0, 1)
        return super().forward(x, bias)


class MainStage(Stage):
    """Stage 3: every unit is one token; positions are added, then all units attend to all."""

    def __init__(
        self,
        down: nn.Module,
        dim: int,
        heads: int,
        grid: tuple[int, int] | None,
        drops: list[float],
    ) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(
            Block(dim, UnitAttention(dim, heads, grid), drop, eps=EPS) for drop in drops
        )

    def forward(self, units: Units) -> Units:
        """Units of one cell each."""
        x = self.down(units.inside()).flatten(1, 3)  # (B, units, C)
        if units.pos is not None:
            x = x + units.pos.flatten(1, -2)
        x = self.run(x, units.grid, units.ids)
        return units._replace(tokens=x[:, :, None, None])


class HiViT(Backbone):
    """The whole of Fig. 1, and what lies between ViT and Swin (Table 2).

    ``depths`` are the paper's blocks of each stage; with one stage only, units are embedded whole
    and the model is a plain ViT without class token: Steps (a) and, with ``rpe``, (b).
    ``shallow="window"`` is Step (c'). A ``unit`` has 16 pixels a side; small images want smaller
    ones. Steps (o) and (d) are timm's ViT-B and Swin-B.

    An image may come with a ``mask`` of its units (True: hidden); only visible ones are computed.

    Departs: the official classifier takes only its own size; here the image is padded to whole
    units, of which cells that have no pixel are merged as zeros, and both positions are resized.
    """

    first_conv = "patch_embed.proj"
    only_mean = True

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        dims: Sequence[int] = (128, 256, 512),
        heads: int = 8,
        depths: Sequence[int] = (2, 2, 20),
        unit: int = 16,
        shallow: str = "mlp",
        rpe: bool = True,
        ape: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        if len(depths) not in (1, 2, 3) or len(dims) != len(depths):
            raise ValueError(
                f"depths and dims have one value for each of 1 to 3 stages, "
                f"got {tuple(depths)} and {tuple(dims)}"
            )
        choice(shallow, ("mlp", "window"), "shallow")
        if shallow == "window" and any(dim < WINDOW_HEAD_DIM for dim in dims[:-1]):
            raise ValueError(
                f'shallow="window" has heads of {WINDOW_HEAD_DIM} channels: '
                f"take dims from {WINDOW_HEAD_DIM} up, got {tuple(dims)}"
            )
        last = len(depths) - 1
        if unit < 1 or unit % 2**last:
            raise ValueError(
                f"a unit has {2**last} x {2**last} patches: its side is a multiple of {2**last} "
                f"pixels, got {unit}"
            )
        strides = [unit // 2 ** (last - i) for i in range(last + 1)]
        super().__init__(img_size, in_chans, num_classes, dims, strides, drop_rate, global_pool)
        self.unit = unit
        rows, cols = (-(-side // unit) for side in self.img_size)
        layers = [d if i == last or shallow == "window" else 2 * d for i, d in enumerate(depths)]
        rates = drop_path_rates(drop_path_rate, layers)

        self.patch_embed = PatchEmbed(in_chans, dims[0], 2**last, strides[0])
        self.pos = GridPosition(rows, cols, dims[-1]) if ape else None
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            down: nn.Module = PatchMerge(dims[i - 1], dim) if i else nn.Identity()
            if i == last:
                stage: Stage = MainStage(down, dim, heads, (rows, cols) if rpe else None, rates[i])
            elif shallow == "mlp":
                stage = MlpStage(down, dim, rates[i])
            else:
                cells = 2 ** (last - i)
                stage = WindowStage(down, dim, (rows * cells, cols * cells), rates[i])
            self.stages.append(stage)
        self.norm = nn.LayerNorm(dims[-1], eps=EPS)
        self.head = classifier(dims[-1], num_classes)
        self.apply(init_weights)

    def visible(self, mask: Tensor) -> Tensor:
        """Indices (B, n) of the units that a boolean mask (B, units) or (B, rows, cols) shows."""
        shown = ~mask.flatten(1).bool()
        counts = shown.sum(1)
        if not bool((counts > 0).all()):
            raise ValueError("a mask must leave at least one unit of each image visible")
        if not bool((counts == counts[0]).all()):
            raise ValueError(
                f"a batch's masks must show equally many units, got {sorted(set(counts.tolist()))}"
            )
        return shown.nonzero()[:, 1].reshape(len(mask), -1)

    def embed(self, images: Tensor, ids: Tensor | None = None) -> Units:
        """Units of 4 x 4 cells; with ``ids`` (B, n), only those."""
        size = images.shape[2], images.shape[3]
        images = windows.pad_to_multiple(images, self.unit)
        grid = images.shape[2] // self.unit, images.shape[3] // self.unit
        pos = None if self.pos is None else self.pos(*grid)
        if pos is not None and ids is not None:
            pos = pos.flatten(0, 2)[ids]
        return Units(self.patch_embed(images, ids), size, grid, ids, pos, self.unit)

    def forward_visible(self, images: Tensor, ids: Tensor) -> list[Tensor]:
        """Each stage's tokens, (B, n, cells, cells, C), of the units ``ids`` (B, n) alone."""
        units = self.embed(self.checked(images), ids)
        tokens = []
        for stage in self.stages:
            units = stage(units)
            tokens.append(units.tokens)
        return tokens

    def forward_features(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The main stage's map (B, C, H, W); with a mask, the visible units' tokens (B, n, C)."""
        if mask is None:
            return super().forward_features(images)
        grid = [-(-side // self.unit) for side in images.shape[2:]]
        if mask.shape[0] != images.shape[0] or mask[0].numel() != grid[0] * grid[1]:
            raise ValueError(
                f"a mask for these images is ({images.shape[0]}, {grid[0]}, {grid[1]}), one value "
                f"for each {self.unit} x {self.unit} unit, got {tuple(mask.shape)}"
            )
        return self.forward_visible(images, self.visible(mask))[-1].flatten(1, 3)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, num_classes), from the visible units if there is a mask."""
        return self.forward_head(self.forward_features(images, mask))

    def stage_map(self, state: Units) -> Tensor:
        """A stage's map."""
        return state.map().permute(0, 3, 1, 2)

    def normed(self, state: Units) -> Units:
        """As it is: HiViT's norm comes behind the mean."""
        return state

    def finish(self, state: Units) -> Tensor:
        """The main stage's map; its norm comes behind the mean."""
        return state.tokens.flatten(1, 3).unflatten(1, state.grid).permute(0, 3, 1, 2)

    def pool(self, features: Tensor) -> Tensor:
        """Mean, then LN (the other families' order is the reverse)."""
        return self.norm(features.mean((2, 3) if features.ndim == 4 else 1))

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official names; what only pre-training has goes under ``decoder.``.

        A model without relative bias (pre-training's) is one whose biases are all zero.
        """
        if any(name.startswith("blocks.") for name in state):
            state = self.from_official(state)
        tables = {
            f"{name}.table": module.table.shape
            for name, module in self.named_modules()
            if isinstance(module, RelativeBias)
            and f"{name.removesuffix('bias')}qkv.weight" in state
        }
        if state.keys() & tables.keys():
            return state
        some = next(iter(state.values()))
        return {name: some.new_zeros(shape) for name, shape in tables.items()} | state

    def from_official(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The official flat list of blocks and merges, taken apart."""
        homes = []
        for i in range(len(self.stages)):
            homes += [f"stages.{i}.down"] if i else []
            homes += [f"stages.{i}.blocks.{j}" for j in range(len(self.stage(i).blocks))]
        pretrained = "mask_token" in state
        ours = {}
        for name, value in state.items():
            if name.endswith("relative_position_index"):
                continue
            if name.startswith("blocks."):
                number, rest = name.removeprefix("blocks.").split(".", 1)
                home = homes[int(number)] if int(number) < len(homes) else f"blocks.{number}"
                if not home.startswith(f"stages.{len(self.stages) - 1}."):
                    rest = rest.replace("norm2.", "norm.")  # an MLP block has but one
                name = f"{home}.{rest}"
            if name.endswith("relative_position_bias_table"):
                name = name.replace("relative_position_bias_table", "bias.table")
                side = round(value.shape[0] ** 0.5)
                value = value.t().unflatten(1, (side, side))
            elif name == "absolute_pos_embed":
                name = "pos.table"
                side = round(value.shape[1] ** 0.5)
                value = value.unflatten(1, (side, side))
            elif pretrained and name.startswith("norm."):
                name = "decoder.norm_in." + name.removeprefix("norm.")
            elif name == "mask_token" or name.startswith("decoder_"):
                name = "decoder." + name.removeprefix("decoder_")
            elif name.startswith("fc_norm."):
                name = name.removeprefix("fc_")
            ours[name] = value
        return ours


VARIANTS: dict[str, dict[str, Any]] = {
    "hivit_tiny": dict(dims=(96, 192, 384), heads=6, depths=(1, 1, 10)),
    "hivit_small": dict(dims=(96, 192, 384), heads=6, depths=(2, 2, 20)),
    "hivit_base": dict(dims=(128, 256, 512), heads=8, depths=(2, 2, 20)),
    "hivit_large": dict(dims=(192, 384, 768), heads=12, depths=(4, 4, 36)),
}
