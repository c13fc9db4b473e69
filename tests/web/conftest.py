import io
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from tests.models.small import small
from ziggurat.engine.explain import Explainer
from ziggurat.models.pretrained import save_pretrained
from ziggurat.web.app import application

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


@pytest.fixture(scope="session")
def served(app: FastAPI) -> Iterator[str]:
    """The address of a real server."""
    opened = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    yield f"http://127.0.0.1:{opened.getsockname()[1]}"
    server.should_exit = True
    thread.join()


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
