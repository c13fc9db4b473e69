"""Classification: training from scratch, fine-tuning (a recipe with ``init``), linear probing.

Pixels stay bytes until they are on the device; normalisation, erasing and mixing happen there,
once a batch. Augmentation and its defaults are DeiT's, through timm.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, Mixup, create_transform
from timm.data.auto_augment import auto_augment_transform, posterize, rand_augment_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import str_to_interp_mode
from torch import Tensor, nn
from torchmetrics.classification import MulticlassCalibrationError, MulticlassConfusionMatrix
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

from ziggurat.data.images import BadImage, Data, Images, open_data
from ziggurat.models.backbone import pair
from ziggurat.models.pretrained import open_model, save_pretrained
from ziggurat.tasks import figures
from ziggurat.tasks.task import Samples, Settings, Task, Wanted, over_processes

WORST = 24  # mistakes that are shown
TRIES = 20  # files that are tried before a sample is given up
MANY = 2000  # classes beyond which there is no confusion matrix: it would take gigabytes


class Sample(NamedTuple):
    """One image as bytes."""

    pixels: np.ndarray | None  # (3, H, W) uint8; None: it could not be read
    label: int
    at: int  # its place in the set
    bad: tuple[str, ...]  # "path: reason" of the files that could not be read on the way


class Batch(NamedTuple):
    """Images as bytes, with their labels and places in the set."""

    images: Tensor  # (B, 3, H, W) uint8
    labels: Tensor  # (B,)
    at: Tensor  # (B,)
    bad: tuple[str, ...]


Side = Annotated[int, Field(ge=1, le=2**14)]


class ClassifySettings(Settings):
    """Data augmentation and regularisation; the defaults are DeiT's."""

    img_size: Side | tuple[Side, Side] | None = None  # pixels; None: the model's own
    crop: Literal["resized", "pad", "none"] = "resized"  # resized: a random part, scaled
    crop_scale: tuple[float, float] = (0.08, 1.0)  # its share of the area
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    crop_padding: int = Field(4, ge=0)  # pad: black pixels on each side before the crop
    test_crop: float = Field(0.875, gt=0, le=1)  # the central share of the side that is tested
    interpolation: Literal["bicubic", "bilinear", "nearest", "lanczos", "random"] = "bicubic"
    mean: tuple[float, float, float] | None = None  # None: the data's own, else ImageNet's
    std: tuple[float, float, float] | None = None
    flip: float = Field(0.5, ge=0, le=1)
    auto_augment: str = "rand-m9-mstd0.5-inc1"  # timm's words, or none
    color_jitter: float = Field(0.4, ge=0)  # where auto_augment is off
    simclr_jitter: float = Field(0.0, ge=0, le=2)  # SimCLR's colour distortion, beside the others
    erase: float = Field(0.25, ge=0, le=1)
    repeats: int = Field(1, ge=1)  # repeated augmentation
    mixup: float = Field(0.8, ge=0)
    cutmix: float = Field(1.0, ge=0)
    mix_prob: float = Field(1.0, ge=0, le=1)
    mix_switch: float = Field(0.5, ge=0, le=1)  # how often cutmix, where there are both
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    drop_path: float = Field(0.1, ge=0, lt=1)
    drop: float = Field(0.0, ge=0, lt=1)
    freeze: bool = False  # train the classifier alone, behind a BatchNorm (MAE's linear probe)

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


class Classify(Task):
    """One label for each image."""

    Settings: ClassVar[type[Settings]] = ClassifySettings
    best: ClassVar[str] = "top1"
    settings: ClassifySettings
    mean: Tensor
    std: Tensor
    counts: list[float]  # images, first guess right, right among five, sum of losses
    mistakes: "list[Mistake]"

    def __init__(self, model: Any, settings: ClassifySettings, data: Data) -> None:
        super().__init__()
        self.model: Any = model
        self.settings = settings
        self.data = data
        classes = len(data.classes)
        config = model.pretrained_cfg
        self.size: tuple[int, int] = tuple(config["input_size"][1:])
        self.register_buffer("mean", as_bytes(config["mean"]), persistent=False)
        self.register_buffer("std", as_bytes(config["std"]), persistent=False)
        mixing = settings.mixup > 0 or settings.cutmix > 0
        self.mix = Mixup(
            settings.mixup,
            settings.cutmix,
            prob=settings.mix_prob,
            switch_prob=settings.mix_switch,
            label_smoothing=settings.label_smoothing,
            num_classes=classes,
        ) if mixing else None  # fmt: skip
        self.erase = RandomErasing(settings.erase, mode="pixel", device="cpu")
        self.probe_norm: nn.Module = nn.Identity()
        if settings.freeze:
            self.probe_norm = nn.BatchNorm1d(model.num_features, affine=False, eps=1e-6)
            model.requires_grad_(False)
            classifier_of(model).requires_grad_(True)
        self.calibration = MulticlassCalibrationError(classes, n_bins=15)
        self.confusion = MulticlassConfusionMatrix(classes) if classes <= MANY else None
        self.forget()

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> Data:
        """A name, a folder, a list, an archive or shards."""
        return open_data(spec, seed)

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """Around a model that knows the data's size, mean, deviation and classes."""
        size = settings.img_size
        options = {"num_classes": len(data.classes)} | wanted.options
        wishes = {"drop_path_rate": settings.drop_path, "drop_rate": settings.drop}
        wishes |= {"img_size": size} if size is not None else {}
        model = open_wishing(wanted, options, wishes)
        config = model.pretrained_cfg
        learned = Normal(config["mean"], config["std"]) if wanted.init else None
        height, width = pair(size or config["input_size"][1:])
        config.update(
            input_size=(3, height, width),
            mean=settings.mean or (learned or data).mean or IMAGENET_DEFAULT_MEAN,
            std=settings.std or (learned or data).std or IMAGENET_DEFAULT_STD,
            crop_pct=settings.test_crop,
            interpolation=settings.interpolation.replace("random", "bicubic"),
            num_classes=len(data.classes),
            label_names=list(data.classes),
        )
        return cls(model, settings, data)

    @classmethod
    def around(cls, model: nn.Module, settings: Any, data: Any) -> Self:
        """As the model's own configuration says."""
        return cls(model, settings.model_copy(update={"freeze": False}), data)

    def check_share(self, images: int) -> None:
        """Mixing pairs images."""
        if self.mix is not None and images % 2:
            raise ValueError(
                f"mixup pairs the images of a batch, got {images} of them at a time in a process: "
                "take an even share, or mixup=0 and cutmix=0"
            )

    def train(self, mode: bool = True) -> Self:
        """A frozen backbone stays as in inference."""
        super().train(mode)
        if self.settings.freeze:
            self.model.eval()
        return self

    # Data.

    def train_samples(self) -> Samples:
        """Augmented images; an unreadable one is replaced by the next."""
        mean = tuple(self.model.pretrained_cfg["mean"])
        transform = train_transform(self.settings, self.size, mean)
        reader = Reader(self.data.train, transform, replace=True)
        return Samples(self.data.train, reader, collate, self.settings.repeats)

    def test_samples(self) -> Samples:
        """Each image as ``eval`` and ``predict`` see it; an unreadable one is left out."""
        reader = Reader(self.data.test, test_transform(self.model.pretrained_cfg), replace=False)
        return Samples(self.data.test, reader, collate)

    # Training.

    def forward(self, batch: Batch, player: str = "model") -> dict[str, Tensor]:
        """The loss of a batch; ``top1`` where labels are not mixed."""
        images, targets = self.prepared(batch)
        logits = self.logits(images)
        return self.losses(logits, targets)

    def prepared(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images normalised, erased and mixed; targets as labels or, mixed, as shares."""
        images = self.normalised(batch.images)
        if self.settings.erase:
            self.erase.device = images.device
            images = self.erase(images)
        if self.mix is None:
            return images, batch.labels
        self.check_share(len(images))
        mixed: tuple[Tensor, Tensor] = self.mix(images, batch.labels)
        return mixed

    def losses(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Cross-entropy, smoothed by ``mix`` where there is one."""
        if targets.ndim > 1:
            return {"loss": F.cross_entropy(logits.float(), targets)}
        loss = F.cross_entropy(
            logits.float(), targets, label_smoothing=self.settings.label_smoothing
        )
        return {"loss": loss, "top1": 100 * (logits.argmax(1) == targets).float().mean()}

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes to what the model was made for."""
        return (images.float() - self.mean) / self.std

    def logits(self, images: Tensor) -> Tensor:
        """The model's answer; a probe's features go through its BatchNorm first."""
        if not self.settings.freeze:
            return self.model(images)
        with torch.no_grad():
            maps = self.model.forward_features(images)
            features = self.model.forward_head(maps, pre_logits=True)
        return self.model.get_classifier()(self.probe_norm(features))

    # Evaluation.

    def measure(self, model: nn.Module, batch: Batch) -> None:
        """Count one batch."""
        if not len(batch.labels):
            return
        logits = model(self.normalised(batch.images)).float()
        self.calibration.update(logits, batch.labels)
        if self.confusion is not None:
            self.confusion.update(logits, batch.labels)
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        best = logits.topk(min(5, logits.shape[1])).indices == batch.labels[:, None]
        found = (len(losses), int(best[:, 0].sum()), int(best.sum()), float(losses.double().sum()))
        self.counts = [a + b for a, b in zip(self.counts, found, strict=True)]
        sure, guess = logits.softmax(1).max(1)
        rows = zip(losses.tolist(), batch.at.tolist(), guess.tolist(), batch.labels.tolist(),
                   sure.tolist(), strict=True)  # fmt: skip
        wrong = [Mistake(*row) for row in rows if row[2] != row[3]]
        self.mistakes = sorted(self.mistakes + wrong, reverse=True)[:WORST]

    def measured(self) -> dict[str, float]:
        """Accuracy in per cent, mean loss, calibration error in per cent, images counted."""
        shares = over_processes((self.counts, self.mistakes))
        images, first, five, loss = (
            sum(parts) for parts in zip(*(s[0] for s in shares), strict=True)
        )
        if not images:
            raise ValueError("no test image could be read: `ziggurat data check` says why")
        found = {"top1": 100 * first / images}
        if len(self.data.classes) > 5:
            found["top5"] = 100 * five / images
        found |= {
            "loss": loss / images,
            "calibration_error": 100 * float(self.calibration.compute()),
            "images": images,
        }
        if self.confusion is not None:
            self.last_confusion = self.confusion.compute().cpu()
        self.last_mistakes = sorted((m for s in shares for m in s[1]), reverse=True)[:WORST]
        self.forget()
        return found

    def forget(self) -> None:
        """Start counting afresh."""
        self.calibration.reset()
        if self.confusion is not None:
            self.confusion.reset()
        self.counts = [0, 0, 0, 0.0]
        self.mistakes = []

    def deployed(self, model: nn.Module) -> nn.Module:
        """A probe's BatchNorm becomes part of its classifier."""
        if not isinstance(self.probe_norm, nn.BatchNorm1d):
            return model
        model = copy.deepcopy(model)
        head = classifier_of(model)
        mean, variance = self.probe_norm.running_mean, self.probe_norm.running_var
        assert mean is not None
        assert variance is not None
        scale = (variance + self.probe_norm.eps).rsqrt()
        with torch.no_grad():
            head.bias.sub_(head.weight @ (mean * scale))
            head.weight.mul_(scale)
        return model

    def save(self, folder: Path, model: nn.Module) -> None:
        """Weights, configuration and class names, as ``from_pretrained`` and timm load them."""
        save_pretrained(model, folder, overwrite=True)

    def figures(self, folder: Path) -> list[Path]:
        """Confusion matrix, accuracy of each class, worst mistakes."""
        names = [figures.shorten(name, 26) for name in self.data.classes]
        captions = [
            f"{names[m.guess]}: {100 * m.sure:.0f} % — was {names[m.label]}"
            for m in self.last_mistakes
        ]
        images = [self.data.test.image(m.at) for m in self.last_mistakes]
        made = [figures.mistakes(images, captions, folder / "mistakes.png")]
        if self.confusion is not None:
            made.append(figures.confusion(self.last_confusion, names, folder / "confusion.png"))
            made.append(figures.per_class(self.last_confusion, names, folder / "classes.png"))
        return made


class Mistake(NamedTuple):
    """A test image whose class was not found, the worst first when sorted."""

    loss: float
    at: int
    guess: int
    label: int
    sure: float  # the guess's probability


class Reader:
    """index -> Sample: reads, transforms, and notes what cannot be read."""

    def __init__(
        self, images: Images, transform: Callable[[Any], np.ndarray], replace: bool
    ) -> None:
        self.images, self.transform, self.replace = images, transform, replace

    def __call__(self, index: int) -> Sample:
        """The sample at ``index``, or the next that can be read."""
        bad: list[str] = []
        for i in range(min(TRIES, len(self.images)) if self.replace else 1):
            at = (index + i) % len(self.images)
            try:
                pixels = self.transform(self.images.image(at))
                return Sample(pixels, self.images.label(at), at, tuple(bad))
            except BadImage as error:
                bad.append(str(error))
        return Sample(None, self.images.label(index), index, tuple(bad))


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
    settings: ClassifySettings,
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


def classifier_of(model: Any) -> nn.Linear:
    """The linear layer that classifies."""
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"a probe trains one linear layer, and this model ends in {type(head).__name__}: "
            "take a model with a linear classifier"
        )
    return head
