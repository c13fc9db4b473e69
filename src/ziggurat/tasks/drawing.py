"""What pictures are drawn with: a sheet, its colours, and the marks and words on it.

Names of classes and runs come from files and may hold anything: no text here is read as TeX.
Nothing touches matplotlib's global state, so that pictures can be made in any thread.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
INK, MUTED, FAINT, PAPER = "#22252b", "#6b7280", "#e4e6ea", "#ffffff"
BLUE, BRICK = "#2f5f9e", "#c2552d"  # trained and right, tested and wrong
SCRIPTS = (  # fonts for class names that the default one cannot write, where installed
    "Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei",
    "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip
TILE = 288  # pixels of an image
SMALL = 96  # pixels up to which each of them is worth seeing


def canvas(width: float, height: float, fitted: bool = True) -> "Figure":
    """An empty figure, in inches; ``fitted`` makes room for titles and labels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1) if fitted else None
    return Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER, layout=layout)


def save(figure: "Figure", path: Path) -> Path:
    """Write it as PNG; letters that no font has become boxes without ado."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(path, format="png", dpi=DPI)
    return path


def plain() -> dict[str, Any]:
    """For texts that users give: dollar signs are dollar signs, and most scripts are there."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in SCRIPTS if name in installed)]
    return {"parse_math": False, "fontfamily": fonts}


def named_ticks() -> dict[str, Any]:
    """Tick labels that are names of classes."""
    return {"fontsize": 8, "color": INK} | plain()


def heading(axes: "Axes", text: str, aside: str = "") -> None:
    """A title on the left, and a remark on the right."""
    axes.set_title(text, loc="left", fontsize=10, color=INK, fontweight="bold", **plain())
    if aside:
        axes.set_title(aside, loc="right", fontsize=8.5, color=MUTED, **plain())


def frame(axes: "Axes") -> None:
    """Quiet axes with a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=MUTED, labelsize=8, length=0)


def bare(axes: "Axes") -> None:
    """No frame and no tick marks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def bars(
    axes: "Axes",
    names: Sequence[str],
    values: Sequence[float],
    texts: Sequence[str],
    fills: Sequence[str],
    column: float | None = None,
) -> None:
    """Horizontal bars, the first on top, with texts at their ends or in a column."""
    places = range(len(names))
    axes.barh(places, values, height=0.66, color=fills)
    reach = max([*values, 1])
    for y, value, text in zip(places, values, texts, strict=True):
        x = value + reach * 0.03 if column is None else column
        axes.text(x, y, text, va="center_baseline", fontsize=8, color=MUTED)
    axes.set_yticks(places, names, **named_ticks())
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, reach * 1.5)
    axes.set_xticks([])
    bare(axes)


def dots(x: np.ndarray, few: int = 40) -> dict[str, Any]:
    """Markers where there are so few points that a line would hide them."""
    return {"marker": "o", "markersize": 3.5} if len(x) <= few else {}


def legend(axes: "Axes") -> None:
    """Without a frame, where there is room, if there is more than one line."""
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=8.5, labelcolor=MUTED)


def notice(text: str, path: Path) -> Path:
    """A picture that says why there is none."""
    figure = canvas(8, 1.6)
    say(figure.subplots(), text)
    return save(figure, path)


def say(axes: "Axes", text: str) -> None:
    """A sentence in place of a picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes)
    axes.grid(False)
    axes.set_xlabel("")
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=11,
        color=MUTED,
    )  # fmt: skip


def sheet(
    rows: Sequence[Sequence[Image.Image]], heads: Sequence[str], path: Path, tile: int = TILE
) -> Path:
    """Images in rows, a heading over each column; the long side of each has ``tile`` pixels."""
    tiles = [[enlarged(image, tile) for image in row] for row in rows]
    top, gap = 34, 14
    heights = [max(tile.height for tile in row) for row in tiles]
    width = gap + len(heads) * (tile + gap)
    height = top + sum(heights) + gap * len(heights)
    figure = canvas(width / DPI, height / DPI, fitted=False)
    for i, head in enumerate(heads):
        x = (gap + i * (tile + gap)) / width
        figure.text(x, 1 - 8 / height, head, va="top", fontsize=9.5, color=MUTED, **plain())
    below = top
    for row, tall in zip(tiles, heights, strict=True):
        below += tall
        for i, image in enumerate(row):
            figure.figimage(np.asarray(image), gap + i * (tile + gap), height - below)
        below += gap
    return save(figure, path)


def enlarged(image: Image.Image, tile: int = TILE) -> Image.Image:
    """As large as a tile; a small one by whole pixels, so that they are seen as they are."""
    image = image.convert("RGB")
    longest = max(image.size)
    if longest <= SMALL:
        scale = tile // longest
        width, height = (side * scale for side in image.size)
        image = image.resize((width, height), Image.Resampling.NEAREST)
    else:
        width, height = (max(1, round(side * tile / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3)
    return ImageOps.expand(image, border=2, fill=FAINT)  # white on white has an edge, too


def rgb(colour: str) -> np.ndarray:
    """Three numbers of 0..1."""
    from matplotlib.colors import to_rgb

    return np.asarray(to_rgb(colour))


def shorten(name: str, letters: int) -> str:
    """A name on one line of so many letters."""
    name = " ".join(name.split())
    return name if len(name) <= letters else name[: letters - 1].rstrip(" ,") + "…"


def number(value: float) -> str:
    """Two decimals, or four digits of what is small."""
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4g}"
