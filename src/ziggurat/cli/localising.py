"""The verbs that look into trained models: ``localise``, ``analyse``."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ziggurat.cli.verb import Verb, positive, progress

SCORES = {  # columns, and how they are written
    "known": "known",
    "top1": "top-1",
    "top5": "top-5",
    "pointing": "pointing",
    "deletion": "deletion",
    "insertion": "insertion",
    "threshold": "threshold",
}


def localise(args: argparse.Namespace) -> None:
    """Measure how well models' maps find objects: every method in one table."""
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine import charts, results
    from ziggurat.engine.localise import localise as measure

    folder = empty(args.out, args.overwrite)
    with progress("localising", args.json) as tick:
        found = measure(
            args.checkpoints, args.data, args.method, args.count, args.steps, args.seed, tick
        )
    for line in found.skipped:
        print(f"ziggurat: skipped {line}", file=sys.stderr)
    measured = found.measured() | {"data": args.data, "skipped": len(found.skipped)}
    results.write(folder / results.RESULTS, measured, args.seed)
    charts.accuracy(found.rows, folder / "accuracy.png")
    charts.examples(found.rows, folder / "boxes.png")
    if args.json:
        print(json.dumps(measured, indent=2))
        return
    first = measured["rows"][0]
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("model", overflow="fold")
    table.add_column("method", no_wrap=True)
    keys = [key for key in SCORES if key in first]
    for key in keys:
        table.add_column(SCORES[key], justify="right", no_wrap=True)
    before = None
    for row in measured["rows"]:
        name = row["model"] if row["model"] != before else ""
        before = row["model"]
        table.add_row(name, row["method"], *(shown(key, row[key]) for key in keys))
    Console(markup=False, emoji=False).print(table)
    for line in found.notes:
        print(line)
    print(f"{first['images']} images, {first['cases']} classes in them; pictures in {folder}")


def shown(key: str, value: float) -> str:
    """Accuracies in per cent, areas and thresholds as they are."""
    digits = {"threshold": 2, "deletion": 3, "insertion": 3}.get(key, 1)
    return f"{value:.{digits}f}"


def analyse(args: argparse.Namespace) -> None:
    """Look into models: what stages make of an image, how heads differ, what seeds change."""
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine import charts, results
    from ziggurat.engine.analyse import analyse as measure
    from ziggurat.engine.pictures import stage_sheet
    from ziggurat.engine.predict import files_of

    folder = empty(args.out, args.overwrite)
    files = sampled(files_of(args.images), args.count, args.seed)
    with progress("looking", args.json) as tick:
        found = measure(args.checkpoints, files, tick)
    for line in found.skipped:
        print(f"ziggurat: skipped {line}", file=sys.stderr)
    measured = found.measured()
    results.write(folder / results.RESULTS, measured, args.seed)
    for number, (source, model) in enumerate(found.models.items(), 1):
        stage_sheet(model.model, found.images[0]).save(folder / f"stages_{number}.png")
        if source in found.heads:
            charts.heads(found.heads[source], folder / f"heads_{number}.png")
    if found.variances is not None:
        charts.seeds(found.variances, folder / "seeds.png")
    if args.json:
        print(json.dumps(measured, indent=2))
        return
    for source, layers in measured["heads"].items():
        table = Table(box=None, pad_edge=False)
        for head in (f"diversity of heads in {source}", "before mixing", "after", "after norm"):
            table.add_column(head, justify="left" if "of heads" in head else "right")
        for layer, places in layers.items():
            table.add_row(layer, *(f"{one['diversity']:.3f}" for one in places.values()))
        Console(markup=False, emoji=False).print(table)
    if found.variances is not None:
        table = Table(box=None, pad_edge=False)
        for head in ("attention layer", "variance between models", "largest of an image"):
            table.add_column(head, justify="left" if head == "attention layer" else "right")
        for layer, own in enumerate(found.variances.T, 1):
            table.add_row(str(layer), f"{own.mean():.3g}", f"{own.max():.3g}")
        Console(markup=False, emoji=False).print(table)
    for line in found.notes:
        print(line)
    print(f"{len(found.images)} images; pictures in {folder}")


def sampled(files: list[str], count: int | None, seed: int) -> list[str]:
    """So many of them, by chance, in their order."""
    import numpy as np

    if count is None or count >= len(files):
        return files
    drawn = np.random.default_rng(seed).permutation(len(files))[:count]
    return [files[i] for i in sorted(drawn.tolist())]


def empty(name: str, overwrite: bool) -> Path:
    """The folder to write to, empty unless it may be written over."""
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise FileExistsError(f"{folder} exists: take another --out or --overwrite")
    return folder


def number(text: str) -> int:
    """A whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 up, got {text!r}")
    return int(text)


def shared(one: Any, folder: str) -> None:
    """Options of both."""
    one.add_argument("--count", type=positive, metavar="N", help="so many images, drawn by --seed")
    one.add_argument("--seed", type=number, default=0, help="draws the images (0)")
    one.add_argument(
        "--out", metavar="DIR", default=folder, help=f"for pictures, results ({folder})"
    )
    one.add_argument("--overwrite", action="store_true", help="write into an existing DIR")
    one.add_argument("--json", action="store_true", help="for machines")


def add(verb: Verb) -> None:
    """Add them with their options."""
    one = verb(localise, "ziggurat localise runs/nest runs/rest --data VOC2012/ --count 500")
    one.add_argument(
        "checkpoints", nargs="+", metavar="checkpoint", help="runs' folders, hub ids, timm/NAME:…"
    )
    one.add_argument(
        "--data", required=True, metavar="BOXES", help="a COCO json or folder, or VOC's folder"
    )
    one.add_argument("--method", nargs="+", metavar="NAME", help="all that a model takes, if none")
    one.add_argument(
        "--steps", type=number, default=16, help="of deletion and insertion; 0: neither (16)"
    )
    shared(one, "localised")

    one = verb(analyse, "ziggurat analyse runs/seed0 runs/seed1 runs/seed2 --images photos/")
    one.add_argument(
        "checkpoints", nargs="+", metavar="checkpoint", help="runs' folders, hub ids, timm/NAME:…"
    )
    one.add_argument("--images", nargs="+", required=True, help="files, folders, patterns")
    shared(one, "analysed")
