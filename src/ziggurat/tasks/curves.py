"""How a run went, and how several did: loss, learning rate and measures over its epochs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ziggurat.tasks.drawing import (
    BLUE,
    BRICK,
    INK,
    MUTED,
    canvas,
    dots,
    frame,
    heading,
    legend,
    notice,
    number,
    plain,
    save,
    say,
    shorten,
)

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

RUNS = (BLUE, BRICK, "#2e8b6a", "#8559ad", "#c4941a", "#3c9dc4", "#b0437c", "#5f6773")
FEW = 60  # points up to which a curve is not smoothed
LABELS = {
    "top1": "top-1 accuracy, %",
    "top5": "top-5 accuracy, %",
    "calibration_error": "calibration error, %",
    "explained": "hidden variance explained, %",
    "ap": "box AP, %",
    "ap50": "box AP at IoU 0.5, %",
    "ap75": "box AP at IoU 0.75, %",
    "ap_small": "box AP of small objects, %",
    "ap_medium": "box AP of medium objects, %",
    "ap_large": "box AP of large objects, %",
    "mask_ap": "mask AP, %",
    "mask_ap50": "mask AP at IoU 0.5, %",
    "mask_ap75": "mask AP at IoU 0.75, %",
    "mask_ap_small": "mask AP of small objects, %",
    "mask_ap_medium": "mask AP of medium objects, %",
    "mask_ap_large": "mask AP of large objects, %",
    "miou": "mean IoU, %",
    "iou": "IoU, %",
    "accuracy": "pixels right, %",
    "class_accuracy": "pixels right, mean of classes, %",
    "params_m": "million parameters",
    "flops_g": "billion multiply-adds",
    "images": "images measured",
    "fid": "FID",
    "kid": "KID",
    "variety": "distance of samples, % of real images'",
}
LESS = frozenset({"fid", "kid"})  # of these, less is better
BESIDE = ("step", "epoch", "minutes", "lr", "grad_norm", "images_per_s", "waiting")


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


def worth(key: str, value: float) -> float:
    """More of it is better."""
    return -value if key in LESS else value


def draw_measure(
    axes: "Axes",
    trained: Sequence[Mapping[str, Any]],
    tested: Sequence[Mapping[str, Any]],
    key: str,
    marked: bool,
) -> None:
    """One measure on held-out data, and on training data where that is logged.

    ``marked``: what is best is known, and can be pointed at.
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
        at = int((-y if key in LESS else y).argmax())
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
    order = sorted(found, key=lambda name: worth(main, ends[name]), reverse=True)
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
