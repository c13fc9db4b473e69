"""The verbs that train: ``train``, ``pretrain``, ``finetune``, ``probe``, ``distill``."""

import argparse
import os
from typing import Any

from ziggurat.cli.verb import Verb


def train(args: argparse.Namespace) -> None:
    """Train a model as a recipe says: progress, checkpoints, report."""
    if args.list:
        recipes()
        return
    start(args, {})


def pretrain(args: argparse.Namespace) -> None:
    """Learn from images without labels: parts are hidden and painted back."""
    start(args, {"task": "pretrain"})


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
    from ziggurat.engine.folder import default_folder
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

    from ziggurat.engine.detection_cost import in_words
    from ziggurat.engine.estimate import estimate
    from ziggurat.tasks.detect import Detect

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
        print(f"# {found.images} {found.task.noun} to train on, {found.test_images} to test on")
        print(f"# {found.per_epoch} steps an epoch, {found.step_seconds:.3g} s a step here")
        print(f"# {found.epoch_seconds / 60:.3g} minutes an epoch, {total / 3600:.3g} hours in all")
        print(f"# {found.memory / 2**20:.0f} MiB for a step, beside weights and optimiser")
        if isinstance(found.task, Detect):
            print(f"# {in_words(found.task)}")
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


def options(added: argparse.ArgumentParser, recipe: str | None = None) -> None:
    """What every training takes; ``recipe`` is the one if none is given."""
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


def add(verb: Verb) -> None:
    """Add them with their options."""
    one = verb(train, "ziggurat train nest/digits --out runs/digits")
    options(one)
    one.add_argument("--list", action="store_true", help="list all recipes")

    options(verb(pretrain, "ziggurat pretrain hivit/mae_small --data photos/ --minutes 30"))
    options(
        verb(finetune, "ziggurat finetune --init runs/digits --data photos/ --set epochs=5"),
        "any/finetune",
    )
    options(verb(probe, "ziggurat probe --init runs/digits --data digits"), "any/probe")
    one = verb(distill, "ziggurat distill nest/digits --teacher runs/teacher")
    options(one)
    one.add_argument("--teacher", help="a run's folder, a hub id, or a model's name")
    one.add_argument("--teacher-weights", help="a checkpoint of the teacher, or package:NAME")
