"""The command line: one function a verb, each importing what it needs when it runs."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ziggurat import __version__

BAR = "█"


class Parser(argparse.ArgumentParser):
    """argparse with one line for a mistake, and the nearest verb for a typo."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what to do; exit with 2."""
        if "invalid choice" in message and self.verbs:
            word = message.split("'")[1]
            near = difflib.get_close_matches(word, self.verbs, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.verbs)}"
            message = f"no command is called {word!r}: {hint}"
        self.exit(2, f"ziggurat: {message} (see `{self.prog} --help`)\n")

    verbs: Sequence[str] = ()


def models(args: argparse.Namespace) -> None:
    """Print our variants with counted and printed parameters and FLOPs."""
    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ziggurat.engine.measure import count
    from ziggurat.engine.tables import printed
    from ziggurat.models.registry import VARIANTS, family_of, list_models, unknown

    pattern = args.pattern if any(c in args.pattern for c in "*?[") else f"*{args.pattern}*"
    names = list_models(pattern)
    if not names:
        raise ValueError(unknown(args.pattern, list(VARIANTS)))
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for name in track(names, "counting", console=console, transient=True, disable=args.json):
        found = count(name)
        paper = printed(name)
        rows.append(
            {
                "name": name,
                "family": family_of(name).__name__,
                "params": found.params,
                "macs": found.macs,
                "paper_params_m": paper.get("params_m"),
                "paper_flops_g": paper.get("flops_g"),
                "input": list(found.input_size),
                "dims": list(found.dims),
                "strides": list(found.strides),
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="params in millions, FLOPs (multiply-adds) in billions; paper: as printed there",
    )
    table.add_column("model", no_wrap=True)
    for column in ("px", "params", "paper", "FLOPs", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("width of each stage", no_wrap=True)
    for i, row in enumerate(rows):
        if i and row["family"] != rows[i - 1]["family"]:
            table.add_section()
        table.add_row(
            row["name"],
            by(sorted(set(row["input"][1:]))),
            f"{row['params'] / 1e6:.2f}",
            row["paper_params_m"] or "-",
            f"{row['macs'] / 1e9:.2f}",
            row["paper_flops_g"] or "-",
            " ".join(map(str, row["dims"])),
        )
    Console().print(table)


def info(args: argparse.Namespace) -> None:
    """Print one model's stages: shapes, share of parameters and FLOPs, and how it is built."""
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine.describe import describe
    from ziggurat.engine.tables import printed

    size = size_of(args.size)
    about = describe(args.name, size)
    if args.picture:
        picture(args, size)
    if args.json:
        print(json.dumps(about | {"paper": printed(args.name)}, indent=2))
        return
    console = Console()
    total_params, total_macs = about["params"], about["macs"]
    channels, height, width = about["input"]
    console.print(
        f"[bold]{args.name}[/bold]  {about['family']}  "
        f"{total_params / 1e6:.2f} M parameters  {total_macs / 1e9:.2f} G multiply-adds"
    )
    units = {"params_m": "M parameters", "flops_g": "G FLOPs"}
    paper = "  ".join(f"{value} {units[key]}" for key, value in printed(args.name).items())
    if paper:
        console.print(f"the paper prints  {paper}")
    table = Table(box=None, pad_edge=False)
    for column in ("part", "output", "stride", "blocks"):
        table.add_column(column, justify="left" if column == "part" else "right")
    table.add_column("parameters", no_wrap=True)
    table.add_column("multiply-adds", no_wrap=True)
    table.add_row("image", by([channels, height, width]), "1", "", "", "")
    for part in about["parts"]:
        table.add_row(
            part["name"],
            by(part["shape"] or []),
            str(part["stride"] or ""),
            str(part["blocks"] or ""),
            bar(part["params"], total_params),
            bar(part["macs"], total_macs),
        )
    console.print(table)
    print(about["sketch"])


def train(args: argparse.Namespace) -> None:
    """Train a model as a recipe says: progress, checkpoints, report."""
    if args.list:
        recipes()
        return
    start(args, {})


def finetune(args: argparse.Namespace) -> None:
    """Train on from a checkpoint: other data, another resolution."""
    start(args, {}, needs="init")


def probe(args: argparse.Namespace) -> None:
    """Train a linear classifier on frozen features."""
    start(args, {"freeze": True}, needs="init")


def distill(args: argparse.Namespace) -> None:
    """Train with a teacher: any saved run, hub id or timm model."""
    start(args, {"task": "distill"}, needs="teacher")


def start(args: argparse.Namespace, changes: dict[str, Any], needs: str | None = None) -> None:
    """Resolve the recipe, then train, or say what training would take."""
    import logging

    from ziggurat.engine import recipe
    from ziggurat.engine.train import default_folder
    from ziggurat.engine.train import train as run

    logging.getLogger("timm").setLevel(logging.WARNING)
    changes = changes | {
        key: getattr(args, key)
        for key in ("data", "init", "seed", "teacher", "teacher_weights")
        if getattr(args, key, None) is not None
    }
    for word in args.set:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--set takes key=value, got {word!r}")
        changes[key] = recipe.value_of(value)
    if args.resume and args.out and args.recipe in (None, args.default_recipe):
        args.recipe = os.path.join(args.out, recipe.RECIPE)
    if args.recipe is None:
        raise ValueError("which recipe? `ziggurat train --list` shows them")
    if needs and needs not in changes and not given(args.recipe, needs):
        raise ValueError(f"--{needs} is missing: a run's folder, a checkpoint or a hub id")
    chosen = recipe.load(args.recipe, args.model, changes)
    saved = os.path.join(args.out or default_folder(chosen), recipe.RECIPE)
    if args.resume and args.minutes and os.path.exists(saved):  # what fitted then, not now
        before = recipe.load(saved)
        again = {"epochs": before.epochs, "cooldown_epochs": before.cooldown_epochs}
        chosen = chosen.model_copy(update=again)
        args.minutes = None
    if args.dry_run or args.minutes:
        chosen = estimated(chosen, args.minutes, show=args.dry_run)
    if args.dry_run:
        return
    done = run(chosen, args.out, resume=args.resume, overwrite=args.overwrite)
    if os.environ.get("RANK", "0") == "0":
        values = "  ".join(f"{key} {value:.6g}" for key, value in done.metrics.items())
        print(f"{done.folder}: {values}")


def given(name: str, key: str) -> bool:
    """Whether a recipe's file itself sets a key."""
    from ziggurat.engine.recipe import ROWS, read

    found = read(name)[1]
    return any(row.get(key) for row in (found, *found.get(ROWS, [])))


def estimated(chosen: Any, minutes: float | None, show: bool) -> Any:
    """What a run would take, printed if asked; its epochs set to ``minutes`` if given."""
    from rich.console import Console

    from ziggurat.engine.estimate import estimate

    console = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
    with console.status("measuring a few steps"):
        found = estimate(chosen)
    if minutes:
        epochs = round(found.epochs_in(minutes, chosen.eval_epochs), 2)
        chosen = chosen.model_copy(update={"epochs": epochs, "cooldown_epochs": 0.0})
        console.print(f"{minutes:g} minutes are {epochs:g} epochs here", highlight=False)
    if show:
        print(chosen.dump())
        total = found.seconds(chosen.epochs + chosen.cooldown_epochs, chosen.eval_epochs)
        print(f"# {found.images} images to train on, {found.test_images} to test on")
        print(f"# {found.per_epoch} steps an epoch, {found.step_seconds:.3g} s a step here")
        print(f"# {found.epoch_seconds / 60:.3g} minutes an epoch, {total / 3600:.3g} hours in all")
        print(f"# {found.memory / 2**20:.0f} MiB for a step, beside weights and optimiser")
    return chosen


def recipes() -> None:
    """Print all recipes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine.recipe import names, read

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("recipe", "task", "data", "models", "source"):
        table.add_column(column, no_wrap=column == "recipe")
    for name in names():
        found = read(name)[1]
        rows = [row.get("model", "") for row in found.get("rows", [])] or [found.get("model", "")]
        table.add_row(
            name, found["task"], found.get("data", "-"), " ".join(rows), found.get("source", "")
        )
    Console().print(table)


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


def data(args: argparse.Namespace) -> int:
    """Fetch a data set, or check your own before a long run."""
    if args.what == "get":
        from ziggurat.data.get import get

        print(get(args.name))
        return 0
    from rich.console import Console

    from ziggurat.data.check import check

    report = check(args.name)
    if args.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        Console().print(*report.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    return 0 if report.ok else 1


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


def size_of(sides: list[int] | None) -> tuple[int, int] | None:
    """--size: one side, or height and width."""
    if not sides:
        return None
    if len(sides) > 2 or min(sides) < 1:
        raise ValueError(f"--size takes one side or height and width in pixels, got {by(sides)}")
    return sides[0], sides[-1]


def picture(args: argparse.Namespace, size: tuple[int, int] | None) -> None:
    """Write what each stage makes of an image as a picture."""
    from ziggurat.engine.pictures import stage_sheet
    from ziggurat.models.registry import create_model

    if os.path.exists(args.picture) and not args.overwrite:
        raise FileExistsError(f"{args.picture} exists: take another name or --overwrite")
    sheet = stage_sheet(create_model(args.name), args.image, size)
    sheet.save(args.picture)
    print(f"wrote {args.picture}", file=sys.stderr)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1 up, got {text!r}")
    return int(text)


def by(sides: Sequence[int]) -> str:
    """3 x 224 x 224."""
    return " x ".join(map(str, sides))


def bar(part: int, whole: int, width: int = 12) -> str:
    """A share as a bar and in per cent."""
    share = part / whole if whole else 0.0
    return f"{BAR * round(share * width):<{width}} {share:5.1%}"


def parser() -> Parser:
    """All verbs and their options."""
    top = Parser(
        prog="ziggurat",
        description="Hierarchical vision transformers: NesT, HVT, ResT, HiViT, RegionViT.",
        epilog="example: ziggurat info hivit_base",
    )
    top.add_argument("--version", action="version", version=f"ziggurat {__version__}")
    top.add_argument("--debug", action="store_true", help="show a traceback for any error")
    verbs = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def verb(run: Any, example: str) -> argparse.ArgumentParser:
        line = (run.__doc__ or "").strip().splitlines()[0]
        name = example.split()[1]
        added = verbs.add_parser(name, help=line, description=line, epilog=f"example: {example}")
        added.set_defaults(run=run)
        return added

    one = verb(models, "ziggurat models 'hvt_*'")
    one.add_argument("pattern", nargs="?", default="*", help="a name, part of one, or a wildcard")
    one.add_argument("--json", action="store_true", help="for machines")

    one = verb(info, "ziggurat info regionvit_s --size 672 1120")
    one.add_argument("name", help="a model's name: `ziggurat models` lists ours; timm's work too")
    one.add_argument("--size", type=int, nargs="+", metavar="PIXELS", help="side, or height width")
    one.add_argument("--json", action="store_true", help="for machines")
    one.add_argument("--picture", metavar="PNG", help="also draw what each stage makes of an image")
    one.add_argument("--image", metavar="FILE", help="the image for --picture (a photo by default)")
    one.add_argument("--overwrite", action="store_true", help="replace an existing picture")

    def training(added: argparse.ArgumentParser, recipe: str | None = None) -> None:
        about = "a recipe's name (`ziggurat train --list`) or file"
        about += f"; {recipe} if not given" if recipe else ""
        added.add_argument("recipe", nargs="?", default=recipe, help=about)
        added.set_defaults(default_recipe=recipe)
        added.add_argument("--data", help="a name, folder, list (.csv, .txt), .npz or tar shards")
        added.add_argument("--model", help="a model; the recipe's first if not given")
        added.add_argument("--init", help="start from: a run's folder, a checkpoint, a hub id")
        added.add_argument(
            "--set",
            metavar="KEY=VALUE",
            nargs="+",
            default=[],
            action="extend",
            help="change any setting of the recipe",
        )
        added.add_argument("--seed", type=int, help="of all random numbers")
        added.add_argument("--out", metavar="DIR", help="the run's folder; runs/RECIPE by default")
        added.add_argument("--resume", action="store_true", help="go on where the run stopped")
        added.add_argument("--overwrite", action="store_true", help="start an existing run again")
        added.add_argument(
            "--dry-run",
            action="store_true",
            help="print the resolved recipe, and the time and memory it takes",
        )
        added.add_argument("--minutes", type=float, help="as many epochs as fit into this time")

    one = verb(train, "ziggurat train nest/digits --out runs/digits")
    training(one)
    one.add_argument("--list", action="store_true", help="list all recipes")

    training(
        verb(finetune, "ziggurat finetune --init runs/digits --data photos/ --set epochs=5"),
        "any/finetune",
    )
    training(verb(probe, "ziggurat probe --init runs/digits --data digits"), "any/probe")
    one = verb(distill, "ziggurat distill nest/digits --teacher runs/teacher")
    training(one)
    one.add_argument("--teacher", help="a run's folder, a hub id, or a model's name")
    one.add_argument("--teacher-weights", help="a checkpoint of the teacher, or package:NAME")

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

    one = verb(data, "ziggurat data check photos/")
    one.add_argument("what", choices=("get", "check"), help="fetch a set, or check one")
    one.add_argument("name", help="cifar10, cifar100, fashion-mnist, pets, cars; check: any --data")
    one.add_argument("--json", action="store_true", help="for machines")
    top.verbs = list(verbs.choices)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; a user's mistake is one line and exit code 2."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        stopped = getattr(error, "exit_code", None)  # saved, and says how to go on
        if stopped is not None:
            print(f"ziggurat: {error}", file=sys.stderr)
            return int(stopped)
        if not isinstance(error, ValueError | TypeError | OSError | ImportError):
            raise
        if args.debug:
            raise
        words = str(error)
        if "Original Traceback" in words:  # of a worker that reads data
            words = words.strip().splitlines()[-1]
        print(f"ziggurat: {words}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
