"""Models side by side: what they weigh and cost, how fast they are and what memory they take.

All candidates of one batch and size, and the machine's matrix product beside them, are timed by
turns (``engine/bench.py``). Multiply-adds are of one image in inference; a training step is taken
for three of its forward pass. Latency is of a batch, over all passes.
"""

import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ziggurat.engine import backends, bench, peers
from ziggurat.engine.measure import Cost, count, peak_memory, trained_size
from ziggurat.engine.recipe import load
from ziggurat.engine.tables import best_printed
from ziggurat.models.hivit import HiViT
from ziggurat.tasks.masking import can_drop
from ziggurat.tasks.pretrain import PretrainSettings, autoencoder

MODES = ("infer", "train", "pretrain")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TORCHS = ("eager", "compile")  # the backends that train, and whose memory torch knows
PEAK = "matrix product"
LEAST = 2  # passes of a turn, so that those of the usual rounds have a 95th percentile
ENOUGH = 20  # passes of which one in twenty is something
SEED = 0


@dataclass(frozen=True)
class Wanted:
    """What is to be measured; ``sizes`` has None for the size that a model was trained at."""

    models: Sequence[str]
    peers: bool = False
    batches: Sequence[int] = (8,)
    sizes: Sequence[int | None] = (None,)
    mode: str = "infer"
    backends: Sequence[str] = ("eager",)
    dtypes: Sequence[str] = ("float32",)
    rounds: int = 12
    against: str | None = None  # whom ratios are to: the first, if not given


class Entry(NamedTuple):
    """A model that takes part, for one size."""

    name: str
    model: nn.Module
    cost: Cost
    size: int
    options: dict[str, Any]
    top1: float | None  # as printed


class Case(NamedTuple):
    """An entry on one backend in one type."""

    name: str
    backend: str
    dtype: str


def contest(wanted: Wanted, tick: bench.Tick | None = None) -> dict[str, Any]:
    """Measure all of it: ``rows``, the ``peak`` of the machine, and ``notes`` for people."""
    names = list(dict.fromkeys(wanted.models))
    if wanted.peers:
        names = list(dict.fromkeys([*names, *peers.peers_of(names, wanted.mode == "pretrain")]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check(wanted, names)
    torch.manual_seed(SEED)
    notes: list[str] = []
    fields = [entries(names, size, wanted, notes) for size in wanted.sizes]
    products = {name: bench.products(DTYPES[name], device) for name in wanted.dtypes}
    cases = len(names) * len(wanted.backends) * len(wanted.dtypes)
    turns = (cases + sum(map(len, products.values()))) * (wanted.rounds + 1)
    rows: list[dict[str, Any]] = []
    groups = [(field, batch) for field in fields for batch in wanted.batches]
    for i, (field, batch) in enumerate(groups):

        def told(done: int, _: int, before: int = i * turns) -> None:
            if tick is not None:
                tick(before + done, len(groups) * turns)

        rows += group(Candidates(field, batch, wanted, device), products, told)
    return {
        "mode": wanted.mode,
        "rounds": wanted.rounds,
        "against": wanted.against or names[0],
        "device": device,
        "threads": torch.get_num_threads(),
        "peak": [row for row in rows if row["model"] == PEAK],
        "rows": [row for row in rows if row["model"] != PEAK],
        "notes": list(dict.fromkeys(notes)),
    }


def check(wanted: Wanted, names: Sequence[str]) -> None:
    """Say what cannot be measured before anything is."""
    if wanted.against is not None and wanted.against not in names:
        raise ValueError(
            f"--against is one of the models measured ({', '.join(names)}), got {wanted.against!r}"
        )
    for backend in wanted.backends:
        if backend not in TORCHS and wanted.mode != "infer":
            raise ValueError(f"--backend {backend} is for --mode infer: take {' or '.join(TORCHS)}")
        if reason := backends.missing(backend):
            raise ImportError(reason)


def entries(
    names: Sequence[str], size: int | None, wanted: Wanted, notes: list[str]
) -> list[Entry]:
    """The models for one size, counted; twins have the same weights."""
    found = []
    for name in names:
        options = dict(peers.TIMMS) if peers.TWINS.get(name) in names else {}
        try:
            model = peers.build(name, size, **options)
            own = side_of(model)
            if wanted.mode == "pretrain":
                model = masked(name, model, size)
            counts = count(model, size or own, 3)
        except (AssertionError, RuntimeError, AttributeError) as error:  # others' models say it so
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            what = "be pre-trained on" if wanted.mode == "pretrain" else "take"
            raise ValueError(f"{name} cannot {what} images of {size or 224} px: {reason}") from None
        top1 = best_printed(name, None if size == own else size)
        found.append(Entry(name, model, counts, size or own, options, top1))
    by_name = {entry.name: entry for entry in found}
    for name, twin in peers.TWINS.items():
        if wanted.mode != "pretrain" and {name, twin} <= by_name.keys():
            ours, theirs = by_name[name], by_name[twin]
            difference = peers.share_weights(ours.model, theirs.model, ours.size)
            notes.append(
                f"{name} is built as {twin} is and has its weights: outputs differ by "
                f"{difference:.0e} at {ours.size} px"
            )
    return found


def side_of(model: nn.Module) -> int:
    """The size a model was trained at; 224 for who does not say."""
    return trained_size(model)[0] if hasattr(model, "pretrained_cfg") else 224


def masked(name: str, model: nn.Module, size: int | None) -> nn.Module:
    """Around it what its pre-training needs: MAE's way for HiViT, SimMIM's for all others."""
    recipe = load("hivit/mae" if can_drop(model) else "swin/simmim", name)
    if isinstance(model, HiViT):
        model = peers.build(name, size, **dict(recipe.model_args))
    assert isinstance(recipe.settings, PretrainSettings)
    return autoencoder(model, recipe.settings, fresh=True)


class Candidates:
    """All cases of one batch and size."""

    def __init__(self, field: Sequence[Entry], batch: int, wanted: Wanted, device: str) -> None:
        self.field, self.batch, self.wanted, self.device = field, batch, wanted, device
        self.entries: dict[Case, Entry] = {}
        self.runs: dict[Case, bench.Run] = {}
        torch.compiler.reset()  # what was compiled for another batch is not to bend this one
        for entry in field:
            images = torch.randn(batch, 3, entry.size, entry.size, device=device)
            for backend in wanted.backends:
                for dtype in wanted.dtypes:
                    case = Case(entry.name, backend, dtype)
                    self.entries[case] = entry
                    self.runs[case] = self.run_of(entry, case, images)

    def run_of(self, entry: Entry, case: Case, images: Tensor) -> bench.Run:
        """One pass of one case; its model is its own, since steps move weights."""
        model, dtype = copy.deepcopy(entry.model).to(self.device), DTYPES[case.dtype]
        if self.wanted.mode == "infer":
            size = entry.size, entry.size
            return partial(backends.runner(model, case.backend, size, dtype), images)
        if case.backend == "compile":
            model.compile()
        return bench.training(model, images, dtype)


def group(
    candidates: Candidates, products: Mapping[str, Mapping[str, bench.Product]], tick: bench.Tick
) -> list[dict[str, Any]]:
    """Every case and the machine's products by turns: a row for each, and for their best."""
    wanted = candidates.wanted
    machine = {
        Case(PEAK, name, dtype): product.run
        for dtype, tried in products.items()
        for name, product in tried.items()
    }
    runs = {**candidates.runs, **machine}
    spent = bench.interleaved(runs, wanted.rounds, tick, candidates.device, least=LEAST)
    rows = []
    peaks = {}  # FLOPs a second of each round's best product
    for dtype, tried in products.items():
        turns = [
            {name: spent[Case(PEAK, name, dtype)][i] for name in tried}
            for i in range(wanted.rounds)
        ]
        peaks[dtype] = [bench.best_product(tried, each)[0] for each in turns]
        rows.append(peak_row(tried, turns, dtype, candidates))
    for case, run in candidates.runs.items():
        first = case._replace(backend=wanted.backends[0], dtype=wanted.dtypes[0])
        reference = wanted.against or candidates.field[0].name
        memory = peak_memory(run, candidates.device) if case.backend in TORCHS else None
        row = about(candidates.entries[case], case, candidates.batch) | times(
            candidates.entries[case].cost.macs * (1 if wanted.mode == "infer" else 3),
            candidates.batch,
            spent[case],
            peaks[case.dtype],
        )
        row["memory_mib"] = None if memory is None else round(memory / 2**20, 1)
        row["speed"] = bench.ratio(spent[case._replace(name=reference)], spent[case]).rounded()
        row["over_first"] = bench.ratio(spent[first], spent[case]).rounded()
        rows.append(row)
    return rows


def about(entry: Entry, case: Case, batch: int) -> dict[str, Any]:
    """What was measured, and what no clock is needed for."""
    return {
        "model": entry.name,
        "options": entry.options,
        "size": entry.size,
        "batch": batch,
        "backend": case.backend,
        "dtype": case.dtype,
        "params": entry.cost.params,
        "macs": entry.cost.macs,
        "top1": entry.top1,
    }


def times(
    macs: int, batch: int, turns: Sequence[bench.Turn], peaks: Sequence[float]
) -> dict[str, Any]:
    """What the clock says; ``peaks`` are the FLOPs a second of the best product in each round."""
    passes = [seconds for turn in turns for seconds in turn.passes]
    shares = [
        2 * macs * batch / turn.seconds / peak for turn, peak in zip(turns, peaks, strict=True)
    ]
    return {
        "passes": len(passes),
        "per_second": round(batch / statistics.median(turn.seconds for turn in turns), 3),
        "latency_ms": round(1000 * statistics.median(passes), 3),
        "latency_p95_ms": late(passes),
        "peak_share": bench.spread(shares).rounded(4),
    }


def late(passes: Sequence[float]) -> float | None:
    """Milliseconds that one pass in twenty exceeds, if there are as many."""
    return None if len(passes) < ENOUGH else round(1000 * float(np.percentile(passes, 95)), 3)


def peak_row(
    tried: Mapping[str, bench.Product],
    rounds: Sequence[Mapping[str, bench.Turn]],
    dtype: str,
    beside: Candidates,
) -> dict[str, Any]:
    """The machine's own, beside models of one batch and of these sizes: each round's best."""

    def speed(best: Sequence[tuple[float, bench.Product]]) -> bench.Spread:
        return bench.spread([each / 1e9 for each, _ in best]).rounded(1)

    best = [bench.best_product(tried, turns) for turns in rounds]
    most = statistics.mode((one.side, one.library) for _, one in best)
    libraries = dict.fromkeys(one.library for one in tried.values())
    return {
        "model": PEAK,
        "side": most[0],
        "library": most[1],
        "dtype": dtype,
        "batch": beside.batch,
        "sizes": sorted({entry.size for entry in beside.field}),
        "gflops": speed(best),
        "libraries": {
            name: speed([bench.best_product(tried, turns, name) for turns in rounds])
            for name in libraries
        },
    }
