import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.layers import attention as layer
from ziggurat.layers.attention import Attention, attend


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(layer, "FEW", range(1, 20))
    monkeypatch.setattr(layer, "INTELS", False)


def packed(batch: int = 5, heads: int = 3, tokens: int = 7, width: int = 8) -> list[Tensor]:
    """q, k and v as a linear layer gives them, (B, heads, N, head_dim)."""
    torch.manual_seed(0)
    together = torch.randn(batch, tokens, 3, heads, width)
    return [t.transpose(1, 2) for t in together.unbind(2)]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("shape", [None, (1, 3, 7, 7), (5, 1, 1, 7), (5, 3, 7, 7)])
@pytest.mark.parametrize("cached", [0, 3 * 7 * 7, 10**6], ids=["one", "two", "all"])
def test_parts_of_a_batch_are_attended_as_the_whole(
    shape: tuple[int, ...] | None, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = packed()
    bias = None if shape is None else torch.randn(shape)
    whole = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    monkeypatch.setattr(layer, "CACHED", cached)
    found = layer.attend_in_parts(q, k, v, bias)
    torch.testing.assert_close(found, whole)


@pytest.mark.usefixtures("two_threads")
def test_only_small_attention_on_several_threads_goes_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = packed()
    with torch.no_grad():
        assert layer.in_parts(q, k)
        assert not layer.in_parts(q.double(), k.double())
        long = q.new_zeros(1, 1, 20, 1)
        assert not layer.in_parts(long, long)
        assert not layer.in_parts(q[:, :, :0], k)
        with torch.autocast("cpu", torch.bfloat16):
            assert not layer.in_parts(q, k)
        with sdpa_kernel(SDPBackend.MATH):
            assert not layer.in_parts(q, k)
        assert attend(q[:0], k[:0], v[:0], None).shape == (0, *q.shape[1:])
        monkeypatch.setattr(layer, "INTELS", True)  # there torch's kernel is the faster one
        assert not layer.in_parts(q, k)
        monkeypatch.setattr(layer, "INTELS", False)
    assert not layer.in_parts(q, k)


@pytest.mark.usefixtures("two_threads")
def test_who_listens_to_the_kernel_is_heard() -> None:
    class Listening(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func)
            return func(*args, **(kwargs or {}))

    heard: list[object] = []
    q, k, v = packed()
    with torch.no_grad(), Listening():
        attend(q, k, v, None)
    assert F.scaled_dot_product_attention in heard


@pytest.mark.usefixtures("two_threads")
def test_products_in_parts_are_counted_and_not_exported() -> None:
    attention = Attention(24, 3).eval()
    x = torch.randn(2, 7, 24)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(x)
    assert counter.get_total_flops() == 2 * 2 * 7 * (4 * 24 * 24 + 2 * 7 * 24)
    with torch.no_grad():
        names = {str(node.target) for node in torch.export.export(attention, (x,)).graph.nodes}
    assert any("scaled_dot_product_attention" in name for name in names)


@pytest.mark.parametrize("width", [8, 16], ids=["inexact", "exact"])  # is 1 / sqrt(d)
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_products_apart_give_the_same(width: int, few: bool, kv_heads: int) -> None:
    torch.manual_seed(0)
    attention = Attention(3 * width, 3, kv_heads)
    x, bias = torch.randn(2, 7, 3 * width), torch.randn(1, 3, 4 if few else 7, 7)
    given = (x, bias, x[:, :4]) if few else (x, bias)
    parameters = sum(p.numel() for p in attention.parameters())
    with torch.no_grad():
        expected = attention(*given)
        attention.take_apart()
        attention.take_apart()  # once is enough
        torch.testing.assert_close(attention(*given), expected)
    assert hasattr(attention, "qkv") == (kv_heads == 1)
    assert sum(p.numel() for p in attention.parameters()) == parameters
