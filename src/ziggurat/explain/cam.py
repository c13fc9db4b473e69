"""Class activation maps: CAM, Grad-CAM++ and Group-CAM, on whatever a model's view is.

Each gives a value for every position of the view and every class, (K, P).
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from ziggurat.explain.view import View, gradients

GROUPS, KEPT = 32, 0.3  # Group-CAM's: groups of channels, and the share of positions kept of each
BLUR, SIGMA = 51, 50.0  # pixels, for an image of 224
BATCH = 16  # masked images at a time


def cam(view: View, classes: Sequence[int]) -> Tensor:
    """CAM (arXiv:1512.04150): its mean is the logit, but for what no position adds.

    Where the head is a mean and a linear layer, the gradient by any position is the class's
    weights over the number of positions; a norm between the two has to be seen as linear.
    """
    positions = known(view)
    found = [(positions * g).sum(-1) * len(positions) for g in gradients(view, classes)]
    return torch.stack(found)


def grad_cam_plus_plus(view: View, classes: Sequence[int]) -> Tensor:
    """Grad-CAM++ (arXiv:1710.11063): a channel weighs what its positive gradients do, Eq. 19.

    The paper takes exp of the logit for the score, so that its second and third derivatives are
    powers of the first.
    """
    positions = known(view)
    found = []
    for gradient in gradients(view, classes):  # (P, C)
        square = gradient.square()
        below = 2 * square + positions.sum(0) * square * gradient
        alpha = square / below.where(below != 0, 1)
        weights = (alpha * gradient.relu()).sum(0)
        found.append((positions * weights).sum(-1).relu())
    return torch.stack(found)


def group_cam(
    view: View,
    classes: Sequence[int],
    image: Tensor,
    model: Callable[[Tensor], Tensor],
    enlarged: Callable[[Tensor], Tensor],
) -> Tensor:
    """Group-CAM (arXiv:2103.13859): (K, H, W), masks weighed by what each alone makes of the image.

    Channels, weighed by their mean gradient, are summed in groups; a group's strongest positions
    are the mask of an image that is blurred elsewhere. Its weight is the class's probability for
    that image over the one for a wholly blurred one. ``enlarged`` brings (K, P) to the image.
    """
    positions = known(view)
    blurred = blur(image)
    found, slopes = [], gradients(view, classes)
    with torch.no_grad():
        base = model(blurred).softmax(1)[0]
        for number, gradient in zip(classes, slopes, strict=True):
            groups = (positions * gradient.mean(0)).tensor_split(GROUPS, dim=1)
            masks = torch.stack([group.sum(1) for group in groups]).relu()  # (G, P)
            least = masks.quantile(1 - KEPT, dim=1, keepdim=True)
            masks = scaled(enlarged(masks.where(masks > least, 0)))
            masks = masks[masks.amax((1, 2)) > 0][:, None]  # (G, 1, H, W)
            heat = image.new_zeros(image.shape[2:])
            for some in masks.split(BATCH):
                seen = model(image * some + blurred * (1 - some)).softmax(1)[:, number]
                heat += ((seen - base[number])[:, None, None] * some[:, 0]).sum(0)
            found.append(heat.relu())
    return torch.stack(found)


def known(view: View) -> Tensor:
    """What the view's positions hold: (P, C)."""
    return view.positions(view.values)[0].detach()


def blur(image: Tensor) -> Tensor:
    """As for Group-CAM: so much that nothing can be recognised, in proportion to the image."""
    share = min(image.shape[2:]) / 224
    kernel = max(2 * int(BLUR * share / 2) + 1, 3)
    return gaussian_blur(image, [kernel, kernel], [SIGMA * share, SIGMA * share])


def scaled(maps: Tensor) -> Tensor:
    """(K, H, W) from 0, the least of each, to 1, its most; a flat map is 0."""
    maps = maps - maps.amin((1, 2), keepdim=True)
    most = maps.amax((1, 2), keepdim=True)
    return maps / most.where(most > 0, 1)


def enlarged(heat: Tensor, view: View, size: tuple[int, int]) -> Tensor:
    """(K, P) to (K, H, W): bilinear, without what was padded."""
    maps = F.interpolate(view.lay(heat)[None], view.covered, mode="bilinear")[0]
    return maps[:, : size[0], : size[1]]
