"""The verbs that take trained models: ``eval``, ``predict``, ``report``."""

import argparse
import json
import os
import sys

from ziggurat.cli.verb import BAR, Verb, positive


def evaluate(args: argparse.Namespace) -> None:
    """Measure a saved model on held-out data."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from ziggurat.engine.evaluate import evaluate as measure

    with Progress(console=Console(stderr=True), transient=True, disable=args.json) as bar:
        line = bar.add_task("measuring", total=None)
        found, bad = measure(
            args.checkpoint,
            args.data,
            args.batch,
            tick=lambda done, total: bar.update(line, completed=done, total=total),
        )
    for reason in bad:
        print(f"skipped {reason}", file=sys.stderr)
    if args.json:
        print(json.dumps(found | {"skipped": len(bad)}, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in found.items():
        table.add_row(key, f"{value:.6g}")
    Console().print(table)


def predict(args: argparse.Namespace) -> int:
    """Say what images show: the likeliest classes of each."""
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ziggurat.engine.predict import Classifier, files_of

    files = files_of(args.images)
    classify = Classifier(args.checkpoint)
    console = Console(stderr=True)
    found = list(
        track(
            classify(files, args.top, args.batch),
            "looking",
            total=len(files),
            console=console,
            transient=True,
            disable=args.json,
        )
    )
    if args.json:
        rows = [
            {"image": a.image, "top": [guess._asdict() for guess in a.top], "error": a.error}
            for a in found
        ]
        print(json.dumps(rows, indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("image", overflow="fold")
        table.add_column("class")
        table.add_column("probability", no_wrap=True)
        for answer in found:
            for i, guess in enumerate(answer.top):
                share = f"{BAR * round(guess.probability * 20):<20} {guess.probability:6.1%}"
                table.add_row("" if i else answer.image, guess.name, share)
        Console().print(table)
    bad = [answer for answer in found if answer.error]
    for answer in bad:
        print(f"ziggurat: skipped {answer.error}", file=sys.stderr)
    return 1 if bad else 0


def report(args: argparse.Namespace) -> None:
    """Write the report of a run again, or one page that compares several."""
    from pathlib import Path

    from ziggurat.engine.recipe import RECIPE
    from ziggurat.engine.report import compare, write

    runs = [Path(run) for run in args.runs]
    for run in runs:
        if not (run / RECIPE).is_file():
            raise FileNotFoundError(f"{run} is not a run's folder: it has no {RECIPE}")
    if len(runs) == 1 and args.out is None:
        print(write(runs[0]))
        return
    if args.out is None:
        raise ValueError("where to? several runs are compared in --out FILE.html")
    if os.path.exists(args.out) and not args.overwrite:
        raise FileExistsError(f"{args.out} exists: take another name or --overwrite")
    print(compare(runs, Path(args.out)))


def add(verb: Verb) -> None:
    """Add them with their options."""
    one = verb(evaluate, "ziggurat eval runs/digits")
    one.add_argument("checkpoint", help="a run's folder (also its best/), or a hub id")
    one.add_argument("--data", help="other data than the run's own")
    one.add_argument("--batch", type=positive, help="images at a time; the run's if not given")
    one.add_argument("--json", action="store_true", help="for machines")

    one = verb(predict, "ziggurat predict runs/digits photo.jpg 'more/*.png'")
    one.add_argument("checkpoint", help="a run's folder (also its best/), or a hub id")
    one.add_argument("images", nargs="+", help="files, folders, patterns")
    one.add_argument("--top", type=positive, default=5, help="how many classes (5)")
    one.add_argument("--batch", type=positive, default=32, help="images at a time (32)")
    one.add_argument("--json", action="store_true", help="for machines")

    one = verb(report, "ziggurat report runs/nest runs/deit --out compare.html")
    one.add_argument("runs", nargs="+", help="folders of runs, finished or not")
    one.add_argument("--out", metavar="HTML", help="a page that compares them")
    one.add_argument("--overwrite", action="store_true", help="replace an existing page")
