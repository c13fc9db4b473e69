"""What it saves to leave hidden units out: a pre-training step of HiViT-B, in one interleaved run.

    python benchmarks/pretrain.py               # into benchmarks/results/pretrain.json

The same step (forward, backward, AdamW) three ways: on the visible quarter of the units alone; as
the official code does it, every unit embedded and three quarters thrown away then, and every unit
painted and a quarter of that thrown away; and fed with all units, the hidden ones filled, as models
must be that cannot drop any (HiViT, Section 4.2: "almost 2x as fast"; Table 8). Beside them Swin-B
with SimMIM, the paper's own comparison.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import study
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ziggurat
from ziggurat.cli.verb import progress
from ziggurat.engine import bench, recipe, results
from ziggurat.engine.measure import peak_memory
from ziggurat.engine.train import build
from ziggurat.models.hivit import PatchEmbed
from ziggurat.tasks.masking import MaskedAutoencoder
from ziggurat.tasks.pretrain import Pretrain

RESULTS = study.RESULTS / "pretrain.json"
SEED = 0
OURS = "HiViT-B, visible units alone"
OFFICIAL = "HiViT-B, all embedded, then dropped (official code)"


class EmbedAll(PatchEmbed):
    """The official way: a convolution embeds all units, they are normed, then most are dropped."""

    def forward(self, images: Tensor, ids: Tensor | None) -> Tensor:
        """As PatchEmbed, later."""
        B, cells = len(images), self.cells
        x = self.proj(images)
        rows, cols = x.shape[2] // cells, x.shape[3] // cells
        x = x.reshape(B, -1, rows, cells, cols, cells).permute(0, 2, 4, 3, 5, 1)
        x = self.norm(x.reshape(B, rows * cols, cells, cells, -1))
        return x if ids is None else x[torch.arange(B)[:, None], ids]


class PaintAll(MaskedAutoencoder):
    """The official way: every unit is painted, then most of the loss is dropped."""

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """As MaskedAutoencoder, later."""
        found = self.painting(images, noise)
        return (self.error(found) * found.hidden).sum() / found.hidden.sum()


def hivit(feed: Any = "visible", official: bool = False) -> MaskedAutoencoder:
    """HiViT-B with its decoder."""
    kind = PaintAll if official else MaskedAutoencoder
    model = kind(ziggurat.create_model("hivit_base", rpe=False), feed=feed)
    if official:
        model.encoder.patch_embed.__class__ = EmbedAll
    return model


def swin(size: int) -> MaskedAutoencoder:
    """Swin-B as swin/simmim pre-trains it; its windows are a quarter of the last map but two."""
    changes = {"img_size": size, "model_args": {"window_size": size // 32}, "data": "digits"}
    task = build(recipe.load("swin/simmim", changes=changes))
    assert isinstance(task, Pretrain)
    return task.model


WAYS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    OURS: (hivit, 224),
    OFFICIAL: (partial(hivit, official=True), 224),
    "HiViT-B, fed with all units": (partial(hivit, "all"), 224),
    "Swin-B, SimMIM at 192 pixels": (partial(swin, 192), 192),
    "Swin-B, SimMIM at 224 pixels": (partial(swin, 224), 224),
}


def step(way: str, batch: int) -> bench.Run:
    """One training step of one way: forward, backward, AdamW."""
    torch.manual_seed(SEED)
    build, size = WAYS[way]
    return bench.training(build(), torch.randn(batch, 3, size, size))


def multiply_adds(way: str) -> int:
    """Of a forward and a backward pass with one image, counted on the meta device."""
    build, size = WAYS[way]
    model = build().to("meta")
    noise = torch.empty(1, (size // 16) ** 2, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, size, size, device="meta"), noise).backward()
    return int(counter.get_total_flops() // 2)


def measure(batch: int, rounds: int) -> list[dict[str, Any]]:
    """Each way in turn with ours, nothing else between: what came before is worth some per cent.

    The official way differs by little, and has four times as many rounds.
    """
    ours = step(OURS, batch)
    found = []
    for way in WAYS:
        runs = {"theirs": step(way, batch), "ours": ours}
        with progress(way) as tick:
            spent = bench.interleaved(runs, 4 * rounds if way == OFFICIAL else rounds, tick)
        low, middle, high = bench.ratio(spent["theirs"], spent["ours"]).rounded()
        pairs = zip(spent["theirs"], spent["ours"], strict=True)
        work = bench.spread([a.work / b.work for a, b in pairs]).rounded(4)
        memory = [peak_memory(run) for run in runs.values()]
        found.append(
            {
                "way": way,
                "batch": batch,
                "rounds": len(spent["ours"]),
                "time": middle,
                "seconds": [
                    round(statistics.median(turn.seconds for turn in turns), 3)
                    for turns in spent.values()
                ],
                "time_quartiles": [low, high],
                "work": work.middle,
                "work_quartiles": [work.low, work.high],
                "memory": round(memory[0] / memory[1], 3),
                "memory_mib": round(memory[0] / 2**20, 1),
            }
        )
    return found


def markdown(found: list[dict[str, Any]]) -> str:
    """The rows as the README shows them."""
    lines = [
        "| a step of | time, ours = 1 | middle half of the rounds | processor time | memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        low, high = row["time_quartiles"]
        lines.append(
            f"| {row['way']} | **{row['time']:.2f}** | {low:.2f} to {high:.2f} "
            f"| {row['work']:.2f} | {row['memory']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results file and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    found = measure(args.batch, args.rounds)
    Console().print(markdown(found))
    print(f"wrote {results.write(RESULTS, found, SEED)}")
    study.update("pretrain", markdown(found))


if __name__ == "__main__":
    main()
