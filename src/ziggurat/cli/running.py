"""The verbs that take trained models: ``eval``, ``predict``, ``report``."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from ziggurat.cli.verb import BACKENDS, BAR, CHECKPOINT, Verb, positive


def evaluate(args: argparse.Namespace) -> None:
    """Measure a saved model on held-out data."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from ziggurat.engine.evaluate import evaluate as measure

    with Progress(console=Console(stderr=True), transient=True, disable=args.json) as bar:
        line = bar.add_task("measuring", total=None)
        found, bad, by_class = measure(
            args.checkpoint,
            args.data,
            args.batch,
            tick=lambda done, total: bar.update(line, completed=done, total=total),
        )
    for reason in bad:
        print(f"skipped {reason}", file=sys.stderr)
    if args.json:
        more = {"by_class": by_class} if by_class else {}
        print(json.dumps(found | {"skipped": len(bad)} | more, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in found.items():
        table.add_row(key, f"{value:.6g}")
    Console().print(table)
    if by_class:
        keys = list(dict.fromkeys(key for own in by_class.values() for key in own))
        table = Table(box=None, pad_edge=False)
        for head in ("class", *keys):
            table.add_column(head, justify="left" if head == "class" else "right")
        for name, own in by_class.items():
            table.add_row(name, *(f"{own[key]:.1f}" if key in own else "" for key in keys))
        Console().print(table)


def predict(args: argparse.Namespace) -> int:
    """Say what images or clips show: likely classes, or objects and scenes, drawn."""
    from ziggurat.models.pretrained import is_of_clips
    from ziggurat.tasks.heads import read_head

    by_name = ":" in args.checkpoint and not Path(args.checkpoint).exists()
    dense = not by_name and read_head(args.checkpoint) is not None
    if not dense and (by_name or not is_of_clips(args.checkpoint)):
        return classes(args)
    if args.backend != "eager":
        raise ValueError(f"only classifiers of images run on --backend {args.backend}: leave it")
    return objects(args) if dense else actions(args)


def actions(args: argparse.Namespace) -> int:
    """The likeliest classes of each clip, and a strip of the frames used."""
    from rich.console import Console
    from rich.progress import track

    from ziggurat.data.clips import EXTENSIONS
    from ziggurat.engine.predict import files_of
    from ziggurat.engine.watch import Watcher, strip, strips

    files = files_of(args.images, EXTENSIONS, "clip")
    folder = written_to(args)
    watch = Watcher(args.checkpoint)
    console = Console(stderr=True)
    found = track(
        watch(files, args.top),
        "watching",
        total=len(files),
        console=console,
        transient=True,
        disable=args.json,
    )
    rows = []
    for answer, path in zip(found, strips(files, folder), strict=True):
        if answer.frames is not None:
            strip(answer, path)
        drawn = None if answer.frames is None else str(path)
        rows.append({"clip": answer.clip, "top": answer.top, "error": answer.error, "strip": drawn})
    code = told(args, "clip", rows)
    if not args.json:
        print(f"{sum(row['strip'] is not None for row in rows)} strips of frames in {folder}")
    return code


def written_to(args: argparse.Namespace) -> Path:
    """The folder for pictures, empty unless it may be written over."""
    folder = Path(args.out or "predictions")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not args.overwrite:
        raise FileExistsError(f"{folder} exists: take another --out or --overwrite")
    return folder


def told(args: argparse.Namespace, kind: str, rows: list[dict[str, Any]]) -> int:
    """Print what images or clips show; 1 if some could not be read."""
    from rich.console import Console
    from rich.table import Table

    if args.json:
        plain = [row | {"top": [guess._asdict() for guess in row["top"]]} for row in rows]
        print(json.dumps(plain, indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column(kind, overflow="fold")
        table.add_column("class")
        table.add_column("probability", no_wrap=True)
        for row in rows:
            for i, guess in enumerate(row["top"]):
                share = f"{BAR * round(guess.probability * 20):<20} {guess.probability:6.1%}"
                table.add_row("" if i else row[kind], guess.name, share)
        Console().print(table)
    bad = [row["error"] for row in rows if row["error"]]
    for error in bad:
        print(f"ziggurat: skipped {error}", file=sys.stderr)
    return 1 if bad else 0


def objects(args: argparse.Namespace) -> int:
    """Draw what a detector or segmenter sees, and write it as COCO's results."""
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ziggurat.engine.find import RESULTS, Finder, places, write
    from ziggurat.engine.predict import files_of

    files = files_of(args.images)
    folder = written_to(args)
    finder = Finder(args.checkpoint)
    chosen = places(files, folder, finder.task == "segment", args.data)
    found = write(finder, chosen, folder, args.least)
    console = Console(stderr=True)
    bar = track(
        found, "looking", total=len(files), console=console, transient=True, disable=args.json
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("image", overflow="fold")
    for head in ("class", "score", "box") if finder.task == "detect" else ("class", "pixels"):
        table.add_column(head, no_wrap=head != "class")
    bad = 0
    for one in bar:
        if one.error:
            bad += 1
            print(f"ziggurat: skipped {one.error}", file=sys.stderr)
        for i, row in enumerate(finder.rows(one, args.least)):
            table.add_row("" if i else one.image, *row)
    if args.json:
        print((folder / RESULTS).read_text())
    else:
        Console().print(table)
        print(f"{len(files) - bad} pictures and {RESULTS} in {folder}")
    return 1 if bad else 0


def classes(args: argparse.Namespace) -> int:
    """The likeliest classes of each image."""
    from rich.console import Console
    from rich.progress import track

    from ziggurat.engine.predict import Classifier, files_of

    files = files_of(args.images)
    classify = Classifier(args.checkpoint, backend=args.backend)
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
    rows = [{"image": one.image, "top": one.top, "error": one.error} for one in found]
    return told(args, "image", rows)


def report(args: argparse.Namespace) -> None:
    """Write the report of a run again, or one page that compares several."""
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
    one.add_argument("checkpoint", help=CHECKPOINT)
    one.add_argument("images", nargs="+", help="files (of clips: videos), folders, patterns")
    one.add_argument("--top", type=positive, default=5, help="classifier: how many classes (5)")
    one.add_argument("--batch", type=positive, default=32, help="classifier: images at a time (32)")
    one.add_argument(
        "--backend", choices=(*BACKENDS, "auto"), default="eager", help="classifier: what runs it"
    )
    one.add_argument("--out", metavar="DIR", help="for pictures, not of a classifier (predictions)")
    one.add_argument(
        "--data",
        metavar="FILE_OR_FOLDER",
        help="detector, segmenter: COCO's annotations, which number the images",
    )
    one.add_argument("--least", type=float, default=0.3, help="detector: least score drawn (0.3)")
    one.add_argument("--overwrite", action="store_true", help="write into an existing DIR")
    one.add_argument("--json", action="store_true", help="for machines; objects as COCO's results")

    one = verb(report, "ziggurat report runs/nest runs/deit --out compare.html")
    one.add_argument("runs", nargs="+", help="folders of runs, finished or not")
    one.add_argument("--out", metavar="HTML", help="a page that compares them")
    one.add_argument("--overwrite", action="store_true", help="replace an existing page")
