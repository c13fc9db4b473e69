import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait

import pytest

from ziggurat.web.batching import Batcher, Full


def never() -> bool:
    return False


def always() -> bool:
    return True


class Model:
    """Doubles numbers when it may, and knows its batches."""

    def __init__(self) -> None:
        self.go, self.begun, self.batches = threading.Event(), threading.Event(), list[list[int]]()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.begun.set()
        assert self.go.wait(20)
        if -1 in items:
            raise ValueError("no such number")
        return [2 * item for item in items]


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.go.set()


def busy(model: Model, batch: int = 3, limit: int = 8) -> tuple[Batcher[int, int], Future[int]]:
    """One whose model is at work on 0."""
    batcher = Batcher(model, batch, limit, never)
    (first,) = batcher.submit([0])
    assert model.begun.wait(20)
    return batcher, first


def test_who_comes_while_the_model_works_goes_together(model: Model) -> None:
    batcher, first = busy(model)
    later = [batcher.submit([i])[0] for i in (1, 2, 3, 4)]
    assert len(batcher) == 4
    model.go.set()
    assert [one.result(20) for one in (first, *later)] == [0, 2, 4, 6, 8]
    assert model.batches == [[0], [1, 2, 3], [4]]
    batcher.close()


def test_the_first_waits_for_company_but_not_for_long(model: Model) -> None:
    model.go.set()
    batcher = Batcher(model, 3, 8, always, wait=0.3)
    answers = [batcher.submit([i])[0] for i in (1, 2)]
    wait(answers, 20)
    assert model.batches == [[1, 2]]
    batcher.close()
    patient = Batcher(model, 3, 8, always, wait=600)
    assert not wait(patient.submit([1, 2, 3]), 20).not_done  # full: nobody to wait for
    patient.close()
    alone = Batcher(model, 3, 8, never, wait=600)
    assert not wait(alone.submit([1]), 20).not_done  # nobody else is there
    alone.close()


def test_nobody_is_waited_for_who_is_there_already(model: Model) -> None:
    model.go.set()
    coming = [2]
    batcher = Batcher(model, 9, 9, lambda: coming[0] > 0, wait=600)
    (first,) = batcher.submit([1])
    coming[0] = 1
    (second,) = batcher.submit([2])
    coming[0] = 0
    (third,) = batcher.submit([3])
    assert not wait([first, second, third], 20).not_done
    assert model.batches == [[1, 2, 3]]
    batcher.close()


def test_what_is_cancelled_is_never_computed_and_frees_its_place(model: Model) -> None:
    batcher, _ = busy(model, limit=2)
    given_up, kept = batcher.submit([1, 2])
    with pytest.raises(Full):
        batcher.submit([3])
    assert given_up.cancel()
    assert len(batcher) == 1
    (third,) = batcher.submit([3])
    model.go.set()
    assert (kept.result(20), third.result(20)) == (4, 6)
    assert model.batches == [[0], [2, 3]]
    with pytest.raises(CancelledError):
        given_up.result(0)
    batcher.close()


def test_all_of_a_request_fit_or_none_is_taken(model: Model) -> None:
    batcher, _ = busy(model, limit=4)
    batcher.submit([1, 2, 3])
    with pytest.raises(Full):
        batcher.submit([4, 5])
    assert len(batcher) == 3


def test_a_failure_is_told_to_its_batch_alone(model: Model) -> None:
    batcher, first = busy(model, batch=2)
    bad = batcher.submit([-1, 1])
    (good,) = batcher.submit([2])
    model.go.set()
    assert [one.exception(20).__class__ for one in (first, *bad, good)] == [
        type(None),
        ValueError,
        ValueError,
        type(None),
    ]
    batcher.close()


def test_closing_finishes_what_waits_and_a_later_item_starts_again(model: Model) -> None:
    batcher, _ = busy(model)
    later = batcher.submit([1, 2])
    threading.Timer(0.05, model.go.set).start()
    batcher.close()
    assert [one.result(0) for one in later] == [2, 4]
    assert batcher.thread is None
    assert batcher.submit([5])[0].result(20) == 10
    batcher.close()


def test_nothing_is_lost_among_many_threads() -> None:
    batches: list[int] = []

    def run(items: list[int]) -> list[int]:
        batches.append(len(items))
        return items

    batcher = Batcher(run, batch=7, limit=10_000, company=always, wait=0.001)
    answers: list[Future[int]] = []

    def ask(start: int) -> None:
        for i in range(start, start + 200):
            (one,) = batcher.submit([i])
            if i % 5 == 0:
                one.cancel()
            answers.append(one)

    threads = [threading.Thread(target=ask, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batcher.close()
    found = [one.result(0) for one in answers if not one.cancelled()]
    assert len(found) == len(set(found)) >= 960
    assert sum(batches) == len(found)
    assert max(batches) <= 7
