"""Turns are taken as said; no test asserts a time."""

import time

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.engine import bench
from ziggurat.engine.bench import Spread, Turn
from ziggurat.layers.linear import ONEDNN


def test_every_round_runs_all_and_every_second_one_goes_back() -> None:
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in "abc"}
    spent = bench.interleaved(runs, rounds=4, turn=0)
    assert order[:6] == ["a", "a", "b", "b", "c", "c"]  # one to warm up, one to know how long
    rounds = [order[i : i + 3] for i in range(6, 18, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert rounds[1] == rounds[0][::-1]
    assert rounds[3] == rounds[2][::-1]
    assert {name: len(turns) for name, turns in spent.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_turn_has_as_many_passes_as_fit() -> None:
    spent = bench.interleaved({"short": lambda: time.sleep(0.01)}, rounds=2, turn=0.05)
    (first, second) = spent["short"]
    assert 1 < len(first.passes) <= 5
    assert len(first.passes) == len(second.passes)
    assert first.work < first.seconds  # sleeping keeps no processor busy


def test_a_turn_has_as_many_passes_as_are_asked_for() -> None:
    spent = bench.interleaved({"long": lambda: time.sleep(0.01)}, rounds=2, turn=0, least=3)
    assert [len(turn.passes) for turn in spent["long"]] == [3, 3]


def test_progress_is_told_of_every_turn() -> None:
    told: list[tuple[int, int]] = []
    bench.interleaved(dict.fromkeys("ab", lambda: None), 2, lambda *now: told.append(now), turn=0)
    assert told == [(i, 6) for i in range(1, 7)]


def test_ratios_are_of_one_round_each() -> None:
    """A machine that is twice as slow in one round is so to both."""
    ours = [Turn([1.0], 0), Turn([2.0], 0), Turn([1.0, 1.0, 5.0], 0)]
    peer = [Turn([1.5], 0), Turn([3.0], 0), Turn([1.5], 0)]
    assert bench.ratio(peer, ours) == Spread(1.5, 1.5, 1.5)
    assert bench.spread([1, 2, 3, 4, 5]) == Spread(2, 3, 4)
    assert bench.spread([2 / 3]).rounded() == Spread(0.667, 0.667, 0.667)


class Seen(nn.Module):
    """Keeps how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_inference_mode_enabled()))
        return self.layer(x)


def test_a_step_trains_or_does_not() -> None:
    model, given = Seen(), torch.ones(1, 2)
    before = model.layer.weight.clone()
    bench.step(model, given, train=False)()
    assert model.layer.weight.equal(before)
    bench.step(model, given, train=True)()
    assert not model.layer.weight.equal(before)
    assert model.layer.weight.grad is None
    assert model.calls == [(False, True), (True, False)]


def test_a_step_below_float32_keeps_weights_in_float32() -> None:
    seen: list[torch.dtype] = []
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    bench.training(model, torch.ones(1, 2), torch.bfloat16)()
    assert seen == [torch.bfloat16]
    assert next(model.parameters()).dtype == torch.float32


def test_the_peak_is_of_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SIDES, "cpu", (8, 256))
    best = bench.fastest_product(torch.float32)
    assert best.side == 256  # a tiny one is all overhead
    assert best.flops == 2 * 256**3
    monkeypatch.setattr(bench, "ONEDNN", False)
    tried = bench.products(torch.float32)
    turns = {"8 by torch.mm": Turn([1e-6], 0), "256 by torch.mm": Turn([0.1], 0)}
    speed, one = bench.best_product(tried, turns)
    assert (round(speed), one.side) == (2 * 8**3 * 10**6, 8)


@pytest.mark.skipif(not ONEDNN, reason="torch has no oneDNN")
def test_the_peak_is_of_the_best_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SIDES, "cpu", (64,))
    tried = bench.products(torch.float32)
    assert list(tried) == ["64 by torch.mm", "64 by oneDNN"]
    assert list(bench.products(torch.bfloat16)) == ["64 by torch.mm"]  # oneDNN's already
    turns = {"64 by torch.mm": Turn([0.2], 0), "64 by oneDNN": Turn([0.1], 0)}
    assert bench.best_product(tried, turns) == (20 * 64**3, tried["64 by oneDNN"])
    assert bench.best_product(tried, turns, "torch.mm") == (10 * 64**3, tried["64 by torch.mm"])


@pytest.mark.skipif(not ONEDNN, reason="torch has no oneDNN")
def test_what_onednn_multiplies_is_counted_right() -> None:
    with FlopCounterMode(display=False) as counter:
        one = bench.onednn_product(64)
        found = one.run()
    assert counter.get_total_flops() == one.flops == 2 * 64**3
    assert isinstance(found, Tensor)
    assert found.shape == (64, 64)
    assert found.square().mean().sqrt().item() == pytest.approx(8, rel=0.2)  # sums of 64
