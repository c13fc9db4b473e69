from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.reference import Fixture, Reading, check_parity
from ziggurat.layers.attention import Block
from ziggurat.layers.position import resize
from ziggurat.models.hvt import HVT, VARIANTS, Window, stretch
from ziggurat.models.weights import CheckpointError, load_checkpoint


def small(**options: Any) -> HVT:
    """8 x 8 patches of 4 x 4 pixels, 64 -> 31 -> 15 tokens unless told otherwise."""
    torch.manual_seed(0)
    kept: dict[str, Any] = dict(
        img_size=32, patch_size=4, dim=16, heads=2, depth=4, stages=2, num_classes=5
    )
    return HVT(**kept | options).eval()


KINDS: dict[str, dict[str, Any]] = {
    "max": dict(),
    "avg": dict(pool="avg"),
    "conv": dict(pool="conv"),
    "max_2d": dict(pool_2d=True),
    "avg_2d": dict(pool_2d=True, pool="avg"),
    "conv_2d": dict(pool_2d=True, pool="conv"),
    "none": dict(stages=0),
    "class_token": dict(stages=0, class_token=True),
    "four": dict(stages=4),
    "wide_windows": dict(pool_kernel=4, pool_stride=3),
}


def pool_of(model: HVT, stage: int = 0) -> Any:
    return model.get_submodule(f"stages.{stage}.pool")


def blocks_of(model: HVT) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Block)]


every_kind = pytest.mark.parametrize("kind", KINDS)


# The official code's numbers.


@pytest.mark.parametrize("fixture", ["hvt_ti_1", "hvt_ti_1_stress", "hvt_s_1"])
def test_the_official_models_are_reproduced(fixture: str) -> None:
    reference = Fixture(fixture)
    model = HVT(**VARIANTS[fixture.removesuffix("_stress")])
    load_checkpoint(model, reference.state)
    tokens: Callable[[Any], Tensor] = lambda x: x  # noqa: E731
    readings: dict[str, Reading] = {
        "patch_embed": ("patch_embed", lambda x: x.flatten(2).transpose(1, 2)),
        "blocks.0(pooled+pos)": ("stages.0.pool", lambda state: state.x),
        "blocks.11(stage_end)": ("stages.0.blocks.11", tokens),
        "norm": ("norm", tokens),
    }
    check_parity(reference, model, readings)


def test_deits_weights_give_deits_numbers_with_a_class_token() -> None:
    torch.manual_seed(0)
    deit = timm.create_model("deit_tiny_patch16_224", depth=2, num_classes=7).eval()
    model = HVT(heads=3, depth=2, stages=0, class_token=True, num_classes=7).eval()
    load_checkpoint(model, deit.state_dict())
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(images), deit(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 4])
def test_official_names_find_their_stage_for_every_number_of_poolings(stages: int) -> None:
    """Pooled after block i when i is a multiple of 12 / M."""
    model = small(depth=12, stages=stages)
    own = model.state_dict()
    official = {}
    for name, value in own.items():
        number = -1
        if name.startswith("stages."):
            stage, rest = name.removeprefix("stages.").split(".", 1)
            number = int(stage) * 12 // max(stages, 1)
            if rest.startswith("blocks."):
                block, rest = rest.removeprefix("blocks.").split(".", 1)
                number += int(block)
            name = f"blocks.{number}.{rest.replace('pool.pos.table', 'pos_embed')}"
        if name == "pos.table":
            name, value = "pos_embed", value.flatten(1, 2)
        official[name.replace("patch_embed.", "patch_embed.proj.")] = value
    pooled = [int(n.split(".")[1]) for n in official if n.endswith(".pos_embed")]
    assert pooled == [[], [0], [0, 6], [0, 4, 8], [0, 3, 6, 9]][stages]
    for state in (official, own):
        found = model.convert(state)
        assert found.keys() == own.keys()
        assert all(torch.equal(found[name], own[name]) for name in own)


# The paper's tables: parameters in millions, multiply-accumulates in billions.


CIFAR = dict(num_classes=100)


@pytest.mark.parametrize(
    ("options", "params", "macs"),
    [
        # Table 1 and the official README, 1000 classes
        (VARIANTS["hvt_ti_1"], "5.74", "0.64"),
        (VARIANTS["scale_hvt_ti_4"], "22.12", "1.39"),
        (VARIANTS["hvt_s_1"], "22.09", "2.40"),
        (VARIANTS["hvt_s_2"], "22.11", "1.94"),
        (VARIANTS["hvt_s_3"], "22.11", "1.62"),
        # Table 2
        (VARIANTS["hvt_ti_0"] | dict(class_token=True), "5.72", "1.25"),
        (VARIANTS["hvt_ti_0"], "5.72", "1.25"),
        # Table 3
        (VARIANTS["hvt_s_4"] | CIFAR | dict(pool="conv"), "23.54", "1.47"),
        (VARIANTS["hvt_s_4"] | CIFAR | dict(pool="avg"), "21.77", "1.39"),
        # Table 4
        (VARIANTS["hvt_s_0"] | CIFAR, "21.70", "4.57"),
        (VARIANTS["hvt_s_1"] | CIFAR, "21.74", "2.40"),
        (VARIANTS["hvt_s_2"] | CIFAR, "21.76", "1.94"),
        (VARIANTS["hvt_s_3"] | CIFAR, "21.77", "1.62"),
        (VARIANTS["hvt_s_4"] | CIFAR, "21.77", "1.39"),
        # Table 5
        (VARIANTS["hvt_s_4"] | CIFAR | dict(depth=16), "28.87", "1.72"),
        (VARIANTS["hvt_s_4"] | CIFAR | dict(depth=20), "35.97", "2.05"),
        (VARIANTS["hvt_s_4"] | CIFAR | dict(depth=24), "43.07", "2.37"),
        # Table 6
        (VARIANTS["hvt_ti_4"] | CIFAR, "5.58", "0.38"),
        (VARIANTS["hvt_ti_4"] | CIFAR | dict(heads=12), "86.01", "5.34"),
        (VARIANTS["hvt_ti_4"] | CIFAR | dict(heads=16), "152.43", "9.39"),
        # Table 7
        (VARIANTS["hvt_s_4"] | CIFAR | dict(img_size=160), "21.70", "0.68"),  # 0.69: 1000 classes
        (VARIANTS["hvt_s_4"] | CIFAR | dict(img_size=320), "21.92", "3.00"),
        (VARIANTS["hvt_s_4"] | CIFAR | dict(img_size=384), "22.06", "4.48"),
        # Table 8
        (VARIANTS["hvt_s_4"] | CIFAR | dict(patch_size=8), "21.99", "6.18"),
        (VARIANTS["hvt_s_4"] | CIFAR | dict(patch_size=32), "22.55", "0.37"),
        # Table 9
        (VARIANTS["hvt_s_2_2d"] | CIFAR, "21.80", "4.62"),
        # Section 4.2: wider, deeper, finer
        (VARIANTS["hvt_s_4"] | dict(heads=11), "72.99", "4.51"),
        (VARIANTS["hvt_s_4"] | dict(depth=48), "86.00", "4.33"),
        (VARIANTS["hvt_s_4"] | dict(patch_size=8, img_size=192), "22.18", "4.35"),
    ],
)
def test_size_and_cost_are_the_papers(options: dict[str, Any], params: str, macs: str) -> None:
    with torch.device("meta"):
        model = HVT(**options).eval()
        images = torch.empty(1, 3, *model.img_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}" == params
    assert f"{counter.get_total_flops() / 2e9:.2f}" == macs


def test_tokens_get_fewer_as_in_the_paper() -> None:
    with torch.device("meta"):
        model = HVT(**VARIANTS["hvt_s_4"])
        state = model.embed(torch.empty(1, 3, 224, 224))
    lengths = [state.x.shape[1]]
    for stage in model.stages:
        state = stage(state)
        lengths.append(state.x.shape[1])
    assert lengths == [196, 97, 48, 23, 11]


# What pooling does.


def test_pooling_runs_along_the_sequence_across_the_ends_of_rows() -> None:
    model = small(img_size=(8, 20), stages=1)  # 2 x 5 patches
    state = model.embed(torch.randn(1, 3, 8, 20))
    pool = pool_of(model)
    pooled = pool(state).x - pool.pos.table
    windows = [state.x[:, i : i + 3].amax(1) for i in range(0, 8, 2)]
    torch.testing.assert_close(pooled, torch.stack(windows, 1))


def test_pooling_in_2d_keeps_to_the_grid() -> None:
    model = small(pool_2d=True, stages=1)
    state = model.embed(torch.randn(1, 3, 32, 32))
    pool = pool_of(model)
    pooled = pool(state)
    assert pooled.grid == (4, 4)
    cell = pooled.x[0, 5] - pool.pos.table[0, 1, 1]
    torch.testing.assert_close(cell, state.x.unflatten(1, (8, 8))[0, 1:4, 1:4].amax((0, 1)))


def test_average_pooling_in_2d_does_not_count_the_padding() -> None:
    model = small(pool_2d=True, stages=1, pool="avg")
    pool = pool_of(model)
    pool.pos.table.data.zero_()
    state = model.embed(torch.randn(1, 3, 32, 32))
    assert torch.equal(
        pool(state._replace(x=torch.ones_like(state.x))).x, torch.ones(1, 16, model.dims[0])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_gets_its_tokens_one_after_the_other(kind: str) -> None:
    """Sums keep the layout of their first term: a pooled one would stay for all blocks to come."""
    model, seen = small(**KINDS[kind]), []
    for block in model.modules():
        if isinstance(block, Block):
            block.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous()))
    model(torch.randn(2, 3, 32, 32))
    assert seen == [True] * 4


def test_only_the_first_block_of_a_stage_sees_all_of_its_tokens() -> None:
    model = small()
    seen = []
    for block in blocks_of(model):
        block.register_forward_hook(lambda _, came, __: seen.append(came[0].shape[1]))
    model(torch.randn(1, 3, 32, 32))
    assert seen == [64, 31, 31, 15]


@pytest.mark.parametrize("window", [Window(3, 2), Window(4, 3), Window(2, 2), Window(3, 2, 1)])
def test_the_shortest_sequence_for_a_length_is_the_shortest(window: Window) -> None:
    for length in range(1, 20):
        needed = window.needed(length, times=3)
        assert window.pooled(needed, times=3) == length
        assert window.pooled(needed - 1, times=3) < length


# Any image.


@every_kind
@pytest.mark.parametrize("size", [(32, 32), (24, 40), (25, 33), (56, 56)])
def test_images_of_any_size_give_finite_answers_and_maps(kind: str, size: tuple[int, int]) -> None:
    model = small(**KINDS[kind])
    with torch.no_grad():
        maps, pooled = model.forward_stages(torch.randn(2, 3, *size))
        logits = model(torch.randn(2, 3, *size))
    assert pooled.shape == (2, 16)
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()
    assert len(maps) == len(model.strides)
    for found, stride in zip(maps, model.strides, strict=True):
        assert found.shape[:2] == (2, 16)
        assert found.isfinite().all()
        if kind != "wide_windows":
            assert found.shape[2:] == tuple(-(-side // stride) for side in size)


@pytest.mark.parametrize("size", [(96, 160), (97, 131), (224, 224), (256, 256)])
def test_a_published_variant_takes_images_of_any_size(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = HVT(**VARIANTS["hvt_ti_4"]).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, *size)).isfinite().all()


def test_strides_follow_the_map() -> None:
    assert small().strides == (4, 4)
    assert small(pool_2d=True).strides == (8, 16)
    assert small(stages=0).strides == (4,)


def test_a_map_is_the_sequence_stretched_back_to_its_patches() -> None:
    model = small()
    state = model.stages[0](model.embed(torch.randn(1, 3, 24, 40)))
    assert state.x.shape[1] == 29
    found = model.stage_map(state)
    assert found.shape == (1, 16, 6, 10)
    flat = torch.nn.functional.interpolate(state.x.mT, size=60, mode="linear")
    assert torch.equal(found.flatten(2), flat)


def test_the_class_token_is_not_on_the_map_and_is_what_is_pooled() -> None:
    model = small(stages=0, class_token=True)
    images = torch.randn(1, 3, 32, 32)
    state = model.stages[0](model.embed(images))
    maps, pooled = model.forward_stages(images)
    assert torch.equal(maps[0].flatten(2).mT, state.x[:, 1:])
    assert torch.equal(pooled, model.norm(state.x)[:, 0])


@every_kind
def test_positions_are_used_as_learned_at_their_own_size(kind: str) -> None:
    options = KINDS[kind]
    model = small(**options)
    assert model.pos(8, 8) is model.pos.table
    for i in range(options.get("stages", 2)):
        pos = pool_of(model, i).pos
        own = pos(*pos.table.shape[1:3]) if options.get("pool_2d") else pos((8, 8))
        assert own is pos.table


def test_pooled_positions_of_another_grid_keep_their_place_in_the_image() -> None:
    """A table that grows from top to bottom still does on a larger grid, to within a row."""
    pos = pool_of(small(), 1).pos  # 64 -> 31 -> 15 tokens
    rows = torch.arange(8.0).view(1, 8, 1, 1).expand(1, 8, 8, 16)
    pos.table.data.copy_(stretch(rows.flatten(1, 2), 15))
    found = pos((12, 10))
    assert found.shape == (1, Window(3, 2).pooled(120, 2), 16)
    expected = stretch(resize(rows, 12, 10).flatten(1, 2), found.shape[1])
    assert (found - expected).abs().max() < 1
    assert found[0, -1, 0] - found[0, 0, 0] > 6


def test_pooled_positions_are_resized_once_in_inference_and_always_in_training() -> None:
    model = small()
    pos = pool_of(model).pos
    with torch.no_grad():
        assert pos((10, 10)) is pos((10, 10))
        assert pos((10, 10)) is not pos((9, 10))
    model.train()
    pos((10, 10)).sum().backward()
    assert pos.table.grad is not None


# Checkpoints of another resolution.


@pytest.mark.parametrize("kind", ["max", "conv", "max_2d", "four", "none", "class_token"])
def test_a_checkpoint_of_another_resolution_loads(kind: str) -> None:
    trained = small(**KINDS[kind])
    model = small(**KINDS[kind], img_size=56)
    resized = load_checkpoint(model, trained.state_dict()).resized
    assert sorted(resized) == sorted(n for n in model.state_dict() if n.endswith(".table"))
    images = torch.randn(1, 3, 56, 56)
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained(images))


def test_the_224_checkpoint_of_the_authors_loads_at_384() -> None:
    model = HVT(**VARIANTS["hvt_ti_1"], img_size=384).eval()
    loaded = load_checkpoint(model, Fixture("hvt_ti_1").state)
    assert sorted(loaded.resized) == ["pos.table", "stages.0.pool.pos.table"]
    with torch.no_grad():
        assert model(torch.randn(1, 3, 384, 384)).isfinite().all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((24, 44), (32, 32)),  # 66 patches: no square
        ((16, 36), (56, 56)),  # 36 patches, 4 x 9 and not 6 x 6
        ((16, 64), (32, 32)),  # as many patches as before
        ((32, 32), (64, 16)),
        ((64, 16), (16, 64)),
    ],
)
def test_a_checkpoint_of_another_shape_loads(old: tuple[int, int], new: tuple[int, int]) -> None:
    trained, model = small(img_size=old), small(img_size=new)
    load_checkpoint(model, trained.state_dict())
    images = torch.randn(1, 3, *new)
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained(images))
    load_checkpoint(model, small(img_size=new).state_dict())
    assert torch.equal(pool_of(model).pos.table, pool_of(small(img_size=new)).pos.table)


def test_a_table_that_its_grid_does_not_give_is_reported() -> None:
    state = small().state_dict()
    state["stages.0.pool.pos.table"] = torch.zeros(1, 30, 16)
    with pytest.raises(CheckpointError, match=r"stages\.0\.pool\.pos\.table: \(1, 30, 16\) in"):
        load_checkpoint(small(img_size=48), state)


def test_a_checkpoint_with_other_poolings_is_reported() -> None:
    with pytest.raises(CheckpointError, match="does not fit"):
        load_checkpoint(small(stages=1), small(stages=2).state_dict())


# Training.


@every_kind
def test_every_parameter_learns(kind: str) -> None:
    model = small(**KINDS[kind]).train()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_recomputing_blocks_in_backward_changes_no_gradient() -> None:
    model, images = small().train(), torch.randn(2, 3, 32, 32)
    runs: list[int] = []
    for block in blocks_of(model):
        block.norm1.register_forward_hook(lambda *_: runs.append(1))
    grads = []
    for enable in (False, True):
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(images).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(map(torch.equal, *grads))
    assert len(runs) == 4 + 2 * 4


def test_weights_start_as_in_the_official_code() -> None:
    torch.manual_seed(0)
    model = HVT(**VARIANTS["hvt_ti_4"], drop_path_rate=0.1)
    for name, value in model.named_parameters():
        if name.endswith("bias") and not name.startswith("patch_embed"):
            assert not value.any(), name
        elif name.endswith("table") or "mlp" in name or "attn" in name:
            assert 0.019 < value.std() < 0.021, name
    bound = (3 * 16 * 16) ** -0.5  # PyTorch's own for the convolution
    assert 0.9 * bound < model.patch_embed.weight.abs().max() <= bound
    rates = [getattr(b.drop_path, "drop_prob", 0.0) for b in blocks_of(model)]
    assert rates == pytest.approx([0.1 * i / 11 for i in range(12)])


def test_pooling_is_of_the_layer_of_the_block_before_it() -> None:
    layer = small().group_matcher()
    assert layer("patch_embed.weight") == (0,)
    assert layer("stages.1.blocks.0.norm1.weight") == layer("stages.1.pool.pos.table") == (3,)
    assert layer("stages.1.blocks.1.norm1.weight") == (4,)


def test_positions_and_class_token_are_not_decayed() -> None:
    kept = {"pos.table", "stages.0.pool.pos.table", "stages.1.pool.pos.table"}
    assert small().no_weight_decay() == kept
    assert small(stages=0, class_token=True).no_weight_decay() == {"pos.table", "cls_token"}


# Errors.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(heads=3), "a width of 16 cannot be split into 3 heads: take one of 1, 2, 4, 8"),
        (dict(heads=0, dim=None), "a width of 64 cannot be split into 0 heads"),
        (dict(depth=12, stages=5), "take 0, 1, 2, 3, 4, 6, 12 stages or another depth"),
        (dict(stages=-1), "stages 0 or more, got depth=4, stages=-1"),
        (dict(depth=0), "depth is 1 or more"),
        (dict(pool="min"), "pool is one of 'max', 'avg', 'conv', got 'min'"),
        (dict(pool_stride=0), "are 1 or more, got 3 and 0"),
        (dict(class_token=True), "take stages=0 with class_token"),
        (dict(patch_size=0), "patch_size is 1 pixel or more, got 0"),
        (dict(img_size=(4, 24)), "they need 7 patches in all"),
        (dict(img_size=8), "2 poolings take images from 9 x 9 pixels up, got img_size=8"),
    ],
)
def test_what_cannot_be_built_is_said_to(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_an_image_too_small_for_the_poolings_is_refused_and_the_smallest_named() -> None:
    """Four poolings of three by two need 31 tokens: 6 x 6 patches, the last ones padded."""
    model = HVT(**VARIANTS["hvt_ti_4"]).eval()
    for side in (32, 80):
        with pytest.raises(ValueError, match="images from 81 x 81 pixels up, got"):
            model(torch.randn(1, 3, side, side))
    assert model(torch.randn(1, 3, 81, 81)).isfinite().all()


def test_1d_pooling_takes_long_images_of_enough_patches() -> None:
    for name, height, width in (("hvt_s_4", 64, 448), ("hvt_s_2", 32, 224), ("hvt_s_4", 16, 481)):
        with torch.device("meta"), torch.no_grad():
            model = HVT(**VARIANTS[name])
            assert model(torch.empty(1, 3, height, width)).shape == (1, 1000)
            assert HVT(**VARIANTS[name], img_size=(height, width)).smallest == model.smallest
    model.name = "hvt_s_4"
    with pytest.raises(
        ValueError, match="got 16 x 480: its poolings need 31 patches and these are"
    ):
        model(torch.empty(1, 3, 16, 480))
    with pytest.raises(ValueError, match="takes 3 channels, got 1"):
        model(torch.empty(1, 1, 16, 481))


def test_2d_pooling_takes_the_smallest_images() -> None:
    assert small(pool_2d=True)(torch.randn(1, 3, 1, 1)).isfinite().all()
    model = small(pool_2d=True, pool_kernel=2)  # unpadded: 4 -> 2 -> 1
    with pytest.raises(ValueError, match="from 13 x 13 pixels up, got 12 x 32"):
        model(torch.randn(1, 3, 12, 32))
    assert model(torch.randn(1, 3, 13, 32)).isfinite().all()


def test_images_with_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="takes 3 channels, got 1"):
        small()(torch.randn(1, 1, 32, 32))
