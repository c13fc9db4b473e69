"""What a model costs, or is worth, against how fast it is: the plot of the papers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ziggurat.models.registry import VARIANTS, family_of
from ziggurat.tasks.curves import RUNS
from ziggurat.tasks.drawing import FAINT, INK, MUTED, canvas, frame, heading, plain, save

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

MARKS = "osD^v"  # of backends and types, in their order
SHARES = (1.0, 0.5, 0.25)  # of the peak, drawn as lines
SIZE = 8  # points of a label
LETTER = 0.56  # of its height: a letter's width, about
Rows = Sequence[Mapping[str, Any]]


def draw(measured: Mapping[str, Any], path: Path) -> Path:
    """A row of panels for each batch and size: printed accuracy, and cost, against throughput."""
    groups = grouped(measured["rows"])
    first = next(iter(groups.values()))
    known = len({row["model"] for row in first if row["top1"] is not None}) > 1
    figure = canvas(5.6 * (1 + known), 4.3 * len(groups))
    panels = figure.subplots(len(groups), 1 + known, squeeze=False)
    for (size, batch), axes in zip(groups, panels, strict=True):
        rows = groups[size, batch]
        about = f"batch {batch}, {size} px"
        if known:
            accuracy(axes[0], rows)
            heading(axes[0], "accuracy against speed", about)
        cost(axes[-1], rows, measured)
        heading(axes[-1], "cost against speed", about)
        legend(axes[-1], rows)
    return save(figure, path)


def grouped(rows: Rows) -> dict[tuple[int, int], list[Mapping[str, Any]]]:
    """The rows of each size and batch."""
    groups: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["size"], row["batch"]), []).append(row)
    return groups


def accuracy(axes: "Axes", rows: Rows) -> None:
    """Those whose paper prints one."""
    shown = [row for row in rows if row["top1"] is not None]
    axes.set_xscale("log")
    axes.set_ylabel("ImageNet top-1, % (printed)", color=MUTED, fontsize=9)
    points(axes, shown, [row["top1"] for row in shown])


def cost(axes: "Axes", rows: Rows, measured: Mapping[str, Any]) -> None:
    """Multiply-adds, and lines of what shares of the machine's peak would be."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("billion multiply-adds an image", color=MUTED, fontsize=9)
    costs = [row["macs"] / 1e9 for row in rows]
    points(axes, rows, costs)
    peak = peak_of(measured, rows[0]) / 2 / (1 if measured["mode"] == "infer" else 3)
    several = len({row["dtype"] for row in rows}) > 1
    of = f"the peak in {rows[0]['dtype']}" if several else "the peak"
    right, (low, high) = axes.get_xlim()[1], axes.get_ylim()
    for share in SHARES:
        ends = [share * peak / y for y in (low, high)]
        axes.plot(ends, (low, high), "--", color=MUTED, alpha=0.6, linewidth=0.7, zorder=1)
        x = min(ends[0], right)  # where it leaves the panel, below or at the right
        at = max(low, share * peak / right)
        words = f"{share:.0%} of {of} " if share == 1 else f"{share:.0%} "
        if at < high:
            axes.text(x, at, words, fontsize=7, color=MUTED, va="bottom", ha="right", clip_on=True)


def peak_of(measured: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """GFLOP a second of the machine's product that took its turns beside a row, in its type."""
    return next(
        one["gflops"][1]
        for one in measured["peak"]
        if (one["batch"], one["dtype"]) == (row["batch"], row["dtype"])
        and row["size"] in one.get("sizes", [row["size"]])  # older files do not say
    )


def points(axes: "Axes", rows: Rows, heights: Sequence[float]) -> None:
    """One for each row, ours in their family's colour; names beside the first of each model."""
    families = list(dict.fromkeys(family_of(row["model"]) for row in rows if is_ours(row)))
    named: dict[str, tuple[float, float, str]] = {}
    for row, y in zip(rows, heights, strict=True):
        colour = RUNS[families.index(family_of(row["model"]))] if is_ours(row) else MUTED
        mark = MARKS[kinds(rows).index(kind_of(row)) % len(MARKS)]
        axes.plot(row["per_second"], y, mark, color=colour, markersize=5.5, zorder=4)
        named.setdefault(row["model"], (row["per_second"], y, colour))
    axes.set_xlabel("images a second; logarithmic", color=MUTED, fontsize=9)
    frame(axes)
    widen(axes, rows, heights)
    label(axes, named, [(row["per_second"], y) for row, y in zip(rows, heights, strict=True)])


def widen(axes: "Axes", rows: Rows, heights: Sequence[float]) -> None:
    """Room for names around the points."""
    speeds = [row["per_second"] for row in rows]
    wide = max(1.25, (max(speeds) / min(speeds)) ** 0.35)
    axes.set_xlim(min(speeds) / wide**0.5, max(speeds) * wide)
    if axes.get_yscale() == "log":
        tall = max(1.25, (max(heights) / min(heights)) ** 0.15)
        axes.set_ylim(min(heights) / tall, max(heights) * tall)
        axes.set_yticks(*ticks(axes.get_ylim()))
    else:
        room = max(0.5, 0.12 * (max(heights) - min(heights)))
        axes.set_ylim(min(heights) - room, max(heights) + room)
    axes.set_xticks(*ticks(axes.get_xlim()))
    axes.minorticks_off()


def ticks(limits: tuple[float, float]) -> tuple[list[float], list[str]]:
    """Round numbers on a logarithmic axis, three or more."""
    found: list[float] = []
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), [n / 10 for n in range(10, 100, 2)]):
        steps = [round(digit * 10**e, 9) for e in range(-3, 6) for digit in digits]
        found = found if len(found) > 2 else [step for step in steps if within(step, limits)]
    return found, [f"{tick:g}" for tick in found]


def within(value: float, limits: tuple[float, float]) -> bool:
    """Between the two."""
    return limits[0] <= value <= limits[1]


def label(
    axes: "Axes",
    named: Mapping[str, tuple[float, float, str]],
    marks: Sequence[tuple[float, float]],
) -> None:
    """Write names where they cover no mark and no other name, as near as there is room."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # places are known then
    dots = [tuple(axes.transData.transform(mark)) for mark in marks]
    unit = figure.dpi / 72
    high = SIZE * unit
    taken = [(x - high / 2, y - high / 2, x + high / 2, y + high / 2) for x, y in dots]
    frame_box = axes.get_window_extent()
    for name, (x, y, colour) in named.items():
        text = short(name)
        wide = LETTER * high * len(text)
        at = axes.transData.transform((x, y))
        best, least = (0.0, 0.0), math.inf
        for reach in (1.1, 2.0, 3.2, 4.6):
            for angle in range(0, 360, 30):
                dx = reach * high * math.cos(math.radians(angle))
                dy = reach * high * math.sin(math.radians(angle))
                left = at[0] + dx - (wide if dx < -1 else 0 if dx > 1 else wide / 2)
                box = (left, at[1] + dy - high / 2, left + wide, at[1] + dy + high / 2)
                inside = box[0] > frame_box.x0 and box[2] < frame_box.x1
                clash = sum(covered(box, other) for other in taken) + (0 if inside else 2)
                if clash + reach / 100 < least:
                    least, best = clash + reach / 100, (left - at[0], dy)
        box_left = at[0] + best[0]
        taken.append(
            (box_left, at[1] + best[1] - high / 2, box_left + wide, at[1] + best[1] + high / 2)
        )
        far = math.hypot(*best) > 2.5 * high
        axes.annotate(
            text,
            (x, y),
            (best[0] / unit, best[1] / unit),
            textcoords="offset points",
            va="center",
            fontsize=SIZE,
            color=INK if colour != MUTED else MUTED,
            arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkB": 3} if far else None,
            **plain(),
        )


def covered(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, low, right, high) overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def legend(axes: "Axes", rows: Rows) -> None:
    """What marks mean, where there are several."""
    if len(kinds(rows)) > 1:
        for mark, kind in zip(MARKS, kinds(rows), strict=False):
            axes.plot([], [], mark, color=MUTED, markersize=5, label=kind)
        axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="lower left")


def kinds(rows: Rows) -> list[str]:
    """Backends and types, in their order."""
    return list(dict.fromkeys(kind_of(row) for row in rows))


def kind_of(row: Mapping[str, Any]) -> str:
    """How it was run."""
    return f"{row['backend']}, {row['dtype']}"


def is_ours(row: Mapping[str, Any]) -> bool:
    """Whether it is one of our variants."""
    return row["model"] in VARIANTS


def short(name: str) -> str:
    """A name without what all of timm's have."""
    name = name.replace("_patch4_window7", "").removesuffix("_224").removesuffix("_patch16")
    plain_name = name.removeprefix("timm/")
    return name if plain_name in VARIANTS else plain_name
