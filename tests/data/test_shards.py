import http.server
import io
import json
import multiprocessing
import os
import pickle
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ziggurat.data import shards
from ziggurat.data.images import BadImage, Images, open_data
from ziggurat.data.shards import INDEX, Shards, expanded, fetched, split_of


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(file, "PNG")
    return file.getvalue()


def tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, contents in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            file.addfile(info, io.BytesIO(contents))
    return path


def shard(path: Path, first: int, count: int = 4, classes: int = 2) -> Path:
    """Samples whose grey is their number and whose class is it modulo ``classes``."""
    members = {}
    for i in range(first, first + count):
        members[f"{i:04}.png"] = png(i)
        members[f"{i:04}.cls"] = str(i % classes).encode()
    return tar(path, members)


def greys(images: Images) -> list[int]:
    found = []
    for i in range(len(images)):
        pixel: Any = images.image(i).getpixel((0, 0))
        found.append(pixel[0])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        shard(tmp_path / "set" / f"train-{i:04}.tar", 4 * i)
    shard(tmp_path / "set" / "val-0000.tar", 12)
    return tmp_path / "set"


# What is in them.


def test_a_folder_of_shards_is_two_splits_in_order(folder: Path) -> None:
    data = open_data(folder)
    assert data.classes == ("0", "1")
    assert data.name == "set"
    assert greys(data.train) == list(range(12))
    assert greys(data.test) == [12, 13, 14, 15]
    assert [data.train.label(i) for i in range(12)] == [0, 1] * 6
    assert data.train.name(5) == f"{folder / 'train-0001.tar'}: 0005.png"


@pytest.mark.parametrize(
    ("pattern", "train", "test"),
    [
        ("{train-{0000..0001},val-0000}.tar", 8, 4),
        ("*.tar", 12, 4),
        ("*-000[02].tar", 8, 4),
        ("{train,val}-0000.tar", 4, 4),
    ],
)
def test_a_pattern_names_shards(folder: Path, pattern: str, train: int, test: int) -> None:
    data = open_data(f"{folder}/{pattern}")
    assert (len(data.train), len(data.test)) == (train, test)


def test_braces_count_with_their_zeros() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert set(expanded("{a-{0..1},b}.tar")) == {"a-0.tar", "a-1.tar", "b.tar"}
    with pytest.raises(ValueError, match=r"\{5\} in a-\{5\}\.tar must be"):
        expanded("a-{5}.tar")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("x/train-01.tar", "train"),
        ("x/imagenet_val_01.tar", "val"),
        ("x/test/01.tar", "test"),
        ("test/train-01.tar", "train"),
        ("x/trainer-01.tar", None),
        ("my test set/01.tar", None),
        ("https://host/validation/0.tar", "validation"),
    ],
)
def test_a_shard_or_its_folder_names_the_split(name: str, split: str | None) -> None:
    assert split_of(name) == split


def test_shards_of_one_kind_are_split_by_hash(folder: Path) -> None:
    data = open_data(f"{folder}/train-*.tar")
    assert 2 <= len(data.test) < 6
    assert sorted(greys(data.train) + greys(data.test)) == list(range(12))
    assert greys(open_data(f"{folder}/train-*.tar").test) == greys(data.test)


def test_a_text_file_lists_shards(folder: Path) -> None:
    (folder / "shards.txt").write_text("train-{0001..0002}.tar\n\nval-0000.tar\n")
    for spec in (folder, folder / "shards.txt"):
        assert greys(open_data(spec).train) == list(range(4, 12))


def test_a_missing_shard_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no shard .*train-0003\.tar"):
        open_data(f"{folder}/train-{{0000..0003}}.tar")


def test_labels_may_be_json_or_names_and_folders_are_part_of_the_key(tmp_path: Path) -> None:
    label = json.dumps({"label": "dog", "caption": "x"}).encode()
    tar(tmp_path / "a.tar", {
        "a/1.jpg": png(1), "a/1.json": label,
        "b/1.json": b"{}", "b/1.png": png(2), "b/1.cls": b"cat\n",
        "c/1.cls": b"dog", "c/1.PNG": png(3), "d/1.json": label, "d/1.webp": png(4),
        "e/1.png": png(5), "f/1.cls": b"cat", "f/1.png": png(6), "f/1.txt": b"?",
    })  # fmt: skip
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    both = dict(zip(greys(data.train) + greys(data.test),
                    [*data.train.labels, *data.test.labels], strict=True))  # fmt: skip
    assert both == {1: 1, 2: 0, 3: 1, 4: 1, 6: 0}
    assert data.train.ignored == {".txt": 1, "images without a label": 1}


@pytest.mark.parametrize(
    ("file", "text"),
    [("classes.txt", "cat\ndog\n"), ("classes.json", '["cat", "dog"]'),
     ("classes.json", '{"dog": 1, "cat": 0}')],
)  # fmt: skip
def test_class_names_lie_beside_the_shards(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    assert open_data(folder).classes == ("cat", "dog")
    assert open_data(f"{folder}/*.tar").classes == ("cat", "dog")


def test_class_names_of_another_shape_are_refused(folder: Path) -> None:
    (folder / "classes.json").write_text('{"cat": 7}')
    with pytest.raises(ValueError, match=r"classes\.json must be a list of class names"):
        open_data(folder)


def test_a_damaged_shard_is_named(folder: Path) -> None:
    path = folder / "train-0001.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"train-0001\.tar is damaged or is no plain tar file"):
        open_data(folder)


def test_a_bad_image_in_a_shard_is_named(tmp_path: Path) -> None:
    tar(tmp_path / "train.tar", {"1.jpg": b"text", "1.cls": b"0"})
    shard(tmp_path / "val.tar", 0, count=1)
    data = open_data(tmp_path)
    with pytest.raises(BadImage, match=r"train\.tar: 1\.jpg: not an image of a kind"):
        data.train.image(0)


def test_a_shard_that_shrank_or_went_gives_bad_images(folder: Path) -> None:
    train = open_data(folder).train
    path = folder / "train-0002.tar"
    path.write_bytes(path.read_bytes()[:550])
    with pytest.raises(BadImage, match=r"0008\.png: the shard ends after \d+ of its"):
        train.image(8)
    path.unlink()
    with pytest.raises(BadImage, match=r"0008\.png: No such file"):
        train.image(8)


# The index.


def test_a_shard_is_indexed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_data(folder)
    assert len(list(folder.glob(f"*{INDEX}"))) == 4
    monkeypatch.setattr(shards, "read_tar", None)
    again = open_data(folder)
    assert greys(again.train) == greys(before.train)
    assert [again.train.name(i) for i in range(12)] == [before.train.name(i) for i in range(12)]


def test_a_changed_shard_is_indexed_anew(folder: Path) -> None:
    open_data(folder)
    shard(folder / "train-0001.tar", 40, count=2)
    assert greys(open_data(folder).train) == [0, 1, 2, 3, 40, 41, 8, 9, 10, 11]
    path = folder / "train-0001.tar"
    size = path.stat().st_size
    shard(path, 50, count=2)
    os.utime(path, ns=(0, time.time_ns() + 10**9))
    assert path.stat().st_size == size
    assert greys(open_data(folder).train)[4:6] == [50, 51]


def test_a_damaged_index_is_made_again(folder: Path) -> None:
    open_data(folder)
    (folder / f"train-0001.tar{INDEX}").write_bytes(b"PK damaged")
    assert greys(open_data(folder).train) == list(range(12))


def test_an_index_goes_to_the_cache_where_the_folder_is_not_ours(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shards.save_index

    def save(path: Path, *rest: Any) -> None:
        if path.parent == folder:
            raise PermissionError(13, "Permission denied")
        kept(path, *rest)

    monkeypatch.setattr(shards, "save_index", save)
    open_data(folder)
    assert not list(folder.glob(f"*{INDEX}"))
    assert len(list((cache / "index").iterdir())) == 4
    monkeypatch.setattr(shards, "read_tar", None)
    assert greys(open_data(folder).train) == list(range(12))


# The order.


def many(count: int, each: int) -> Shards:
    total = count * each
    return Shards(
        [f"{i}.tar" for i in range(count)],
        np.repeat(np.arange(count), each),
        np.zeros(total, np.int64),
        np.zeros(total, np.int64),
        [""] * total,
        np.zeros(total, np.int64),
        ("a",),
    )


def test_an_epoch_reads_few_shards_at_a_time() -> None:
    images = many(20, 50)
    order = images.order(torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(1000))
    turns = torch.from_numpy(images.shard)[order].view(5, 200)
    groups = [set(turn.tolist()) for turn in turns]
    assert [len(group) for group in groups] == [shards.GROUP] * 5
    assert set.union(*groups) == set(range(20))
    assert all(len(set(turn[:20].tolist())) > 1 for turn in turns)  # mixed, not one by one


def test_each_epoch_has_another_order() -> None:
    images = many(20, 5)
    first, again, other = (images.order(torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert many(0, 5).order(torch.Generator()).tolist() == []


def test_shards_survive_pickling(folder: Path) -> None:
    train = open_data(folder).train
    assert greys(pickle.loads(pickle.dumps(train))) == greys(train)


# Far shards.


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
    monkeypatch.setattr(shards, "PAUSES", (0, 0))
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
    shards.make_room(cache / "shards", 50 * 2**30)
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
