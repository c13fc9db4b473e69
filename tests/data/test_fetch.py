import http.server
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.small_shards import greys
from ziggurat.data import fetch
from ziggurat.data.fetch import fetched
from ziggurat.data.images import Images, open_data


class Server(http.server.SimpleHTTPRequestHandler):
    log: list[str]
    broken: list[str]  # answered with 500, once for each entry

    def do_GET(self) -> None:
        self.log.append(self.path)
        if self.path in self.broken:
            self.broken.remove(self.path)
            self.send_error(500)
            return
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


class Far:
    """A folder as a server shows it."""

    def __init__(self, url: str, server: type[Server]) -> None:
        self.url, self.server = url, server

    def fetched(self) -> list[str]:
        return [path for path in self.server.log if path.endswith(".tar")]


@pytest.fixture
def far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.setattr(fetch, "PAUSES", (0, 0))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Own(Server):
        log: list[str] = []  # noqa: RUF012
        broken: list[str] = []  # noqa: RUF012

    handler = partial(Own, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield Far(f"http://127.0.0.1:{server.server_port}", Own)
        server.shutdown()
        thread.join()


ALL = "{train-{0000..0002},val-0000}.tar"


def test_far_shards_are_fetched_once(far: Far, cache: Path) -> None:
    data = open_data(f"{far.url}/{ALL}")
    assert greys(data.train) == list(range(12))
    assert greys(data.test) == [12, 13, 14, 15]
    again = open_data(f"{far.url}/{ALL}")
    assert greys(again.train) == list(range(12))
    assert len(far.fetched()) == 4
    assert not list((cache / "shards").glob("*.part"))


def test_far_shards_may_be_listed_beside_near_ones(far: Far, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "shards.txt"
    file.write_text(f"{far.url}/train-0000.tar\nset/train-0001.tar\n{far.url}/val-0000.tar\n")
    data = open_data(file)
    assert sorted(greys(data.train)) == list(range(8))
    assert far.fetched() == ["/train-0000.tar", "/val-0000.tar"]


def test_an_index_beside_a_far_shard_spares_fetching_it(far: Far, folder: Path) -> None:
    open_data(folder)  # leaves indices
    data = open_data(f"{far.url}/{ALL}")
    assert far.fetched() == []
    assert data.train.image(9).getpixel((0, 0)) == (9, 9, 9)
    assert far.fetched() == ["/train-0002.tar"]


def test_class_names_lie_beside_far_shards(far: Far, folder: Path) -> None:
    (folder / "classes.txt").write_text("cat\ndog\n")
    assert open_data(f"{far.url}/{ALL}").classes == ("cat", "dog")


def test_once_fetched_the_server_is_not_asked_again(far: Far) -> None:
    open_data(f"{far.url}/{ALL}")
    asked = len(far.server.log)
    assert greys(open_data(f"{far.url}/{ALL}").train) == list(range(12))
    assert len(far.server.log) == asked


def test_the_cache_keeps_to_its_bound_and_evicts_the_longest_unused(
    far: Far, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (folder / "train-0000.tar").stat().st_size
    monkeypatch.setenv("ZIGGURAT_CACHE_GIB", str(2.5 * size / 2**30))
    files = []
    for i in (0, 1, 0, 2):
        files.append(fetched(f"{far.url}/train-{i:04}.tar"))
        time.sleep(0.01)
    assert [file.exists() for file in files] == [True, False, True, True]
    data = open_data(f"{far.url}/{ALL}")
    assert greys(data.train) == list(range(12))
    tars = list((cache / "shards").glob("*.tar"))
    assert sum(file.stat().st_size for file in tars) <= 2.5 * size


def test_a_shard_larger_than_the_cache_is_still_read(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZIGGURAT_CACHE_GIB", "0")
    assert greys(open_data(f"{far.url}/{ALL}").train) == list(range(12))


def test_a_wrong_bound_is_refused(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZIGGURAT_CACHE_GIB", "lots")
    with pytest.raises(ValueError, match="ZIGGURAT_CACHE_GIB must be a number of GiB, got 'lots'"):
        fetched(f"{far.url}/train-0000.tar")


def test_what_dead_downloads_left_is_evicted_but_not_what_runs(cache: Path) -> None:
    for name, age in (("old.tar.part", 7200), ("new.tar.part", 60), ("a.tar", 600)):
        file = cache / "shards" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 1000)
        os.utime(file, (time.time() - age,) * 2)
    fetch.make_room(cache / "shards", 50 * 2**30)
    assert [file.name for file in (cache / "shards").iterdir()] == ["new.tar.part"]


def test_a_server_that_stumbles_is_asked_again(far: Far) -> None:
    far.server.broken += ["/train-0000.tar"] * 2
    assert fetched(f"{far.url}/train-0000.tar").exists()
    assert len(far.fetched()) == 3


def test_a_shard_that_cannot_be_fetched_stops_with_its_url(far: Far, cache: Path) -> None:
    far.server.broken += ["/train-0000.tar"] * 9
    with pytest.raises(OSError, match=r"/train-0000\.tar could not be fetched: HTTP Error 500"):
        fetched(f"{far.url}/train-0000.tar")
    with pytest.raises(OSError, match=r"/gone\.tar could not be fetched: HTTP Error 404"):
        fetched(f"{far.url}/gone.tar")
    assert far.fetched().count("/gone.tar") == 1
    assert not list((cache / "shards").glob("*.part"))
    assert not list((cache / "shards").glob("*.tar"))


def fetch_size(url: str) -> int:
    return fetched(url).stat().st_size


def test_processes_that_want_one_shard_fetch_it_once(far: Far, folder: Path) -> None:
    url = f"{far.url}/train-0000.tar"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        sizes = pool.map(fetch_size, [url] * 8, chunksize=1)
    assert sizes == [(folder / "train-0000.tar").stat().st_size] * 8
    assert len(far.fetched()) == 1


def read_at(images: Images, index: int) -> int:
    pixel: Any = images.image(index).getpixel((0, 0))
    return pixel[0]


def test_processes_share_a_cache_that_is_too_small(
    far: Far, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (folder / "train-0000.tar").stat().st_size
    train = open_data(f"{far.url}/{ALL}").train
    monkeypatch.setenv("ZIGGURAT_CACHE_GIB", str(2.5 * size / 2**30))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist() * 3
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(partial(read_at, train), order, chunksize=1) == order
