"""The learning rate of every step."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.small_runs import small
from ziggurat.engine.optim import Schedule, optimizer

PEAK = 0.4


def rates(per_epoch: int = 100, **changes: Any) -> list[float]:
    """Of each step of a run; it does not depend on the one before."""
    alike = {"lr": PEAK, "lr_per": 0, "warmup_epochs": 0.0, "min_lr": 0.0}
    layer = nn.Linear(1, 1)
    schedule = Schedule(
        torch.optim.SGD(layer.parameters(), PEAK), small(**alike | changes), per_epoch
    )
    backwards = [schedule.set(step) for step in reversed(range(schedule.steps))]
    return backwards[::-1]


def test_the_rate_falls_at_the_epochs_given_and_not_before() -> None:
    found = rates(epochs=12, schedule="step", decay_at=[9, 11])
    assert found[:900] == [PEAK] * 900
    assert found[900:1100] == [pytest.approx(PEAK / 10)] * 200
    assert found[1100:] == [pytest.approx(PEAK / 100)] * 100


def test_parts_of_epochs_are_steps_and_their_order_does_not_matter() -> None:
    """RegionViT: 90,000 steps of 16 images, falling behind 60,000 and 80,000."""
    found = rates(
        7392, epochs=12.17, schedule="step", decay_at=[10.82, 8.12], decay_rate=0.5
    )  # 118,287 images, sixteen at a time
    assert len(found) == 89961
    falls = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    assert falls == [60023, 79981]
    assert found[-1] == pytest.approx(PEAK / 4)


def test_without_epochs_given_the_rate_falls_every_so_often() -> None:
    found = rates(epochs=3, schedule="step", decay_epochs=1, decay_rate=0.5)
    assert [found[99], found[100], found[199], found[200]] == [PEAK, PEAK / 2, PEAK / 2, PEAK / 4]


def test_epochs_given_mean_nothing_to_other_schedules() -> None:
    assert rates(epochs=2, schedule="constant", decay_at=[1]) == [PEAK] * 200


def test_warm_up_comes_first_and_moves_no_milestone() -> None:
    found = rates(epochs=3, schedule="step", decay_at=[2], warmup_epochs=0.5, warmup_lr=0.1)
    assert found[:50] == [pytest.approx(0.1 + 0.3 * step / 50) for step in range(50)]
    assert found[50:200] == [PEAK] * 150
    assert found[200:] == [pytest.approx(PEAK / 10)] * 100


@pytest.mark.parametrize("power", [1.0, 0.9])
def test_a_polynomial_falls_with_the_share_that_is_left(power: float) -> None:
    found = rates(epochs=2, schedule="poly", power=power, min_lr=0.01, warmup_epochs=0.1)
    for step in (10, 77, 150, 199):
        left = (1 - step / 200) ** power
        assert found[step] == pytest.approx(0.01 + (PEAK - 0.01) * left)
    assert found[5] == pytest.approx(1e-6 + (PEAK - 1e-6) / 2)


def test_a_cosine_ends_at_the_least_rate() -> None:
    found = rates(epochs=2, cooldown_epochs=1, min_lr=0.01)
    assert found[50] == pytest.approx(0.01 + (PEAK - 0.01) * (1 + math.cos(math.pi / 4)) / 2)
    assert found[200:] == [0.01] * 100


def test_layers_keep_their_share_of_a_falling_rate() -> None:
    """timm's layer-wise decay multiplies what the schedule says."""
    slow, fast = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [
        {"params": slow.parameters(), "lr": PEAK, "lr_scale": 0.25},
        {"params": fast.parameters(), "lr": PEAK, "lr_scale": 1.0},
    ]
    rule = torch.optim.SGD(groups, PEAK)
    recipe = small(schedule="step", decay_at=[1], epochs=2, warmup_epochs=0.0)
    schedule = Schedule(rule, recipe, 10)
    assert schedule.set(9) == PEAK
    assert [group["lr"] for group in rule.param_groups] == [PEAK / 4, PEAK]
    assert schedule.set(10) == pytest.approx(PEAK / 10)
    assert [group["lr"] for group in rule.param_groups] == pytest.approx([PEAK / 40, PEAK / 10])


@pytest.mark.parametrize("at", [0, -1])
def test_the_rate_cannot_fall_before_the_beginning(at: int) -> None:
    with pytest.raises(ValueError, match=r"decay_at\.0 should be greater than 0"):
        small(schedule="step", decay_at=[at])


@pytest.mark.parametrize(("name", "fused"), [("adamw", True), ("momentum", True), ("lamb", False)])
def test_a_step_is_one_kernel_where_there_is_one(name: str, fused: bool) -> None:
    found = optimizer(nn.Linear(2, 2), small(optimizer=name))
    assert all(bool(group.get("fused")) is fused for group in found.param_groups)
