"""RegionViT: Regional-to-Local Attention (https://arxiv.org/abs/2106.02689; read: v2).

An image becomes local tokens (patches of 4 x 4) and regional tokens (one for M x M local ones).
Regional tokens attend to each other, then each attends with the local tokens of its own region:
local tokens see the whole image through one token. Regional tokens are averaged for the class.

    image -> local_embed    -> local    (H/4,  W/4)  \\
          -> regional_embed -> regional (H/4M, W/4M) /  -> [down -> R2L x depth] x 4

    regional -> LN -> mean -> head          local of every stage -> dense tasks
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.models import checkpoint
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block, drop_path_rates
from ziggurat.layers.position import GridPosition, LearnedTable, RelativeBias, resize
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, per_stage

PATCH = 4  # pixels a side of a local token (Table 2)
EPS = 1e-6  # of norms inside blocks and before the head
MAP_EPS = 1e-5  # of norms between convolutions, in the official code


class Tokens(NamedTuple):
    """What goes from stage to stage."""

    regional: Tensor | None  # (B, Rh, Rw, C)
    local: Tensor  # (B, H, W, C)

    def each(self, layer: Callable[[Tensor], Tensor]) -> "Tokens":
        """The same layer, with the same weights, on both maps."""
        return Tokens(None if self.regional is None else layer(self.regional), layer(self.local))


class Conv(nn.Conv2d):
    """A convolution on (B, H, W, C); channels stay last in memory, so permuting is free."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H', W', C')."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class WholePatches(Conv):
    """A convolution of images padded at the bottom and on the right to whole strides."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, ceil(H / stride), ceil(W / stride), C')."""
        stride = self.stride[0]
        bottom, right = -x.shape[1] % stride, -x.shape[2] % stride
        if bottom or right:
            x = F.pad(x, (0, 0, 0, right, 0, bottom))
        return super().forward(x)


def local_embedding(tokenize: str, channels: int, dim: int) -> nn.Sequential:
    """Images to ceil(H / 4) x ceil(W / 4) local tokens (Table 2; ``linear``: Section 3)."""
    match choice(tokenize, ("3conv", "1conv", "linear"), "tokenize"):
        case "3conv":
            return nn.Sequential(
                Conv(channels, dim // 4, 3, stride=2, padding=1),
                nn.LayerNorm(dim // 4, eps=MAP_EPS),
                nn.GELU(),
                Conv(dim // 4, dim // 2, 3, stride=2, padding=1),
                nn.LayerNorm(dim // 2, eps=MAP_EPS),
                nn.GELU(),
                Conv(dim // 2, dim, 3, padding=1),
            )
        case "1conv":
            return nn.Sequential(WholePatches(channels, dim, 8, stride=PATCH, padding=3))
        case _:
            return nn.Sequential(WholePatches(channels, dim, PATCH, stride=PATCH))


class Down(nn.Sequential):
    """Both maps halved and widened by the same convolution (Section 3, Table 9).

    LN and GELU before it are the official code's, the paper has neither. Table 9's counts are
    met with them, and would be without (the norms are 0.001 M parameters).
    """

    def __init__(self, kind: str, dim_in: int, dim: int) -> None:
        conv: Conv
        match choice(kind, ("dw3", "conv3", "conv2"), "downsample"):
            case "dw3" if dim % dim_in:
                raise ValueError(
                    f"a depthwise convolution widens {dim_in} channels to a multiple, not to "
                    f"{dim}: double dims from stage to stage, or take downsample='conv3'"
                )
            case "dw3":
                conv = Conv(dim_in, dim, 3, stride=2, padding=1, groups=dim_in)
            case "conv3":
                conv = Conv(dim_in, dim, 3, stride=2, padding=1)
            case _:
                conv = WholePatches(dim_in, dim, 2, stride=2)
        super().__init__(nn.LayerNorm(dim_in, eps=MAP_EPS), nn.GELU(), conv)

    def forward(self, tokens: Tokens) -> Tokens:
        """(B, H, W, dim_in) -> (B, ceil(H / 2), ceil(W / 2), dim), regional and local."""
        return tokens.each(super().forward)


class Regions(NamedTuple):
    """How a stage's maps are cut into windows, each of one regional and its local tokens.

    Whole windows are ``window`` x ``window``. Where the map does not divide, those in the last
    row and column are smaller; windows of one size are computed together, so there are at most
    four groups: inside, right, bottom and corner. Nothing is padded, so nothing is masked.
    """

    window: int
    rows: list[tuple[int, int]]  # (windows, local tokens a window) of each band, from the top
    cols: list[tuple[int, int]]

    @property
    def parts(self) -> list[windows.Partition]:
        """One for each group, row by row."""
        return [
            windows.Partition(rows * h, cols * w, h, w, rows, cols)
            for rows, h in self.rows
            for cols, w in self.cols
        ]

    def split(self, tokens: Tokens) -> list[Tensor]:
        """(B * windows, 1 + h * w, C) for each group, the regional token first, if there is one."""
        local = pieces(tokens.local, [n * h for n, h in self.rows], [n * w for n, w in self.cols])
        groups = [windows.split(x, part) for x, part in zip(local, self.parts, strict=True)]
        if tokens.regional is None:
            return groups
        grid = sum(n for n, _ in self.rows), sum(n for n, _ in self.cols)
        assert tokens.regional.shape[1:3] == grid, "every window has one regional token"
        regional = pieces(tokens.regional, [n for n, _ in self.rows], [n for n, _ in self.cols])
        return [
            torch.cat([r.reshape(len(x), 1, -1), x], 1)
            for r, x in zip(regional, groups, strict=True)
        ]

    def join(self, groups: Sequence[Tensor]) -> Tokens:
        """Undo ``split``."""
        regional, local = [], []
        for x, part in zip(groups, self.parts, strict=True):
            with_regional = x.shape[1] - part.h * part.w
            local.append(windows.join(x[:, with_regional:], part))
            if with_regional:
                regional.append(x[:, 0].reshape(-1, part.rows, part.cols, x.shape[2]))
        across = len(self.cols)
        return Tokens(mosaic(regional, across) if regional else None, mosaic(local, across))


def regions_of(height: int, width: int, window: int) -> Regions:
    """Cut a map of local tokens from the top left corner."""

    def bands(length: int) -> list[tuple[int, int]]:
        whole, rest = divmod(length, window)
        return [(n, size) for n, size in ((whole, window), (1, rest)) if n and size]

    return Regions(window, bands(height), bands(width))


def pieces(x: Tensor, heights: list[int], widths: list[int]) -> list[Tensor]:
    """Cut (B, H, W, C) into rectangles, row by row."""
    return [piece for band in x.split(heights, 1) for piece in band.split(widths, 2)]


def mosaic(parts: list[Tensor], across: int) -> Tensor:
    """Put (B, h, w, C) together, ``across`` of them to a row."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(
        [torch.cat(parts[i : i + across], 2) for i in range(0, len(parts), across)], 1
    )


class LocalBias(RelativeBias):
    """Eq. 3: a bias between local tokens, none from or to the regional token.

    Departs: the paper has one table B for a layer, the official code one for each head; so here.
    """

    def __init__(self, heads: int, window: int, regional: bool) -> None:
        super().__init__(heads, window, window)
        self.regional = int(regional)

    def spread(self, height: int, width: int) -> Tensor:
        """(1, heads, 1 + N, 1 + N), with zeros for the regional token, if there is one."""
        first = self.regional
        return F.pad(super().spread(height, width), (first, 0, first, 0))[None]

    def masks(self, regions: Regions) -> list[Tensor]:
        """What each group's attention adds to its logits.

        A window cut short by the map's border has the offsets of a whole one, only fewer of them.
        """
        side = regions.window
        whole = self(side, side)
        return [
            whole if (part.h, part.w) == (side, side) else self.corner(whole, side, part.h, part.w)
            for part in regions.parts
        ]

    def corner(self, whole: Tensor, side: int, height: int, width: int) -> Tensor:
        """Of a whole window's bias, that among its upper left ``height`` x ``width`` tokens."""
        first = self.regional
        local = whole[:, :, first:, first:].unflatten(3, (side, side)).unflatten(2, (side, side))
        local = local[:, :, :height, :width, :height, :width].flatten(4).flatten(2, 3)
        return F.pad(local, (first, 0, first, 0))


class R2LAttention(Attention):
    """One set of weights for attention among regional tokens and within each region (Fig. 3)."""

    def __init__(self, dim: int, heads: int, window: int, relative: bool, regional: bool) -> None:
        super().__init__(dim, heads)
        self.bias = LocalBias(heads, window, regional) if relative else None


class R2L(Block):
    """Regional-to-local transformer encoder (Eq. 2): RSA, then LSA and FFN in every window."""

    attn: R2LAttention

    def __init__(self, dim: int, attention: R2LAttention, drop_path: float, regional: bool) -> None:
        super().__init__(dim, attention, drop_path, eps=EPS)
        self.norm0 = nn.LayerNorm(dim, eps=EPS) if regional else None

    def forward(  # type: ignore[override]  # several groups of windows at once
        self, regions: Regions, *groups: Tensor
    ) -> tuple[Tensor, ...]:
        """(B * windows, 1 + N, C) for each group, before and after."""
        if self.norm0 is not None:
            groups = self.exchange(self.norm0, regions, groups)
        masks = [None] * len(groups) if self.attn.bias is None else self.attn.bias.masks(regions)
        forward = super().forward
        return tuple(forward(x, mask) for x, mask in zip(groups, masks, strict=True))

    def exchange(
        self, norm: nn.Module, regions: Regions, groups: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """RSA: every regional token sees all of its image; there is no bias, so no order."""
        counts = [part.count for part in regions.parts]
        found = [x[:, 0].unflatten(0, (-1, n)) for x, n in zip(groups, counts, strict=True)]
        r = torch.cat(found, 1)  # (B, regions, C)
        r = r + self.drop_path(self.attn(norm(r)))
        return tuple(
            torch.cat([own.reshape(len(x), 1, -1), x[:, 1:]], 1)
            for own, x in zip(r.split(counts, 1), groups, strict=True)
        )


class R2LStage(Stage):
    """Blocks of one resolution; the maps stay cut into windows from the first to the last.

    ``region`` is how many local tokens a side a regional token covers: in every stage as many as
    in the first. ``window`` may be less in a stage whose map is that small at the training size
    (7 instead of 14 in the last one of the "+" models); for larger maps its biases are resized.
    """

    def __init__(
        self, down: nn.Module, region: int, window: int, blocks: list[R2L], peg: Conv | None
    ) -> None:
        super().__init__()
        self.region, self.window = region, window
        self.down = down
        self.blocks = nn.ModuleList(blocks)
        self.peg = peg

    def forward(self, tokens: Tokens) -> Tokens:
        """Down, then all blocks; PEG comes after the first one, on both maps (Section 4.2)."""
        tokens = self.down(tokens)
        height, width = tokens.local.shape[1:3]
        fits = max(height, width) <= self.window
        regions = regions_of(height, width, self.window if fits else self.region)
        groups: Sequence[Tensor] = regions.split(tokens)
        for i, block in enumerate(self.blocks):
            if self.checkpointing and torch.is_grad_enabled():
                groups = checkpoint(block, regions, *groups)
            else:
                groups = block(regions, *groups)
            if i == 0 and self.peg is not None:
                peg = self.peg
                groups = regions.split(regions.join(groups).each(lambda x: x + peg(x)))
        return regions.join(groups)


class RegionViT(Backbone):
    """The whole of Fig. 2; ``windows`` is the paper's M, ``tokenize`` that of the local tokens.

    ``regional`` tokens are ``computed`` from patches of 4M x 4M, a ``learnable`` grid, or there
    are ``none`` and the head averages local tokens (Table 8). ``downsample`` is Table 9's,
    ``absolute`` and ``relative`` positions are Table 10's; ``peg`` is Table 6's.

    Departs: the official code pads both maps for sizes that are not whole regions, not in the
    same places (a side that does divide gets a region more), lets padding be attended in the
    corner window, and does so even at 224 with a window of 14 in the last stage. Here windows at
    the border are smaller, and a regional token there sees the image padded at the bottom and on
    the right: regions and windows stay aligned at any size. At the training size, and with the
    windows of the paper's counts (14, 14, 14, 7 for "+"), the numbers are the official ones.
    """

    first_conv = ("local_embed.0", "regional_embed")

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (2, 2, 8, 2),
        windows: int | Sequence[int] = 7,
        tokenize: str = "3conv",
        regional: str = "computed",
        downsample: str = "dw3",
        absolute: bool = False,
        relative: bool = True,
        peg: bool = False,
        head_dim: int = 32,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        stages = len(depths)
        dims = per_stage(dims, stages, "dims")
        sides = checked_windows(per_stage(windows, stages, "windows"))
        heads = [heads_of(dim, head_dim) for dim in dims]
        strides = [PATCH * 2**i for i in range(stages)]
        super().__init__(img_size, in_chans, num_classes, dims, strides, drop_rate, global_pool)
        with_regional = choice(regional, ("computed", "learnable", "none"), "regional") != "none"
        region = sides[0]
        patch = PATCH * region
        rates = drop_path_rates(drop_path_rate, depths)

        self.local_embed = local_embedding(tokenize, in_chans, dims[0])
        self.regional_embed: WholePatches | GridPosition | None = None
        if regional == "computed":
            self.regional_embed = WholePatches(in_chans, dims[0], patch, stride=patch)
        elif regional == "learnable":
            self.regional_embed = GridPosition(*cells(self.img_size, patch), dims[0])
        self.pos = GridPosition(*cells(self.img_size, PATCH), dims[0]) if absolute else None
        self.stages = nn.ModuleList()
        for i, (dim, head, side) in enumerate(zip(dims, heads, sides, strict=True)):
            self.stages.append(
                R2LStage(
                    Down(downsample, dims[i - 1], dim) if i else nn.Identity(),
                    region,
                    side,
                    [
                        R2L(
                            dim,
                            R2LAttention(dim, head, side, relative, with_regional),
                            rate,
                            with_regional,
                        )
                        for rate in rates[i]
                    ],
                    Conv(dim, dim, 3, padding=1, groups=dim, bias=False) if peg else None,
                )
            )
        self.norm = nn.LayerNorm(dims[-1], eps=EPS)
        self.head = classifier(dims[-1], num_classes)
        self.apply(init_weights)

    def embed(self, images: Tensor) -> Tokens:
        """Both tokenizations of Fig. 2."""
        images = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        local = self.local_embed(images)
        if self.pos is not None:
            local = local + self.pos(*local.shape[1:3])
        if self.regional_embed is None:
            return Tokens(None, local)
        if isinstance(self.regional_embed, GridPosition):
            B, H, W, _ = local.shape
            grid = self.regional_embed(*cells((H, W), self.stages[0].region))
            return Tokens(grid.expand(B, -1, -1, -1), local)
        return Tokens(self.regional_embed(images), local)

    def stage_map(self, state: Tokens) -> Tensor:
        """A stage's local tokens, (B, C, H, W)."""
        return state.local.permute(0, 3, 1, 2)

    def finish(self, state: Tokens) -> Tensor:
        """LN of the regional tokens, or of the local ones if there are no others: (B, C, H, W)."""
        x = state.local if state.regional is None else state.regional
        return self.norm(x).permute(0, 3, 1, 2)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Nothing: the official code decays its biases too."""
        return set()

    def fit(self, name: str, value: Tensor) -> Tensor:
        """For another M (Appendix A.1), the regional convolution's kernel is resized as well.

        Departs: the official tool leaves the values as they are, so that 48 x 48 of them sum up
        to three times the token of 28 x 28. Here they are scaled to the same sum, so that the
        same image, enlarged, gives the same token; and the tool's tables are resized while
        rolled (see ``convert``), ours are not.
        """
        embed = self.regional_embed
        if name != "regional_embed.weight" or not isinstance(embed, WholePatches):
            return super().fit(name, value)
        if value.ndim != 4 or value.shape[:2] != embed.weight.shape[:2]:
            return value
        new = embed.weight.shape[2:]
        scale = value[0, 0].numel() / new.numel()
        taps = value.flatten(0, 1).permute(1, 2, 0)[None]  # (1, k, k, C * in_chans)
        return resize(taps, *new)[0].permute(2, 0, 1).reshape(embed.weight.shape) * scale

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official names: regional tokens are ``cls_token`` there, blocks count from 1.

        ``proj_cls`` is ``proj`` once more. Norms of maps are (1, C, 1, 1).
        """
        if not any(name.startswith("layers.") for name in state):
            return state
        ours = {}
        for name, value in state.items():
            if ".proj_cls." in name:
                continue
            if name.startswith("layers."):
                _, stage, part, *rest = name.split(".")
                if part == "block" and rest[0] == "0":
                    part, rest = "down", rest[2:]
                elif part == "block":
                    part, rest = "blocks", [str(int(rest[0]) - 1), *rest[1:]]
                name = ".".join(["stages", stage, part, *rest])
            name = name.replace("cls_token.proj.", "regional_embed.")
            name = name.replace("patch_embed.proj.weight", "local_embed.0.weight")
            name = name.replace("patch_embed.proj.bias", "local_embed.0.bias")
            name = name.replace("patch_embed.proj.", "local_embed.")
            if name.endswith("attn.rel_pos"):
                name, value = name.replace("rel_pos", "bias.table"), unrolled(value)
            elif value.ndim == 4 and value.shape[0] == value.shape[2] == value.shape[3] == 1:
                value = value.flatten()
            ours[name] = value
        return ours


def unrolled(table: Tensor) -> Tensor:
    """An official table (heads, n * n), n = 2 M - 1, as ours.

    There, a key at offset d of its query (key minus query) is in row (d + M // 2) mod n; here,
    query minus key, row M - 1 - d.
    """
    n = math.isqrt(table.shape[1])
    side = (n + 1) // 2
    rows = (side // 2 + side - 1 - torch.arange(n, device=table.device)) % n
    return table.unflatten(1, (n, n))[:, rows][:, :, rows]


def cells(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """Patches that cover a map."""
    return math.ceil(size[0] / patch), math.ceil(size[1] / patch)


def heads_of(dim: int, head_dim: int) -> int:
    """How many heads of ``head_dim`` channels make up a width."""
    if dim < 1 or dim % head_dim:
        raise ValueError(
            f"a width of {dim} cannot be split into heads of {head_dim}: "
            f"take dims that are multiples of {head_dim}, or another head_dim"
        )
    return dim // head_dim


def checked_windows(sides: tuple[int, ...]) -> tuple[int, ...]:
    """The windows, if every stage's is within what one regional token covers."""
    if min(sides) < 1 or max(sides) > sides[0]:
        raise ValueError(
            f"a regional token covers windows[0] local tokens a side in every stage: "
            f"no other window is larger, none smaller than 1, got {sides}"
        )
    return sides


def init_weights(module: nn.Module) -> None:
    """As the official code: linear layers and tables from N(0, 0.02), convolutions torch's own."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, LearnedTable):
        nn.init.trunc_normal_(module.table, std=0.02)


TI = dict(dims=(64, 128, 256, 512), depths=(2, 2, 8, 2), tokenize="3conv")
S = dict(dims=(96, 192, 384, 768), depths=(2, 2, 8, 2), tokenize="3conv")
M = dict(dims=(96, 192, 384, 768), depths=(2, 2, 14, 2), tokenize="1conv")
B = dict(dims=(128, 256, 512, 1024), depths=(2, 2, 14, 2), tokenize="1conv")
PLUS = dict(windows=(14, 14, 14, 7))
VARIANTS: dict[str, dict[str, object]] = {
    "regionvit_ti": dict(**TI, windows=7),
    "regionvit_s": dict(**S, windows=7),
    "regionvit_m": dict(**M, windows=7),
    "regionvit_b": dict(**B, windows=7),
    "regionvit_ti_plus": TI | PLUS,
    "regionvit_s_plus": S | PLUS,
    "regionvit_m_plus": M | PLUS,
    "regionvit_b_plus": B | PLUS,
}
