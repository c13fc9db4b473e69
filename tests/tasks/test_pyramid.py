"""Levels for dense tasks: their strides, what they are made of, and that padding is never seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

import ziggurat
from tests.models.small import SMALL, small
from tests.reference import Fixture, slice64
from ziggurat.models.hivit import VARIANTS, HiViT
from ziggurat.models.rest import ResT
from ziggurat.models.weights import load_checkpoint
from ziggurat.tasks.detectors import Detector
from ziggurat.tasks.pyramid import STRIDES, Pyramid

CHANNELS = {
    "nest_tiny": (16, 32, 64, 64),
    "hvt_ti_2": (32, 32, 32, 32),
    "rest_lite": (16, 32, 64, 128),
    "hivit_tiny": (16, 32, 64, 64),
    "regionvit_ti": (32, 64, 128, 256),
    "timm/resnet18": (8, 16, 24, 32),
}
VIT: dict[str, Any] = dict(embed_dim=16, depth=12, num_heads=2, dynamic_img_size=True)
EVERY = pytest.mark.parametrize("name", CHANNELS)


def backbone_of(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    if name in SMALL:
        return small(name, **options)
    channels: Any = {"channels": CHANNELS[name]} if name in CHANNELS else {}
    return ziggurat.create_model(name, num_classes=0, **channels | options)


def images_of(*sizes: tuple[int, int]) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, *size) for size in sizes]


# What the levels are.


@EVERY
def test_levels_have_their_strides_channels_and_begun_cells(name: str) -> None:
    pyramid = Pyramid(backbone_of(name)).eval()
    assert pyramid.strides == STRIDES
    assert pyramid.channels == CHANNELS[name]
    with torch.no_grad():
        levels = pyramid(images_of((97, 131)))
    for level, dim, stride in zip(levels, CHANNELS[name], STRIDES, strict=True):
        assert level.shape == (1, dim, -(-97 // stride), -(-131 // stride))


@pytest.mark.parametrize("name", ["nest_tiny", "hivit_tiny"])
def test_of_three_stages_the_last_is_pooled_for_the_coarsest_level(name: str) -> None:
    pyramid = Pyramid(backbone_of(name), norm=False).eval()
    with torch.no_grad():
        levels = pyramid(images_of((97, 131)))
    assert levels[2].shape[2:] == (7, 9)
    assert torch.equal(levels[3], F.max_pool2d(levels[2], 2, ceil_mode=True))


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        (dict(stages=1), (0, 0, 0, 0)),
        (dict(stages=2), (0, 0, 1, 1)),
        (dict(stages=3, depth=6), (0, 1, 2, 2)),
        (dict(stages=4), (0, 1, 2, 3)),
        (dict(stages=2, pool_2d=True), (0, 0, 0, 1)),
    ],
    ids=["one", "two", "three", "four", "two in 2-D"],
)
def test_stages_of_one_stride_make_a_level_each(
    options: dict[str, Any], stages: tuple[int, ...]
) -> None:
    """HVT; pooled in 2-D its stages have strides of their own, here 16 and 32."""
    size = 8 if "pool_2d" in options else 16
    backbone = backbone_of("hvt_ti_2", **dict(patch_size=size, img_size=96) | options)
    pyramid = Pyramid(backbone, norm=False).eval()
    assert tuple(pyramid.taken[i] for i in pyramid.stage) == stages
    image = images_of((97, 131))
    with torch.no_grad():
        levels = pyramid(image)
        maps = backbone.eval().forward_intermediates(image[0][None], intermediates_only=True)
    assert [level.shape[2:] for level in levels] == [(25, 33), (13, 17), (7, 9), (4, 5)]
    assert torch.equal(levels[2], maps[stages[2]])  # its own stride


def test_the_blocks_of_a_plain_vit_make_four_levels() -> None:
    backbone = backbone_of("timm/vit_tiny_patch16_224", **VIT)
    pyramid = Pyramid(backbone, norm=False).eval()
    assert [pyramid.taken[i] for i in pyramid.stage] == [2, 5, 8, 11]
    image = images_of((96, 144))
    with torch.no_grad():
        levels = pyramid(image)
        maps = backbone.eval().forward_intermediates(image[0][None], [8], intermediates_only=True)
    assert [level.shape[2:] for level in levels] == [(24, 36), (12, 18), (6, 9), (3, 5)]
    torch.testing.assert_close(levels[2], maps[0])


def test_stages_finer_than_any_level_are_pooled() -> None:
    options: dict[str, Any] = dict(dims=(8, 16), depths=(1, 1), heads=(1, 2), patch_size=1)
    backbone = ziggurat.create_model("nest_tiny_cifar", img_size=16, num_classes=0, **options)
    pyramid = Pyramid(backbone, norm=False).eval()
    image = images_of((35, 18))
    with torch.no_grad():
        levels = pyramid(image)
        maps = backbone.eval().forward_intermediates(image[0][None], intermediates_only=True)
    assert torch.equal(levels[1], F.max_pool2d(maps[1], 4, ceil_mode=True))
    assert [level.shape[2:] for level in levels] == [(9, 5), (5, 3), (3, 2), (2, 1)]


def test_a_patch_that_is_no_power_of_two_is_refused() -> None:
    backbone = backbone_of("hvt_ti_2", patch_size=12)
    with pytest.raises(ValueError, match="differs by a power of two, got 12: take another patch"):
        Pyramid(backbone)


def test_a_model_that_shows_no_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear gives no maps of its stages"):
        Pyramid(nn.Linear(2, 2))


def test_the_callers_backbone_stays_whole() -> None:
    backbone = backbone_of("nest_tiny")
    pyramid = Pyramid(backbone, strides=(4, 8), freeze=True)
    assert len(pyramid.backbone.stages) == 2
    assert len(backbone.stages) == 3
    assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, 10)
    assert all(p.requires_grad for p in backbone.parameters())


# Batches.


@EVERY
def test_images_of_several_sizes_give_what_each_gives_alone(name: str) -> None:
    pyramid = Pyramid(backbone_of(name)).double().eval()
    images = [image.double() for image in images_of((97, 131), (110, 70), (64, 96), (110, 70))]
    with torch.no_grad():
        together = pyramid(images)
        for i, image in enumerate(images):
            twin = i in (1, 3)  # computed at once: sums may be in another order
            for level, alone in zip(together, pyramid([image]), strict=True):
                height, width = alone.shape[2:]
                mine = level[i, :, :height, :width]
                torch.testing.assert_close(mine, alone[0], rtol=0, atol=1e-9 if twin else 0)
                rest = level[i].clone()
                rest[:, :height, :width] = 0
                assert not rest.any()
    assert together[0].shape[2:] == (28, 33)


# Norms, gradients, learning rates.


@EVERY
def test_each_level_is_normed_on_its_own_or_not_at_all(name: str) -> None:
    normed, bare = Pyramid(backbone_of(name)).eval(), Pyramid(backbone_of(name), norm=False).eval()
    bare.load_state_dict({n: v for n, v in normed.state_dict().items() if "norms." not in n})
    with torch.no_grad():
        images = images_of((97, 131))
        for ours, plain in zip(normed(images), bare(images), strict=True):
            expected = F.layer_norm(plain.permute(0, 2, 3, 1), plain.shape[1:2], eps=1e-6)
            torch.testing.assert_close(ours.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-4)
    assert not list(bare.norms.parameters())


@pytest.mark.parametrize("name", [*CHANNELS, "timm/vit_tiny_patch16_224"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    pyramid = Pyramid(backbone_of(name, **{} if name in CHANNELS else VIT))
    sum(level.square().sum() for level in pyramid(images_of((96, 128)))).backward()
    assert [n for n, p in pyramid.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", ["rest_lite", "timm/resnet18"])
def test_a_frozen_backbone_stays_as_in_inference_and_learns_nothing(name: str) -> None:
    pyramid = Pyramid(backbone_of(name), freeze=True).train()
    before = {n: b.clone() for n, b in pyramid.named_buffers()}
    sum(level.square().sum() for level in pyramid(images_of((64, 64)))).backward()
    assert not any(module.training for module in pyramid.backbone.modules())
    assert all(torch.equal(b, before[n]) for n, b in pyramid.named_buffers())  # BatchNorm's
    learning = {n.partition(".")[0] for n, p in pyramid.named_parameters() if p.grad is not None}
    assert learning == {"norms"}


@pytest.mark.parametrize(
    ("name", "layers", "first", "last"),
    [
        ("hivit_tiny", 7, "patch_embed.proj.weight", "stages.2.blocks.1.mlp.fc2.weight"),
        ("rest_lite", 5, "stem.conv1.weight", "stages.3.blocks.0.mlp.fc2.weight"),
        ("timm/resnet18", 9, "conv1.weight", "layer4.1.conv2.weight"),
    ],
)
def test_earlier_layers_learn_slower_and_all_beyond_the_backbone_at_full_rate(
    name: str, layers: int, first: str, last: str
) -> None:
    model = Detector(backbone_of(name), "maskrcnn", 2, width=8)
    names = {id(p): n for n, p in model.named_parameters()}
    scales = {
        names[id(p)]: group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.5)
        for p in group["params"]
    }
    assert scales.keys() == set(names.values())
    inner = "pyramid.backbone."
    assert scales[inner + first] == 0.5**layers
    assert scales[inner + last] == 0.5
    assert {scale for n, scale in scales.items() if not n.startswith(inner)} == {1.0}
    own = [scale for n, scale in scales.items() if n.startswith(inner)]
    assert sorted(set(own)) == [0.5**i for i in range(layers, 0, -1)]


@EVERY
def test_what_is_not_decayed_is_there(name: str) -> None:
    model = Detector(backbone_of(name), "retinanet", 2, width=8)
    found = model.no_weight_decay()
    assert found <= dict(model.named_parameters()).keys()
    learned = {n for n, _ in model.named_parameters() if n.endswith(".table")}
    assert found == (set() if name == "regionvit_ti" else learned)  # decayed in its own code


# The official dense models, where paper and code agree.


def official(pyramid: Pyramid, reference: Fixture, levels: dict[int, str], atol: float) -> None:
    """Slices of some levels in float32, and the norms of their means in float64."""
    with torch.no_grad():
        found = pyramid.eval()(list(reference.images))
        exact = pyramid.double()(list(reference.images.double()))
    for i, feature in levels.items():
        assert list(found[i].shape) == reference.about["features"][feature]["shape"]
        expected = reference.outputs[f"slice.{feature}"]
        np.testing.assert_allclose(slice64(found[i]), expected, rtol=0, atol=atol)
        norms = exact[i].mean((2, 3)).norm(dim=1)
        of = reference.outputs["l2_of_channel_means_per_level_fp64"][:, i]
        np.testing.assert_allclose(norms, of, rtol=0, atol=1e-8)


def test_the_finest_level_is_that_of_the_official_rest_detector() -> None:
    """The only one: its norms stand in the path, so that later stages get other maps."""
    reference = Fixture("rest_lite_det_256x320")
    model = ResT(num_classes=0)
    load_checkpoint(model, reference.state, ignore=("norm?.*",))
    pyramid = Pyramid(model)
    norm: Any = pyramid.norms[0]
    norm.load_state_dict({key: reference.state[f"norm1.{key}"] for key in ("weight", "bias")})
    norm.eps = 1e-5
    official(pyramid, reference, {0: "out.stage1"}, atol=1e-4)


def test_the_coarse_levels_are_those_of_the_official_hivit_segmenter() -> None:
    """The fine ones it takes from the middle of stage 1 and from the raw merge."""
    reference = Fixture("hivit_tiny_seg_320")
    state = dict(reference.state)
    table = state["absolute_pos_embed"].unflatten(1, (14, 14)).permute(0, 3, 1, 2)
    table = F.interpolate(table, scale_factor=(20 + 0.1) / 14, mode="bicubic")
    state["absolute_pos_embed"] = table.flatten(2).transpose(1, 2)  # its way to resize
    model = HiViT(**VARIANTS["hivit_tiny"], img_size=320, num_classes=0)
    load_checkpoint(model, state, ignore=("norm.*",))
    official(Pyramid(model, norm=False), reference, {2: "out.2", 3: "out.3"}, atol=1e-5)


# Padding inside a model.

PADDED: dict[str, dict[str, Any]] = {
    "nest_tiny": {},
    "hvt_ti_2": {},
    "rest_lite": {},
    "hivit_tiny": {},
    "hivit_tiny, windows": dict(shallow="window", dims=(32, 64, 64), depths=(2, 2, 1)),
    "regionvit_ti": {},
}
PATCHES = {"nest_tiny": 4, "hvt_ti_2": 8, "hivit_tiny": 4, "regionvit_ti": 28}  # pixels


def noisy(patch: int, noted: list[int]) -> Callable[..., Tensor]:
    """``F.pad`` that fills with large random numbers, but for pixels of a patch that has begun."""
    real = F.pad

    def pad(x: Tensor, by: tuple[int, ...]) -> Tensor:
        out = real(x, by).clone()
        channels, *sides = (1, 2, 3) if len(by) == 4 else (3, 1, 2)
        whole = patch if x.shape[channels] == 3 else 1
        for side in sides:
            beyond = out.narrow(side, begun := -(-x.shape[side] // whole) * whole,
                                out.shape[side] - begun)  # fmt: skip
            beyond.copy_(100 * torch.randn(beyond.shape))
            noted.append(beyond.numel())
        return out

    return pad


@pytest.mark.parametrize("name", PADDED)
def test_what_stands_in_the_padding_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token is merged with it or attends to it; only HiViT has any, the others cut or begin.

    Pixels beyond the image inside a patch that it has begun (4 x 4 in NesT and HiViT, 8 x 8 or 16 x
    16 in HVT, a whole region for RegionViT's regional tokens) are a convolution's own zeros.
    """
    variant = name.partition(",")[0]
    model = small(variant, **PADDED[name]).eval()
    for size in ((97, 131), (75, 50), (33, 90)):
        image = images_of(size)[0][None]
        with torch.no_grad():
            expected = [*model.forward_intermediates(image, intermediates_only=True), model(image)]
        noted: list[int] = []
        with monkeypatch.context() as patched, torch.no_grad():
            patched.setattr(F, "pad", noisy(PATCHES.get(variant, 1), noted))
            found = [*model.forward_intermediates(image, intermediates_only=True), model(image)]
        assert any(noted) == (variant == "hivit_tiny")
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_visible_border_units_are_merged_without_padding_too() -> None:
    model = small("hivit_tiny").eval()
    image = images_of((75, 50))[0][None]
    with torch.no_grad():
        every = model.forward_visible(image, torch.arange(20)[None])
        some = model.forward_visible(image, torch.tensor([[19, 3, 16, 0]]))
        whole = model.stages[1](model.stages[0](model.embed(image))).tokens
    torch.testing.assert_close(every[1], whole)
    torch.testing.assert_close(some[1], whole[:, [19, 3, 16, 0]])


def test_batch_norms_of_a_trained_backbone_keep_their_statistics() -> None:
    """Images of several sizes are seen one after the other, which is no batch to learn from."""
    pyramid = Pyramid(small("rest_lite"))
    images = [torch.randn(3, 48, 64), torch.randn(3, 64, 64)]
    with pytest.raises(ValueError, match=r"ResT has BatchNorms.* got images of 48 x 64, 64 x 64"):
        pyramid.train()(images)
    pyramid.trained = True
    before = {name: value.clone() for name, value in pyramid.named_buffers()}
    pyramid.train()
    torch.stack([level.mean() for level in pyramid(images)]).sum().backward()
    assert before.keys() == dict(pyramid.named_buffers()).keys()
    assert all(torch.equal(before[name], value) for name, value in pyramid.named_buffers())
    assert all(p.grad is not None for p in pyramid.parameters())


def test_a_batch_of_nothing_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="none of its files could be read"):
        Pyramid(small("nest_tiny"))([])
