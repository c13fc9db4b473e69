"""A look into saved models: what stages make of an image, how heads differ, what seeds change."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ziggurat.data.images import BadImage, read_image
from ziggurat.engine.explain import Explainer
from ziggurat.explain.attention import (
    Mixing,
    attentions,
    diversity,
    mixes,
    mixing,
    similarity,
    variances,
)

Alike = dict[str, Mixing]  # of each layer: similarities (heads, heads) at the three places


class Analysed(NamedTuple):
    """What was found, by model and between them."""

    models: dict[str, Explainer]
    heads: dict[str, Alike]  # of the models that mix heads
    variances: Tensor | None  # (images, layers), between models of one architecture
    images: list[str]  # that could be read
    notes: list[str]  # what could not be done, and why
    skipped: list[str]  # "path: reason" of images that cannot be read

    def measured(self) -> dict[str, Any]:
        """For the results file."""
        heads = {
            source: {
                layer: {
                    place: {"diversity": diversity(alike), "similarity": alike.tolist()}
                    for place, alike in zip(Mixing._fields, places, strict=True)
                }
                for layer, places in layers.items()
            }
            for source, layers in self.heads.items()
        }
        found: dict[str, Any] = {"images": len(self.images), "heads": heads, "notes": self.notes}
        if self.variances is not None:
            found["variances"] = self.variances.T.tolist()  # a list a layer
        return found


def analyse(
    sources: Sequence[str],
    images: Sequence[str],
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Analysed:
    """Measure all that applies: heads of models that mix them, variance between two or more."""
    models = opened(sources)
    mixing_ones = [source for source, model in models.items() if mixes(model.model)]
    notes = []
    if len(models) == 1 and not mixing_ones:
        notes.append(f"{sources[0]} mixes no heads, as ResT's do; give runs of several seeds, too")
    sums: dict[str, Alike] = {}
    between: list[list[float]] | None = [] if len(models) > 1 else None
    skipped: list[str] = []
    shown: list[str] = []
    for done, path in enumerate(images):
        tick(done, len(images))
        try:
            picture = read_image(path, path)
        except BadImage as error:
            skipped.append(str(error))
            continue
        shown.append(path)
        batches = {source: batch(model, picture) for source, model in models.items()}
        for source in mixing_ones:
            found = mixing(models[source].model, batches[source])
            sums[source] = added(sums.get(source), found)
        if between is not None:
            try:
                looks = [attentions(model.model, batches[s]) for s, model in models.items()]
                between.append(variances(looks))
            except ValueError as error:
                notes.append(str(error))
                between = None
    tick(len(images), len(images))
    if not shown:
        raise ValueError(f"none of the {len(images)} images can be read: {skipped[0]}")
    heads = {source: shared(layers, len(shown)) for source, layers in sums.items()}
    spread = None if between is None else torch.tensor(between)
    return Analysed(models, heads, spread, shown, notes, skipped)


def opened(sources: Sequence[str]) -> dict[str, Explainer]:
    """Each by what it is called."""
    twice = next((source for source, n in Counter(sources).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice")
    return {source: Explainer(source) for source in sources}


def batch(model: Explainer, picture: Image.Image) -> Tensor:
    """An image as a model takes it: (1, 3, H, W)."""
    classifier = model.classifier
    pixels = torch.as_tensor(np.asarray(classifier.transform(picture)))[None]
    return (pixels.to(classifier.device).float() - classifier.mean) / classifier.std


def added(sums: Alike | None, found: dict[str, Mixing]) -> Alike:
    """Similarities of one more image, added up."""
    alike = {
        layer: Mixing(*(similarity(maps)[0].cpu() for maps in places))
        for layer, places in found.items()
    }
    if sums is None:
        return alike
    return {
        layer: Mixing(*(a + b for a, b in zip(sums[layer], own, strict=True)))
        for layer, own in alike.items()
    }


def shared(sums: Alike, count: int) -> Alike:
    """The mean of so many images."""
    return {layer: Mixing(*(own / count for own in places)) for layer, places in sums.items()}
