"""The methods by name: which model can be explained by which, and one call for all of them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.explain import cam, gradcat
from ziggurat.explain.gradcat import Node
from ziggurat.explain.view import kind, look, reads_positions
from ziggurat.models.nest import NesT
from ziggurat.models.regionvit import RegionViT

METHODS = {  # the best first
    "gradcat": "from the root of NesT's tree to a leaf, to the strongest of four blocks each time",
    "cam": "what each position adds to the logit, exactly; for models that average positions",
}


class Explanation(NamedTuple):
    """Where the evidence for each class lies."""

    method: str
    classes: tuple[int, ...]
    maps: Tensor  # (classes, H, W) in [0, 1], at the size of the image the model saw
    paths: tuple[tuple[Node, ...], ...] = ()  # a path a class: GradCAT only


def reason(model: nn.Module, method: str) -> str | None:
    """Why this model cannot be explained so, and what is nearest; None if it can."""
    if method not in METHODS:
        raise ValueError(f"no method is called {method!r}: there are {', '.join(METHODS)}")
    match method:
        case "gradcat":
            if not isinstance(model, NesT):
                return f"{kind(model)} has no tree of 2 x 2 blocks as NesT has: take cam"
            if len(model.stages) < 2:
                return f"{kind(model)} has one level, and a tree has at least two: take cam"
        case "cam":
            if isinstance(model, RegionViT) and model.regional_embed is not None:
                return f"{kind(model)} pools regional tokens, too few to be a map: take gradcam++"
            if not reads_positions(model):
                return f"{kind(model)} reads its class token, not an average: take rollout"
    return None


def explain(model: nn.Module, image: Tensor, classes: Sequence[int], method: str) -> Explanation:
    """Where an image (1, 3, H, W), normalised, has what speaks for each of the classes."""
    why = reason(model, method)
    if why is not None:
        raise ValueError(why)
    numbers, size = list(classes), (image.shape[2], image.shape[3])
    if method == "gradcat":
        assert isinstance(model, NesT)
        paths = gradcat.paths(model, image, numbers)
        maps = torch.stack([gradcat.nested(path, size, len(model.stages) - 1) for path in paths])
        return Explanation(method, tuple(numbers), maps, paths)
    view = look(model, image, linear=True)
    heat = cam.contributions(view, numbers)
    maps = F.interpolate(view.lay(heat)[None], view.covered, mode="bilinear")[0]
    maps = scaled(maps[:, : size[0], : size[1]])
    return Explanation(method, tuple(numbers), maps.cpu())


def scaled(maps: Tensor) -> Tensor:
    """(K, H, W) from 0, the least of each, to 1, its most; a flat map is 0."""
    maps = maps.detach().float()
    maps = maps - maps.amin((1, 2), keepdim=True)
    most = maps.amax((1, 2), keepdim=True)
    return maps / most.where(most > 0, 1)
