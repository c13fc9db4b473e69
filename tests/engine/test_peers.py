import pytest
import torch

from ziggurat.engine import peers
from ziggurat.engine.measure import count
from ziggurat.models.registry import create_model


@pytest.mark.parametrize("name", [name for kind in peers.ALIKE.values() for name in kind])
def test_costs_of_the_list_are_counted(name: str) -> None:
    (cost,) = [kind[name] for kind in peers.ALIKE.values() if name in kind]
    assert round(count(name).macs / 1e9, 2) == cost


def test_peers_are_the_same_elsewhere_and_of_like_cost() -> None:
    assert peers.peers_of(["nest_tiny"]) == [
        "timm/nest_tiny",
        "vit-pytorch/nest_tiny",
        "timm/deit_small_patch16_224",
        "timm/swin_tiny_patch4_window7_224",
        "timm/resnet101",
        "timm/hiera_small_224",
    ]
    assert peers.peers_of(["hvt_ti_1", "timm/resnet18"])[0] == "timm/deit_tiny_patch16_224"
    masked = peers.peers_of(["nest_tiny", "hivit_base"], masked=True)
    assert [name.split("_")[0] for name in masked] == ["timm/deit", "timm/swin"] * 2


def test_names_of_each_library_are_built() -> None:
    with torch.device("meta"):
        assert type(peers.build("nest_tiny")).__module__ == "ziggurat.models.nest"
        assert type(peers.build("timm/nest_tiny")).__module__ == "timm.models.nest"
        for name in peers.THEIRS:
            assert type(peers.build(name)).__module__.startswith("vit_pytorch")


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match=r"no model is called 'vit-pytorch/swin': there are vit-p"):
        peers.build("vit-pytorch/swin")


def test_the_same_weights_give_the_same_outputs() -> None:
    small = dict(img_size=32, num_classes=3)
    ours = create_model("nest_tiny", **small, **peers.TIMMS)
    theirs = create_model("timm/nest_tiny", **small)
    assert 0 < peers.share_weights(ours, theirs, 32) < 1e-5
    other = create_model("nest_tiny", **small)  # GELU by tanh, other padding
    with pytest.raises(RuntimeError, match="the same weights give outputs that differ by"):
        peers.share_weights(other, theirs, 32)
