from typing import Any

import pytest
import timm
import torch
from torch import nn

import ziggurat
from tests.models.small import SMALL, small
from ziggurat.cli import explaining
from ziggurat.explain import METHODS, explain, figures, reason

NOT = {
    ("regionvit_ti", "cam"): "averages regional tokens, too few to make a map (one at 224 pixels)",
    **{
        (name, "gradcat"): "has no tree of 2 x 2 blocks, which NesT has"
        for name in SMALL
        if name != "nest_tiny"
    },
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", METHODS)
def test_every_family_is_explained_or_says_why_not(name: str, method: str) -> None:
    model = small(name).eval()
    why = reason(model, method)
    if (name, method) in NOT:
        nearest = "gradcam++" if name == "regionvit_ti" else "cam"
        assert why == f"{method}: {name} {NOT[name, method]}; nearest is {nearest}"
        with pytest.raises(ValueError, match=r"2 x 2|regional"):
            explain(model, torch.randn(1, 3, 64, 64), [0], method)
        return
    assert why is None
    for size in ((64, 64), (97, 131)):
        found = explain(model, torch.randn(1, 3, *size), [3, 1], method)
        assert found.method == method
        assert found.classes == (3, 1)
        assert found.maps.shape == (2, *size)
        assert found.maps.isfinite().all()
        assert found.maps.amin() == 0
        most = found.maps.amax((1, 2))
        if method in ("gradcam++", "groupcam"):  # nothing may speak for a class
            assert ((most == 0) | (most == 1)).all()
        else:
            assert (most == 1).all()
        assert torch.equal(*found.maps) or method != "rollout"


@pytest.mark.parametrize(
    ("name", "options", "nearest"),
    [
        ("mobilenetv3_small_050", {}, {"cam": "has more than a mean in its head"}),
        (
            "deit_tiny_patch16_224",
            {"depth": 1, "img_size": 32},
            {"cam": "reads its class token, not a mean over the image"},
        ),
        ("resnet10t", {}, {"rollout": "has no attention, or none whose way"}),
        ("coat_tiny", {}, {"gradcam++": "has no list of blocks"}),
        ("nest_tiny", {}, {"gradcat": "is timm's NesT: its weights load into this library's"}),
    ],
)
def test_a_model_of_timms_says_why_not(
    name: str, options: dict[str, Any], nearest: dict[str, str]
) -> None:
    model = timm.create_model(name, num_classes=4, **options).eval()
    for method, said in nearest.items():
        assert said in (reason(model, method) or "")


def test_a_convnet_is_explained_in_training_mode_too_and_left_in_it() -> None:
    model = timm.create_model("resnet10t", num_classes=4)
    image = torch.randn(1, 3, 64, 96)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        found = explain(model, image, [0], "groupcam")
    assert found.maps.shape == (1, 64, 96)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(found.maps, explain(model.eval(), image, [0], "groupcam").maps)


def test_what_cannot_be_explained_is_told() -> None:
    image = torch.randn(1, 3, 64, 64)
    model = small("nest_tiny").eval()
    with pytest.raises(
        ValueError, match="no method is called 'smoothgrad': there are gradcat, cam"
    ):
        reason(model, "smoothgrad")
    with pytest.raises(ValueError, match=r"nest_tiny knows classes 0 to 9, asked was for \[10\]"):
        explain(model, image, [10], "cam")
    with pytest.raises(ValueError, match="knows classes 0 to 9"):
        explain(model, image, [], "cam")
    with pytest.raises(ValueError, match="one image is explained"):
        explain(model, image.expand(2, -1, -1, -1), [1], "cam")
    assert "knows no classes" in (reason(small("nest_tiny", num_classes=0), "cam") or "")
    clips = ziggurat.create_model("nest_tiny", frames=2, num_classes=3, **SMALL["nest_tiny"])
    assert "is a model of clips" in (reason(clips, "cam") or "")
    assert "has one level" in (
        reason(small("nest_tiny", dims=16, heads=1, depths=(1,)), "gradcat") or ""
    )
    for options in ({"aggregate": "query"},):
        assert "by attention" in (reason(small("nest_tiny", **options), "rollout") or "")
    shifted = small("hivit_tiny", shallow="window", dims=(32, 32, 32))
    assert "shifts windows" in (reason(shifted, "rollout") or "")

    class Foreign(nn.Linear):
        num_classes = 3

    assert "no forward_features" in (reason(Foreign(3, 3), "cam") or "")


def test_every_list_of_methods_is_the_same() -> None:
    assert tuple(METHODS) == explaining.METHODS
    assert list(METHODS) == list(figures.TITLES)
