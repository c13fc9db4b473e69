import numpy as np
import pytest
import torch

from tests.reference import Fixture, Reading, check_parity
from ziggurat.layers import windows
from ziggurat.models.nest import VARIANTS, NesT
from ziggurat.models.weights import load_checkpoint


def blocks_of(size: int) -> "object":
    """(B, H, W, C) in the official layout: (B, blocks, tokens, C)."""

    def read(x: torch.Tensor) -> torch.Tensor:
        cut = windows.partition(x.shape[1], x.shape[2], size)
        return windows.split(x, cut).unflatten(0, (x.shape[0], -1))

    return read


def flax_readings(model: NesT) -> dict[str, Reading]:
    size = model.stages[0].block
    readings: dict[str, Reading] = {
        "PatchEmbedding_0": ("patch_embed", lambda x: x.permute(0, 2, 3, 1)),
        "LayerNorm_0": ("norm", blocks_of(size)),
    }
    number = 0
    for i, level in enumerate(model.stages):
        if i:
            readings[f"ConvPool_{i - 1}"] = (f"stages.{i}.down", blocks_of(size))
        per_block = lambda x: x.unflatten(0, (2, -1))  # noqa: E731
        readings[f"PositionEmbedding_{i}"] = (f">stages.{i}.blocks.0", per_block)
        for j in range(len(level.blocks)):
            path = f"stages.{i}.blocks.{j}"
            readings[f"EncoderNDBlock_{number}"] = (path, per_block)
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
    nchw = lambda x: x.permute(0, 3, 1, 2)  # noqa: E731
    readings: dict[str, Reading] = {
        "patch_embed": ("patch_embed", lambda x: x),
        "norm": ("norm", lambda x: x),
        "pooled": ("head_drop", lambda x: x),
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
