"""Pre-training without labels: parts of an image are hidden and painted back (HiViT, Section 4.2).

A finished run is a folder that ``finetune --init`` and ``probe --init`` start from: the encoder as
any other saved model, the decoder in a file beside it.
"""

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from PIL import Image
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ziggurat.data.images import LEAST, Data, open_images
from ziggurat.models.pretrained import from_pretrained, save_pretrained
from ziggurat.models.weights import CheckpointError, flat, load_checkpoint, read
from ziggurat.tasks import drawing
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
from ziggurat.tasks.masking import MaskedAutoencoder, can_drop, unpatchify
from ziggurat.tasks.task import Samples, Settings, Task, Wanted, over_processes

DECODER = "decoder.safetensors"  # beside the encoder
SHOWN = 6  # images that are painted for people
HEADS = ("original", "what it sees", "what it paints", "both together")
GREY = 128  # of what is hidden


class PretrainSettings(ImageSettings):
    """What is hidden, what the encoder is fed with and how large the decoder is."""

    auto_augment: str = "none"
    color_jitter: float = Field(0.0, ge=0)
    drop_path: float = Field(0.0, ge=0, lt=1)

    mask_ratio: float = Field(gt=0, lt=1)  # of the units
    unit: int | None = Field(None, ge=1)  # pixels a side; None: the model's own, else 16
    feed: Literal["visible", "all"] | None = None  # None: visible where the model can
    stages: Literal["all", "last"] = "all"  # whose features the decoder gets
    normalise: bool  # each unit's pixels, before they are compared
    pixel_loss: Literal["mse", "l1"] = "mse"
    decoder_dim: int = Field(512, ge=4)
    decoder_depth: int = Field(ge=0)  # 0: one linear layer (SimMIM)
    decoder_heads: int = Field(16, ge=1)


def autoencoder(encoder: Any, settings: PretrainSettings, fresh: bool) -> MaskedAutoencoder:
    """An encoder with what hides units and paints them, as the settings say."""
    return MaskedAutoencoder(
        encoder,
        settings.mask_ratio,
        settings.decoder_dim,
        settings.decoder_depth,
        settings.decoder_heads,
        settings.feed or ("visible" if can_drop(encoder) else "all"),
        settings.unit,
        settings.stages,
        settings.normalise,
        settings.pixel_loss,
        fresh,
    )


class Pretrain(Task):
    """Masked autoencoding on the one loop."""

    Settings: ClassVar[type[Settings]] = PretrainSettings
    best: ClassVar[str] = "explained"
    settings: PretrainSettings
    model: MaskedAutoencoder
    mean: Tensor
    std: Tensor
    sums: list[float]  # images, their losses, squared errors, squares of what was to be painted

    def __init__(
        self, encoder: Any, settings: PretrainSettings, data: Data, fresh: bool = False
    ) -> None:
        super().__init__()
        self.settings = settings
        self.data = data
        self.encoder = [encoder]  # whole, with the norm that pre-training leaves out: to be saved
        self.model = autoencoder(encoder, settings, fresh)
        self.config: Mapping[str, Any] = encoder.pretrained_cfg
        self.size: tuple[int, int] = tuple(self.config["input_size"][1:])
        self.register_buffer("mean", as_bytes(self.config["mean"]), persistent=False)
        self.register_buffer("std", as_bytes(self.config["std"]), persistent=False)
        self.sums = [0.0] * 4
        self.last: Path | None = None  # picture

    @classmethod
    def open(cls, spec: str, settings: Any, seed: int | None) -> Data:
        """Images of any data, whether they have classes or not."""
        return open_images(spec, seed)

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """Around an encoder that knows the data's size, mean and deviation.

        What goes on from pre-training goes on with its decoder, too.
        """
        task = cls(open_for(wanted, settings, data), settings, data, fresh=wanted.init is None)
        if wanted.init and (Path(wanted.init) / DECODER).is_file():
            task.load_decoder(wanted.init)
        elif wanted.init and has_decoder(wanted.init):
            load_checkpoint(task.model, wanted.init)
        return task

    @classmethod
    def saved(cls, source: str | Path, settings: Any, data: Any) -> Self:
        """Encoder and decoder of a run."""
        task = cls(from_pretrained(source), settings, data)
        task.load_decoder(source)
        return task

    def load_decoder(self, source: str | Path) -> None:
        """What a run has beside its encoder."""
        file = Path(source) / DECODER
        if not file.is_file():
            raise CheckpointError(f"{source} has no {DECODER}: there is nothing to paint with")
        own = {n: v for n, v in self.model.state_dict().items() if not n.startswith("encoder.")}
        found = load_file(file)
        if own.keys() != found.keys() or any(own[n].shape != found[n].shape for n in own):
            raise CheckpointError(
                f"{file} is another decoder: pre-train on with the settings of {source}, or give "
                "its model.safetensors alone, to begin with a new decoder"
            )
        self.model.load_state_dict(found, strict=False)

    # Data.

    def train_samples(self) -> Samples:
        """Cut and flipped images; an unreadable one is replaced by the next."""
        cut = train_transform(self.settings, self.size, tuple(self.config["mean"]))
        reader = Reader(self.data.train, cut, replace=True, least=LEAST)
        return Samples(self.data.train, reader, collate, self.settings.repeats)

    def test_samples(self) -> Samples:
        """Each image once, its middle."""
        cut = test_transform(dict(self.config))
        reader = Reader(self.data.test, cut, replace=False, least=LEAST)
        return Samples(self.data.test, reader, collate)

    def normalised(self, images: Tensor) -> Tensor:
        """Bytes to what the model takes."""
        return (images.float() - self.mean) / self.std

    # Training and evaluation.

    def forward(self, batch: Batch, player: str = "model") -> dict[str, Tensor]:
        """The loss on what is hidden."""
        return {"loss": self.model(self.normalised(batch.images))}

    def noise(self, at: Tensor, images: Tensor) -> Tensor:
        """An image's own, whatever the batch: its mask is the same at every evaluation."""
        units = math.prod(self.model.checked(images.shape[2], images.shape[3]))
        rows = [torch.rand(units, generator=torch.Generator().manual_seed(i)) for i in at.tolist()]
        return torch.stack(rows).to(images.device)

    def measure(self, model: nn.Module, batch: Batch) -> None:
        """Count one batch."""
        if not len(batch.at):
            return
        assert isinstance(model, MaskedAutoencoder)
        noise = self.noise(batch.at, batch.images)
        found = model.painting(self.normalised(batch.images), noise, every=False)
        each = model.error(found).double().mean(1)
        error = found.painted.float() - found.target
        around = found.target - found.target.mean(-1, keepdim=True)
        parts = (
            float(len(each)),
            float(each.sum()),
            float(error.square().sum(-1).double().sum()),
            float(around.square().sum(-1).double().sum()),
        )
        self.sums = [a + b for a, b in zip(self.sums, parts, strict=True)]

    def measured(self) -> dict[str, float]:
        """Per cent of the hidden units' variance that is explained; 0 is their mean colour."""
        images, loss, error, around = map(sum, zip(*over_processes(self.sums), strict=True))
        self.sums = [0.0] * 4
        if not images:
            raise ValueError("no test image could be read: `ziggurat data check` says why")
        explained = 100 * (1 - error / around) if around else 0.0
        return {"explained": explained, "loss": loss / images, "images": int(images)}

    # What is left behind.

    def save(self, folder: Path, model: nn.Module) -> None:
        """The encoder as any saved model, and the decoder."""
        assert isinstance(model, MaskedAutoencoder)
        encoder = self.encoder[0]
        left = encoder.load_state_dict(model.encoder.state_dict(), strict=False)
        assert not left.unexpected_keys, left  # missing is only what pruning left out
        decoder = {
            name: value.detach().cpu().contiguous()
            for name, value in model.state_dict().items()
            if not name.startswith("encoder.")
        }
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{DECODER}.part"
        save_file(decoder, part, metadata={"format": "pt"})
        part.replace(folder / DECODER)
        save_pretrained(encoder, folder, overwrite=True)

    def snapshot(self, path: Path, model: nn.Module) -> None:
        """A few test images: as they are, what is seen of them, what is painted, both together."""
        count = len(self.data.test)
        samples, shown = self.test_samples(), min(SHOWN, count)
        chosen = [samples.make(i * count // shown) for i in range(shown)]
        batch = collate(chosen)
        if len(batch.at):
            assert isinstance(model, MaskedAutoencoder)
            rows = self.painted(model, batch.images.to(self.mean.device), batch.at)
            self.last = drawing.sheet(rows, HEADS, path)

    @torch.no_grad()
    def painted(
        self, model: MaskedAutoencoder, images: Tensor, at: Tensor
    ) -> list[list[Image.Image]]:
        """Original, masked, painted, pasted, for each image."""
        was_training = model.training
        model.eval()
        found = model.painting(self.normalised(images), self.noise(at, images))
        model.train(was_training)
        grid = model.checked(images.shape[2], images.shape[3])

        def picture(patches: Tensor) -> Tensor:
            pixels = unpatchify(patches * found.std + found.mean, model.unit, grid)
            return (pixels * self.std + self.mean).round().clamp(0, 255).byte().cpu()

        hidden = found.hidden[:, :, None].expand_as(found.target)
        hidden = unpatchify(hidden, model.unit, grid).bool().cpu()
        original, painted = images.cpu(), picture(found.painted.float())
        rows = (
            original,
            original.masked_fill(hidden, GREY),
            painted,
            torch.where(hidden, painted, original),
        )
        return [
            [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in row]
            for row in zip(*rows, strict=True)
        ]

    def figures(self, folder: Path) -> list[Path]:
        """The last snapshot, where the report looks."""
        if self.last is None:
            return []
        return [Path(shutil.copyfile(self.last, folder / "paintings.png"))]


def has_decoder(init: str) -> bool:
    """Whether it is a checkpoint of pre-training, not of a classifier."""
    return Path(init).is_file() and any("decoder" in name for name in flat(read(init)))
