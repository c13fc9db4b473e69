"""Cost against resolution: every family and plain ViT from 224 to 1120 pixels, in one run.

    python benchmarks/resolution.py             # into benchmarks/results/resolution.json

Features for dense tasks (every stage's map, no classifier) of one image in inference. Models are
built for 224 pixels, as their weights are, and meet larger images: NesT's blocks stay 14 x 14 (at
1120 its last level has 25 of them, at 224 one), RegionViT's windows 7 x 7, and positions are
resized. Each round runs every model at every size in another order; a time is divided by the same
model's at 224 of the same round, and stands beside the number of pixels: where both grow alike,
the exponent (the slope of one over the other, both logarithmic) is 1. Memory is what tensors take
at the peak beyond weights and image: exact, not sampled.

HiViT is measured as it is and, as it is pre-trained, without the relative bias between all pairs
of units, which grows with the square of the pixels.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import study
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

import ziggurat
from ziggurat.cli.verb import progress
from ziggurat.engine import bench, results
from ziggurat.engine.measure import count, peak_memory
from ziggurat.tasks.curves import RUNS
from ziggurat.tasks.drawing import INK, MUTED, canvas, dots, frame, heading, save

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

RESULTS = study.RESULTS / "resolution.json"
PICTURE = study.ROOT / "docs" / "resolution.png"
SIZES = (224, 448, 672, 896, 1120)
SEED = 0
PLAIN = "plain ViT-S"
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "NesT-T": ("nest_tiny", {}),
    "RegionViT-S": ("regionvit_s", {}),
    "ResT-Small": ("rest_small", {}),
    "HVT-S-1": ("hvt_s_1", {}),
    "HiViT-T": ("hivit_tiny", {}),
    "HiViT-T, no relative bias": ("hivit_tiny", {"rpe": False}),
    PLAIN: ("timm/vit_small_patch16_224", {"dynamic_img_size": True}),
}


def build(label: str) -> Any:
    """A model without its classifier."""
    name, options = NAMES[label]
    return ziggurat.create_model(name, num_classes=0, **options).eval()


def maps(label: str, model: Any, images: Tensor) -> None:
    """One pass to every stage's map; plain ViT is one stage."""
    with torch.inference_mode():
        model.forward_intermediates(images, 1 if label == PLAIN else None, intermediates_only=True)


def measure(sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """All models at all sizes; ratios to the same model's first size of the same round."""
    torch.manual_seed(SEED)
    models = {label: build(label) for label in NAMES}
    images = {size: torch.randn(1, 3, size, size) for size in sizes}
    runs = {
        (label, size): partial(maps, label, models[label], images[size])
        for label in NAMES
        for size in sizes
    }
    memory = {  # of a fresh model: what it keeps from pass to pass is counted, too
        (label, size): peak_memory(partial(maps, label, build(label), images[size]))
        for label, size in track(runs, "memory", transient=True)
    }
    with progress("rounds") as tick:
        spent = bench.interleaved(runs, rounds, tick)
    found = []
    for label, size in runs:
        first = label, sizes[0]
        low, middle, high = bench.ratio(spent[label, size], spent[first]).rounded()
        found.append(
            {
                "model": label,
                "name": NAMES[label][0],
                "size": size,
                "rounds": rounds,
                "pixels": round((size / sizes[0]) ** 2, 3),
                "time": middle,
                "time_quartiles": [low, high],
                "seconds": round(statistics.median(t.seconds for t in spent[label, size]), 4),
                "memory": round(memory[label, size] / memory[first], 3),
                "memory_mib": round(memory[label, size] / 2**20, 1),
                "macs": count(models[label], size, 3).macs,
            }
        )
    return found


def by_model(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each model, the smallest size first."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        rows.setdefault(row["model"], []).append(row)
    return rows


def exponent(rows: list[dict[str, Any]], key: str, start: int = 0) -> float:
    """How a cost grows with the pixels from one size to the last: 1 is linear, 2 quadratic."""
    first, last = rows[start], rows[-1]
    return math.log(last[key] / first[key]) / math.log(last["pixels"] / first["pixels"])


def markdown(found: list[dict[str, Any]]) -> str:
    """The rows as the README shows them, one for each model."""
    models = by_model(found)
    first, *larger = next(iter(models.values()))
    last = larger[-1]
    heads = [
        f"{first['size']} px = 1",
        f"multiply-adds at {first['size']} px",
        *(f"time at {row['size']} px" for row in larger),
        "middle half of the rounds",
        f"memory at {last['size']} px",
        "exponent of time",
        "of memory",
        "of multiply-adds",
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    pixels = " | ".join(f"{row['pixels']:.1f}" for row in larger)
    lines.append(f"| pixels | | {pixels} | | {last['pixels']:.1f} | 1 | 1 | 1 |")
    for label, rows in models.items():
        low, high = rows[-1]["time_quartiles"]
        cells = [
            label,
            f"{rows[0]['macs'] / 1e9:.1f} G",
            *(f"{row['time']:.1f}" for row in rows[1:-1]),
            f"**{rows[-1]['time']:.1f}**",
            f"{low:.1f} to {high:.1f}",
            f"{rows[-1]['memory']:.1f}",
            *(
                f"{exponent(rows, key):.2f} ({exponent(rows, key, -2):.2f})"
                for key in ("time", "memory", "macs")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: list[dict[str, Any]], path: Path) -> Path:
    """Time and memory against pixels."""
    models = by_model(found)
    first = next(iter(models.values()))[0]["size"]
    figure = canvas(10.4, 4.6)
    for axes, key in zip(figure.subplots(1, 2), ("time", "memory"), strict=True):
        heading(axes, f"{key} of a pass, {first} px = 1")
        draw_growth(axes, models, key)
    return save(figure, path)


def draw_growth(axes: "Axes", models: dict[str, list[dict[str, Any]]], key: str) -> None:
    """One cost of all models, both axes logarithmic, and what linear growth would be."""
    rows = next(iter(models.values()))
    x = np.asarray([row["pixels"] for row in rows])
    curves = {label: np.asarray([row[key] for row in rows]) for label, rows in models.items()}
    axes.set_xscale("log")
    axes.set_yscale("log")
    for colour, y in zip(RUNS, curves.values(), strict=False):
        axes.plot(x, y, color=colour, linewidth=1.6, **dots(x))
    axes.plot(x, x, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=3)
    colours = dict(zip(curves, RUNS, strict=False)) | {"linear": INK}
    ends = {label: float(y[-1]) for label, y in curves.items()} | {"linear": float(x[-1])}
    order = sorted(ends, key=lambda label: ends[label])
    high = max(ends.values())
    places = apart([math.log(ends[label]) for label in order], gap=math.log(high) / 22)
    for label, place in zip(order, places, strict=True):
        arrow = {"arrowstyle": "-", "color": colours[label], "linewidth": 1, "relpos": (0, 0.5)}
        axes.annotate(
            f"{label}  {ends[label]:.0f}",
            (x[-1], ends[label]),
            (x[-1] ** 1.11, math.exp(place)),
            va="center",
            fontsize=8.5,
            color=INK,
            arrowprops=arrow | {"shrinkA": 1, "shrinkB": 2},
        )
    axes.set_ylim(0.88, 1.1 * max(high, math.exp(places[-1])))
    axes.set_xlabel("pixels a side; both axes logarithmic", color=MUTED, fontsize=9)
    frame(axes)
    axes.set_xticks(x, [str(row["size"]) for row in rows])
    ticks = [tick for tick in (1, 2, 5, 10, 25, 50, 100, 200, 400) if tick <= high]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Rising places, moved as little as it takes to lie ``gap`` apart."""
    groups: list[list[float]] = []
    for i, place in enumerate(places):
        groups.append([place - i * gap])
        while len(groups) > 1 and statistics.mean(groups[-2]) > statistics.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    means = [statistics.mean(group) for group in groups for _ in group]
    return [mean + i * gap for i, mean in enumerate(means)]


def main() -> None:
    """Measure and write the results file and the picture; the README's table with the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sides in pixels")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parse_args()
    sizes = sorted(set(args.sizes))
    if len(sizes) < 2:
        parser.error(f"growth is between two sizes or more, got {sizes}")
    ours = args.out == RESULTS
    if ours and sizes != list(SIZES):
        parser.error(f"the repository's results are of {SIZES}: give others a file with --out")
    found = measure(sizes, args.rounds)
    Console().print(markdown(found))
    print(f"wrote {results.write(args.out, found, SEED)}")
    print(f"wrote {draw(found, PICTURE if ours else args.out.with_suffix('.png'))}")
    study.show(args.out, markdown(found))


if __name__ == "__main__":
    main()
