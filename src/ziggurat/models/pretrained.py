"""A model as a folder or a hub repository: config.json, model.safetensors, README.md.

The files are timm's own format, so ``timm.create_model("local-dir:FOLDER", pretrained=True)`` and
``"hf-hub:USER/NAME"`` load ours too once ziggurat is imported.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from safetensors.torch import save_file
from timm.models import FeatureDictNet, FeatureGraphNet, FeatureHookNet, is_model
from timm.models._features import FeatureGetterNet
from torch import nn

from ziggurat.models.backbone import Backbone, pair
from ziggurat.models.registry import TIMM_NAMES, create_model
from ziggurat.models.weights import CheckpointError, classifiers, load_checkpoint

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
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
    ours = isinstance(model, Backbone)
    name = str(model.name if ours else cfg.get("architecture"))
    if name not in TIMM_NAMES if ours else not is_model(name):
        raise ValueError(
            f"only models built by create_model know their name, got {type(model).__name__}"
        )
    taken = [file for file in (CONFIG, WEIGHTS, CARD) if (folder / file).exists()]
    if taken and not overwrite:
        raise FileExistsError(
            f"{folder} already has {', '.join(taken)}: take another folder or overwrite=True"
        )
    changed: Any = getattr(model, "overrides", {})
    overrides = dict(changed)
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
    try:
        text = json.dumps(config, indent=2, default=list) + "\n"
    except TypeError as error:
        raise ValueError(
            f"{name} was built with an option that {CONFIG} cannot hold ({error}): "
            f"give numbers, strings or tuples, got {overrides}"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as partial:
        part = Path(partial)
        state = {n: value.detach().contiguous() for n, value in model.state_dict().items()}
        save_file(state, part / WEIGHTS, metadata={"format": "pt"})
        (part / CONFIG).write_text(text)
        (part / CARD).write_text(card(name, config, model))
        for file in (WEIGHTS, CARD, CONFIG):
            shutil.move(part / file, folder / file)
    return folder


def from_pretrained(source: str | Path, ignore: Sequence[str] = (), **overrides: Any) -> Any:
    """Build and load a model from a folder that ``save_pretrained`` wrote, or a hub id.

    ``overrides`` change the model it builds: another ``img_size`` resizes what was learned;
    another ``num_classes`` starts the classifier afresh. ``ignore`` is ``load_checkpoint``'s.
    """
    config_file, weights_file = locate(str(source))
    try:
        config = json.loads(Path(config_file).read_text())
        name = config.get("ziggurat") or f"timm/{config['architecture']}"
        args = dict(config.get("model_args") or {})
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{config_file} is not a model's config.json: {error}") from None
    classes = args.get("num_classes", config.get("num_classes"))
    args = {k: tuple(v) if isinstance(v, list) else v for k, v in args.items()} | overrides
    model = create_model(name, **args)
    fresh = classifiers(model) if args.get("num_classes", classes) != classes else ()
    load_checkpoint(model, weights_file, ignore=(*ignore, *fresh))
    return model.eval()


def locate(source: str) -> tuple[str, str]:
    """Paths of the config and the weights, fetched from the hub if they are not a folder's."""
    folder = Path(source)
    if folder.is_dir():
        for file in (CONFIG, WEIGHTS):
            if not (folder / file).is_file():
                raise CheckpointError(f"{folder} has no {file}: is it from save_pretrained?")
        return str(folder / CONFIG), str(folder / WEIGHTS)
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"{source!r} is neither a folder nor a hub id like 'user/name'")
    try:
        return (
            huggingface_hub.hf_hub_download(source, CONFIG),
            huggingface_hub.hf_hub_download(source, WEIGHTS),
        )
    except Exception as error:  # the hub client's errors share no base class with its transport's
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{source} could not be fetched from the hub: {reason}") from error


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
