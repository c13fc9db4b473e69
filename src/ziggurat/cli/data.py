"""The verb of data: ``data get``, ``data check``."""

import argparse
import json

from ziggurat.cli.verb import Verb


def data(args: argparse.Namespace) -> int:
    """Fetch a data set, or check your own before a long run."""
    if args.what == "get":
        from ziggurat.data.get import get

        print(get(args.name))
        return 0
    from rich.console import Console

    from ziggurat.data.check import check

    report = check(args.name, labelled=not args.unlabelled)
    if args.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        Console().print(*report.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    return 0 if report.ok else 1


def add(verb: Verb) -> None:
    """Add it with its options."""
    one = verb(data, "ziggurat data check photos/")
    one.add_argument("what", choices=("get", "check"), help="fetch a set, or check one")
    one.add_argument(
        "name",
        help="cifar10, cifar100, fashion-mnist, pets, cars; check: any --data, of classes, of "
        "objects (COCO), of label maps or of clips",
    )
    one.add_argument(
        "--unlabelled", action="store_true", help="check: images to pre-train on, without classes"
    )
    one.add_argument("--json", action="store_true", help="for machines")
