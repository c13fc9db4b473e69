"""Several processes at one address: light ones that answer with their number, and real ones."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from PIL import Image

from tests.web.conftest import encoded, picture, until
from tests.web.test_predict import PATH, files, metric
from tests.web.test_server import started
from ziggurat.cli import main
from ziggurat.cli.serving import listening
from ziggurat.web.workers import alone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")

# What a worker does until it is stopped; "fail N" ends at once with N.
LIGHT = """
import os, signal, socket, sys
from ziggurat.web.workers import Worker, share, sharing, workers

opened = socket.socket()
opened.bind(("127.0.0.1", 0))
print(opened.getsockname()[1], flush=True)
share(opened)
one = workers(int(sys.argv[1]))
if not isinstance(one, Worker):
    sys.exit(one)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
own = sharing(opened)
own.listen()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
one.up()
while True:
    there, _ = own.accept()
    there.sendall(f"{one.number} {os.getpid()}".encode())
    there.close()
"""


@contextmanager
def light(*words: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Such processes and their port."""
    told = [sys.executable, "-c", LIGHT, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(told, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def who(port: int) -> str:
    """The number and the process that answered; nothing if none did."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as asked:
            return asked.recv(100).decode()
    except ConnectionError:
        return ""


def all_of(port: int, count: int) -> dict[str, int]:
    """Once each worker has answered: its process by its number."""
    found: dict[str, int] = {}

    def complete() -> bool:
        if told := who(port):
            found[told.split()[0]] = int(told.split()[1])
        return len(found) == count

    until(complete)
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended, also if nobody has asked with what."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or after
        return True


def test_connections_are_shared_out_and_a_stop_reaches_all() -> None:
    with light(3) as (process, port):
        pids = all_of(port, 3)
        counts = Counter(who(port).split()[0] for _ in range(300))
        assert min(counts.values()) > 50
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ended_is_followed_by_another(how: signal.Signals) -> None:
    with light(2) as (process, port):
        before = all_of(port, 2)
        os.kill(before["1"], how)
        until(lambda: gone(before["1"]))
        dead = f"1 {before['1']}"  # of which a thread may hold the socket a moment longer
        until(lambda: who(port) not in ("", dead))
        until(lambda: all_of(port, 2)["1"] != before["1"])
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr
        said = process.stderr.read()
    ending = "by signal 9" if how == signal.SIGKILL else "with 0"
    assert said == f"ziggurat: worker 2 ended {ending}: another takes its place\n"


def test_an_address_is_one_servers() -> None:
    """Also before anybody listens there."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        with alone(opened), pytest.raises(OSError, match="in use"):
            alone(opened)
        alone(opened).close()


def test_a_server_that_still_loads_is_not_joined(capsys: pytest.CaptureFixture[str]) -> None:
    with listening("127.0.0.1", 0) as opened, alone(opened):
        port = str(opened.getsockname()[1])
        assert main(["serve", "nowhere", "--workers", "2", "--port", port]) == 2
    assert "Address already in use (take another --port)" in capsys.readouterr().err


def test_what_the_first_fails_with_is_the_end() -> None:
    with light(4, 7) as (process, _):
        assert process.wait(10) == 7


def test_workers_do_not_outlive_the_process_that_looks_after_them() -> None:
    with light(2) as (process, port):
        pids = all_of(port, 2)
        process.kill()
        until(lambda: all(gone(pid) for pid in pids.values()))


def test_all_workers_are_counted_and_sigterm_loses_no_accepted_request(
    folders: list[Path],
) -> None:
    """Who is asked for metrics tells of all; each computes what it has taken in."""
    slow = encoded(picture().resize((2000, 2000), Image.Resampling.NEAREST))
    words = ("--batch", "2", "--backend", "eager", "--workers", "2")
    route = '{route="/api/predict"}'
    with (
        started(folders[0], *words) as (process, address),
        httpx2.Client(base_url=address) as client,
        ThreadPoolExecutor(16) as pool,
    ):

        def ask(_: int) -> int:
            return httpx2.post(address + PATH, files=files(slow), timeout=60).status_code

        until(lambda: metric(client, "ziggurat_ready") == 2, 60)
        assert metric(client, "process_resident_memory_bytes") > 2e8
        asked = [pool.submit(ask, i) for i in range(16)]
        done = f"ziggurat_request_seconds_count{route}"
        until(lambda: metric(client, done) + metric(client, "ziggurat_requests_inside") >= 16)
        inside = metric(client, "ziggurat_requests_inside")
        process.send_signal(signal.SIGTERM)
        assert [one.result(60) for one in asked] == [200] * 16
        assert process.wait(20) == 0
        assert process.stderr
        assert process.stderr.read() == ""
    assert inside
