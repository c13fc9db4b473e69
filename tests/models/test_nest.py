from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.reference import Fixture, Reading, check_parity
from ziggurat.layers import windows
from ziggurat.models.nest import VARIANTS, Aggregate, Level, NesT, Pool
from ziggurat.models.weights import load_checkpoint


def as_is(x: Tensor) -> Tensor:
    return x


def nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def per_block(x: Tensor) -> Tensor:
    """(B * blocks, N, C) -> (B, blocks, N, C) for the fixtures' two images."""
    return x.unflatten(0, (2, -1))


def blocks_of(size: int) -> Callable[[Any], Tensor]:
    """(B, H, W, C) in the official layout: (B, blocks, tokens, C)."""

    def read(x: Tensor) -> Tensor:
        return per_block(windows.split(x, size, size))

    return read


def flax_readings(model: NesT) -> dict[str, Reading]:
    size = model.stages[0].block
    readings: dict[str, Reading] = {
        "PatchEmbedding_0": ("patch_embed", lambda x: x.permute(0, 2, 3, 1)),
        "LayerNorm_0": ("norm", blocks_of(size)),
    }
    number = 0
    for i in range(len(model.stages)):
        if i:
            readings[f"ConvPool_{i - 1}"] = (f"stages.{i}.down", blocks_of(size))
        readings[f"PositionEmbedding_{i}"] = (f">stages.{i}.blocks.0", per_block)
        for j in range(len(model.stage(i).blocks)):
            readings[f"EncoderNDBlock_{number}"] = (f"stages.{i}.blocks.{j}", per_block)
            number += 1
    return readings


@pytest.mark.parametrize(
    "fixture",
    ["flax_nest_tiny_s16_32", "flax_nest_tiny_s16_32_stress", "flax_nest_tiny_s196_224"],
)
def test_the_official_flax_models_are_reproduced(fixture: str) -> None:
    reference = Fixture(fixture)
    name = "nest_tiny_cifar" if fixture.startswith("flax_nest_tiny_s16") else "nest_tiny"
    model = NesT(**VARIANTS[name])
    load_checkpoint(model, reference.state)
    check_parity(reference, model, flax_readings(model))


def timm_readings() -> dict[str, Reading]:
    readings: dict[str, Reading] = {
        "patch_embed": ("patch_embed", as_is),
        "norm": ("norm", as_is),
        "pooled": ("head_drop", as_is),
    }
    for i in range(3):
        readings[f"level{i}"] = (f"stages.{i}", nchw)
        if i:
            readings[f"level{i}.pool"] = (f"stages.{i}.down", nchw)
    return readings


@pytest.mark.parametrize(
    ("fixture", "pad_type"),
    [
        ("timm_nest_tiny_jx", "same"),
        ("timm_nest_tiny_jx_stress", "same"),
        ("timm_nest_tiny", ""),
        ("timm_nest_base", ""),
    ],
)
def test_timms_weights_give_timms_numbers_with_erf_gelu(fixture: str, pad_type: str) -> None:
    reference = Fixture(fixture)
    name = "nest_base" if "base" in fixture else "nest_tiny"
    model = NesT(**VARIANTS[name], act_layer="gelu", pad_type=pad_type)
    load_checkpoint(model, reference.state)
    check_parity(reference, model, timm_readings())


@pytest.mark.parametrize("fixture", ["timm_nest_tiny_jx", "timm_nest_tiny_jx_stress"])
def test_timms_jx_weights_give_the_official_numbers_as_they_are(fixture: str) -> None:
    reference = Fixture(fixture)
    model = NesT(**VARIANTS["nest_tiny"]).double().eval()
    load_checkpoint(model, reference.state)
    with torch.no_grad():
        found = model(reference.images.double()).numpy()
    expected = reference.outputs["logits_official_flax_fp64"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def tiny(**options: Any) -> NesT:
    settings: dict[str, Any] = dict(
        img_size=32, patch_size=1, dims=8, heads=2, depths=(1, 1), num_classes=3
    )
    return NesT(**(settings | options))


def test_a_block_does_not_see_its_neighbours() -> None:
    level = tiny(img_size=8).stage(0).eval()
    assert isinstance(level, Level)
    x = torch.randn(1, 8, 8, 8)
    y = x.clone()
    y[:, :4, :4] += torch.randn(8)
    changed = (level(x) != level(y)).any(-1)[0]
    assert changed[:4, :4].all()
    assert changed.sum() == 4 * 4


def test_blocks_at_the_border_are_smaller_and_see_nothing_else() -> None:
    level = tiny(img_size=8).stage(0).eval().double()
    x = torch.randn(1, 6, 7, 8, dtype=torch.float64)
    found = level(x)
    with_pos = x + level.pos(6, 7)
    corner = with_pos[:, 4:, 4:].reshape(1, 2 * 3, 8)  # the last block, cut by hand
    for block in level.blocks:
        corner = block(corner)
    torch.testing.assert_close(found[:, 4:, 4:], corner.reshape(1, 2, 3, 8))


@pytest.mark.parametrize("side", [1, 2, 3, 6, 7])
def test_pooling_pads_as_tensorflow_does(side: int) -> None:
    x = torch.randn(1, side, side, 4)
    total = max((-(-side // 2) - 1) * 2 + 3 - side, 0)
    before = total // 2
    padded = nn.functional.pad(
        nchw(x), (before, total - before, before, total - before), value=-torch.inf
    )
    expected = nn.functional.max_pool2d(padded, 3, 2)
    assert torch.equal(nchw(Pool("max", 3, same=True)(x)), expected)


FIGURES = [  # the x axes of Figures 5 and A1
    "conv3-norm-max3", "conv3s2", "conv3s2-norm", "avg3", "conv3-norm-avg3", "merge", "subsample",
    "query", "max3-conv3-norm", "max3", "max2", "avg2", "conv1-norm-max3", "conv3-max3",
]  # fmt: skip


@pytest.mark.parametrize("plane", ["image", "block"])
@pytest.mark.parametrize("steps", FIGURES)
@pytest.mark.parametrize("dims", [8, (8, 16)], ids=["cifar", "imagenet"])
def test_every_aggregation_of_figures_5_and_a1_trains(steps: str, plane: str, dims: Any) -> None:
    model = tiny(aggregate=steps, plane=plane, dims=dims, img_size=16)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model(torch.randn(1, 3, 13, 21)).isfinite().all()


def test_neighbouring_groups_meet_on_the_image_plane_only() -> None:
    torch.manual_seed(0)
    reach = {}
    for plane in ("image", "block"):
        down = Aggregate("conv3-norm-max3", plane, 4, 4, heads=1, block=2, same=True).eval()
        x = torch.randn(1, 8, 8, 4)
        y = x.clone()
        y[:, :, 4] += torch.randn(4)  # the first column of the right-hand group
        reach[plane] = (down(x) != down(y)).any(-1)[0, :, :2].any()  # what is left of the border
    assert reach["image"]
    assert not reach["block"]


def test_an_aggregation_must_halve_the_map_once() -> None:
    for steps in ("conv3-norm", "max3-avg3"):
        with pytest.raises(ValueError, match="halves the map exactly once"):
            tiny(aggregate=steps)
    with pytest.raises(ValueError, match=r"a step of aggregate is one of .* got 'max4'"):
        tiny(aggregate="max4")
    with pytest.raises(ValueError, match="plane is one of"):
        tiny(plane="picture")


@pytest.mark.parametrize(
    ("word", "depths", "side"),
    [
        (1, (6, 6), 16), (1, (4,) * 3, 8), (1, (3,) * 4, 4), (1, (2,) * 5, 2),
        (2, (6, 6), 8), (2, (4,) * 3, 4), (2, (3,) * 4, 2), (2, (2,) * 5, 1),
    ],
)  # fmt: skip
def test_hierarchies_of_figure_6_have_its_sequence_lengths(
    word: int, depths: tuple[int, ...], side: int
) -> None:
    with torch.device("meta"):
        model = NesT(**{**VARIANTS["nest_tiny_cifar"], "patch_size": word, "depths": depths})
        assert model(torch.empty(1, 3, 32, 32)).shape == (1, 10)
    assert model.stages[0].block == side
    last = model.stage(-1)
    assert isinstance(last, Level)
    assert last.pos.table.shape[1:3] == (side, side)  # one block at the top


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 12, 24, 48, 96])
def test_any_number_of_heads_of_table_a3_builds(heads: int) -> None:
    with torch.device("meta"):
        options = VARIANTS["nest_base_cifar"] | dict(heads=heads, attention="multi_head")
        model = NesT(**options)
        model(torch.empty(1, 3, 32, 32))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 102.0


@pytest.mark.parametrize(
    ("name", "options", "params", "gmacs"),
    [
        ("nest_tiny", {}, 17.058, 5.807),
        ("nest_small", {}, 38.351, 10.323),
        ("nest_base", {}, 67.723, 17.926),
        ("nest_tiny_cifar", {}, 6.007, None),
        ("nest_small_cifar", {}, 22.850, None),
        ("nest_base_cifar", {}, 89.050, None),
        ("nest_tiny_cifar", dict(attention="multi_head"), 6.60, None),
        ("nest_small_cifar", dict(attention="multi_head"), 25.81, None),
    ],
)
def test_parameters_and_macs_are_the_official_codes(
    name: str, options: dict[str, Any], params: float, gmacs: float | None
) -> None:
    with torch.device("meta"):
        model = NesT(**VARIANTS[name] | options).eval()
        images = torch.empty(1, 3, *model.img_size)
    digits = len(str(params).split(".")[1])
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, digits) == params
    if gmacs is not None:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(images)
        assert round(counter.get_total_flops() / 2e9, 3) == gmacs


def test_multi_query_attention_shares_one_key_and_value() -> None:
    torch.manual_seed(0)
    one = tiny(attention="multi_query", depths=(1,)).double().eval()
    many = tiny(attention="multi_head", depths=(1,)).double().eval()
    state = one.state_dict()
    for last in ("weight", "bias"):
        name = f"stages.0.blocks.0.attn.qkv.{last}"
        q, k, v = state[name].split([8, 4, 4])
        state[name] = torch.cat([q, k, k, v, v])
    many.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(one(x), many(x))
