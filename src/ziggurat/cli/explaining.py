"""The verb that says why: ``explain``."""

import argparse
import sys
from pathlib import Path

from ziggurat.cli.verb import CHECKPOINT, Verb, positive

METHODS = ("gradcat", "cam", "gradcam++", "groupcam", "rollout")  # of ziggurat.explain, best first


def explain(args: argparse.Namespace) -> int:
    """Show where an image has what speaks for its classes: GradCAT, CAM and others."""
    from rich.console import Console
    from rich.progress import track

    from ziggurat.data.files import written_whole
    from ziggurat.data.images import BadImage
    from ziggurat.engine.explain import Explainer
    from ziggurat.engine.predict import files_of
    from ziggurat.explain.figures import figure

    files = files_of(args.images)
    pictures = places(args, files)
    explainer = Explainer(args.checkpoint)
    classes = args.classes and [name.strip() for name in args.classes.split(",")]
    console = Console(stderr=True)
    bad = 0
    for file, path in zip(
        track(files, "looking", console=console, transient=True, disable=len(files) == 1),
        pictures,
        strict=True,
    ):
        try:
            found = explainer(file, args.method, classes, args.top)
        except BadImage as error:
            bad += 1
            print(f"ziggurat: skipped {error}", file=sys.stderr)
            continue
        with written_whole(path) as out:
            figure(found).save(out, format="PNG")
        shares = zip(found.names, found.probabilities, strict=True)
        said = ", ".join(f"{name} {share:.1%}" for name, share in shares)
        print(f"{file}: {said}; {found.found.method} in {path}")
    return 1 if bad else 0


def places(args: argparse.Namespace, files: list[str]) -> list[Path]:
    """Where pictures go: a file for one image, a folder for several."""
    from ziggurat.engine.watch import strips

    if len(files) > 1:
        folder = Path(args.out or "explained")
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        found = strips(files, folder)
    else:
        found = [Path(args.out or "explained.png")]
        folder = found[0]
        if folder.is_dir():
            raise ValueError(
                f"{folder} is a folder, and one image makes one file: take {folder}.png"
            )
        if folder.suffix.lower() != ".png":
            png = folder.with_suffix(".png")
            raise ValueError(f"pictures are PNG files, got --out {folder}: take {png}")
        taken = folder.exists()
    if taken and not args.overwrite:
        raise FileExistsError(f"{folder} exists: take another --out or --overwrite")
    return found


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(explain, "ziggurat explain runs/digits photo.jpg --classes 3,8 --out why.png")
    one.add_argument("checkpoint", help=CHECKPOINT)
    one.add_argument("images", nargs="+", help="files, folders, patterns")
    one.add_argument("--method", choices=METHODS, help="the first of these that the model allows")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--classes", metavar="A,B", help="names or numbers, joined by commas")
    which.add_argument("--top", type=positive, default=4, help="the likeliest classes (4)")
    one.add_argument(
        "--out", metavar="PNG_OR_DIR", help="of one image explained.png, of several explained/"
    )
    one.add_argument("--overwrite", action="store_true", help="replace what exists")
