"""Pictures of what ``localise`` and ``analyse`` found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ziggurat.engine.analyse import Alike
from ziggurat.engine.localise import CENTRE, Example, Row
from ziggurat.explain.attention import diversity
from ziggurat.explain.figures import overlay
from ziggurat.explain.localise import THRESHOLDS, boxes
from ziggurat.tasks.curves import RUNS
from ziggurat.tasks.drawing import (
    BLUE,
    BRICK,
    INK,
    MUTED,
    bare,
    canvas,
    frame,
    heading,
    plain,
    save,
    sheet,
    shorten,
)
from ziggurat.tasks.overlay import with_objects

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

LETTERS = 28  # of a method and its model in a heading
PLACES = ("before Conv-1", "after Conv-1", "after instance norm")


def accuracy(rows: Sequence[Row], path: Path) -> Path:
    """Known-class localisation against the threshold; deletion and insertion, if measured."""
    found = [row.measured() for row in rows]
    keys = [key for key in ("deletion", "insertion") if key in found[0]]
    figure = canvas(5 * (1 + len(keys)), 3.6 + 0.2 * len(rows))
    axes = figure.subplots(1, 1 + len(keys), squeeze=False)[0]
    for i, (row, one) in enumerate(zip(rows, found, strict=True)):
        look: dict[str, Any] = {"color": RUNS[i % len(RUNS)], "label": row.name, "linewidth": 1.4}
        if row.method == CENTRE:
            look |= {"color": MUTED, "linestyle": (0, (3, 2)), "linewidth": 1.0}
        axes[0].plot(THRESHOLDS, one["by_threshold"]["known"], **look)
        axes[0].plot(one["threshold"], one["known"], "o", color=look["color"], markersize=4)
        for place, key in zip(axes[1:], keys, strict=True):
            curve = one["curves"][key]
            place.plot(np.linspace(0, 1, len(curve)), curve, **look)
    heading(axes[0], "objects found, %", "dots: the best threshold")
    axes[0].set_xlabel("threshold of the map", color=MUTED, fontsize=9)
    for place, key in zip(axes[1:], keys, strict=True):
        heading(place, f"{key}: probability of the class")
        place.set_xlabel("share of pixels", color=MUTED, fontsize=9)
    for place in axes:
        frame(place)
        place.set_ylim(bottom=0)
    lines, names = axes[0].get_legend_handles_labels()
    names = [shorten(name, 60) for name in names]
    drawn = figure.legend(
        lines, names, loc="outside lower left", frameon=False, fontsize=8.5, labelcolor=MUTED
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)
    return save(figure, path)


def examples(rows: Sequence[Row], path: Path) -> Path:
    """A row an image, a column a method and model: heat, true boxes, the box that was found."""
    rows = [row for row in rows if row.method != CENTRE]
    every = set.intersection(*(set(row.examples) for row in rows))
    tiles = [[with_boxes(row.examples[i], row) for row in rows] for i in sorted(every)]
    return sheet(tiles, [shorten(row.name, LETTERS) for row in rows], path)


def with_boxes(example: Example, row: Row) -> Image.Image:
    """True boxes by the class's name, and the one at the method's best threshold."""
    found = boxes(example.heat)[row.tally.best()]
    every = torch.cat([example.truth, found[None]]).numpy()
    labels = np.array([0] * len(example.truth) + [1])
    picture = overlay(example.image, example.heat, opacity=0.35)
    return with_objects(picture, every[::-1], labels[::-1], (example.name, "found"))


def heads(layers: Alike, path: Path) -> Path:
    """ResT's supplement, Fig. 1: similarity of the last layer's heads; and diversity by layer."""
    last = list(layers)[-1]
    figure = canvas(13.5, 3.6)
    *maps, lines = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.5))
    for axes, words, alike in zip(maps, PLACES, layers[last], strict=True):
        image = axes.imshow(alike.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        bare(axes)
        axes.set_xticks(range(len(alike)), map(str, range(1, len(alike) + 1)), fontsize=8)
        axes.set_yticks(range(len(alike)), map(str, range(1, len(alike) + 1)), fontsize=8)
        heading(axes, words, f"diversity {diversity(alike):.2f}")
    maps[0].set_ylabel(f"heads of {last}", color=MUTED, fontsize=9)
    figure.colorbar(image, ax=maps[-1], shrink=0.8).ax.tick_params(labelsize=8, colors=MUTED)
    by_layer(lines, layers)
    return save(figure, path)


def by_layer(axes: "Axes", layers: Alike) -> None:
    """Diversity at the three places of every layer."""
    places = range(1, len(layers) + 1)
    for i, words in enumerate(PLACES):
        values = [diversity(alike[i]) for alike in layers.values()]
        axes.plot(
            places, values, marker="o", markersize=3.5, color=(BLUE, BRICK, INK)[i], label=words
        )
    frame(axes)
    heading(axes, "diversity of heads")
    axes.set_xticks(places, layers, rotation=45, ha="right", fontsize=7, **plain())
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED)


def seeds(variances: Tensor, path: Path) -> Path:
    """HiViT, Fig. 2: the variance of attention between models, (images, layers)."""
    figure = canvas(max(4.0, 0.35 * variances.shape[1] + 2), 3.4)
    axes = figure.subplots()
    axes.boxplot(
        variances.numpy(), widths=0.5, patch_artist=True,
        boxprops={"facecolor": "#dbe5f2", "edgecolor": BLUE}, medianprops={"color": BRICK},
        whiskerprops={"color": BLUE}, capprops={"color": BLUE},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": MUTED},
    )  # fmt: skip
    frame(axes)
    heading(axes, "variance of attention between models", f"{len(variances)} images")
    axes.set_xlabel("attention layer", color=MUTED, fontsize=9)
    axes.set_ylim(bottom=0)
    return save(figure, path)
