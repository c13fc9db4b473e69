"""A NesT whose logits are known: class c counts what there is of colour c, and nothing else."""

from typing import Any

import torch
from torch import Tensor, nn

from ziggurat.models.nest import Level, NesT

RED, GREEN, BLUE = range(3)


@torch.no_grad()
def counts_colours(img_size: int | tuple[int, int] = 64) -> NesT:
    """Three levels, whose blocks and positions do nothing and whose convolutions copy.

    Pooling of 2 x 2 keeps what is in a block there; the paper's 3 x 3 reaches one token further.
    """
    options: dict[str, Any] = dict(dims=8, heads=1, depths=(1, 1, 1), aggregate="conv3-norm-max2")
    model = NesT(img_size, num_classes=3, **options).eval()
    for level in model.stages:
        assert isinstance(level, Level)
        nn.init.zeros_(level.pos.table)
        for block in level.blocks:
            for part in (block.attn.proj, block.mlp.fc2):
                nn.init.zeros_(part.weight)
                nn.init.zeros_(part.bias)
        if not isinstance(level.down, nn.Identity):
            nn.init.dirac_(level.down[0].weight)
            nn.init.zeros_(level.down[0].bias)
    nn.init.zeros_(model.patch_embed.weight)
    nn.init.zeros_(model.patch_embed.bias)
    nn.init.zeros_(model.head.weight)
    for colour in range(3):
        model.patch_embed.weight[colour, colour] = 1 / model.patch_size**2
        model.head.weight[colour, colour] = 1
    return model


def painted(size: tuple[int, int], spots: dict[int, int]) -> Tensor:
    """An image (1, 3, H, W), black but for the middle of a sixteenth for each colour."""
    height, width = size
    image = torch.zeros(1, 3, height, width)
    for colour, sixteenth in spots.items():
        row, column = divmod(sixteenth, 4)
        rows = slice(round((row + 0.25) * height / 4), round((row + 0.75) * height / 4))
        columns = slice(round((column + 0.25) * width / 4), round((column + 0.75) * width / 4))
        image[:, colour, rows, columns] = 1
    return image
