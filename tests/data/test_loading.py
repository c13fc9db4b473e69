import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from ziggurat.data.loading import Key, Once, Steps, loader, seed_all


class Numbers:
    """A set that is only its size."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def order(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.count, generator=generator)


def steps(world: int = 1, accumulate: int = 1, start: int = 0, repeats: int = 1) -> list[list[Key]]:
    """Keys of each step, all processes and parts together, 24 samples a step of 103."""
    ranks = [
        list(Steps(Numbers(103), 24, start, 11, 7, rank, world, accumulate, repeats))
        for rank in range(world)
    ]
    return [
        sorted(key for rank in ranks for part in rank[i : i + accumulate] for key in part)
        for i in range(0, len(ranks[0]), accumulate)
    ]


# Training.


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (3, 1), (4, 2), (1, 8)])
def test_a_step_has_the_same_keys_for_any_number_of_processes(world: int, accumulate: int) -> None:
    assert steps(world, accumulate) == steps()


def test_processes_share_a_step_without_overlap() -> None:
    ranks = [list(Steps(Numbers(103), 24, 0, 4, 7, rank, 3)) for rank in range(3)]
    for parts in zip(*ranks, strict=True):
        assert [len(part) for part in parts] == [8, 8, 8]
        assert len({key for part in parts for key in part}) == 24


@pytest.mark.parametrize("start", range(1, 11))
@pytest.mark.parametrize("world", [1, 2])
def test_a_restart_at_any_step_goes_on_with_the_same_keys(start: int, world: int) -> None:
    assert steps(world, start=start) == steps()[start:]


def test_an_epoch_shows_no_sample_twice_and_each_is_ordered_anew() -> None:
    epochs = [[key.sample for step in steps()[i : i + 4] for key in step] for i in (0, 4)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 96
    assert epochs[0] != epochs[1]
    assert [key.epoch for step in steps() for key in step] == [0] * 96 + [1] * 96 + [2] * 72


def test_repeats_show_fewer_images_each_augmented_anew() -> None:
    epoch = [key for step in steps(repeats=3)[:4] for key in step]
    assert len({key.sample for key in epoch}) == 32
    assert len({key.position for key in epoch}) == 96
    for i in range(0, 96, 3):
        assert len({key.sample for key in epoch[i : i + 3]}) == 1


def test_another_seed_gives_another_order() -> None:
    one, other = (list(Steps(Numbers(103), 24, 0, 1, seed)) for seed in (0, 1))
    assert one != other


def test_its_length_is_what_it_gives() -> None:
    sampler = Steps(Numbers(103), 24, 3, 11, 0, rank=1, world=2, accumulate=3)
    assert len(sampler) == len(list(sampler)) == 24
    assert all(len(part) == 4 for part in sampler)


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a batch of 24 cannot be shared by 5 processes in 1 parts"
    ):
        Steps(Numbers(103), 24, 0, 1, 0, world=5)
    with pytest.raises(ValueError, match="more than the 10 training images there are"):
        Steps(Numbers(10), 24, 0, 1, 0)


# Evaluation.


@pytest.mark.parametrize("count", [0, 1, 2, 23, 24, 25, 103])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_sample_is_evaluated_exactly_once(count: int, world: int) -> None:
    ranks = [Once(Numbers(count), 8, rank, world) for rank in range(world)]
    assert all(len(rank) == len(list(rank)) for rank in ranks)
    seen = [key.sample for rank in ranks for batch in rank for key in batch]
    assert sorted(seen) == list(range(count))


# Random numbers.


def draw(index: int) -> tuple[int, float, float, float]:
    return index, random.random(), float(np.random.rand()), float(torch.rand(()))


def listed(samples: Sequence[tuple[int, float, float, float]]) -> list[tuple[float, ...]]:
    return list(samples)


def drawn(workers: int, start: int = 0, rank: int = 0, world: int = 1) -> list[tuple[float, ...]]:
    sampler = Steps(Numbers(40), 8, start, 8, 3, rank, world)
    return [sample for batch in loader(draw, listed, sampler, 3, workers) for sample in batch]


def test_a_sample_is_augmented_alike_whoever_makes_it() -> None:
    alone = drawn(0)
    assert drawn(2) == alone
    assert sorted(drawn(2, rank=0, world=2) + drawn(0, rank=1, world=2)) == sorted(alone)
    assert drawn(0, start=5) == alone[40:]


def test_augmentation_differs_between_samples_and_epochs() -> None:
    found = drawn(0)
    for column in (1, 2, 3):
        assert len({sample[column] for sample in found}) == len(found) == 64


def test_seeding_depends_on_every_part() -> None:
    values = set()
    for parts in ((0, 0), (0, 1), (1, 0), (-1, 0)):
        seed_all(*parts)
        values.add(draw(0))
    assert len(values) == 4
