"""Pictures of a run: what was learned, where it goes wrong, how it went.

Names of classes and runs come from files and may hold anything: no text here is read as TeX.
Nothing touches matplotlib's global state, so that pictures can be made in any thread.
"""

import math
import textwrap
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
INK, MUTED, FAINT, PAPER = "#22252b", "#6b7280", "#e4e6ea", "#ffffff"
BLUE, BRICK = "#2f5f9e", "#c2552d"  # trained and right, tested and wrong
RUNS = (BLUE, BRICK, "#2e8b6a", "#8559ad", "#c4941a", "#3c9dc4", "#b0437c", "#5f6773")
SCRIPTS = (  # fonts for class names that the default one cannot write, where installed
    "Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei",
    "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip

ANNOTATED, LABELLED = 20, 40  # classes up to which a matrix has numbers, and names
PAIRS, DOTS = 20, 250  # confused pairs that are listed; dots a side a matrix is drawn with
WORST, BEST = 20, 10  # classes shown of more than LABELLED
TILE, GAP, LINE, COLUMNS = 288, 28, 29, 6  # pixels of an image, around it, of a line of text
FEW = 60  # points up to which a curve is not smoothed
SMALL = 96  # pixels up to which each of them is worth seeing
LETTER = 0.075  # inches of a letter in a tick label

LABELS = {
    "top1": "top-1 accuracy, %",
    "top5": "top-5 accuracy, %",
    "calibration_error": "calibration error, %",
    "images": "images measured",
}
BESIDE = ("step", "epoch", "minutes", "lr", "grad_norm", "images_per_s", "waiting")


# What the model gets wrong.


def confusion(matrix: Tensor, classes: Sequence[str], path: Path) -> Path:
    """How often each class, a row, was taken for which: ``matrix`` counts them, (C, C).

    Right answers are blue, wrong ones red, the darker the larger their share of the row. Many
    classes have no room for numbers and names: the pairs most confused are listed instead.
    """
    counts = matrix.double().cpu()
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    named, listed = len(classes) <= LABELLED, len(classes) > ANNOTATED
    cell = cell_side(len(classes))
    side = len(classes) * cell if named else 6.0
    names = [shorten(name, 20) for name in classes] if named else []
    longest = LETTER * max(map(len, names), default=0)
    margin = longest + 0.7
    figure = canvas(max(side + margin, 3.6) + (6.2 if listed else 0), side + margin)
    left, *right = figure.subplots(
        1, 1 + listed, squeeze=False, width_ratios=(side, 3) if listed else None
    )[0]
    left.imshow(colours(shares), interpolation="nearest")
    left.set_anchor("N")
    bare(left)
    correct, images = float(counts.diag().sum()), float(counts.sum())
    heading(left, f"{100 * correct / max(images, 1):.4g} % of {images:,.0f} images are right")
    turn: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    places = range(len(names))
    left.set_xticks(places, names, **named_ticks(), **(turn if longest > cell else {}))
    left.set_yticks(places, names, **named_ticks())
    dot = math.ceil(len(classes) / DOTS)
    about = f" (a dot: the largest of {dot} × {dot} cells)" if dot > 1 else ""
    left.set_xlabel(f"the model's answer{about}", color=MUTED, fontsize=9)
    left.set_ylabel("true class", color=MUTED, fontsize=9)
    if not listed:
        annotate(left, counts, shares)
    for axes in right:
        confused_pairs(axes, counts, shares, classes)
    return save(figure, path)


def cell_side(classes: int) -> float:
    """Inches for a cell of a matrix with names."""
    if classes <= 4:
        return 1.1
    return 0.52 if classes <= 12 else 0.4 if classes <= ANNOTATED else 0.2


def colours(shares: Tensor) -> np.ndarray:
    """The matrix as (C, C, 3); of many classes the largest of each few cells."""
    wrong = shares.clone().fill_diagonal_(0).sqrt()  # a few per cent are seen, too
    right = shares.diag().diag()
    dot = math.ceil(len(shares) / DOTS)
    wrong, right = (
        F.max_pool2d(part[None], dot, ceil_mode=True)[0][..., None] for part in (wrong, right)
    )
    blue, brick = rgb(BLUE), rgb(BRICK)
    mixed = 1 - right.numpy() * (1 - blue) - np.where(right > 0, 0, wrong) * (1 - brick)
    return np.asarray(mixed)


def annotate(axes: "Axes", counts: Tensor, shares: Tensor) -> None:
    """Write each cell's count, and its share where there is room."""
    few = len(counts) <= 4
    size = 12 if few else 8 if len(counts) <= 12 else 6.5
    for i, j in counts.nonzero().tolist():
        count, share = float(counts[i, j]), float(shares[i, j])
        dark = share > 0.5 if i == j else math.sqrt(share) > 0.6
        text = f"{count:.0f}" if count < 10_000 else f"{count / 1000:.0f}k"
        if few:
            text += f"\n{100 * share:.3g} %"
        colour = PAPER if dark else INK
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color=colour)


def confused_pairs(axes: "Axes", counts: Tensor, shares: Tensor, classes: Sequence[str]) -> None:
    """A bar for each of the pairs that are most often confused."""
    wrong = counts.clone().fill_diagonal_(0).flatten()
    wrong = wrong + shares.flatten() * 1e-6  # among equals the rarer class
    found = [
        (i // len(classes), i % len(classes))
        for i in wrong.topk(min(PAIRS, len(wrong))).indices.tolist()
        if counts.flatten()[i] > 0 and i // len(classes) != i % len(classes)
    ]
    heading(axes, "most often confused")
    axes.set_xlabel("true class → the model's answer", color=MUTED, fontsize=9)
    bars(
        axes,
        [f"{shorten(classes[i], 18)} → {shorten(classes[j], 18)}" for i, j in found],
        [100 * float(shares[i, j]) for i, j in found],
        [f"{100 * float(shares[i, j]):.3g} %, {counts[i, j]:.0f} images" for i, j in found],
        [BRICK] * len(found),
    )
    axes.set_ylim(PAIRS - 0.4, -0.6)
    if not found:
        say(axes, "nothing was confused")


def per_class(matrix: Tensor, classes: Sequence[str], path: Path) -> Path:
    """The accuracy of each class, worst first; of many classes the ends of that list."""
    counts = matrix.double().cpu()
    totals = counts.sum(1)
    accuracy = 100 * counts.diag() / totals.clamp_min(1)
    order = [i for i in accuracy.argsort(stable=True).tolist() if totals[i] > 0]
    untested = len(classes) - len(order)
    shown: list[int | None] = list(order)
    if len(order) > LABELLED:
        shown = [*order[:WORST], None, *order[-BEST:]]
    figure = canvas(8, 0.23 * max(len(shown), 2) + 1)
    axes = figure.subplots()
    overall = 100 * float(counts.diag().sum() / totals.sum().clamp_min(1))
    between = f"{len(order) - WORST - BEST} classes between these"
    bars(
        axes,
        [between if i is None else shorten(classes[i], 32) for i in shown],
        [0 if i is None else float(accuracy[i]) for i in shown],
        [
            "" if i is None else f"{float(accuracy[i]):.1f}   {counts[i, i]:.0f} of {totals[i]:.0f}"
            for i in shown
        ],
        [FAINT if i is None else BLUE if accuracy[i] >= overall else BRICK for i in shown],
        column=103,
    )
    for label, i in zip(axes.get_yticklabels(), shown, strict=True):
        label.set(color=MUTED if i is None else INK, style="italic" if i is None else "normal")
    heading(axes, "accuracy by class, %", f"{untested} classes without images" * bool(untested))
    if order:
        axes.axvline(overall, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 122)
        axes.set_xticks(range(0, 101, 20))
        axes.tick_params(axis="x", colors=MUTED, labelsize=8)
        axes.set_xlabel(f"line: {overall:.4g} % of all images", color=MUTED, fontsize=9)
    else:
        say(axes, "no class has images")
    return save(figure, path)


def mistakes(images: Sequence[Image.Image], captions: Sequence[str], path: Path) -> Path:
    """The images in a grid, each over its caption: ``cat 97 % — was dog``."""
    if not images:
        return notice("no mistakes: every test image was classified correctly", path)
    tiles = [enlarged(image) for image in images]
    texts = [wrapped(caption) for caption in captions]
    rows = math.ceil(len(tiles) / COLUMNS)
    across = math.ceil(len(tiles) / rows)
    lines = [list(range(i, min(i + across, len(tiles)))) for i in range(0, len(tiles), across)]
    heights = [
        (max(tiles[i].height for i in row), LINE * max(sum(map(len, texts[i])) for i in row) + 12)
        for row in lines
    ]
    width = GAP + across * (TILE + GAP)
    height = GAP + sum(tile + text + GAP for tile, text in heights)
    figure = canvas(width / DPI, height / DPI, fitted=False)
    top = GAP
    for row, (tile_height, text_height) in zip(lines, heights, strict=True):
        for column, i in enumerate(row):
            x, bottom = GAP + column * (TILE + GAP), top + tile_height
            figure.figimage(np.asarray(tiles[i]), x, height - bottom)
            said, was = texts[i]
            for k, words in enumerate([*said, *was]):
                y = bottom + 10 + k * LINE
                figure.text(
                    x / width, 1 - y / height, words, va="top", fontsize=10,
                    color=INK if k < len(said) else MUTED, **plain(),
                )  # fmt: skip
        top += tile_height + text_height + GAP
    return save(figure, path)


def enlarged(image: Image.Image) -> Image.Image:
    """As large as a tile; a small one by whole pixels, so that they are seen as they are."""
    image = image.convert("RGB")
    longest = max(image.size)
    if longest <= SMALL:
        scale = TILE // longest
        width, height = (side * scale for side in image.size)
        image = image.resize((width, height), Image.Resampling.NEAREST)
    else:
        width, height = (max(1, round(side * TILE / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3)
    return ImageOps.expand(image, border=2, fill=FAINT)  # white on white has an edge, too


def wrapped(caption: str) -> tuple[list[str], list[str]]:
    """Lines that fit under a tile: what was said, and what stands behind the dash."""
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in caption)
    said, _, was = caption.partition(" — ")
    first, second = (
        textwrap.wrap(part, 11 if wide else 21, max_lines=2, placeholder=" …")
        for part in (said, was)
    )
    return first, second


# How a run went.


def curves(history: Sequence[Mapping[str, Any]], path: Path, main: str | None = None) -> Path:
    """Loss and learning rate, and the measure ``main`` on held-out data, over the epochs.

    ``history`` is metrics.jsonl. Without ``main`` it is top1 or the first measure there is.
    """
    if not history:
        return notice("nothing was logged yet", path)
    trained, tested = parts(history)
    key = main or main_measure([history])
    figure = canvas(10.4, 4.2)
    grid = figure.add_gridspec(2, 2, height_ratios=(4, 1), width_ratios=(1.1, 1))
    above = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=above)
    right = figure.add_subplot(grid[:, 1])
    draw_loss(above, trained, tested)
    draw_rate(below, trained)
    draw_measure(right, trained, tested, key, marked=key in (main, "top1"))
    end = max(line["epoch"] for line in history)
    for axes in (above, right):
        axes.set_xlim(0, 1.02 * end or 1)
    return save(figure, path)


def draw_loss(
    axes: "Axes", trained: Sequence[Mapping[str, Any]], tested: Sequence[Mapping[str, Any]]
) -> None:
    """Training loss as logged and smoothed, test loss beside it."""
    keys = [key for line in trained[:1] for key in line if key not in BESIDE]
    key = "loss" if "loss" in keys or not keys else keys[0]
    x, y = series(trained, key)
    heading(axes, label_of(key))
    frame(axes)
    axes.tick_params(labelbottom=False)
    if not len(x):
        say(axes, "no step was logged yet")
        return
    smooth = smoothed(y)
    axes.plot(x, y, color=BLUE, alpha=0.25, linewidth=0.8)
    axes.plot(x, smooth, color=BLUE, linewidth=1.6, label="training", **dots(x))
    shown = [smooth, without_spikes(y)]
    test_x, test_y = measured(tested, key, "epoch")
    if len(test_x):
        axes.plot(test_x, test_y, color=BRICK, linewidth=1.4, label="test", **dots(test_x))
        shown.append(test_y)
    low, high = (float(pick(np.concatenate(shown))) for pick in (np.min, np.max))
    if low > 0 and float(smooth.max() / smooth.min()) > 20:
        axes.set_yscale("log")
    elif high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    legend(axes)


def draw_rate(axes: "Axes", trained: Sequence[Mapping[str, Any]]) -> None:
    """The learning rate, a thin strip."""
    x, y = series(trained, "lr")
    frame(axes)
    axes.set_xlabel("epoch", color=MUTED, fontsize=9)
    if len(x):
        axes.fill_between(x, y, color=MUTED, alpha=0.15, linewidth=0)
        axes.plot(x, y, color=MUTED, linewidth=1.2, **dots(x, few=2))
        peak = float(y.max())
        axes.set_ylim(0, peak * 1.15 or 1)
        axes.set_yticks([0, peak], ["0", f"{peak:.3g}"])
        axes.set_title("learning rate", loc="left", fontsize=8.5, color=MUTED)
    else:
        say(axes, "")


def draw_measure(
    axes: "Axes",
    trained: Sequence[Mapping[str, Any]],
    tested: Sequence[Mapping[str, Any]],
    key: str,
    marked: bool,
) -> None:
    """One measure on held-out data, and on training data where that is logged.

    ``marked``: more of it is better, so that the best can be pointed at.
    """
    x, y = measured(tested, key, "epoch")
    frame(axes)
    axes.set_xlabel("epoch", color=MUTED, fontsize=9)
    if not len(x):
        heading(axes, label_of(key))
        say(axes, "nothing was measured yet")
        return
    train_x, train_y = series(trained, key)
    if len(train_x):
        axes.plot(
            train_x, smoothed(train_y), color=BLUE, alpha=0.55, linewidth=1.2, label="training"
        )
    axes.plot(x, y, color=BRICK, linewidth=1.6, label="test", **dots(x))
    aside = f"at the end {number(y[-1])}"
    if marked:
        at = int(y.argmax())
        axes.plot(x[at], y[at], "o", color="none", markersize=10, markeredgecolor=BRICK)
        best = f"best {number(y[at])} at epoch {x[at]:.4g}"
        aside = best if at == len(y) - 1 else f"{best}, {aside}"
    heading(axes, label_of(key), aside)
    legend(axes)


def compare(
    histories: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, main: str | None = None
) -> Path:
    """One measure of several runs over the epochs, and over minutes where they were logged."""
    main = main or main_measure(list(histories.values()))
    tested = {name: parts(history)[1] for name, history in histories.items()}
    found = {n: lines for n, lines in tested.items() if len(measured(lines, main, "epoch")[0])}
    if not found:
        return notice("nothing was measured yet", path)
    ends = {name: measured(lines, main, "epoch")[1][-1] for name, lines in found.items()}
    order = sorted(found, key=lambda name: ends[name], reverse=True)
    timed = any(len(measured(lines, main, "minutes")[0]) for lines in found.values())
    axis = {"epoch": "epochs"} | ({"minutes": "minutes"} if timed else {})
    figure = canvas(4.6 * len(axis) + 2.6, max(3.8, 0.21 * len(order) + 1))
    panels = figure.subplots(1, len(axis), sharey=True, squeeze=False)[0]
    for axes, (key, word) in zip(panels, axis.items(), strict=True):
        frame(axes)
        axes.set_xlabel(word, color=MUTED, fontsize=9)
        heading(axes, label_of(main) if key == "epoch" else "")
        for i, name in enumerate(order):
            x, y = measured(found[name], main, key)
            axes.plot(
                x, y, color=RUNS[i % len(RUNS)], linewidth=1.6, **dots(x, few=12),
                linestyle=("-", "--", ":", "-.")[i // len(RUNS) % 4],
            )  # fmt: skip
        axes.set_xlim(left=0)
    box = figure.legend(
        panels[0].get_lines(),
        [f"{number(ends[name])}   {shorten(name, 28)}" for name in order],
        title="at the end",
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=9,
    )
    box.get_title().set(color=MUTED, fontsize=9)
    for text in box.get_texts():
        text.set(color=INK, **plain())
    return save(figure, path)


# What a history says.


def parts(
    history: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Lines of training steps, lines of evaluations."""
    return [line for line in history if "test" not in line], [
        line for line in history if "test" in line
    ]


def main_measure(histories: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """top1, or else the first measure that is neither a loss nor a count."""
    keys = [key for history in histories for line in history for key in line.get("test", ())]
    plain_ones = [key for key in keys if key not in ("loss", "images")]
    return "top1" if "top1" in keys or not keys else (plain_ones or keys)[0]


def measured(
    lines: Sequence[Mapping[str, Any]], key: str, axis: str
) -> tuple[np.ndarray, np.ndarray]:
    """A test measure over epochs or minutes."""
    return series([line["test"] | {axis: line.get(axis)} for line in lines], key, axis)


def series(
    lines: Sequence[Mapping[str, Any]], key: str, axis: str = "epoch"
) -> tuple[np.ndarray, np.ndarray]:
    """A key's values and where they were logged, without those that are no numbers."""
    found = [
        (line[axis], line[key])
        for line in lines
        if isinstance(line.get(axis), int | float)
        and isinstance(line.get(key), int | float)
        and math.isfinite(line[key])
    ]
    points = np.asarray(found, dtype=float).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def smoothed(values: np.ndarray) -> np.ndarray:
    """A mean over neighbours, the nearer the heavier; few values are left as they are."""
    width = len(values) // FEW
    if not width:
        return values
    weights = np.exp(-0.5 * np.linspace(-2.5, 2.5, 4 * width + 1) ** 2)
    total = np.convolve(without_spikes(values), weights, mode="same")
    smooth: np.ndarray = total / np.convolve(np.ones(len(values)), weights, mode="same")
    return smooth


def without_spikes(values: np.ndarray) -> np.ndarray:
    """Cut down to what about 99 in 100 keep to: a spike shall not flatten the rest."""
    if len(values) < FEW:
        return values
    cut, order = -(-len(values) // 200), np.sort(values)
    return values.clip(order[cut], order[-1 - cut])


def label_of(key: str) -> str:
    """A measure's name for people."""
    return LABELS.get(key, key.replace("_", " "))


def number(value: float) -> str:
    """Two decimals, or four digits of what is small."""
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.4g}"


# How it is drawn.


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


def shorten(name: str, letters: int) -> str:
    """A name on one line of so many letters."""
    name = " ".join(name.split())
    return name if len(name) <= letters else name[: letters - 1].rstrip(" ,") + "…"


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


def rgb(colour: str) -> np.ndarray:
    """Three numbers of 0..1."""
    from matplotlib.colors import to_rgb

    return np.asarray(to_rgb(colour))
