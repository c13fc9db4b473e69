"""Several processes that answer at one address, and the one that looks after them.

    workers(2) -> fork -> each loads its models and listens: Linux shares connections out
               -> wait: who dies is followed by another, SIGTERM and Ctrl-C stop them all

Python's code runs on one core at a time in a process, however many threads it has. The process that
waits has loaded nothing, so that it can be copied at any time.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client keeps what all workers count
THREADS = "OMP_NUM_THREADS"
UP = signal.SIGUSR1  # what a worker sends when it listens and its models run
WATCHED = {UP, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}
REST = 1.0  # seconds before one that died is followed by another


class Worker(NamedTuple):
    """One of the processes that answer."""

    number: int
    parent: int

    def up(self) -> None:
        """Say that it answers."""
        os.kill(self.parent, UP)


def workers(count: int) -> Worker | int:
    """In each of so many new processes which it is; in this one, once they ended, an exit code.

    The first comes alone, for what is wrong with its models is wrong with all of them.
    """
    folder = tempfile.mkdtemp(prefix="ziggurat-")
    os.environ[SHARED] = folder
    os.environ.setdefault(THREADS, str(max(1, len(os.sched_getaffinity(0)) // count)))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    lifeline, held = os.pipe()
    parent = os.getpid()
    alive: dict[int, int] = {}
    codes: list[int] = []
    up = stopping = False
    due: Iterable[int] = [0]
    while due or alive:
        for number in due:
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                os.close(held)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                threading.Thread(target=obey, args=(lifeline,), daemon=True).start()
                return Worker(number, parent)
            alive[pid] = number
        due = []
        told = signal.sigwait(WATCHED)
        if told == UP and not up and not stopping:
            up, due = True, range(1, count)
        elif told in (signal.SIGINT, signal.SIGTERM) and not stopping:
            stopping = True
            os.close(held)
        for pid, code in ended():
            number = alive.pop(pid)
            if stopping or not up:
                codes.append(code)
            else:
                due = [*due, number]
                bury(folder, pid, number, code)
        if up and told == signal.SIGCHLD and due:
            time.sleep(REST)
    shutil.rmtree(folder, ignore_errors=True)
    fine = (0, -signal.SIGTERM)  # the latter: asked to stop while it loaded
    return max(0 if code in fine else max(code, 1) for code in codes)


def ended() -> Iterator[tuple[int, int]]:
    """Processes that ended since it was last asked, and with what; below 0: by which signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def bury(folder: str, pid: int, number: int, code: int) -> None:
    """Say that one died; what it counted stays, what it held does not."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid, folder)
    how = f"by signal {-code}" if code < 0 else f"with {code}"
    words = f"worker {number + 1} ended {how}: another takes its place"
    print(f"ziggurat: {words}", file=sys.stderr, flush=True)


def obey(lifeline: int) -> None:
    """Stop when the process that waits does, or is gone."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def alone(opened: socket.socket) -> socket.socket:
    """A claim on an address, held by the process that waits.

    Before its workers listen another server could bind there, too, and share its visitors.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind("\0ziggurat {} {}".format(*opened.getsockname()[:2]))  # no file to be left over
    except OSError:
        held.close()
        raise
    return held


def share(opened: socket.socket) -> None:
    """Let sockets of workers have the address, too."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def sharing(opened: socket.socket) -> socket.socket:
    """A worker's socket at a shared address: it gets connections once it listens."""
    own = socket.socket(opened.family, opened.type, opened.proto)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    share(own)
    own.bind(opened.getsockname())
    return own
