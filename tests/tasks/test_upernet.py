"""UPerNet's maps: their norms, their stride, and where their windows stand."""

from typing import Any

import torch
from torch import Tensor

import ziggurat
from tests.tasks.test_masking import FAMILIES
from ziggurat.data.loading import seed_all
from ziggurat.tasks.upernet import UPerNet

NEST = "nest_tiny_cifar"


def tiny(**options: Any) -> UPerNet:
    seed_all(0)
    backbone = ziggurat.create_model(NEST, img_size=32, num_classes=0, **FAMILIES[NEST])
    return UPerNet(backbone, 4, **{"width": 16} | options)


def images_of(*sizes: tuple[int, int]) -> list[Tensor]:
    seed_all(2)
    return [torch.randn(3, *size) for size in sizes]
