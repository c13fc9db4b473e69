"""Masked autoencoding (HiViT, Section 3.3): hide units of an image, have them painted back."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ziggurat.layers import windows
from ziggurat.layers.attention import Attention, Block
from ziggurat.layers.position import resize, sin_cos
from ziggurat.models.hivit import EPS, UNIT, HiViT


class Masking(NamedTuple):
    """Which units stay visible, in the order of their noise."""

    visible: Tensor  # (B, n) indices of the units that are kept
    place: Tensor  # (B, units) where each unit stands in [visible | hidden]
    hidden: Tensor  # (B, units) 1 for a hidden unit, else 0


def mask_randomly(noise: Tensor, ratio: float) -> Masking:
    """Keep the int((1 - ratio) * units) units with the least noise (B, units)."""
    if not 0 < ratio < 1:
        raise ValueError(f"a mask ratio lies between 0 and 1 and is neither, got {ratio}")
    units = noise.shape[1]
    keep = int(units * (1 - ratio))
    if keep < 1:
        raise ValueError(
            f"a mask ratio of {ratio} leaves none of {units} units visible: "
            "take a smaller one or larger images"
        )
    order = noise.argsort(dim=1)
    hidden = torch.ones_like(noise)
    hidden.scatter_(1, order[:, :keep], 0)
    return Masking(order[:, :keep], order.argsort(dim=1), hidden)


def patchify(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, units, 16 * 16 * C): row, column, channel."""
    x = windows.split(images.permute(0, 2, 3, 1), UNIT, UNIT)
    return x.flatten(1).unflatten(0, (images.shape[0], -1))


class Decoder(nn.Module):
    """Visible units in, pixels of every unit out: six plain transformer blocks (Appendix A)."""

    def __init__(
        self, dim_in: int, grid: tuple[int, int], pixels: int, dim: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        self.norm_in = nn.LayerNorm(dim_in, eps=EPS)
        self.embed = nn.Linear(dim_in, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("pos_embed", sin_cos(*grid, dim).flatten(1, 2))
        self.grid = grid
        self.blocks = nn.ModuleList(
            Block(dim, Attention(dim, heads), eps=EPS) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.pred = nn.Linear(dim, pixels)

    def forward(self, x: Tensor, place: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, n, dim_in) and where each unit stands -> (B, units, pixels)."""
        x = self.embed(self.norm_in(x))
        B, n, C = x.shape
        hidden = self.mask_token.expand(B, place.shape[1] - n, C)
        x = torch.cat([x, hidden], dim=1).gather(1, place[:, :, None].expand(B, -1, C))
        pos: Tensor = self.get_buffer("pos_embed")
        x = x + resize(pos.unflatten(1, self.grid), *grid).flatten(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.pred(self.norm(x))


class MaskedAutoencoder(nn.Module):
    """HiViT sees a quarter of an image's units and paints the rest.

    The decoder gets every stage's tokens of a unit side by side (the code's ``hifeat``; the paper
    is silent). Its positions are fixed; the encoder's start the same way and are learned.

    ``encoder`` is copied and stays as it was: the copy has no head, and its positions always start
    as sines and cosines. What it learned goes back by name:

        ignore = ("decoder.*", "head.*", "norm.*")
        load_checkpoint(encoder, autoencoder.state_dict(), ignore=ignore)
    """

    def __init__(
        self,
        encoder: HiViT,
        mask_ratio: float = 0.75,
        decoder_dim: int = 512,
        decoder_depth: int = 6,
        decoder_heads: int = 16,
    ) -> None:
        super().__init__()
        self.mask_ratio = mask_ratio
        self.encoder = encoder = copy.deepcopy(encoder)
        encoder.prune_intermediate_layers(None, prune_norm=True)
        rows, cols = (-(-side // UNIT) for side in encoder.img_size)
        cells = [UNIT // stride for stride in encoder.strides]
        width = sum(c * c * dim for c, dim in zip(cells, encoder.dims, strict=True))
        pixels = UNIT * UNIT * encoder.in_chans
        self.decoder = Decoder(
            width, (rows, cols), pixels, decoder_dim, decoder_depth, decoder_heads
        )
        self.decoder.apply(init_weights)
        nn.init.normal_(self.decoder.mask_token, std=0.02)
        if encoder.pos is not None:
            with torch.no_grad():
                encoder.pos.table.copy_(sin_cos(rows, cols, encoder.dims[-1]))

    def paint(self, images: Tensor, masking: Masking) -> Tensor:
        """Pixels of every unit, (B, units, 16 * 16 * C), from the visible ones."""
        tokens = self.encoder.forward_visible(images, masking.visible)
        x = torch.cat([t.flatten(2) for t in tokens], dim=2)
        grid = -(-images.shape[2] // UNIT), -(-images.shape[3] // UNIT)
        return self.decoder(x, masking.place, grid)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Mean squared error on hidden units, each unit's pixels normalised."""
        images = windows.pad_to_multiple(images, UNIT)
        units = (images.shape[2] // UNIT) * (images.shape[3] // UNIT)
        if noise is None:
            noise = torch.rand(images.shape[0], units, device=images.device)
        masking = mask_randomly(noise, self.mask_ratio)
        target = patchify(images)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        target = (target - mean) / (var + 1e-6).sqrt()
        loss = (self.paint(images, masking) - target).square().mean(-1)
        hidden = masking.hidden.to(loss.dtype)
        return (loss * hidden).sum() / hidden.sum()

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """From the official pre-training names."""
        if any(name.startswith("encoder.") for name in state):
            return state
        state = self.encoder.convert(state)
        return {n if n.startswith("decoder.") else f"encoder.{n}": v for n, v in state.items()}

    def fit(self, name: str, value: Tensor) -> Tensor:
        """Positions of another resolution; the decoder's are made, not learned."""
        if name.startswith("encoder."):
            return self.encoder.fit(name.removeprefix("encoder."), value)
        if name == "decoder.pos_embed":
            return self.decoder.get_buffer("pos_embed")
        return value


def init_weights(module: nn.Module) -> None:
    """MAE's: Xavier for linear layers, biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
