"""Our models against those of the libraries users have now, in one interleaved run.

    python benchmarks/peers.py                  # all pairs, into benchmarks/results/peers.json
    python benchmarks/peers.py nest_tiny --rounds 20

Times on a shared machine wander; a ratio of two runs side by side does not. Each round runs ours
and the peer's once, in turn; what is printed is the median of the rounds' ratios and their middle
half. Memory is what tensors take at the step's peak beyond weights and images: exact, not sampled.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import study
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import ziggurat
from ziggurat.engine import results
from ziggurat.engine.measure import count, peak_memory

RESULTS = Path(__file__).parent / "results" / "peers.json"
MODES = {"infer": "inference", "train": "training step"}
SEED = 0


def vit_pytorch_nest() -> nn.Module:
    """vit-pytorch's NesT-T."""
    from vit_pytorch.nest import NesT

    return NesT(
        image_size=224,
        patch_size=4,
        dim=96,
        heads=3,
        num_hierarchies=3,
        block_repeats=(2, 2, 8),
        num_classes=1000,
    )


def vit_pytorch_regionvit(*dims: int) -> nn.Module:
    """vit-pytorch's RegionViT-Ti or -S."""
    from vit_pytorch.regionvit import RegionViT

    return RegionViT(
        dim=dims,
        depth=(2, 2, 8, 2),
        window_size=7,
        num_classes=1000,
        tokenize_local_3_conv=True,
        use_peg=False,
    )


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


TIMMS = dict(act_layer="gelu", pad_type="")  # timm's GELU and padding


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    """timm's model of that name."""
    return lambda: ziggurat.create_model(f"timm/{name}", **options)


PAIRS = [
    Pair("nest_tiny", "timm", timm("nest_tiny"), overrides=TIMMS),
    Pair("nest_base", "timm", timm("nest_base"), overrides=TIMMS),
    Pair("nest_tiny", "vit-pytorch", vit_pytorch_nest, same=False),
    Pair(
        "regionvit_ti", "vit-pytorch", lambda: vit_pytorch_regionvit(64, 128, 256, 512), same=False
    ),
    Pair(
        "regionvit_s", "vit-pytorch", lambda: vit_pytorch_regionvit(96, 192, 384, 768), same=False
    ),
    Pair(
        "hvt_s_0",
        "timm's DeiT-S without class token",
        timm("deit_small_patch16_224", class_token=False, global_pool="avg"),
    ),
]


def step(model: nn.Module, images: torch.Tensor, train: bool) -> None:
    """One forward pass, or one forward and backward."""
    if train:
        model.train()
        model(images).square().mean().backward()
        model.zero_grad(set_to_none=True)
    else:
        model.eval()
        with torch.inference_mode():
            model(images)


def seconds(model: nn.Module, images: torch.Tensor, train: bool) -> float:
    """How long one step takes."""
    start = time.perf_counter()
    step(model, images, train)
    return time.perf_counter() - start


def measure(pair: Pair, batch: int, rounds: int) -> list[dict[str, Any]]:
    """One pair: inference and training."""
    torch.manual_seed(SEED)
    ours, peer = pair.build_ours(), pair.build()
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
    both = list(zip((ours, peer), inputs, strict=True))
    for model, given in both:
        step(model, given, train)
    ratios: list[float] = []
    times: tuple[list[float], list[float]] = ([], [])
    for i in track(range(rounds), title, transient=True):
        spent = [0.0, 0.0]
        for turn in (0, 1) if i % 2 else (1, 0):
            spent[turn] = seconds(*both[turn], train)
            times[turn].append(spent[turn])
        ratios.append(spent[1] / spent[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    memory = [peak_memory(partial(step, model, given, train)) for model, given in both]
    batch = len(inputs[0])
    return {
        "mode": "train" if train else "infer",
        "batch": batch,
        "rounds": rounds,
        "per_second": [round(batch / statistics.median(spent), 4) for spent in times],
        "speedup": round(middle, 3),
        "speedup_quartiles": [round(low, 3), round(high, 3)],
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
            f"| `{row['ours']}` | {row['peer']} | {cost} | {MODES[row['mode']]} "
            f"| **{row['speedup']:.2f}** | {low:.2f} to {high:.2f} | {row['memory_ratio']:.2f} |"
        )
    return "\n".join(lines)


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
    table = Table(title=f"batch {args.batch}, 224 px, float32; above 1.00: ours is faster")
    for column in ("ours", "peer", "mode", "speed-up (middle half)", "memory, ours / peer"):
        table.add_column(column)
    for row in found:
        low, high = row["speedup_quartiles"]
        table.add_row(
            str(row["ours"]),
            str(row["peer"]),
            str(row["mode"]),
            f"{row['speedup']:.2f} ({low:.2f} to {high:.2f})",
            f"{row['memory_ratio']:.2f}",
        )
    Console().print(table)
    out = args.out or (None if args.models else RESULTS)
    if out is not None:
        print(f"wrote {results.write(out, found, SEED)}")
    if out == RESULTS:
        study.update_readme("peers", markdown(found))


if __name__ == "__main__":
    main()
