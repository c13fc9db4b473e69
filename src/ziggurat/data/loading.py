"""Which sample comes when: a function of seed and step alone, so that a run can go on anywhere.

The sampler hands out keys, not indices. A key says where in which epoch a sample stands, and the
random numbers of its augmentation follow from that: it is augmented the same whichever process,
worker or restart it falls to. There is no state to save but the step.
"""

import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler


class Key(NamedTuple):
    """A sample's place: the ``position``-th of ``epoch`` is the set's ``sample``-th."""

    epoch: int
    position: int
    sample: int


class Ordered(Protocol):
    """A set of samples that may know better than chance in which order to be read."""

    def __len__(self) -> int:
        """How many there are."""

    def order(self, generator: torch.Generator) -> Tensor:
        """A permutation of all indices for one epoch."""


def seed_all(*parts: int) -> None:
    """Seed Python, numpy and torch from a few small numbers.

    Once a sample, so it has to be quick: ``torch.manual_seed`` takes a hundred times as long, as
    it looks for every kind of device.
    """
    state = np.random.SeedSequence([part & 0xFFFFFFFF for part in parts]).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(state[1])
    torch.default_generator.manual_seed(int(state[2]))
    if torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork():
        torch.cuda.manual_seed_all(int(state[2]))


class Steps(Sampler[list[Key]]):
    """The keys of each batch from step ``start`` to ``stop``, for one of ``world`` processes.

    A step takes ``batch`` samples over all processes, in ``accumulate`` parts; what is left of an
    epoch that they do not divide is not seen in it. With ``repeats`` an epoch shows fewer images
    that many times, each augmented anew (Hoffer et al.; DeiT's repeated augmentation).
    """

    def __init__(
        self,
        source: Ordered,
        batch: int,
        start: int,
        stop: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        repeats: int = 1,
    ) -> None:
        if batch % (world * accumulate):
            raise ValueError(
                f"a batch of {batch} cannot be shared by {world} processes in {accumulate} parts: "
                f"take a multiple of {world * accumulate}"
            )
        if len(source) < batch:
            raise ValueError(
                f"a batch of {batch} is more than the {len(source)} training images there are: "
                "take a smaller batch"
            )
        self.source, self.batch, self.start, self.stop, self.seed = source, batch, start, stop, seed
        self.rank, self.world, self.accumulate, self.repeats = rank, world, accumulate, repeats
        self.per_epoch = len(source) // batch

    def __len__(self) -> int:
        """How many batches this process is given."""
        return (self.stop - self.start) * self.accumulate

    def order(self, epoch: int) -> Tensor:
        """Indices of one epoch in the order they are seen."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = self.source.order(generator)
        return order.repeat_interleave(self.repeats)[: len(order)]

    def __iter__(self) -> Iterator[list[Key]]:
        """Batches, ``accumulate`` of them for each step."""
        part = self.batch // (self.world * self.accumulate)
        epoch, order = -1, torch.empty(0)
        for step in range(self.start, self.stop):
            if step // self.per_epoch != epoch:
                epoch = step // self.per_epoch
                order = self.order(epoch)
            first = step % self.per_epoch * self.batch
            for i in range(self.accumulate):
                begin = first + (i * self.world + self.rank) * part
                yield [Key(epoch, p, int(order[p])) for p in range(begin, begin + part)]


class Once(Sampler[list[Key]]):
    """Every sample exactly once over all processes, in order: for evaluation."""

    def __init__(self, source: Ordered, batch: int, rank: int = 0, world: int = 1) -> None:
        self.indices = range(rank, len(source), world)
        self.batch = batch

    def __len__(self) -> int:
        """How many batches this process is given."""
        return -(-len(self.indices) // self.batch)

    def __iter__(self) -> Iterator[list[Key]]:
        """Batches, the last one shorter."""
        for i in range(0, len(self.indices), self.batch):
            yield [Key(0, j, j) for j in self.indices[i : i + self.batch]]


class Seeded(Dataset[Any]):
    """Samples made by ``make(index)`` with the random numbers that belong to their key."""

    def __init__(self, make: Callable[[int], Any], seed: int) -> None:
        self.make, self.seed = make, seed

    def __getitem__(self, key: Key) -> Any:
        """One sample."""
        seed_all(self.seed, key.epoch, key.position)
        return self.make(key.sample)


def loader(
    make: Callable[[int], Any],
    collate: Callable[[Sequence[Any]], Any],
    sampler: Sampler[list[Key]],
    seed: int,
    workers: int,
) -> DataLoader[Any]:
    """Batches of ``make``'s samples in ``sampler``'s order, made by ``workers`` processes."""
    return DataLoader(
        Seeded(make, seed),
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=begin_work if workers else None,
        prefetch_factor=4 if workers else None,
    )


def begin_work(_: int) -> None:
    """A worker leaves the other cores to the model, and signals to the process that trains.

    A signal goes to all processes of a group (Ctrl-C, torchrun): were workers to die of it, the
    run could not be saved. They end with the process that started them.
    """
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
