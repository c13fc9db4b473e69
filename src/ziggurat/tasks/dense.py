"""What detection and segmentation share: how images and what is marked in them are augmented, how
a backbone is opened for them, and how what is found is drawn.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from pydantic import Field, model_validator
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from ziggurat.data.images import BadImage
from ziggurat.data.scenes import VOID
from ziggurat.tasks import drawing, overlay
from ziggurat.tasks.augment import TRIES, as_bytes, open_wishing
from ziggurat.tasks.heads import check_known, load_head, save_dense, saved_backbone
from ziggurat.tasks.task import Settings, Task, Wanted

SHOWN = 6  # test images that are drawn for people
THIN = 20  # how many times as long as wide an image stays
Side = Annotated[int, Field(ge=1, le=2**13)]


class DenseSettings(Settings):
    """How images are scaled, cut and coloured; what stands on the backbone."""

    sides: tuple[Side, ...] = Field(min_length=1)  # short sides to choose from in training
    longest: Side | None = None  # an image whose long side would be longer is made smaller
    test_side: Side | None = None  # None: the last of sides
    crop: tuple[Side, Side] | None = None  # height and width cut out in training
    flip: float = Field(0.5, ge=0, le=1)
    photometric: float = Field(0.0, ge=0, le=1)  # how often colours are distorted
    mean: tuple[float, float, float] | None = None  # None: the backbone's, else ImageNet's
    std: tuple[float, float, float] | None = None
    drop_path: float = Field(0.0, ge=0, lt=1)
    norm: bool = True  # a LayerNorm on each level (ResT, supplement, Table 2)
    freeze: bool = False  # train what stands on the backbone alone
    width: int = Field(256, ge=4)  # channels of what stands on the backbone

    @model_validator(mode="after")
    def fits(self) -> Self:
        """A long side is not shorter than the short one."""
        if self.longest is not None and self.longest < max(*self.sides, self.short):
            raise ValueError(f"longest should be at least {max(*self.sides, self.short)} pixels")
        return self

    @property
    def short(self) -> int:
        """The short side of an image that is tested."""
        return self.test_side or self.sides[-1]


S = TypeVar("S", bound=DenseSettings)


class Marked(NamedTuple):
    """One image as bytes, with what is marked in it."""

    image: Tensor | None  # (3, H, W) uint8; None: it could not be read
    target: dict[str, Tensor]
    size: tuple[int, int]  # height and width that the file has
    at: int  # its place in the set
    bad: tuple[str, ...]  # "path: reason" of the files that could not be read on the way


class DenseBatch(NamedTuple):
    """Images of any sizes."""

    images: list[Tensor]  # (3, H, W) uint8
    targets: list[dict[str, Tensor]]
    sizes: list[tuple[int, int]]
    at: Tensor  # (B,)
    bad: tuple[str, ...]


class MarkedReader:
    """index -> Marked: reads, augments, and notes what cannot be read.

    ``read`` gives a picture and what is marked in it as torchvision's tv_tensors.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[Image.Image, dict[str, Any]]],
        count: int,
        transform: Callable[..., Any],
        replace: bool,
    ) -> None:
        self.read, self.count, self.transform, self.replace = read, count, transform, replace

    def __call__(self, index: int) -> Marked:
        """The sample at ``index``, or the next that can be read."""
        bad: list[str] = []
        for i in range(min(TRIES, self.count) if self.replace else 1):
            at = (index + i) % self.count
            try:
                picture, target = self.read(at)
            except BadImage as error:
                bad.append(str(error))
                continue
            image, target = self.transform(as_image(picture), target)
            plain = {
                key: torch.as_tensor(value).as_subclass(Tensor) for key, value in target.items()
            }
            size = (picture.height, picture.width)
            return Marked(image.as_subclass(Tensor), plain, size, at, tuple(bad))
        return Marked(None, {}, (0, 0), index, tuple(bad))


def as_image(picture: Image.Image) -> tv_tensors.Image:
    """Bytes (3, H, W)."""
    return tv_tensors.Image(torch.from_numpy(np.array(picture)).permute(2, 0, 1))


def collate_marked(samples: Sequence[Marked]) -> DenseBatch:
    """One batch of all that could be read."""
    read = [sample for sample in samples if sample.image is not None]
    return DenseBatch(
        [sample.image for sample in read if sample.image is not None],
        [sample.target for sample in read],
        [sample.size for sample in read],
        torch.tensor([sample.at for sample in read], dtype=torch.long),
        tuple(reason for sample in samples for reason in sample.bad),
    )


class Scaled(v2.Transform):  # type: ignore[misc]
    """The short side to one of ``sides``, the long one to no more than ``longest``.

    Departs: torchvision's own cuts fractions of a pixel off, so that one in twenty images is a
    pixel short of the side asked for, and thin ones come to nothing.
    """

    def __init__(self, sides: Sequence[int], longest: int | None) -> None:
        super().__init__()
        self.sides, self.longest = list(sides), longest

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """A size for all of a sample."""
        sides = v2.functional.get_size(next(x for x in flat_inputs if isinstance(x, Tensor)))
        ratio = self.sides[int(torch.randint(len(self.sides), ()))] / min(sides)
        most = min(self.longest or THIN * max(self.sides), THIN * max(self.sides))
        ratio = min(ratio, most / max(sides))
        return {"size": [max(1, round(side * ratio)) for side in sides]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Images smoothly, label maps by their nearest."""
        return v2.functional.resize(inpt, params["size"])


def scaled(sides: Sequence[int], longest: int | None) -> v2.Transform:
    """The short side to one of ``sides``, the long one to no more than ``longest``."""
    return Scaled(sides, longest)


def train_steps(settings: DenseSettings, first: v2.Transform) -> v2.Transform:
    """Scale as ``first`` does, then distort, cut and flip; what is too small is padded."""
    fills: dict[Any, Any] = {tv_tensors.Image: grey(settings), tv_tensors.Mask: 0}
    fills[Labels] = VOID
    steps: list[Any] = [first]
    if settings.photometric:
        steps.append(v2.RandomPhotometricDistort(p=settings.photometric))
    if settings.crop:
        steps.append(v2.RandomCrop(settings.crop, pad_if_needed=True, fill=fills))
    steps += [v2.RandomHorizontalFlip(settings.flip), v2.ClampBoundingBoxes()]
    return v2.Compose(steps)


class TestScale:
    """The image is scaled, what is marked in it stays."""

    def __init__(self, settings: DenseSettings) -> None:
        self.scale = scaled((settings.short,), settings.longest)

    def __call__(self, image: Any, target: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """As the model will see it."""
        return self.scale(image), target


class Labels(tv_tensors.Mask):  # type: ignore[misc]
    """A class for each pixel: a mask that is padded with no class."""


def grey(settings: DenseSettings) -> tuple[int, ...]:
    """What a padded pixel has: the mean colour, so that it is 0 once normalised."""
    mean = settings.mean or IMAGENET_DEFAULT_MEAN
    return tuple(round(255 * value) for value in mean)


def open_backbone(wanted: Wanted, settings: DenseSettings) -> Any:
    """The model that a recipe names, without a classifier, from wherever it starts."""
    options = {"num_classes": 0} | wanted.options
    backbone = open_wishing(wanted, options, {"drop_path_rate": settings.drop_path})
    config = backbone.pretrained_cfg
    learned = config if wanted.init else {}
    config.update(
        mean=settings.mean or learned.get("mean") or IMAGENET_DEFAULT_MEAN,
        std=settings.std or learned.get("std") or IMAGENET_DEFAULT_STD,
    )
    return backbone


def settled(settings: S, config: Mapping[str, Any]) -> S:
    """The settings with the mean and deviation that a backbone has come to."""
    colours = {key: tuple(config[key]) for key in ("mean", "std")}
    return settings.model_copy(update=colours)


class Normaliser(nn.Module):
    """Bytes to what a backbone was made for."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.register_buffer("mean", as_bytes(config["mean"]), persistent=False)
        self.register_buffer("std", as_bytes(config["std"]), persistent=False)

    def forward(self, images: Sequence[Tensor]) -> list[Tensor]:
        """(3, H, W) each."""
        return [(image.float() - self.mean) / self.std for image in images]


# The task.


class DenseTask(Task):
    """A backbone with a head, and what it finds in a few test images."""

    kind: ClassVar[Literal["detect", "segment"]]
    columns: ClassVar[tuple[str, ...]]  # what ``row`` shows
    model: Any  # with a ``pyramid``
    data: Any

    def __init__(self, backbone: Any, settings: DenseSettings, data: Any) -> None:
        super().__init__()
        self.settings: Any = settled(settings, backbone.pretrained_cfg)
        self.data = data
        self.whole = [backbone]  # with what the model leaves out: to be saved
        self.normaliser = Normaliser(backbone.pretrained_cfg)
        self.last: Path | None = None  # picture

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """Around a backbone, from scratch or as ``init`` left it."""
        task = cls(open_backbone(wanted, settings), settings, data)
        task.model.pyramid.trained = wanted.init is not None
        return task

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """A model that ``save`` wrote, for data with its classes."""
        backbone = saved_backbone(source, cls.kind)
        check_known(source, data.classes)
        task = cls(backbone, settings, data)
        load_head(task.model, source)
        return task

    def about(self) -> dict[str, Any]:
        """What the head says of the data."""
        return {"classes": self.data.classes}

    def save(self, folder: Path, model: nn.Module) -> None:
        """The backbone as any saved model, and the head."""
        save_dense(folder, model, self.whole[0], self.kind, self.settings, self.about())

    def row(self, model: Any, picture: Image.Image, sample: Marked) -> list[Image.Image]:
        """A test image with what is marked in it, and with what is found."""
        raise NotImplementedError

    def prepared(self, sample: Marked) -> Tensor:
        """One image (3, H, W) as the model takes it."""
        assert sample.image is not None
        return self.normaliser([sample.image.to(self.normaliser.mean.device)])[0]

    def snapshot(self, path: Path, model: nn.Module) -> None:
        """A few test images: what is marked in them, and what is found."""
        samples, count = self.test_samples(), len(self.data.test)
        shown = min(SHOWN, count)
        was_training = model.training
        model.eval()
        chosen = (samples.make(i * count // shown) for i in range(shown))
        rows = [
            self.row(model, self.data.test.image(sample.at), sample)
            for sample in chosen
            if sample.image is not None
        ]
        model.train(was_training)
        if rows:
            self.last = drawing.sheet(rows, self.columns, path, overlay.LEAST)

    def figures(self, folder: Path) -> list[Path]:
        """The last snapshot, if there is one."""
        if self.last is None:
            return []
        return [Path(shutil.copyfile(self.last, folder / "predictions.png"))]
