"""Images from noise: NesT upside down (https://arxiv.org/abs/2105.12723), and its two rivals.

    noise -> 8 x 8 tokens -> [Level -> Grow] x (levels - 1) -> Level -> LN -> 1x1 -> image

Section 3.1 and Table A4. Where NesT aggregates four blocks into one, its generator makes four of
one: twice the side, a quarter of the width. Beside it, the two others of Figure 7: TransGAN's,
whose tokens all attend to all, and SAGAN's convolutions without their attention.
"""

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers.attention import Attention, Block, head_width
from ziggurat.layers.convolution import Conv
from ziggurat.models.backbone import choice
from ziggurat.models.nest import EPS, Level, init_weights
from ziggurat.models.pretrained import locate, read_config, write_folder
from ziggurat.models.weights import CheckpointError, load_checkpoint

SIDE = 8  # tokens a side of a block, and of the coarsest level (Table A4: sequence length 8 x 8)
FIRST = 4  # pixels a side of the first map of convolutions


class Generator(nn.Module):
    """Noise (B, latent) to images (B, out_chans, img_size, img_size), around -1 to 1.

    ``name`` is the variant's name, ``overrides`` what was changed of it: both are set by
    ``create_generator`` and travel with ``save_generator``, as does ``about``, whatever a training
    wants known of the weights.
    """

    name = "this generator"
    overrides: dict[str, Any]
    about: dict[str, Any]

    def __init__(self, img_size: int, latent: int, out_chans: int) -> None:
        super().__init__()
        if latent < 1 or out_chans < 1:
            raise ValueError(
                f"a generator takes at least one number and makes at least one channel, "
                f"got latent={latent}, out_chans={out_chans}"
            )
        self.img_size, self.latent, self.out_chans = img_size, latent, out_chans

    def noise(
        self,
        count: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """What ``forward`` takes, N(0, 1): (count, latent), where the weights are if not told.

        It is drawn where ``generator`` is, so that one seed gives one noise on any device.
        """
        here = next(self.parameters())
        device = here.device if device is None else device
        drawn = device if generator is None else generator.device
        noise = torch.randn(count, self.latent, generator=generator, device=drawn)
        return noise.to(device, here.dtype)

    def checked(self, noise: Tensor) -> Tensor:
        """The noise, if it has as many numbers as this generator takes."""
        if noise.ndim != 2 or noise.shape[1] != self.latent:
            raise ValueError(
                f"{self.name} takes noise as (batch, {self.latent}), got {tuple(noise.shape)}: "
                f"its own noise(count) makes some"
            )
        return noise


class Nearest(nn.Module):
    """Every token four times (nearest neighbour)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, 2 H, 2 W, C)."""
        return F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2).permute(0, 2, 3, 1)


class Shuffle(nn.Module):
    """Pixel shuffle: a token's channels become four tokens of a quarter each."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, 2 H, 2 W, C / 4)."""
        return F.pixel_shuffle(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)


class Grow(nn.Sequential):
    """Block de-aggregation (Section 3.1): the steps named in ``steps``, joined by ``-``.

    ``shuffle`` is the paper's, and has no weights. Figure 7 (middle) holds combinations of pixel
    shuffling (PS), Conv3x3 (C3) and nearest neighbour (NN) against it, without saying in what
    order: any is spelled here, ``shuffle-conv3`` and ``conv3-shuffle``, ``nearest``,
    ``nearest-conv3`` and ``conv3-nearest``. One step doubles the side; between steps there is
    nothing.

    The width becomes a quarter in all. Shuffling does that by itself, and ``conv3`` beside it
    leaves the width as it finds it; beside ``nearest`` the first ``conv3`` does it. ``nearest``
    alone has a 1x1 convolution put before it: behind it, the numbers would be the same at four
    times the cost.
    """

    STEPS = ("shuffle", "nearest", "conv3")
    DOUBLE = ("shuffle", "nearest")

    def __init__(self, steps: str, dim: int) -> None:
        names = [choice(name, self.STEPS, "a step of upsample") for name in steps.split("-")]
        if sum(name in self.DOUBLE for name in names) != 1:
            raise ValueError(
                f"upsample doubles the map exactly once, got {steps!r}: "
                f"take one of {', '.join(self.DOUBLE)}"
            )
        layers: list[nn.Module] = []
        width = dim
        if names == ["nearest"]:
            layers.append(Conv(dim, dim // 4, 1))
        for name in names:
            match name:
                case "shuffle":
                    layers.append(Shuffle())
                    width //= 4
                case "nearest":
                    layers.append(Nearest())
                case _:
                    out = width if "shuffle" in names else dim // 4
                    layers.append(Conv(width, out, 3, padding=1))
                    width = out
        super().__init__(*layers)


class TokenGenerator(Generator):
    """Levels of transformer layers, from 8 x 8 tokens of ``dim`` channels to one token a pixel.

    ``depths`` has one entry a level, the coarsest first; each level has twice the side and a
    quarter of the width of the one before, so ``img_size`` is 8 * 2^(levels - 1). Tokens attend
    within blocks of ``block`` x ``block``, to all others if it is None. Positions are learned, one
    for each token of each level, as in NesT.
    """

    def __init__(
        self,
        img_size: int,
        dim: int,
        heads: int,
        depths: Sequence[int],
        latent: int | None,
        upsample: str,
        out_chans: int,
        block: int | None,
        norm: bool,
    ) -> None:
        levels = len(depths)
        if not levels or img_size != SIDE * 2 ** (levels - 1):
            sides = [SIDE * 2**i for i in range(max(levels, 1))]
            raise ValueError(
                f"depths has one entry a level and {levels} levels end at {sides[-1]} pixels, got "
                f"img_size={img_size}, depths={tuple(depths)}: give an entry for each of 8, 16, "
                "32 ... img_size"
            )
        if dim % 4 ** (levels - 1):
            raise ValueError(
                f"{levels} levels divide the width by 4 {levels - 1} times, got dim={dim}: "
                f"take a multiple of {4 ** (levels - 1)}"
            )
        super().__init__(img_size, SIDE**2 * dim if latent is None else latent, out_chans)
        self.dims = tuple(dim // 4**i for i in range(levels))
        self.depths = tuple(depths)
        for width in self.dims:
            head_width(width, heads)
        self.embed = nn.Identity() if latent is None else nn.Linear(latent, SIDE**2 * dim)
        self.grow = nn.ModuleList([nn.Identity()])
        self.grow.extend(Grow(upsample, width) for width in self.dims[:-1])
        self.stages = nn.ModuleList()
        for i, (width, depth) in enumerate(zip(self.dims, depths, strict=True)):
            side = SIDE * 2**i
            layers: list[nn.Module] = [
                Block(width, Attention(width, heads), gelu="tanh", eps=EPS) for _ in range(depth)
            ]
            self.stages.append(Level(nn.Identity(), width, (side, side), block or side, layers))
        self.norm = nn.LayerNorm(self.dims[-1], eps=EPS) if norm else nn.Identity()
        self.head = nn.Conv2d(self.dims[-1], out_chans, 1)
        self.apply(init_weights)

    def forward(self, noise: Tensor) -> Tensor:
        """(B, latent) -> (B, out_chans, img_size, img_size)."""
        x = self.embed(self.checked(noise)).view(-1, SIDE, SIDE, self.dims[0])
        for grow, stage in zip(self.grow, self.stages, strict=True):
            x = stage(grow(x))
        return self.head(self.norm(x).permute(0, 3, 1, 2))


class NesTGenerator(TokenGenerator):
    """NesT as a decoder (Section 3.1, Table A4): one block of 8 x 8 tokens, then 4, 16, 64.

    With the paper's ``shuffle``, blocks that come of one block never meet again: only within the
    first level does every token see every other. A ``conv3`` lets neighbours meet.

    ``latent``: the paper takes (b, nd) numbers as (b, 1, n, d) tokens, "a reshaped noise vector",
    and Table A4 has no layer before the first level. So None, the default, takes 64 * ``dim``
    numbers as they are. A number takes that many through one linear layer, as TransGAN does (256),
    whose design Table A4 follows, and as do the small variants here.

    Pixels are not squashed: Table A4 ends with the 1x1 convolution, as TransGAN does. Weights start
    as NesT's (Appendix A.1).
    """

    def __init__(
        self,
        img_size: int = 64,
        dim: int = 1024,
        heads: int = 4,
        depths: Sequence[int] = (5, 3, 3, 2),
        latent: int | None = None,
        upsample: str = "shuffle",
        out_chans: int = 3,
    ) -> None:
        super().__init__(
            img_size, dim, heads, depths, latent, upsample, out_chans, block=SIDE, norm=True
        )


class TransGenerator(TokenGenerator):
    """TransGAN's generator (arXiv:2102.07074): the same levels, where all tokens attend to all.

    Widths, heads and depths of its official model for 64 x 64 are those of Table A4 ("we configure
    NesT following the architecture design of TransGAN"), so the blocks are what differs. There is
    no norm before the 1x1 convolution.

    Departs: its layers are NesT's (biases of q, k and v, tanh GELU, initialisation), so that
    nothing else differs; and no mask holds attention to neighbours in the first epochs.
    """

    def __init__(
        self,
        img_size: int = 64,
        dim: int = 1024,
        heads: int = 4,
        depths: Sequence[int] = (5, 3, 3, 2),
        latent: int = 256,
        out_chans: int = 3,
    ) -> None:
        super().__init__(
            img_size, dim, heads, depths, latent, "shuffle", out_chans, block=None, norm=False
        )


class Up(nn.Module):
    """A residual block that doubles the side: (norm, ReLU, conv3) twice, and a skip.

    The skip's 1x1 convolution comes before its doubling, not behind as in the official code: the
    numbers are the same at a quarter of the cost.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(dim_in)
        self.conv1 = nn.Conv2d(dim_in, dim, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)
        self.skip = nn.Conv2d(dim_in, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, dim_in, H, W) -> (B, dim, 2 H, 2 W)."""
        y = self.conv1(F.interpolate(F.relu(self.norm1(x)), scale_factor=2))
        y = self.conv2(F.relu(self.norm2(y)))
        return y + F.interpolate(self.skip(x), scale_factor=2)


class ConvGenerator(Generator):
    """SAGAN's residual generator (arXiv:1805.08318) without its attention (Section 4.5).

    ``dim`` channels at 4 x 4; the first block keeps them, each later one halves them, as in the
    official code: 1024, 1024, 512, 256, 128 at 64 x 64 are its model for 128 x 128 without the last
    block. Pixels go through tanh.

    Departs: there are no classes, so norms are plain batch norms; and no spectral norm, since the
    paper trains under the R1 penalty (Appendix A.4).
    """

    def __init__(
        self, img_size: int = 64, dim: int = 1024, latent: int = 128, out_chans: int = 3
    ) -> None:
        blocks = int(math.log2(img_size / FIRST)) if img_size > FIRST else 0
        if not blocks or img_size != FIRST * 2**blocks:
            raise ValueError(
                f"convolutions double {FIRST} x {FIRST} pixels: img_size is 8, 16, 32, 64 and so "
                f"on, got {img_size}"
            )
        if dim % 2 ** (blocks - 1):
            raise ValueError(
                f"{blocks} blocks halve the width {blocks - 1} times, got dim={dim}: "
                f"take a multiple of {2 ** (blocks - 1)}"
            )
        super().__init__(img_size, latent, out_chans)
        self.dims = (dim, *(dim >> i for i in range(blocks)))
        self.embed = nn.Linear(latent, FIRST**2 * dim)
        self.blocks = nn.Sequential(*(Up(coarse, fine) for coarse, fine in pairwise(self.dims)))
        self.norm = nn.BatchNorm2d(self.dims[-1])
        self.head = nn.Conv2d(self.dims[-1], out_chans, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, noise: Tensor) -> Tensor:
        """(B, latent) -> (B, out_chans, img_size, img_size)."""
        x = self.embed(self.checked(noise)).view(-1, self.dims[0], FIRST, FIRST)
        return self.head(F.relu(self.norm(self.blocks(x)))).tanh()


SMALL_16: dict[str, Any] = dict(img_size=16, dim=64, heads=4, depths=(2, 2), latent=128)
SMALL_32: dict[str, Any] = dict(img_size=32, dim=192, heads=4, depths=(1, 2, 2), latent=128)
FAMILIES: dict[type[Generator], dict[str, dict[str, Any]]] = {
    NesTGenerator: {
        "nest_generator_64": dict(img_size=64, dim=1024, heads=4, depths=(5, 3, 3, 2)),
        "nest_generator_32": SMALL_32,
        "nest_generator_16": SMALL_16,
    },
    ConvGenerator: {
        "conv_generator_64": dict(img_size=64, dim=1024),
        "conv_generator_32": dict(img_size=32, dim=108),
        "conv_generator_16": dict(img_size=16, dim=60),
    },
    TransGenerator: {
        "trans_generator_64": dict(img_size=64, dim=1024, heads=4, depths=(5, 3, 3, 2)),
        "trans_generator_32": SMALL_32,
        "trans_generator_16": SMALL_16,
    },
}
GENERATORS: dict[str, dict[str, Any]] = {
    name: options for variants in FAMILIES.values() for name, options in variants.items()
}


def create_generator(name: str, **overrides: Any) -> Generator:
    """Build a generator by its name; ``overrides`` change what the variant sets.

    create_generator("nest_generator_32", upsample="nearest-conv3")
    """
    if name not in GENERATORS:
        near = difflib.get_close_matches(name, GENERATORS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(GENERATORS)}"
        raise ValueError(f"no generator is called {name!r}: {hint}")
    kind = next(kind for kind, variants in FAMILIES.items() if name in variants)
    allowed = inspect.signature(kind).parameters
    for option in overrides:
        if option not in allowed:
            near = difflib.get_close_matches(option, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(allowed)}"
            raise TypeError(f"{name} takes no option {option!r}: {hint}")
    model = kind(**{**GENERATORS[name], **overrides})
    model.name, model.overrides, model.about = name, overrides, {}
    return model


def save_generator(
    model: Generator,
    folder: str | Path,
    overwrite: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a generator so that ``load_generator`` builds it again, weights and all.

    ``about`` is kept with it, the generator's own if not given. Files are written elsewhere and
    moved in whole, ``config.json`` last; a folder that has any of them is left alone unless
    ``overwrite`` is set.
    """
    if model.name not in GENERATORS:
        raise ValueError(
            f"only generators built by create_generator know their name, got {type(model).__name__}"
        )
    config = {
        "ziggurat": model.name,
        "model_args": model.overrides,
        "about": dict(model.about if about is None else about),
    }
    return write_folder(Path(folder), model, config, {}, overwrite)


def load_generator(source: str | Path) -> Generator:
    """Build and load a generator from a folder that ``save_generator`` wrote, or a hub id."""
    config_file, weights_file = locate(str(source))
    name, config = read_config(config_file)
    if name not in GENERATORS:
        raise CheckpointError(f"{source} holds {name}, no generator: from_pretrained loads models")
    args = config.get("model_args") or {}
    model = create_generator(
        name, **{key: tuple(v) if isinstance(v, list) else v for key, v in args.items()}
    )
    load_checkpoint(model, weights_file)
    model.about = dict(config.get("about") or {})
    return model.eval()
