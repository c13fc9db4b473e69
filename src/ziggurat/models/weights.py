"""Checkpoints, ours and the authors', into a model; what does not fit is said in full."""

import fnmatch
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ziggurat.models.backbone import Backbone

NESTS = ("model", "state_dict", "module", "params", "target", "optimizer", "ema", "model_ema")
PREFIXES = (
    "module.",
    "_orig_mod.",
    "backbone.bottom_up.model.",
    "backbone.bottom_up.",
    "backbone.",
)
BACKBONES = PREFIXES[2:]  # where detectron2 and mmdetection keep them, beside necks and heads
TORCH = (".pth", ".pt", ".bin", ".tar", ".ckpt")


class Inert:
    """Stands for a setting stored beside the weights: takes anything, keeps and does nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


# What authors store beside their weights, and what is built in its place: never their class.
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (OrderedDict, "yacs.config.CfgNode"),  # a dict, which torch fills only if it is its own kind
    *(
        (Inert, name)
        for name in (
            "argparse.Namespace",
            "numpy.dtype",
            "numpy.core.multiarray.scalar",
            "numpy._core.multiarray.scalar",
            *(
                f"{module}.{kind}Path"
                for module in ("pathlib", "pathlib._local")
                for kind in ("Posix", "Windows", "PurePosix", "PureWindows")
            ),
        )
    ),
]


@runtime_checkable
class Converts(Protocol):
    """A model that knows its authors' names, and how to resize what it has learned."""

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The authors' names to ours."""

    def fit(self, name: str, value: Tensor) -> Tensor:
        """A tensor of another size."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit.

    The message shows the first few names; ``missing``, ``unexpected`` and ``shapes`` have all.
    """

    def __init__(
        self,
        message: str,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        shapes: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = list(missing)  # in the model, not in the checkpoint
        self.unexpected = list(unexpected)  # in the checkpoint, not in the model
        self.shapes = list(shapes)  # "name: shape in the checkpoint, shape in the model"


class Loaded(NamedTuple):
    """What ``load_checkpoint`` did besides copying."""

    resized: list[str]  # learned at another resolution, window or number of channels
    ignored: list[str]  # left out because the caller said so


def load_checkpoint(
    model: nn.Module,
    checkpoint: str | Path | Mapping[str, Any],
    ignore: Sequence[str] = (),
) -> Loaded:
    """Load a checkpoint in our names, the authors' or timm's into ``model``.

    ``checkpoint`` is a file (safetensors, torch, Flax msgpack or npz) or a state dict, nested as
    the authors nest theirs. Positions, relative biases and window-sized kernels learned at
    another resolution are resized; first convolutions adapt to other channels. Anything else
    that is missing, unexpected or of another shape is a ``CheckpointError``, which has the
    complete lists, unless a pattern in ``ignore`` names it. A HiViT from masked pre-training:

        ignore = ("decoder.*", "head.*", "norm.*")
        load_checkpoint(model, "mae_hivit_base.pth", ignore=ignore)

    A model on the meta device comes to the device of the checkpoint.
    """
    state = flat(read(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint)
    if not hasattr(model, "encoder"):  # our own MaskedAutoencoder's names
        state = {name.removeprefix("encoder."): value for name, value in state.items()}
    if isinstance(model, Converts):
        state = model.convert(state)
    own = model.state_dict()
    ignored = sorted(n for n in {*own, *state} if any(fnmatch.fnmatch(n, p) for p in ignore))
    state = {name: value for name, value in state.items() if name not in ignored}

    resized = []
    if isinstance(model, Converts):
        for name, value in state.items():
            if name in own and value.shape != own[name].shape:
                state[name] = model.fit(name, value)
                if state[name].shape == own[name].shape:
                    resized.append(name)
    optional = {name for name, value in own.items() if not value.dtype.is_floating_point}
    missing = sorted(own.keys() - state.keys() - optional - set(ignored))
    unexpected = sorted(state.keys() - own.keys())
    shapes = [
        f"{name}: {tuple(value.shape)} in the checkpoint, {tuple(own[name].shape)} in the model"
        for name, value in state.items()
        if name in own and value.shape != own[name].shape
    ]
    if missing or unexpected or shapes:
        raise CheckpointError(
            misfit(model, checkpoint, missing, unexpected, shapes), missing, unexpected, shapes
        )
    empty = {n: v for n, v in (*model.named_parameters(), *model.named_buffers()) if v.is_meta}
    left = sorted(empty.keys() - state.keys())
    if left:
        raise CheckpointError(
            f"the model is on the meta device and the checkpoint has no {some(left)}: "
            "build the model on the CPU",
            missing=left,
        )
    if empty:  # own copies: assigned tensors would otherwise be shared with the caller's
        state = {n: v.detach().to(own[n].dtype, copy=True) for n, v in state.items()}
    model.load_state_dict(state, strict=False, assign=bool(empty))
    return Loaded(resized, ignored)


def for_timm(state: dict[str, Tensor], model: Backbone) -> dict[str, Tensor]:
    """What timm calls on weights it fetched: our names, this model's sizes and channels."""
    own = model.state_dict()
    return {
        name: model.fit(name, value) if name in own and value.shape != own[name].shape else value
        for name, value in model.convert(flat(state)).items()
    }


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def classifiers(model: nn.Module) -> tuple[str, ...]:
    """Patterns of the classifier's names: ``head.*`` in our models, as timm says in its own."""
    cfg = getattr(model, "pretrained_cfg", None) or {"classifier": "head"}
    names = cfg.get("classifier") or ()
    return tuple(f"{name}.*" for name in ((names,) if isinstance(names, str) else names))


def misfit(
    model: nn.Module,
    checkpoint: object,
    missing: list[str],
    unexpected: list[str],
    shapes: list[str],
) -> str:
    """One message with what does not fit, and what to do."""
    source = checkpoint if isinstance(checkpoint, str | Path) else "the state dict"
    name = getattr(model, "name", type(model).__name__)
    lines = [f"{source} does not fit {name}"]
    lines += [f"missing from the checkpoint: {some(missing)}"] if missing else []
    lines += [f"not in the model: {some(unexpected)}"] if unexpected else []
    lines += [f"of another shape: {some(shapes)}"] if shapes else []
    every = missing + unexpected + [line.split(":")[0] for line in shapes]
    heads = classifiers(model)
    if all(any(fnmatch.fnmatch(n, head) for head in heads) for n in every):
        patterns = ", ".join(f'"{head}"' for head in heads)
        lines.append(
            "only the classifier differs: build the model with the checkpoint's num_classes, "
            f"or start it afresh with ignore=({patterns},)"
        )
    else:
        lines.append(
            "build the variant the checkpoint was made with (`ziggurat models`), "
            "or name what may differ: ignore=(pattern, ...)"
        )
    return "; ".join(lines)


def read(path: str | Path) -> Mapping[str, Any]:
    """A checkpoint file's contents, never unpickling anything but tensors and plain values."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        flax = path.suffix in (".flax", ".msgpack")
        if flax or (path.suffix not in TORCH and path.name.startswith(("ckpt-", "checkpoint_"))):
            return read_flax(path)
        with torch.serialization.safe_globals(HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = refusal(path, str(error))
    except CheckpointError:
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    except Exception as error:  # pickle and zip raise their own kinds for a broken file
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    raise CheckpointError(
        f"{path} cannot be read as a checkpoint ({reason}): expected safetensors, a torch file of "
        "plain tensors, Flax msgpack or npz"
    )


def refusal(path: Path, message: str) -> str:
    """Why torch would not unpickle a file, in a line."""
    try:
        with torch.serialization.safe_globals(HARMLESS):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # an older or broken file, whose names torch cannot list
        names = re.findall(r"GLOBAL (\S+)", message)[:1]
    if not names:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
        return plain.split("WeightsUnpickler error: ")[-1].splitlines()[0]
    return (
        f"refused for safety: it asks to run {some(sorted(names))}; if you trust it, give "
        "torch.load(..., weights_only=False) instead of the path"
    )


def read_flax(path: Path) -> Mapping[str, Any]:
    """Flax's msgpack: arrays are extension 1, (shape, dtype, bytes)."""
    try:
        import msgpack
    except ImportError:
        raise CheckpointError(
            f"{path} is a Flax checkpoint: `pip install 'ziggurat[flax]'` to read it"
        ) from None

    def array(code: int, data: bytes) -> object:
        if code != 1:
            return None
        shape, dtype, raw = msgpack.unpackb(data, raw=False)
        return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)

    return msgpack.unpackb(path.read_bytes(), ext_hook=array, raw=False, strict_map_key=False)


def flat(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights out of a checkpoint's nesting, without wrappers' prefixes, as tensors.

    Of a detector or segmenter they are its backbone's alone.
    """
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(
            f"the checkpoint holds a {type(checkpoint).__name__}, expected names and tensors: "
            "give a state dict, or a file of one"
        )
    while nest := next((n for n in NESTS if isinstance(checkpoint.get(n), Mapping)), None):
        checkpoint = checkpoint[nest]
    state: dict[str, Tensor] = {}

    def collect(values: Mapping[str, Any], path: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                collect(value, f"{path}{key}/")
            elif isinstance(value, Tensor):
                state[f"{path}{key}"] = value
            elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
                state[f"{path}{key}"] = torch.from_numpy(np.array(value))

    collect(checkpoint, "")
    if not state:
        raise CheckpointError(
            f"no weights found in the checkpoint: its keys are {', '.join(map(str, checkpoint))}"
        )
    for prefix in PREFIXES:
        own = {name: value for name, value in state.items() if name.startswith(prefix)}
        if len(own) == len(state) or (own and prefix in BACKBONES):
            state = {name.removeprefix(prefix): value for name, value in own.items()}
    return state
