"""What saved models of clips see in them, and the frames that they looked at."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from ziggurat.data.clips import BadClip, read_clip
from ziggurat.engine.predict import Guess
from ziggurat.models.pretrained import from_pretrained
from ziggurat.models.video import SpaceTime
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks import drawing
from ziggurat.tasks.augment import as_bytes
from ziggurat.tasks.video import Crops, as_frames, averaged

TILE = 176  # pixels of a frame in a strip


class Watched(NamedTuple):
    """What a clip shows, the most likely first; or why it could not be read."""

    clip: str
    top: list[Guess]
    frames: np.ndarray | None  # (T, H, W, 3): those looked at
    error: str | None = None


class Watcher:
    """A saved model of clips with its own preprocessing and class names.

    for found in Watcher("runs/actions")(["a.mp4", "b.webm"]): ...
    """

    def __init__(self, source: str | Path, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = from_pretrained(source)
        if not isinstance(model, SpaceTime) or not model.num_classes:
            raise CheckpointError(f"{source} does not recognise actions: it is no model of clips")
        self.model = model.to(self.device).eval()
        config = model.pretrained_cfg
        self.crops = Crops(config)
        self.mean, self.std = (as_bytes(config[key]).to(self.device) for key in ("mean", "std"))
        names = config.get("label_names") or [f"class {i}" for i in range(model.num_classes)]
        self.classes: tuple[str, ...] = tuple(names)

    def __call__(self, clips: Iterable[str | Path], top: int = 5) -> Iterator[Watched]:
        """An answer for each clip, in their order."""
        for clip in clips:
            try:
                frames = read_clip(clip, str(clip), self.model.frames)
            except BadClip as error:
                yield Watched(str(clip), [], None, str(error))
                continue
            yield Watched(str(clip), self.guesses(frames, top), frames)

    @torch.inference_mode()
    def guesses(self, frames: np.ndarray, top: int) -> list[Guess]:
        """The likeliest classes of frames (T, H, W, 3)."""
        crops = self.crops(as_frames(frames)).to(self.device)
        found = averaged(self.model, ((crops.float() - self.mean) / self.std)[None])[0].exp()
        best = found.topk(min(top, len(self.classes)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Guess(self.classes[i], probability) for i, probability in pairs]


def strips(files: Sequence[str], folder: Path) -> list[Path]:
    """A picture for each clip; those of one name are numbered."""
    found: list[Path] = []
    for file in files:
        path, number = folder / f"{Path(file).stem}.png", 1
        while path in found:
            number += 1
            path = folder / f"{Path(file).stem}-{number}.png"
        found.append(path)
    return found


def strip(found: Watched, path: Path) -> Path:
    """The frames that were looked at side by side, over them what they show."""
    assert found.frames is not None
    best = found.top[0]
    said = f"{drawing.shorten(best.name, 60)}: {best.probability:.0%}"
    heads = [said] + [""] * (len(found.frames) - 1)
    return drawing.sheet([[Image.fromarray(one) for one in found.frames]], heads, path, TILE)
