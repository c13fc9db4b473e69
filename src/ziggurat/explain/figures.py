"""Explanations as pictures: GradCAT's boxes and trees (NesT, Fig. 3), heat over the image.

Everything is laid out in pixels of the finished picture, from its upper left corner. Nothing
touches matplotlib's global state, so that pictures can be made in any thread.
"""

import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from PIL import Image
from torch import Tensor

from ziggurat.explain.gradcat import Node
from ziggurat.explain.methods import Explanation

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

DPI = 144
INK, MUTED, FAINT, PAPER = "#22252b", "#6b7280", "#d5d8de", "#ffffff"
COLOURS = ("#e8590c", "#1c7ed6", "#2f9e44", "#9c36b5", "#f2b705", "#12a5a5", "#d6336c", "#7a5230")
CHILDREN = 4  # of every node of the tree
GAP, HEAD, LINE = 30, 46, 24  # pixels around parts, of a heading, of a line of text
ACROSS = 4  # images to a row
PICTURE, TILE = 620, 400  # longest side of an image, alone and among others
STEP, ROW, RADIUS = 92, 112, 31  # of a tree: between nodes, between levels, of a node
SMALL = 96  # pixels up to which each of them is worth seeing
WORDS = ("least to most evidence for the class", "least to most attention")
TITLES = {
    "gradcat": "GradCAT",
    "cam": "CAM",
    "gradcam++": "Grad-CAM++",
    "groupcam": "Group-CAM",
    "rollout": "attention rollout",
}


class Explained(Protocol):
    """What ``engine.explain`` gives, and a figure is made of."""

    @property
    def image(self) -> Image.Image:
        """What the model saw."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the explained classes."""

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of the same."""

    @property
    def found(self) -> Explanation:
        """Where their evidence lies."""


class Caption(NamedTuple):
    """A class: its name, how likely the model says it is, and its colour where it has one."""

    name: str
    share: str
    colour: str = PAPER


def figure(explained: Explained) -> Image.Image:
    """The finished picture."""
    both = zip(explained.names, explained.probabilities, strict=True)
    captions = [Caption(name, per_cent(share)) for name, share in both]
    if not explained.found.paths:
        return heats(explained.image, explained.found, captions)
    coloured = [one._replace(colour=COLOURS[i % len(COLOURS)]) for i, one in enumerate(captions)]
    return trees(explained.image, explained.found.paths, coloured)


def overlay(image: Image.Image, heat: Tensor, opacity: float = 0.5) -> Image.Image:
    """An image, its colours withdrawn, under a map (H, W) from 0, blue, to 1, red."""
    from matplotlib import colormaps

    grey = np.asarray(image.convert("L").convert("RGB"), np.float32) / 255
    pixels = np.asarray(image.convert("RGB"), np.float32) / 255
    values = Image.fromarray(heat.detach().cpu().float().numpy())
    size = image.size if values.size != image.size else None
    known = np.asarray(values if size is None else values.resize(size, Image.Resampling.BILINEAR))
    colours = colormaps["turbo"](known)[..., :3]
    mixed = (1 - opacity) * (0.5 * grey + 0.5 * pixels) + opacity * colours
    return Image.fromarray((mixed.clip(0, 1) * 255).round().astype(np.uint8))


def heats(image: Image.Image, found: Explanation, captions: Sequence[Caption]) -> Image.Image:
    """The image, and beside it a map for each class; one for all where they are the same."""
    alike = found.method == "rollout"
    shown = captions[:1] if alike else captions
    drawn = resized(image, TILE)
    tiles = [drawn, *(resized(overlay(image, heat), TILE) for heat in found.maps[: len(shown)])]
    rows = math.ceil(len(tiles) / ACROSS)
    columns = math.ceil(len(tiles) / rows)
    wide, high = max(drawn.width, 200), drawn.height + HEAD
    axes = sheet(GAP + columns * (wide + GAP), GAP + rows * (high + GAP) + LINE)
    for i, tile in enumerate(tiles):
        x, y = GAP + i % columns * (wide + GAP), GAP + i // columns * (high + GAP)
        place(axes, tile, x, y + HEAD)
        if i == 0:
            write(axes, x, y + HEAD - 14, "what the model saw", 15, MUTED)
        elif alike:
            write(axes, x, y + HEAD - 14, "for any class", 15, INK, weight="bold")
        else:
            heading(axes, x, y + HEAD - 14, wide, shown[i - 1])
    scale(axes, GAP, GAP + rows * (high + GAP), f"{TITLES[found.method]}: {WORDS[alike]}")
    return finished(axes)


def trees(
    image: Image.Image, paths: Sequence[Sequence[Node]], captions: Sequence[Caption]
) -> Image.Image:
    """Fig. 3: each class's boxes on the image, and its way down the tree with all values."""
    drawn = resized(image, PICTURE)
    depth = max(map(len, paths))
    wide, high = CHILDREN * STEP, HEAD + ROW * depth + 22
    down = max(1, round((drawn.height + GAP) / (high + GAP)))
    across = math.ceil(len(paths) / down)
    down = math.ceil(len(paths) / across)
    left = 2 * GAP + drawn.width
    height = max(drawn.height, down * (high + GAP) - GAP)
    axes = sheet(left + across * (wide + GAP) + GAP // 2, 2 * GAP + height + LINE)
    top = GAP + (height - drawn.height) // 2
    place(axes, drawn, GAP, top)
    for i, (path, caption) in enumerate(zip(paths, captions, strict=True)):
        boxes(axes, path, caption.colour, (GAP, top, drawn.width, drawn.height), i)
    unit = thousands([value for path in paths for node in path for value in node.values])
    for i, (path, caption) in enumerate(zip(paths, captions, strict=True)):
        x, y = left + i // down * (wide + GAP), GAP + i % down * (high + GAP)
        heading(axes, x, y + 18, wide, caption)
        tree(axes, path, caption.colour, x, y + HEAD, 10.0**-unit)
    times = f", in units of 10{str(unit).translate(SUPERSCRIPT)}" if unit else ""
    note = f"GradCAT: a node's value is the mean of activation · gradient of the logit{times}"
    write(axes, GAP, GAP + height + LINE + 6, note, 13, MUTED)
    return finished(axes)


def boxes(
    axes: "Axes", path: Sequence[Node], colour: str, frame: tuple[int, int, int, int], number: int
) -> None:
    """A path on the image: the leaf's frame is the widest; classes do not hide each other."""
    from matplotlib.patches import Rectangle

    left, top, width, height = frame
    for node in path:
        x0, y0, x1, y1 = node.box
        line = 2.5 + 2.5 * (node.level == len(path))
        least = min((x1 - x0) * width, (y1 - y0) * height)
        inset = 3 + number % len(COLOURS) * min(7, least / 24)
        corner = left + x0 * width + inset, top + y0 * height + inset
        sides = (x1 - x0) * width - 2 * inset, (y1 - y0) * height - 2 * inset
        for edge, points in ((PAPER, line + 2), (colour, line)):  # a rim, for any background
            wide = points * 72 / DPI
            axes.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=edge, linewidth=wide))


def tree(
    axes: "Axes", path: Sequence[Node], colour: str, left: float, top: float, scale: float
) -> None:
    """The root, its four children, the four of the one taken, and so on; values in the nodes."""
    from matplotlib.patches import Circle

    parent = left + CHILDREN * STEP / 2, top + 8.0
    axes.add_patch(Circle(parent, 7, facecolor=colour, edgecolor=PAPER, zorder=3))
    for node in path:
        y = top + node.level * ROW - 30
        places = [(left + (i + 0.5) * STEP, y) for i in range(CHILDREN)]
        low, high = min(node.values), max(node.values)
        for i, (spot, value) in enumerate(zip(places, node.values, strict=True)):
            taken = i == node.child
            edge, width = (colour, 2.2) if taken else (FAINT, 1.1)
            xs, ys = zip(parent, spot, strict=True)
            axes.plot(xs, ys, color=edge, linewidth=width, zorder=1 + taken)
            share = 1.0 if taken else 0.45 * (value - low) / ((high - low) or 1)
            fill = mixed(colour, share)
            axes.add_patch(Circle(spot, RADIUS, facecolor=fill, edgecolor=edge, zorder=3))
            text = PAPER if dark(fill) else INK
            weight = "bold" if taken else "normal"
            words = short(value * scale)
            write(axes, *spot, words, 14, text, weight=weight, ha="center", va="center")
            quarter(axes, spot[0] - 7, y + RADIUS + 6, i, colour if taken else MUTED)
        parent = places[node.child]


def quarter(axes: "Axes", x: float, y: float, child: int, colour: str) -> None:
    """A little square of four, one of them filled: which child this is."""
    from matplotlib.patches import Rectangle

    corner = x + 7 * (child % 2), y + 7 * (child // 2)
    for patch in (
        Rectangle((x - 3, y - 3), 20, 20, facecolor=PAPER, edgecolor="none"),  # clear of lines
        Rectangle((x, y), 14, 14, facecolor=PAPER, edgecolor=colour, linewidth=0.6),
        Rectangle(corner, 7, 7, facecolor=colour, edgecolor="none"),
    ):
        axes.add_patch(patch).set_zorder(4)


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def thousands(values: Sequence[float]) -> int:
    """The power of 1000, as one of 10, by which the largest value has one to three digits."""
    most = max(map(abs, values), default=0)
    return 3 * math.floor(math.log10(most) / 3) if most > 0 else 0


def short(value: float) -> str:
    """A value in three digits or so."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}".replace("-", "−")


def per_cent(share: float) -> str:
    """A probability, short."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


# The sheet, and what is put on it.


def sheet(width: int, height: int) -> "Axes":
    """Empty paper of so many pixels, as axes measured in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paper = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(paper)
    axes = paper.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_autoscale_on(False)  # images and lines leave the measure as it is
    return axes


def finished(axes: "Axes") -> Image.Image:
    """What is on the sheet; letters that no font has become boxes without ado."""
    canvas: Any = axes.figure.canvas
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def resized(image: Image.Image, longest: int) -> Image.Image:
    """An image with a long side of so many pixels; of a small one each stays to be seen."""
    factor = longest / max(image.size)
    small = max(image.size) <= SMALL
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.convert("RGB").resize(
        size, Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
    )


def place(axes: "Axes", image: Image.Image, x: float, y: float) -> None:
    """An image, pixel by pixel."""
    extent = (x, x + image.width, y + image.height, y)
    axes.imshow(np.asarray(image), extent=extent, interpolation="nearest", aspect="auto", zorder=0)


def write(
    axes: "Axes", x: float, y: float, words: str, pixels: int, colour: str, **how: Any
) -> None:
    """A line of text, its base at y; dollar signs are dollar signs."""
    size = pixels * 72 / DPI
    axes.text(
        x, y, words, fontsize=size, color=colour, parse_math=False, fontfamily=fonts(), zorder=5,
        **how,
    )  # fmt: skip


def fonts() -> list[str]:
    """The default one, then any for scripts that it cannot write."""
    from matplotlib.font_manager import fontManager

    scripts = ("CJK", "PingFang", "Hiragino", "YaHei", "Zen Hei", "Arial Unicode")
    others = [n for n in fontManager.get_font_names() if any(word in n for word in scripts)]
    return ["DejaVu Sans", *sorted(others)]


def heading(axes: "Axes", x: float, y: float, width: float, caption: Caption) -> None:
    """A class: its colour, its name as far as there is room, its probability on the right."""
    from matplotlib.patches import Rectangle

    left = 0
    if caption.colour != PAPER:
        left = 24
        axes.add_patch(Rectangle((x, y - 13), 15, 15, facecolor=caption.colour, edgecolor="none"))
    room = max(4, int((width - left - 62) / 9.6))
    name = textwrap.shorten(caption.name, room, placeholder="…")
    name = name if name != "…" else caption.name[: room - 1] + "…"
    write(axes, x + left, y, name, 16, INK, weight="bold")
    write(axes, x + width, y, caption.share, 15, MUTED, ha="right")


def scale(axes: "Axes", x: float, y: float, words: str) -> None:
    """The colours of heat, from least to most."""
    axes.imshow(
        np.linspace(0, 1, 128)[None], extent=(x, x + 128, y + 15, y + 3), cmap="turbo",
        aspect="auto", zorder=0,
    )  # fmt: skip
    write(axes, x + 140, y + 14, words, 13, MUTED)


def mixed(colour: str, share: float) -> str:
    """So much of a colour on white paper."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in parts)


def dark(colour: str) -> bool:
    """Whether white letters can be read on it better than black ones."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue < 150
