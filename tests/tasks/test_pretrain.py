import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.reference import Fixture, Reading, run_catching, slice64
from ziggurat.layers.position import sin_cos
from ziggurat.models.hivit import VARIANTS, HiViT, Units
from ziggurat.models.weights import CheckpointError, load_checkpoint
from ziggurat.tasks.pretrain import MaskedAutoencoder, mask_randomly, patchify


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
        return self.model(images, self.noise)


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
        np.testing.assert_allclose(loss.item(), reference.outputs[key], rtol=0, atol=atol)


def tiny() -> MaskedAutoencoder:
    encoder = HiViT(img_size=64, dims=(8, 16, 32), heads=2, depths=(1, 1, 2), rpe=False)
    return MaskedAutoencoder(encoder, decoder_dim=32, decoder_depth=2, decoder_heads=2)


def test_the_mask_is_the_official_one() -> None:
    outputs = Fixture("hivit_base_mae").outputs
    masking = mask_randomly(torch.from_numpy(outputs["noise"]), 0.75)
    assert torch.equal(masking.visible, torch.from_numpy(outputs["ids_keep"]))
    assert torch.equal(masking.hidden.bool(), torch.from_numpy(outputs["mask"]).bool())


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
    painted = patchify(x)
    mean, std = painted.mean(-1, keepdim=True), painted.std(-1, keepdim=True)
    expected = (model.paint(x, masking) - (painted - mean) / std).square().mean(-1)
    hidden = masking.hidden.bool()
    torch.testing.assert_close(model(x, noise), expected[hidden].mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5, 0.99])
def test_a_ratio_that_hides_nothing_or_everything_is_an_error(ratio: float) -> None:
    with pytest.raises(ValueError, match="mask ratio"):
        mask_randomly(torch.rand(1, 16), ratio)


def test_a_pretrained_encoder_starts_a_classifier() -> None:
    state = Fixture("hivit_base_mae").state
    model = HiViT(**VARIANTS["hivit_base"])
    with pytest.raises(CheckpointError, match=r"missing.*head\.weight.*not in the model: decoder"):
        load_checkpoint(model, state)
    load_checkpoint(model, state, ignore=("decoder.*", "head.*", "norm.*", "*.bias.table"))
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
    loss = tiny()(torch.randn(1, 3, 80, 90))
    assert loss.isfinite()
