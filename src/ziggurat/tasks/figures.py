"""Pictures of a classifier: what it takes for what, class by class and image by image."""

import math
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ziggurat.tasks.drawing import (
    BLUE,
    BRICK,
    DPI,
    FAINT,
    INK,
    MUTED,
    PAPER,
    TILE,
    bare,
    bars,
    canvas,
    enlarged,
    heading,
    named_ticks,
    notice,
    plain,
    rgb,
    save,
    say,
    shorten,
)

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

ANNOTATED, LABELLED = 20, 40  # classes up to which a matrix has numbers, and names
PAIRS, DOTS = 20, 250  # confused pairs that are listed; dots a side a matrix is drawn with
WORST, BEST = 20, 10  # classes shown of more than LABELLED
GAP, LINE, COLUMNS = 28, 29, 6  # pixels around an image, of a line of text
LETTER = 0.075  # inches of a letter in a tick label


def confusion(matrix: Tensor, classes: Sequence[str], path: Path, noun: str = "images") -> Path:
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
    heading(left, f"{100 * correct / max(images, 1):.4g} % of {images:,.0f} {noun} are right")
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
        confused_pairs(axes, counts, shares, classes, noun)
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


def confused_pairs(
    axes: "Axes", counts: Tensor, shares: Tensor, classes: Sequence[str], noun: str
) -> None:
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
        [f"{100 * float(shares[i, j]):.3g} %, {counts[i, j]:.0f} {noun}" for i, j in found],
        [BRICK] * len(found),
    )
    axes.set_ylim(PAIRS - 0.4, -0.6)
    if not found:
        say(axes, "nothing was confused")


def per_class(matrix: Tensor, classes: Sequence[str], path: Path, noun: str = "images") -> Path:
    """The accuracy of each class, worst first; of many classes the ends of that list."""
    counts = matrix.double().cpu()
    totals = counts.sum(1)
    accuracy = 100 * counts.diag() / totals.clamp_min(1)
    found = {i: float(accuracy[i]) for i in range(len(classes)) if totals[i] > 0}
    notes = {i: f"{counts[i, i]:.0f} of {totals[i]:.0f}" for i in found}
    overall = 100 * float(counts.diag().sum() / totals.sum().clamp_min(1))
    below = f"line: {overall:.4g} % of all {noun}"
    return by_class(found, notes, classes, overall, ("accuracy by class, %", below), path, noun)


def by_class(
    found: Mapping[int, float],
    notes: Mapping[int, str],
    classes: Sequence[str],
    overall: float,
    words: tuple[str, str],
    path: Path,
    noun: str = "images",
) -> Path:
    """Per cent of each class that was ``found``, worst first, and a line for them all.

    ``notes`` stand beside the numbers; ``words`` are the title and what is said of the line.
    """
    order = sorted(found, key=found.__getitem__)
    untested = len(classes) - len(order)
    shown: list[int | None] = list(order)
    if len(order) > LABELLED:
        shown = [*order[:WORST], None, *order[-BEST:]]
    figure = canvas(8, 0.23 * max(len(shown), 2) + 1)
    axes = figure.subplots()
    between = f"{len(order) - WORST - BEST} classes between these"
    bars(
        axes,
        [between if i is None else shorten(classes[i], 32) for i in shown],
        [0 if i is None else found[i] for i in shown],
        ["" if i is None else f"{found[i]:.1f}   {notes[i]}" for i in shown],
        [FAINT if i is None else BLUE if found[i] >= overall else BRICK for i in shown],
        column=103,
    )
    for label, i in zip(axes.get_yticklabels(), shown, strict=True):
        label.set(color=MUTED if i is None else INK, style="italic" if i is None else "normal")
    heading(axes, words[0], f"{untested} classes without {noun}" * bool(untested))
    if order:
        axes.axvline(overall, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 122)
        axes.set_xticks(range(0, 101, 20))
        axes.tick_params(axis="x", colors=MUTED, labelsize=8)
        axes.set_xlabel(words[1], color=MUTED, fontsize=9)
    else:
        say(axes, f"no class has {noun}")
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


def wrapped(caption: str) -> tuple[list[str], list[str]]:
    """Lines that fit under a tile: what was said, and what stands behind the dash."""
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in caption)
    said, _, was = caption.partition(" — ")
    first, second = (
        textwrap.wrap(part, 11 if wide else 21, max_lines=2, placeholder=" …")
        for part in (said, was)
    )
    return first, second
