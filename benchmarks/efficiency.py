"""How much of the machine each family uses, against the libraries' own, and on every backend.

    python benchmarks/efficiency.py             # into benchmarks/results/efficiency.json
    python benchmarks/efficiency.py --again     # all of it, whatever is there
    python benchmarks/efficiency.py --parts train bfloat16  # these; others stay as they are

Measurements of ``ziggurat bench``, each an interleaved run (``ziggurat.engine.contest``):

    families            a model of each family, DeiT-S and others of like cost: eager, batch 8
    infer               NesT-T against timm's with the same weights, in inference
    train               and in training steps, with memory; both with fused AdamW
    shipped             the same, each with the AdamW of its own loop: ours fused, timm's not
    batch 1, openvino   four families on a backend and eager, for one image; onnx and compile, too
    batch 8, openvino   the same for eight
    bfloat16            what the best backend gains by the smaller type, for one image

A backend is measured beside eager alone, as it is used: of another library's threads in the same
process it feels something. All but ``compile``, which takes minutes, and the last run in several
processes, one after the other: torch's kernel of attention is faster in one process than in
another, from its first call to its last.
What is there of this commit and machine is kept: a stopped run goes on with what is missing. Each
part says of which commit it is.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import study
import torch
from rich.console import Console
from timm.optim import create_optimizer_v2

from ziggurat.cli.verb import progress
from ziggurat.engine import bench, peers, results, tradeoff
from ziggurat.engine.contest import SEED, Wanted, contest

RESULTS = study.RESULTS / "efficiency.json"
PICTURES = study.ROOT / "docs"
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
PROCESSES = {
    "families": 5, "infer": 7, "train": 7, "shipped": 7,
    "batch 1, openvino": 5, "batch 1, onnx": 5, "batch 8, openvino": 3, "batch 8, onnx": 3,
}  # fmt: skip
RATIOS = ("speed", "over_first", "peak_share")
PARTS = {
    "families": Wanted([DEIT, *NAMES, *OTHERS], rounds=4),
    "infer": Wanted(TWINS, rounds=4),
    "train": Wanted(TWINS, mode="train", rounds=3),
    "shipped": Wanted(TWINS, mode="train", rounds=3),
    **{
        f"batch {batch}, {backend}": Wanted(
            ON_BACKENDS, batches=(batch,), backends=(BACKENDS[0], backend), rounds=5
        )
        for batch in (8, 1)
        for backend in reversed(BACKENDS[1:])
    },
    "bfloat16": Wanted(
        ON_BACKENDS,
        batches=(1,),
        backends=("eager", "openvino"),
        dtypes=("float32", "bfloat16"),
        rounds=8,
    ),
}
LEAST = {  # what each family's speed a multiply-add is to be, against DeiT-S's
    "nest_tiny": 0.9, "hvt_s_1": 1.0, "rest_small": 0.9, "hivit_tiny": 1.0, "regionvit_s": 0.9,
}  # fmt: skip
STEPS = {  # what NesT-T's speed is to be, against timm's
    "infer": ("inference", 1.3),
    "train": ("training step, both with fused AdamW", 1.2),
    "shipped": ("training step, each with the AdamW of its own loop", 1.2),
}
BEST = {  # of the best backend, by batch: a ratio, what it is to be, and what it is called
    8: ("peak_share", 0.85, "of the peak"),
    1: ("over_first", 1.3, "x eager"),
}
BY_TORCH = {  # whose shares are said of torch's own product, too
    "families": "eager at batch 8",
    "batch 8, openvino": "OpenVINO at batch 8",
}


def there(out: Path) -> dict[str, Any]:
    """What was measured by this very code on this machine; code that is not committed is not."""
    if not out.exists():
        return {}
    found = json.loads(out.read_text())
    now = results.commit()
    same = now is not None and not now.endswith("+") and found["commit"] == now
    return found["measured"] if same and found["hardware"] == results.hardware() else {}


def before(out: Path) -> dict[str, Any]:
    """All that is there, each part with its commit."""
    if not out.exists():
        return {}
    found = json.loads(out.read_text())
    if found["hardware"] != results.hardware():
        machine = ", ".join(map(str, found["hardware"].values()))
        raise SystemExit(f"{out} is of another machine ({machine}): give this one an --out")
    return {
        part: {"commit": found["commit"], **measured}
        for part, measured in found["measured"].items()
        if part in PARTS
    }


def measure(
    out: Path,
    again: bool,
    rounds: int | None = None,
    backends: Sequence[str] = BACKENDS,
    parts: Sequence[str] = (),
) -> dict[str, Any]:
    """Each part that is missing, written as soon as it is there; with ``parts`` these, anew."""
    now = results.commit()
    measured = {part: found for part, found in there(out).items() if found.get("commit") == now}
    if again:
        measured = {}
    if parts:
        measured = {part: found for part, found in before(out).items() if part not in parts}
    for part, wanted in PARTS.items():
        if part in measured or (parts and part not in parts) or set(wanted.backends) - {*backends}:
            continue
        wanted = replace(wanted, rounds=rounds or wanted.rounds)
        with progress(part) as tick:
            run = shipped if part == "shipped" else contest
            if part in PROCESSES:
                found = apart(run, wanted, PROCESSES[part], tick)
            else:
                found = run(wanted, tick)
        measured[part] = {"commit": now, **found}
        results.write(out, measured, SEED)
    return measured


def apart(
    run: Callable[[Wanted, bench.Tick], dict[str, Any]],
    wanted: Wanted,
    processes: int,
    tick: bench.Tick,
) -> dict[str, Any]:
    """The same in several processes: of ratios, the middle one and the middle half of them."""
    found = []
    for number in range(processes):
        tick(number, processes)
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found.append(process.apply(run, (wanted, untold)))
    for row, *every in zip(*(one["rows"] for one in found), strict=True):
        row["processes"] = {
            name: [one[name][1] for one in (row, *every)] for name in RATIOS if name in row
        }
        for name, values in row["processes"].items():
            row[name] = bench.spread(values).rounded(4)
    return found[0]


def untold(done: int, total: int) -> None:
    """A process's own progress."""


def shipped(wanted: Wanted, tick: bench.Tick) -> dict[str, Any]:
    """A training step as either's own script does it: timm's asks for no fused optimiser."""
    torch.manual_seed(SEED)
    theirs, ours = (
        peers.build(name, None, **options)
        for name, options in zip(TWINS, ({}, peers.TIMMS), strict=True)
    )
    peers.share_weights(ours, theirs, 224)
    images = torch.randn(wanted.batches[0], 3, 224, 224)
    runs = {
        TWINS[0]: bench.training(
            theirs, images, optimizer=create_optimizer_v2(theirs, "adamw", lr=bench.LR)
        ),
        TWINS[1]: bench.training(ours, images),
    }
    spent = bench.interleaved(runs, wanted.rounds, tick)
    speeds = {name: bench.ratio(spent[TWINS[0]], spent[name]).rounded() for name in TWINS}
    return {"rows": [{"model": name, "speed": speed} for name, speed in speeds.items()]}


def against_deit(measured: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Speed a multiply-add against DeiT-S's: the median and the middle half around it."""
    rows = {row["model"]: row for row in measured["families"]["rows"]}
    return {
        name: tuple(value * row["macs"] / rows[DEIT]["macs"] for value in row["speed"])
        for name, row in rows.items()
    }


def on_backends(measured: Mapping[str, Any], batch: int) -> list[dict[str, Any]]:
    """Every model on every backend; eager beside the first of them."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for part in PARTS:
        if part.startswith(f"batch {batch},"):
            for row in measured.get(part, {"rows": []})["rows"]:
                found.setdefault((row["model"], row["backend"]), row)
    return sorted(found.values(), key=lambda row: BACKENDS.index(row["backend"]))


def missed(measured: Mapping[str, Any]) -> list[str]:
    """What is below its aim, be it by little."""
    found = [(NAMES[name], aim, against_deit(measured)[name]) for name, aim in LEAST.items()]
    for part, (what, aim) in STEPS.items():
        if part in measured:
            found.append((f"NesT-T, {what}", aim, measured[part]["rows"][1]["speed"]))
    for batch, (ratio, aim, unit) in BEST.items():
        rows = on_backends(measured, batch)
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row[ratio] for row in rows if row["model"] == model]
            what = f"{NAMES[model]}, batch {batch}, {unit}"
            found.append((what, aim, max(own, key=lambda x: x[1])))
    return [f"{what} ({spread[1]:.3g} of {aim})" for what, aim, spread in found if spread[1] < aim]


def families(measured: Mapping[str, Any]) -> str:
    """Shares of the peak, and against DeiT-S's: its speed a multiply-add is 1."""
    lines = [
        "| | multiply-adds | share of the peak | against DeiT-S's | middle half of the processes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in measured["families"]["rows"]:
        low, middle, high = against_deit(measured)[row["model"]]
        name = NAMES.get(row["model"]) or f"timm's `{tradeoff.short(row['model'])}`"
        lines.append(
            f"| {name} | {row['macs'] / 1e9:.1f} G | {row['peak_share'][1]:.0%} "
            f"| **{middle:.2f}** | {low:.2f} to {high:.2f} |"
        )
    return "\n".join(lines)


def twins(measured: Mapping[str, Any]) -> str:
    """NesT-T and timm's."""
    lines = [
        "| NesT-T against timm's, the same weights | speed-up | middle half of the processes "
        "| memory, ours / theirs |",
        "| --- | --- | --- | --- |",
    ]
    for part, (name, _) in STEPS.items():
        if part in measured:
            theirs, ours = measured[part]["rows"]
            low, middle, high = ours["speed"]
            memory = f"{ours['memory_mib'] / theirs['memory_mib']:.2f}" if part != "shipped" else ""
            lines.append(f"| {name} | **{middle:.2f}** | {low:.2f} to {high:.2f} | {memory} |")
    return "\n".join(lines)


def backends(measured: Mapping[str, Any]) -> str:
    """Shares of the peak, and speed against eager."""
    rows = [row for batch in BEST for row in on_backends(measured, batch)]
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


def room(measured: Mapping[str, Any]) -> str:
    """What the aim at batch 1 asks of the machine, since eager takes most of it already."""
    aim = BEST[1][1]
    shares = {
        NAMES[row["model"]]: aim * row["peak_share"][1]
        for row in on_backends(measured, 1)
        if row["backend"] == "eager"
    }
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return f"At batch 1, {aim} x eager would be this share of the peak: {said}."


def smaller(measured: Mapping[str, Any]) -> list[str]:
    """What bfloat16 gives beyond, if it was measured."""
    said = [
        f"{NAMES[row['model']]} {row['over_first'][1]:.2f}"
        for row in measured.get("bfloat16", {"rows": []})["rows"]
        if (row["backend"], row["dtype"]) == ("openvino", "bfloat16")
    ]
    much = "In bfloat16, of two to three digits, OpenVINO is so many times as fast for one image as"
    return [f"{much} eager in float32: {', '.join(said)} (`--dtype bfloat16`)."] if said else []


def by_torch(measured: Mapping[str, Any]) -> list[str]:
    """What shares would be of torch's own product, where another library's does more."""
    peaks = {part: measured[part]["peak"][0] for part in BY_TORCH if part in measured}
    owns = {
        part: peak["libraries"]["torch.mm"][1] / peak["gflops"][1]
        for part, peak in peaks.items()
        if peak.get("library", "torch.mm") != "torch.mm"
    }
    if "families" not in owns:
        return []
    said = []
    for part, of in owns.items():
        rows = [row for row in measured[part]["rows"] if row["backend"] != "eager"]
        shares = [
            f"{NAMES.get(row['model'], 'DeiT-S')} {row['peak_share'][1] / of:.0%}"
            for row in rows or measured[part]["rows"][:1]  # of the eager ones DeiT-S
        ]
        said.append(f"{BY_TORCH[part]}: {', '.join(shares)}")
    return [
        f"The peak is oneDNN's: on this processor torch's own product (`torch.mm`, MKL's, with "
        f"which timm's models multiply, too) does {owns['families']:.0%} of it. As shares of that "
        f"one: {'; '.join(said)}."
    ]


def markdown(measured: Mapping[str, Any]) -> str:
    """All tables as the README shows them, and what is below its aim."""
    below = missed(measured)
    said = [f"Below what was aimed at: {'; '.join(below)}."] if below else []
    if "x eager" in " ".join(below):
        said.append(room(measured))
    said += [*by_torch(measured), *smaller(measured)]
    return "\n\n".join([families(measured), twins(measured), *said, backends(measured)])


def main() -> None:
    """Measure what is missing, write the results file, the picture and the README's tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, help="of every part (12; of others 3 to 8)")
    parser.add_argument(
        "--backend", nargs="+", choices=BACKENDS, default=BACKENDS, help="eager first (all)"
    )
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=(), help="these alone, anew")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parse_args()
    measured = measure(args.out, args.again, args.rounds, args.backend, args.parts)
    place = PICTURES if args.out.resolve().parent == study.RESULTS else args.out.parent
    picture = tradeoff.draw(measured["families"], place / f"{args.out.stem}.png")
    print(f"wrote {args.out} and {picture}")
    study.show(args.out, markdown(measured))
    Console().print(markdown(measured))


if __name__ == "__main__":
    main()
