"""Our models against those of the libraries users have now, a pair at a time, by turns.

    python benchmarks/peers.py                  # all pairs, into benchmarks/results/peers.json
    python benchmarks/peers.py nest_tiny --rounds 20

Timed as everything is (``ziggurat.engine.bench``), two models alone by turns; a training step is
``ziggurat bench --mode train``'s, with fused AdamW on both sides. A model that is the same has the
same weights, and outputs are compared first. ``ziggurat bench --peers`` measures many
at once. Memory is what tensors take at the peak beyond weights, optimiser and images: exact, not
sampled.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import study
import torch
from rich.console import Console
from torch import nn

import ziggurat
from ziggurat.cli.verb import progress
from ziggurat.engine import bench, results
from ziggurat.engine.measure import count, peak_memory
from ziggurat.engine.peers import TIMMS, build, share_weights

RESULTS = Path(__file__).parent / "results" / "peers.json"
SEED = 0


class Pair(NamedTuple):
    """Ours and theirs: the same model, or (``same`` is False) one after the same paper."""

    ours: str
    peer: str
    build: Callable[[], nn.Module]
    same: bool = True
    overrides: dict[str, Any] = {}  # noqa: RUF012
    frames: int = 0  # of a clip; 0: they are models of images

    def build_ours(self) -> nn.Module:
        """Our side."""
        return ziggurat.create_model(self.ours, **self.overrides)


def theirs(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Another library's model of that name."""
    return lambda: build(name, **options)


PLAIN: dict[str, Any] = dict(class_token=False, global_pool="avg", fc_norm=False)
PAIRS = [
    Pair("nest_tiny", "timm", theirs("timm/nest_tiny"), overrides=dict(TIMMS)),
    Pair("nest_base", "timm", theirs("timm/nest_base"), overrides=dict(TIMMS)),
    Pair("nest_tiny", "vit-pytorch", theirs("vit-pytorch/nest_tiny"), same=False),
    Pair("regionvit_ti", "vit-pytorch", theirs("vit-pytorch/regionvit_ti"), same=False),
    Pair("regionvit_s", "vit-pytorch", theirs("vit-pytorch/regionvit_s"), same=False),
    Pair(
        "hvt_s_0",
        "timm's DeiT-S without class token",
        theirs("timm/deit_small_patch16_224", **PLAIN),
    ),
]


def measure(pair: Pair, batch: int, rounds: int) -> list[dict[str, Any]]:
    """One pair: inference and training."""
    torch.manual_seed(SEED)
    ours, peer = pair.build_ours(), pair.build()
    if pair.same:
        share_weights(ours, peer, 224)
    costs = [count(model, 224, 3) for model in (ours, peer)]
    clip = (pair.frames,) if pair.frames else ()
    images = torch.randn(batch, *clip, 3, 224, 224)
    about = {
        "ours": pair.ours,
        "peer": pair.peer,
        "same": pair.same,
        "params": [cost.params for cost in costs],
        "macs": [cost.macs for cost in costs],
    }
    title = f"{pair.ours} / {pair.peer}"
    return [
        about | against(ours, peer, (images, images), train, rounds, title)
        for train in (False, True)
    ]


def against(
    ours: nn.Module,
    peer: nn.Module,
    inputs: tuple[torch.Tensor, torch.Tensor],
    train: bool,
    rounds: int,
    title: str,
) -> dict[str, Any]:
    """Two models by turns, each on its own input: how much faster ours is, and the memory."""
    runs = {
        turn: bench.step(model, given, train)
        for turn, model, given in zip(("ours", "peer"), (ours, peer), inputs, strict=True)
    }
    with progress(title) as tick:
        spent = bench.interleaved(runs, rounds, tick)
    speedup = bench.ratio(spent["peer"], spent["ours"]).rounded()
    memory = [peak_memory(run) for run in runs.values()]
    batch = len(inputs[0])
    seconds = [statistics.median(turn.seconds for turn in turns) for turns in spent.values()]
    return {
        "mode": "train" if train else "infer",
        "optimizer": "AdamW" if train else None,
        "batch": batch,
        "rounds": rounds,
        "per_second": [round(batch / one, 4) for one in seconds],
        "speedup": speedup.middle,
        "speedup_quartiles": [speedup.low, speedup.high],
        "memory_ratio": round(memory[0] / memory[1], 3),
        "memory_ours_mib": round(memory[0] / 2**20, 1),
        "memory_peer_mib": round(memory[1] / 2**20, 1),
    }


def markdown(found: list[dict[str, Any]]) -> str:
    """The measured rows as the README shows them."""
    lines = [
        "| ours | against | multiply-adds, ours / theirs | | speed-up | middle half of the rounds "
        "| memory, ours / theirs |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for row in found:
        low, high = row["speedup_quartiles"]
        cost = "the same model" if row["same"] else f"{row['macs'][0] / row['macs'][1]:.2f}"
        lines.append(
            f"| `{row['ours']}` | {row['peer']} | {cost} | {mode(row)} "
            f"| **{row['speedup']:.2f}** | {low:.2f} to {high:.2f} | {row['memory_ratio']:.2f} |"
        )
    return "\n".join(lines)


def mode(row: dict[str, Any]) -> str:
    """What was timed; the first results have no optimiser in their steps."""
    if row["mode"] == "infer":
        return "inference"
    return "training step" if row.get("optimizer") else "forward and backward"


def main() -> None:
    """Measure the pairs asked for and write the results file; all pairs: into the README too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", help="our names; all pairs by default")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, help="results file; for all pairs the repository's")
    args = parser.parse_args()
    known = {pair.ours for pair in PAIRS}
    for name in args.models:
        if name not in known:
            parser.error(f"no peer for {name!r}: there are {', '.join(sorted(known))}")
    chosen = [pair for pair in PAIRS if not args.models or pair.ours in args.models]
    found = [row for pair in chosen for row in measure(pair, args.batch, args.rounds)]
    out = args.out or (None if args.models else RESULTS)
    if out is not None:
        print(f"wrote {results.write(out, found, SEED)}")
        study.show(out, markdown(found))
    Console().print(markdown(found))


if __name__ == "__main__":
    main()
