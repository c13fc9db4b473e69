"""The verbs that look at models: ``models``, ``info``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from ziggurat.cli.verb import BAR, Verb, positive


def models(args: argparse.Namespace) -> None:
    """Print our variants with counted and printed parameters and FLOPs."""
    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from ziggurat.engine.measure import count
    from ziggurat.engine.tables import printed
    from ziggurat.models.registry import VARIANTS, family_of, list_models, unknown

    pattern = args.pattern if any(c in args.pattern for c in "*?[") else f"*{args.pattern}*"
    names = list_models(pattern)
    if not names:
        raise ValueError(unknown(args.pattern, list(VARIANTS)))
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for name in track(names, "counting", console=console, transient=True, disable=args.json):
        found = count(name)
        paper = printed(name)
        rows.append(
            {
                "name": name,
                "family": family_of(name).__name__,
                "params": found.params,
                "macs": found.macs,
                "paper_params_m": paper.get("params_m"),
                "paper_flops_g": paper.get("flops_g"),
                "input": list(found.input_size),
                "dims": list(found.dims),
                "strides": list(found.strides),
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="params in millions, FLOPs (multiply-adds) in billions; paper: as printed there",
    )
    table.add_column("model", no_wrap=True)
    for column in ("px", "params", "paper", "FLOPs", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("width of each stage", no_wrap=True)
    for i, row in enumerate(rows):
        if i and row["family"] != rows[i - 1]["family"]:
            table.add_section()
        table.add_row(
            row["name"],
            by(sorted(set(row["input"][1:]))),
            f"{row['params'] / 1e6:.2f}",
            row["paper_params_m"] or "-",
            f"{row['macs'] / 1e9:.2f}",
            row["paper_flops_g"] or "-",
            " ".join(map(str, row["dims"])),
        )
    Console().print(table)


def info(args: argparse.Namespace) -> None:
    """Print one model's stages: shapes, share of parameters and FLOPs, and how it is built."""
    from rich.console import Console
    from rich.table import Table

    from ziggurat.engine.describe import describe
    from ziggurat.engine.tables import printed

    size = size_of(args.size)
    about = describe(args.name, size, args.frames)
    paper_of = {} if args.frames else printed(args.name)
    if args.picture:
        if len(about["input"]) == 1:
            raise ValueError(f"{args.name} takes no image: `ziggurat generate` shows what it makes")
        picture(args, size)
    if args.json:
        print(json.dumps(about | {"paper": paper_of}, indent=2))
        return
    console = Console()
    total_params, total_macs = about["params"], about["macs"]
    console.print(
        f"[bold]{args.name}[/bold]  {about['family']}  "
        f"{total_params / 1e6:.2f} M parameters  {total_macs / 1e9:.2f} G multiply-adds"
    )
    units = {"params_m": "M parameters", "flops_g": "G FLOPs"}
    paper = "  ".join(f"{value} {units[key]}" for key, value in paper_of.items())
    if paper:
        console.print(f"the paper prints  {paper}")
    table = Table(box=None, pad_edge=False)
    for column in ("part", "output", "stride", "blocks"):
        table.add_column(column, justify="left" if column == "part" else "right")
    table.add_column("parameters", no_wrap=True)
    table.add_column("multiply-adds", no_wrap=True)
    given = f"{args.frames} frames" if args.frames else "image"
    if len(about["input"]) == 1:  # a generator begins with numbers
        table.add_row("noise", by(about["input"]), "", "", "", "")
    else:
        table.add_row(given, by(about["input"][-3:]), "1", "", "", "")
    for part in about["parts"]:
        table.add_row(
            part["name"],
            by(part["shape"] or []),
            str(part["stride"] or ""),
            str(part["blocks"] or ""),
            bar(part["params"], total_params),
            bar(part["macs"], total_macs),
        )
    console.print(table)
    print(about["sketch"])


def size_of(sides: list[int] | None) -> tuple[int, int] | None:
    """--size: one side, or height and width."""
    if not sides:
        return None
    if len(sides) > 2 or min(sides) < 1:
        raise ValueError(f"--size takes one side or height and width in pixels, got {by(sides)}")
    return sides[0], sides[-1]


def picture(args: argparse.Namespace, size: tuple[int, int] | None) -> None:
    """Write what each stage makes of an image as a picture."""
    from ziggurat.engine.pictures import stage_sheet
    from ziggurat.models.registry import create_model

    if os.path.exists(args.picture) and not args.overwrite:
        raise FileExistsError(f"{args.picture} exists: take another name or --overwrite")
    sheet = stage_sheet(create_model(args.name), args.image, size)
    sheet.save(args.picture)
    print(f"wrote {args.picture}", file=sys.stderr)


def by(sides: Sequence[int]) -> str:
    """3 x 224 x 224."""
    return " x ".join(map(str, sides))


def bar(part: int, whole: int, width: int = 12) -> str:
    """A share as a bar and in per cent."""
    share = part / whole if whole else 0.0
    return f"{BAR * round(share * width):<{width}} {share:5.1%}"


def add(verb: Verb) -> None:
    """Add them with their options."""
    one = verb(models, "ziggurat models 'hvt_*'")
    one.add_argument("pattern", nargs="?", default="*", help="a name, part of one, or a wildcard")
    one.add_argument("--json", action="store_true", help="for machines")

    one = verb(info, "ziggurat info regionvit_s --size 672 1120")
    one.add_argument("name", help="a model's name: `ziggurat models` lists ours; timm's work too")
    one.add_argument("--size", type=int, nargs="+", metavar="PIXELS", help="side, or height width")
    one.add_argument("--frames", type=positive, help="as a model of clips of so many frames")
    one.add_argument("--json", action="store_true", help="for machines")
    one.add_argument("--picture", metavar="PNG", help="also draw what each stage makes of an image")
    one.add_argument("--image", metavar="FILE", help="the image for --picture (a photo by default)")
    one.add_argument("--overwrite", action="store_true", help="replace an existing picture")
