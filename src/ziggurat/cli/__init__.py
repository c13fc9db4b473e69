"""The command line: one module a group of verbs, each verb importing what it needs when it runs."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ziggurat import __version__
from ziggurat.cli import (
    benching,
    data,
    explaining,
    exporting,
    generating,
    localising,
    models,
    reproducing,
    running,
    serving,
    training,
)
from ziggurat.cli.verb import Run


class Parser(argparse.ArgumentParser):
    """argparse with one line for a mistake, and the nearest verb for a typo."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what to do; exit with 2."""
        if "invalid choice" in message and self.verbs:
            word = message.split("'")[1]
            near = difflib.get_close_matches(word, self.verbs, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.verbs)}"
            message = f"no command is called {word!r}: {hint}"
        self.exit(2, f"ziggurat: {message} (see `{self.prog} --help`)\n")

    verbs: Sequence[str] = ()


def parser() -> Parser:
    """All verbs and their options."""
    top = Parser(
        prog="ziggurat",
        description="Hierarchical vision transformers: NesT, HVT, ResT, HiViT, RegionViT.",
        epilog="example: ziggurat info hivit_base",
    )
    top.add_argument("--version", action="version", version=f"ziggurat {__version__}")
    top.add_argument("--debug", action="store_true", help="show a traceback for any error")
    verbs = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def verb(run: Run, example: str) -> argparse.ArgumentParser:
        line = (run.__doc__ or "").strip().splitlines()[0]
        name = example.split()[1]
        added = verbs.add_parser(name, help=line, description=line, epilog=f"example: {example}")
        added.set_defaults(run=run)
        return added

    groups = (models, training, running, explaining, localising, generating, benching)
    for group in (*groups, reproducing, exporting, serving, data):
        group.add(verb)
    top.verbs = list(verbs.choices)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; a user's mistake is one line and exit code 2."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        stopped = getattr(error, "exit_code", None)  # saved, and says how to go on
        if stopped is not None:
            print(f"ziggurat: {error}", file=sys.stderr)
            return int(stopped)
        if not isinstance(error, ValueError | TypeError | OSError | ImportError):
            raise
        if args.debug:
            raise
        words = str(error)
        if "Original Traceback" in words:  # of a worker that reads data
            words = words.strip().splitlines()[-1]
        print(f"ziggurat: {words}", file=sys.stderr)
        return 2
    return 0
