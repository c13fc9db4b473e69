"""Weakly supervised localisation: boxes from maps, measured by the boxes that people drew.

    map (H, W) -> at least a threshold -> its largest connected part -> box -> IoU with true boxes

The best threshold differs from method to method. As NesT's paper does it (Appendix A.5, v5), all
of [0, 1] in steps of 0.05 are tried, and each method is measured at its own best, found on the very
images that are measured. What it is there is an upper bound, for every method alike.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

THRESHOLDS = tuple(i / 20 for i in range(21))
LEAST = 0.5  # IoU of a box that has found its object
TOLERANCE = 0.03  # of the long side: 15 pixels of 500, as the pointing game is played on VOC

Box = tuple[int, int, int, int]  # x0, y0, x1, y1: edges of pixels


def largest_part(mask: np.ndarray) -> Box | None:
    """The box around the largest connected part of (H, W); pixels touch by sides or corners.

    Rows are read as runs of pixels, and a run belongs to those of the row above that it touches:
    there are far fewer runs than pixels.
    """
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    if not len(rows):
        return None
    parts = connected(rows.tolist(), starts.tolist(), ends.tolist())
    here = parts == np.bincount(parts, weights=ends - starts).argmax()
    top, bottom = rows[here].min(), rows[here].max() + 1
    return int(starts[here].min()), int(top), int(ends[here].max()), int(bottom)


def connected(rows: list[int], starts: list[int], ends: list[int]) -> np.ndarray:
    """For each run, in reading order, the first run of its part."""
    parent = list(range(len(rows)))

    def first(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    above = 0
    for i, row in enumerate(rows):
        while rows[above] < row - 1 or (rows[above] == row - 1 and ends[above] < starts[i]):
            above += 1
        j = above
        while rows[j] == row - 1 and starts[j] <= ends[i]:
            a, b = first(i), first(j)
            parent[max(a, b)] = min(a, b)
            j += 1
    return np.array([first(i) for i in range(len(rows))])


def boxes(heat: Tensor) -> Tensor:
    """(T, 4): the box of a map (H, W) at each threshold, zeros where nothing reaches it."""
    values = heat.cpu().numpy()
    found = [largest_part(values >= threshold) for threshold in THRESHOLDS]
    return torch.tensor([box or (0, 0, 0, 0) for box in found], dtype=torch.float32)


def hits(heat: Tensor, truth: Tensor) -> Tensor:
    """(T,) bool: at which thresholds a map's box has an IoU of 0.5 or more with a true one."""
    return (box_iou(boxes(heat), truth) >= LEAST).any(1)


def pointing(heat: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> float:
    """The pointing game (arXiv:1608.00507): whether the map's maximum lies in a true box.

    Of several maxima, the share that do: what one of them, taken by chance, would score. A
    maximum, the middle of its pixel, may miss a box by ``tolerance`` of the image's long side.
    """
    y, x = ((heat == heat.max()).nonzero().T + 0.5)[:, :, None]  # (n, 1) each
    reach = tolerance * max(heat.shape)
    inside = (x >= truth[:, 0] - reach) & (x <= truth[:, 2] + reach)
    inside &= (y >= truth[:, 1] - reach) & (y <= truth[:, 3] + reach)
    return float(inside.any(1).float().mean())


def centre(height: int, width: int) -> Tensor:
    """A map that knows nothing: at each threshold its box lies in the middle, smaller and smaller.

    What a method is worth is what it has over this: photographers put objects in the middle.
    """
    y, x = ((2 * torch.arange(n) + 1 - n).abs() / n for n in (height, width))
    return 1 - torch.maximum(y[:, None], x)


class Tally:
    """How well one method's maps of one model find objects, at every threshold.

    An image may hold several objects of several classes. Each class in it is one case:

    - ``known``, of all cases: the class's box has found any one of its objects.
    - ``top1``, of all images: the class that the model takes for the likeliest is in the image,
      and that class's box has found one of its objects.
    - ``top5``, of all images: the same for any of the five likeliest.
    - ``pointing``, of all cases: the pointing game.

    Where each image has one class, these are the usual top-1, top-5 and known-class localisation.
    """

    def __init__(self) -> None:
        self.known: list[Tensor] = []  # (T,) bool each
        self.top1: list[Tensor] = []
        self.top5: list[Tensor] = []
        self.pointing: list[float] = []

    def add(
        self, ranked: Sequence[int], maps: Mapping[int, Tensor], truth: Mapping[int, Tensor]
    ) -> None:
        """An image: its likeliest classes, and for each class in it a map (H, W) and its boxes."""
        hit = {number: hits(maps[number], own) for number, own in truth.items()}
        self.known += hit.values()
        for few, told in ((1, self.top1), (5, self.top5)):
            right = [hit[number] for number in ranked[:few] if number in hit]
            told.append(torch.stack(right).any(0) if right else torch.zeros(len(THRESHOLDS)) > 0)
        self.pointing += [pointing(maps[number], own) for number, own in truth.items()]

    def accuracies(self) -> dict[str, list[float]]:
        """Per cent at each threshold."""
        every = {"known": self.known, "top1": self.top1, "top5": self.top5}
        return {
            key: (100 * torch.stack(all_).float().mean(0)).tolist() for key, all_ in every.items()
        }

    def best(self) -> int:
        """The place of the threshold that finds most, the class known; of several the lowest."""
        return int(torch.stack(self.known).sum(0).argmax())
