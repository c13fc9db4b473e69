"""The verb that measures models: ``bench``."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ziggurat.cli.verb import Verb, positive, progress

MODES = ("infer", "train", "pretrain")  # of ziggurat.engine.contest
BACKENDS = ("eager", "compile", "onnx", "openvino")  # of ziggurat.engine.backends
DTYPES = ("float32", "bfloat16")
WORDS = {
    "infer": "inference",
    "train": "training steps",
    "pretrain": "steps of masked pre-training",
}


def bench(args: argparse.Namespace) -> None:
    """Measure models by turns: throughput, latency, memory, share of the machine's peak."""
    from rich.console import Console

    from ziggurat.engine import results, tradeoff
    from ziggurat.engine.contest import SEED, Wanted, contest

    for file in filter(None, (args.out, args.plot)):
        if Path(file).is_dir():
            raise IsADirectoryError(f"{file} is a folder: name a file")
        if Path(file).exists() and not args.overwrite:
            raise FileExistsError(f"{file} exists: take another name or --overwrite")
    if args.plot and Path(args.plot).suffix.lower() != ".png":
        raise ValueError(f"--plot draws a PNG: take a name that ends in .png, got {args.plot}")
    wanted = Wanted(
        models=args.models,
        peers=args.peers,
        batches=together(args.batch) or (8,),
        sizes=together(args.sizes) or (None,),
        mode=args.mode,
        backends=together(args.backend) or ("eager",),
        dtypes=together(args.dtype) or ("float32",),
        rounds=args.rounds,
        against=args.against,
    )
    with progress("measuring", args.json) as tick:
        measured = contest(wanted, tick)
    if args.out:
        results.write(args.out, measured, SEED)
    if args.plot:
        tradeoff.draw(measured, Path(args.plot))
    if args.json:
        print(json.dumps(measured, indent=2))
        return
    for part in tables(measured):
        Console(markup=False, emoji=False).print(part)
    for line in measured["notes"]:
        print(line)
    for file in (args.out, args.plot):
        if file:
            print(f"wrote {file}")


def tables(measured: dict[str, Any]) -> Iterator[Any]:
    """One for each size, batch and backend."""
    from rich import box
    from rich.table import Table

    from ziggurat.engine.tradeoff import grouped, kind_of, kinds, peak_of, short

    processors = "GPU" if measured["device"] == "cuda" else threads(measured["threads"])
    first = kinds(measured["rows"])[0]
    types = {row["dtype"] for row in measured["rows"]}
    reference = first.replace(", ", "\n") if len(types) > 1 else first.split(",")[0]
    for (size, batch), group in grouped(measured["rows"]).items():
        for kind in kinds(group):
            own = [row for row in group if kind_of(row) == kind]
            peak = f"peak {peak_of(measured, own[0]):.0f} GFLOP/s"
            about = f"{size} px, batch {batch}, {kind}, {processors}; {peak}"
            made = Table(
                box=box.SIMPLE_HEAD,
                pad_edge=False,
                padding=(0, 1, 0, 0),
                title=f"{WORDS[measured['mode']]}; {about}",
            )
            made.add_column("model", overflow="fold", min_width=10)
            counts = ["params", "FLOPs"] if kind == first else []
            heads = [*counts, "img/s", "ms", "p95", "MiB", "peak", "speed", "half"]
            for head in [*heads, *([] if kind == first else [f"x {reference}"])]:
                made.add_column(head, justify="right", no_wrap=True)
            for row in own:
                before, behind = [f"{row['params'] / 1e6:.1f}", f"{row['macs'] / 1e9:.2f}"], []
                if kind != first:
                    before, behind = [], [f"{row['over_first'][1]:.2f}"]
                made.add_row(short(row["model"]), *before, *cells(row), *behind)
            yield made
    yield (
        "params in millions; FLOPs (multiply-adds of an image) in billions; ms a batch, median and "
        "p95; MiB beside weights, optimiser and images; peak: share of what a matrix "
        f"product does at best; speed: {measured['against']} = 1, and the middle half of "
        f"{measured['rounds']} rounds"
    )


def threads(number: int) -> str:
    """So many."""
    return f"{number} thread{'s' * (number > 1)}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """What was measured of one."""
    low, middle, high = row["speed"]
    memory, late = row["memory_mib"], row["latency_p95_ms"]
    digits = 0 if row["latency_ms"] >= 100 else 1
    return [
        f"{row['per_second']:.4g}",
        f"{row['latency_ms']:.{digits}f}",
        "-" if late is None else f"{late:.{digits}f}",
        "-" if memory is None else f"{memory:.0f}",
        f"{row['peak_share'][1]:.0%}",
        f"{middle:.2f}",
        f"{low:.2f}–{high:.2f}",
    ]


def together(given: Sequence[Sequence[Any]] | None) -> tuple[Any, ...]:
    """All values of an option, in their order, each once."""
    return tuple(dict.fromkeys(value for part in given or () for value in part))


def numbers(text: str) -> list[int]:
    """Whole numbers from 1 up, with commas between."""
    return [positive(part) for part in text.split(",")]


def words(known: Sequence[str]) -> Any:
    """Some of these words, with commas between."""

    def parsed(text: str) -> list[str]:
        for part in text.split(","):
            if part not in known:
                raise argparse.ArgumentTypeError(f"takes {', '.join(known)}, got {part!r}")
        return text.split(",")

    return parsed


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(bench, "ziggurat bench nest_tiny hivit_tiny --peers --batch 8 1 --plot speed.png")
    one.add_argument(
        "models", nargs="+", metavar="MODEL", help="ours, timm/NAME or vit-pytorch/NAME"
    )
    one.add_argument(
        "--peers", action="store_true", help="also the same elsewhere, and others of like cost"
    )
    one.add_argument("--against", metavar="MODEL", help="whom ratios are to (the first)")
    one.add_argument("--mode", choices=MODES, default="infer", help="of the three (infer)")
    one.add_argument("--batch", type=numbers, nargs="+", metavar="N", help="images at a time (8)")
    one.add_argument(
        "--sizes", type=numbers, nargs="+", metavar="PIXELS", help="sides (each model's own)"
    )
    for option, known in (("--backend", BACKENDS), ("--dtype", DTYPES)):
        one.add_argument(
            option, type=words(known), nargs="+", metavar="NAME", help=f"of {', '.join(known)}"
        )
    one.add_argument("--rounds", type=positive, default=12, help="turns of each (12)")
    one.add_argument("--out", metavar="JSON", help="write the results, with commit and hardware")
    one.add_argument("--plot", metavar="PNG", help="draw accuracy and cost against throughput")
    one.add_argument("--json", action="store_true", help="for machines")
    one.add_argument("--overwrite", action="store_true", help="replace what exists")
