"""Masked autoencoding (HiViT, Section 3.3): hide units of an image, have them painted back.

A HiViT is fed with what is left visible, and nothing else is ever embedded. Any other model is fed
with the whole image, hidden units filled with learned pixels (SimMIM's way, arXiv:2111.09886).
"""

import copy
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block
from ziggurat.layers.position import resize, sin_cos
from ziggurat.models.hivit import EPS, HiViT, MlpStage

UNIT = 16  # pixels a side, where the model does not say


class Masking(NamedTuple):
    """Which units stay visible, in the order of their noise."""

    visible: Tensor  # (B, n) indices of the units that are kept
    hidden: Tensor  # (B, m) indices of the others
    place: Tensor  # (B, units) where each unit stands in [visible | hidden]

    def flags(self) -> Tensor:
        """(B, units) 1 for a hidden unit, else 0."""
        return (self.place >= self.visible.shape[1]).float()


def mask_randomly(noise: Tensor, ratio: float) -> Masking:
    """Keep the int((1 - ratio) * units) units with the least noise (B, units)."""
    units = noise.shape[1]
    keep = shown(units, ratio)
    order = noise.argsort(dim=1)
    return Masking(order[:, :keep], order[:, keep:], order.argsort(dim=1))


def shown(units: int, ratio: float) -> int:
    """How many of an image's units stay visible."""
    if not 0 < ratio < 1:
        raise ValueError(f"a mask ratio lies between 0 and 1 and is neither, got {ratio}")
    keep = int(units * (1 - ratio) + 1e-6)  # a tenth of 100 are 10, whatever 1 - 0.9 is
    if keep < 1 or keep == units:
        raise ValueError(
            f"a mask ratio of {ratio} leaves {'none' if keep < 1 else 'all'} of {units} units "
            "visible: take another one, or larger images"
        )
    return keep


def patchify(images: Tensor, unit: int) -> Tensor:
    """(B, C, H, W) -> (B, units, unit * unit * C): row, column, channel."""
    x = windows.split(images.permute(0, 2, 3, 1), unit, unit)
    return x.flatten(1).unflatten(0, (images.shape[0], -1))


def unpatchify(patches: Tensor, unit: int, grid: tuple[int, int]) -> Tensor:
    """Undo ``patchify``."""
    x = patches.flatten(0, 1).unflatten(1, (unit * unit, -1))
    return windows.join(x, unit, unit, *grid).permute(0, 3, 1, 2)


def chosen(x: Tensor, ids: Tensor) -> Tensor:
    """The tokens ``ids`` (B, n) of (B, N, C)."""
    return x.gather(1, ids[:, :, None].expand(-1, -1, x.shape[2]))


def last_of(block: nn.Module, x: Tensor, ids: Tensor) -> Tensor:
    """A block's answer for the tokens ``ids`` (B, n) alone: all are seen, only they look."""
    assert isinstance(block, Block)
    seen = block.norm1(x)
    x = chosen(x, ids) + block.drop_path(block.attn(seen, None, chosen(seen, ids)))
    return x + block.drop_path(block.mlp(block.norm2(x)))


class Decoder(nn.Module):
    """Features of units in, pixels of every unit out: plain transformer blocks (Appendix A).

    ``depth`` 0 is SimMIM's: one linear layer. ``hidden``: units may be missing, and a mask token
    stands for them.
    """

    def __init__(
        self,
        dim_in: int,
        grid: tuple[int, int],
        pixels: int,
        dim: int,
        depth: int,
        heads: int,
        hidden: bool = True,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.depth = depth
        self.norm_in = nn.LayerNorm(dim_in, eps=EPS)
        if depth:
            self.embed = nn.Linear(dim_in, dim)
            self.register_buffer("pos_embed", sin_cos(*grid, dim).flatten(1, 2))
            self.blocks = nn.ModuleList(
                Block(dim, Attention(dim, heads), eps=EPS) for _ in range(depth)
            )
            self.norm = nn.LayerNorm(dim, eps=EPS)
        self.pred = nn.Linear(dim if depth else dim_in, pixels)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim)) if hidden else None
        self.apply(init_weights)
        if self.mask_token is not None:
            nn.init.normal_(self.mask_token, std=0.02)

    def forward(
        self, x: Tensor, masking: Masking, grid: tuple[int, int], every: bool = True
    ) -> Tensor:
        """(B, n, dim_in), n units visible or all -> (B, units, pixels), of the hidden or all.

        Where only hidden units are wanted, only they go through what comes behind the last
        attention: what the others would be painted like enters no loss.
        """
        if not self.depth:
            return self.pred(self.norm_in(x if every else chosen(x, masking.hidden)))
        x = self.embed(self.norm_in(x))
        if self.mask_token is not None:
            hidden = self.mask_token.expand(*masking.hidden.shape, -1)
            x = chosen(torch.cat([x, hidden], dim=1), masking.place)
        pos: Tensor = self.get_buffer("pos_embed")
        x = x + resize(pos.unflatten(1, self.grid), *grid).flatten(1, 2)
        *others, last = self.blocks
        for block in others:
            x = block(x)
        x = last(x) if every else last_of(last, x, masking.hidden)
        return self.pred(self.norm(x))


class Painting(NamedTuple):
    """What was asked for and what was painted, both as the loss compares them."""

    target: Tensor  # (B, n, unit * unit * C): n are all units, or the hidden ones
    painted: Tensor
    hidden: Tensor  # (B, units) 1 for a hidden unit, else 0
    mean: Tensor  # (B, n, 1): what was taken from each unit's pixels
    std: Tensor  # (B, n, 1): what they were divided by


class MaskedAutoencoder(nn.Module):
    """A model sees part of an image's units and paints the rest.

    ``feed="visible"``: a HiViT gets the visible units alone (MAE). ``feed="all"``: any model gets
    the whole image, each hidden unit's pixels replaced by one learned unit. Departs: SimMIM puts a
    learned token behind the embedding, where overlapping stems have already carried hidden pixels
    past it.

    The decoder gets a unit's tokens of every stage side by side (the code's ``hifeat``; the paper
    is silent), or of the last stage alone. Its positions are fixed; HiViT's start the same way and
    are learned.

    ``encoder`` is copied and stays as it was; the copy has no head and no final norm. Where it is
    ``fresh``, a HiViT starts as in MAE, its positions as sines and cosines. What was learned goes
    back by name:

        ignore = ("decoder.*", "fill", "head.*", "norm.*")
        load_checkpoint(encoder, autoencoder.state_dict(), ignore=ignore)
    """

    def __init__(
        self,
        encoder: Any,
        mask_ratio: float = 0.75,
        decoder_dim: int = 512,
        decoder_depth: int = 6,
        decoder_heads: int = 16,
        feed: Literal["visible", "all"] = "visible",
        unit: int | None = None,
        stages: Literal["all", "last"] = "all",
        normalise: bool = True,
        loss: Literal["mse", "l1"] = "mse",
        fresh: bool = True,
    ) -> None:
        super().__init__()
        if not hasattr(encoder, "forward_intermediates"):
            raise ValueError(f"{called(encoder)} gives no maps of its stages: take another model")
        own: int = getattr(encoder, "unit", UNIT)
        self.unit = own if unit is None else unit
        if feed == "visible" and not can_drop(encoder):
            raise ValueError(
                f"{called(encoder)} cannot leave hidden units out, only a HiViT of MLP stages can: "
                'take feed="all"'
            )
        if feed == "visible" and self.unit != encoder.unit:
            raise ValueError(
                f"{called(encoder)} leaves out its own units of {encoder.unit} pixels a side, got "
                f'unit={self.unit}: take unit={encoder.unit}, or feed="all"'
            )
        if decoder_depth and (decoder_dim % 4 or decoder_dim % decoder_heads):
            raise ValueError(
                f"decoder_dim is a multiple of 4 and of decoder_heads ({decoder_heads}), "
                f"got {decoder_dim}"
            )
        if feed == "visible" and not decoder_depth:
            raise ValueError('a decoder of no layers paints what it is fed: take feed="all"')
        self.mask_ratio, self.feed, self.stages = mask_ratio, feed, stages
        self.normalise, self.kind = normalise, loss
        self.encoder = encoder = copy.deepcopy(encoder)
        encoder.prune_intermediate_layers(None, prune_norm=True, prune_head=True)
        self.checked(*side_of(encoder))
        shown(self.grid[0] * self.grid[1], mask_ratio)
        taken = list(encoder.feature_info)[-1:] if stages == "last" else list(encoder.feature_info)
        strides = [info["reduction"] for info in taken]
        if any(self.unit % stride and stride % self.unit for stride in strides):
            raise ValueError(
                f"a unit is whole tokens, or a token whole units: {called(encoder)} has strides of "
                f"{', '.join(map(str, strides))} pixels, got units of {self.unit}"
            )
        if not decoder_depth and min(strides) > self.unit:
            raise ValueError(
                f"one linear layer paints a whole token of {min(strides)} pixels a side, got units "
                f"of {self.unit}: take unit={min(strides)}"
            )
        self.cells = [max(1, self.unit // stride) for stride in strides]
        width = sum(n * n * info["num_chs"] for n, info in zip(self.cells, taken, strict=True))
        self.channels: int = getattr(encoder, "in_chans", 3)
        pixels = self.unit * self.unit * self.channels
        self.decoder = Decoder(
            width, self.grid, pixels, decoder_dim, decoder_depth, decoder_heads, feed == "visible"
        )
        self.fill: nn.Parameter | None = None
        if feed == "all":
            self.fill = nn.Parameter(torch.zeros(self.channels, self.unit, self.unit))
            nn.init.normal_(self.fill, std=0.02)
        if fresh and isinstance(encoder, HiViT):
            encoder.apply(init_weights)
            nn.init.xavier_uniform_(encoder.patch_embed.proj.weight.flatten(1))
            if encoder.pos is not None:
                with torch.no_grad():
                    encoder.pos.table.copy_(sin_cos(*encoder.pos.table.shape[1:]))

    @property
    def grid(self) -> tuple[int, int]:
        """Units down and across, of images of the encoder's own size."""
        height, width = side_of(self.encoder)
        return height // self.unit, width // self.unit

    def checked(self, height: int, width: int) -> tuple[int, int]:
        """Units down and across, if the image is made of whole ones."""
        if height % self.unit or width % self.unit:
            raise ValueError(
                f"an image to be masked is made of whole units of {self.unit} x {self.unit} "
                f"pixels, got {height} x {width}: take a multiple of {self.unit}"
            )
        return height // self.unit, width // self.unit

    def features(self, images: Tensor, masking: Masking) -> Tensor:
        """(B, n, width): all tokens of a unit side by side; n are all units, or the visible."""
        if self.fill is None:
            tokens = self.encoder.forward_visible(images, masking.visible)
            tokens = tokens[-1:] if self.stages == "last" else tokens
            return torch.cat([t.flatten(2) for t in tokens], dim=2)
        grid = images.shape[2] // self.unit, images.shape[3] // self.unit
        hidden = masking.flags().unflatten(1, grid)[:, None].to(images.dtype)
        hidden = F.interpolate(hidden, scale_factor=self.unit)
        images = torch.lerp(images, self.fill.repeat(1, *grid).to(images.dtype), hidden)
        found = self.encoder.forward_intermediates(
            images, 1 if self.stages == "last" else None, intermediates_only=True
        )
        parts = []
        for cells, x in zip(self.cells, found, strict=True):
            if x.shape[2:] != (size := (grid[0] * cells, grid[1] * cells)):
                x = F.interpolate(x, size)  # a stage coarser than units
            parts.append(patchify(x, cells))
        return torch.cat(parts, dim=2)

    def paint(self, images: Tensor, masking: Masking, every: bool = True) -> Tensor:
        """Pixels of every unit or the hidden ones, (B, n, unit * unit * C), from the visible."""
        grid = self.checked(images.shape[2], images.shape[3])
        return self.decoder(self.features(images, masking), masking, grid, every)

    def painting(self, images: Tensor, noise: Tensor | None = None, every: bool = True) -> Painting:
        """What is to be painted, and what is: every unit, or the hidden ones alone."""
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise ValueError(
                f"images are (batch, {self.channels}, height, width), got {tuple(images.shape)}"
            )
        rows, cols = self.checked(images.shape[2], images.shape[3])
        if noise is None:
            noise = torch.rand(images.shape[0], rows * cols, device=images.device)
        masking = mask_randomly(noise, self.mask_ratio)
        target = patchify(images, self.unit)
        if not every:
            target = chosen(target, masking.hidden)
        mean, std = torch.zeros_like(target[..., :1]), torch.ones_like(target[..., :1])
        if self.normalise:
            mean = target.mean(-1, keepdim=True)
            std = (target.var(-1, keepdim=True) + 1e-6).sqrt()
            target = (target - mean) / std
        painted = self.paint(images, masking, every)
        return Painting(target, painted, masking.flags(), mean, std)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Mean error on hidden units; each unit's pixels are normalised by default."""
        return self.error(self.painting(images, noise, every=False)).mean()

    def error(self, found: Painting) -> Tensor:
        """(B, n): the mean error of each unit's pixels."""
        difference = found.painted.to(found.target.dtype) - found.target
        return (difference.square() if self.kind == "mse" else difference.abs()).mean(-1)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """The learned unit, and what the encoder says; HiViT's positions decay, as in its code."""
        if isinstance(self.encoder, HiViT):
            return {"fill"}
        theirs: set[str] = getattr(self.encoder, "no_weight_decay", set)()
        return {"fill", *(f"encoder.{name}" for name in theirs)}

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official pre-training names."""
        if any(name.startswith("encoder.") for name in state):
            return state
        state = self.encoder.convert(state)
        return {n if n.startswith("decoder.") else f"encoder.{n}": v for n, v in state.items()}

    def fit(self, name: str, value: Tensor) -> Tensor:
        """Positions of another resolution; the decoder's are made, not learned."""
        if name.startswith("encoder."):
            fitted: Tensor = self.encoder.fit(name.removeprefix("encoder."), value)
            return fitted
        if name == "decoder.pos_embed":
            return self.decoder.get_buffer("pos_embed")
        return value


def can_drop(encoder: Any) -> bool:
    """Whether hidden units can be left out: nothing looks beyond a unit before they all meet."""
    shallow = encoder.stages[:-1] if isinstance(encoder, HiViT) else [None]
    return all(isinstance(stage, MlpStage) for stage in shallow)


def side_of(encoder: Any) -> tuple[int, int]:
    """Height and width of the images a model of ours or timm's was built for."""
    size = getattr(encoder, "img_size", None) or encoder.pretrained_cfg["input_size"][1:]
    return int(size[0]), int(size[1])


def called(encoder: Any) -> str:
    """Its name, for a person."""
    return str(getattr(encoder, "name", None) or type(encoder).__name__)


def init_weights(module: nn.Module) -> None:
    """MAE's: Xavier for linear layers, biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
