"""How well saved models' maps find objects: every method, every model, the same images.

localise(["runs/nest", "runs/rest"], "VOC2012/") -> Localised(rows, ...), a row a method and model
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from timm.data.transforms import MaybePILToTensor, ResizeKeepRatio
from torch import Tensor
from torchvision.transforms import CenterCrop, Resize

from ziggurat.data.coco import ObjectImages
from ziggurat.data.images import BadImage, listed
from ziggurat.data.voc import open_boxes
from ziggurat.engine.analyse import batch, opened
from ziggurat.engine.explain import Explainer
from ziggurat.explain import reason
from ziggurat.explain.fidelity import STEPS, Curves, area, curves
from ziggurat.explain.localise import THRESHOLDS, Tally, centre

CENTRE = "centre"  # beside the methods: a map that knows nothing
IN_VIEW = 0.25  # of an object's box must be left by the crop, or it is not asked for
SHOWN = 6  # images that are drawn

Truth = dict[int, Tensor]  # the model's number of a class: its boxes (n, 4) in what the model sees


class Example(NamedTuple):
    """One class of one image as a model saw it."""

    image: Image.Image
    heat: Tensor  # (H, W)
    truth: Tensor  # (n, 4)
    name: str


class Row:
    """One method on one model."""

    def __init__(self, model: str, method: str) -> None:
        self.model, self.method = model, method
        self.tally = Tally()
        self.curves: list[Curves] = []
        self.examples: dict[int, Example] = {}

    @property
    def name(self) -> str:
        """For legends and headings."""
        return f"{self.method}  {self.model}"

    def measured(self) -> dict[str, Any]:
        """The best threshold, what is found there, and at all others."""
        best, found = self.tally.best(), self.tally.accuracies()
        row: dict[str, Any] = {
            "model": self.model,
            "method": self.method,
            "images": len(self.tally.top1),
            "cases": len(self.tally.known),
            "threshold": THRESHOLDS[best],
            **{key: values[best] for key, values in found.items()},
            "pointing": 100 * float(np.mean(self.tally.pointing)),
            "by_threshold": found,
        }
        if self.curves:
            pairs = zip(Curves._fields, zip(*self.curves, strict=True), strict=True)
            means = {key: torch.stack(found).mean(0) for key, found in pairs}
            row |= {key: area(mean) for key, mean in means.items()}
            row["curves"] = {key: mean.tolist() for key, mean in means.items()}
        return row


class Localised(NamedTuple):
    """What was measured, and what to say of it."""

    rows: list[Row]
    notes: list[str]  # what was left out, and why
    skipped: list[str]  # "path: reason" of images that cannot be read

    def measured(self) -> dict[str, Any]:
        """For the results file."""
        rows = [row.measured() for row in self.rows]
        return {"thresholds": list(THRESHOLDS), "rows": rows, "notes": self.notes}


def localise(
    sources: Sequence[str],
    data: str | Path,
    methods: Sequence[str] | None = None,
    count: int | None = None,
    steps: int = STEPS,
    seed: int = 0,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Localised:
    """Measure ``methods``, by default all that a model can be explained by, on each model.

    ``count`` images are drawn by ``seed``, all by default; ``steps`` are those of deletion and
    insertion, which cost twice as many images each time; 0 leaves them out.
    """
    images = open_boxes(data)
    models = list(opened(sources).values())
    rows, notes = rows_of(sources, models, methods)
    wanted = [matched(images.classes, model.classes) for model in models]
    classes = sorted(set.intersection(*(set(one) for one in wanted)))
    notes += unknown(images, classes, sources, models)
    chosen = [i for i in range(len(images)) if asked(images, i, classes).any()]
    if count is not None and count < len(chosen):
        drawn = np.random.default_rng(seed).permutation(len(chosen))[:count]
        chosen = [chosen[i] for i in sorted(drawn.tolist())]
    skipped, unseen = [], Counter[str]()
    total = len(chosen) * len(rows)
    for n, i in enumerate(chosen):
        try:
            picture = images.image(i)
        except BadImage as error:
            skipped.append(str(error))
            continue
        for source, model, numbers in zip(sources, models, wanted, strict=True):
            truth = truth_of(images, i, classes, numbers, model)
            unseen[source] += not truth
            for at, row in enumerate(rows):
                if truth and row.model == source:
                    tick(n * len(rows) + at, total)
                    measure(row, model, i, picture, truth, steps)
    tick(total, total)
    notes += [f"{source} sees no object in {n} images" for source, n in unseen.items() if n]
    if any(not row.tally.known for row in rows):
        raise ValueError(f"{data} has no image to measure: {'; '.join([*notes, *skipped[:1]])}")
    return Localised(rows, notes, skipped)


def rows_of(
    sources: Sequence[str], models: Sequence[Explainer], methods: Sequence[str] | None
) -> tuple[list[Row], list[str]]:
    """A row for each method of each model, and why some are missing."""
    rows, notes = [], []
    for source, model in zip(sources, models, strict=True):
        for method in dict.fromkeys(methods or model.methods):
            why = reason(model.model, method)
            if why is None:
                rows.append(Row(source, method))
            else:
                notes.append(f"{source}: {why}")
        if rows and rows[-1].model == source:
            rows.append(Row(source, CENTRE))
    if not rows:
        raise ValueError("; ".join(notes))
    return rows, notes


def measure(
    row: Row, explain: Explainer, index: int, picture: Image.Image, truth: Truth, steps: int
) -> None:
    """One image by one method."""
    numbers = list(truth)
    method = explain.methods[0] if row.method == CENTRE else row.method
    told = explain(picture, method, numbers, top=5)
    maps = dict(zip(numbers, told.found.maps, strict=True))
    if row.method == CENTRE:
        maps = dict.fromkeys(numbers, centre(told.image.height, told.image.width))
    ranked = [explain.classes.index(guess.name) for guess in told.top]
    row.tally.add(ranked, maps, truth)
    if steps:
        seen = batch(explain, picture)
        row.curves += [curves(explain.model, seen, maps[n], n, steps) for n in numbers]
    if len(row.examples) < SHOWN:
        largest = max(numbers, key=lambda n: float(areas(truth[n]).max()))
        name = explain.classes[largest]
        row.examples[index] = Example(told.image, maps[largest], truth[largest], name)


# Classes.


def folded(name: str) -> str:
    """A class name without what people write differently."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def matched(own: Sequence[str], others: Sequence[str]) -> dict[int, int]:
    """For each of our classes that others have, too, its number there: exact names first."""
    exact = {name: i for i, name in reversed(list(enumerate(others)))}
    loose = {folded(name): i for i, name in reversed(list(enumerate(others)))}
    found = {i: exact.get(name, loose.get(folded(name))) for i, name in enumerate(own)}
    return {i: number for i, number in found.items() if number is not None}


def unknown(
    images: ObjectImages,
    classes: Sequence[int],
    sources: Sequence[str],
    models: Sequence[Explainer],
) -> list[str]:
    """What to say of the classes that a model does not know."""
    missing = [name for i, name in enumerate(images.classes) if i not in set(classes)]
    who = sources[0] if len(sources) == 1 else "every model"
    if not classes:
        some = ", ".join(models[0].classes[:4])
        raise ValueError(
            f"{listed(missing)} in the data: none is known to {who}; {sources[0]} knows {some} ... "
            "(names must be the same, but for case, spaces, hyphens and underscores)"
        )
    left_out = int((~np.isin(images.found.labels, classes)).sum())
    return [f"{listed(missing)}: not known to {who}, {left_out} objects left out"] * bool(missing)


# Boxes.


def asked(images: ObjectImages, index: int, classes: Sequence[int]) -> np.ndarray:
    """Which of an image's objects are asked for: of these classes, and not a crowd."""
    of = slice(int(images.ends[index]), int(images.ends[index + 1]))
    return np.isin(images.found.labels[of], classes) & ~images.found.crowd[of]


def truth_of(
    images: ObjectImages,
    index: int,
    classes: Sequence[int],
    numbers: dict[int, int],
    explain: Explainer,
) -> Truth:
    """The boxes of each class that are in a model's view."""
    objects, of = images.objects(index), asked(images, index, classes)
    boxes = torch.from_numpy(objects.boxes[of])
    inside, left = in_view(explain.classifier.transform, images.size(index), boxes)
    found: dict[int, list[Tensor]] = {}
    for box, share, label in zip(inside, left, objects.labels[of].tolist(), strict=True):
        if share >= IN_VIEW:
            found.setdefault(numbers[label], []).append(box)
    return {number: torch.stack(own) for number, own in sorted(found.items())}


def in_view(transform: Any, size: tuple[int, int], boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (n, 4) of an image, (width, height), as resized and cropped; what is left of each.

    How large an image becomes the steps themselves say, of an empty one.
    """
    moved = boxes.clone()
    blank = Image.new("L", size)
    for step in transform.transforms:
        if isinstance(step, MaybePILToTensor):
            continue
        before, blank = blank.size, step(blank)
        pairs = list(zip(before, blank.size, strict=True))
        if isinstance(step, Resize | ResizeKeepRatio):
            moved *= torch.tensor([new / old for old, new in pairs] * 2)
        elif isinstance(step, CenterCrop):
            moved -= torch.tensor([round((old - new) / 2) for old, new in pairs] * 2)
        else:
            raise TypeError(f"boxes cannot follow a {type(step).__name__}")
    whole = areas(moved)
    width, height = blank.size
    moved = torch.minimum(moved.clamp(min=0), torch.tensor([width, height] * 2))
    return moved, areas(moved) / whole


def areas(boxes: Tensor) -> Tensor:
    """(n,) of boxes (n, 4)."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
