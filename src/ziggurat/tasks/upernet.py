"""UPerNet (arXiv:1807.10221) on a pyramid of any family's stages, and where its logits lie.

As BEiT uses it (arXiv:2106.08254), which is mmsegmentation's.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.tasks.pyramid import STRIDES, OnPyramid, Pyramid

DROP = 0.1  # of the channels before a classifier


class UPerNet(OnPyramid):
    """A backbone, its pyramid, and UPerNet's decoder of ``width`` channels.

    ``auxiliary`` is mmsegmentation's FCN head on the level of stride 16, of half the width, which
    helps to train the backbone and is not used afterwards.
    """

    def __init__(
        self,
        backbone: Any,
        classes: int,
        norm: bool = True,
        freeze: bool = False,
        width: int = 512,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.pyramid = Pyramid(backbone, STRIDES, norm, freeze)
        self.decoder = decoder(self.pyramid.channels, width)
        self.classifier = classifier(width, classes)
        self.auxiliary: nn.Module | None = None
        if auxiliary:
            conv = nn.Conv2d(self.pyramid.channels[2], width // 2, 3, padding=1, bias=False)
            self.auxiliary = nn.Sequential(
                conv, nn.BatchNorm2d(width // 2), nn.ReLU(), classifier(width // 2, classes)
            )
            begin(conv)

    def forward(self, images: Sequence[Tensor], auxiliary: bool = False) -> Any:
        """Normalised images (C, H, W) -> logits (B, classes, h, w) at stride 4.

        Smaller images stand in the upper left corner. With ``auxiliary`` a list of two: the second
        are the auxiliary head's, at stride 16.
        """
        levels = self.pyramid(images)
        logits = self.classifier(self.decoder([None, None, *levels]))  # no strides 1 and 2
        if not auxiliary:
            return logits
        assert self.auxiliary is not None
        return [logits, self.auxiliary(levels[2])]


def decoder(channels: Sequence[int], width: int) -> Any:
    """segmentation_models_pytorch's, begun as mmsegmentation's, without norms on its inputs.

    The pyramid has them, or not.
    """
    try:
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError:
        raise ImportError(
            "UPerNet needs segmentation_models_pytorch: pip install 'ziggurat[seg]'"
        ) from None
    found = UPerNetDecoder((0, 0, *channels), len(channels) + 1, width)
    found.feature_norms = nn.ModuleList(nn.Identity() for _ in channels)
    for module in found.modules():
        if isinstance(module, nn.Conv2d):
            begin(module)
    return found


def begin(conv: nn.Conv2d) -> None:
    """A convolution as mmsegmentation starts it."""
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")


def classifier(width: int, classes: int) -> nn.Sequential:
    """A class for each place."""
    conv = nn.Conv2d(width, classes, 1)
    nn.init.normal_(conv.weight, std=0.01)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.Dropout2d(DROP), conv)


def stretched(logits: Tensor, stride: int, size: tuple[int, int]) -> Tensor:
    """(B, classes, h, w) of a stride, scaled to pixels and cut to the images' (H, W).

    Places stay where they are, however the size goes into strides. Some of timm's models leave out
    the last pixels of a side, which then get what is beside them.
    """
    found = F.interpolate(logits.float(), scale_factor=stride, mode="bilinear", align_corners=False)
    found = found[..., : size[0], : size[1]]
    below, right = size[0] - found.shape[2], size[1] - found.shape[3]
    return F.pad(found, (0, right, 0, below), mode="replicate") if below or right else found


def starts(side: int, window: int, step: int) -> list[int]:
    """Where windows begin, as in mmsegmentation: the last one ends where the image does."""
    count = max(0, -((window - side) // step)) + 1
    return [min(i * step, max(0, side - window)) for i in range(count)]
