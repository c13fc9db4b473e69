"""Slow, huge and broken requests at a real server, byte by byte."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from starlette.types import Message

from tests.web.conftest import Gate, encoded, picture, serving, until
from tests.web.test_predict import IMAGE, PATH, files, metric
from ziggurat.engine.explain import Explainer
from ziggurat.web import guard
from ziggurat.web.app import application

FORM = (
    f"POST {PATH} HTTP/1.1\r\nHost: here\r\nContent-Type: multipart/form-data; boundary=x\r\n"
)  # fmt: skip
BEGUN = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
CHUNK = b"10000\r\n" + bytes(65536) + b"\r\n"


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        yield opened


def answered(opened: socket.socket) -> tuple[int, dict[str, str], dict[str, str]]:
    """Status, headers and JSON of what comes until the other side closes."""
    whole = b""
    while more := opened.recv(65536):
        whole += more
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)


@pytest.fixture(scope="module")
def hurried(models: dict[str, Explainer]) -> Iterator[str]:
    """A server with little patience and few places."""
    app = application(models, max_mb=1, queue=2, timeout=1)
    with serving(app) as (address, _):
        yield address


def test_a_body_that_trickles_in_does_not_keep_its_place(hurried: str) -> None:
    with connected(hurried) as one, connected(hurried) as other:
        for opened in (one, other):
            opened.sendall(f"{FORM}Content-Length: 1000\r\n\r\n".encode() + BEGUN)
        with httpx2.Client(base_url=hurried) as client:
            until(lambda: metric(client, "ziggurat_requests_inside") == 2)
            assert client.post(PATH, files=files(IMAGE)).status_code == 503
            for opened in (one, other):
                status, headers, said = answered(opened)
                assert status == 408
                assert said == {"error": "the request did not come within 1 s"}
                assert headers["connection"] == "close"
            assert client.post(PATH, files=files(IMAGE)).status_code == 200


@pytest.mark.parametrize("head", ["Content-Length: 9999999999", "Transfer-Encoding: chunked"])
def test_the_rest_of_a_refused_upload_is_not_read(
    hurried: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered at once, while more is being sent, and cut off soon."""
    monkeypatch.setattr(guard, "LEFT", 3_000_000)
    sent = 0
    with connected(hurried) as opened:
        opened.sendall(f"{FORM}{head}\r\n\r\n".encode())
        if "chunked" in head:
            opened.sendall(f"{len(BEGUN):x}\r\n".encode() + BEGUN + b"\r\n")
        try:
            while sent < 1_000_000_000:
                opened.sendall(CHUNK)
                sent += len(CHUNK)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 100_000_000  # what the system holds between the two included


def test_a_refusal_is_seen_by_who_reads_it_only_after_sending(hurried: str) -> None:
    """Another 5 MB, as most programs do it: a socket closed at once would lose the answer."""
    with connected(hurried) as opened:
        opened.sendall(f"{FORM}Content-Length: 5000000\r\n\r\n".encode())
        opened.sendall(bytes(5_000_000))
        status, headers, said = answered(opened)
    assert (status, headers["connection"]) == (413, "close")
    assert said == {"error": "more than 1 MB were sent"}


def test_a_request_to_nowhere_is_not_read_either(
    hurried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LINGER", 0.2)
    with connected(hurried) as opened:
        opened.sendall(b"POST /nothing HTTP/1.1\r\nHost: here\r\nContent-Length: 900000\r\n\r\n")
        opened.sendall(bytes(100))
        status, headers, said = answered(opened)
    assert (status, headers["connection"]) == (404, "close")
    assert said == {"error": "there is nothing at /nothing: see /api/openapi.json"}


def test_who_asks_first_sends_nothing(hurried: str) -> None:
    """``Expect: 100-continue``, as curl does with large files."""
    with connected(hurried) as opened:
        head = f"{FORM}Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n"
        opened.sendall(head.encode())
        assert opened.recv(12) == b"HTTP/1.1 413"


def test_a_connection_is_kept_for_the_next_request(hurried: str) -> None:
    """Also after errors whose request was read."""
    kept = http.client.HTTPConnection(hurried.removeprefix("http://"), timeout=20)
    kept.connect()
    first = kept.sock
    for path, status in (("/healthz", 200), ("/nothing", 404), ("/healthz", 200)):
        kept.request("GET", path)
        answer = kept.getresponse()
        answer.read()
        assert (answer.status, kept.sock) == (status, first)
    kept.close()


def test_a_visitor_who_goes_in_the_middle_is_no_mistake(
    hurried: str, caplog: pytest.LogCaptureFixture
) -> None:
    with httpx2.Client(base_url=hurried) as client:
        before = metric(client, "ziggurat_errors_total")
        gone = 'ziggurat_requests_total{route="/api/predict",status="499"}'
        had = metric(client, gone)
        with connected(hurried) as opened:
            opened.sendall(f"{FORM}Content-Length: 1000\r\n\r\n".encode() + BEGUN)
        until(lambda: metric(client, gone) == had + 1)
        assert metric(client, "ziggurat_errors_total") == before
        assert client.post(PATH, files=files(IMAGE)).status_code == 200
    assert "Traceback" not in caplog.text


def test_a_place_is_free_once_all_of_the_answer_is_sent(models: dict[str, Explainer]) -> None:
    """Who waits for each answer takes one place, however fast the next question comes."""
    app = application(models)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/nowhere",
        "headers": [],
        "query_string": b"",
    }
    inside = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        inside.append((message["type"], app.state.service.inside))

    asyncio.run(app(scope, receive, send))
    assert inside == [("http.response.start", 1), ("http.response.body", 0)]


def test_a_head_is_a_get_without_its_body(hurried: str) -> None:
    for path in ("/", "/healthz", "/metrics", "/api/about", "/api/examples/china"):
        found = httpx2.head(hurried + path)
        assert (found.status_code, found.content) == (200, b"")
        assert int(found.headers["content-length"]) > 0
    assert httpx2.head(hurried + PATH).headers["allow"] == "POST"


def test_other_methods_are_told_what_is_taken(hurried: str) -> None:
    for method, path, taken in (("OPTIONS", PATH, "POST"), ("DELETE", "/api/about", "GET")):
        found = httpx2.request(method, hurried + path)
        assert (found.status_code, found.headers["allow"]) == (405, taken)
        assert found.json() == {"error": f"{method} is not taken here: {taken} is"}


def test_many_at_once_are_all_answered(served: str) -> None:
    """More than there are places: each is either answered or told to come again."""
    found: list[int] = []
    images = [encoded(picture(seed)) for seed in range(4)]

    def ask(seed: int) -> None:
        for _ in range(4):
            answer = httpx2.post(served + PATH, files=files(images[seed % 4]), timeout=60)
            found.append(answer.status_code)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 64


def test_predictions_do_not_wait_for_an_explanation(gate: Gate) -> None:
    """Nor the other way round."""
    app = application({"gate": gate.model})
    with serving(app) as (address, _):
        assert gate.begun.wait(20)
        asked = {"model": "gate", "method": "cam"}
        found = httpx2.post(f"{address}/api/explain", files=files(IMAGE), data=asked, timeout=20)
        assert found.status_code == 200
