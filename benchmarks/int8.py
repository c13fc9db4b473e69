"""int8 beside float32, of every family and in both formats: accuracy, size and speed.

    ziggurat data get cifar10
    python benchmarks/int8.py                   # into benchmarks/results/int8.json
    python benchmarks/int8.py nest hvt --again  # these, whatever is there

A small-scale study: models of studies at laptop scale, trained on CIFAR-10 for a minute or two of
one core (kept in ``--runs``), written by ``ziggurat export`` with and without ``--int8``, which
calibrates on 300 training images, and both tried on all 10,000 test images. Their files are mostly
graph, so one full-size variant of each family, with random weights, is weighed and timed, too.

What is there of this commit and machine is kept: a stopped run goes on with what is missing.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import study
import torch
from efficiency import NAMES, there
from rich.console import Console

import ziggurat
from ziggurat.cli.verb import progress
from ziggurat.engine import bench, export, formats, results
from ziggurat.engine.measure import count, trained_size
from ziggurat.engine.quantise import quantised
from ziggurat.engine.studies import study as study_of
from ziggurat.engine.trial import trial

RESULTS = study.RESULTS / "int8.json"
STUDIES = {  # whose laptop scale says what is trained
    "nest": "nest/aggregation",
    "hvt": "hvt/pooling",
    "rest": "rest/attention",
    "hivit": "hivit/steps",
    "regionvit": "regionvit/regional",
}
FULL = dict(zip(STUDIES, NAMES, strict=True))
FORMATS = {"onnx": "ONNX", "openvino": "OpenVINO"}
TESTED = 10_000
SEEN = 4  # images for ranges that nothing but speed hangs on
BATCHES = (1, 8)
ROUNDS = 8
SEED = 0
COLUMNS = "size, int8 / float32 | speed, batch 1 (half) | batch 8 (half)"


def trained(family: str, runs: Path) -> Path:
    """The run of a family's small model, trained unless it is there."""
    scale = study_of(STUDIES[family]).scales["laptop"]
    shape = ", ".join(f"{key} = {json.dumps(value)}" for key, value in scale["model_args"].items())
    words = ["train", scale["recipe"], "--model", scale["model"], "--seed", str(SEED), "--set"]
    words += [f"epochs={scale.get('epochs', 1)}", f"model_args={{{shape}}}"]
    out = runs / family
    study.run(words, out, out / "results.json", f"python benchmarks/int8.py {family}")
    return out


def small(family: str, kind: str, runs: Path, rounds: int) -> dict[str, Any]:
    """A trained model in a format, before and after."""
    run = trained(family, runs)
    folders = [runs / f"{family}-{kind}-{dtype}" for dtype in ("float32", "int8")]
    for folder, words in zip(folders, ([], ["--int8", "--lose", "100"]), strict=True):
        asked = ["export", str(run), "--format", kind, "--out", str(folder), "--overwrite", *words]
        if study.ziggurat(asked):
            raise SystemExit(f"not exported: {' '.join(asked)}")
    model, size = export.fitted(export.only_classifier(run), None)
    tried = trial(run, model, most=TESTED)
    before, after = (formats.read(kind, folder) for folder in folders)
    found = export.compared(before, after, export.normal(model)(tried.images), tried.labels)
    assert found.top1 is not None
    training = json.loads((run / "results.json").read_text())
    recipe = training["measured"]["recipe"]
    return {
        "family": family,
        "model": recipe["model"],
        "model_args": recipe["model_args"],
        "epochs": recipe["epochs"],
        "trained_at": training["commit"],
        "params": count(model, size, 3).params,
        "format": kind,
        "images": found.images,
        "top1": [round(value, 2) for value in found.top1],
        "agreement": found.agreement,
        "bytes": [export.weight(kind, folder) for folder in folders],
        "speed": faster(before, after, size, rounds, f"{family}, {kind}"),
    }


def full(family: str, kind: str, rounds: int) -> dict[str, Any]:
    """A full-size model with random weights in a format, before and after."""
    torch.manual_seed(SEED)
    model = ziggurat.create_model(FULL[family]).eval()
    size = trained_size(model)
    made, said = formats.made(kind, model, size, False), formats.about(model, size, False)
    with tempfile.TemporaryDirectory() as place:
        runs, weights = [], []
        for dtype in ("float32", "int8"):
            folder = Path(place, dtype)
            folder.mkdir()
            if dtype == "int8":
                made = quantised(kind, made, model, torch.randn(SEEN, 3, *size))
            formats.write(kind, made, folder, said)
            runs.append(formats.read(kind, folder))
            weights.append(export.weight(kind, folder))
        before, after = runs
        return {
            "family": family,
            "model": FULL[family],
            "params": count(model, size, 3).params,
            "format": kind,
            "bytes": weights,
            "speed": faster(before, after, size, rounds, f"{FULL[family]}, {kind}"),
        }


def faster(
    before: formats.Run, after: formats.Run, size: tuple[int, int], rounds: int, title: str
) -> dict[str, bench.Spread]:
    """How many times as fast int8 is, by turns, for each batch."""
    found = {}
    for batch in BATCHES:
        images = torch.randn(batch, 3, *size)
        runs = {"before": partial(before, images), "after": partial(after, images)}
        with progress(f"{title}, batch {batch}") as tick:
            spent = bench.interleaved(runs, rounds, tick)
        found[str(batch)] = bench.ratio(spent["before"], spent["after"]).rounded()
    return found


def measure(
    families: Sequence[str], out: Path, runs: Path, again: bool, rounds: int
) -> dict[str, Any]:
    """Each row that is missing, written as soon as it is there."""
    measured = there(out) or {"threads": torch.get_num_threads(), "small": [], "full": []}
    order = [(family, kind) for family in STUDIES for kind in FORMATS]
    for part in ("small", "full"):
        for family, kind in order:
            rows = measured[part]
            old = [row for row in rows if (row["family"], row["format"]) == (family, kind)]
            if family not in families or (old and not again):
                continue
            if part == "small":
                row = small(family, kind, runs, rounds)
            else:
                row = full(family, kind, rounds)
            rows = [one for one in rows if one not in old] + [row]
            rows.sort(key=lambda row: order.index((row["family"], row["format"])))
            measured[part] = rows
            results.write(out, measured, SEED)
    return measured


def markdown(measured: dict[str, Any]) -> str:
    """Both tables as the page shows them."""
    lines = [
        f"| trained on CIFAR-10 | parameters | | top-1, float32 | int8 | lost | {COLUMNS} |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in measured["small"]:
        before, after = row["top1"]
        lines.append(
            f"| {row['family']} | {row['params'] / 1e6:.2f} M | {FORMATS[row['format']]} "
            f"| {before:.2f} | {after:.2f} | **{before - after:.2f}** | {compact(row)} |"
        )
    if measured["full"]:
        lines += ["", *full_size(measured["full"])]
    threads = measured["threads"]
    lines += ["", f"Speed is on {threads} thread{'s' * (threads > 1)}."]
    return "\n".join(lines)


def full_size(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The second table."""
    lines = [
        f"| random weights, 224 px | parameters | | {COLUMNS} |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {NAMES[row['model']]} | {row['params'] / 1e6:.1f} M | {FORMATS[row['format']]} "
            f"| {compact(row)} |"
        )
    return lines


def compact(row: dict[str, Any]) -> str:
    """Size and speed of a row."""
    before, after = row["bytes"]
    cells = [f"{after / 1e6:.2f} / {before / 1e6:.2f} MB"]
    for low, middle, high in row["speed"].values():
        cells.append(f"**{middle:.2f}** ({low:.2f} to {high:.2f})")
    return " | ".join(cells)


def main() -> None:
    """Measure what is missing, write the results file and the page's tables."""
    parser = study.Parser(__doc__, STUDIES, "runs/int8")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parsed()
    measured = measure(args.names, args.out, args.runs, args.again, args.rounds)
    print(f"wrote {args.out}")
    study.show(args.out, markdown(measured))
    Console().print(markdown(measured))


if __name__ == "__main__":
    main()
