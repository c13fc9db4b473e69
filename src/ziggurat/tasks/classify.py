"""Classification: training from scratch, fine-tuning (a recipe with ``init``), linear probing.

Normalisation, erasing and mixing happen on the device, once a batch; their defaults are DeiT's.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field
from timm.data import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor, nn
from torchmetrics.classification import MulticlassCalibrationError, MulticlassConfusionMatrix

from ziggurat.data.images import Data, open_data
from ziggurat.models.pretrained import from_pretrained, save_pretrained
from ziggurat.tasks import drawing, figures
from ziggurat.tasks.augment import (
    Batch,
    ImageSettings,
    Reader,
    as_bytes,
    collate,
    open_for,
    test_transform,
    train_transform,
)
from ziggurat.tasks.task import Samples, Settings, Task, Wanted, over_processes

WORST = 24  # mistakes that are shown
MANY = 2000  # classes beyond which there is no confusion matrix: it would take gigabytes


class LabelSettings(Settings):
    """How labels are mixed and smoothed, and what is trained; the defaults are DeiT's."""

    erase: float = Field(0.25, ge=0, le=1)
    mixup: float = Field(0.8, ge=0)
    cutmix: float = Field(1.0, ge=0)
    mix_prob: float = Field(1.0, ge=0, le=1)
    mix_switch: float = Field(0.5, ge=0, le=1)  # how often cutmix, where there are both
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    head_std: float | None = Field(None, ge=0)  # the classifier starts afresh, with this deviation
    freeze: bool = False  # train the classifier alone, behind a BatchNorm (MAE's linear probe)


class ClassifySettings(LabelSettings, ImageSettings):
    """Data augmentation and regularisation; the defaults are DeiT's."""


class Classify(Task):
    """One label for each image."""

    Settings: ClassVar[type[Settings]] = ClassifySettings
    best: ClassVar[str] = "top1"
    settings: Any  # with LabelSettings
    mean: Tensor
    std: Tensor
    counts: list[float]  # images, first guess right, right among five, sum of losses
    mistakes: "list[Mistake]"

    def __init__(self, model: Any, settings: Any, data: Data) -> None:
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
        model = open_for(wanted, settings, data, data.classes)
        if settings.head_std is not None:
            head = classifier_of(model)
            nn.init.trunc_normal_(head.weight, std=settings.head_std)
            nn.init.zeros_(head.bias)
        return cls(model, settings, data)

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """As the model's own configuration says."""
        model = from_pretrained(source)
        check_classes(str(source), model, data, "measure it on data with its own classes")
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
        """Images normalised, erased and mixed; targets as labels or, mixed, as shares.

        All frames of a clip are erased and mixed alike.
        """
        shape = batch.images.shape
        images = self.normalised(batch.images).flatten(1, -3)
        if self.settings.erase:
            self.erase.device = images.device
            images = self.erase(images)
        if self.mix is None:
            return images.view(shape), batch.labels
        self.check_share(len(images))
        images, shares = self.mix(images, batch.labels)
        return images.view(shape), shares

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
        logits = self.answers(model, batch.images)
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

    def answers(self, model: nn.Module, images: Tensor) -> Tensor:
        """A deployed model's logits."""
        return model(self.normalised(images)).float()

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
        names = [drawing.shorten(name, 26) for name in self.data.classes]
        captions = [
            f"{names[m.guess]}: {100 * m.sure:.0f} % — was {names[m.label]}"
            for m in self.last_mistakes
        ]
        images = [self.picture(m.at) for m in self.last_mistakes]
        made = [figures.mistakes(images, captions, folder / "mistakes.png")]
        if self.confusion is not None:
            seen = (self.last_confusion, names)
            made.append(figures.confusion(*seen, folder / "confusion.png", self.noun))
            made.append(figures.per_class(*seen, folder / "classes.png", self.noun))
        return made

    def picture(self, at: int) -> Image.Image:
        """What people are shown of a test image."""
        return self.data.test.image(at)


class Mistake(NamedTuple):
    """A test image whose class was not found, the worst first when sorted."""

    loss: float
    at: int
    guess: int
    label: int
    sure: float  # the guess's probability


def classifier_of(model: Any) -> nn.Linear:
    """The linear layer that classifies."""
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"freeze and head_std ask for one linear layer, this ends in {type(head).__name__}: "
            "take a model with a linear classifier"
        )
    return head


def check_classes(who: str, model: Any, data: Data, advice: str) -> None:
    """See that a saved model knows the data's classes, in their order."""
    names, known = data.classes, model.pretrained_cfg.get("label_names")
    if model.num_classes != len(names):
        raise ValueError(
            f"{who} knows {model.num_classes} classes, the data has {len(names)}: {advice}"
        )
    if known and list(known) != list(names):
        raise ValueError(
            f"{who} knows the classes {some(known)}, the data has {some(names)}: {advice}"
        )


def some(names: Sequence[str]) -> str:
    """The first few of many."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
