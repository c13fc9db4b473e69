"""Image generation: a generator plays against a discriminator (NesT, Sections 3.1, 4.5 and A.4).

    noise -> generator -> image -> discriminator -> logit <- discriminator <- real image

The discriminator learns first in each step, with the logistic loss and R1's penalty on its gradient
at real images, then the generator, with the non-saturating loss. What is measured, shown and saved
is the generator, or its average where the recipe has ``ema``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.func import functional_call
from torchvision.transforms import CenterCrop, Compose, RandomHorizontalFlip, Resize
from torchvision.transforms.functional import pil_to_tensor

from ziggurat.data.images import Data, Images, open_images
from ziggurat.models.discriminator import DISCRIMINATORS, Discriminator
from ziggurat.models.generators import (
    Generator,
    create_generator,
    load_generator,
    save_generator,
)
from ziggurat.tasks import drawing
from ziggurat.tasks.augment import Batch, Reader, collate
from ziggurat.tasks.fidelity import Fidelity
from ziggurat.tasks.task import Samples, Settings, Task, Wanted, over_processes

GRID = 8  # samples a side of the picture of each evaluation
ROWS, COLUMNS = 4, 9  # of the picture that goes from one image to another
SHOWN = 8  # generated images whose neighbours are shown
COLLAPSED = 10  # per cent of real images' distance from their mean, where samples are nearly one
TILE = 64  # pixels a side that a small image is enlarged to
SEED = 0  # of the noise that people see, the same in all pictures


class GenerateSettings(Settings):
    """The game, and how its outcome is measured; A.4 names R1 and StyleGAN2's discriminator."""

    flip: float = Field(0.5, ge=0, le=1)
    discriminator: str = "discriminator"
    discriminator_args: dict[str, Any] = Field(default_factory=dict)
    r1: float = Field(10.0, ge=0)  # weight of the penalty; Mescheder et al. have 10
    r1_every: int = Field(16, ge=1)  # in one step of so many by chance, with as much more weight
    features: str = "inception"  # whose FID is: inception, or a classifier as fidelity takes it
    compared: int = Field(10_000, ge=8)  # real and generated images that are compared, at most

    @field_validator("discriminator")
    @classmethod
    def known(cls, name: str) -> str:
        """One of ours."""
        if name not in DISCRIMINATORS:
            raise ValueError(f"should be one of {', '.join(DISCRIMINATORS)}")
        return name


class Generate(Task):
    """Two players on the one loop."""

    Settings: ClassVar[type[Settings]] = GenerateSettings
    players: ClassVar[tuple[str, ...]] = ("discriminator", "model")
    best: ClassVar[str] = "fid"
    settings: GenerateSettings
    model: Generator

    def __init__(self, model: Generator, settings: GenerateSettings, data: Data) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.data = data
        options = DISCRIMINATORS[settings.discriminator] | settings.discriminator_args
        try:
            self.discriminator = Discriminator(model.img_size, **options)
        except TypeError as error:
            raise ValueError(f"discriminator_args: {error}") from None
        self.reals = Some(data.test, settings.compared)
        self.fidelity: Fidelity | None = None  # made when it is first needed: it may be large
        self.known: set[int] = set()  # real images whose features it has
        self.apart = [0.0, 0.0]  # generated images, and real ones
        self.variety = 100.0
        self.shown: Generator | None = None

    def player(self, name: str) -> nn.Module:
        """What one player optimises."""
        return self.discriminator if name == "discriminator" else self.model

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> Data:
        """Images of any data, whether they have classes or not."""
        return open_images(spec, seed)

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """Around a fresh generator, or one that was saved; the discriminator is fresh."""
        if wanted.init is None:
            return cls(create_generator(wanted.name, **wanted.options), settings, data)
        model = load_generator(wanted.init)
        if model.name != wanted.name:
            raise ValueError(f"{wanted.init} holds {model.name}: ask for --model {model.name}")
        return cls(model.train(), settings, data)

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """A generator that ``save`` wrote, to measure it."""
        return cls(load_generator(source), settings, data)

    # Data.

    def train_samples(self) -> Samples:
        """Scaled and mirrored images; an unreadable one is replaced by the next."""
        return self.samples(self.data.train, RandomHorizontalFlip(self.settings.flip), replace=True)

    def test_samples(self) -> Samples:
        """Held-out images that generated ones are compared with."""
        return self.samples(self.reals, nn.Identity(), replace=False)

    def samples(self, images: Any, more: Any, replace: bool) -> Samples:
        """The middle of each image, as large as the generator's."""
        side = self.model.img_size
        steps = [Resize(side, antialias=True), CenterCrop(side), more, pil_to_tensor]
        return Samples(images, Reader(images, Compose(steps), replace), collate)

    # Training.

    def forward(self, batch: Batch, player: str = "model") -> dict[str, Tensor]:
        """One player's loss; the other stands still."""
        noise = self.model.noise(2 * len(batch.images)).chunk(2)  # other noise for each
        if player == "discriminator":
            with torch.no_grad():
                fake = self.model(noise[0])
            return self.judge(batch.images.float() / 127.5 - 1, fake)
        still = {name: value.detach() for name, value in self.discriminator.state_dict().items()}
        logits = functional_call(self.discriminator, still, (self.model(noise[1]),))
        return {"loss": F.softplus(-logits.float()).mean()}

    def judge(self, real: Tensor, fake: Tensor) -> dict[str, Tensor]:
        """The discriminator's loss, with R1's penalty now and then (Mescheder et al., Eq. 9)."""
        every, weight = self.settings.r1_every, self.settings.r1
        penalised = weight > 0 and bool(torch.rand(()) * every < 1)
        real.requires_grad_(penalised)
        on_real = self.discriminator(real).float()
        on_fake = self.discriminator(fake).float()
        loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        found = {"on_real": on_real.mean(), "on_fake": on_fake.mean()}
        if penalised:
            (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
            penalty = slope.square().sum((1, 2, 3)).mean()
            loss = loss + every * weight / 2 * penalty
        return {"loss": loss} | found

    # Evaluation.

    def measure(self, model: nn.Module, batch: Batch) -> None:
        """Compare a batch of real images with as many generated ones."""
        if not len(batch.at):
            return
        assert isinstance(model, Generator)
        fidelity = self.compared()
        new = [i for i, at in enumerate(batch.at.tolist()) if at not in self.known]
        if new:
            fidelity.add_real(batch.images[new], batch.at[new])
            self.known.update(batch.at[new].tolist())
        made = generated(model, own_noise(model, batch.at.tolist()))
        fidelity.add_generated(made)
        self.apart[0] += apart(made)
        self.apart[1] += apart(batch.images)

    def compared(self) -> Fidelity:
        """What generated images are measured by, made when it is first needed."""
        if self.fidelity is None:
            self.fidelity = Fidelity(self.settings.features)
        return self.fidelity

    def measured(self) -> dict[str, float]:
        """FID and its like; ``variety`` is 100 where samples are as far apart as real images."""
        shares = [sum(parts) for parts in zip(*over_processes(self.apart), strict=True)]
        if not shares[1]:
            raise ValueError(
                "there are no two test images that can be read and differ: `ziggurat data check` "
                "says why"
            )
        found = self.compared().measured()
        self.apart = [0.0, 0.0]
        self.variety = 100 * shares[0] / shares[1]
        return found | {"variety": self.variety}

    def alarms(self) -> list[str]:
        """Whether samples have become nearly one."""
        if self.variety >= COLLAPSED:
            return []
        return [
            f"samples have collapsed: they are {self.variety:.1f} % as far apart as real images; "
            "a higher r1, a lower lr or a larger batch may help"
        ]

    def features(self) -> str:
        """What FID and its like are of."""
        return self.compared().describe()

    # What is left behind.

    def save(self, folder: Path, model: nn.Module) -> None:
        """As ``load_generator`` reads it."""
        assert isinstance(model, Generator)
        save_generator(model, folder, overwrite=True, about={"data": self.data.name})

    def snapshot(self, path: Path, model: nn.Module) -> None:
        """Samples of the same noise at each evaluation."""
        assert isinstance(model, Generator)
        path.parent.mkdir(parents=True, exist_ok=True)
        mosaic(sampled(model, GRID**2, SEED), GRID).save(path)
        self.shown = model

    def figures(self, folder: Path) -> list[Path]:
        """Samples, the way from one to another, and the real images that are most like some."""
        model = self.shown
        if model is None or self.fidelity is None:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        made = sampled(model, GRID**2, SEED)
        pictures = {"samples": mosaic(made, GRID), "ways": mosaic(ways(model, SEED), COLUMNS)}
        files = []
        for name, picture in pictures.items():
            picture.save(folder / f"{name}.png")
            files.append(folder / f"{name}.png")
        return [*files, self.neighbours(made[:SHOWN], folder / "neighbours.png")]

    def neighbours(self, made: Tensor, path: Path) -> Path:
        """Generated images above the training images that are most like them.

        A generator that copies what it was trained on shows itself here.
        """
        assert self.fidelity is not None
        among = Some(self.data.train, self.settings.compared)
        samples = self.samples(among, nn.Identity(), replace=False)
        seen = Fidelity(self.fidelity.features, self.fidelity.classifier)
        for first in range(0, len(among), GRID**2):
            part = range(first, min(first + GRID**2, len(among)))
            batch = collate([samples.make(i) for i in part])
            if len(batch.at):
                seen.add_real(batch.images.to(made.device), batch.at)
        found = seen.nearest(made)
        nearest = collate([samples.make(int(i)) for i in found.at]).images
        rows = [
            [as_picture(image), as_picture(real)]
            for image, real in zip(made.cpu(), nearest, strict=True)
        ]
        return drawing.sheet(rows, ("generated", "nearest in training"), path, drawing.TILE // 2)


class Some:
    """A set, or so many of it, evenly spread; places are counted in the part."""

    def __init__(self, images: Images, count: int) -> None:
        kept = min(count, len(images))
        self.images, self.places = images, [i * len(images) // kept for i in range(kept)]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.places)

    def label(self, index: int) -> int:
        """The number of an image's class."""
        return self.images.label(self.places[index])

    def name(self, index: int) -> str:
        """Where an image is, for a person."""
        return self.images.name(self.places[index])

    def image(self, index: int) -> Image.Image:
        """An image in RGB; raises BadImage."""
        return self.images.image(self.places[index])

    def order(self, generator: torch.Generator) -> Tensor:
        """A permutation of all indices for one epoch."""
        return torch.randperm(len(self), generator=generator)


# Images.


def own_noise(model: Generator, at: Sequence[int]) -> Tensor:
    """Noise of its own for each place, the same at every evaluation and in any batch."""
    return torch.cat([model.noise(1, torch.Generator().manual_seed(i)) for i in at])


@torch.no_grad()
def generated(model: Generator, noise: Tensor) -> Tensor:
    """Images as bytes (B, 3, H, W)."""
    return ((model(noise).float() + 1) * 127.5).round().clamp(0, 255).byte()


def sampled(model: Generator, count: int, seed: int, truncation: float | None = None) -> Tensor:
    """``count`` images of a seed, as bytes, the first of them whatever the count.

    ``truncation`` draws numbers beyond it anew (BigGAN's trick): less variety, fewer failures.
    """
    was_training = model.training
    model.eval()
    parts = []
    for i in range(count):
        chance = torch.Generator().manual_seed(seed * 1_000_003 + i)
        noise = model.noise(1, chance, "cpu")
        while truncation is not None and bool((far := noise.abs() > truncation).any()):
            noise = torch.where(far, model.noise(1, chance, "cpu"), noise)
        parts.append(noise)
    noise = torch.cat(parts).to(next(model.parameters()))
    found = torch.cat([generated(model, some) for some in noise.split(GRID**2)])
    model.train(was_training)
    return found


def ways(model: Generator, seed: int) -> Tensor:
    """Rows of images on the way from one noise to another, along the sphere that noise lies on."""
    chance = torch.Generator().manual_seed(seed)
    start, end = model.noise(2 * ROWS, chance).chunk(2)
    share = torch.linspace(0, torch.pi / 2, COLUMNS, device=start.device)
    noise = share.cos()[:, None] * start[:, None] + share.sin()[:, None] * end[:, None]
    was_training = model.training
    model.eval()
    found = generated(model, noise.flatten(0, 1))
    model.train(was_training)
    return found


def apart(images: Tensor) -> float:
    """How far images of a batch are from their mean: the sum of their deviations, in bytes."""
    pixels = images.double()
    return float((pixels - pixels.mean(0)).square().mean((1, 2, 3)).sqrt().sum())


def as_picture(image: Tensor) -> Image.Image:
    """Bytes (3, H, W)."""
    return Image.fromarray(image.cpu().permute(1, 2, 0).numpy())


def mosaic(images: Tensor, columns: int) -> Image.Image:
    """Images (N, 3, H, W) in rows, small ones enlarged by whole pixels."""
    N, _, H, W = images.shape
    scale, gap = max(1, TILE // max(H, W)), 2
    rows = -(-N // columns)
    width, height = W * scale + gap, H * scale + gap
    sheet = Image.new("RGB", (columns * width + gap, rows * height + gap), "white")
    for i, image in enumerate(images):
        tile = as_picture(image).resize((W * scale, H * scale), Image.Resampling.NEAREST)
        sheet.paste(tile, (gap + i % columns * width, gap + i // columns * height))
    return sheet
