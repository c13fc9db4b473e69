"""What is known of the papers' tables and figures, each from a file of its own.

    counts/nest-table1.json             cells and claims that are counted
    laptop/nest-aggregation/*.json      a training of a study (engine/studies.py)

below a folder of results; ratios, and the studies that a benchmark's script runs, below the
repository's ``benchmarks/results``. Nothing is counted, measured or trained here but by ``count``.

    find("nest/figure5", "laptop", Places(...)).judged[0].verdict
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ziggurat.engine import claims, counts, results, studies, verdicts
from ziggurat.engine.claims import Claim, CountClaim, Item, RatioClaim, TrainedClaim
from ziggurat.engine.studies import SCALES, Arm, Run, Scale, Study
from ziggurat.engine.verdicts import MISSING, WORDS, Interval, Word

SCRIPTS = {  # of benchmarks: what each results file is measured by
    "claims.json": "benchmarks/claims.py",
    "clips.json": "benchmarks/clips.py",
    "generators.json": "benchmarks/generate.py untrained speed",
    "pretrain.json": "benchmarks/pretrain.py",
}
UNITS = {"params_m": "M parameters", "flops_g": "G FLOPs", "attention": "entries"}


class Places(NamedTuple):
    """Where results and runs are."""

    results: Path  # of counts and studies
    runs: Path  # folders of trainings
    benchmarks: Path  # results of the repository's benchmarks


class Part(NamedTuple):
    """One comparison of a claim: the paper's size of it, and ours."""

    words: str
    claimed: float | None
    found: Interval | None


class Judged(NamedTuple):
    """A claim and what became of it."""

    name: str
    claim: Claim
    verdict: Word
    unit: str
    parts: tuple[Part, ...]


class Trained(NamedTuple):
    """The rows of a study that have results: an arm's values, a seed each."""

    study: Study
    scale: Scale
    results: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def arms(self) -> list[Arm]:
        """Those that are compared."""
        every = self.study.arms if self.study.script else self.study.at(self.scale)
        return [arm for arm in every if not arm.step]

    def values(self, arm: str, measure: str = "") -> list[float]:
        """Of one arm."""
        key = measure or self.study.measure
        return [one["measured"]["test"][key] for one in self.results.get(arm, ())]

    @property
    def seeds(self) -> int:
        """That every arm has."""
        return min(len(self.results.get(arm.id, ())) for arm in self.arms)


class Found(NamedTuple):
    """All that is known of a table or figure."""

    name: str
    item: Item
    cells: counts.Cells
    studies: tuple[Trained, ...]
    judged: tuple[Judged, ...]
    sources: tuple[Mapping[str, Any], ...]  # results files, without what they measured
    pictures: tuple[Path, ...]  # that are drawn

    @property
    def paper(self) -> str:
        """Whose it is."""
        return self.name.partition("/")[0]


# Counting.


def is_counted(name: str) -> bool:
    """Whether there is something to count for a table or figure."""
    return name in counts.counted_items() or any(of_kind(name, CountClaim))


def of_kind(name: str, kind: type[Claim]) -> Iterable[tuple[str, Claim]]:
    """The claims of one kind about a table or figure."""
    paper, _, item = name.partition("/")
    for claim in claims.paper(paper).claims:
        if claim.item == item and isinstance(claim, kind):
            yield f"{paper}/{claim.id}", claim


def count_file(name: str, places: Places) -> Path:
    """Where its counts are kept."""
    return places.results / "counts" / f"{name.replace('/', '-')}.json"


def count(name: str, places: Places) -> bool:
    """Count all of a table's cells and claims, and keep them; False if they were, by this code."""
    file, commit = count_file(name, places), results.commit()
    known = read(file)
    if known and commit and known["commit"] == commit and not commit.endswith("+"):
        return False
    paper, number = name.partition("/")[0], claims.find(name).number
    listed = name in counts.counted_items()
    measured = {
        "cells": counts.cells(paper, number) if listed else [],
        "claims": {
            one: list(counts.count(paper, claim))
            for one, claim in of_kind(name, CountClaim)
            if isinstance(claim, CountClaim)
        },
    }
    if not known or known["measured"] != json.loads(json.dumps(measured)):
        results.write(file, measured)
        found = json.loads(file.read_text()) | {"command": f"ziggurat reproduce {name}"}
        file.write_text(json.dumps(found, indent=1) + "\n")
    return True


# What is known.


def read(file: Path) -> dict[str, Any]:
    """A results file; empty if there is none."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def trained(name: str, scale: Scale, places: Places) -> Trained:
    """What a study has."""
    study = studies.study(name)
    found = studies.results(study, scale, places.results, places.benchmarks)
    return Trained(study, "laptop" if study.script else scale, found)


def find(name: str, scale: Scale, places: Places) -> Found:
    """All that is kept of a table or figure."""
    item = claims.find(name)
    counted = read(count_file(name, places))
    done = tuple(trained(study, scale, places) for study in item.studies)
    ratios = [read(places.benchmarks / file) for file in item.results]
    sources: list[Mapping[str, Any]] = [counted, *ratios]
    sources += [one for study in done for ones in study.results.values() for one in ones]
    return Found(
        name,
        item,
        counted.get("measured", {}).get("cells", []),
        done,
        tuple(judge(name, claim, counted, scale, places) for claim in about(name)),
        tuple(
            {key: value for key, value in one.items() if key != "measured"}
            for one in sources
            if one
        ),
        tuple(file for file in picture_files(name, places) if file.is_file()),
    )


def picture_files(name: str, places: Places) -> list[Path]:
    """Where its pictures are kept."""
    stem = name.replace("/", "-")
    every = range(1, len(claims.find(name).draws) + 1)
    return [places.results / "pictures" / f"{stem}-{number}.png" for number in every]


def runs_of(name: str, scale: Scale) -> list[list[Run]]:
    """The trained runs that each of its pictures is drawn from."""
    found = []
    for draw in claims.find(name).draws:
        runs = []
        for words in draw.runs:
            path, _, seed = words.rpartition("-")
            study, _, arm = path.rpartition("/")
            one = studies.study(study)
            runs.append(studies.owner(studies.run_of(one, one.arm(arm), scale, int(seed))))
        found.append(runs)
    return found


def about(name: str) -> list[Claim]:
    """The claims about a table or figure."""
    paper, _, item = name.partition("/")
    return [claim for claim in claims.paper(paper).claims if claim.item == item]


def judge(
    name: str, claim: Claim, counted: Mapping[str, Any], scale: Scale, places: Places
) -> Judged:
    """The verdict on a claim, from what is kept."""
    full = f"{name.partition('/')[0]}/{claim.id}"
    if isinstance(claim, CountClaim):
        kept = counted.get("measured", {}).get("claims", {}).get(full)
        verdict, value = kept or (MISSING, None)
        found = None if value is None else Interval(value, value, value)
        return Judged(full, claim, verdict, unit(claim), (Part("", float(claim.claimed), found),))
    if isinstance(claim, RatioClaim):
        word, measured = counts.ratio(claim, places.benchmarks)
        return Judged(full, claim, word, claim.unit, (Part("", claim.claimed, measured),))
    study = trained(claim.study, scale, places)
    sign = -1 if claim.less else 1
    weights = [{arm: sign * w for arm, w in one.items()} for one in claim.contrasts]
    values = {arm: study.values(arm, claim.measure) for arm in claim.arms}
    word, intervals = verdicts.trained(weights, values, claim.within)
    parts = tuple(
        Part(contrast_words(one, study.study), printed(one, claim, study.study), interval)
        for one, interval in zip(weights, intervals, strict=True)
    )
    points = "points" if claim.measure != "fid" else "of FID less"
    return Judged(full, claim, word, points, parts)


def unit(claim: CountClaim) -> str:
    """What a counted number is of."""
    shares = {"times": "times", "less": "% less", "more": "% more"}
    return shares.get(claim.form, UNITS[claim.quantity])


def contrast_words(weights: Mapping[str, float], study: Study) -> str:
    """``NesT − DeiT``, or the number of arms where they are many."""
    if len(weights) > 2:
        return f"{len(weights)} rows"
    first, second = sorted(weights, key=lambda arm: -weights[arm])
    return f"{study.arm(first).label} − {study.arm(second).label}"


def printed(weights: Mapping[str, float], claim: TrainedClaim, study: Study) -> float | None:
    """What a contrast of the paper's values is, where it prints them."""
    values = {arm: study.arm(arm).printed for arm in weights}
    if all(values.values()):
        return round(math.fsum(w * float(values[arm]) for arm, w in weights.items()), 4)
    return claim.claimed if len(claim.contrasts) == 1 else None


# In words.


def tally(judged: Iterable[Judged]) -> dict[Word, int]:
    """How many claims have which verdict."""
    found = [one.verdict for one in judged]
    return {word: found.count(word) for word in WORDS}


def cell_kinds(cells: counts.Cells) -> dict[str, int]:
    """How many cells agree, how many differ (each says why), and how many are of no model here."""
    agree = sum(cell["agrees"] for cell in cells)
    absent = sum(cell["ours"] is None for cell in cells)
    return {"agree": agree, "differ": len(cells) - agree - absent, "of no model here": absent}


def sums(cells: counts.Cells) -> str:
    """``6 cells agree, 2 differ``."""
    found = cell_kinds(cells)
    rest = [f"{n} {word}" for word, n in found.items() if n and word != "agree"]
    return ", ".join([f"{found['agree']} cells agree", *rest])


def state(found: Found, seeds: int = 3) -> str:
    """The state of our last result, in a line."""
    words = []
    if found.cells:
        words.append(sums(found.cells))
    elif "count" in found.item.checks:
        words.append("not counted yet")
    for one in found.studies:
        done = sum(len(ones) for arm, ones in one.results.items() if not one.study.arm(arm).step)
        words.append(f"{done} of {seeds * len(one.arms)} runs")
    if found.judged:
        verdicts = tally(found.judged).items()
        words.append("claims: " + ", ".join(f"{n} {word}" for word, n in verdicts if n))
    return "; ".join(words) or found.item.gap or "a picture"


def scales(item: Item) -> list[Scale]:
    """At which there are recipes for its trainings."""
    every = [studies.study(name) for name in item.studies]
    there = {scale for one in every for scale in (one.scales or ("laptop",))}
    return [scale for scale in SCALES if scale in there]


def spread(values: Sequence[float]) -> Interval | None:
    """The mean with its interval at 95 %, Student's; without one for a single seed."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, math.nan, math.nan)
    half = verdicts.quantile((1 + verdicts.CONFIDENCE) / 2, len(values) - 1)
    half *= statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
