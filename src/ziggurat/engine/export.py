"""A saved model as files that run without ziggurat, tried beside the original before they appear.

    export("runs/digits", "onnx", "digits-onnx")

The number of images is free; with ``dynamic`` height and width are, where the model allows it.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ziggurat.engine import formats, graph
from ziggurat.engine.formats import FORMATS, Run
from ziggurat.engine.predict import opened
from ziggurat.engine.quantise import quantised
from ziggurat.engine.trial import FEW, trial
from ziggurat.models.backbone import Backbone
from ziggurat.models.pretrained import CARD, CONFIG
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import as_bytes
from ziggurat.tasks.heads import read_head

TOLERANCE = 1e-4  # of logits in float32, relative to the largest where that is above 1
MANY = 1000  # images to measure int8 on
BATCH = 16
OURS = {CONFIG, CARD, *(name for one in FORMATS.values() for name in one.files)}


class Comparison(NamedTuple):
    """What was written beside what it was made of, on the same images."""

    images: int
    difference: float  # of logits, at the most
    largest: float  # logit there is
    agreement: float | None  # per cent of images with the same first guess; None without classes
    top1: tuple[float, float] | None = None  # per cent, before and after, where labels are known


class Int8(NamedTuple):
    """int8 beside float32."""

    calibrated: int  # on so many images
    bytes: int  # of the model's files
    found: Comparison


class Exported(NamedTuple):
    """What was written, and how it compares with the original."""

    folder: Path
    bytes: int  # of the model's files in float32
    what: str  # it was tried on
    found: Comparison
    int8: Int8 | None = None
    others: tuple[tuple[str, Comparison], ...] = ()  # with ``dynamic``: at other sizes


def export(
    source: str | Path | Any,
    kind: str,
    out: str | Path,
    size: tuple[int, int] | None = None,
    dynamic: bool = False,
    int8: bool = False,
    images: Sequence[str] = (),
    data: str | None = None,
    lose: float = 2.0,
    overwrite: bool = False,
) -> Exported:
    """Write ``source``, which is what ``predict`` takes, into the folder ``out``.

    It is tried on ``images``, on the test part of ``data``, on that of its run or, if all these
    are missing, on photographs. In float32 nothing may differ by more than rounding does; with
    ``int8`` it may ``lose`` so many points of accuracy, or of agreement where labels are not
    known. Otherwise there is a ValueError, and nothing is left.
    """
    out = Path(out)
    check(kind, size, dynamic, int8)
    check_place(out, overwrite)
    model, size = fitted(only_classifier(source), size)
    tried = trial(source, model, images, data, MANY if int8 else FEW, calibrate=int8)
    prepare, said = normal(model), formats.about(model, size, dynamic)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".exporting-") as partial:
        folder = Path(partial, "float32")
        folder.mkdir()
        made = formats.made(kind, model, size, dynamic)
        formats.write(kind, made, folder, said)
        run = formats.read(kind, folder)
        found = compared(model, run, prepare(tried.images[:FEW]))
        equal(found, f"the {kind} model on {tried.what}")
        others = at_other_sizes(model, run, prepare(tried.images[:2]), kind) if dynamic else ()
        if not model.num_classes:
            found = found._replace(agreement=None)  # features have no first guess
        result = Exported(out, weight(kind, folder), tried.what, found, others=others)
        if int8:
            assert tried.seen is not None
            small = quantised(kind, made, model, prepare(tried.seen))
            folder = Path(partial, "int8")  # the first is in use: OpenVINO maps its file
            folder.mkdir()
            formats.write(kind, small, folder, said)
            found = compared(run, formats.read(kind, folder), prepare(tried.images), tried.labels)
            close(found, lose)
            result = result._replace(int8=Int8(len(tried.seen), weight(kind, folder), found))
        if out.exists():
            shutil.move(out, Path(partial, "before"))
        shutil.move(folder, out)
    return result


# Before.


def check(kind: str, size: tuple[int, int] | None, dynamic: bool, int8: bool) -> None:
    """Refuse at once what cannot be, and say what is not installed."""
    if kind not in FORMATS:
        raise ValueError(f"there is no format {kind!r}: take one of {', '.join(FORMATS)}")
    if kind == "safetensors" and (size or dynamic or int8):
        raise ValueError("safetensors keeps a model as it is: leave --size, --dynamic and --int8")
    if int8 and kind == "torch-export":
        raise ValueError("int8 is for onnx and openvino: leave --int8")
    if dynamic and (size or int8):
        raise ValueError(f"--dynamic is for all sizes: leave {'--size' if size else '--int8'}")
    needed = {FORMATS[kind].needs, "nncf" if int8 else None}
    for what in needed | ({"onnx"} if dynamic and kind == "openvino" else set()):
        if what is not None:
            graph.need(what)


def check_place(out: Path, overwrite: bool) -> None:
    """See that the folder is ours to write to."""
    if not out.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{out} exists: take another --out or --overwrite")
    inside = [file.name for file in out.iterdir()] if out.is_dir() else [out.name]
    if strange := sorted(set(inside) - OURS):
        raise FileExistsError(f"{out} holds {strange[0]}, no export's: take another --out")


def only_classifier(source: str | Path | Any) -> Any:
    """The model, if it is one of images or clips that gives logits or features."""
    if isinstance(source, str | Path) and Path(source).is_dir():
        head = read_head(source)
        if head is not None:
            raise ValueError(
                f"{source} holds a model of the task {head.task}: classifiers can be exported, "
                "and backbones that were saved alone"
            )
    return opened(source).cpu().eval()


def fitted(model: Any, size: tuple[int, int] | None) -> tuple[Any, tuple[int, int]]:
    """The model for images of ``size``, its own if not given, and that size."""
    inner = model.image_model if isinstance(model, SpaceTime) else model
    channels = graph.input_size(model)[0]
    if channels != 3:
        raise ValueError(f"models of RGB images can be exported, this takes {channels} channels")
    own = tuple(inner.pretrained_cfg["input_size"][1:])
    if size is not None and size != own:
        if not isinstance(inner, Backbone) and hasattr(inner, "set_input_size"):
            inner.set_input_size(size)  # timm's transformers, which take one size
        for config in (model.pretrained_cfg, inner.pretrained_cfg):
            config["input_size"] = (3, *size)
    height, width = size or own
    return model, (height, width)


# After.


def normal(model: Any) -> Run:
    """Bytes to what the model takes."""
    mean, std = (as_bytes(model.pretrained_cfg[key]) for key in ("mean", "std"))
    return lambda images: (images.float() - mean) / std


@torch.inference_mode()
def compared(before: Run, after: Run, images: Tensor, labels: Tensor | None = None) -> Comparison:
    """Logits of both, of the first image alone, then of many at a time."""
    parts = [images[:1], *images[1:].split(BATCH)] if len(images) > 1 else [images]
    expected, found = (torch.cat([run(part).float() for part in parts]) for run in (before, after))
    guesses = [logits.argmax(1) for logits in (expected, found)]
    agreement = 100 * float((guesses[0] == guesses[1]).double().mean())
    top1 = None
    if labels is not None:
        old, new = (100 * float((guess == labels).double().mean()) for guess in guesses)
        top1 = (old, new)
    difference = float((expected - found).abs().max())
    return Comparison(len(images), difference, float(expected.abs().max()), agreement, top1)


def equal(found: Comparison, what: str) -> None:
    """Raise a ValueError if more than rounding differs."""
    most = TOLERANCE * max(1.0, found.largest)
    if not found.difference <= most:  # nor if it is not a number
        raise ValueError(
            f"{what} differs from the original by {found.difference:.2g}, more than {most:.2g}: "
            "nothing was written; take another format"
        )


def at_other_sizes(
    model: Any, run: Run, images: Tensor, kind: str
) -> tuple[tuple[str, Comparison], ...]:
    """See that a dynamic graph holds for sizes that it was not traced at."""
    original, found = graph.for_any_size(model), []
    for down, right in ((1, 3), (0, 2)):
        size = graph.other_size(model, down, right)
        resized = F.interpolate(images, size, mode="bilinear", antialias=True)
        called = f"{size[0]} x {size[1]}"
        what = f"the {kind} model at {called}"
        try:
            found.append((called, compared(original, run, resized)))
            equal(found[-1][1], what)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"{what} fails ({str(error).splitlines()[0]}): take another format, or --size "
                "for each size that you need"
            ) from error
    if not model.num_classes:
        return tuple((called, one._replace(agreement=None)) for called, one in found)
    return tuple(found)


def close(found: Comparison, lose: float) -> None:
    """Raise a ValueError if int8 loses more than it may."""
    before, after = found.top1 or (100.0, found.agreement or 0.0)
    if before - after > lose:
        what = "accuracy" if found.top1 else "agreement with float32"
        raise ValueError(
            f"int8 brings {what} from {before:.1f} to {after:.1f} per cent, and may lose {lose:g}: "
            "nothing was written; take the other --format of int8, more --images that are like "
            "yours, or allow it with --lose"
        )


def weight(kind: str, folder: Path) -> int:
    """Bytes of the model's own files."""
    return sum((folder / name).stat().st_size for name in FORMATS[kind].files)
