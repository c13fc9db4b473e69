"""Fidelity of a map: whether the model, too, goes by what the map points at (arXiv:1806.07421).

Deletion takes pixels away, those the map holds most important first: the sooner the class's
probability falls, the better. Insertion gives them back to a blurred image: the sooner it rises,
the better. Both are one number: the area under the curve of the probability over the share of
pixels, in 0..1.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ziggurat.explain.cam import blur

STEPS, BATCH = 16, 32  # parts of the image that go one by one; images at a time


class Curves(NamedTuple):
    """The class's probability after 0, 1 .. steps parts of the image: (steps + 1,) each."""

    deletion: Tensor
    insertion: Tensor


@torch.no_grad()
def curves(
    model: Callable[[Tensor], Tensor], image: Tensor, heat: Tensor, number: int, steps: int = STEPS
) -> Curves:
    """Both curves of class ``number``, for an image (1, 3, H, W), normalised, and its map (H, W).

    What is deleted becomes the data's mean, which is 0 once normalised. The whole image stands at
    the beginning of one curve and at the end of the other and is seen once.
    """
    masks = first(heat, steps).to(image.device)  # (steps + 1, 1, H, W)
    deleted = image.where(~masks, 0)
    inserted = image.where(masks[:-1], blur(image))
    seen = [
        model(part).float().softmax(1)[:, number] for part in (*split(deleted), *split(inserted))
    ]
    found = torch.cat(seen).cpu()
    deletion, insertion = found[: steps + 1], found[steps + 1 :]
    return Curves(deletion, torch.cat([insertion, deletion[:1]]))


def split(images: Tensor) -> tuple[Tensor, ...]:
    """In batches."""
    return images.split(BATCH)


def first(heat: Tensor, steps: int) -> Tensor:
    """(steps + 1, 1, H, W) bool: none, the most important 1 / steps of all pixels .. all of them.

    Among equals chance decides, the same each time: reading order would favour the top.
    """
    flat = heat.flatten().cpu()
    shuffled = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    order = shuffled[flat[shuffled].argsort(descending=True, stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(flat))
    limits = (torch.arange(steps + 1) * len(flat) / steps).round()
    return (rank < limits[:, None]).view(steps + 1, 1, *heat.shape)


def area(curve: Tensor) -> float:
    """Under a curve over equal steps from 0 to 1."""
    return float(torch.trapezoid(curve) / (len(curve) - 1))
