import subprocess
import sys

import pytest
import timm
import torch

import ziggurat
from tests.models.small import SMALL, small
from ziggurat.models.backbone import Backbone
from ziggurat.models.nest import NesT
from ziggurat.models.registry import TIMM_NAMES, VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_timm_builds_every_variant_by_name(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(TIMM_NAMES[name], num_classes=7)
    assert isinstance(model, Backbone)
    assert model.name == name
    assert model.get_classifier().out_features == 7
    assert model.default_cfg["architecture"] == TIMM_NAMES[name]


def test_timms_own_nest_stays_timms() -> None:
    with torch.device("meta"):
        theirs = timm.create_model("nest_tiny")
        ours = timm.create_model("ziggurat_nest_tiny")
        again = ziggurat.create_model("nest_tiny")
        asked = ziggurat.create_model("timm/nest_tiny")
    assert type(theirs).__module__ == type(asked).__module__ == "timm.models.nest"
    assert isinstance(ours, NesT)
    assert isinstance(again, NesT)
    clashes = {ours_ for ours_, theirs_ in TIMM_NAMES.items() if ours_ != theirs_}
    assert clashes == {"nest_tiny", "nest_small", "nest_base"}


ORDERS = [
    "import ziggurat, timm",
    "import timm, ziggurat",
    "import ziggurat, importlib.util; importlib.util.find_spec('timm'); import timm",
    "import ziggurat.models.rest, timm",
    "import ziggurat.layers.attention, timm",
    "import ziggurat.tasks.pretrain, timm",
]
FORKED = """
import os, sys, torchvision
assert not {"timm", "ziggurat"} & set(sys.modules)
for imports in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            exec(imports)
            assert timm.is_model("hivit_base") and timm.is_model("ziggurat_nest_tiny"), imports
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, imports
"""


def test_importing_in_any_order_registers() -> None:
    """Each in a process of its own, forked from one that has taken the seconds torch takes."""
    subprocess.run([sys.executable, "-c", FORKED, *ORDERS], check=True)


def test_importing_ziggurat_alone_is_light() -> None:
    code = "import sys, ziggurat.cli; assert not {'torch', 'timm', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import ziggurat; assert 'create_model' in dir(ziggurat); ziggurat.nonsense"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no attribute 'nonsense'" in found.stderr


def test_baselines_come_from_timm() -> None:
    with torch.device("meta"):
        model = ziggurat.create_model("deit_small_patch16_224", num_classes=5)
    assert type(model).__module__.startswith("timm.")


def test_names_are_listed_by_pattern() -> None:
    assert ziggurat.list_models("rest_*") == ["rest_lite", "rest_small", "rest_base", "rest_large"]
    assert len(ziggurat.list_models()) == len(VARIANTS)


@pytest.mark.parametrize(
    ("name", "near"),
    [("nest_tyni", "nest_tiny"), ("hivitbase", "hivit_base"), ("timm/resnet51", "timm/resnet")],
)
def test_an_unknown_name_gets_its_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{near}"):
        ziggurat.create_model(name)


def test_an_unknown_option_gets_its_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"nest_tiny takes no option 'depth': did you mean 'depths'"
    ):
        ziggurat.create_model("nest_tiny", depth=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nest_tiny", dict(heads=(5, 6, 12))),
        ("hvt_s_1", dict(heads=7, dim=384)),
        ("rest_lite", dict(heads=(3, 2, 4, 8))),
        ("hivit_base", dict(heads=7)),
    ],
)
def test_impossible_heads_name_what_would_do(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"a width of \d+ cannot be split into \d heads: take one"):
        ziggurat.create_model(name, **options)


@pytest.mark.parametrize("name", SMALL)
def test_features_only_gives_the_maps_and_keeps_no_idle_parameter(name: str) -> None:
    whole = small(name).eval()
    options = {**SMALL[name], "num_classes": 10}
    features = timm.create_model(TIMM_NAMES[name], features_only=True, **options).train()
    assert features.feature_info.channels() == list(whole.dims)
    assert features.feature_info.reduction() == list(whole.strides)
    maps = features(torch.randn(2, 3, *whole.img_size))
    sum(m.square().sum() for m in maps).backward()
    assert all(p.grad is not None for p in features.parameters())
