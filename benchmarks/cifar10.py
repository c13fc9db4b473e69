"""Every family, a DeiT and a ResNet of 1 to 2 M parameters on CIFAR-10, for the same time each.

    ziggurat data get cifar10
    python benchmarks/cifar10.py                    # what is missing in benchmarks/results/cifar10
    python benchmarks/cifar10.py nest resnet --seeds 0 1 2

A small-scale study: some 8 minutes a run on two cores, a few passes over the data, where papers
take hundreds. The shapes and the learning rate were chosen on a tenth of the training images, not
on those tested here. Runs go one after the other; a finished one is kept, a stopped one goes on.
The first seed's time decides on the steps, and further seeds take as many.
"""

import statistics
from pathlib import Path
from typing import Any

import study
from rich.console import Console

from ziggurat.engine.measure import count
from ziggurat.engine.recipe import parse

RESULTS = study.RESULTS / "cifar10"
MODELS = ("nest", "hvt", "rest", "hivit", "regionvit", "deit", "resnet")


def run(model: str, seed: int, minutes: float, folder: Path) -> None:
    """One training, unless its result is there."""
    words = ["train", f"{model}/cifar10_small", "--seed", str(seed)]
    if first := study.kept(RESULTS).get(model):  # as many steps, whatever the machine does now
        words += ["--set", f"epochs={first[0]['measured']['recipe']['epochs']}"]
    else:
        words += ["--minutes", str(minutes)]
    command = f"python benchmarks/cifar10.py {model} --seeds {seed} --minutes {minutes:g}"
    study.run(words, folder / f"{model}-{seed}", RESULTS / f"{model}-{seed}.json", command)


def rows() -> list[dict[str, Any]]:
    """What was measured, a row for each model, the best first."""
    made = []
    for model, runs in study.kept(RESULTS).items():
        recipe = parse(runs[0]["measured"]["recipe"], model)
        cost = count(recipe.model, 32, num_classes=10, **recipe.model_args)
        tops = [one["measured"]["test"]["top1"] for one in runs]
        made.append(
            {
                "model": model,
                "params": cost.params,
                "macs": cost.macs,
                "epochs": runs[0]["measured"]["recipe"]["epochs"],
                "minutes": runs[0]["measured"]["minutes"],
                "top1": tops,
            }
        )
    return sorted(made, key=lambda row: -statistics.mean(row["top1"]))


def markdown() -> str:
    """The rows as the README shows them."""
    lines = ["| model | parameters | multiply-adds | epochs | minutes | top-1 (seeds) |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in rows():
        lines.append(
            f"| [{row['model']}](src/ziggurat/recipes/{row['model']}/cifar10_small.toml) "
            f"| {row['params'] / 1e6:.2f} M | {row['macs'] / 1e6:.0f} M | {row['epochs']:.1f} "
            f"| {row['minutes']:.1f} | {study.spread(row['top1'])} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = study.Parser(__doc__, MODELS, "runs/cifar10")
    parser.add_argument("--minutes", type=float, default=8)
    args = parser.parsed()
    for model in args.names:
        for seed in args.seeds:
            run(model, seed, args.minutes, args.runs)
            study.update("cifar10", markdown())
    Console().print(markdown())


if __name__ == "__main__":
    main()
