"""RegionViT: Regional-to-Local Attention (https://arxiv.org/abs/2106.02689).

An image becomes local tokens (patches of 4 x 4) and regional tokens (one for M x M local ones).
Regional tokens attend to each other, then each attends with the local tokens of its own region:
so local tokens see the whole image through one token. Regional tokens make the class.

    image -> local_embed    -> local    (H/4,  W/4)  +
          -> regional_embed -> regional (H/4M, W/4M) +-> [down -> R2L x depth] x 4

    regional -> LN -> mean -> head          local of every stage -> dense tasks
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block, drop_path_rates
from ziggurat.layers.convolution import Conv
from ziggurat.layers.position import GridPosition, RelativeBias, resize
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, init_weights, per_stage

PATCH = 4  # pixels a side of a local token (Table 2)
EPS = 1e-6  # of norms inside blocks and before the head
MAP_EPS = 1e-5  # of norms before convolutions, in the official code


class Tokens(NamedTuple):
    """What goes from stage to stage."""

    regional: Tensor | None  # (B, Rh, Rw, C)
    local: Tensor  # (B, H, W, C)

    def each(self, layer: Callable[[Tensor], Tensor]) -> "Tokens":
        """The same layer, with the same weights, on both maps."""
        return Tokens(None if self.regional is None else layer(self.regional), layer(self.local))


def local_embedding(tokenize: str, channels: int, dim: int) -> nn.Sequential:
    """Images to local tokens (Table 2; ``linear``: Section 3, Input Tokenization)."""
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
            return nn.Sequential(Conv(channels, dim, 8, stride=PATCH, padding=3))
        case _:
            return nn.Sequential(Conv(channels, dim, PATCH, stride=PATCH))


class Down(nn.Sequential):
    """Both maps halved and widened by the same convolution (Section 3, Table 9).

    LN and GELU before it are the official code's, the paper has neither. Table 9's counts are
    met with them, and would be without (the norms have 0.001 M parameters).
    """

    def __init__(self, kind: str, dim_in: int, dim: int) -> None:
        choice(kind, ("dw3", "conv3", "conv2"), "downsample")
        if kind == "dw3" and dim % dim_in:
            raise ValueError(
                f"a depthwise convolution widens {dim_in} channels to a multiple, not to {dim}: "
                "double dims from stage to stage, or take downsample='conv3'"
            )
        kernel, padding = (2, 0) if kind == "conv2" else (3, 1)
        groups = dim_in if kind == "dw3" else 1
        conv = Conv(dim_in, dim, kernel, stride=2, padding=padding, groups=groups)
        super().__init__(nn.LayerNorm(dim_in, eps=MAP_EPS), nn.GELU(), conv)

    def forward(self, tokens: Tokens) -> Tokens:
        """(B, H, W, dim_in) -> (B, ceil(H / 2), ceil(W / 2), dim), regional and local."""
        return tokens.each(super().forward)


class Regions(NamedTuple):
    """How a stage's maps are cut into windows, each of one regional and its local tokens.

    Whole windows are ``side`` x ``side``; at the border they may be smaller (``windows.Cut``).
    """

    side: int
    cut: windows.Cut

    @property
    def tokens(self) -> windows.Cut:
        """The same windows on the regional map: one token each."""
        return self.cut.resized(lambda _: 1)

    def split(self, tokens: Tokens) -> list[Tensor]:
        """(B * windows, 1 + h * w, C) for each group, the regional token first, if there is one."""
        local = self.cut.split(tokens.local)
        if tokens.regional is None:
            return local
        return [
            torch.cat(both, 1)
            for both in zip(self.tokens.split(tokens.regional), local, strict=True)
        ]

    def join(self, groups: Sequence[Tensor]) -> Tokens:
        """Undo ``split``."""
        sizes = [h * w for h, w, _, _ in self.cut.parts]
        local = self.cut.join([x[:, -size:] for x, size in zip(groups, sizes, strict=True)])
        if groups[0].shape[1] == sizes[0]:
            return Tokens(None, local)
        return Tokens(self.tokens.join([x[:, :1] for x in groups]), local)


class LocalBias(RelativeBias):
    """Eq. 3: a bias between local tokens, none from or to the regional token.

    Departs: the paper has one table B, the official code one for each head; so here.
    """

    def __init__(self, heads: int, side: int, regional: bool) -> None:
        super().__init__(heads, side, side)
        self.regional = regional

    def spread(self, height: int, width: int) -> Tensor:
        """(1, heads, 1 + N, 1 + N), ready for the attention kernel."""
        return self.with_regional(super().spread(height, width)[None])

    def with_regional(self, local: Tensor) -> Tensor:
        """(1, heads, N, N) and, if there is a regional token, zeros for it in front."""
        if not self.regional:
            return local
        _, heads, _, N = local.shape
        mask = local.new_zeros(1, heads, 1 + N, 1 + N)
        mask[:, :, 1:, 1:] = local
        return mask

    def masks(self, regions: Regions) -> list[Tensor]:
        """What each group of windows adds to its logits.

        A window cut short by the border has a whole one's offsets, only fewer: those among the
        whole one's upper left tokens.
        """
        side, first = (regions.side, regions.side), int(self.regional)
        sizes = tuple((h, w) for h, w, _, _ in regions.cut.parts)

        def make() -> list[Tensor]:
            whole = self.spread(*side)
            local = whole[:, :, first:, first:].unflatten(3, side).unflatten(2, side)
            return [
                whole
                if (h, w) == side
                else self.with_regional(local[:, :, :h, :w, :h, :w].flatten(4).flatten(2, 3))
                for h, w in sizes
            ]

        return self.kept((side, sizes), make)


class R2LAttention(Attention):
    """One set of weights for attention among regional tokens and within each region (Fig. 3)."""

    def __init__(self, dim: int, heads: int, side: int, relative: bool, regional: bool) -> None:
        super().__init__(dim, heads)
        self.bias = LocalBias(heads, side, regional) if relative else None


class R2L(Block):
    """Regional-to-local transformer encoder (Eq. 2): RSA, then LSA and FFN in every window."""

    attn: R2LAttention

    def __init__(self, attention: R2LAttention, dim: int, regional: bool, drop_path: float) -> None:
        super().__init__(dim, attention, drop_path, eps=EPS)
        self.norm0 = nn.LayerNorm(dim, eps=EPS) if regional else None

    def forward(  # type: ignore[override]  # all groups of windows at once
        self, regions: Regions, *groups: Tensor
    ) -> tuple[Tensor, ...]:
        """(B * windows, 1 + N, C) for each group, before and after."""
        if self.norm0 is not None:
            counts = regions.cut.counts
            found = [x[:, 0].unflatten(0, (-1, n)) for x, n in zip(groups, counts, strict=True)]
            r = torch.cat(found, 1)  # (B, regions, C), in whatever order: RSA has no bias
            r = r + self.drop_path(self.attn(self.norm0(r)))
            groups = tuple(
                torch.cat([own.reshape(-1, 1, x.shape[2]), x[:, 1:]], 1)
                for own, x in zip(r.split(counts, 1), groups, strict=True)
            )
        masks = [None] * len(groups) if self.attn.bias is None else self.attn.bias.masks(regions)
        lsa_and_ffn = super().forward
        return tuple(lsa_and_ffn(x, mask) for x, mask in zip(groups, masks, strict=True))


class Peg(Conv):
    """Position encoding generator (Table 6): a depthwise convolution, added to the map."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        return x + super().forward(x)


class R2LStage(Stage):
    """Blocks of one resolution; the maps stay cut into windows from the first to the last.

    A regional token covers ``region`` x ``region`` local tokens, in every stage as many as in the
    first. ``side`` is the window that biases are learned for: less than ``region`` where the map
    is smaller at the training size (7, not 14, in the last stage of the "+" models). On a larger
    map windows grow with it, up to whole regions, and biases are resized.
    """

    def __init__(
        self, down: nn.Module, blocks: list[R2L], peg: Peg | None, region: int, side: int
    ) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(blocks)
        self.peg = peg
        self.region, self.side = region, side

    def forward(self, tokens: Tokens) -> Tokens:
        """Down, then all blocks; PEG comes after the first one, on both maps."""
        tokens = self.down(tokens)
        height, width = tokens.local.shape[1:3]
        side = min(self.region, max(self.side, height, width))
        regions = Regions(side, windows.cut(height, width, side))
        groups: Sequence[Tensor] = regions.split(tokens)
        for i, block in enumerate(self.blocks):
            groups = self.step(block, regions, *groups)
            if i == 0 and self.peg is not None:
                groups = regions.split(regions.join(groups).each(self.peg))
        return regions.join(groups)


class RegionViT(Backbone):
    """The whole of Fig. 2; ``windows`` is the paper's M, ``tokenize`` that of the local tokens.

    ``regional`` tokens are ``computed`` from patches of 4M x 4M, a ``learnable`` grid, or there
    are ``none`` and the head averages local tokens (Table 8). ``downsample`` is Table 9's,
    ``absolute`` and ``relative`` positions are Table 10's, ``peg`` is Table 6's.

    Departs: for sizes that are not whole regions, the official code pads both maps, in different
    places (a side that does divide gets one more region), and lets padding be attended in the
    corner window: even at 224, if the last stage's window is 14. Here windows at the border are
    smaller, and a regional token there sees zeros beyond the image, so regions and windows stay
    aligned at any size. At the training size, with windows that divide the maps (the paper's
    counts are those of 14, 14, 14, 7 for the "+" models), the numbers are the official ones.
    """

    first_conv = ("local_embed.0", "regional_embed")

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (2, 2, 8, 2),
        windows: int | Sequence[int] = (7, 7, 7, 7),
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
        if not stages:
            raise ValueError("depths has the number of blocks of each stage, got none")
        dims = per_stage(dims, stages, "dims")
        heads = [heads_of(dim, head_dim) for dim in dims]
        sides = checked_windows(per_stage(windows, stages, "windows"))
        strides = [PATCH * 2**i for i in range(stages)]
        super().__init__(img_size, in_chans, num_classes, dims, strides, drop_rate, global_pool)
        has_regional = choice(regional, ("computed", "learnable", "none"), "regional") != "none"
        self.region = self.learned_region = sides[0]
        patch = PATCH * self.region
        rates = drop_path_rates(drop_path_rate, depths)

        self.local_embed = local_embedding(tokenize, in_chans, dims[0])
        self.regional_embed: Conv | GridPosition | None = None
        if regional == "computed":
            self.regional_embed = Conv(in_chans, dims[0], patch, stride=patch)
        elif regional == "learnable":
            self.regional_embed = GridPosition(*cells(self.img_size, patch), dims[0])
        self.pos = GridPosition(*cells(self.img_size, PATCH), dims[0]) if absolute else None
        self.stages = nn.ModuleList()
        for i, (dim, head, side) in enumerate(zip(dims, heads, sides, strict=True)):
            blocks = []
            for rate in rates[i]:
                attention = R2LAttention(dim, head, side, relative, has_regional)
                blocks.append(R2L(attention, dim, has_regional, rate))
            down = Down(downsample, dims[i - 1], dim) if i else nn.Identity()
            stage = R2LStage(down, blocks, Peg(dim) if peg else None, self.region, side)
            self.stages.append(stage)
        self.norm = nn.LayerNorm(dims[-1], eps=EPS)
        self.head = classifier(dims[-1], num_classes)
        self.apply(init_weights)

    def embed(self, images: Tensor) -> Tokens:
        """Both tokenizations of Fig. 2."""
        images = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        local = self.local_embed(images)
        B, H, W, _ = local.shape
        if self.pos is not None:
            local = local + self.pos(H, W)
        if self.regional_embed is None:
            return Tokens(None, local)
        if isinstance(self.regional_embed, GridPosition):
            grid = self.regional_embed(*cells((H, W), self.region))
            return Tokens(grid.expand(B, -1, -1, -1), local)
        return Tokens(self.regional_embed(images), local)

    def stage_map(self, state: Tokens) -> Tensor:
        """A stage's local tokens, (B, C, H, W)."""
        return state.local.permute(0, 3, 1, 2)

    def normed(self, state: Tokens) -> Tokens:
        """As it is: the norm is the regional tokens', the map the local ones'."""
        return state

    def finish(self, state: Tokens) -> Tensor:
        """LN of the regional tokens, or of the local ones if there are no others: (B, C, H, W)."""
        x = state.local if state.regional is None else state.regional
        return self.norm(x).permute(0, 3, 1, 2)

    def no_weight_decay(self) -> set[str]:
        """Nothing: the official code decays its biases too."""
        return set()

    def fit(self, name: str, value: Tensor) -> Tensor:
        """For another M (Appendix A.1), the regional convolution's kernel is resized as well.

        Departs: the official tool leaves the values as they are, so that a kernel of 48 x 48
        sums up to three times the token of 28 x 28. Here they are scaled to the same sum: the
        same image, enlarged, gives the same token. The tool also resizes biases while they are
        rolled (see ``unrolled``), across the seam; ours have none.

        A last stage learned with windows of a whole region (the repository's 14 four times) but
        on smaller maps, as ours are, has used only the middle of its table: that part is taken.
        ``learned_region`` is the M of the checkpoint last converted.
        """
        new = self.state_dict()[name].shape
        if name.endswith("bias.table") and value.ndim == 3:
            region, side = self.learned_region, (new[1] + 1) // 2
            used, rest = divmod(region * side, self.region)
            if value.shape[1] == 2 * region - 1 and used < region and not rest:
                value = value[:, region - used : used - region, region - used : used - region]
        value = super().fit(name, value)
        if name != "regional_embed.weight" or value.shape[:2] != new[:2]:
            return value
        taps = resize(value.flatten(0, 1).permute(1, 2, 0)[None], *new[2:])  # (1, 4M, 4M, C * in)
        scale = value[0, 0].numel() / new[2:].numel()
        return taps[0].permute(2, 0, 1).reshape(new) * scale

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official names: regional tokens are ``cls_token`` there, blocks count from 1.

        ``proj_cls`` is ``proj`` once more; norms of maps are (1, C, 1, 1).
        """
        if any(name.startswith("layers.") for name in state):
            state = self.renamed(state)
        tables = [v for name, v in state.items() if name.endswith("bias.table") and v.ndim == 3]
        self.learned_region = max(((t.shape[1] + 1) // 2 for t in tables), default=self.region)
        return state

    def renamed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Our names and layouts for the official ones."""
        ours = {}
        for name, value in state.items():
            for pattern, replacement in OFFICIAL:
                name = re.sub(pattern, replacement, name)
            name = re.sub(r"blocks\.(\d+)", lambda found: f"blocks.{int(found[1]) - 1}", name)
            if name.endswith("bias.table"):
                value = unrolled(value)
            elif value.ndim == 4 and value.shape[0] == value.shape[2] == value.shape[3] == 1:
                value = value.flatten()
            if ".proj_cls." not in name:
                ours[name] = value
        return ours


OFFICIAL = (
    (r"^cls_token\.proj\.", "regional_embed."),
    (r"^patch_embed\.proj\.(?=\d)", "local_embed."),
    (r"^patch_embed\.proj\.", "local_embed.0."),
    (r"^layers\.(\d+)\.block\.0\.proj\.", r"stages.\1.down."),
    (r"^layers\.(\d+)\.block\.", r"stages.\1.blocks."),
    (r"^layers\.", "stages."),
    (r"\.rel_pos$", ".bias.table"),
)


def unrolled(table: Tensor) -> Tensor:
    """An official table (heads, n * n), n = 2 M - 1, as ours.

    There, a key d rows below its query is in row (d + M // 2) mod n; here in row M - 1 - d.
    """
    n = math.isqrt(table.shape[1])
    side = (n + 1) // 2
    rows = (side // 2 + side - 1 - torch.arange(n, device=table.device)) % n
    return table.unflatten(1, (n, n))[:, rows][:, :, rows]


def cells(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """How many patches cover a map."""
    return math.ceil(size[0] / patch), math.ceil(size[1] / patch)


def heads_of(dim: int, head_dim: int) -> int:
    """How many heads of ``head_dim`` channels make up a width."""
    if head_dim < 1:
        raise ValueError(f"head_dim is 1 channel or more, got {head_dim}")
    if dim < 1 or dim % head_dim:
        raise ValueError(
            f"a width of {dim} cannot be split into heads of {head_dim}: "
            f"take dims that are multiples of {head_dim}, or another head_dim"
        )
    return dim // head_dim


def checked_windows(sides: tuple[int, ...]) -> tuple[int, ...]:
    """The windows, if a regional token covers them in every stage."""
    if min(sides) < 1 or max(sides) > sides[0]:
        raise ValueError(
            "a regional token covers windows[0] x windows[0] local tokens in every stage: "
            f"no later window is larger, and none is smaller than 1; got {sides}"
        )
    return sides


TI = dict(dims=(64, 128, 256, 512), depths=(2, 2, 8, 2), tokenize="3conv")
S = dict(dims=(96, 192, 384, 768), depths=(2, 2, 8, 2), tokenize="3conv")
M = dict(dims=(96, 192, 384, 768), depths=(2, 2, 14, 2), tokenize="1conv")
B = dict(dims=(128, 256, 512, 1024), depths=(2, 2, 14, 2), tokenize="1conv")
PLUS = (14, 14, 14, 7)  # Table 2 says 14; Table 3's counts are these
VARIANTS: dict[str, dict[str, Any]] = {
    "regionvit_ti": dict(**TI, windows=(7, 7, 7, 7)),
    "regionvit_s": dict(**S, windows=(7, 7, 7, 7)),
    "regionvit_m": dict(**M, windows=(7, 7, 7, 7)),
    "regionvit_b": dict(**B, windows=(7, 7, 7, 7)),
    "regionvit_ti_plus": dict(**TI, windows=PLUS),
    "regionvit_s_plus": dict(**S, windows=PLUS),
    "regionvit_m_plus": dict(**M, windows=PLUS),
    "regionvit_b_plus": dict(**B, windows=PLUS),
}
