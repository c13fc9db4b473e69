"""Action recognition: one label for each clip (RegionViT, arXiv:2106.02689, Section 4.3 and A.1).

A few frames, spread over the whole clip, go through an image model that attends over time before
each block (``models.video``). Loss, mixing, measures and what is shown are classification's.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import Field, field_validator
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from ziggurat.data.clips import BadClip, Clips, open_clips
from ziggurat.data.images import Data
from ziggurat.models.pretrained import from_pretrained
from ziggurat.models.video import SpaceTime
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks.augment import ModelSettings, Reader, collate
from ziggurat.tasks.classify import Classify, LabelSettings, check_classes
from ziggurat.tasks.dense import THIN
from ziggurat.tasks.task import Samples, Settings, Wanted

Side = Annotated[int, Field(ge=1, le=2**13)]
SHOWN = 4  # frames of a clip that people are shown


class VideoSettings(LabelSettings, ModelSettings):
    """How clips are read and cut; the defaults are those of RegionViT's A.1."""

    frames: int = Field(8, ge=1, le=512)  # of a clip, spread evenly over all of it
    over_time: bool = True  # attend over time; else frames are averaged, whatever their order
    jitter: bool = True  # in training, a random frame of each part, not its middle one
    sides: tuple[Side, Side] = (256, 320)  # least and most pixels of the short side in training
    crops: Literal[1, 3] = 3  # that are tested: the centre, or both corners as well
    flip: float = Field(0.5, ge=0, le=1)
    interpolation: Literal["bilinear"] = "bilinear"
    erase: float = Field(0.0, ge=0, le=1)

    @field_validator("sides")
    @classmethod
    def ordered(cls, sides: tuple[int, int]) -> tuple[int, int]:
        """Least and most."""
        if sides[0] > sides[1]:
            raise ValueError("should be the least and the most pixels of the short side")
        return sides


class Video(Classify):
    """One label for each clip."""

    Settings: ClassVar[type[Settings]] = VideoSettings
    noun: ClassVar[str] = "clips"
    model: SpaceTime

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> Data:
        """Folders of classes, a list, or Kinetics' and Something-Something's files."""
        return open_clips(spec, seed)

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """Around an image model, its weights taken over, that also attends over time."""
        clips = {"frames": settings.frames, "over_time": settings.over_time}
        task = super().build(wanted._replace(options=clips | wanted.options), settings, data)
        task.model.pretrained_cfg["test_crops"] = settings.crops
        if settings.sides[0] < min(task.size):
            raise ValueError(
                f"the model sees {task.size[0]} x {task.size[1]} pixels of clips whose short side "
                f"has {settings.sides[0]}: take larger sides, or a smaller img_size"
            )
        return task

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """As the model's own configuration says."""
        model = from_pretrained(source)
        if not isinstance(model, SpaceTime):
            raise CheckpointError(f"{source} is a model of images: give one of clips")
        check_classes(str(source), model, data, "measure it on data with its own classes")
        return cls(model, settings.model_copy(update={"freeze": False}), data)

    def train_samples(self) -> Samples:
        """Augmented clips; an unreadable one is replaced by the next."""
        settings = self.settings
        cut = RandomCut(settings.sides, self.size, settings.flip)
        reader = ClipReader(self.data.train, cut, self.model.frames, settings.jitter, replace=True)
        return Samples(self.data.train, reader, collate)

    def test_samples(self) -> Samples:
        """Crops of each clip as ``eval`` sees them; an unreadable clip is left out."""
        reader = ClipReader(
            self.data.test,
            Crops(self.model.pretrained_cfg),
            self.model.frames,
            False,
            replace=False,
        )
        return Samples(self.data.test, reader, collate)

    def answers(self, model: nn.Module, images: Tensor) -> Tensor:
        """Logarithms of the probabilities, averaged over the crops of each clip."""
        return averaged(model, self.normalised(images))

    def picture(self, at: int) -> Image.Image:
        """A few frames of a test clip, two by two."""
        frames = self.data.test.clip(at, SHOWN)  # type: ignore[attr-defined]
        rows = [np.concatenate(list(frames[i : i + 2]), 1) for i in range(0, SHOWN, 2)]
        return Image.fromarray(np.concatenate(rows, 0))


def averaged(model: nn.Module, crops: Tensor) -> Tensor:
    """Logarithms of the mean probabilities of the crops (B, K, T, 3, H, W) of clips: (B, classes).

    As TimeSformer's evaluation ensembles them.
    """
    B, K = crops.shape[:2]
    each = model(crops.flatten(0, 1)).float().log_softmax(1)
    return each.unflatten(0, (B, K)).logsumexp(1) - math.log(K)


class ClipReader(Reader):
    """index -> Sample with pixels (T, 3, H, W), or (crops, T, 3, H, W)."""

    images: Clips

    def __init__(
        self,
        clips: Any,
        transform: Callable[[Tensor], Tensor],
        frames: int,
        jitter: bool,
        replace: bool,
    ) -> None:
        super().__init__(clips, transform, replace)
        self.frames, self.jitter = frames, jitter

    def read(self, at: int) -> Tensor:
        """A few frames, cut alike; raises BadClip."""
        frames = as_frames(self.images.clip(at, self.frames, self.jitter))
        if max(frames.shape[2:]) > THIN * min(frames.shape[2:]):
            height, width = frames.shape[2:]
            raise BadClip(f"{self.images.name(at)}: {width} x {height}, too thin to be cut")
        return self.transform(frames)


def as_frames(clip: np.ndarray) -> Tensor:
    """(T, H, W, 3) to (T, 3, H, W)."""
    return torch.from_numpy(clip).permute(0, 3, 1, 2)


def scaled(frames: Tensor, short: float, size: tuple[int, int]) -> Tensor:
    """Frames (T, 3, H, W) whose short side is ``short``, or more if ``size`` asks for it."""
    H, W = frames.shape[2:]
    ratio = max(short / min(H, W), size[0] / H, size[1] / W)
    return TF.resize(frames, [max(size[0], round(H * ratio)), max(size[1], round(W * ratio))])


class RandomCut:
    """Frames (T, 3, H, W) to what is trained on, (T, 3, h, w), all scaled and cut alike."""

    def __init__(self, sides: tuple[int, int], size: tuple[int, int], flip: float) -> None:
        self.sides, self.size = sides, size
        self.cut = v2.Compose([v2.RandomCrop(size), v2.RandomHorizontalFlip(flip)])

    def __call__(self, frames: Tensor) -> Tensor:
        """One clip."""
        short = int(torch.randint(self.sides[0], self.sides[1] + 1, ()))
        return self.cut(scaled(frames, short, self.size))


class Crops:
    """Frames (T, 3, H, W) to what is tested, (crops, T, 3, h, w): A.1's last sentence.

    The short side is scaled so that the model sees ``crop_pct`` of it (224 of 256); then top left,
    centre and bottom right, or the centre alone.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.size: tuple[int, int] = tuple(config["input_size"][1:])
        self.short = min(self.size) / config["crop_pct"]
        self.shares = (0.0, 0.5, 1.0) if config.get("test_crops") == 3 else (0.5,)

    def __call__(self, frames: Tensor) -> Tensor:
        """All crops of one clip."""
        frames = scaled(frames, self.short, self.size)
        rows, cols = (have - want for have, want in zip(frames.shape[2:], self.size, strict=True))
        cut = [
            TF.crop(frames, round(share * rows), round(share * cols), *self.size)
            for share in self.shares
        ]
        return torch.stack(cut)
