"""One way to time: candidates by turns, so that a machine's moods hit all of them alike.

Times on a shared machine wander; a ratio of two runs side by side does not. Each round runs every
candidate once, in another order, and what is published is the median of the rounds' ratios with
their middle half. On a GPU it is the GPU's own time.
"""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ziggurat.layers.linear import ONEDNN, onednn

Run = Callable[[], object]
Tick = Callable[[int, int], None]  # turns done, of how many
Key = TypeVar("Key", bound=Hashable)
TURN = 0.2  # seconds: as many passes as fit are one turn, and at least one is
MOST = 100  # passes of a turn
REST = 0.02  # seconds between turns, in which the threads of the last one stop to spin
SIDES = {  # of the products of the peak: small ones, too, where others have most of the cache
    "cpu": (384, 768, 1024, 1536, 2048),
    "cuda": (4096, 8192),
}
CHOICE = 0.05  # seconds of a turn of each of them
LR = 1e-4  # of a training step: its value costs nothing


class Turn(NamedTuple):
    """What a candidate took in one round."""

    passes: list[float]  # seconds of each
    work: float  # seconds that processors were busy with a pass, the mean

    @property
    def seconds(self) -> float:
        """Of a pass; the first ones of a turn may meet cold caches."""
        return statistics.median(self.passes)


class Spread(NamedTuple):
    """A median with the middle half around it."""

    low: float
    middle: float
    high: float

    def rounded(self, digits: int = 3) -> "Spread":
        """As it is published."""
        return Spread(*(round(value, digits) for value in self))


def spread(values: Sequence[float]) -> Spread:
    """Of the rounds."""
    return Spread(*np.percentile(values, (25, 50, 75)).tolist())


def ratio(over: Sequence[Turn], under: Sequence[Turn]) -> Spread:
    """How many times longer ``over`` takes: of each round by itself, then the spread."""
    return spread([a.seconds / b.seconds for a, b in zip(over, under, strict=True)])


def interleaved(
    runs: Mapping[Key, Run],
    rounds: int,
    tick: Tick | None = None,
    device: str = "cpu",
    turn: float = TURN,
    least: int = 1,
) -> dict[Key, list[Turn]]:
    """Time all candidates in rounds; a turn of each for each round, of ``least`` passes or more.

    Every second round goes the way of the last one back, so that nobody is early more often.
    """
    total = len(runs) * (rounds + 1)
    done = 0

    def told() -> None:
        nonlocal done
        done += 1
        if tick is not None:
            tick(done, total)

    passes = {}
    for key, run in runs.items():
        run()  # allocates, compiles
        once = clocked(run, 1, device)[0]
        passes[key] = max(least, min(MOST, round(turn / once)))
        told()
    found: dict[Key, list[Turn]] = {key: [] for key in runs}
    chance = random.Random(0)
    order = list(runs)
    for i in range(rounds):
        order = order[::-1] if i % 2 else chance.sample(order, len(order))
        for key in order:
            time.sleep(REST)
            began = time.process_time()
            spent = clocked(runs[key], passes[key], device)
            found[key].append(Turn(spent, (time.process_time() - began) / len(spent)))
            told()
    return found


def clocked(run: Run, passes: int, device: str = "cpu") -> list[float]:
    """Seconds of each pass: the wall's, or between two events on the GPU."""
    if device == "cpu":
        times = [time.perf_counter()]
        for _ in range(passes):
            run()
            times.append(time.perf_counter())
        return [later - earlier for earlier, later in pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(passes + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [earlier.elapsed_time(later) / 1000 for earlier, later in pairwise(events)]


# What is timed of a model.


def step(model: nn.Module, given: Tensor, train: bool, dtype: torch.dtype = torch.float32) -> Run:
    """A pass in inference, or a training step; the model is set to either mode here."""
    return training(model, given, dtype) if train else inference(model, given)


def inference(model: nn.Module, given: Tensor) -> Run:
    """A forward pass, of a model and an input of one type."""
    model.eval()
    return torch.inference_mode()(lambda: model(given))


def training(
    model: nn.Module,
    given: Tensor,
    dtype: torch.dtype = torch.float32,
    optimizer: torch.optim.Optimizer | None = None,
) -> Run:
    """Forward, backward and ``optimizer``, or else fused AdamW; below float32 by autocast.

    A model that gives no loss (one that pre-trains does) is asked for small outputs.
    """
    model.train()
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    mixed = dtype != torch.float32

    def run() -> None:
        with torch.autocast(given.device.type, dtype, enabled=mixed):
            out = model(given)
        (out if out.ndim == 0 else out.float().square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


# What the machine can do.


class Product(NamedTuple):
    """A matrix product: the most that a machine does in a second."""

    run: Run
    flops: int
    side: int
    library: str = "torch.mm"


def product(side: int, dtype: torch.dtype, device: str) -> Product:
    """Of two square matrices, as torch multiplies them."""
    left, right, out = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(3))
    return Product(lambda: torch.mm(left, right, out=out), 2 * side**3, side)


def onednn_product(side: int) -> Product:
    """The same by oneDNN, of one matrix that is laid out for it before, as weights are."""
    left, right = torch.randn(side, side), torch.randn(side, side)
    weight = torch.ops.mkldnn._reorder_linear_weight(right, side)
    run = torch.inference_mode()(lambda: onednn(left, weight, None))
    return Product(run, 2 * side**3, side, "oneDNN")


def products(dtype: torch.dtype, device: str = "cpu") -> dict[str, Product]:
    """Those of ``SIDES``, by name: which of them does most in a second may change by the minute.

    torch leaves float32 to MKL, which on some processors does less than half of what they can.
    """
    tried = [product(side, dtype, device) for side in SIDES[device]]
    if ONEDNN and device == "cpu" and dtype is torch.float32:
        tried += [onednn_product(side) for side in SIDES[device]]
    return {f"{one.side} by {one.library}": one for one in tried}


def best_product(
    tried: Mapping[str, Product], turns: Mapping[str, Turn], library: str | None = None
) -> tuple[float, Product]:
    """FLOPs a second of the best of one round (of one ``library``), and which it was."""
    found = [
        (one.flops / turns[name].seconds, one)
        for name, one in tried.items()
        if library in (None, one.library)
    ]
    return max(found, key=lambda pair: pair[0])


def fastest_product(dtype: torch.dtype, device: str = "cpu") -> Product:
    """The one that does most in a second, on as many threads as models have."""
    tried = products(dtype, device)
    runs = {name: one.run for name, one in tried.items()}
    spent = interleaved(runs, 3, device=device, turn=CHOICE)
    rounds = [best_product(tried, {name: spent[name][i] for name in tried}) for i in range(3)]
    return max(rounds, key=lambda pair: pair[0])[1]
