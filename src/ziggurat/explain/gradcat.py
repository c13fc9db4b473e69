"""GradCAT: from the root of NesT's tree of blocks to a leaf (arXiv:2105.12723, Algorithm 1)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ziggurat.models.nest import Aggregate, Level, NesT

Box = tuple[float, float, float, float]


class Node(NamedTuple):
    """One step of the way from root to leaf: which of four children was taken, and why."""

    level: int  # 1: the root's four children
    box: Box  # the child taken: x0, y0, x1, y1 as fractions of the image the model saw
    values: tuple[float, float, float, float]  # top left, top right, bottom left, bottom right
    child: int  # index of the one taken


WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


def paths(model: NesT, image: Tensor, classes: Sequence[int]) -> tuple[tuple[Node, ...], ...]:
    """A path a class, from one forward."""
    maps, logits = levels(model, image)
    size = image.shape[2], image.shape[3]
    found = []
    for number in classes:
        gradients = torch.autograd.grad(logits[0, number], maps, retain_graph=True)
        heats = [
            (a.detach() * g).sum(-1)[0] for a, g in zip(maps, gradients, strict=True)
        ]  # (H, W)
        found.append(traversal(heats, model.strides[1:], size))
    return tuple(found)


def levels(model: NesT, image: Tensor) -> tuple[list[Tensor], Tensor]:
    """A_2 .. A_Td, (1, H, W, C) each, as they are pooled: by an aggregation, or by the head.

    The graph begins at A_2: Algorithm 1 looks no further down.
    """
    maps: list[Tensor] = []
    with torch.no_grad():
        state = model.embed(model.checked(image))
        for stage in model.stages[:2]:
            state = stage(state)
    with torch.enable_grad():
        for level in model.stages[2:]:
            assert isinstance(level, Level)
            assert isinstance(level.down, Aggregate)
            maps.append(in_graph(level.down.whole(state)))
            state = level.attended(level.down.halved(maps[-1]))
        maps.append(in_graph(model.normed(state)))
        return maps, model.forward_head(maps[-1].permute(0, 3, 1, 2))


def in_graph(x: Tensor) -> Tensor:
    """The map, as the graph's beginning if there is none yet."""
    return x if x.requires_grad else x.detach().requires_grad_()


def traversal(
    heats: Sequence[Tensor], strides: Sequence[int], size: tuple[int, int]
) -> tuple[Node, ...]:
    """Down the maps (H, W), finest first, each time to the quarter with the highest mean."""
    box = WHOLE
    path: list[Node] = []
    for heat, stride in zip(reversed(heats), reversed(strides), strict=True):
        children = quarters(box)
        parts = [inside(heat, child, stride, size) for child in children]
        if not all(part.numel() for part in parts):
            break  # a map of one position has no quarters
        values = [float(part.mean()) for part in parts]
        child = values.index(max(values))
        box = children[child]
        path.append(Node(len(path) + 1, box, (values[0], values[1], values[2], values[3]), child))
    return tuple(path)


def quarters(box: Box) -> list[Box]:
    """Its 2 x 2 partitions, row by row."""
    x0, y0, x1, y1 = box
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    return [(x0, y0, x, y), (x, y0, x1, y), (x0, y, x, y1), (x, y, x1, y1)]


def inside(heat: Tensor, box: Box, stride: int, size: tuple[int, int]) -> Tensor:
    """The part of a map (H, W) that a box holds; the last row and column may reach beyond."""
    (x0, y0, x1, y1), (height, width) = box, size
    top, left = round(y0 * height / stride), round(x0 * width / stride)
    bottom = heat.shape[0] if y1 == 1 else round(y1 * height / stride)
    right = heat.shape[1] if x1 == 1 else round(x1 * width / stride)
    return heat[top:bottom, left:right]


def nested(path: Sequence[Node], size: tuple[int, int]) -> Tensor:
    """The path's boxes as a map (H, W): each adds as much, so the leaf is 1."""
    height, width = size
    found = torch.zeros(size)
    for node in path:
        x0, y0, x1, y1 = node.box
        found[round(y0 * height) : round(y1 * height), round(x0 * width) : round(x1 * width)] += (
            1 / len(path)
        )
    return found.clamp_(max=1)
