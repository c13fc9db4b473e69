"""How much of the machine each family uses, against the libraries' own, and on every backend.

    python benchmarks/efficiency.py             # into benchmarks/results/efficiency.json
    python benchmarks/efficiency.py --again     # all of it, whatever is there

Five measurements of ``ziggurat bench``, each an interleaved run (``ziggurat.engine.contest``):

    families   one model of each family, DeiT-S and others of like cost: eager, batch 8
    infer      NesT-T against timm's with the same weights, in inference
    train      and in training steps, with memory
    batch 8    four families on every backend
    batch 1    the same for one image

What is there of this commit and machine is kept: a stopped run goes on with what is missing.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import study
from rich.console import Console

from ziggurat.cli.verb import progress
from ziggurat.engine import results, tradeoff
from ziggurat.engine.contest import SEED, Wanted, contest

RESULTS = study.RESULTS / "efficiency.json"
PICTURE = study.ROOT / "docs" / "efficiency.png"
DEIT = "timm/deit_small_patch16_224"
NAMES = {
    "nest_tiny": "NesT-T",
    "hvt_s_1": "HVT-S-1",
    "rest_small": "ResT-Small",
    "hivit_tiny": "HiViT-T",
    "regionvit_s": "RegionViT-S",
}
OTHERS = ("timm/swin_tiny_patch4_window7_224", "timm/resnet50", "timm/hiera_tiny_224")
TWINS = ("timm/nest_tiny", "nest_tiny")
ON_BACKENDS = ("nest_tiny", "hivit_tiny", "regionvit_s", "hvt_s_1")
BACKENDS = ("eager", "compile", "onnx", "openvino")
PARTS = {
    "families": Wanted([DEIT, *NAMES, *OTHERS]),
    "infer": Wanted(TWINS),
    "train": Wanted(TWINS, mode="train"),
    "batch 8": Wanted(ON_BACKENDS, batches=(8,), backends=BACKENDS, rounds=8),
    "batch 1": Wanted(ON_BACKENDS, batches=(1,), backends=BACKENDS, rounds=8),
}


def there(out: Path) -> dict[str, Any]:
    """What was measured by this very code on this machine; code that is not committed is not."""
    if not out.exists():
        return {}
    found = json.loads(out.read_text())
    now = results.commit()
    same = now is not None and not now.endswith("+") and found["commit"] == now
    return found["measured"] if same and found["hardware"] == results.hardware() else {}


def measure(
    out: Path, again: bool, rounds: int | None = None, backends: Sequence[str] = BACKENDS
) -> dict[str, Any]:
    """Each part that is missing, written as soon as it is there."""
    measured = {} if again else there(out)
    for part, wanted in PARTS.items():
        if part not in measured:
            if len(wanted.backends) > 1:
                wanted = replace(wanted, backends=backends)
            with progress(part) as tick:
                measured[part] = contest(replace(wanted, rounds=rounds or wanted.rounds), tick)
            results.write(out, measured, SEED)
    return measured


def families(measured: Mapping[str, Any]) -> str:
    """Shares of the peak, and against DeiT-S's: its speed a multiply-add is 1."""
    rows = measured["families"]["rows"]
    deit = next(row for row in rows if row["model"] == DEIT)
    lines = [
        "| | multiply-adds | share of the peak | against DeiT-S's | middle half of the rounds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, middle, high = (value * row["macs"] / deit["macs"] for value in row["speed"])
        name = NAMES.get(row["model"]) or f"timm's `{tradeoff.short(row['model'])}`"
        lines.append(
            f"| {name} | {row['macs'] / 1e9:.1f} G | {row['peak_share'][1]:.0%} "
            f"| **{middle:.2f}** | {low:.2f} to {high:.2f} |"
        )
    return "\n".join(lines)


def twins(measured: Mapping[str, Any]) -> str:
    """NesT-T and timm's."""
    lines = [
        "| NesT-T against timm's, the same weights | speed-up | middle half of the rounds "
        "| memory, ours / theirs |",
        "| --- | --- | --- | --- |",
    ]
    for part, name in (("infer", "inference"), ("train", "training step")):
        theirs, ours = measured[part]["rows"]
        low, middle, high = ours["speed"]
        lines.append(
            f"| {name} | **{middle:.2f}** | {low:.2f} to {high:.2f} "
            f"| {ours['memory_mib'] / theirs['memory_mib']:.2f} |"
        )
    return "\n".join(lines)


def backends(measured: Mapping[str, Any]) -> str:
    """Shares of the peak, and speed against eager."""
    rows = [row for part in ("batch 8", "batch 1") for row in measured[part]["rows"]]
    kinds = list(dict.fromkeys(row["backend"] for row in rows))
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    heads = [f"{kind}, batch {batch}" for batch in batches for kind in kinds]
    lines = [f"| share of the peak (x eager) | {' | '.join(heads)} |"]
    lines.append("| --- " * (1 + len(heads)) + "|")
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for batch in batches:
            own = [row for row in rows if (row["model"], row["batch"]) == (model, batch)]
            best = max(own, key=lambda row: row["over_first"][1])
            for row in own:
                over = "" if row["backend"] == "eager" else f" ({row['over_first'][1]:.2f})"
                share = f"{row['peak_share'][1]:.0%}"
                cells.append((f"**{share}**" if row is best else share) + over)
        lines.append(f"| {NAMES[model]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown(measured: Mapping[str, Any]) -> str:
    """All tables as the README shows them."""
    return "\n\n".join(table(measured) for table in (families, twins, backends))


def main() -> None:
    """Measure what is missing, write the results file, the picture and the README's tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, help="of every part (12, on backends 8)")
    parser.add_argument(
        "--backend", nargs="+", choices=BACKENDS, default=BACKENDS, help="eager first (all)"
    )
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parse_args()
    measured = measure(args.out, args.again, args.rounds, args.backend)
    ours = args.out == RESULTS
    picture = tradeoff.draw(measured["families"], PICTURE if ours else args.out.with_suffix(".png"))
    print(f"wrote {args.out} and {picture}")
    if ours:
        study.update_readme("efficiency", markdown(measured))
    Console().print(markdown(measured))


if __name__ == "__main__":
    main()
