from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.models.small import small
from ziggurat.explain.rollout import rollout, strongest
from ziggurat.layers.attention import Attention
from ziggurat.models.nest import NesT

SHAPES = [
    ("nest_tiny", {}, 4),
    ("nest_tiny", {"aggregate": "merge"}, 4),
    ("hvt_ti_2", {}, 8),
    ("hvt_ti_2", {"pool": "conv"}, 8),
    ("hvt_ti_2", {"pool_2d": True}, 8),
    ("rest_lite", {}, 4),
    ("hivit_tiny", {}, 16),
    ("regionvit_ti", {}, 4),
    ("regionvit_ti", {"regional": "none"}, 4),
    ("regionvit_ti", {"peg": True, "tokenize": "1conv"}, 4),
]


def recorded(model: nn.Module, image: Tensor) -> list[Tensor]:
    """Each attention's softmax, (B, heads, N, N), from what its projection gives."""
    found: list[Tensor] = []

    def keep(module: Any, args: Any, qkv: Tensor) -> None:
        heads = counts[module]
        q, k, _ = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        found.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))

    counts = {}
    for module in model.modules():
        if isinstance(module, Attention | timm.layers.Attention):
            counts[module.qkv] = getattr(module, "heads", None) or module.num_heads
            module.qkv.register_forward_hook(keep)
    with torch.no_grad():
        model(image)
    return found


def fused(attention: Tensor) -> Tensor:
    """The strongest head, without the lowest nine tenths, and the token itself: (B, N, N)."""
    a = attention.amax(1)
    for matrix in a:
        order = matrix.flatten().argsort()
        matrix.view(-1)[order[: int(0.9 * order.numel())]] = 0
    a = (a + torch.eye(a.shape[-1])) / 2
    return a / a.sum(-1, keepdim=True)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_plain_vit_is_the_product_of_its_attentions(pool: str) -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", depth=3, img_size=(48, 80), num_classes=5, global_pool=pool
    ).eval()
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.2)
    image = torch.randn(1, 3, 48, 80)
    found, side = rollout(model, image)
    product = torch.eye(1 + 3 * 5)
    for attention in recorded(model, image):
        product = fused(attention)[0] @ product
    row = product[0] if pool == "token" else product[1:].mean(0)
    assert side == 16
    assert torch.allclose(found, row[1:].view(3, 5), atol=1e-6)
    assert found.std() > 0.1 * found.mean()


def test_a_hierarchy_is_the_product_of_windows_and_merges() -> None:
    """NesT's two levels as matrices over all tokens: blocks on the diagonal, means of four."""
    model = NesT(16, num_classes=5, patch_size=4, dims=(8, 16), heads=(2, 2), depths=(2, 1)).eval()
    for module in model.modules():
        if isinstance(module, Attention):
            nn.init.normal_(module.qkv.weight, std=0.3)
    image = torch.randn(1, 3, 16, 16)
    found, side = rollout(model, image)
    first, second, last = (fused(one) for one in recorded(model, image))
    cells = torch.arange(16).view(4, 4)
    blocks = [cells[i : i + 2, j : j + 2].flatten() for i in (0, 2) for j in (0, 2)]
    merge = torch.zeros(4, 16)
    product = torch.eye(16)
    for attention in (first, second):
        whole = torch.zeros(16, 16)
        for block, matrix in zip(blocks, attention, strict=True):
            whole[block[:, None], block] = matrix
        product = whole @ product
    for token, block in enumerate(blocks):  # the blocks are the 2 x 2 neighbours here
        merge[token, block] = 1 / 4
    product = last[0] @ merge @ product
    assert side == 4
    assert torch.allclose(found, product.mean(0).view(4, 4), atol=1e-6)
    assert found.std() > 0.1 * found.mean()


@pytest.mark.parametrize(("name", "options", "stride"), SHAPES, ids=str)
@pytest.mark.parametrize("size", [(64, 64), (97, 131)])
def test_shares_are_positive_and_sum_to_one(
    name: str, options: dict[str, Any], stride: int, size: tuple[int, int]
) -> None:
    model = small(name, **options).eval()
    found, side = rollout(model, torch.randn(1, 3, *size))
    assert side == stride
    assert found.shape == tuple(-(-n // stride) for n in size)
    assert found.min() >= 0
    assert found.sum().item() == pytest.approx(1, abs=1e-5)


def test_learned_tokens_keep_a_share() -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)
    for name, options in (
        ("hvt_ti_2", {"stages": 0, "class_token": True}),
        ("regionvit_ti", {"regional": "learnable"}),
    ):
        model = small(name, **options).eval()
        for module in model.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.qkv.weight)
        found, _ = rollout(model, image)
        assert 0 < found.sum() < 1


def test_computing_attention_in_the_open_changes_nothing() -> None:
    from ziggurat.explain.rollout import Recorded

    for name in ("hivit_tiny", "regionvit_ti", "rest_lite"):
        model = small(name).eval()
        image = torch.randn(1, 3, 64, 64)
        with torch.no_grad():
            expected = model(image)
            with Recorded() as found:
                assert torch.allclose(model(image), expected, atol=1e-5)
        assert found.maps


def test_the_strongest_tenth_is_kept_and_all_that_is_as_strong() -> None:
    kept = strongest(torch.arange(100.0).view(1, 10, 10))
    assert (kept > 0).sum() == 10
    assert torch.equal(strongest(torch.full((2, 4, 4), 0.25)), torch.full((2, 4, 4), 0.25))
    assert torch.equal(strongest(torch.eye(4)[None]), torch.eye(4)[None])  # all or none
