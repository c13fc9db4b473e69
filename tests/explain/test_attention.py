import pytest
import torch
from torch import nn

from tests.models.small import small
from ziggurat.explain.attention import (
    attentions,
    diversity,
    instance_norm,
    mixes,
    mixing,
    similarity,
    variances,
)
from ziggurat.models.rest import EMSA


def test_heads_that_look_elsewhere_are_diverse_and_equal_ones_are_not() -> None:
    apart = torch.eye(6).view(1, 3, 2, 6)  # three heads, none of whose weights overlap
    assert torch.allclose(similarity(apart)[0], torch.eye(3))
    assert diversity(similarity(apart)[0]) == pytest.approx(1)
    same = torch.rand(1, 1, 4, 5).expand(1, 3, 4, 5)
    assert diversity(similarity(same)[0]) == pytest.approx(0, abs=1e-6)


def test_similarity_is_the_cosine_of_flattened_maps() -> None:
    maps = torch.zeros(1, 2, 2, 2)
    maps[0, 0], maps[0, 1] = torch.tensor([[3.0, 0], [0, 4]]), torch.tensor([[1.0, 0], [0, 0]])
    assert similarity(maps)[0, 0, 1] == pytest.approx(0.6)
    assert diversity(similarity(maps)[0]) == pytest.approx(0.4)


def test_the_three_places_are_those_of_emsa() -> None:
    model = small("rest_lite").eval()
    found = mixing(model, torch.randn(2, 3, 64, 64))
    assert list(found) == [f"stages.{i}.blocks.0" for i in (1, 2, 3)]  # stage 0 has one head
    for layer, (before, after, normed) in found.items():
        attn = model.get_submodule(layer).attn
        assert isinstance(attn, EMSA)
        heads = before.shape[1]
        as_conv = nn.functional.conv2d(before, attn.mix.weight, attn.mix.bias)
        assert torch.allclose(after, as_conv, atol=1e-5)
        v = torch.randn(2, heads, before.shape[3], 5)
        assert torch.allclose(normed @ v, attn.normalised(after, v), atol=1e-4)


def test_mixing_heads_into_one_takes_their_diversity_away() -> None:
    model = small("rest_lite").eval()
    for module in model.modules():
        if isinstance(module, EMSA) and module.mix is not None:
            nn.init.ones_(module.mix.weight)
            nn.init.zeros_(module.mix.bias)
    last = list(mixing(model, torch.randn(1, 3, 64, 64)).values())[-1]
    before, after, _ = (diversity(similarity(maps)[0]) for maps in last)
    assert before > 0.5
    assert after == pytest.approx(0, abs=1e-5)


def test_only_rest_of_version_1_mixes_heads() -> None:
    assert mixes(small("rest_lite"))
    assert not mixes(small("rest_lite", version=2))
    assert not mixes(small("nest_tiny"))


def test_instance_norm_gives_each_head_mean_0_and_variance_1() -> None:
    normed = instance_norm(10 * torch.randn(2, 3, 20, 30))
    assert torch.allclose(normed.mean((2, 3)), torch.zeros(2, 3), atol=1e-5)
    assert torch.allclose(normed.var((2, 3), correction=0), torch.ones(2, 3), atol=1e-2)


@pytest.mark.parametrize(
    ("name", "layers"), [("hivit_tiny", 2), ("nest_tiny", 4), ("rest_lite", 4)]
)
def test_attention_of_every_layer_is_kept_as_weights(name: str, layers: int) -> None:
    model = small(name).eval()
    found = attentions(model, torch.randn(1, 3, 64, 64))
    assert len(found) == layers
    for weights in found:
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5)


def test_variance_is_between_models_position_by_position() -> None:
    flat, sharp = torch.full((1, 2, 2), 0.5), torch.eye(2)[None]
    assert variances([[flat, sharp], [flat, sharp], [flat, sharp]]) == [0, 0]
    assert variances([[flat, sharp], [sharp, sharp]]) == [0.0625, 0]  # 0.25 from the mean each


def test_models_of_other_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="one architecture"):
        variances([[torch.ones(1, 2, 2)], [torch.ones(1, 3, 3)]])
