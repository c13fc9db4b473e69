"""Images on their way to a model: how they are read, cut and augmented, as timm does it.

Pixels stay bytes until they are on the device, where each task normalises them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, field_validator
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.auto_augment import auto_augment_transform, posterize, rand_augment_transform
from timm.data.transforms import str_to_interp_mode
from torch import Tensor
from torchvision.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    RandomApply,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    Resize,
)

from ziggurat.data.images import BadImage, Data, Images, too_small
from ziggurat.models.backbone import pair
from ziggurat.models.pretrained import open_model
from ziggurat.tasks.task import Settings, Wanted

TRIES = 20  # files that are tried before a sample is given up


Side = Annotated[int, Field(ge=1, le=2**14)]


class ModelSettings(Settings):
    """What a model is built with, and what it remembers of its images."""

    img_size: Side | tuple[Side, Side] | None = None  # pixels; None: the model's own
    test_crop: float = Field(0.875, gt=0, le=1)  # the central share of the side that is tested
    interpolation: Literal["bicubic", "bilinear", "nearest", "lanczos", "random"] = "bicubic"
    mean: tuple[float, float, float] | None = None  # None: the data's own, else ImageNet's
    std: tuple[float, float, float] | None = None
    drop_path: float = Field(0.1, ge=0, lt=1)
    drop: float = Field(0.0, ge=0, lt=1)


class ImageSettings(ModelSettings):
    """How images are cut, scaled and coloured; the defaults are DeiT's."""

    crop: Literal["resized", "pad", "none"] = "resized"  # resized: a random part, scaled
    crop_scale: tuple[float, float] = (0.08, 1.0)  # its share of the area
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    crop_padding: int = Field(4, ge=0)  # pad: black pixels on each side before the crop
    flip: float = Field(0.5, ge=0, le=1)
    auto_augment: str = "rand-m9-mstd0.5-inc1"  # timm's words, or none
    color_jitter: float = Field(0.4, ge=0)  # where auto_augment is off
    simclr_jitter: float = Field(0.0, ge=0, le=2)  # SimCLR's colour distortion, beside the others
    repeats: int = Field(1, ge=1)  # repeated augmentation

    @field_validator("auto_augment")
    @classmethod
    def known(cls, words: str) -> str:
        """timm says by an assertion what it does not know."""
        try:
            if words.startswith("rand"):
                rand_augment_transform(words, {})
            elif words != "none" and not words.startswith("augmix"):
                auto_augment_transform(words, {})
        except (AssertionError, KeyError, ValueError, AttributeError):
            raise ValueError("should be timm's, such as rand-m9-mstd0.5-inc1, or none") from None
        return words

    @field_validator("crop_scale", "crop_ratio")
    @classmethod
    def ordered(cls, pair: tuple[float, float]) -> tuple[float, float]:
        """Least and most."""
        if not 0 < pair[0] <= pair[1]:
            raise ValueError("should be the least and the most, both above 0")
        return pair


class Normal(NamedTuple):
    """How images are normalised for weights that have been trained."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Sample(NamedTuple):
    """One image, or one clip, as bytes."""

    pixels: Any  # (3, H, W) uint8, as numpy's or torch's; None: it could not be read
    label: int
    at: int  # its place in the set
    bad: tuple[str, ...]  # "path: reason" of the files that could not be read on the way


class Batch(NamedTuple):
    """Images as bytes, with their labels and places in the set."""

    images: Tensor  # (B, 3, H, W) uint8; of clips (B, T, 3, H, W)
    labels: Tensor  # (B,)
    at: Tensor  # (B,)
    bad: tuple[str, ...]


class Reader:
    """index -> Sample: reads, transforms, and notes what cannot be read."""

    def __init__(
        self,
        images: Images,
        transform: Callable[[Any], Any],
        replace: bool,
        least: int = 1,
    ) -> None:
        self.images, self.transform, self.replace = images, transform, replace
        self.least = least  # pixels a side; a smaller image is a bad one

    def __call__(self, index: int) -> Sample:
        """The sample at ``index``, or the next that can be read."""
        bad: list[str] = []
        for i in range(min(TRIES, len(self.images)) if self.replace else 1):
            at = (index + i) % len(self.images)
            try:
                return Sample(self.read(at), self.images.label(at), at, tuple(bad))
            except BadImage as error:
                bad.append(str(error))
        return Sample(None, self.images.label(index), index, tuple(bad))

    def read(self, at: int) -> Any:
        """Pixels as the model takes them; raises BadImage."""
        image = self.images.image(at)
        if min(image.size) < self.least:
            raise BadImage(too_small(self.images.name(at), image.size, self.least))
        return self.transform(image)


def collate(samples: Sequence[Sample]) -> Batch:
    """One batch of all that could be read."""
    read = [sample for sample in samples if sample.pixels is not None]
    pixels = [torch.as_tensor(sample.pixels) for sample in read]
    return Batch(
        torch.stack(pixels) if pixels else torch.empty(0, dtype=torch.uint8),
        torch.tensor([sample.label for sample in read]),
        torch.tensor([sample.at for sample in read]),
        tuple(reason for sample in samples for reason in sample.bad),
    )


def train_transform(
    settings: ImageSettings,
    size: tuple[int, int],
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN,
) -> Callable[..., np.ndarray]:
    """A PIL image to augmented bytes (3, H, W)."""
    words = settings.auto_augment if settings.auto_augment != "none" else None
    first, second, last = create_transform(
        (3, *size),
        is_training=True,
        separate=True,
        use_prefetcher=True,  # bytes: normalised on the device
        scale=settings.crop_scale,
        ratio=settings.crop_ratio,
        hflip=settings.flip,
        color_jitter=settings.color_jitter or None,  # type: ignore[arg-type]  # timm's word for none
        auto_augment=words,
        interpolation=settings.interpolation,
        mean=mean,  # what RandAugment fills with
    )
    for step in second.transforms:
        keep_a_bit(step)
    if settings.simclr_jitter:
        second = Compose([simclr(settings.simclr_jitter), second])
    if settings.crop == "resized":
        return Compose([first, second, last])
    smooth = str_to_interp_mode(settings.interpolation.replace("random", "bicubic"))
    steps: list[Any] = [Resize(min(size), smooth), CenterCrop(size)]  # as when it is tested
    if settings.crop == "pad":
        steps.append(RandomCrop(size, padding=settings.crop_padding))
    return Compose([*steps, RandomHorizontalFlip(settings.flip), second, last])


def simclr(strength: float) -> Callable[[Any], Any]:
    """SimCLR's colour distortion (its Appendix A), which NesT's code adds to RandAugment."""
    jitter = ColorJitter(*(0.8 * strength,) * 3, 0.2 * strength)
    return Compose([RandomApply([jitter], 0.8), RandomGrayscale(0.2)])


def keep_a_bit(augment: Any) -> None:
    """Let timm's posterize leave at least one bit: at its strongest it asks for none.

    Pillow refuses that since version 13, and made the image black before.
    """
    for op in getattr(augment, "ops", ()):
        if op.aug_fn is posterize:
            op.aug_fn = posterize_to_a_bit


def posterize_to_a_bit(image: Any, bits: int, **options: Any) -> Any:
    """timm's, with one bit instead of none."""
    return posterize(image, max(1, bits), **options)


def test_transform(config: dict[str, Any]) -> Callable[..., np.ndarray]:
    """A PIL image to bytes (3, H, W), as the model's configuration says."""
    return create_transform(
        tuple(config["input_size"]),
        use_prefetcher=True,
        crop_pct=config["crop_pct"],
        interpolation=config["interpolation"],
    )


def as_bytes(values: Sequence[float]) -> Tensor:
    """A mean or deviation of pixels in 0..1 for pixels in 0..255."""
    return torch.tensor(values).view(-1, 1, 1) * 255


def open_for(
    wanted: Wanted, settings: ModelSettings, data: Data, classes: Sequence[str] = ()
) -> Any:
    """The model that a recipe names, which knows the data's size, mean, deviation and classes."""
    options = {"num_classes": len(classes)} | wanted.options
    wishes: dict[str, Any] = {"drop_path_rate": settings.drop_path, "drop_rate": settings.drop}
    wishes |= {"img_size": settings.img_size} if settings.img_size is not None else {}
    model = open_wishing(wanted, options, wishes)
    config = model.pretrained_cfg
    learned = Normal(config["mean"], config["std"]) if wanted.init else None
    height, width = pair(
        settings.img_size or wanted.options.get("img_size") or config["input_size"][1:]
    )
    config.update(
        input_size=(3, height, width),
        mean=settings.mean or (learned or data).mean or IMAGENET_DEFAULT_MEAN,
        std=settings.std or (learned or data).std or IMAGENET_DEFAULT_STD,
        crop_pct=settings.test_crop,
        interpolation=settings.interpolation.replace("random", "bicubic"),
        num_classes=len(classes),
        label_names=list(classes),
    )
    return model


def open_wishing(wanted: Wanted, options: dict[str, Any], wishes: dict[str, Any]) -> Any:
    """The model with its options and, if it takes them, ``wishes``.

    timm's convolutional networks take images of any size and no ``img_size``; some of its models
    know no dropout. A rate that is asked for and cannot be had is an error.
    """
    try:
        return open_model(wanted.name, wanted.init, **wishes | options)
    except TypeError as error:
        refused = [name for name in wishes if f"'{name}'" in str(error)]
        if not refused or (refused[0] != "img_size" and wishes[refused[0]]):
            raise
        return open_wishing(wanted, options, {k: v for k, v in wishes.items() if k != refused[0]})
