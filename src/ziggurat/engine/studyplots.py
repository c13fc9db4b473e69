"""Pictures of studies in the manner of the papers': rows, lines, curves, cost; and of verdicts."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ziggurat.engine.reproduce import Judged, Trained, spread
from ziggurat.engine.studies import Arm, recipe_of
from ziggurat.engine.verdicts import FAILS, HOLDS, UNDECIDED
from ziggurat.tasks.curves import LABELS, RUNS
from ziggurat.tasks.drawing import (
    BLUE,
    BRICK,
    FAINT,
    INK,
    MUTED,
    canvas,
    frame,
    heading,
    legend,
    named_ticks,
    save,
    shorten,
)

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

COLOURS = {HOLDS: BLUE, FAILS: BRICK, UNDECIDED: MUTED}
LETTERS = 46  # of a row's name
WIDEST = 20  # points; intervals of few seeds may leave the picture


def draw(how: str, found: Trained, path: Path) -> Path | None:
    """A study's picture, of the arms that have results; None if there are none."""
    ways: dict[str, Callable[[Trained, Path], Path]] = {
        "rows": rows, "lines": lines, "curves": curves, "cost": cost,
    }  # fmt: skip
    return ways[how](found, path) if any(found.values(arm.id) for arm in found.arms) else None


def label(found: Trained) -> str:
    """What is measured."""
    return LABELS.get(found.study.measure, found.study.measure)


def series(found: Trained) -> list[str]:
    """Kinds of arms, each in its colour."""
    return list(dict.fromkeys(arm.series for arm in found.arms))


def rows(found: Trained, path: Path) -> Path:
    """A line for each row: seeds as dots, their mean and its interval; series side by side."""
    names = list(dict.fromkeys(arm.at or arm.label for arm in found.arms))
    kinds = series(found)
    figure = canvas(7.6, 0.9 + 0.28 * len(names) * (0.5 + 0.5 * len(kinds)))
    axes = figure.subplots()
    for arm in found.arms:
        values = found.values(arm.id)
        if not values:
            continue
        kind = kinds.index(arm.series)
        y = names.index(arm.at or arm.label) + 0.3 * (kind - (len(kinds) - 1) / 2)
        name = arm.series if arm.series not in axes.get_legend_handles_labels()[1] else ""
        one(axes, values, y, RUNS[kind], name)
    axes.set_yticks(range(len(names)), [shorten(name, LETTERS) for name in names], **named_ticks())
    axes.set_ylim(len(names) - 0.4, -0.6)
    frame(axes)
    axes.set_xlabel(label(found), color=MUTED, fontsize=9)
    heading(axes, shorten(found.study.title, 60), f"{seeds(found)}, interval of the mean at 95 %")
    legend(axes)
    return save(figure, path)


def one(axes: "Axes", values: Sequence[float], y: float, colour: str, name: str) -> None:
    """An arm's seeds, mean and interval on a line."""
    found = spread(values)
    assert found is not None
    if len(values) > 1:
        axes.plot((found.low, found.high), (y, y), color=colour, linewidth=1.4, alpha=0.5)
    axes.plot(values, [y] * len(values), "o", color=colour, markersize=3, alpha=0.55)
    axes.plot(found.value, y, "D", color=colour, markersize=5, label=name or None)


def seeds(found: Trained) -> str:
    """How many were drawn."""
    most = max(len(found.values(arm.id)) for arm in found.arms)
    return f"{most} seed" + "s" * (most != 1)


def lines(found: Trained, path: Path) -> Path:
    """Means against what arms differ in, a line for each series."""
    figure = canvas(6.4, 3.6)
    axes = figure.subplots()
    for kind, colour in zip(series(found), RUNS, strict=False):
        arms = [arm for arm in found.arms if arm.series == kind and found.values(arm.id)]
        x = [float(arm.at) for arm in arms]
        means = [statistics.fmean(found.values(arm.id)) for arm in arms]
        axes.plot(x, means, "-D", color=colour, markersize=5, linewidth=1.5, label=kind or None)
        for place, arm in zip(x, arms, strict=True):
            values = found.values(arm.id)
            axes.plot([place] * len(values), values, "o", color=colour, markersize=3, alpha=0.5)
    frame(axes)
    axes.set_xlabel(found.study.x, color=MUTED, fontsize=9)
    axes.set_ylabel(label(found), color=MUTED, fontsize=9)
    heading(axes, shorten(found.study.title, 48), seeds(found))
    legend(axes)
    return save(figure, path)


def curves(found: Trained, path: Path) -> Path:
    """Loss and accuracy on what is trained with, over the steps, each seed a line."""
    figure = canvas(9.6, 3.4)
    panels = figure.subplots(1, 2)
    for axes, key in zip(panels, ("loss", "top1"), strict=True):
        for arm, colour in zip(found.arms, RUNS, strict=False):
            for at, result in enumerate(found.results.get(arm.id, ())):
                logged = [row for row in result["measured"]["history"] if key in row]
                x, y = ([row[one] for row in logged] for one in ("epoch", key))
                axes.plot(x, y, color=colour, linewidth=1.2, label=None if at else arm.label)
        frame(axes)
        axes.set_xlabel("epochs", color=MUTED, fontsize=9)
        heading(axes, f"{LABELS.get(key, key)}, training images", seeds(found))
        legend(axes)
    return save(figure, path)


def cost(found: Trained, path: Path) -> Path:
    """Accuracy against multiply-adds of an image."""
    figure = canvas(6.4, 3.6)
    axes = figure.subplots()
    for arm, colour in zip(found.arms, RUNS, strict=False):
        values = found.values(arm.id)
        if not values:
            continue
        x = macs(found, arm) / 1e6
        axes.plot([x] * len(values), values, "o", color=colour, markersize=3, alpha=0.5)
        axes.plot(x, statistics.fmean(values), "D", color=colour, markersize=6, label=arm.label)
    frame(axes)
    axes.set_xlabel("million multiply-adds an image", color=MUTED, fontsize=9)
    axes.set_ylabel(label(found), color=MUTED, fontsize=9)
    axes.set_xlim(left=0)
    heading(axes, shorten(found.study.title, 48), seeds(found))
    legend(axes)
    return save(figure, path)


def macs(found: Trained, arm: Arm) -> int:
    """Multiply-adds of what an arm trains."""
    from ziggurat.engine.measure import count
    from ziggurat.models.registry import create_model

    recipe = recipe_of(found.study, arm, found.scale)
    flat: dict[str, Any] = recipe.flat()
    size = flat["img_size"]
    return count(create_model(recipe.model, img_size=size, **recipe.model_args), size).macs


def verdicts(judged: Sequence[Judged], path: Path) -> Path | None:
    """Every trained comparison with its interval, and the paper's size of it as a hollow mark."""
    parts = [(one, part) for one in judged for part in one.parts if part.found is not None]
    if not parts:
        return None
    figure = canvas(9.6, 0.9 + 0.26 * len(parts))
    axes = figure.subplots()
    for y, (claim, part) in enumerate(parts):
        assert part.found is not None
        colour = COLOURS.get(claim.verdict, MUTED)
        axes.plot((part.found.low, part.found.high), (y, y), color=colour, linewidth=1.6)
        axes.plot(part.found.value, y, "D", color=colour, markersize=4.5)
        if part.claimed is not None:
            axes.plot(part.claimed, y, "o", color=INK, markersize=5, fillstyle="none")
    axes.axvline(0, color=INK, linewidth=0.9, zorder=1)
    names = [shorten(f"{one.name}: {part.words}", 66) for one, part in parts]
    axes.set_yticks(range(len(parts)), names, **named_ticks())
    axes.set_ylim(len(parts) - 0.4, -0.6)
    frame(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_xlabel("points in the claimed direction; rings: the paper's", color=MUTED, fontsize=9)
    ends = [abs(x) for _, part in parts if part.found for x in (part.found.low, part.found.high)]
    widest = 1.05 * min(max(ends), WIDEST)
    axes.set_xlim(-widest, widest)
    return save(figure, path)
