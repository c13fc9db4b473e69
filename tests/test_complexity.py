import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat import complexity
from ziggurat.layers.attention import Attention, Block
from ziggurat.models.hvt import HVT

sizes = st.integers(1, 10**6)


def counted(module: nn.Module, *shape: int) -> float:
    """Multiply-accumulates of one pass on the meta device."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.empty(shape, device="meta"))
    return counter.get_total_flops() / 2


@pytest.mark.parametrize(("n", "d", "heads"), [(196, 192, 3), (97, 384, 6), (11, 64, 1)])
def test_a_block_costs_what_the_paper_says(n: int, d: int, heads: int) -> None:
    with torch.device("meta"):
        block = Block(d, Attention(d, heads))
    assert counted(block.attn, 1, n, d) == complexity.msa(n, d)
    assert counted(block.mlp, 1, n, d) == complexity.mlp(n, d)
    assert counted(block, 1, n, d) == complexity.block(n, d) == 12 * n * d**2 + 2 * n**2 * d


@given(n=sizes, d=sizes)
def test_halving_the_sequence_saves_two_to_four_times(n: int, d: int) -> None:
    ratio = complexity.compression(2 * n, d)
    assert 2 < ratio < 4
    assert ratio == pytest.approx(complexity.block(2 * n, d) / complexity.block(n, d))


@given(n=sizes, d=sizes)
def test_the_saving_grows_with_the_sequence_and_falls_with_the_width(n: int, d: int) -> None:
    assert complexity.compression(n, d) <= complexity.compression(n + 1, d)
    assert complexity.compression(n, d) >= complexity.compression(n, d + 1)


@pytest.mark.parametrize(
    ("stages", "lengths"), [(0, (196,)), (2, (196, 97, 48)), (4, (196, 97, 48, 23, 11))]
)
def test_the_blocks_of_a_whole_model_add_up(stages: int, lengths: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = HVT(heads=3, stages=stages, num_classes=10)
    stem_and_head = 196 * 16 * 16 * 3 * 192 + 192 * 10
    expected = complexity.pooled_blocks(lengths, d=192, depth=12) + stem_and_head
    assert counted(model, 1, 3, 224, 224) == expected


def test_blocks_that_do_not_split_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="12 blocks cannot be split evenly into 5 stages"):
        complexity.pooled_blocks((196, 97, 48, 23, 11, 5), d=192, depth=12)


def test_regional_attention_holds_a_quarter_of_the_map() -> None:
    """RegionViT, Section 3: N = 196, M = 7 saves some 73 %."""
    regional = complexity.regional_maps(196, 7)
    assert regional == 4**2 + 4 * 50**2
    assert 1 - regional / complexity.attention_map(196) == pytest.approx(0.739, abs=5e-4)
    with pytest.raises(ValueError, match="190 tokens are not whole windows of 7 x 7"):
        complexity.regional_maps(190, 7)
