"""HVT: Scalable Vision Transformers with Hierarchical Pooling (https://arxiv.org/abs/2103.10619).

A ViT whose token sequence is pooled after the first block of each stage and given new positions,
so that all later blocks see half as many tokens; the class is read from the mean of the tokens
that are left, not from a class token.

    image -> patches + E -> [Block -> pool + E_b -> Block x (L/M - 1)] x M -> LN -> mean -> head
    tokens:    196                -> 97 -> 48 -> 23 -> 11 for M = 4
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block, drop_path_rates
from ziggurat.layers.position import GridPosition, LearnedTable, resize
from ziggurat.models.backbone import Backbone, Stage, choice, classifier, init_weights, pair

EPS = 1e-6
HEAD_DIM = 64  # of every model in the paper: width is 64 times the number of heads (Table 6)


class Tokens(NamedTuple):
    """What goes from stage to stage."""

    x: Tensor  # (B, N, C)
    grid: tuple[int, int]  # where they lie; pooled in 1-D: where they lay, as patches


class Window(NamedTuple):
    """Pooling's kernel and stride along one axis; how lengths come out of it."""

    kernel: int
    stride: int
    padding: int = 0

    def pooled(self, length: int, times: int = 1) -> int:
        """The length after pooling; 196 -> 97 -> 48 -> 23 -> 11."""
        for _ in range(times):
            length = (length + 2 * self.padding - self.kernel) // self.stride + 1
        return length

    def needed(self, length: int, times: int) -> int:
        """The shortest length of which ``length`` is left; 31 for one token after four."""
        for _ in range(times):
            length = (length - 1) * self.stride + self.kernel - 2 * self.padding
        return length


def stretch(x: Tensor, length: int) -> Tensor:
    """Linear interpolation of (B, N, C) along the sequence (Fig. 3), as it is where N fits."""
    if x.shape[1] == length:
        return x
    return F.interpolate(x.transpose(1, 2), size=length, mode="linear").transpose(1, 2)


class SequencePosition(LearnedTable):
    """E_b of Eq. 5 for a sequence pooled ``times`` times in 1-D; ``table`` is (1, N, C).

    For another grid of patches the table is stretched to a token for each patch, as Fig. 3
    stretches features, resized as a grid, and brought to the new length.

    A table alone does not tell its grid (28 x 7 patches are as many as 14 x 14): ``learned_on`` is
    the grid of the checkpoint last converted, which ``fit`` goes by.

    Departs: the official code takes only its own size.
    """

    def __init__(self, grid: tuple[int, int], dim: int, window: Window, times: int) -> None:
        super().__init__(torch.zeros(1, window.pooled(grid[0] * grid[1], times), dim))
        self.grid, self.window, self.times = grid, window, times
        self.learned_on = grid

    def forward(self, grid: tuple[int, int]) -> Tensor:
        """(1, N, C) for an image of ``grid`` patches."""
        if grid == self.grid:
            return self.table
        return self.kept(grid, lambda: self.moved(self.table, self.grid, grid))

    def fit(self, table: Tensor) -> Tensor:
        """A table of ``learned_on`` patches for this grid; one of another length as it is."""
        rows, cols = self.learned_on
        if table.ndim != 3 or table.shape[1] != self.window.pooled(rows * cols, self.times):
            return table
        return self.moved(table, self.learned_on, self.grid)

    def moved(self, table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
        """``table``, learned on ``old`` patches, for ``new`` ones."""
        wide = stretch(table, old[0] * old[1]).unflatten(1, old)
        length = self.window.pooled(new[0] * new[1], self.times)
        return stretch(resize(wide, *new).flatten(1, 2), length)


class SequencePool(nn.Module):
    """Eq. 5: pooling along the row-major sequence, across the ends of rows, then E_b."""

    def __init__(self, kind: str, dim: int, window: Window, pos: SequencePosition) -> None:
        super().__init__()
        if kind == "conv":
            self.down: nn.Module = nn.Conv1d(dim, dim, *window)
        else:
            self.down = (nn.MaxPool1d if kind == "max" else nn.AvgPool1d)(*window)
        self.pos = pos

    def forward(self, tokens: Tokens) -> Tokens:
        """Fewer tokens of the same patches."""
        x = self.down(tokens.x.transpose(1, 2)).transpose(1, 2)
        x = x.contiguous()  # else sums, which keep a layout, would hand this one to all blocks
        return Tokens(x + self.pos(tokens.grid), tokens.grid)


class GridPool(nn.Module):
    """Pooling on the image plane (Table 9)."""

    def __init__(self, kind: str, dim: int, window: Window, pos: GridPosition) -> None:
        super().__init__()
        if kind == "conv":
            self.down: nn.Module = nn.Conv2d(dim, dim, *window)
        elif kind == "max":
            self.down = nn.MaxPool2d(*window)
        else:
            self.down = nn.AvgPool2d(*window, count_include_pad=False)
        self.pos = pos

    def forward(self, tokens: Tokens) -> Tokens:
        """Fewer tokens on a coarser grid."""
        x = self.down(tokens.x.transpose(1, 2).unflatten(2, tokens.grid))
        H, W = x.shape[2:]
        return Tokens((x.permute(0, 2, 3, 1) + self.pos(H, W)).flatten(1, 2), (H, W))


class PoolingStage(Stage):
    """Blocks, pooled after the first of them (Fig. 2)."""

    def __init__(self, blocks: list[nn.Module], pool: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.pool = pool

    def forward(self, tokens: Tokens) -> Tokens:
        """The first block sees all tokens, the others what is left."""
        first, *others = self.blocks
        x, grid = self.pool(tokens._replace(x=self.step(first, tokens.x)))
        for block in others:
            x = self.step(block, x)
        return Tokens(x, grid)


class HVT(Backbone):
    """The whole of Fig. 2: ``depth`` blocks in ``stages`` (M) stages, each pooled once.

    With ``stages=0`` it is DeiT without its class token, or with it (``class_token``, Table 2).
    ``pool`` is Table 3's max, avg or conv (dense, C -> C); ``pool_2d`` is Table 9's, padded so
    that an odd kernel at stride 2 halves the map. ``dim`` is 64 times ``heads`` if not given.

    Departs: the official code takes only its own size, and always pools after the first block;
    M = 0 is the paper's text. 2-D pooling and convolutions are not in the official code: theirs
    are worked back from the tables' parameters and FLOPs.
    """

    first_conv = "patch_embed"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        patch_size: int = 16,
        dim: int | None = None,
        heads: int = 6,
        depth: int = 12,
        stages: int = 4,
        pool: str = "max",
        pool_kernel: int = 3,
        pool_stride: int = 2,
        pool_2d: bool = False,
        class_token: bool = False,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        choice(pool, ("max", "avg", "conv"), "pool")
        if min(pool_kernel, pool_stride) < 1:
            raise ValueError(
                f"pool_kernel and pool_stride are 1 or more, got {pool_kernel} and {pool_stride}"
            )
        if patch_size < 1:
            raise ValueError(f"patch_size is 1 pixel or more, got {patch_size}")
        if class_token and stages:
            raise ValueError(
                f"pooling would mix a class token into its neighbours, got stages={stages}: "
                "take stages=0 with class_token, as Table 2 does"
            )
        depths = split_depth(depth, stages)
        dim = dim or HEAD_DIM * max(heads, 1)  # no heads: Attention says so
        strides = [patch_size * (pool_stride**i if pool_2d else 1) for i in range(1, stages + 1)]
        window = Window(pool_kernel, pool_stride, (pool_kernel - 1) // 2 if pool_2d else 0)
        needed = window.needed(1, stages)  # tokens in a row, or in all
        smallest = ((needed if pool_2d else math.isqrt(needed - 1) + 1) - 1) * patch_size + 1
        height, width = (math.ceil(side / patch_size) for side in pair(img_size))
        if (min(height, width) if pool_2d else height * width) < needed:
            raise ValueError(
                f"{stages} poolings take images from {smallest} x {smallest} pixels up, "
                f"got img_size={img_size}: they need {needed} patches "
                f"{'a side' if pool_2d else 'in all'}, so enlarge it or take a smaller patch_size"
            )
        super().__init__(
            img_size,
            in_chans,
            num_classes,
            [dim] * len(depths),
            strides or [patch_size],
            drop_rate,
            global_pool,
            smallest,
        )
        self.patch_size, self.depths = patch_size, depths
        self.needed = None if pool_2d else needed  # patches, in whatever shape

        self.patch_embed = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if class_token else None
        self.pos = GridPosition(height, width, dim)
        self.stages = nn.ModuleList()
        for i, drops in enumerate(drop_path_rates(drop_path_rate, depths), 1):
            blocks: list[nn.Module] = [
                Block(dim, Attention(dim, heads), drop, eps=EPS) for drop in drops
            ]
            if not stages:
                pooling: nn.Module = nn.Identity()
            elif pool_2d:
                rows, cols = (window.pooled(side, i) for side in (height, width))
                pooling = GridPool(pool, dim, window, GridPosition(rows, cols, dim))
            else:
                sequence = SequencePosition((height, width), dim, window, i)
                pooling = SequencePool(pool, dim, window, sequence)
            self.stages.append(PoolingStage(blocks, pooling))
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.head = classifier(dim, num_classes)
        self.apply(init_weights)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def checked(self, images: Tensor) -> Tensor:
        """Pooling in 1-D takes any shape of enough patches: 64 x 448 pixels as well as 81 x 81."""
        if self.needed is None or images.ndim != 4 or min(images.shape[2:]) >= self.smallest:
            return super().checked(images)
        height, width = images.shape[2:]
        patches = math.ceil(height / self.patch_size) * math.ceil(width / self.patch_size)
        if patches < self.needed:
            raise ValueError(
                f"{self.name} takes images from {self.smallest} x {self.smallest} pixels up, got "
                f"{height} x {width}: its poolings need {self.needed} patches and these are "
                f"{patches}, so enlarge them or take a smaller patch_size"
            )
        super().checked(images[:, :, :1, :1].expand(-1, -1, self.smallest, self.smallest))
        return images

    def embed(self, images: Tensor) -> Tokens:
        """Eq. 1, without the class token unless asked."""
        x = self.patch_embed(windows.pad_to_multiple(images, self.patch_size)).permute(0, 2, 3, 1)
        H, W = x.shape[1:3]
        x = (self.pos(H, W) + x).flatten(1, 2)  # laid out as the position is: channels last
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return Tokens(x, (H, W))

    def stage_map(self, state: Tokens) -> Tensor:
        """The tokens on their grid; pooled in 1-D, first stretched back to all patches (Fig. 3)."""
        x = state.x if self.cls_token is None else state.x[:, 1:]
        H, W = state.grid
        return stretch(x, H * W).transpose(1, 2).unflatten(2, (H, W))

    def normed(self, state: Tokens) -> Tokens:
        """LN of each token."""
        return state._replace(x=self.norm(state.x))

    def finish(self, state: Tokens) -> Tensor:
        """LN, as tokens (B, N, C)."""
        return self.normed(state).x

    def pool(self, features: Tensor) -> Tensor:
        """The mean over tokens (Eq. 6), or the class token (Eq. 4)."""
        return features.mean(1) if self.cls_token is None else features[:, 0]

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official names, which are DeiT's: blocks are numbered through all stages.

        DeiT's class token has a position of its own; here the two are one parameter, their sum.
        The grid a checkpoint was learned on is that of its ``pos.table``. Pooled tables of another
        grid are resized by ``fit``, or here if they are as long as ours: nobody would ask ``fit``.
        """
        state = dict(state)
        if self.cls_token is not None and {"cls_token", "pos_embed"} <= state.keys():
            state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
            state["pos_embed"] = state["pos_embed"][:, 1:]
        ours = {}
        for name, value in state.items():
            name = name.replace("patch_embed.proj.", "patch_embed.")
            if name == "pos_embed":
                name, side = "pos.table", math.isqrt(value.shape[1])
                if side**2 == value.shape[1]:
                    value = value.unflatten(1, (side, side))
            elif name.startswith("blocks."):
                number, inner = name.removeprefix("blocks.").split(".", 1)
                stage, block = divmod(int(number), self.depths[0])
                name = f"stages.{stage}.blocks.{block}.{inner}"
                if inner == "pos_embed" and block == 0:
                    name = f"stages.{stage}.pool.pos.table"
            ours[name] = value
        grid = ours.get("pos.table", self.pos.table).shape[1:-1]
        for name, module in self.named_modules():
            if isinstance(module, SequencePosition) and len(grid) == 2:
                module.learned_on = grid[0], grid[1]
                table = ours.get(f"{name}.table")
                if grid != module.grid and table is not None and table.shape == module.table.shape:
                    ours[f"{name}.table"] = module.fit(table)
        return ours

    def no_weight_decay(self) -> set[str]:
        """Learned positions, and the class token as in DeiT."""
        return super().no_weight_decay() | ({"cls_token"} if self.cls_token is not None else set())

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """Pooling goes with the block before it: the first of its own stage."""
        layer = super().group_matcher(coarse)
        return lambda name: layer(name.replace(".pool.", ".blocks.0."))


def split_depth(depth: int, stages: int) -> list[int]:
    """Blocks of each stage (Section 4.2: evenly); without pooling all are one stage."""
    if depth < 1 or stages < 0:
        raise ValueError(
            f"depth is 1 or more and stages 0 or more, got depth={depth}, stages={stages}"
        )
    if stages and depth % stages:
        fitting = [str(n) for n in range(depth + 1) if n == 0 or depth % n == 0]
        raise ValueError(
            f"{depth} blocks cannot be split evenly into {stages} stages: "
            f"take {', '.join(fitting)} stages or another depth"
        )
    return [depth // stages] * stages if stages else [depth]


VARIANTS: dict[str, dict[str, Any]] = {
    "hvt_ti_0": dict(heads=3, stages=0),
    "hvt_ti_1": dict(heads=3, stages=1),
    "hvt_ti_2": dict(heads=3, stages=2),
    "hvt_ti_3": dict(heads=3, stages=3),
    "hvt_ti_4": dict(heads=3, stages=4),
    "hvt_s_0": dict(heads=6, stages=0),
    "hvt_s_1": dict(heads=6, stages=1),
    "hvt_s_2": dict(heads=6, stages=2),
    "hvt_s_3": dict(heads=6, stages=3),
    "hvt_s_4": dict(heads=6, stages=4),
    "scale_hvt_ti_4": dict(heads=6, stages=4),  # Table 1's name for the same network
    "hvt_s_2_2d": dict(patch_size=8, heads=6, stages=2, pool_2d=True),
}
