"""Names to models: ours, and timm's for the baselines."""

import difflib
import fnmatch
import inspect
import types
from collections.abc import Callable
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, is_model, register_model
from torch import nn

from ziggurat.models import hivit, hvt, nest, regionvit, rest
from ziggurat.models.backbone import Backbone
from ziggurat.models.video import SpaceTime
from ziggurat.models.weights import for_timm

FAMILIES: dict[types.ModuleType, type[Backbone]] = {
    nest: nest.NesT,
    hvt: hvt.HVT,
    rest: rest.ResT,
    hivit: hivit.HiViT,
    regionvit: regionvit.RegionViT,
}
VARIANTS: dict[str, dict[str, Any]] = {
    name: options for family in FAMILIES for name, options in family.VARIANTS.items()
}
TIMM_NAMES: dict[str, str] = {}  # ours -> the name timm knows it by
BUILDERS: dict[str, Callable[..., nn.Module]] = {}

IMAGENET: dict[str, Any] = dict(
    num_classes=1000,
    input_size=(3, 224, 224),
    interpolation="bicubic",
    crop_pct=0.875,
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
    classifier="head",
)
CIFAR = IMAGENET | dict(
    num_classes=10,
    input_size=(3, 32, 32),
    crop_pct=1.0,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
PUBLISHED = {  # the weights a hub carries; the other families' are files behind a web page
    f"nest_{size}": f"timm/nest_{size}_jx.goog_in1k" for size in ("tiny", "small", "base")
}
TIMMS_OWN = {"features_only", "out_indices", "feature_cls", "pretrained_cfg", "cache_dir"} | {
    "pretrained_model_args",  # since 1.0.31: what a saved model was built with
    "pretrained_cfg_overlay",
}
SOURCES = ("state_dict", "file", "url", "hf_hub_id")  # where a pretrained_cfg may have weights


def create_model(
    name: str,
    pretrained: bool = False,
    frames: int | None = None,
    over_time: bool = True,
    **overrides: Any,
) -> Any:
    """Build a model by its name; ``overrides`` change what the variant sets.

    It is typed as Any: a ``Backbone``, or timm's model of that name. Our names come first, then
    timm's; ``timm/nest_tiny`` asks for timm's where both have one. With ``frames`` it is one of
    clips, a ``SpaceTime`` around that model, which attends ``over_time`` or not.

        create_model("hivit_base", num_classes=10, img_size=256)
    """
    if frames is not None:
        return SpaceTime(create_model(name, pretrained, **overrides), frames, over_time)
    if name.startswith("timm/"):
        name = name.removeprefix("timm/")
        if not is_model(name):
            names = [f"timm/{known}" for known in timm.list_models()]
            raise ValueError(unknown(f"timm/{name}", names, "timm.list_models()"))
        return timms(name, pretrained, overrides)
    if name in BUILDERS:
        return BUILDERS[name](pretrained=pretrained, **overrides)
    if is_model(name):
        return timms(name, pretrained, overrides)
    raise ValueError(unknown(name, [*VARIANTS, *timm.list_models()]))


def timms(name: str, pretrained: bool, overrides: dict[str, Any]) -> nn.Module:
    """timm's model, knowing what was changed of it as ours do."""
    model: nn.Module = timm.create_model(name, pretrained=pretrained, **overrides)
    model.overrides = {k: v for k, v in overrides.items() if k not in TIMMS_OWN}  # type: ignore[assignment]
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Names of our variants that match, family by family: ``list_models("hvt_*")``."""
    return [name for name in VARIANTS if fnmatch.fnmatch(name, pattern)]


def family_of(name: str) -> type[Backbone]:
    """The class that one of our names builds."""
    return next(model for family, model in FAMILIES.items() if name in family.VARIANTS)


def unknown(name: str, known: list[str], lister: str = "ziggurat models") -> str:
    """What to say of a name that nothing has."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"`{lister}` lists them"
    return f"no model is called {name!r}: {hint}"


def check_overrides(name: str, model: type[Backbone], overrides: dict[str, Any]) -> None:
    """Refuse what the family does not take."""
    allowed = set(inspect.signature(model).parameters)
    for option in overrides:
        if option not in allowed | TIMMS_OWN:
            near = difflib.get_close_matches(option, allowed, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(allowed))}"
            )
            raise TypeError(f"{name} takes no option {option!r}: {hint}")


def builder(name: str, timm_name: str, model: type[Backbone]) -> Callable[..., nn.Module]:
    """The function timm calls for a variant, and ``create_model`` with it."""
    options = VARIANTS[name]

    def build(pretrained: bool = False, **overrides: Any) -> nn.Module:
        check_overrides(name, model, overrides)
        overlay = overrides.get("pretrained_cfg_overlay") or {}
        given = overrides.get("pretrained_cfg") or any(overlay.get(key) for key in SOURCES)
        if pretrained and name not in PUBLISHED and not given:
            raise ValueError(
                f"no hub carries weights of {name}: its authors publish them as files; download "
                f"one, then load_checkpoint(create_model({name!r}), file)"
            )

        def make(**merged: Any) -> Backbone:
            made = model(**merged)
            made.name = name
            made.overrides = {k: v for k, v in overrides.items() if k not in TIMMS_OWN}
            return made

        return build_model_with_cfg(
            make,
            timm_name,
            pretrained,
            pretrained_filter_fn=for_timm,
            feature_cfg=dict(out_indices=None, feature_cls="getter"),
            **{**options, **overrides},
        )

    build.__name__ = build.__qualname__ = timm_name
    build.__doc__ = f"{name} of {model.__name__}."
    return build


def register() -> None:
    """Make every variant known to timm, under its own name or, where timm has one, ours.

    timm's ``nest_tiny`` stays timm's; ours is ``ziggurat_nest_tiny`` there.
    """
    for family, model in FAMILIES.items():
        cfgs: dict[str, Any] = {}
        for name in family.VARIANTS:
            TIMM_NAMES[name] = f"ziggurat_{name}" if is_model(name) else name
            cfg = CIFAR if name.endswith("_cifar") else IMAGENET
            cfg = cfg | dict(hf_hub_id=PUBLISHED.get(name))
            cfgs[TIMM_NAMES[name]] = cfg
        family.default_cfgs = generate_default_cfgs(cfgs)  # type: ignore[attr-defined]
        for name in family.VARIANTS:
            build = builder(name, TIMM_NAMES[name], model)
            build.__module__ = family.__name__
            setattr(family, build.__name__, build)
            BUILDERS[name] = register_model(build)


register()
