import io
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image
from torch import Tensor

from tests.models.small import small
from ziggurat.engine.explain import Explainer
from ziggurat.models.pretrained import save_pretrained
from ziggurat.web.app import application
from ziggurat.web.server import Server

CLASSES = ("<b>cat</b>", "dog & fox", *(f"class {i}" for i in range(2, 10)))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two saved models whose answers depend on the image: a NesT and a ResT."""
    found = []
    for name in ("nest_tiny", "rest_lite"):
        torch.manual_seed(0)
        model = small(name)
        torch.nn.init.normal_(model.get_classifier().weight, std=1.0)
        config: Any = model.pretrained_cfg
        config["label_names"] = list(CLASSES)
        found.append(save_pretrained(model, tmp_path_factory.mktemp("runs") / name))
    return found


@pytest.fixture(scope="session")
def models(folders: list[Path]) -> dict[str, Explainer]:
    return {folder.name: Explainer(folder) for folder in folders}


@pytest.fixture(scope="session")
def app(models: dict[str, Explainer]) -> FastAPI:
    return application(models, max_mb=4, max_megapixels=20)


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


class Serving(NamedTuple):
    """A real server's address, and how to stop it."""

    address: str
    stop: Callable[[], None]


@contextmanager
def serving(
    app: FastAPI, grace: int = 5, up: Callable[[], None] | None = None
) -> Iterator[Serving]:
    opened = socket.create_server(("127.0.0.1", 0))
    server = Server(app, grace, up)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()

    def stop() -> None:
        server.should_exit = True

    yield Serving(f"http://127.0.0.1:{opened.getsockname()[1]}", stop)
    stop()
    thread.join()


@pytest.fixture(scope="session")
def served(models: dict[str, Explainer]) -> Iterator[str]:
    with serving(application(models, max_mb=4, max_megapixels=20)) as (address, _):
        yield address


class Gate:
    """A model whose predictions wait until they may, and which knows its batches."""

    def __init__(self, folder: Path) -> None:
        self.model = Explainer(folder)
        self.own = self.model.classifier.probabilities
        self.model.classifier.probabilities = self.held  # type: ignore[method-assign]
        self.go, self.begun, self.batches = threading.Event(), threading.Event(), list[int]()

    def held(self, pixels: Sequence[Tensor]) -> Tensor:
        self.batches.append(len(pixels))
        self.begun.set()
        assert self.go.wait(20)
        return self.own(pixels)


@pytest.fixture
def gate(folders: list[Path]) -> Iterator[Gate]:
    gate = Gate(folders[0])
    yield gate
    gate.go.set()


def until(done: Callable[[], object], seconds: float = 20) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def picture(seed: int = 0, size: tuple[int, int] = (80, 60)) -> Image.Image:
    """Blots of colour, others for another seed."""
    noise = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small file of a huge picture that is whole: each row of black compresses to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
