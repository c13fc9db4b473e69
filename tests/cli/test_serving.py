import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.models.small import small
from ziggurat.cli import main
from ziggurat.cli.serving import listening
from ziggurat.models.pretrained import save_pretrained
from ziggurat.web.server import Server

Mistake = Callable[[list[str], str], None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["serve"],
            "no trained classifier in runs/: name a run's folder or a hub id, or train one",
        ),
        (["serve", "nowhere/at/all", "--port", "0"], "neither a folder nor a hub id"),
        (["serve", "--host", "no.such.host.invalid"], "cannot serve at no.such.host.invalid"),
    ],
)
def test_a_mistake_in_serving_is_one_line(words: list[str], said: str, mistake: Mistake) -> None:
    mistake([*words, "--port", "0"], said)


@pytest.mark.parametrize(
    "option",
    [["--port", "70000"], ["--max-mb", "0"], ["--max-mb", "nan"], ["--timeout", "-1"]],
)
def test_a_wrong_number_is_one_line(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", *option])
    err = capsys.readouterr().err
    assert f"{option[0]}: takes a number" in err
    assert err.count("\n") == 1


def test_a_port_in_use_is_one_line(mistake: Mistake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mistake(["serve", "--port", str(port)], f"port {port}: Address already in use (take anoth")


def test_a_port_that_another_took_meanwhile_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two may have bound it; one can listen."""

    def late(opened: socket.socket, count: int = 0) -> NoReturn:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    folder = save_pretrained(small("nest_tiny"), tmp_path_factory.mktemp("runs") / "own")
    monkeypatch.setattr(socket.socket, "listen", late)
    words = ["serve", str(folder), "--port", "0", "--backend", "eager"]
    mistake(words, "Address already in use (take another --port)")


def test_a_missing_extra_is_one_line(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    mistake(["serve"], "serving needs uvicorn: pip install 'ziggurat[serve]'")


def test_a_stop_that_left_some_unanswered_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Server, sockets: object) -> None:
        self.service.unanswered = 2

    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr(os, "_exit", leave)
    folder = save_pretrained(small("nest_tiny"), tmp_path / "own")
    with pytest.raises(SystemExit) as stop:
        main(["serve", str(folder), "--port", "0", "--backend", "eager"])
    assert stop.value.code == 1
    assert (
        "2 requests were not answered within 30 s: give it more --grace" in capsys.readouterr().err
    )


def test_the_runs_there_are_are_served_until_it_is_ended(tmp_path: Path) -> None:
    save_pretrained(small("nest_tiny"), tmp_path / "runs" / "own")
    save_pretrained(small("rest_lite", num_classes=0), tmp_path / "runs" / "encoder")
    words = [sys.executable, "-m", "ziggurat", "serve", "--port", "0", "--max-mb", "3"]
    pipe = subprocess.PIPE
    started = subprocess.Popen(words, cwd=tmp_path, text=True, stdout=pipe, stderr=pipe)
    assert started.stdout
    line = started.stdout.readline()
    found = re.fullmatch(r"own at (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)\n", line)
    try:
        assert found, line
        with urllib.request.urlopen(f"{found[1]}/") as answer:
            assert b"<!doctype html>" in answer.read()
        with urllib.request.urlopen(f"{found[1]}/api/about") as answer:
            about = json.load(answer)
    finally:
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    assert [model["name"] for model in about["models"]] == ["own"]
    assert about["limits"]["bytes"] == 3_000_000
    assert started.returncode == 0
    assert "runs/encoder is left out" in err
    assert "Traceback" not in err


def test_answers_are_sent_without_delay() -> None:
    """asyncio turns Nagle's algorithm off where a socket says that it is TCP's: 40 ms less."""
    with listening("127.0.0.1", 0) as opened:
        assert opened.proto == socket.IPPROTO_TCP
