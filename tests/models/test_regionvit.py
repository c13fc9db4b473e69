import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.reference import Fixture, Reading, check_parity, run_catching, slice64
from ziggurat.models.regionvit import R2L, VARIANTS, LocalBias, Regions, RegionViT
from ziggurat.models.weights import load_checkpoint

TINY: dict[str, Any] = dict(dims=(8, 16, 32, 64), depths=(1, 2, 1, 2), windows=2, head_dim=8)
TINY |= dict(img_size=64, num_classes=5)


def tiny(**options: Any) -> RegionViT:
    """In float64, with weights that make attention far from flat and no norm trivial."""
    model = RegionViT(**{**TINY, **options}).double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def photo(height: int, width: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(height * 1000 + width)
    return torch.randn(batch, 3, height, width, dtype=torch.float64, generator=generator)


# The official code's numbers.


def nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def readings(stages: range = range(4)) -> dict[str, Reading]:
    found: dict[str, Reading] = {
        "patch_embed(local)": ("local_embed", nchw),
        "cls_token(regional)": ("regional_embed", nchw),
        "norm": ("norm", lambda x: x.flatten(1, 2)),
    }
    for i in stages:
        found[f"stage{i}.block1"] = (f"stages.{i}.blocks.0", lambda groups: groups[0])
        found[f"stage{i}.regional"] = (f"stages.{i}", lambda tokens: nchw(tokens.regional))
        found[f"stage{i}.local"] = (f"stages.{i}", lambda tokens: nchw(tokens.local))
        if i:
            down = f"stages.{i}.down"
            found[f"stage{i}.downsample.regional"] = (down, lambda tokens: nchw(tokens.regional))
            found[f"stage{i}.downsample.local"] = (down, lambda tokens: nchw(tokens.local))
    return found


@pytest.mark.parametrize(
    ("fixture", "name"),
    [
        ("regionvit_ti", "regionvit_ti"),
        ("regionvit_ti_stress", "regionvit_ti"),
        ("regionvit_s", "regionvit_s"),
        ("regionvit_b", "regionvit_b"),
        ("regionvit_ti_plus_w7last", "regionvit_ti_plus"),
    ],
)
def test_the_official_models_are_reproduced(fixture: str, name: str) -> None:
    reference = Fixture(fixture)
    model = RegionViT(**VARIANTS[name])
    load_checkpoint(model, reference.state)
    check_parity(reference, model, readings())


@pytest.mark.parametrize(
    ("fixture", "name", "peg"),
    [
        ("regionvit_ti_plus", "regionvit_ti_plus", False),
        ("regionvit_s_plus_peg", "regionvit_s_plus", True),
    ],
)
def test_a_last_window_of_14_is_the_official_one_up_to_where_it_attends_padding(
    fixture: str, name: str, peg: bool
) -> None:
    reference = Fixture(fixture)
    model = RegionViT(**{**VARIANTS[name], "windows": 14}, peg=peg).eval()
    load_checkpoint(model, reference.state)
    found, caught = run_catching(model, reference.images, readings(range(3)))
    assert reference.about["features"].keys() - caught.keys() == {
        "stage3.block1", "stage3.regional", "stage3.local",
        "stage3.downsample.regional", "stage3.downsample.local",
    }  # fmt: skip
    for feature in caught.keys() - {"norm"}:
        expected = reference.outputs[f"slice.{feature}"]
        np.testing.assert_allclose(
            slice64(caught[feature]), expected, rtol=0, atol=1e-5, err_msg=feature
        )
    difference = np.abs(found.numpy() - reference.outputs[reference.about["output"]]).max()
    assert difference > 1e-3


def test_official_checkpoints_may_lack_the_second_name_and_ours_stay_as_they_are() -> None:
    reference = Fixture("regionvit_s_plus_peg")
    with torch.device("meta"):
        model = RegionViT(**{**VARIANTS["regionvit_s_plus"], "windows": 14}, peg=True)
    every = model.convert(reference.state)
    once = model.convert({n: v for n, v in reference.state.items() if ".proj_cls." not in n})
    assert every.keys() == once.keys() == model.state_dict().keys()
    assert model.convert(every) is every


# The paper's counts.


def counted(size: int | tuple[int, int] = 224, **options: Any) -> tuple[float, float]:
    """Millions of parameters, billions of multiply-adds of one image."""
    height, width = (size, size) if isinstance(size, int) else size
    with torch.device("meta"):
        model = RegionViT(**options, img_size=size)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, height, width))
    return sum(p.numel() for p in model.parameters()) / 1e6, counter.get_total_flops() / 2e9


@pytest.mark.parametrize(
    ("name", "params", "flops", "printed"),
    [
        ("regionvit_ti", 13.843, 2.415, (13.8, 2.4)),
        ("regionvit_s", 30.587, 5.339, (30.6, 5.3)),
        ("regionvit_m", 41.216, 7.410, (41.2, 7.4)),
        ("regionvit_b", 72.747, 13.046, (72.7, 13.0)),
        ("regionvit_ti_plus", 14.337, 2.671, (14.3, 2.7)),
        ("regionvit_s_plus", 31.328, 5.695, (31.3, 5.7)),
        ("regionvit_m_plus", 41.997, 7.856, (42.0, 7.9)),
        ("regionvit_b_plus", 73.789, 13.585, (73.8, 13.6)),
    ],
)
def test_table_3_is_met_by_the_variants(
    name: str, params: float, flops: float, printed: tuple[float, float]
) -> None:
    found = counted(**VARIANTS[name])
    assert found == pytest.approx((params, flops), abs=5.1e-4)
    assert (round(found[0], 1), round(found[1], 1)) == printed


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (dict(downsample="conv2"), (32.1, 5.5)),
        (dict(downsample="conv3"), (34.1, 5.7)),
        (dict(absolute=False, relative=False), (30.6, 5.3)),
        (dict(absolute=True, relative=False), (30.9, 5.3)),
        (dict(absolute=True, relative=True), (30.9, 5.3)),
    ],
)
def test_tables_9_and_10_are_met_by_the_options(
    options: dict[str, Any], printed: tuple[float, float]
) -> None:
    params, flops = counted(**VARIANTS["regionvit_s"], **options)
    assert (round(params, 1), round(flops, 1)) == printed


@pytest.mark.parametrize(
    ("name", "windows", "params", "flops"),
    [
        ("regionvit_m", 12, 41.738, 22.54),
        ("regionvit_b", 12, 73.443, 39.20),
        ("regionvit_b_plus", (24, 24, 24, 12), 76.514, 45.59),
    ],
)
def test_fine_tuning_at_384_costs_what_the_official_code_does(
    name: str, windows: int | tuple[int, ...], params: float, flops: float
) -> None:
    found = counted(384, **{**VARIANTS[name], "windows": windows})
    assert found == pytest.approx((params, flops), abs=5.1e-3)


def test_the_official_14_in_all_stages_has_the_official_parameters() -> None:
    for name, peg, params in (
        ("regionvit_s_plus", False, 31.355),
        ("regionvit_s_plus", True, 31.368),
        ("regionvit_b_plus", True, 73.842),
    ):
        found, _ = counted(**{**VARIANTS[name], "windows": 14}, peg=peg)
        assert found == pytest.approx(params, abs=5.1e-4)


def test_heads_are_32_channels_wide_and_drop_path_grows_to_its_rate() -> None:
    with torch.device("meta"):
        model = RegionViT(**VARIANTS["regionvit_s"], drop_path_rate=0.13)
    blocks = [block for stage in model.stages for block in stage.blocks]
    assert [stage.blocks[0].attn.heads for stage in model.stages] == [3, 6, 12, 24]
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for block in blocks]
    assert rates == pytest.approx([0.01 * i for i in range(14)])
    assert model.no_weight_decay() == set()


# Any size, against Eq. 2 and 3 written out window by window.


def attention(block: R2L, x: Tensor, bias: Tensor | None) -> Tensor:
    heads = block.attn.heads
    q, k, v = (t.unflatten(1, (heads, -1)).transpose(0, 1) for t in block.attn.qkv(x).chunk(3, 1))
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    logits = logits if bias is None else logits + bias
    return block.attn.proj((logits.softmax(-1) @ v).transpose(0, 1).flatten(1))


def bias_of(table: Tensor, side: int, places: list[tuple[int, int]]) -> Tensor:
    """Eq. 3 pair by pair; row and column 0 are the regional token's."""
    if table.shape[1] != 2 * side - 1:
        table = F.interpolate(table[None], size=2 * [2 * side - 1], mode="bicubic", antialias=True)[
            0
        ]
    bias = table.new_zeros(table.shape[0], 1 + len(places), 1 + len(places))
    for i, (y, x) in enumerate(places):
        for j, (v, u) in enumerate(places):
            bias[:, 1 + i, 1 + j] = table[:, side - 1 + y - v, side - 1 + x - u]
    return bias


def window_by_window(model: RegionViT, image: Tensor, windows: list[int]) -> list[Tensor]:
    """Every stage's local map and the last regional map, for one image, without any padding."""
    regional, local = (x[0] for x in model.embed(image[None]))
    maps = []
    for i, (stage, window) in enumerate(zip(model.stages, windows, strict=True)):
        if i:
            norm, _, conv = stage.down.children()
            regional, local = (
                F.conv2d(
                    F.gelu(norm(x)).permute(2, 0, 1)[None], conv.weight, conv.bias,
                    stride=2, padding=1, groups=conv.groups,
                )[0].permute(1, 2, 0)
                for x in (regional, local)
            )  # fmt: skip
        H, W, C = local.shape
        side = min(windows[0], max(window, H, W))
        for block in stage.blocks:
            flat = regional.reshape(-1, C)
            regional = (flat + attention(block, block.norm0(flat), None)).view(regional.shape)
            new_regional, new_local = torch.empty_like(regional), torch.full_like(local, math.nan)
            for r, c in np.ndindex(regional.shape[:2]):
                rows = range(r * side, min(H, (r + 1) * side))
                cols = range(c * side, min(W, (c + 1) * side))
                places = [(y, x) for y in rows for x in cols]
                x = torch.stack([regional[r, c], *(local[place] for place in places)])
                bias = bias_of(block.attn.bias.table, side, places)
                x = x + attention(block, block.norm1(x), bias)
                x = x + block.mlp(block.norm2(x))
                new_regional[r, c] = x[0]
                for place, token in zip(places, x[1:], strict=True):
                    new_local[place] = token
            regional, local = new_regional, new_local
        maps.append(local.permute(2, 0, 1))
    return [*maps, model.norm(regional).permute(2, 0, 1)]


def check_against_loop(model: RegionViT, windows: list[int], height: int, width: int) -> None:
    images = photo(height, width, batch=2)
    with torch.no_grad():
        last, maps = model.forward_intermediates(images)
        alone = [window_by_window(model, image, windows) for image in images]
    for found, expected in zip([*maps, last], zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-9)


@settings(max_examples=8, deadline=None)
@given(height=st.integers(1, 72), width=st.integers(1, 72), side=st.integers(1, 4))
def test_any_size_gives_what_a_loop_over_windows_gives(height: int, width: int, side: int) -> None:
    check_against_loop(tiny(windows=side), [side] * 4, height, width)


@pytest.mark.parametrize("size", [(64, 64), (60, 33), (72, 64), (32, 140)])
def test_a_smaller_last_window_is_used_where_the_map_fits_and_grows_with_it_elsewhere(
    size: tuple[int, int],
) -> None:
    check_against_loop(tiny(windows=(4, 4, 4, 2)), [4, 4, 4, 2], *size)


@pytest.mark.parametrize("tokenize", ["3conv", "1conv", "linear"])
@pytest.mark.parametrize("size", [(32, 32), (97, 131), (240, 232), (448, 224), (225, 226)])
def test_maps_are_whole_at_any_size(tokenize: str, size: tuple[int, int]) -> None:
    with torch.device("meta"):
        model = RegionViT(**{**VARIANTS["regionvit_ti"], "tokenize": tokenize})
        found, maps = model.forward_intermediates(torch.empty(1, 3, *size))
    for one, stride in zip(maps, model.strides, strict=True):
        assert one.shape[2:] == (-(-size[0] // stride), -(-size[1] // stride))
    assert found.shape[2:] == (-(-size[0] // 224), -(-size[1] // 224))


def test_a_regional_token_is_its_patch_with_zeros_beyond_the_image() -> None:
    model = tiny(windows=3)  # patches of 12
    images = photo(31, 40)
    regional = model.embed(images).regional
    assert regional is not None
    assert regional.shape[1:3] == (3, 4)
    conv = model.regional_embed
    assert isinstance(conv, nn.Conv2d)
    whole = torch.zeros(1, 3, 36, 48, dtype=torch.float64)
    whole[..., :31, :40] = images
    for r, c in np.ndindex(3, 4):
        patch = whole[0, :, 12 * r : 12 * r + 12, 12 * c : 12 * c + 12]
        expected = (conv.weight * patch).sum((1, 2, 3)) + conv.bias
        torch.testing.assert_close(regional[0, r, c], expected)


@pytest.mark.parametrize("tokenize", ["1conv", "linear"])
def test_a_local_token_sees_zeros_beyond_the_image(tokenize: str) -> None:
    model = tiny(tokenize=tokenize)
    images = photo(29, 34)
    whole = F.pad(images, (0, 30, 0, 27))
    found, expected = model.embed(images).local, model.embed(whole).local
    torch.testing.assert_close(found, expected[:, :8, :9])


def test_only_tokens_of_the_image_are_computed() -> None:
    model = tiny(windows=3)
    seen: list[int] = []
    for stage in model.stages:
        for block in stage.blocks:
            block.mlp.register_forward_pre_hook(
                lambda _, args: seen.append(args[0].shape[:2].numel())
            )
    _, maps = model.forward_intermediates(photo(70, 83))
    regions = [math.ceil(m.shape[2] / 3) * math.ceil(m.shape[3] / 3) for m in maps]
    tokens = [m.shape[2:].numel() + r for m, r in zip(maps, regions, strict=True)]
    assert sum(seen) == sum(n * d for n, d in zip(tokens, TINY["depths"], strict=True))


def test_moving_the_image_by_whole_regions_moves_the_maps_and_keeps_the_class() -> None:
    model = tiny(tokenize="linear", downsample="conv2")  # a region of the last stage is 64 pixels
    images = photo(128, 192)
    here = model.forward_stages(images)
    there = model.forward_stages(images.roll((64, 128), (2, 3)))
    torch.testing.assert_close(here.pooled, there.pooled)
    for a, b, stride in zip(here.maps, there.maps, model.strides, strict=True):
        torch.testing.assert_close(a.roll((64 // stride, 128 // stride), (2, 3)), b)


def test_only_regional_tokens_carry_news_from_region_to_region() -> None:
    images = photo(64, 64)
    changed = images.clone()
    changed[..., 8:16, 16:24] += 1  # one region of the first stage
    for regional, far in (("none", False), ("computed", True), ("learnable", True)):
        model = tiny(tokenize="linear", regional=regional, depths=(2, 1, 1, 1))
        before, after = (model.forward_stages(x).maps[0] for x in (images, changed))
        reached = (before != after).any(1)[0]
        assert reached[2:4, 4:6].all()
        assert reached.all() if far else reached.sum() == 4


def test_no_mask_is_made_again_in_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(windows=3)
    bias = model.stages[0].blocks[0].attn.bias
    assert isinstance(bias, LocalBias)
    used: list[list[Tensor]] = []
    masks = bias.masks

    def seen(regions: Regions) -> list[Tensor]:
        used.append(masks(regions))
        return used[-1]

    monkeypatch.setattr(bias, "masks", seen)
    with torch.inference_mode():
        model(photo(64, 64))  # 16 x 16: windows of 3, and of 1 at the border
        model(photo(64, 112))  # the same windows, more of them
    assert [mask.shape[-1] for mask in used[0]] == [1 + n for n in (9, 3, 3, 1)]
    assert all(a is b for a, b in zip(*used, strict=True))
    for mask in used[0]:
        assert not mask[..., 0].any()
        assert not mask[..., 0, :].any()


# Other windows, options and mistakes.


def test_a_checkpoint_for_windows_of_7_loads_into_one_for_12() -> None:
    options = {**TINY, "windows": 7, "img_size": 224}
    small = RegionViT(**options)
    large = RegionViT(**{**options, "windows": 12, "img_size": 384})
    done = load_checkpoint(large, small.state_dict())
    tables = [name for name in small.state_dict() if name.endswith("bias.table")]
    assert sorted(done.resized) == sorted(["regional_embed.weight", *tables])
    table, other = small.get_parameter(tables[0]), large.get_parameter(tables[0])
    assert other.shape[1:] == (23, 23)
    torch.testing.assert_close(other[:, 11, 11], table[:, 6, 6], rtol=0, atol=0.01)
    assert large(torch.randn(1, 3, 384, 384)).isfinite().all()


def test_a_resized_kernel_gives_an_enlarged_image_the_same_token() -> None:
    small, large = RegionViT(**TINY | dict(windows=7)), RegionViT(**TINY | dict(windows=12))
    slope = torch.linspace(-1, 1, 28)
    with torch.no_grad():
        small.regional_embed.weight.copy_(torch.outer(slope, slope.cos()))
    load_checkpoint(large, small.state_dict())
    image = torch.outer(slope.exp(), slope + 2).expand(1, 3, 28, 28)
    enlarged = F.interpolate(image, size=48, mode="bicubic")
    a, b = small.embed(image).regional, large.embed(enlarged).regional
    assert a is not None
    assert b is not None
    torch.testing.assert_close(a, b, rtol=0.01, atol=0.01)


def test_other_channels_and_another_window_load_together() -> None:
    small = RegionViT(**TINY)
    grey = RegionViT(**TINY | dict(windows=3, in_chans=1))
    done = load_checkpoint(grey, small.state_dict())
    assert {"local_embed.0.weight", "regional_embed.weight"} <= set(done.resized)
    assert grey(torch.randn(1, 1, 64, 64)).isfinite().all()


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(tokenize="1conv", peg=True),
        dict(tokenize="linear", downsample="conv2"),
        dict(downsample="conv3", relative=False),
        dict(regional="learnable", absolute=True),
        dict(regional="none", peg=True),
        dict(windows=(4, 4, 4, 2), absolute=True, relative=False),
    ],
    ids=str,
)
def test_every_parameter_of_every_option_gets_a_gradient(options: dict[str, Any]) -> None:
    model = tiny(**options).train()
    found = model.forward_stages(photo(75, 66))
    loss = model.head(found.pooled).square().sum()
    (loss + sum(x.square().mean() for x in found.maps)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_learned_grids_are_used_as_they_are_at_their_size() -> None:
    model = tiny(regional="learnable", absolute=True, tokenize="linear")
    images = photo(64, 64, batch=2)
    regional, local = model.embed(images)
    assert regional is not None
    assert torch.equal(regional[0], model.regional_embed.table[0])
    assert torch.equal(regional[0], regional[1])
    plain = model.local_embed(images.permute(0, 2, 3, 1))
    torch.testing.assert_close(local, plain + model.pos.table)
    other = model.embed(photo(70, 130)).regional
    assert other is not None
    assert other.shape == (1, 9, 17, 8)


def test_checkpointing_computes_blocks_again_and_changes_no_gradient() -> None:
    model = tiny(windows=3, peg=True).train()
    runs: list[int] = []
    model.stages[0].blocks[0].norm0.register_forward_hook(lambda *_: runs.append(1))
    grads = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(photo(70, 83)).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(runs) == 1 + 2
    assert len(grads[0]) == len(list(model.parameters()))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dims=(48, 96, 192, 384)), "a width of 48 cannot be split into heads of 32: take"),
        (dict(dims=(64, 96, 192, 384)), "64 channels to a multiple, not to 96: double dims"),
        (dict(dims=(64, 128)), "4 stages need 4 values of dims"),
        (dict(windows=(7, 7, 14, 7)), r"no later window is larger.* got \(7, 7, 14, 7\)"),
        (dict(windows=0), "none is smaller than 1"),
        (dict(head_dim=0), "head_dim is 1 channel or more, got 0"),
        (dict(dims=(), depths=()), "depths has the number of blocks of each stage, got none"),
        (dict(tokenize="2conv"), "tokenize is one of '3conv', '1conv', 'linear', got '2conv'"),
        (dict(regional="yes"), "regional is one of 'computed', 'learnable', 'none'"),
        (dict(downsample="pool"), "downsample is one of 'dw3', 'conv3', 'conv2'"),
    ],
)
def test_what_cannot_be_built_is_said(options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        RegionViT(**options)


def test_the_repositorys_four_windows_of_14_load_into_the_papers_14_14_14_7() -> None:
    reference = Fixture("regionvit_ti_plus")
    four = RegionViT(**VARIANTS["regionvit_ti_plus"] | dict(windows=14)).eval()
    load_checkpoint(four, reference.state)
    plus = RegionViT(**VARIANTS["regionvit_ti_plus"]).eval()
    done = load_checkpoint(plus, reference.state)
    assert done.resized == [f"stages.3.blocks.{j}.attn.bias.table" for j in range(2)]
    with torch.no_grad():
        torch.testing.assert_close(
            plus(reference.images), four(reference.images), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize(
    ("old", "used"),
    [(14, 7), ((14, 14, 14, 7), 7), (7, 7)],
    ids=["the repository's", "the paper's", "no half of 7"],
)
def test_offsets_never_used_do_not_leak_into_other_windows(
    old: int | tuple[int, ...], used: int
) -> None:
    """14 four times has maps of 7 x 7 in the last stage, at 224."""
    options = TINY | dict(depths=(1, 1, 1, 1))
    trained = RegionViT(**options | dict(windows=old))
    model = RegionViT(**options | dict(windows=(24, 24, 24, 12)))
    done = load_checkpoint(model, trained.state_dict())
    name = "stages.3.blocks.0.attn.bias.table"
    assert name in done.resized
    table = trained.get_parameter(name).detach()
    margin = (table.shape[1] + 1) // 2 - used
    table = table[:, margin : margin + 2 * used - 1, margin : margin + 2 * used - 1]
    expected = F.interpolate(table[None], size=(23, 23), mode="bicubic", antialias=True)[0]
    torch.testing.assert_close(model.get_parameter(name).detach(), expected)
