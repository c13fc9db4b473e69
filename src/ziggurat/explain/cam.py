"""Class activation maps: what each position adds to a class's logit (arXiv:1512.04150)."""

import torch
from torch import Tensor

from ziggurat.explain.view import View, gradients


def contributions(view: View, classes: list[int]) -> Tensor:
    """CAM (K, P): its mean over positions is the logit, but for what no position adds.

    Where the head is a mean and a linear layer, the gradient by any position is the class's
    weights over the number of positions; a norm between the two has to be seen as linear.
    """
    positions = view.positions(view.values)[0].detach()  # (P, C)
    found = [(positions * g).sum(-1) * len(positions) for g in gradients(view, classes)]
    return torch.stack(found)
