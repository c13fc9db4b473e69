"""Models to compare with: what other libraries have of the same papers, and of like cost.

    build("vit-pytorch/nest_tiny")      # theirs
    build("timm/swin_tiny_patch4_window7_224", 384)
    peers_of(["hivit_tiny"])            # whom it should be compared with

Names are ours, ``timm/NAME`` or ``vit-pytorch/NAME``.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ziggurat.engine.measure import count, sized
from ziggurat.models.registry import VARIANTS
from ziggurat.models.weights import load_checkpoint

ELSEWHERE = "vit-pytorch/"
TIMMS: Mapping[str, Any] = {"act_layer": "gelu", "pad_type": ""}  # timm's NesT is ours with these
TWINS = {f"nest_{size}": f"timm/nest_{size}" for size in ("tiny", "small", "base")}
ALIKE: Mapping[str, Mapping[str, float]] = {  # billions of multiply-adds at 224 px
    "DeiT": {
        "timm/deit_tiny_patch16_224": 1.25,
        "timm/deit_small_patch16_224": 4.60,
        "timm/deit_base_patch16_224": 17.56,
    },
    "Swin": {
        "timm/swin_tiny_patch4_window7_224": 4.49,
        "timm/swin_small_patch4_window7_224": 8.74,
        "timm/swin_base_patch4_window7_224": 15.43,
    },
    "ResNet": {
        "timm/resnet18": 1.81,
        "timm/resnet50": 4.09,
        "timm/resnet101": 7.80,
        "timm/resnet152": 11.51,
    },
    "Hiera": {
        "timm/hiera_tiny_224": 4.90,
        "timm/hiera_small_224": 6.41,
        "timm/hiera_base_224": 9.38,
        "timm/hiera_base_plus_224": 12.64,
    },
}
MASKED = ("DeiT", "Swin")  # that take an image with units filled in, and give maps of stages
SAME = 1e-4  # what outputs of one model may differ by, where they are of the size of 1


def build(name: str, img_size: int | None = None, **options: Any) -> nn.Module:
    """A model by its name, for images of that size if it has to know it."""
    if not name.startswith(ELSEWHERE):
        return sized(name, img_size, **options)
    if name not in THEIRS:
        raise ValueError(f"no model is called {name!r}: there are {', '.join(THEIRS)}")
    try:
        return THEIRS[name](img_size or 224)
    except ImportError:
        raise ImportError(f"{name} needs vit-pytorch: pip install 'ziggurat[peers]'") from None


def vit_pytorch_nest(img_size: int) -> nn.Module:
    """vit-pytorch's NesT-T."""
    from vit_pytorch.nest import NesT

    return NesT(
        image_size=img_size,
        patch_size=4,
        dim=96,
        heads=3,
        num_hierarchies=3,
        block_repeats=(2, 2, 8),
        num_classes=1000,
    )


def vit_pytorch_regionvit(*dims: int) -> Callable[[int], nn.Module]:
    """vit-pytorch's RegionViT-Ti or -S, for any size."""

    def made(img_size: int) -> nn.Module:
        from vit_pytorch.regionvit import RegionViT

        return RegionViT(
            dim=dims,
            depth=(2, 2, 8, 2),
            window_size=7,
            num_classes=1000,
            tokenize_local_3_conv=True,
            use_peg=False,
        )

    return made


THEIRS: Mapping[str, Callable[[int], nn.Module]] = {
    f"{ELSEWHERE}nest_tiny": vit_pytorch_nest,
    f"{ELSEWHERE}regionvit_ti": vit_pytorch_regionvit(64, 128, 256, 512),
    f"{ELSEWHERE}regionvit_s": vit_pytorch_regionvit(96, 192, 384, 768),
}


KNOWN = {*THEIRS, *TWINS.values()}


def peers_of(names: Iterable[str], masked: bool = False) -> list[str]:
    """Of each of our models: the same one elsewhere, and of every kind the one of nearest cost.

    For masked pre-training, of the kinds alone that can take part in it.
    """
    found: dict[str, None] = {}
    for name in (name for name in names if name in VARIANTS):
        twins = [TWINS.get(name, ""), f"{ELSEWHERE}{name}"]
        found |= dict.fromkeys(twin for twin in twins if twin in KNOWN and not masked)
        cost = math.log(count(name, 224).macs / 1e9)
        for kind in MASKED if masked else ALIKE:
            costs = ALIKE[kind]
            found[nearest(costs, cost)] = None
    return list(found)


def nearest(costs: Mapping[str, float], cost: float) -> str:
    """The one whose logarithm is."""
    return min(costs, key=lambda name: abs(math.log(costs[name]) - cost))


def share_weights(ours: nn.Module, theirs: nn.Module, img_size: int) -> float:
    """Give ours the weights of theirs; how much their outputs differ then, which is next to none.

    What is no number's rounding is a mistake: it raises an error.
    """
    load_checkpoint(ours, theirs.state_dict())
    images = torch.randn(1, 3, img_size, img_size)
    with torch.inference_mode():
        difference = float((ours.eval()(images) - theirs.eval()(images)).abs().max())
    if not difference < SAME:
        raise RuntimeError(f"the same weights give outputs that differ by {difference:.2g}")
    return difference
