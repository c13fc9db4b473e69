"""How a model with a head is kept: a backbone as any other saved model, and its head beside it.

So anything can start from the backbone. ``head.safetensors`` holds all the rest, says which task it
is of, and needs no recipe to be used.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ziggurat.models.pretrained import beside, from_pretrained, locate, save_pretrained
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks.classify import some
from ziggurat.tasks.task import Settings

HEAD = "head.safetensors"


class Head(NamedTuple):
    """What ``head.safetensors`` says of itself."""

    task: str
    settings: dict[str, Any]
    about: dict[str, Any]  # classes, and what else the task wants to know


def save_dense(
    folder: Path,
    model: Any,
    backbone: Any,
    task: Literal["detect", "segment"],
    settings: Settings,
    about: dict[str, Any],
) -> None:
    """Write a model with a ``pyramid``: its backbone, and everything else.

    ``backbone`` is whole and gets the weights of the model's, which has lost what it does not use.
    """
    inner = "pyramid.backbone."
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    own = {name.removeprefix(inner): v for name, v in state.items() if name.startswith(inner)}
    left = backbone.load_state_dict(own, strict=False)
    assert not left.unexpected_keys, left
    rest = {name: value for name, value in state.items() if not name.startswith(inner)}
    said = {"settings": settings.model_dump(mode="json"), "about": about}
    words = {key: json.dumps(value) for key, value in said.items()}
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{HEAD}.part"
    save_file(rest, part, metadata={"format": "pt", "task": task} | words)
    part.replace(folder / HEAD)
    save_pretrained(backbone, folder, overwrite=True)


def read_head(source: str | Path) -> Head | None:
    """What a saved model's head says; None if it has none, as a classifier."""
    file = beside(source, HEAD)
    if file is None:
        return None
    try:
        with safe_open(file, "pt") as found:
            said = found.metadata() or {}
        head = Head(said["task"], json.loads(said["settings"]), json.loads(said["about"]))
        if head.task not in ("detect", "segment"):
            raise ValueError(f"its task is {head.task!r}")
        names, ids = head.about["classes"], head.about.get("category_ids")
        if not all(isinstance(name, str) for name in names) or len(ids or names) != len(names):
            raise ValueError("its classes have no names, or other numbers than names")
        return head._replace(settings=dict(head.settings))
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is not a head that `ziggurat train` wrote: {error}"
        ) from None


def load_head(model: nn.Module, source: str | Path) -> None:
    """The weights of everything but the backbone."""
    file = beside(source, HEAD)
    if file is None:
        raise CheckpointError(f"{source} has no {HEAD}: it is a backbone alone")
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    own = {n for n in model.state_dict() if not n.startswith("pyramid.backbone.")}
    shapes = [n for n in own & found.keys() if found[n].shape != model.state_dict()[n].shape]
    if own != found.keys() or shapes:
        strange = sorted(own ^ found.keys()) or shapes
        raise CheckpointError(
            f"{file} does not fit its own settings: {strange[0]} and {len(strange) - 1} more"
        )
    model.load_state_dict(found, strict=False)


def check_known(source: str | Path, classes: Sequence[str]) -> None:
    """See that a saved model looks for the data's classes, in their order."""
    head = read_head(source)
    known = [] if head is None else list(head.about["classes"])
    if known != list(classes):
        raise CheckpointError(
            f"{source} knows {len(known)} classes, {some(known)}; the data has {len(classes)}, "
            f"{some(classes)}: measure it on data with its own"
        )


def saved_backbone(source: str | Path, task: str) -> Any:
    """The backbone of a saved model of ``task``."""
    locate(str(source))
    head = read_head(source)
    if head is None or head.task != task:
        raise CheckpointError(f"{source} is no model of the task {task}: it has no {HEAD} of one")
    return from_pretrained(source)
