"""The methods by name: which model can be explained by which, and one call for all of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from timm.models.nest import Nest
from torch import Tensor, nn

from ziggurat.explain import cam, gradcat
from ziggurat.explain.gradcat import Node
from ziggurat.explain.rollout import rollout, undefined
from ziggurat.explain.view import Unseen, averages, kind, look, reads_positions
from ziggurat.models.backbone import Backbone
from ziggurat.models.nest import NesT
from ziggurat.models.regionvit import RegionViT
from ziggurat.models.video import SpaceTime

METHODS = {  # the best first
    "gradcat": "from the root of NesT's tree to a leaf, to the strongest of four blocks each time",
    "cam": "what each position adds to the logit, exactly; for models that average positions",
    "gradcam++": "features weighed by what their positive gradients do to the logit",
    "groupcam": "groups of features weighed by what the image, blurred elsewhere, is taken for",
    "rollout": "where attention leads, from the answer down to the patches; the same for any class",
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
    why = hindrance(model, method)
    if why is None:
        return None
    nearest = next((name for name in METHODS if hindrance(model, name) is None), None)
    hint = f"nearest is {nearest}" if nearest else "no other method explains it either"
    return f"{method}: {kind(model)} {why}; {hint}"


def hindrance(model: nn.Module, method: str) -> str | None:
    """What keeps a model from being explained so."""
    if isinstance(model, SpaceTime):
        return "is a model of clips, and images are explained"
    if not getattr(model, "num_classes", 0):
        return "knows no classes"
    if method == "gradcat":
        if not isinstance(model, NesT):
            if isinstance(model, Nest):
                return "is timm's NesT: its weights load into this library's, which has GradCAT"
            return "has no tree of 2 x 2 blocks, which NesT has"
        return "has one level, which is no tree" if len(model.stages) < 2 else None
    if method == "rollout":
        return undefined(model)
    return unaveraged(model) if method == "cam" else unseen(model)


def unaveraged(model: nn.Module) -> str | None:
    """Why a logit is no mean over positions."""
    if isinstance(model, RegionViT) and model.regional_embed is not None:
        return "averages regional tokens, too few to make a map (one at 224 pixels)"
    if not reads_positions(model):
        return "reads its class token, not a mean over the image"
    if isinstance(model, Backbone):
        return None
    return unseen(model) or (None if tried(model)[1] else "has more than a mean in its head")


def unseen(model: nn.Module) -> str | None:
    """Why there is no last map to be seen."""
    return None if isinstance(model, Backbone) else tried(model)[0]


TRIED: WeakKeyDictionary[nn.Module, tuple[str | None, bool]] = WeakKeyDictionary()


def tried(model: nn.Module) -> tuple[str | None, bool]:
    """Of a model that is not ours: why it cannot be seen through, and whether its head averages.

    One forward of noise, whose answer is kept for as long as the model lives.
    """
    if model not in TRIED:
        try:
            with at_rest(model):
                TRIED[model] = None, averages(model, noise(model))
        except Unseen as error:
            TRIED[model] = str(error), False
    return TRIED[model]


def noise(model: nn.Module) -> Tensor:
    """An image of a size that a model of timm's takes."""
    config: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    changed: dict[str, Any] = getattr(model, "overrides", None) or {}
    channels, *sides = config.get("input_size") or (3, 224, 224)
    sides = getattr(getattr(model, "patch_embed", None), "img_size", None) or sides
    return (
        next(model.parameters()).new_empty(1, changed.get("in_chans", channels), *sides).normal_()
    )


def explain(model: nn.Module, image: Tensor, classes: Sequence[int], method: str) -> Explanation:
    """Where an image (1, 3, H, W), normalised, has what speaks for each of the classes."""
    why = reason(model, method)
    if why is not None:
        raise ValueError(why)
    if image.ndim != 4 or len(image) != 1:
        raise ValueError(
            f"one image is explained, as (1, channels, H, W), got {tuple(image.shape)}"
        )
    known = range(int(model.num_classes))  # type: ignore[arg-type]
    if not classes or any(number not in known for number in classes):
        raise ValueError(
            f"{kind(model)} knows classes 0 to {len(known) - 1}, asked was for {list(classes)}"
        )
    with at_rest(model):
        return explained(model, image.detach().clone(), list(classes), method)


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """A model in eval mode, gradients on: whatever caller and model had set, and have again."""
    training = [module for module in model.modules() if module.training]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            model.eval()
            yield
    finally:
        for module in training:
            module.training = True


def explained(model: nn.Module, image: Tensor, classes: list[int], method: str) -> Explanation:
    """The method, on a model in eval mode."""
    size = image.shape[2], image.shape[3]
    if method == "gradcat":
        assert isinstance(model, NesT)
        paths = gradcat.paths(model, image, classes)
        maps = torch.stack([gradcat.nested(path, size) for path in paths])
        return Explanation(method, tuple(classes), maps, paths)
    if method == "rollout":
        shares, side = rollout(model, image)
        maps = F.interpolate(shares[None, None], scale_factor=side, mode="bilinear")[0]
        maps = maps[:, : size[0], : size[1]].expand(len(classes), -1, -1)
    else:
        view = look(model, image, linear=method == "cam")
        enlarged = partial(cam.enlarged, view=view, size=size)
        if method == "groupcam":
            maps = cam.group_cam(view, classes, image, model, enlarged)
        else:
            heat = cam.cam if method == "cam" else cam.grad_cam_plus_plus
            maps = enlarged(heat(view, classes))
    return Explanation(method, tuple(classes), cam.scaled(maps.float()).cpu())
