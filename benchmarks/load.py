"""What is sent to a service, and by whom: photographs, damaged files; the patient and the rude."""

import asyncio
import contextlib
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, features
from sklearn.datasets import load_sample_images

SEED = 0
WRK = Path(__file__).parent / "wrk.lua"
EARLY = 0.2  # of the damaged files are sent before the memory is looked at for the first time
FINE = (200, 400, 413)  # what a damaged file may be answered with
LEAST = 1.0  # seconds of a load that are not measured: connections, first calls


class Answer(NamedTuple):
    """One request's."""

    status: int  # 0: the connection was closed without one
    seconds: float
    body: bytes


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


# What is sent.


def photographs(count: int = 16) -> list[bytes]:
    """JPEGs of 500 x 375, parts of two photographs."""
    draw = np.random.default_rng(SEED)
    files = []
    for index in range(count):
        whole = load_sample_images().images[index % 2]
        y, x = draw.integers(0, whole.shape[0] - 375), draw.integers(0, whole.shape[1] - 500)
        file = io.BytesIO()
        Image.fromarray(whole[y : y + 375, x : x + 500]).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def whole_files() -> list[bytes]:
    """A small image in every kind that is read, and in its odder forms."""
    noise = np.random.default_rng(SEED).integers(0, 255, (6, 8, 3), np.uint8)
    image = Image.fromarray(noise).resize((64, 48), Image.Resampling.BICUBIC)
    forms: list[tuple[str, str, dict[str, Any]]] = [
        ("JPEG", "RGB", {}), ("JPEG", "RGB", {"progressive": True}), ("JPEG", "CMYK", {}),
        ("JPEG", "L", {}), ("PNG", "RGB", {}), ("PNG", "P", {}), ("PNG", "RGBA", {}),
        ("PNG", "I;16", {}), ("PNG", "1", {}), ("WEBP", "RGB", {}), ("WEBP", "RGBA", {}),
        ("WEBP", "RGB", {"lossless": True}), ("GIF", "P", {}), ("BMP", "RGB", {}),
        ("TIFF", "RGB", {}), ("TIFF", "RGB", {"compression": "tiff_lzw"}), ("TIFF", "F", {}),
        ("TIFF", "RGB", {"compression": "jpeg"}), ("PPM", "RGB", {}), ("JPEG2000", "RGB", {}),
    ]  # fmt: skip
    forms += [("AVIF", "RGB", {})] if features.check("avif") else []
    files = []
    for kind, mode, options in forms:
        grey = image.convert("L") if mode in ("I;16", "F") else image
        file = io.BytesIO()
        grey.convert(mode).save(file, kind, **options)
        files.append(file.getvalue())
    return files


def damaged(index: int, files: Sequence[bytes]) -> bytes:
    """A file changed at random, the same for the same number."""
    draw = np.random.default_rng([SEED, index])
    file = bytearray(files[index % len(files)])
    for _ in range(draw.integers(1, 4)):
        at, end = sorted(draw.integers(0, len(file) + 1, 2).tolist())
        match int(draw.integers(0, 7)):
            case 0:  # some bytes, anywhere
                for place in draw.integers(0, max(len(file), 1), draw.integers(1, 20)).tolist():
                    file[place : place + 1] = draw.bytes(1)
            case 1:  # bytes of the head, where sizes and kinds are
                place = int(draw.integers(0, 64))
                file[place : place + 1] = draw.bytes(1)
            case 2:  # the end is missing
                del file[at:]
            case 3:  # a part is missing
                del file[at : min(end, at + 200)]
            case 4:  # a part comes twice
                file[at:at] = file[at:end]
            case 5:  # a number is as large, or as small, as can be
                extreme = (0, 1, 2**16 - 1, 2**31 - 1, 2**32 - 1)[int(draw.integers(0, 5))]
                order: Literal["big", "little"] = "big" if draw.integers(0, 2) else "little"
                file[at : at + 4] = extreme.to_bytes(4, order)
            case _:  # the rest is another file's
                other = files[int(draw.integers(0, len(files)))]
                file[at:] = other[at:]
    return bytes(file)


def request(image: bytes, path: str = "/api/predict") -> bytes:
    """All bytes of a request with one image."""
    body = (
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        + image
        + b'\r\n--x\r\nContent-Disposition: form-data; name="top"\r\n\r\n3\r\n--x--\r\n'
    )
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body


# Who sends it.


class Client:
    """One connection, opened again when it was closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, sent: bytes) -> Answer:
        """The answer to one request."""
        began = time.perf_counter()
        status, body = 0, b""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(60):
                if self.streams is None or self.streams[0].at_eof():
                    self.close()
                    self.streams = await asyncio.open_connection(*self.address)
                reader, writer = self.streams
                writer.write(sent)
                await writer.drain()
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = re.search(r"\r\ncontent-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                status = int(head.split()[1])
                if "\r\nconnection: close" in head:
                    self.close()
        if not status:
            self.close()
        return Answer(status, time.perf_counter() - began, body)

    def close(self) -> None:
        """Hang up."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def closed_loop(
    address: Address, requests: Sequence[bytes], clients: int, seconds: float
) -> dict[str, Any]:
    """Clients that each wait for an answer before they ask again."""
    start = time.perf_counter()
    answers: list[tuple[float, Answer]] = []

    async def one(number: int) -> None:
        client, count = Client(address), number
        while time.perf_counter() < start + LEAST + seconds:
            answer = await client.ask(requests[count % len(requests)])
            answers.append((time.perf_counter(), answer))
            count += 1
        client.close()

    await asyncio.gather(*map(one, range(clients)))
    kept = [a for at, a in answers if start + LEAST <= at <= start + LEAST + seconds]
    return told(kept, seconds)


def by_wrk(
    address: Address,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    rate: float,
) -> dict[str, Any] | None:
    """The same by wrk, which costs the machine less; None if it is not there.

    Requests come when they are due, ``rate`` a second, while there are clients that do not wait.
    """
    if shutil.which("wrk") is None:
        print("wrk is not there to ask, too: apt install wrk", flush=True)
        return None
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / str(number) for number in range(len(requests))]
        for file, contents in zip(files, requests, strict=True):
            file.write_bytes(contents)
        words = ["wrk", "-t1", f"-c{clients}", f"-d{math.ceil(seconds)}s", "--timeout", "60s"]
        words += ["-s", str(WRK), f"http://{address.host}:{address.port}", "--", str(rate)]
        words += map(str, files)
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = dict(json.loads(said.splitlines()[-1]))
    return found | {"asked_per_second": rate, "seconds": seconds}


def told(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """A load in numbers."""
    times = sorted(1e3 * one.seconds for one in answers if one.status == 200) or [0.0]
    return {
        "images_per_second": sum(one.status == 200 for one in answers) / seconds,
        "median_ms": statistics.median(times),
        "p95_ms": times[int(0.95 * (len(times) - 1))],
        "answers": dict(Counter(str(one.status) for one in answers)),
        "errors": sum(one.status != 200 for one in answers),
    }


@contextlib.asynccontextmanager
async def abused(address: Address) -> AsyncIterator[Counter[str]]:
    """Others who send what is broken, huge or slow, or who are killed, all the time."""
    sent: Counter[str] = Counter()
    head = b"POST /api/predict HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    large = head + b"Content-Length: 5000000000\r\n\r\n" + bytes(1_000_000)
    ways = {
        "broken": (request(b"no image"), 1.0),
        "no HTTP": (b"\x00\xff hello\r\n\r\n", 1.0),
        "huge": (large, 1.0),
        "slow": (head + b"Content-Length: 1000\r\n\r\n{", 5.0),
        "killed": (request(photographs(1)[0]), 0.01),
    }

    async def one(way: str, contents: bytes, patience: float) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*address)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(patience):
                        writer.write(contents)
                        await writer.drain()
                        await reader.read(200)
                writer.transport.abort()
                sent[way] += 1
            await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(one(way, *how)) for way, how in ways.items()]
    try:
        yield sent
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def fuzz(address: Address, count: int, clients: int = 8) -> dict[str, Any]:
    """Damaged files, and the server's memory after a fifth of them and after all."""
    files = whole_files()
    found: Counter[str] = Counter()
    memory = []

    async def some(client: Client, numbers: Sequence[int]) -> None:
        for number in numbers:
            answer = await client.ask(request(damaged(number, files)))
            found[str(answer.status)] += 1

    asking = [Client(address) for _ in range(clients)]
    first = max(round(EARLY * count), 1)
    for part in (range(first), range(first, count)):
        await asyncio.gather(*(some(c, part[i::clients]) for i, c in enumerate(asking)))
        memory.append(resident(address))
    for client in asking:
        client.close()
    return {
        "files": count,
        "answers": dict(found),
        "unexpected": sum(n for status, n in found.items() if int(status) not in FINE),
        "memory_mb": memory,
    }


# The server.


class Serving(NamedTuple):
    """A server of its own process."""

    process: subprocess.Popen[str]
    address: Address


@contextlib.contextmanager
def serving(folder: Path, *options: str, giving_back: bool = False) -> Iterator[Serving]:
    """``ziggurat serve``, once it is ready.

    glibc keeps freed blocks of many MB, of large images, for the next one; a server that gives them
    back at once is slower, and what its memory grows by is lost.
    """
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "1000000"} if giving_back else {})
    words = [sys.executable, "-m", "ziggurat", "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            said = process.stdout.readline()
            found = re.search(r"at http://([\d.]+):(\d+)", said)
            if not found:
                raise RuntimeError(f"the server did not start: {said}")
            address = Address(found[1], int(found[2]))
            while not ready(address):
                time.sleep(0.1)
            yield Serving(process, address)
        finally:
            if process.poll() is None:
                process.kill()


def ready(address: Address) -> bool:
    """Whether it says so."""
    try:
        return b"ready" in read(address, "/healthz")
    except OSError:
        return False


def wait(address: Address, workers: int) -> None:
    """Until all of them are ready."""
    while metric(address, "ziggurat_ready") < workers:
        time.sleep(0.1)


def read(address: Address, path: str) -> bytes:
    """What a GET gives."""
    with urllib.request.urlopen(f"http://{address.host}:{address.port}{path}", timeout=60) as found:
        return bytes(found.read())


def metric(address: Address, name: str) -> float:
    """One number of ``/metrics``."""
    lines = read(address, "/metrics").decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def resident(address: Address) -> float:
    """Memory of the server's process, in MB."""
    return metric(address, "process_resident_memory_bytes") / 1e6
