"""What our training loop costs over a bare one, and how long it waits for data.

    python benchmarks/loop.py                # into benchmarks/results/loop.json

Both loops do the same mathematics on the same batches (NesT on CIFAR-10, 32 px): one step of each
in turn, so that the machine's moods hit both. Waiting is measured in a run of its own, with the
real augmentation in worker processes.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from ziggurat.cli.verb import progress
from ziggurat.engine import bench, results
from ziggurat.engine import recipe as recipes
from ziggurat.engine.processes import accelerator
from ziggurat.engine.train import Loop, build

RESULTS = Path(__file__).parent / "results" / "loop.json"
SEED = 0


class Bare:
    """A training loop as one writes it by hand."""

    def __init__(self, recipe: recipes.Recipe) -> None:
        self.task = build(recipe).train()
        model: Any = self.task.model
        free = model.no_weight_decay()
        plain: list[nn.Parameter] = []
        decayed: list[nn.Parameter] = []
        for name, p in model.named_parameters():
            (plain if p.ndim <= 1 or name in free else decayed).append(p)
        groups = [
            {"params": plain, "weight_decay": 0.0},
            {"params": decayed, "weight_decay": recipe.weight_decay},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.peak_lr)

    def step(self, batch: Any) -> None:
        """Forward, backward, update."""
        loss = self.task(batch)["loss"]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def overhead(recipe: recipes.Recipe, rounds: int) -> list[float]:
    """Our step's time over the bare one's, minus 1, for each round."""
    ours = Loop(recipe, None, accelerator("fp32"))
    bare = Bare(recipe)
    batches = list(ours.batches(rounds + 2))  # two of them to warm up
    own, others = iter(batches), iter(batches)
    runs: dict[str, bench.Run] = {
        "ours": lambda: ours.train_step(next(own)),
        "bare": lambda: bare.step(next(others)[0]),
    }
    with progress("steps") as tick:
        spent = bench.interleaved(runs, rounds, tick, turn=0)
    pairs = zip(spent["ours"], spent["bare"], strict=True)
    return [a.seconds / b.seconds - 1 for a, b in pairs]


def waiting(recipe: recipes.Recipe, steps: int) -> tuple[float, float]:
    """The share of time spent waiting for batches, and images a second, after warming up."""
    loop = Loop(recipe, None, accelerator("fp32"))
    for i, parts in enumerate(track(loop.batches(steps), "run", total=steps, transient=True)):
        if i == 3:
            loop.progress.flush(lambda found: found)
        loop.train_step(parts)
    line = loop.progress.flush(lambda found: found)
    return line["waiting"], line["images_per_s"]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", default="nest/cifar10_small")
    parser.add_argument("--data", help="other data than the recipe's")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    given = {} if args.data is None else {"data": args.data}
    never = {"log_steps": 10**6}
    plain = recipes.load(
        args.recipe,  # no workers: they would take turns with the two loops, not with one
        changes={**given, **never, "ema": None, "clip_grad": None, "workers": 0},
    )
    low, middle, high = bench.spread(overhead(plain, args.rounds))
    share, speed = waiting(recipes.load(args.recipe, changes=given | never), args.rounds)
    table = Table(title=f"{args.recipe}: {args.rounds} steps of {plain.batch} images")
    table.add_column("what")
    table.add_column("measured")
    table.add_row("our step over a bare one", f"{middle:+.1%} ({low:+.1%} to {high:+.1%})")
    table.add_row("waiting for data", f"{share:.1%}")
    table.add_row("images a second", f"{speed:.0f}")
    Console().print(table)
    found = {
        "recipe": args.recipe,
        "rounds": args.rounds,
        "overhead": round(middle, 4),
        "overhead_quartiles": [round(low, 4), round(high, 4)],
        "waiting": round(share, 4),
    }
    print(f"wrote {results.write(args.out, found, SEED)}")


if __name__ == "__main__":
    main()
