"""What the training studies share: runs that are kept, and tables between marks of a page."""

import argparse
import json
import statistics
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ziggurat.cli import main as ziggurat

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


class Parser(argparse.ArgumentParser):
    """The names of a study, its seeds and the folder of its runs."""

    def __init__(self, about: str | None, names: Collection[str], folder: str) -> None:
        super().__init__(description=about.splitlines()[0] if about else None)
        self.names = names
        self.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
        self.add_argument("--seeds", type=int, nargs="+", default=[0])
        self.add_argument("--runs", type=Path, default=Path(folder), help="where runs live")

    def parsed(self) -> argparse.Namespace:
        """What was asked for; a name that is none is one clear line."""
        args = self.parse_args()
        for name in args.names:
            if name not in self.names:
                self.error(f"no {name!r} in this study: there are {', '.join(self.names)}")
        args.names = args.names or list(self.names)
        return args


def run(words: list[str], out: Path, kept: Path, command: str, needed: bool = False) -> None:
    """One training by our command line, unless its result is kept; a stopped one goes on.

    ``needed``: what it leaves in its folder, too, so that a result alone is not enough.
    """
    if kept.exists() and not (needed and not (out / "results.json").exists()):
        return
    if ziggurat([*words, "--out", str(out)] + ["--resume"] * (out / "checkpoints").exists()):
        raise SystemExit(f"no result: {command}")
    found = json.loads((out / "results.json").read_text())
    found["command"] = command
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=1) + "\n")


def kept(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results NAME-SEED.json of a folder, by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        found.setdefault(file.stem.rpartition("-")[0], []).append(json.loads(file.read_text()))
    return found


def spread(tops: list[float]) -> str:
    """Mean, deviation and number of accuracies."""
    around = f" ± {statistics.stdev(tops):.1f}" if len(tops) > 1 else ""
    return f"**{statistics.mean(tops):.1f}**{around} ({len(tops)})"


def show(out: Path, table: str) -> None:
    """Put the table of a results file of ours on the page that has its name."""
    if out.resolve().parent == RESULTS:
        update(out.stem, table)


def update(name: str, table: str, pages: Iterable[Path] = PAGES) -> None:
    """Put a table between the two marks of its name, in the README or a page of docs/."""
    mark = f"<!-- {name} -->\n"
    for page in pages:
        parts = page.read_text().split(mark)
        if len(parts) == 3:
            page.write_text(f"{parts[0]}{mark}{table}\n{mark}{parts[2]}")
            return
    raise SystemExit(f"no page has {mark.strip()} twice, for this table to stand between")
