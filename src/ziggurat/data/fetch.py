"""Shards that are far away: fetched whole when first needed, into a cache of bounded size."""

import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ziggurat.data.files import cache, written_whole

TIMEOUT = 60  # seconds without a byte
PAUSES = (1, 4, 16)  # seconds before another try
REFUSED = (401, 403, 404, 410)  # what a server says of files it does not have or give


def fetched(url: str) -> Path:
    """A far shard's copy in the cache, fetched by the one process that comes first."""
    name = url.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    file = cache() / "shards" / f"{sha256(url.encode()).hexdigest()[:16]}-{name}"
    if not used(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_name(file.name + ".lock")):
            if not used(file):
                download(url, file)
    return file


def used(file: Path) -> bool:
    """Whether a file is there; if so it is the last that will be evicted."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return False
    return True


def read_fetched(url: str, offset: int, size: int) -> bytes:
    """A part of a far shard; another process may evict it between fetching and opening."""
    for _ in range(3):
        try:
            return read_at(fetched(url), offset, size)
        except FileNotFoundError:
            continue
    raise OSError(
        f"{url} leaves the cache faster than it is read: raise ZIGGURAT_CACHE_GIB, now "
        f"{cache_bytes() / 2**30:g}"
    )


def read_at(path: Path, offset: int, size: int) -> bytes:
    """A part of a file."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def download(url: str, file: Path) -> None:
    """Fetch a file whole, or raise after a few tries."""
    part = file.with_name(file.name + ".part")
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response, open(part, "wb") as out:
                length = int(response.headers.get("Content-Length") or 0)
                make_room(file.parent, length)
                shutil.copyfileobj(response, out, 2**20)
                if length and out.tell() != length:
                    raise ConnectionError(f"{out.tell()} of {length} bytes came")
            os.replace(part, file)
            return
        except (OSError, http.client.HTTPException) as error:
            part.unlink(missing_ok=True)
            hopeless = isinstance(error, urllib.error.HTTPError) and error.code in REFUSED
            if pause is None or hopeless:
                raise OSError(f"{url} could not be fetched: {error}") from None
            time.sleep(pause)


def make_room(folder: Path, size: int) -> None:
    """Evict the shards that were used longest ago until ``size`` more bytes fit."""
    files, most = [], cache_bytes()
    for file in folder.iterdir():
        try:
            at = file.stat()
        except FileNotFoundError:  # evicted by another process
            continue
        busy = file.suffix == ".part" and time.time() - at.st_mtime < 3600
        if file.suffix != ".lock" and not busy:
            files.append((at.st_mtime_ns, at.st_size, file))
    total = sum(held for _, held, _ in files) + size
    for _, held, file in sorted(files):
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= held


def cache_bytes() -> float:
    """How much the cache of shards may hold."""
    text = os.environ.get("ZIGGURAT_CACHE_GIB", "50")
    try:
        return float(text) * 2**30
    except ValueError:
        raise ValueError(f"ZIGGURAT_CACHE_GIB must be a number of GiB, got {text!r}") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it is freed when its holder dies, too."""
    try:
        import fcntl
    except ImportError:  # Windows: a shard may be fetched twice
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def small(url: str) -> bytes:
    """A small file that may be beside far shards, empty if it is not; asked for once."""
    kept = kept_for(url)
    if not kept.exists():
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                found = response.read()
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, urllib.error.HTTPError) or error.code not in REFUSED:
                raise OSError(f"{url} could not be fetched: {error}") from None
            found = b""
        with written_whole(kept) as file:
            file.write(found)
    return kept.read_bytes()


def kept_for(shard: str) -> Path:
    """Where the cache keeps what belongs to a path or URL."""
    return cache() / "index" / sha256(os.fsencode(shard)).hexdigest()[:32]
