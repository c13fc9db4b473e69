"""RegionViT with attention over time against TimeSformer, in one interleaved run.

    python benchmarks/clips.py                  # into benchmarks/results/clips.json

Both are of RegionViT's Table 7, 8 frames of 224 px each: TimeSformer is timm's ViT-B/16 with the
same attention over time before each block. The table's ratios of multiply-adds are 3.3 and 2.4.
Timed as ``peers.py`` does; clips a second are in the results file, for this machine and run alone.
"""

import argparse
from pathlib import Path
from typing import Any

import peers
import study
from rich.console import Console

from ziggurat.engine import results
from ziggurat.models.registry import create_model

RESULTS = study.RESULTS / "clips.json"
K400: dict[str, Any] = {"frames": 8, "num_classes": 400}
PAIRS = [
    peers.Pair(
        name,
        "TimeSformer",
        lambda: create_model("timm/vit_base_patch16_224", **K400),
        same=False,
        overrides=K400,
        frames=8,
    )
    for name in ("regionvit_s", "regionvit_m")
]


def main() -> None:
    """Measure both, write the results file and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=1, help="clips at a time")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, help="results file, if not the repository's")
    args = parser.parse_args()
    found = [row for pair in PAIRS for row in peers.measure(pair, args.batch, args.rounds)]
    results.write(args.out or RESULTS, found, peers.SEED)
    if args.out is None:
        study.update("clips", peers.markdown(found))
    Console().print(peers.markdown(found))


if __name__ == "__main__":
    main()
