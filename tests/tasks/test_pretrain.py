import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.reference import Fixture, Reading, run_catching, slice64
from ziggurat.models.hivit import VARIANTS, HiViT, Units
from ziggurat.models.weights import load_checkpoint
from ziggurat.tasks.pretrain import MaskedAutoencoder


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
    read = {k: (p.replace("encoder", "model.encoder").replace("decoder", "model.decoder"), f)
            for k, (p, f) in READINGS.items()}
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
