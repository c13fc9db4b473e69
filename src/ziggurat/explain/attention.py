"""What attention does inside a model: how alike its heads are, how much chance decides it.

ResT's supplement, A.2 and Figure 1: heads that hear each other through a 1 x 1 convolution grow
alike, and instance norm makes them differ again. HiViT's Figure 2: models that differ in nothing
but their seed do not attend to the same in every layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.explain.rollout import Recorded
from ziggurat.models.rest import EPS, HeadMix


class Mixing(NamedTuple):
    """A layer's attention of all heads, (B, heads, N, N'), at three places of EMSA."""

    before: Tensor  # q k^T / sqrt(d)
    after: Tensor  # Conv(q k^T / sqrt(d))
    normed: Tensor  # IN(Softmax(Conv(q k^T / sqrt(d))))


def mixes(model: nn.Module) -> bool:
    """Whether there are heads that a convolution mixes: ResT of version 1 has them."""
    return any(isinstance(module, HeadMix) for module in model.modules())


@torch.no_grad()
def mixing(model: nn.Module, images: Tensor) -> dict[str, Mixing]:
    """Each layer that mixes heads, as ``stages.3.blocks.1``, on images (B, 3, H, W)."""
    with heard(model) as found:
        model(images)
    return {name: Mixing(*both, instance_norm(both[1])) for name, both in found.items()}


@contextmanager
def heard(model: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """What goes into each head-mixing convolution, and what comes out."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, HeadMix):
            layer = name.removesuffix(".attn.mix")

            def keep(_: nn.Module, args: Any, out: Tensor, layer: str = layer) -> None:
                found[layer] = args[0], out

            handles.append(module.register_forward_hook(keep))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def instance_norm(logits: Tensor) -> Tensor:
    """IN(Softmax(logits)), each head by its own mean and variance."""
    return F.instance_norm(logits.softmax(-1, dtype=torch.float32), eps=EPS)


def similarity(maps: Tensor) -> Tensor:
    """(B, heads, heads): the cosine of every two heads' maps (B, heads, N, N'), flattened.

    The supplement calls it M. Its Eq. 1 is not in the text we could read; the words around it,
    "similarity" of vectors A_i of 1 x m, are those of DeepViT's (arXiv:2103.11886), which is this.
    """
    flat = F.normalize(maps.flatten(2).float(), dim=2)
    return flat @ flat.mT


def diversity(alike: Tensor) -> float:
    """1 less the mean similarity (heads, heads) of two different heads: 0 if all are the same."""
    heads = len(alike)
    return 1 - float((alike.sum() - alike.diag().sum()) / (heads * (heads - 1)))


class Averaged(Recorded):
    """Keeps what softmax gives to attention, the mean of all heads: (B, N, N')."""

    def kept(self, attention: Tensor) -> Tensor:
        """(B, heads, N, N') -> (B, N, N')."""
        return attention.mean(1)


@torch.no_grad()
def attentions(model: nn.Module, image: Tensor) -> list[Tensor]:
    """Attention of an image (1, 3, H, W) in the order of layers: (windows, N, N') each."""
    with Averaged() as found:
        model(image)
    return found.maps


def variances(found: Sequence[Sequence[Tensor]]) -> list[float]:
    """For each layer the variance between models of one image's attention, mean of positions.

    Heads are averaged first, as in HiViT's Section 3.2; the variance is that of the population.
    """
    layers = [[layer.shape for layer in own] for own in found]
    if not layers[0] or any(own != layers[0] for own in layers[1:]):
        raise ValueError("attention is compared between models of one architecture and image size")
    return [
        float(torch.stack(same).var(0, correction=0).mean()) for same in zip(*found, strict=True)
    ]
