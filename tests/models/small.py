"""One small model of each family: the real code at a size that tests can afford."""

from typing import Any

from ziggurat.models.backbone import Backbone
from ziggurat.models.registry import create_model

SMALL: dict[str, dict[str, Any]] = {
    "nest_tiny": dict(dims=(16, 32, 64), heads=(1, 2, 4), depths=(1, 1, 2), img_size=64),
    "hvt_ti_2": dict(dim=32, heads=2, depth=4, patch_size=8, img_size=64),
    "rest_lite": dict(dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), img_size=64),
    "hivit_tiny": dict(dims=(16, 32, 64), heads=2, depths=(1, 1, 2), img_size=64),
    "regionvit_ti": dict(dims=(32, 64, 128, 256), depths=(1, 1, 2, 1), img_size=56),
}
SHALLOW: dict[str, dict[str, Any]] = {  # for compilers, which take seconds for each block
    "nest_tiny": dict(dims=(16, 32), heads=(1, 2), depths=(1, 1)),
    "hvt_ti_2": dict(depth=2),
    "rest_lite": dict(dims=(16, 32), heads=(1, 2), depths=(1, 1), reductions=(2, 1)),
    "hivit_tiny": dict(depths=(1, 1, 1)),
    "regionvit_ti": dict(dims=(32, 64), depths=(1, 1), windows=7),
}


def small(name: str, **overrides: Any) -> Backbone:
    model = create_model(name, **{**SMALL[name], "num_classes": 10, **overrides})
    assert isinstance(model, Backbone)
    return model


def shallow(name: str) -> Backbone:
    """A small model with one block of each kind: as few stages as its family is made of."""
    return small(name, **SHALLOW[name])
