"""What the training studies share: runs that are kept, and tables between marks of the README."""

import json
import statistics
from pathlib import Path
from typing import Any

from ziggurat.cli import main as ziggurat

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"


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


def update_readme(mark: str, table: str) -> None:
    """Put a table between the README's two marks."""
    mark = f"<!-- {mark} -->"
    before, _, rest = README.read_text().partition(f"{mark}\n")
    _, _, after = rest.partition(mark)
    README.write_text(f"{before}{mark}\n{table}\n{mark}{after}")
