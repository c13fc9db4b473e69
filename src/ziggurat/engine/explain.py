"""Why a saved model says what it says of an image: its own preprocessing, classes by name."""

import copy
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from ziggurat.data.images import read_image
from ziggurat.engine.predict import Classifier, Guess
from ziggurat.explain import METHODS, Explanation, explain, reason


class Explained(NamedTuple):
    """An image as the model saw it, what it says of it, and why."""

    image: Image.Image  # resized and cropped, RGB
    top: list[Guess]  # the likeliest first
    names: tuple[str, ...]  # of the explained classes
    found: Explanation
    probabilities: tuple[float, ...]  # of the explained classes


class Explainer:
    """A saved model with its own preprocessing and class names.

    Explainer("runs/digits")("a.png", method="gradcat", top=4)

    ``source`` is a run's folder, a hub id, a model at hand, or a model's name and its weights:
    ``timm/resnet50:published``, ``timm/NAME:package:NAME``. ``backend`` is its classifier's;
    explanations need gradients, and torch.
    """

    def __init__(
        self, source: str | Path | Any, device: str | None = None, backend: str = "eager"
    ) -> None:
        self.classifier = Classifier(source, device, backend)
        self.model = twin(self.classifier.model)
        self.classes = self.classifier.classes
        self.methods = tuple(name for name in METHODS if reason(self.model, name) is None)

    def __call__(
        self,
        image: str | Path | Image.Image,
        method: str | None = None,
        classes: Sequence[str | int] | None = None,
        top: int = 4,
    ) -> Explained:
        """Explain ``classes``, by name or number; if none are given, the ``top`` likeliest."""
        name = "the image" if isinstance(image, Image.Image) else str(image)
        opened = image if isinstance(image, Image.Image) else read_image(image, name)
        return self.seen(self.classifier.pixels(opened, name), method, classes, top)

    def seen(
        self,
        pixels: Tensor,
        method: str | None = None,
        classes: Sequence[str | int] | None = None,
        top: int = 4,
    ) -> Explained:
        """The same of what the model sees of an image, ``classifier.pixels``: (3, H, W)."""
        method = method or next(iter(self.methods), "cam")
        why = reason(self.model, method)
        if why is not None:
            raise ValueError(why)
        wanted = None if classes is None else [self.number(one) for one in classes]
        batch = self.classifier.normalised([pixels])
        with torch.inference_mode():
            chances = self.model(batch).float().softmax(1)[0].cpu()
        guesses = self.classifier.guesses(chances, max(top, 1))
        likeliest = chances.topk(len(guesses)).indices.tolist()
        numbers = likeliest if wanted is None else wanted
        found = explain(self.model, batch, numbers, method)
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        names, shares = zip(*((self.classes[i], float(chances[i])) for i in numbers), strict=True)
        return Explained(picture, guesses, names, found, shares)

    def number(self, wanted: str | int) -> int:
        """A class by its name, or by its number where no class has that for a name."""
        if isinstance(wanted, str) and wanted in self.classes:
            return self.classes.index(wanted)
        if isinstance(wanted, int) or wanted.isdecimal():
            if int(wanted) in range(len(self.classes)):
                return int(wanted)
            raise ValueError(
                f"there is no class {wanted}: the model knows {len(self.classes)}, "
                f"0 to {len(self.classes) - 1}"
            )
        near = difflib.get_close_matches(wanted, self.classes, n=1, cutoff=0.5)
        some = ", ".join(self.classes[:5]) + ", ..." * (len(self.classes) > 5)
        hint = f"did you mean {near[0]!r}?" if near else f"the model knows {some}"
        raise ValueError(f"no class is called {wanted!r}: {hint}")


def twin(model: nn.Module) -> Any:
    """The same weights in other modules: an explanation's hooks meet no other thread's call."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
