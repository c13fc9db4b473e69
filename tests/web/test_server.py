"""Starting and stopping, as a real process where that matters."""

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from tests.web.conftest import Gate, encoded, picture, serving, until
from tests.web.test_guard import connected
from tests.web.test_predict import IMAGE, PATH, files, metric
from ziggurat.web import server
from ziggurat.web.app import application

CLIENT = """
import socket, sys
opened = socket.create_connection((sys.argv[1], int(sys.argv[2])))
opened.sendall(sys.stdin.buffer.read())
opened.recv(1)
"""


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``ziggurat serve`` and its address, once it is ready."""
    words = [sys.executable, "-m", "ziggurat", "serve", str(folder), "--port", "0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"at (http://\S+)", line)
        try:
            assert found, line
            until(lambda: httpx2.get(f"{found[1]}/healthz").status_code == 200, 60)
            yield process, found[1]
        finally:
            if process.poll() is None:
                process.kill()


def killed(address: str, image: bytes) -> None:
    """A client that sends a request and is killed while it waits for the answer."""
    asked = httpx2.Request("POST", address + PATH, files=files(image))
    head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
    whole = f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + asked.read()
    host, _, port = address.removeprefix("http://").partition(":")
    words = [sys.executable, "-c", CLIENT, host, port]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(whole)
        process.stdin.close()
        with httpx2.Client(base_url=address) as client:
            until(lambda: taken(client) == 1)
        process.kill()


def taken(client: httpx2.Client) -> float:
    """Requests for predictions that were answered or are being answered."""
    done = metric(client, 'ziggurat_request_seconds_count{route="/api/predict"}')
    return done + metric(client, "ziggurat_requests_inside")


def test_neither_a_killed_client_nor_sigterm_loses_an_accepted_request(
    folders: list[Path],
) -> None:
    """What is at work or waits is answered, what rests is closed, and the end is a good one."""
    slow = encoded(picture().resize((2000, 2000), Image.Resampling.NEAREST))
    count = 16
    with (
        started(folders[0], "--batch", "2", "--backend", "eager") as (process, address),
        connected(address) as resting,
        httpx2.Client(base_url=address) as client,
        ThreadPoolExecutor(count) as pool,
    ):

        def ask(_: int) -> Any:
            return httpx2.post(address + PATH, files=files(slow), timeout=60)

        killed(address, slow)
        asked = [pool.submit(ask, i) for i in range(count)]
        until(lambda: taken(client) == count + 1)
        waiting = metric(client, "ziggurat_requests_inside")
        process.send_signal(signal.SIGTERM)
        found = [one.result(60) for one in asked]
        assert resting.recv(1) == b""
        assert process.wait(20) == 0
        assert process.stderr
        err = process.stderr.read()
    assert waiting
    assert [one.status_code for one in found] == [200] * count
    assert "close" in {one.headers.get("connection") for one in found}
    assert "Traceback" not in err


def test_a_thread_that_cannot_be_stopped_does_not_keep_the_server(folders: list[Path]) -> None:
    """An image is decoded to its end, whoever waits; a second SIGTERM changes nothing."""
    slow = encoded(picture().resize((6000, 6000), Image.Resampling.NEAREST), "PNG")
    words = ("--backend", "eager", "--timeout", "0.2", "--grace", "1")
    with started(folders[0], *words) as (process, address):
        assert httpx2.post(address + PATH, files=files(*[slow] * 16)).status_code == 504
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr
        assert "Traceback" not in process.stderr.read()


def test_it_is_not_ready_before_its_models_nor_when_it_stops(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds a connection when it stops is answered once more."""
    monkeypatch.setattr(server, "FAREWELL", 3)
    up = threading.Event()
    with serving(application({"gate": gate.model}), up=up.set) as (address, stop):
        assert gate.begun.wait(20)
        found = httpx2.get(f"{address}/healthz")
        assert (found.status_code, found.json()) == (503, {"status": "starting"})
        assert not up.is_set()
        gate.go.set()
        until(lambda: httpx2.get(f"{address}/healthz").status_code == 200)
        assert up.wait(5)
        kept = [http.client.HTTPConnection(address.removeprefix("http://")) for _ in range(2)]
        for one in kept:
            one.request("GET", "/healthz")
            one.getresponse().read()
        stop()
        until(lambda: refused(address))
        kept[0].request("GET", "/healthz")
        answer = kept[0].getresponse()
        assert (answer.status, answer.read()) == (503, b'{"status":"stopping"}')
        assert answer.headers["connection"] == "close"
        body = httpx2.Request("POST", address, files=files(IMAGE))
        kept[1].request("POST", PATH, body.read(), dict(body.headers))
        assert kept[1].getresponse().status == 200


def refused(address: str) -> bool:
    try:
        httpx2.get(address)
    except httpx2.ConnectError:
        return True
    return False


def test_what_does_not_end_within_the_grace_is_told_so(gate: Gate) -> None:
    app = application({"gate": gate.model})
    with ThreadPoolExecutor() as pool, serving(app, grace=1) as (address, stop):
        assert gate.begun.wait(20)
        asked = pool.submit(httpx2.post, address + PATH, files=files(IMAGE), timeout=20)
        with httpx2.Client(base_url=address) as client:
            until(lambda: metric(client, "ziggurat_requests_inside") == 1)
        stop()
        found = asked.result(20)
        gate.go.set()
    assert (found.status_code, found.json()) == (503, {"error": "the server stops"})
    assert app.state.service.unanswered == 1


def test_a_model_that_cannot_run_ends_the_server(gate: Gate) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    gate.model.classifier.probabilities = fail  # type: ignore[method-assign, assignment]
    opened = socket.create_server(("127.0.0.1", 0))
    before = signal.getsignal(signal.SIGTERM)
    up = threading.Event()
    with pytest.raises(RuntimeError, match="out of memory"):
        server.Server(application({"gate": gate.model}), 1, up.set).run([opened])
    assert not up.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_headers_that_trickle_in_are_not_waited_for(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD", 0.3)
    with connected(served) as silent, connected(served) as slow:
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.05):
                try:
                    slow.sendall(b"X: y\r\n")
                except OSError:
                    return

        slow.sendall(b"GET / HTTP/1.1\r\n")
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert silent.recv(1) == b""
            with suppress(ConnectionResetError):
                assert slow.recv(1) == b""
        finally:
            stop.set()
            thread.join()
    with connected(served) as other:  # the next is welcome
        other.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert other.recv(12) == b"HTTP/1.1 200"


def test_what_is_no_http_is_told_so_in_json(served: str) -> None:
    chunks = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    for sent in ("hello\r\n\r\n", chunks, f"GET / HTTP/1.1\r\nHost: a\r\nX: {'x' * 99_999}"):
        with connected(served) as opened:
            opened.sendall(sent.encode())
            whole = b""
            while more := opened.recv(65536):
                whole += more
        head, _, body = whole.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4")
        assert b"application/json" in head
        assert body.startswith(b'{"error":')


def test_headers_without_end_are_not_kept(served: str, gate: Gate) -> None:
    """Neither those behind a body, nor those of a request that waits for the one before."""
    chunked = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    for begun in (chunked + "2\r\nab\r\n0\r\n", "POST /api/none HTTP/1.1\r\nX: "):
        with connected(served) as opened:
            assert accepted(opened, begun) < 50_000_000
    body = httpx2.Request("POST", "http://a", files=files(IMAGE))
    head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
    with serving(application({"gate": gate.model})) as (address, _), connected(address) as opened:
        assert gate.begun.wait(20)
        opened.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body.read())
        with httpx2.Client(base_url=address) as client:
            until(lambda: metric(client, "ziggurat_requests_inside") == 1)
        assert accepted(opened, "GET / HTTP/1.1\r\n") < 50_000_000
        gate.go.set()


def accepted(opened: socket.socket, begun: str) -> int:
    """Bytes of headers without an end that can be sent before the other side takes no more."""
    sent = 0
    opened.settimeout(1)
    opened.sendall(begun.encode())
    with suppress(ConnectionError, TimeoutError):
        while sent < 100_000_000:
            opened.sendall(b"X: " + b"x" * 10_000 + b"\r\n")
            sent += 10_005
    return sent


def test_an_upgrade_that_is_not_known_is_passed_over(served: str) -> None:
    """Java's client asks for HTTP/2 so, with the first request it sends."""
    asked = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
    with httpx2.Client(base_url=served) as client:
        for _ in range(2):
            assert client.post(PATH, files=files(IMAGE), headers=asked).status_code == 200


def test_a_proxy_is_the_first_to_close_a_connection_at_rest() -> None:
    """Else one of its requests now and then meets a connection that is just being closed."""
    assert server.Server(application({}), 1).config.timeout_keep_alive > 60  # nginx's
