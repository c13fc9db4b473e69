"""The verb that makes images: ``generate``."""

import argparse
from pathlib import Path

from ziggurat.cli.verb import Verb, positive


def generate(args: argparse.Namespace) -> None:
    """Make images with a trained generator: a sheet of them, or a file each."""
    import math

    from rich.console import Console

    from ziggurat.data.files import written_whole
    from ziggurat.models.generators import load_generator
    from ziggurat.tasks.generate import as_picture, mosaic, sampled

    if args.truncation is not None and not args.truncation >= LEAST:
        raise ValueError(
            f"--truncation is how far noise may be from 0, {LEAST} or more, got {args.truncation}"
        )
    out, folder = Path(args.out), Path(args.files) if args.files else None
    if out.exists() and not args.overwrite:
        raise FileExistsError(f"{out} exists: take another --out or --overwrite")
    if folder and folder.exists() and any(folder.iterdir()) and not args.overwrite:
        raise FileExistsError(f"{folder} exists: take another --files or --overwrite")
    model = load_generator(args.checkpoint)
    with Console(stderr=True).status("making images"):
        images = sampled(model, args.count, args.seed, args.truncation)
        if folder:
            for i, image in enumerate(images):
                with written_whole(folder / f"{i:06}.png") as file:
                    as_picture(image).save(file, format="PNG")
        with written_whole(out) as file:
            mosaic(images, math.ceil(math.sqrt(args.count))).save(file, format="PNG")
    print(f"{args.count} images in {out}" + (f" and in {folder}" if folder else ""))


LEAST = 0.1  # noise is drawn anew until it is this near to 0: nearer takes forever


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(generate, "ziggurat generate runs/nest-digits_gan_small --count 64 --out grid.png")
    one.add_argument("checkpoint", help="a run's folder (also its best/), or a hub id")
    one.add_argument("--count", type=positive, default=64, help="how many (64)")
    one.add_argument("--seed", type=int, default=0, help="the same seed makes the same images (0)")
    one.add_argument("--out", metavar="PNG", default="generated.png", help="the sheet")
    one.add_argument("--files", metavar="DIR", help="also a file for each image")
    one.add_argument(
        "--truncation", type=float, help="draw noise beyond this anew: less variety, fewer failures"
    )
    one.add_argument("--overwrite", action="store_true", help="replace what exists")
