"""The verb that knows the papers' tables and figures: ``reproduce``."""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ziggurat.cli.verb import Verb, positive, progress

if TYPE_CHECKING:  # slow to import
    from ziggurat.engine.reproduce import Found, Places

SCALES = ("laptop", "workstation", "paper")  # of ziggurat.engine.studies
CLONE = Path("benchmarks/results")  # in the repository


def reproduce(args: argparse.Namespace) -> int:
    """Do the papers' tables and figures again: count, measure, train, judge, report."""
    from ziggurat.engine.reproduce import Places

    results = Path(args.results or (CLONE / "reproduce" if CLONE.is_dir() else "reproduce/results"))
    places = Places(results, Path(args.runs), CLONE)
    if sum((args.list, args.report, bool(args.names))) != 1:
        raise ValueError("give tables or figures (nest/figure5), a paper, all, --list or --report")
    if args.list:
        return listed(args, places)
    if args.report:
        return reported(args, places)
    return done(args, places)


def listed(args: argparse.Namespace, places: "Places") -> int:
    """Every table and figure, and the state of our last result."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine.beside import dump
    from ziggurat.engine.reproduce import scales, state
    from ziggurat.engine.reproduction import gather

    with progress("reading results", args.json) as tick:
        found = gather(args.scale, places, tick)
    if args.json:
        print(dump(found))
        return 0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("name", "what it claims", "checked by", "recipes at", "our last result"):
        table.add_column(head, overflow="fold", no_wrap=head == "name")
    for one in found:
        checks = ", ".join(one.item.checks) or "–"
        at = ", ".join(scales(one.item)) or "–"
        table.add_row(one.name, one.item.about, checks, at, state(one, args.seeds))
    Console(markup=False, emoji=False).print(table)
    return 0


def reported(args: argparse.Namespace, places: "Places") -> int:
    """The page and the Markdown."""
    from ziggurat.engine.reproduction import NAME, report

    folder = Path(args.out)
    taken = [file for file in (folder / f"{NAME}.html", folder / f"{NAME}.md") if file.exists()]
    if taken and not args.overwrite:
        raise FileExistsError(f"{taken[0]} exists: take another --out or --overwrite")
    with progress("reading results") as tick:
        written = report(places, args.scale, folder, tick)
    for file in written:
        print(f"wrote {file}")
    return 0


def done(args: argparse.Namespace, places: "Places") -> int:
    """Count, measure and train what is asked for and not kept."""
    from ziggurat.engine import reproduce, studies
    from ziggurat.engine.rerun import missing, work

    items, trained = resolved(args.names)
    first = os.environ.get("RANK", "0") == "0"  # of a launcher's processes, which share trainings
    counted = [name for name in items if first and reproduce.is_counted(name)]
    with progress("counting", args.json) as tick:
        for at, name in enumerate(counted):
            tick(at, len(counted))
            reproduce.count(name, places)
    notes = measured(items, places) + scripted(trained, places) if first else []
    own = [studies.study(name) for name in trained if not studies.study(name).script]
    lacking = [one.id for one in own if args.scale not in one.scales]
    if lacking:
        notes.append(f"no recipes at {args.scale} scale: {', '.join(lacking)}")
    ready = [one for one in own if args.scale in one.scales]
    drawn = [name for name in items if pictures_lacking(name, places)]
    needed = [run for name in drawn for runs in reproduce.runs_of(name, args.scale) for run in runs]
    todo = missing(ready, args.scale, args.seeds, places.results, places.runs, needed)
    failed: dict[str, str] = {}
    if todo:
        tell = (lambda text: None) if args.json else (lambda text: print(text, flush=True))
        tell(f"{len(todo)} runs to train, {args.jobs or jobs()} at a time; Ctrl-C saves them")
        came = work(todo, places.results, places.runs, args.jobs or jobs(), args.minutes, tell)
        failed = came.failed
        if came.left:
            notes.append(f"{len(came.left)} runs are left: the same command goes on with them")
    if not first:
        return 0
    for name in drawn:
        draw(name, args.scale, places)
    show(args, items, trained, places)
    for line in notes:
        print(line, file=sys.stderr)
    for name, why in failed.items():
        print(f"ziggurat: {name} failed: {why}", file=sys.stderr)
    return 1 if failed else 0


def resolved(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tables and figures, and studies: each once, in the papers' order."""
    from ziggurat.engine import claims, studies

    known = list(claims.items())
    items: list[str] = []
    trained: list[str] = []
    for name in names:
        if name == "all" or name in claims.PAPERS:
            items += [one for one in known if name in ("all", one.partition("/")[0])]
        elif name in studies.names():
            trained.append(name)
        else:
            claims.find(name)  # says what there is
            items.append(name)
    trained += [study for name in items for study in claims.find(name).studies]
    return sorted(set(items), key=known.index), list(dict.fromkeys(trained))


def measured(items: Sequence[str], places: "Places") -> list[str]:
    """Run the benchmarks whose ratios are not there; what cannot be run."""
    from ziggurat.engine import claims
    from ziggurat.engine.reproduce import SCRIPTS

    notes = []
    for file in dict.fromkeys(file for name in items for file in claims.find(name).results):
        if not (places.benchmarks / file).is_file():
            notes += script(SCRIPTS[file])
    return notes


def scripted(trained: Sequence[str], places: "Places") -> list[str]:
    """Run the studies that a benchmark's script trains, if they have no result at all."""
    from ziggurat.engine import studies

    notes = []
    for study in (studies.study(name) for name in trained):
        kept = studies.results(study, "laptop", places.results, places.benchmarks)
        if study.script and not kept:
            notes += script(study.script)
    return notes


def script(command: str) -> list[str]:
    """Run one of the repository's; a line if it cannot be."""
    if not Path(command.split()[0]).is_file():
        return [f"needs a clone of the repository: python {command}"]
    print(f"python {command}", flush=True)
    ended = subprocess.run([sys.executable, *command.split()], check=False).returncode
    return [f"ended with {ended}: python {command}"] if ended else []


def pictures_lacking(name: str, places: "Places") -> bool:
    """Whether one of its pictures is not drawn."""
    from ziggurat.engine.reproduce import picture_files

    return not all(file.is_file() for file in picture_files(name, places))


def draw(name: str, scale: Any, places: "Places") -> None:
    """Run the commands that draw a figure, once what it is drawn from is trained."""
    from sklearn import datasets

    from ziggurat.cli import main
    from ziggurat.engine import claims, trial
    from ziggurat.engine.reproduce import picture_files, runs_of
    from ziggurat.engine.rerun import trained

    photos = Path(datasets.__file__).parent / "images"
    every = zip(
        claims.find(name).draws, runs_of(name, scale), picture_files(name, places), strict=True
    )
    for wanted, runs, file in every:
        if file.is_file() or not all(trained(run, places.runs) for run in runs):
            continue
        folders = [str(places.runs / run.name) for run in runs]
        with tempfile.TemporaryDirectory() as out:
            stands_for = {
                "PHOTOS": f"{photos}/*.jpg",
                "TESTED": f"{out}/seen",
                "OUT": f"{out}/drawn",
            }
            if "TESTED" in wanted.command:
                trial.write_tested(runs[0].recipe, Path(out) / "seen")
            given = iter(folders)
            words = [
                next(given) if word == "RUN" else stands_for.get(word, word)
                for word in wanted.command.split()[1:]
            ]
            (Path(out) / "drawn").mkdir()
            with contextlib.redirect_stdout(io.StringIO()):  # it tells of this passing folder
                if main(words):
                    raise ValueError(f"no picture: ziggurat {' '.join(words)}")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(out) / "drawn" / wanted.picture, file)
            print(f"drew {file}", file=sys.stderr)


def jobs() -> int:
    """How many runs fit: one on each accelerator, or one on each core."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return torch.cuda.device_count() or cores or 1


def show(
    args: argparse.Namespace, items: Sequence[str], trained: Sequence[str], places: "Places"
) -> None:
    """What is known now, in tables."""
    from rich.console import Console

    from ziggurat.engine import beside, claims, reproduce

    covered = {study for name in items for study in claims.find(name).studies}
    rest = [study for study in trained if study not in covered]
    about = [n for n, item in claims.items().items() if set(item.studies) & set(rest)]
    found = [reproduce.find(name, args.scale, places) for name in [*items, *about]]
    if args.json:
        print(beside.dump(found))
        return
    console = Console(markup=False, emoji=False)
    for one in found:
        console.print(f"\n{one.name}  {one.item.title}", style="bold")
        console.print(f"{one.item.about}.")
        for table in tables(one):
            console.print(rich(table))
        for line in beside.verdict_lines(one.judged):
            console.print(line)
        if one.item.gap:
            console.print(f"not checked: {one.item.gap}")
        for file in one.pictures:
            console.print(f"its picture: {file}")


def tables(one: "Found") -> list[Any]:
    """All that a table or figure has."""
    from ziggurat.engine import beside

    found = [beside.cells(one)] if one.cells else []
    return found + [beside.arms(study) for study in one.studies if study.results]


def rich(table: Any) -> Any:
    """A table of text for the terminal."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in table.heads:
        made.add_column(head, overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    return made


def add(verb: Verb) -> None:
    """Add the verb."""
    one = verb(reproduce, "ziggurat reproduce nest/figure5 --scale laptop --minutes 60 --seeds 3")
    one.add_argument(
        "names", nargs="*", help="tables or figures (nest/figure5), papers (nest), studies, or all"
    )
    one.add_argument("--list", action="store_true", help="every table and figure and its state")
    one.add_argument("--report", action="store_true", help="write the page and the Markdown")
    one.add_argument(
        "--scale", choices=SCALES, default="laptop",
        help="how large trainings are: minutes of a core, hours of a GPU, the paper's recipe",
    )  # fmt: skip
    one.add_argument("--seeds", type=positive, default=3, help="of every row (default: 3)")
    one.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    one.add_argument("--jobs", type=positive, help="runs at a time (default: as many as fit)")
    one.add_argument("--results", help="where results are kept (default: the repository's)")
    one.add_argument("--runs", default="runs/reproduce", help="where runs are trained")
    one.add_argument("--out", default="docs", help="of --report: its folder (default: docs)")
    one.add_argument("--overwrite", action="store_true", help="of --report: replace the last one")
    one.add_argument("--json", action="store_true", help="print data instead of tables")
