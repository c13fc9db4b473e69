import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from ziggurat.explain.localise import (
    THRESHOLDS,
    Tally,
    boxes,
    centre,
    hits,
    largest_part,
    pointing,
)


def rectangle(box: tuple[int, int, int, int], value: float = 1.0, side: int = 32) -> Tensor:
    heat = torch.zeros(side, side)
    x0, y0, x1, y1 = box
    heat[y0:y1, x0:x1] = value
    return heat


def truth(*found: tuple[int, int, int, int]) -> Tensor:
    return torch.tensor(found, dtype=torch.float32)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_the_largest_part_is_scipys(seed: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((13, 17)) < share
    found = largest_part(mask)
    parts, count = ndimage.label(mask, np.ones((3, 3)))
    sizes = np.bincount(parts.ravel())[1:]
    if not count:
        assert found is None
        return
    around = ndimage.find_objects(parts)
    largest = [around[i] for i in np.flatnonzero(sizes == sizes.max())]
    assert found in [(x.start, y.start, x.stop, y.stop) for y, x in largest]


def test_a_rectangle_is_found_to_the_pixel_at_every_threshold_but_0() -> None:
    box = (3, 5, 20, 11)
    found = boxes(rectangle(box))
    assert found[0].tolist() == [0, 0, 32, 32]
    assert (found[1:] == torch.tensor(box)).all()
    assert hits(rectangle(box), truth(box)).tolist() == [False] + [True] * 20


def test_of_two_parts_the_larger_is_taken_though_the_smaller_is_brighter() -> None:
    heat = rectangle((2, 2, 12, 12), 0.5) + rectangle((20, 20, 24, 24))
    found = boxes(heat)
    assert found[THRESHOLDS.index(0.5)].tolist() == [2, 2, 12, 12]
    assert found[THRESHOLDS.index(0.55)].tolist() == [20, 20, 24, 24]


def test_a_map_of_zeros_has_no_box_above_0() -> None:
    assert boxes(torch.zeros(8, 8))[1:].sum() == 0
    assert not hits(torch.zeros(8, 8), truth((0, 0, 2, 2))).any()


def test_half_of_the_union_is_a_hit_and_less_is_none() -> None:
    heat = rectangle((0, 0, 20, 10))
    assert hits(heat, truth((0, 0, 10, 10)))[-1]  # IoU 0.5
    assert not hits(heat, truth((0, 0, 9, 10)))[-1]
    assert hits(heat, truth((25, 25, 30, 30), (0, 0, 10, 10)))[-1]  # any true box will do


def test_the_search_finds_the_threshold_at_which_most_is_found() -> None:
    tally = Tally()
    pyramid = rectangle((0, 0, 30, 30), 0.4) + rectangle((10, 10, 20, 20), 0.6)
    tally.add([0], {0: pyramid}, {0: truth((10, 10, 20, 20))})  # from 0.45 on
    tally.add([0], {0: pyramid}, {0: truth((10, 10, 20, 20))})
    tally.add([0], {0: pyramid}, {0: truth((0, 0, 30, 30))})  # up to 0.4
    assert THRESHOLDS[tally.best()] == 0.45
    found = tally.accuracies()["known"]
    assert found[THRESHOLDS.index(0.4)] == pytest.approx(100 / 3)
    assert found[THRESHOLDS.index(0.45)] == pytest.approx(200 / 3)


def test_top_1_and_top_5_ask_for_the_class_and_for_its_own_box() -> None:
    tally = Tally()
    right, wrong = rectangle((2, 2, 12, 12)), rectangle((20, 20, 30, 30))
    both = {1: truth((2, 2, 12, 12)), 7: truth((2, 2, 12, 12))}
    tally.add([1, 2], {1: right, 7: wrong}, both)  # the likeliest is there, and found
    tally.add([7, 1], {1: right, 7: wrong}, both)  # the likeliest is there, not found: the next is
    tally.add([2, 3, 4, 5, 6, 1], {1: right, 7: wrong}, both)  # found, but not among five
    found = {key: values[-1] for key, values in tally.accuracies().items()}
    assert found == pytest.approx({"known": 50, "top1": 100 / 3, "top5": 200 / 3})


def test_the_pointing_game_is_won_inside_a_box_or_nearly() -> None:
    heat = torch.zeros(100, 100)
    heat[40, 60] = 1
    assert pointing(heat, truth((60, 40, 61, 41)), tolerance=0) == 1
    assert pointing(heat, truth((40, 60, 41, 61)), tolerance=0) == 0  # x is not y
    near = truth((63, 38, 80, 50))
    assert pointing(heat, near, tolerance=0.02) == 0
    assert pointing(heat, near) == 1
    assert pointing(heat, truth((0, 0, 5, 5), (63, 38, 80, 50))) == 1


def test_several_maxima_score_by_the_share_that_lies_inside() -> None:
    heat = rectangle((0, 0, 8, 8))
    assert pointing(heat, truth((0, 0, 4, 8)), tolerance=0) == 0.5
    assert pointing(torch.ones(10, 20), truth((0, 0, 10, 10)), tolerance=0) == 0.5


def test_the_centre_knows_only_the_middle() -> None:
    found = boxes(centre(40, 80))
    assert found[THRESHOLDS.index(0.5)].tolist() == [20, 10, 60, 30]
    assert pointing(centre(40, 80), truth((39, 19, 41, 21)), tolerance=0) == 1
