"""Counting: by hand, against what the official code was measured at, and without memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ziggurat import complexity
from ziggurat.engine.measure import Level, count, levels, peak_memory
from ziggurat.layers.attention import Attention
from ziggurat.models.registry import create_model


class AsTokens(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(2).transpose(1, 2)


class MetaOnly(TorchDispatchMode):
    """Fails on the first tensor that has memory."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                assert tensor.is_meta, f"{func} made {tuple(tensor.shape)} on {tensor.device}"
        return out


def test_a_convolution_is_a_product_for_every_output() -> None:
    cost = count(nn.Conv2d(3, 8, 3, padding=1), img_size=10)
    assert cost.macs == (3 * 3 * 3) * 8 * 10 * 10
    assert cost.params == 3 * 3 * 3 * 8 + 8


def test_a_linear_layer_is_its_weights() -> None:
    cost = count(nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5)), img_size=4)
    assert cost.macs == 3 * 4 * 4 * 5


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_attention_is_hvts_equation_14(kv_heads: int | None) -> None:
    model = nn.Sequential(AsTokens(), Attention(12, 3, kv_heads))
    n, d, shared = 16, 12, 0 if kv_heads is None else 2 * (12 - 4)
    cost = count(model, img_size=4, in_chans=12)
    assert cost.macs == complexity.msa(n, d) - n * d * shared


@pytest.mark.parametrize(
    ("norm", "rate"),
    [
        (nn.BatchNorm2d(4), 2),
        (nn.BatchNorm2d(4, affine=False), 1),
        (nn.InstanceNorm2d(4), 4),
        (nn.GroupNorm(2, 4), 5),
        (nn.LayerNorm(6), 5),
        (nn.LayerNorm(6, elementwise_affine=False), 4),
    ],
    ids=str,
)
def test_norms_are_no_multiply_adds_but_counted_as_fvcore_does(norm: nn.Module, rate: int) -> None:
    cost = count(norm, img_size=6, in_chans=4)
    assert (cost.macs, cost.norms, cost.fvcore) == (0, 144 * rate, 144 * rate)


def test_nest_tiny_is_what_the_official_code_was_measured_at() -> None:
    cost = count("nest_tiny")
    assert cost.params == 17_057_608
    assert round(cost.macs / 1e9, 3) == 5.807
    assert (cost.input_size, cost.dims) == ((3, 224, 224), (96, 192, 384))


def test_nothing_is_allocated() -> None:
    with MetaOnly():
        assert count("hivit_large").params > 266e6


def test_a_given_model_stays_as_it_is() -> None:
    model = create_model("hvt_ti_4", num_classes=3)
    before = [parameter.clone() for parameter in model.parameters()]
    assert count(model) == count("hvt_ti_4", num_classes=3)
    assert model.training
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.requires_grad
        assert torch.equal(parameter, old)


def test_a_size_is_built_for_where_positions_depend_on_it() -> None:
    ours = count("hvt_s_4", 384).params - count("hvt_s_4").params
    lengths = [576 - 196, 287 - 97, 143 - 48, 71 - 23, 35 - 11]  # after each pooling
    assert ours == sum(lengths) * 384
    timms = (
        count("timm/deit_tiny_patch16_224", 32).params - count("timm/deit_tiny_patch16_224").params
    )
    assert timms == (4 - 196) * 192
    assert count("timm/resnet18", 32).params == count("timm/resnet18").params


def test_channels_are_counted() -> None:
    more = count("nest_tiny", in_chans=5).macs - count("nest_tiny").macs
    assert more == 2 * 4 * 4 * 96 * 56 * 56


def test_what_cannot_be_counted_is_said() -> None:
    with pytest.raises(TypeError, match="Conv2d does not say what size it is for: give img_size"):
        count(nn.Conv2d(3, 8, 3))
    with pytest.raises(TypeError, match="a built model takes no dims: give its name instead"):
        count(nn.Conv2d(3, 8, 3), 32, dims=3)


def test_levels_are_what_an_image_meets() -> None:
    assert levels("nest_tiny") == [
        Level(dim=96, depth=2, heads=3, windows=16, side=14),
        Level(dim=192, depth=2, heads=6, windows=4, side=14),
        Level(dim=384, depth=8, heads=12, windows=1, side=14),
    ]
    assert levels("hivit_tiny")[0] == Level(dim=96, depth=2, heads=0, windows=0, side=0)
    assert [(level.windows, level.side) for level in levels("regionvit_ti", 448)] == [
        (256, 7), (64, 7), (16, 7), (4, 7),
    ]  # fmt: skip


def test_peak_memory_is_what_lives_at_once() -> None:
    def run() -> None:
        first = torch.empty(1000, 1000)
        second = torch.empty(500, 1000)
        del first
        torch.empty(200, 1000)
        del second

    assert peak_memory(run) == 4 * 1500 * 1000
