import pytest
import torch
from torch import Tensor

from tests.reference import Fixture, Reading, check_parity
from ziggurat.models.hivit import VARIANTS, HiViT, Units
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
