"""The verb that makes files for other programs: ``export``."""

import argparse
import json
from typing import TYPE_CHECKING

from ziggurat.cli.verb import CHECKPOINT, Verb

if TYPE_CHECKING:
    from ziggurat.engine.export import Comparison, Exported

FORMATS = ("onnx", "openvino", "torch-export", "safetensors")  # of ziggurat.engine.formats


def export(args: argparse.Namespace) -> None:
    """Write a classifier as ONNX, OpenVINO, torch.export or safetensors, tried on real images."""
    from rich.console import Console

    from ziggurat.engine.export import export as write
    from ziggurat.models.backbone import pair

    if args.size is not None and len(args.size) > 2:
        raise ValueError(f"--size takes one side, or height and width, got {len(args.size)}")
    size = args.size and pair(args.size[0] if len(args.size) == 1 else args.size)
    with Console(stderr=True).status(f"exporting to {args.format}"):
        found = write(
            args.checkpoint,
            args.format,
            args.out or f"exported/{args.format}",
            size=size,
            dynamic=args.dynamic,
            int8=args.int8,
            images=args.images or (),
            data=args.data,
            lose=args.lose,
            overwrite=args.overwrite,
        )
    if args.json:
        print(json.dumps(plain(found), indent=2))
        return
    print(f"{found.folder}: {found.bytes / 1e6:.1f} MB")
    print(said(found.found, found.what))
    for size, other in found.others:
        print(said(other, f"of them at {size}"))
    if found.int8 is not None:
        int8 = found.int8
        print(f"int8, calibrated on {int8.calibrated} other images: {int8.bytes / 1e6:.1f} MB")
        print(said(int8.found, found.what))


def said(one: "Comparison", what: str) -> str:
    """How two models compare, in a line."""
    parts = [f"logits of up to {one.largest:.2g} differ by {one.difference:.1e} at the most"]
    if one.agreement is not None:
        parts.append(f"{one.agreement:.1f} % have the same first guess")
    if one.top1 is not None:
        parts.append(f"{one.top1[0]:.2f} -> {one.top1[1]:.2f} % are right")
    return f"{one.images} {what}: {', '.join(parts)}"


def plain(found: "Exported") -> dict[str, object]:
    """What was found, for machines."""
    int8 = found.int8
    told = found._asdict() | {"folder": str(found.folder), "found": found.found._asdict()}
    told["others"] = {size: other._asdict() for size, other in found.others}
    return told | {"int8": int8 and int8._asdict() | {"found": int8.found._asdict()}}


def points(text: str) -> float:
    """Of 100, none or some."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"takes a number from 0 to 100, got {text!r}")
    return value


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(export, "ziggurat export runs/digits --format onnx --out digits-onnx")
    one.add_argument("checkpoint", help=CHECKPOINT)
    one.add_argument("--format", choices=FORMATS, required=True, help="what for")
    one.add_argument("--out", metavar="DIR", help="the folder to write (exported/FORMAT)")
    one.add_argument(
        "--size", type=int, nargs="+", metavar="PIXELS", help="side, or height width; its own"
    )
    one.add_argument("--dynamic", action="store_true", help="for images of many sizes, if it can")
    one.add_argument("--int8", action="store_true", help="onnx, openvino: 8-bit whole numbers")
    one.add_argument(
        "--lose", type=points, default=2.0, metavar="POINTS", help="int8: of accuracy, allowed (2)"
    )
    which = one.add_mutually_exclusive_group()
    which.add_argument("--data", help="labelled images to try it on; its run's own if not given")
    which.add_argument("--images", nargs="+", help="or files, folders, patterns without labels")
    one.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    one.add_argument("--json", action="store_true", help="for machines")
