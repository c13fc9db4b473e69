"""The rule by which claims are judged, on made-up numbers."""

import math

import pytest
from scipy import stats

from ziggurat.engine import verdicts
from ziggurat.engine.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, Interval, contrast, trained

BETTER = {"a": 1.0, "b": -1.0}


@pytest.mark.parametrize("share", [0.975, 0.9875, 0.999])
@pytest.mark.parametrize("freedom", [1.0, 2.0, 2.7, 4.0, 11.3, 60.0])
def test_quantiles_are_students(share: float, freedom: float) -> None:
    expected = stats.t.ppf(share, freedom)
    assert verdicts.quantile(share, freedom) == pytest.approx(expected, rel=1e-6)


def test_the_interval_of_two_arms_is_welchs() -> None:
    a, b = [71.2, 70.4, 72.5], [69.9, 69.1, 69.5, 70.3]
    found = contrast(BETTER, {"a": a, "b": b})
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6)
    assert found.value == pytest.approx(71.3666667 - 69.7)


def test_weights_scale_what_they_weigh() -> None:
    measured = {"a": [1.0, 3.0], "b": [2.0, 2.5]}
    one, two = (
        contrast({arm: factor * weight for arm, weight in BETTER.items()}, measured)
        for factor in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert (two.value, two.low) == pytest.approx((2 * one.value, 2 * one.low))


def test_the_true_difference_is_in_the_interval_as_often_as_promised() -> None:
    """Arms of three seeds whose spread differs five times."""
    draws = stats.norm.rvs(size=(600, 6), random_state=0)
    inside = 0
    for row in draws:
        found = contrast(BETTER, {"a": list(50 + row[:3]), "b": list(48 + 5 * row[3:])})
        assert found is not None
        inside += found.low < 2 < found.high
    assert 0.93 <= inside / len(draws) <= 0.98


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([70, 71, 70.5], [60, 61, 60.5], HOLDS),
        ([60, 61, 60.5], [70, 71, 70.5], FAILS),
        ([70, 60, 65], [69, 61, 64], UNDECIDED),
        ([70, 70.1, 70.2], [70, 70.1, 70.2], UNDECIDED),
        ([100, 100, 100], [100, 100, 100], UNDECIDED),  # no spread, no difference
        ([100, 100, 100], [99, 99, 99], HOLDS),
        ([70], [60], MISSING),  # one seed has no spread
        ([70, 71], [60], MISSING),
    ],
)
def test_a_direction_is_decided_by_the_interval(
    a: list[float], b: list[float], verdict: str
) -> None:
    assert trained([BETTER], {"a": a, "b": b})[0] == verdict


def test_an_arm_that_was_not_trained_leaves_a_claim_open() -> None:
    verdict, found = trained([BETTER], {"a": [1, 2]})
    assert (verdict, found) == (MISSING, [None])


@pytest.mark.parametrize(
    ("b", "verdict"),
    [
        ([70.1, 70.2, 69.9], HOLDS),
        ([75.1, 75.2, 74.9], FAILS),
        ([64.9, 65.2, 65.1], FAILS),
        ([66, 73, 71], UNDECIDED),
    ],
)
def test_little_difference_is_all_of_the_interval_within_the_margin(
    b: list[float], verdict: str
) -> None:
    measured = {"a": [70, 70.1, 70.2], "b": b}
    assert trained([BETTER], measured, within=2)[0] == verdict


def test_several_contrasts_hold_if_each_does_and_fail_by_one() -> None:
    up, down, same = [70, 70.3, 70.6], [60, 60.3, 60.6], [69.8, 70.4, 70.5]
    pairs = [{"a": 1.0, "b": -1.0}, {"a": 1.0, "c": -1.0}]
    assert trained(pairs, {"a": up, "b": down, "c": down})[0] == HOLDS
    assert trained(pairs, {"a": up, "b": down, "c": same})[0] == UNDECIDED
    assert trained(pairs, {"a": down, "b": up, "c": down})[0] == FAILS


def test_one_of_many_contrasts_fails_only_if_it_would_among_so_many() -> None:
    """An interval that misses 0 by little at 95 % does not at 99 %."""
    measured = {"a": [70.0, 70.5, 71.0], "b": [71.2, 71.7, 72.2]}
    assert trained([BETTER], measured)[0] == FAILS
    assert trained([BETTER] * 5, measured)[0] == UNDECIDED


@pytest.mark.parametrize(
    ("low", "high", "relation", "verdict"),
    [
        (2.5, 2.8, "at least", HOLDS),
        (1.85, 1.9, "at least", HOLDS),  # 2, but for a tenth
        (1.7, 1.9, "at least", UNDECIDED),
        (1.2, 1.4, "at least", FAILS),
        (1.2, 1.4, "at most", HOLDS),
        (2.5, 2.8, "at most", FAILS),
        (1.9, 2.1, "about", HOLDS),
        (1.2, 1.4, "about", FAILS),
        (1.5, 2.1, "about", UNDECIDED),
    ],
)
def test_a_ratio_is_reached_but_for_a_tenth(
    low: float, high: float, relation: str, verdict: str
) -> None:
    assert verdicts.ratio(Interval((low + high) / 2, low, high), 2.0, relation) == verdict


@pytest.mark.parametrize(
    ("found", "claimed", "relation", "verdict"),
    [
        (56.3, "57", "equals", HOLDS),  # of rounded numbers: 38 and 88 M
        (55.9, "57", "equals", FAILS),
        (24.33, "24.4", "equals", HOLDS),
        (24.2, "24.4", "equals", FAILS),
        (-2.9, "-0.2", "at most", HOLDS),
        (52.6, "50", "at least", HOLDS),
        (49.9, "50", "at least", FAILS),
    ],
)
def test_a_count_agrees_within_one_of_the_last_digit(
    found: float, claimed: str, relation: str, verdict: str
) -> None:
    assert verdicts.count(found, claimed, relation) == verdict


def test_intervals_turn_round_where_less_is_better() -> None:
    assert Interval(-3, -5, -1).times(-1) == Interval(3, 1, 5)
    assert math.isclose(Interval(2, 1, 3).times(2).high, 6)
