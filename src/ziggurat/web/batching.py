"""Many requests, one call of a model.

    requests: submit([item, ...]) -> futures        one thread: take -> run([item, ...]) -> results

Who comes while the model works waits and goes with the next call; who comes when it rests waits a
few milliseconds for others, as long as some are on their way. What is cancelled before its turn is
never computed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

WAIT = 0.01  # seconds that the first of a batch waits for others at most

Item = TypeVar("Item")
Result = TypeVar("Result")


class Full(Exception):
    """There are as many waiting as may."""


class Waiting(NamedTuple, Generic[Item, Result]):
    """One item on its way."""

    item: Item
    since: float
    answer: Future[Result]


class Batcher(Generic[Item, Result]):
    """Calls ``run`` from one thread of its own, with at most ``batch`` items at once.

    ``limit`` bounds those that wait, ``company`` says whether more come soon. The thread starts
    with the first item and ends with ``close``.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Result]],
        batch: int,
        limit: int,
        company: Callable[[], bool],
        wait: float = WAIT,
    ) -> None:
        self.run, self.batch, self.limit = run, batch, limit
        self.company, self.wait = company, wait
        self.queue: deque[Waiting[Item, Result]] = deque()
        self.changed = threading.Condition()
        self.closing = False
        self.thread: threading.Thread | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self.queue)

    def submit(self, items: Sequence[Item]) -> list[Future[Result]]:
        """A future for each item; Full if they do not all fit, and then none is taken."""
        with self.changed:
            if len(self.queue) + len(items) > self.limit:
                raise Full(f"{len(self.queue)} wait already")
            now = time.monotonic()
            new: list[Waiting[Item, Result]] = [Waiting(item, now, Future()) for item in items]
            self.queue.extend(new)
            if self.thread is None:
                self.closing = False
                self.thread = threading.Thread(target=self.work, name="model", daemon=True)
                self.thread.start()
            first = len(self.queue) == len(new)
            if first or len(self.queue) >= self.batch or not self.company():
                self.changed.notify()  # else there is no need to look yet
        for one in new:
            one.answer.add_done_callback(self.forget)
        return [one.answer for one in new]

    def forget(self, answer: Future[Result]) -> None:
        """Take one that was cancelled out of the queue: its place is free at once."""
        if answer.cancelled():
            with self.changed:
                self.queue = deque(one for one in self.queue if one.answer is not answer)

    def work(self) -> None:
        """What the thread does."""
        while (taken := self.take()) is not None:
            if not taken:
                continue
            try:
                results = self.run([one.item for one in taken])
                for one, result in zip(taken, results, strict=True):
                    one.answer.set_result(result)
            except Exception as error:  # the next ones may fare better
                for one in taken:
                    if not one.answer.done():
                        one.answer.set_exception(error)

    def take(self) -> list[Waiting[Item, Result]] | None:
        """The next batch: full, or with no other on its way, or late enough; None: no more."""
        with self.changed:
            while not self.queue:
                if self.closing:
                    self.thread = None
                    return None
                self.changed.wait()
            until = self.queue[0].since + self.wait
            while 0 < len(self.queue) < self.batch and self.company() and not self.closing:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
            some = [self.queue.popleft() for _ in range(min(self.batch, len(self.queue)))]
        return [one for one in some if one.answer.set_running_or_notify_cancel()]

    def close(self, seconds: float | None = None) -> None:
        """Compute what waits, then end; return when that is done or the time is over."""
        with self.changed:
            self.closing = True
            self.changed.notify()
            thread = self.thread
        if thread is not None:
            thread.join(seconds)
