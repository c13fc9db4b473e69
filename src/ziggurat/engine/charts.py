"""Pictures of what ``localise`` and ``analyse`` found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from ziggurat.engine.analyse import Alike
from ziggurat.engine.localise import CENTRE, Row
from ziggurat.explain.attention import diversity
from ziggurat.explain.figures import overlay
from ziggurat.explain.localise import THRESHOLDS, boxes
from ziggurat.tasks.curves import RUNS
from ziggurat.tasks.drawing import (
    BLUE,
    BRICK,
    INK,
    MUTED,
    SMALL,
    TILE,
    bare,
    canvas,
    frame,
    heading,
    plain,
    save,
    sheet,
    shorten,
)

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

LETTERS = 20  # of a method and its model in a heading
FOUND = ("pink", "#ff2fd0")  # no colour of heat
STYLES = ("-", "--", ":", "-.")  # a model's lines
PLACES = ("before Conv-1", "after Conv-1", "after instance norm")


def accuracy(rows: Sequence[Row], path: Path) -> Path:
    """Known-class localisation against the threshold; deletion and insertion, if measured."""
    found = [row.measured() for row in rows]
    keys = [key for key in ("deletion", "insertion") if key in found[0]]
    figure = canvas(5 * (1 + len(keys)), 3.4 + 0.2 * len(rows))
    axes = figure.subplots(1, 1 + len(keys), squeeze=False)[0]
    models, methods = (
        list(dict.fromkeys(one[key] for one in found)) for key in ("model", "method")
    )
    methods.remove(CENTRE)
    for row, one in zip(rows, found, strict=True):
        style = STYLES[models.index(row.model) % len(STYLES)]
        look: dict[str, Any] = {"label": shorten(row.name, 60), "linestyle": style}
        if row.method == CENTRE:
            look |= {"color": MUTED, "linewidth": 0.9}
        else:
            look |= {"color": RUNS[methods.index(row.method)], "linewidth": 1.5}
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
    drawn = figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower left", frameon=False,
        ncols=min(len(models), 1 + len(keys)), fontsize=8.5, labelcolor=MUTED, handlelength=3,
    )  # fmt: skip
    for text in drawn.get_texts():
        text.set_parse_math(False)
    return save(figure, path)


def examples(rows: Sequence[Row], path: Path) -> Path:
    """A row an image, a column a method and model: heat, true boxes, the box that was found."""
    rows = [row for row in rows if row.method != CENTRE]
    every = sorted(set.intersection(*(set(row.examples) for row in rows)))
    tiles = []
    for i in every:
        first = rows[0].examples[i]
        tiles.append([framed(first.image, first.truth)])
        for row in rows:
            one = row.examples[i]
            found = boxes(one.heat)[row.tally.best()]
            tiles[-1].append(framed(overlay(one.image, one.heat), one.truth, found))
    heads = [f"white: true, {FOUND[0]}: found", *map(head, rows)]
    return sheet(tiles, heads, path)


def head(row: Row) -> str:
    """Its method, and as much of the end of its model's name as there is room for."""
    room = LETTERS - len(row.method)
    return f"{row.method}  {row.model if len(row.model) <= room else '…' + row.model[1 - room :]}"


def framed(picture: Image.Image, truth: Tensor, found: Tensor | None = None) -> Image.Image:
    """An image as large as a tile with boxes; rims make them seen on any ground."""
    scale = TILE / max(picture.size)
    how = Image.Resampling.NEAREST if max(picture.size) <= SMALL else Image.Resampling.BICUBIC
    size = round(picture.width * scale), round(picture.height * scale)
    drawn = picture.convert("RGB").resize(size, how)
    pen = ImageDraw.Draw(drawn)
    coloured = [(box, "white") for box in truth] + [(found, FOUND[1])] * (found is not None)
    for box, colour in coloured:
        x0, y0, x1, y1 = (round(float(side) * scale) for side in box)
        if x1 - x0 > 4 and y1 - y0 > 4:
            pen.rectangle((x0, y0, x1 - 1, y1 - 1), outline="black", width=5)
            pen.rectangle((x0 + 1, y0 + 1, x1 - 2, y1 - 2), outline=colour, width=3)
    return drawn


def heads(layers: Alike, path: Path) -> Path:
    """ResT's supplement, Fig. 1: similarity of the last layer's heads; and diversity by layer."""
    last = list(layers)[-1]
    figure = canvas(15, 3.6)
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
    figure = canvas(max(5.5, 0.35 * variances.shape[1] + 2), 3.4)
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
