from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models import group_parameters
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.reference import Fixture, Reading, check_parity
from ziggurat.layers.attention import Attention
from ziggurat.models.hivit import VARIANTS, HiViT, Units, WindowBlock
from ziggurat.models.weights import load_checkpoint


def tokens(units: Units) -> Tensor:
    return units.tokens


def main_tokens(units: Units) -> Tensor:
    return units.tokens.flatten(1, 3)


def as_is(x: Tensor) -> Tensor:
    return x


def readings(model: HiViT) -> dict[str, Reading]:
    first = len(model.stages[0].blocks)
    second = first + 1 + len(model.stages[1].blocks)
    return {
        "patch_embed": ("patch_embed", as_is),
        f"blocks.{first}(merge input)": ("stages.0", tokens),
        f"blocks.{first}(merge output)": ("stages.1.down", as_is),
        f"blocks.{second}(merge input)": ("stages.1", tokens),
        f"blocks.{second}(merge output)": ("stages.2.down", as_is),
        "main_input(after APE)": (">stages.2.blocks.0", as_is),
        "main.0.attn": ("stages.2.blocks.0.attn", as_is),
        "main_output": ("stages.2", main_tokens),
        "fc_norm(pooled)": ("norm", as_is),
    }


@pytest.mark.parametrize(
    "fixture", ["hivit_tiny", "hivit_tiny_stress", "hivit_base", "hivit_base_finetune"]
)
def test_the_official_classifiers_are_reproduced(fixture: str) -> None:
    reference = Fixture(fixture)
    model = HiViT(**VARIANTS["hivit_base" if "base" in fixture else "hivit_tiny"])
    load_checkpoint(model, reference.state)
    check_parity(reference, model, readings(model))


def tiny(**options: Any) -> HiViT:
    settings: dict[str, Any] = dict(
        img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2), num_classes=3
    )
    return HiViT(**(settings | options))


def test_shallow_stages_do_not_look_beyond_their_unit() -> None:
    model = tiny().eval()
    x = torch.randn(1, 3, 64, 64)
    y = x.clone()
    y[..., 16:32, 32:48] += 1
    states = []
    for images in (x, y):
        units = model.embed(images)
        states.append(model.stages[1](model.stages[0](units)).tokens)
    changed = (states[0] != states[1]).flatten(2).any(-1)[0]
    assert changed.nonzero().tolist() == [[1 * 4 + 2]]


@pytest.mark.parametrize("rpe", [True, False])
def test_visible_units_get_what_attention_among_them_alone_gives(rpe: bool) -> None:
    model = tiny(rpe=rpe).double().eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    mask = torch.rand(2, 16).argsort(1) >= 5  # five visible units in each
    found = model.forward_features(x, mask.reshape(2, 4, 4))
    for image, hidden, tokens in zip(x, mask, found, strict=True):
        # The full encoder, every key of a hidden unit forbidden.
        units = model.stages[1](model.stages[0](model.embed(image[None])))
        main = model.stages[2]
        t = main.down(units.tokens).flatten(1, 3) + units.pos.flatten(1, 2)
        forbid = torch.zeros(16, dtype=torch.float64).masked_fill(hidden, -torch.inf)
        for block in main.blocks:
            bias = forbid if block.attn.bias is None else block.attn.bias(4, 4)[None] + forbid
            t = t + Attention.forward(block.attn, block.norm1(t), bias.expand(1, 2, 16, 16))
            t = t + block.mlp(block.norm2(t))
        torch.testing.assert_close(tokens, t[0, ~hidden])


def test_pixels_of_hidden_units_do_not_matter() -> None:
    model = tiny().eval()
    x = torch.randn(1, 3, 64, 64)
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 1, 2] = mask[0, 3, 0] = False
    y = torch.full_like(x, torch.nan)
    for row, col in ((1, 2), (3, 0)):
        cut = (..., slice(16 * row, 16 * row + 16), slice(16 * col, 16 * col + 16))
        y[cut] = x[cut]
    assert torch.equal(model(x, mask), model(y, mask))


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    model = tiny().double().eval()
    x = torch.randn(2, 3, 64, 48, dtype=torch.float64)
    torch.testing.assert_close(model(x, torch.zeros(2, 4, 3)), model(x))


def test_masks_that_cannot_be_are_named() -> None:
    model = tiny()
    x = torch.randn(2, 3, 64, 64)
    with pytest.raises(ValueError, match="at least one unit of each image visible"):
        model(x, torch.ones(2, 16, dtype=torch.bool))
    uneven = torch.zeros(2, 16, dtype=torch.bool)
    uneven[0, 0] = True
    with pytest.raises(ValueError, match=r"equally many units, got \[15, 16\]"):
        model(x, uneven)
    with pytest.raises(ValueError, match=r"a mask for these images is \(2, 4, 4\).*got \(2, 9\)"):
        model(x, torch.zeros(2, 9))
    with pytest.raises(ValueError, match='only with shallow="mlp"'):
        tiny(shallow="window", dims=(32, 64, 128))(x, uneven.fill_(False))


@pytest.mark.parametrize(
    ("options", "params", "gmacs"),
    [
        (VARIANTS["hivit_tiny"], 19.182, 4.587),
        (VARIANTS["hivit_small"], 37.526, 9.044),
        (VARIANTS["hivit_base"], 66.419, 15.810),
        (VARIANTS["hivit_large"], 266.763, 63.656),
    ],
)
def test_parameters_and_macs_are_the_official_codes(
    options: dict[str, Any], params: float, gmacs: float
) -> None:
    with torch.device("meta"):
        model = HiViT(**options).eval()
        images = torch.empty(1, 3, 224, 224)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == params
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert round(counter.get_total_flops() / 2e9, 3) == gmacs


@pytest.mark.parametrize(
    "options",
    [
        dict(dims=(32,), depths=(2,), rpe=False),
        dict(dims=(32,), depths=(2,)),
        dict(dims=(32, 64, 128), shallow="window", depths=(2, 2, 1), ape=False),
        dict(depths=(0, 0, 3)),
        dict(dims=(16, 32), depths=(1, 2)),
    ],
    ids=["a", "b", "c'", "table 9", "two stages"],
)
def test_the_steps_between_vit_and_swin_train_at_any_size(options: dict[str, Any]) -> None:
    model = tiny(**options)
    for height, width in ((64, 64), (49, 80)):
        model.zero_grad()
        model(torch.randn(2, 3, height, width)).square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def window_blocks(shift: int) -> list[SwinTransformerBlock]:
    """Ours and timm's, with the same weights, far from flat."""
    kinds = (WindowBlock, SwinTransformerBlock)
    ours, timms = (kind(32, (14, 14), 2, shift_size=shift, dynamic_mask=True) for kind in kinds)
    torch.manual_seed(0)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    timms.load_state_dict(ours.state_dict())
    return [ours.eval(), timms.eval()]


@pytest.mark.parametrize("shift", [0, 3])
def test_windows_are_timms_where_they_divide_the_map(shift: int) -> None:
    ours, timms = window_blocks(shift)
    x = torch.randn(2, 28, 14, 32)
    assert torch.equal(ours(x), timms(x))


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("size", [(16, 16), (8, 13), (3, 20)])
def test_a_window_at_the_border_holds_the_maps_tokens_alone(
    shift: int, size: tuple[int, int]
) -> None:
    """Against each window by itself, with its own part of the bias."""
    block = window_blocks(shift)[0].double()
    x = torch.randn(1, *size, 32, dtype=torch.float64)
    normed, expected = block.norm1(x)[0], torch.zeros_like(x)[0]
    bias = block.attn._get_rel_pos_bias()[0].view(2, 7, 7, 7, 7)
    starts = [sorted({0, *range(shift, side, 7)}) for side in size]
    spans = [list(zip(s, [*s[1:], n], strict=True)) for s, n in zip(starts, size, strict=True)]
    for top, bottom in spans[0]:
        for left, right in spans[1]:
            h, w = bottom - top, right - left
            qkv = block.attn.qkv(normed[top:bottom, left:right].reshape(h * w, 32))
            q, k, v = (t.unflatten(1, (2, -1)).transpose(0, 1) for t in qkv.chunk(3, 1))
            logits = q @ k.mT / 4 + bias[:, :h, :w, :h, :w].reshape(2, h * w, h * w)
            found = block.attn.proj((logits.softmax(-1) @ v).transpose(0, 1).flatten(1))
            expected[top:bottom, left:right] = found.unflatten(0, (h, w))
    torch.testing.assert_close(block._attn(block.norm1(x))[0], expected)


def test_window_heads_are_32_wide() -> None:
    with pytest.raises(ValueError, match=r"take dims from 32 up, got \(16, 32, 64\)"):
        tiny(shallow="window", dims=(16, 32, 64))


def test_step_a_is_timms_vit_without_its_class_token() -> None:
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, embed_dim=32, depth=2, num_heads=2, class_token=False,
        global_pool="avg", num_classes=3, fc_norm=True, norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )  # fmt: skip
    model = tiny(dims=(32,), depths=(2,), rpe=False).double().eval()
    state = vit.state_dict()
    state["absolute_pos_embed"] = state.pop("pos_embed")
    load_checkpoint(model, state)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(model(x), vit.double().eval()(x))


def test_merges_decay_with_the_block_before_them_as_in_the_official_fine_tuning() -> None:
    with torch.device("meta"):
        model = HiViT(**VARIANTS["hivit_base"])
    layers = group_parameters(model, model.group_matcher(), reverse=True)
    assert max(layers.values()) == 29
    assert layers["pos.table"] == layers["patch_embed.proj.weight"] == 0
    assert layers["stages.0.blocks.3.mlp.fc1.weight"] == layers["stages.1.down.norm.weight"] == 4
    assert layers["stages.2.down.reduction.weight"] == 8
    assert layers["stages.2.blocks.19.attn.proj.weight"] == 28


def test_smaller_units_for_smaller_images() -> None:
    options: dict[str, Any] = dict(dims=(8, 16, 32), heads=2, depths=(1, 1, 1), num_classes=0)
    model = HiViT(img_size=32, unit=8, **options).eval()
    assert model.strides == (2, 4, 8)
    maps = model.forward_stages(torch.randn(1, 3, 32, 27)).maps
    assert [tuple(m.shape[2:]) for m in maps] == [(16, 14), (8, 7), (4, 4)]
    assert model.patch_embed.proj.weight.shape == (8, 3, 2, 2)
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[:, 1:] = True
    assert model.forward_features(torch.randn(1, 3, 32, 32), mask).shape == (1, 4, 32)
    with pytest.raises(ValueError, match="multiple of 4 pixels, got 6"):
        HiViT(unit=6, **options)
