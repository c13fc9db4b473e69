from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import ziggurat
from tests.reference import Fixture, Reading, run_catching, slice64
from ziggurat.engine import train
from ziggurat.engine.optim import optimizer
from ziggurat.engine.recipe import load
from ziggurat.layers.attention import Attention
from ziggurat.layers.position import sin_cos
from ziggurat.models.hivit import VARIANTS, HiViT, Units
from ziggurat.models.pretrained import open_model
from ziggurat.models.weights import CheckpointError, load_checkpoint
from ziggurat.tasks.masking import MaskedAutoencoder, mask_randomly, patchify, unpatchify


def as_is(x: Tensor) -> Tensor:
    return x


def tokens(units: Units) -> Tensor:
    return units.tokens


def main_tokens(units: Units) -> Tensor:
    return units.tokens.flatten(1, 3)


READINGS: dict[str, Reading] = {
    "blocks.4(merge input, kept units)": ("encoder.stages.0", tokens),
    "blocks.9(merge input, kept units)": ("encoder.stages.1", tokens),
    "main_input(after APE)": (">encoder.stages.2.blocks.0", as_is),
    "main.0.attn": ("encoder.stages.2.blocks.0.attn", as_is),
    "main_output": ("encoder.stages.2", main_tokens),
    "norm(hifeat concat 3584)": ("decoder.norm_in", as_is),
    "norm(hifeat concat)": ("decoder.norm_in", as_is),
    "decoder_embed": ("decoder.embed", as_is),
    "decoder_input": (">decoder.blocks.0", as_is),
    "decoder_norm": ("decoder.norm", as_is),
    "pred": ("decoder.pred", as_is),
}


class WithNoise(nn.Module):
    def __init__(self, model: MaskedAutoencoder, noise: np.ndarray) -> None:
        super().__init__()
        self.model, self.noise = model, torch.from_numpy(noise)

    def forward(self, images: Tensor) -> Tensor:
        """The loss of all units' painting, as the official code computes it."""
        found = self.model.painting(images, self.noise)
        return self.model.error(found)[found.hidden.bool()].mean()


@pytest.mark.parametrize("name", ["hivit_base_mae", "hivit_tiny_mae_rpe_stress"])
def test_the_official_pretraining_loss_is_reproduced(name: str) -> None:
    reference = Fixture(name)
    encoder = HiViT(**VARIANTS["_".join(name.split("_")[:2])], rpe="rpe" in name)
    model = MaskedAutoencoder(encoder).eval()
    load_checkpoint(model, reference.state)
    with_noise = WithNoise(model, reference.outputs["noise"])
    read = {
        k: (p.replace("encoder", "model.encoder").replace("decoder", "model.decoder"), f)
        for k, (p, f) in READINGS.items()
    }
    for dtype, key, atol in (
        (torch.float32, "loss", 1e-5),
        (torch.float64, "loss_fp64", 1e-8),
    ):
        with_noise.to(dtype)
        loss, caught = run_catching(with_noise, reference.images.to(dtype), read)
        for feature in reference.about["features"].keys() & caught.keys():
            expected = reference.outputs[f"slice.{feature}"]
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(
                slice64(caught[feature]), expected, rtol=0, atol=1e-5 * scale, err_msg=feature
            )
        ours = model(reference.images.to(dtype), with_noise.noise)  # of the hidden units alone
        for found in (loss, ours):
            np.testing.assert_allclose(found.item(), reference.outputs[key], rtol=0, atol=atol)


def tiny() -> MaskedAutoencoder:
    encoder = HiViT(img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2), rpe=False)
    return MaskedAutoencoder(encoder, decoder_dim=32, decoder_depth=2, decoder_heads=2)


def test_the_mask_is_the_official_one() -> None:
    outputs = Fixture("hivit_base_mae").outputs
    masking = mask_randomly(torch.from_numpy(outputs["noise"]), 0.75)
    assert torch.equal(masking.visible, torch.from_numpy(outputs["ids_keep"]))
    assert torch.equal(masking.flags().bool(), torch.from_numpy(outputs["mask"]).bool())


def test_positions_start_as_the_official_sine_and_cosine() -> None:
    outputs = Fixture("hivit_base_mae").outputs
    table = sin_cos(14, 14, 512)
    for name in ("absolute_pos_embed_init", "decoder_pos_embed_init"):
        np.testing.assert_allclose(slice64(table), outputs[f"slice.{name}"], rtol=0, atol=1e-6)
    model = tiny()
    assert model.encoder.pos is not None
    assert torch.equal(model.encoder.pos.table, sin_cos(4, 4, 32))
    assert model.encoder.pos.table.requires_grad


def test_every_parameter_of_encoder_and_decoder_is_trained() -> None:
    model = tiny()
    model(torch.randn(2, 3, 64, 64)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_the_loss_sees_hidden_units_only() -> None:
    model = tiny().eval()
    noise = torch.rand(1, 16)
    masking = mask_randomly(noise, 0.75)
    x = torch.randn(1, 3, 64, 64)
    painted = patchify(x, 16)
    mean, std = painted.mean(-1, keepdim=True), painted.std(-1, keepdim=True)
    expected = (model.paint(x, masking) - (painted - mean) / std).square().mean(-1)
    hidden = masking.flags().bool()
    torch.testing.assert_close(model(x, noise), expected[hidden].mean(), rtol=1e-4, atol=1e-5)


def test_a_tenth_of_a_hundred_are_ten() -> None:
    assert mask_randomly(torch.rand(1, 100), 0.9).visible.shape == (1, 10)
    assert mask_randomly(torch.rand(1, 10), 0.9).visible.shape == (1, 1)


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 0.99])
def test_a_ratio_that_hides_nothing_or_everything_is_an_error(ratio: float) -> None:
    with pytest.raises(ValueError, match="mask ratio"):
        mask_randomly(torch.rand(1, 16), ratio)


def test_a_pretrained_encoder_starts_a_classifier() -> None:
    state = Fixture("hivit_base_mae").state
    model = HiViT(**VARIANTS["hivit_base"])
    with pytest.raises(CheckpointError, match=r"missing.*head\.weight.*not in the model: decoder"):
        load_checkpoint(model, state)
    load_checkpoint(model, state, ignore=("decoder.*", "head.*", "norm.*"))
    assert torch.equal(model.patch_embed.norm.weight, state["patch_embed.norm.weight"])


def test_the_callers_model_stays_as_it_was() -> None:
    encoder = HiViT(img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2), num_classes=3)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    model = MaskedAutoencoder(encoder, decoder_dim=32, decoder_depth=1, decoder_heads=2)
    assert model.encoder is not encoder
    assert encoder.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert encoder(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    assert model.encoder.pos is not None
    assert torch.equal(model.encoder.pos.table, sin_cos(4, 4, 32))


def test_our_own_pretraining_starts_a_classifier() -> None:
    encoder = HiViT(img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2))
    model = MaskedAutoencoder(encoder, decoder_dim=32, decoder_depth=1, decoder_heads=2)
    state = model.state_dict()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(encoder, state)
    assert caught.value.unexpected == sorted(n for n in state if n.startswith("decoder."))
    assert caught.value.missing == ["head.bias", "head.weight", "norm.bias", "norm.weight"]
    load_checkpoint(encoder, state, ignore=("decoder.*", "head.*", "norm.*"))
    x, ids = torch.randn(1, 3, 64, 64), torch.arange(4)[None]
    for ours, theirs in zip(
        encoder.eval().forward_visible(x, ids),
        model.eval().encoder.forward_visible(x, ids),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    load_checkpoint(model, state)


def test_it_paints_other_sizes_than_it_was_built_for() -> None:
    loss = tiny()(torch.randn(1, 3, 80, 96))
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 3, 80, 90), "whole units of 16 x 16 pixels, got 80 x 90: take a multiple of 16"),
        ((1, 3, 1, 1), "whole units of 16 x 16 pixels, got 1 x 1"),
        (
            (1, 3, 8, 64, 64),
            r"images are \(batch, 3, height, width\), got \(1, 3, 8, 64, 64\)",
        ),
        ((1, 3, 16, 16), "leaves none of 1 units visible"),
        ((1, 1, 64, 64), r"images are \(batch, 3, height, width\), got \(1, 1, 64, 64\)"),
    ],
)
def test_what_cannot_be_masked_is_said_in_one_line(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny()(torch.randn(shape))


def test_patches_go_back_to_images() -> None:
    images = torch.randn(2, 3, 8, 12)
    assert torch.equal(unpatchify(patchify(images, 4), 4, (2, 3)), images)


# The visible units alone, and all of them.


@settings(max_examples=12, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 5), st.integers(2, 5)),
    built=st.integers(2, 4),
    unit=st.sampled_from([4, 8, 16]),
    rpe=st.booleans(),
    data=st.data(),
)
def test_visible_units_come_out_as_if_the_others_were_not_there(
    grid: tuple[int, int], built: int, unit: int, rpe: bool, data: st.DataObject
) -> None:
    """Dropped before the embedding, or masked out of attention in the full encoder: the same."""
    count = grid[0] * grid[1]
    keep = data.draw(st.integers(1, count))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    options: dict[str, Any] = dict(dims=(8, 16, 32), heads=2, depths=(1, 1, 2), unit=unit, rpe=rpe)
    encoder = HiViT(img_size=built * unit, **options).eval()
    for table in (n for n in encoder.modules() if hasattr(n, "table")):
        nn.init.normal_(table.table)
    images = torch.randn(2, 3, grid[0] * unit, grid[1] * unit)
    ids = torch.stack([torch.randperm(count)[:keep] for _ in range(2)])
    dropped = encoder.forward_visible(images, ids)
    units = encoder.embed(images)
    shown = torch.zeros(2, count, dtype=torch.bool).scatter(1, ids, True)
    hidden = torch.zeros(2, 1, 1, count).masked_fill(~shown[:, None, None], -torch.inf)
    rows = torch.arange(2)[:, None]
    for stage, mine in zip(encoder.stages[:-1], dropped[:-1], strict=True):
        units = stage(units)
        torch.testing.assert_close(units.tokens[rows, ids], mine, rtol=1e-5, atol=1e-5)
    main = encoder.stages[-1]
    x = main.down(units.tokens).flatten(1, 3) + units.pos.flatten(1, -2)
    for block in main.blocks:
        attn = block.attn
        bias = hidden if attn.bias is None else attn.bias(*grid)[None] + hidden
        y = Attention.forward(attn, block.norm1(x), bias)
        x = x + y
        x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(x[rows, ids], dropped[-1].flatten(1, 3), rtol=1e-5, atol=1e-5)


def test_hidden_pixels_change_nothing_but_the_target() -> None:
    """Whatever the encoder is fed with, in every family: nothing hidden leaks into the painting."""
    cases = [(name, "all") for name in FAMILIES] + [("hivit_tiny", "visible")]
    for name, feed in cases:
        model = autoencoder(name, FAMILIES[name], feed=feed).eval()
        noise = torch.rand(2, 16)
        masking = mask_randomly(noise, 0.75)
        images = torch.randn(2, 3, 32, 32)
        hidden = masking.flags()[:, :, None].expand(2, 16, 8 * 8 * 3).bool()
        hidden = unpatchify(hidden, 8, (4, 4))
        other = torch.where(hidden, torch.randn_like(images), images)
        with torch.no_grad():
            assert torch.equal(model.paint(images, masking), model.paint(other, masking)), name
            seen = torch.where(hidden, images, torch.randn_like(images))
            assert not torch.allclose(model.paint(images, masking), model.paint(seen, masking))


FAMILIES: dict[str, dict[str, Any]] = {
    "nest_tiny_cifar": dict(dims=(8, 16), depths=(1, 1), heads=(1, 2), patch_size=4),
    "hvt_ti_1": dict(dim=16, depth=4, heads=2, patch_size=8),
    "rest_lite": dict(dims=(8, 16, 32), heads=(1, 1, 2), depths=(1, 1, 1), reductions=(4, 2, 1)),
    "hivit_tiny": dict(dims=(8, 16, 32), heads=2, depths=(1, 1, 1), unit=8),
    "regionvit_ti": dict(dims=(8, 16, 32), depths=(1, 1, 1), windows=(4, 4, 2), head_dim=8),
    "timm/swin_tiny_patch4_window7_224": dict(
        embed_dim=8, depths=(2, 2), num_heads=(1, 2), window_size=4
    ),
    "timm/vit_tiny_patch16_224": dict(patch_size=8, embed_dim=16, depth=2, num_heads=2),
}


def autoencoder(name: str, options: dict[str, Any], **more: Any) -> MaskedAutoencoder:
    encoder = ziggurat.create_model(name, img_size=32, num_classes=0, **options)
    encoder.pretrained_cfg["input_size"] = (3, 32, 32)
    more = {"feed": "all", "unit": 8, "decoder_depth": 1} | more
    return MaskedAutoencoder(encoder, decoder_dim=32, decoder_heads=2, **more)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_paints_when_it_is_fed_with_all_units(name: str) -> None:
    model = autoencoder(name, FAMILIES[name])
    model(torch.randn(2, 3, 32, 32)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    recipe = load("hivit/mae")
    assert optimizer(model, recipe).param_groups


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("nest_tiny_cifar", dict(unit=16, stages="last", decoder_depth=0), None),
        ("nest_tiny_cifar", dict(unit=4, stages="last", decoder_depth=0), "take unit=8"),
        ("rest_lite", dict(unit=2), None),
        ("nest_tiny_cifar", dict(unit=32), "leaves none of 1 units"),
    ],
)
def test_units_and_tokens_have_to_go_into_each_other(
    name: str, more: dict[str, Any], words: str | None
) -> None:
    if words is None:
        assert autoencoder(name, FAMILIES[name], **more)(torch.randn(1, 3, 32, 32)).isfinite()
    else:
        with pytest.raises(ValueError, match=words):
            autoencoder(name, FAMILIES[name], **more)


def test_units_that_cut_tokens_are_refused() -> None:
    encoder = ziggurat.create_model("nest_tiny", img_size=84, num_classes=0)
    with pytest.raises(ValueError, match="strides of 4, 8, 16 pixels, got units of 12"):
        MaskedAutoencoder(encoder, feed="all", unit=12)


def test_a_model_that_shows_no_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no maps of its stages"):
        MaskedAutoencoder(nn.Linear(2, 2), feed="all")


def test_simmim_is_one_linear_layer_behind_the_last_stage() -> None:
    name = "timm/swin_tiny_patch4_window7_224"
    model = autoencoder(
        name, FAMILIES[name], stages="last", decoder_depth=0, normalise=False, loss="l1"
    ).eval()
    assert [n for n, _ in model.decoder.named_children()] == ["norm_in", "pred"]
    images, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    masking = mask_randomly(noise, 0.75)
    expected = (model.paint(images, masking) - patchify(images, 8)).abs().mean(-1)
    torch.testing.assert_close(model(images, noise), expected[masking.flags().bool()].mean())


def test_only_hivit_can_leave_units_out() -> None:
    with pytest.raises(ValueError, match='only a HiViT of MLP stages can: take feed="all"'):
        autoencoder("nest_tiny_cifar", FAMILIES["nest_tiny_cifar"], feed="visible")
    windows = FAMILIES["hivit_tiny"] | dict(dims=(32, 64, 64), shallow="window")
    with pytest.raises(ValueError, match="only a HiViT of MLP stages can"):
        autoencoder("hivit_tiny", windows, feed="visible")


def test_the_official_checkpoint_starts_a_classifier_and_further_pretraining(
    tmp_path: Path,
) -> None:
    reference = Fixture("hivit_base_mae")
    file = tmp_path / "mae_hivit_base.pth"
    torch.save({"model": reference.state}, file)
    started = open_model("hivit_base", file, num_classes=7)
    assert torch.equal(started.patch_embed.norm.weight, reference.state["patch_embed.norm.weight"])
    assert not any(p.any() for n, p in started.named_parameters() if n.endswith("bias.table"))
    assert started.head.weight.shape == (7, 512)
    changes = {"data": "digits", "init": str(file)}
    task: Any = train.build(load("hivit/mae", "hivit_base", changes))
    noise = torch.from_numpy(reference.outputs["noise"])
    with torch.no_grad():
        loss = task.model.eval()(reference.images, noise)
    np.testing.assert_allclose(loss.item(), reference.outputs["loss"], rtol=0, atol=1e-5)


def test_a_meta_model_takes_a_checkpoint_without_relative_biases() -> None:
    options: dict[str, Any] = dict(
        img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2), num_classes=3
    )
    state = HiViT(rpe=False, **options).state_dict()
    with torch.device("meta"):
        model = HiViT(**options)
    load_checkpoint(model, state)
    assert not any(p.is_meta for p in model.parameters())
    assert not model.stages[-1].blocks[0].attn.bias.table.any()


def test_a_checkpoint_of_pretraining_starts_any_training(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2))
    encoder = ziggurat.create_model("hivit_tiny", rpe=False, **options)
    model = MaskedAutoencoder(encoder, decoder_dim=32, decoder_depth=1, decoder_heads=2)
    save_file(model.state_dict(), tmp_path / "mae.safetensors")
    started = open_model("hivit_tiny", tmp_path / "mae.safetensors", num_classes=3, **options)
    assert torch.equal(started.stages[0].blocks[0].mlp.fc1.weight,
                       model.encoder.stages[0].blocks[0].mlp.fc1.weight)  # fmt: skip
    tables = [p for n, p in started.named_parameters() if n.endswith("bias.table")]
    assert len(tables) == 2
    assert not any(table.any() for table in tables)  # pre-training had none
