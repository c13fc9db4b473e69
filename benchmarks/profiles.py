"""Where the time of inference goes: each kind of operation, and how fast it multiplies.

    python benchmarks/profiles.py               # into results/profiles.json and docs/bench.md

Models take turns under torch's profiler, on as many threads as torch takes, batch 8, 224 px. An
operation's time is the least of all turns; its speed is its counted FLOPs over that time, over
what a large matrix product does. What a model lacks to the peak is time at a speed below 1.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import study
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.engine import bench, peers, results

RESULTS = study.RESULTS / "profiles.json"
BATCH, SIZE = 8, 224
SEED = 0
NAMES = {
    "timm/deit_small_patch16_224": "timm's DeiT-S",
    "timm/nest_tiny": "timm's NesT-T",
    "nest_tiny": "NesT-T",
    "regionvit_s": "RegionViT-S",
    "rest_small": "ResT-Small",
}
KINDS = {  # what torch calls its operations
    "linear layers": ("_linear_pointwise", "addmm", "mm"),
    "convolutions": ("convolution", "mkldnn_convolution"),
    "attention": (
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
        "scaled_dot_product_attention", "bmm", "baddbmm", "_softmax", "_safe_softmax", "softmax",
        "all", "where", "isneginf", "linalg_vector_norm",
    ),
    "GELU, ReLU, sigmoid": ("gelu", "clamp_min_", "sigmoid"),
    "norms": ("native_layer_norm", "native_batch_norm"),
    "sums, scaling": ("add", "add_", "mul", "sub", "sum", "mean"),
    "copies": ("copy_", "cat"),
}  # fmt: skip
REST = "all else"


def kind_of(operation: str) -> str:
    """Of ``aten::addmm`` or ``aten.addmm``."""
    name = operation.replace("::", ".").rpartition(".")[2]
    return next((kind for kind, names in KINDS.items() if name in names), REST)


def flops(run: bench.Run) -> dict[str, int]:
    """Of a pass, by kind."""
    with FlopCounterMode(display=False) as counter:
        run()
    found: dict[str, int] = defaultdict(int)
    for operation, count in counter.get_flop_counts()["Global"].items():
        found[kind_of(str(operation))] += count
    return found


def milliseconds(run: bench.Run) -> dict[str, float]:
    """Of a pass, by operation: without what it calls."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return {event.key: event.self_cpu_time_total / 1000 for event in found.key_averages()}


def measure(rounds: int) -> dict[str, Any]:
    """All models by turns, a large product in each round."""
    torch.manual_seed(SEED)
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    models = {
        name: peers.build(name, None, **(peers.TIMMS if name in peers.TWINS else {}))
        for name in NAMES
    }
    runs = {  # who counts FLOPs would hang on to the gradients
        name: bench.inference(model.requires_grad_(False), images) for name, model in models.items()
    }
    product = bench.fastest_product(torch.float32)
    work = {name: flops(run) for name, run in runs.items()}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    products = []
    for _ in range(rounds):
        products += bench.clocked(product.run, 3)
        for name, run in runs.items():
            run()
            spent[name].append(milliseconds(run))
    peak = product.flops / min(products)
    return {
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "peak_gflops": round(peak / 1e9, 1),
        "models": {name: by_kind(spent[name], work[name], peak) for name in NAMES},
    }


def by_kind(
    turns: list[dict[str, float]], work: Mapping[str, int], peak: float
) -> dict[str, dict[str, float]]:
    """Milliseconds, and the share of the peak at which a kind multiplies."""
    spent: dict[str, float] = defaultdict(float)
    for operation in turns[0]:
        spent[kind_of(operation)] += min(turn.get(operation, 0.0) for turn in turns)
    return {
        kind: {
            "ms": round(spent[kind], 2),
            "speed": round(work.get(kind, 0) / peak / (spent[kind] / 1000), 3),
        }
        for kind in (*KINDS, REST)
        if spent[kind]
    }


def markdown(measured: Mapping[str, Any]) -> str:
    """Share of the time, and in brackets the speed of what multiplies."""
    models = measured["models"]
    lines = [
        "| share of the time (speed, of the peak) | " + " | ".join(map(NAMES.__getitem__, models)),
        "| --- " * (1 + len(models)),
    ]
    totals = {name: sum(row["ms"] for row in kinds.values()) for name, kinds in models.items()}
    for kind in (*KINDS, REST):
        cells = []
        for name, kinds in models.items():
            row = kinds.get(kind, {"ms": 0.0, "speed": 0.0})
            speed = f" ({row['speed']:.2f})" if row["speed"] else ""
            cells.append(f"{row['ms'] / totals[name]:.1%}{speed}")
        lines.append(f"| {kind} | " + " | ".join(cells))
    whole = []
    for name, kinds in models.items():
        speed = sum(row["speed"] * row["ms"] for row in kinds.values()) / totals[name]
        whole.append(f"{totals[name]:.0f} ms (**{speed:.2f}**)")
    lines.append("| all | " + " | ".join(whole))
    return "\n".join(f"{line.rstrip()} |" for line in lines)


def main() -> None:
    """Measure, write the results file and the page's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parse_args()
    measured = measure(args.rounds)
    results.write(args.out, measured, SEED)
    study.show(args.out, markdown(measured))
    print(markdown(measured))


if __name__ == "__main__":
    main()
