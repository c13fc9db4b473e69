from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.layers import linear as layer
from ziggurat.layers.linear import Linear, Mlp

pytestmark = pytest.mark.skipif(not layer.ONEDNN, reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "SMALL", 1)


def twins(dim: int, out: int, bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, torchs = Linear(dim, out, bias), nn.Linear(dim, out, bias)
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


@pytest.mark.parametrize("shape", [(4, 16), (2, 3, 16), (2, 0, 16), (16,)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("out", [24, 8])
def test_a_layer_gives_torchs_numbers_and_gradients(
    shape: tuple[int, ...], bias: bool, wide: bool, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "WIDE_AMD", wide)
    ours, torchs = twins(16, out, bias)
    x = torch.randn(shape, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    for trained in (False, True):
        with torch.set_grad_enabled(trained):
            torch.testing.assert_close(ours(x), torchs(y))
    ours(x).square().sum().backward()
    torchs(y).square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.grad)
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_what_is_not_contiguous_is_multiplied_alike() -> None:
    ours, torchs = twins(16, 24)
    x = torch.randn(3, 32, 5).transpose(1, 2)[:, :4, ::2]
    torch.testing.assert_close(ours(x), torchs(x))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("out", [6, 3])
def test_gradients_have_gradients(wide: bool, out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "WIDE_AMD", wide)
    ours, _ = twins(4, out)
    x = torch.randn(3, 4, requires_grad=True)
    found = []
    for run in (ours, lambda x: nn.functional.linear(x, ours.weight, ours.bias)):
        slope = torch.autograd.grad(run(x).pow(3).sum(), x, create_graph=True)[0]
        found.append(torch.autograd.grad(slope.square().sum(), [x, ours.weight]))
    torch.testing.assert_close(*found)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    ours, _ = twins(4, 6)
    ours.weight.requires_grad_(False)
    ours(torch.randn(3, 4)).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias.grad is not None


@pytest.mark.parametrize("gelu", ["none", "tanh"])
def test_gelu_on_the_way_is_gelu(gelu: str) -> None:
    mlp = Mlp(16, 64, gelu)
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), mlp.fc2(mlp.act(mlp.fc1(x))))
        torch.testing.assert_close(mlp(x), mlp(x.double().float()), rtol=0, atol=0)
    torch.testing.assert_close(mlp.double()(x.double()).float(), mlp.float()(x))


def test_who_listens_to_the_first_layer_or_replaces_it_is_heard() -> None:
    mlp = Mlp(4, 8)
    x = torch.randn(2, 4)
    heard: list[Tensor] = []
    with torch.no_grad():
        handle = mlp.fc1.register_forward_hook(lambda _, args, out: heard.append(out))
        plain = mlp(x)
        handle.remove()
        torch.testing.assert_close(heard[0], mlp.fc1(x))
        mlp.fc1 = nn.Sequential(mlp.fc1, nn.Identity())  # type: ignore[assignment]
        torch.testing.assert_close(mlp(x), plain)


def test_who_listens_to_gelu_or_replaces_it_is_heard() -> None:
    mlp = Mlp(4, 8)
    x = torch.randn(2, 4)
    heard: list[Tensor] = []
    with torch.no_grad():
        mlp.act.register_forward_hook(lambda _, args, out: heard.append(out))
        torch.testing.assert_close(mlp(x), mlp.fc2(heard[0]))
        mlp.act = nn.ReLU()  # type: ignore[assignment]
        torch.testing.assert_close(mlp(x), mlp.fc2(mlp.fc1(x).relu()))


def test_a_large_hidden_layer_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp = Mlp(8, 32)
    x = torch.randn(3, 7, 16)[:, :, ::2]
    seen: list[int] = []
    onednn = layer.onednn

    def watched(x: Tensor, *rest: Any) -> Tensor:
        seen.append(x.numel())
        return onednn(x, *rest)

    with torch.no_grad():
        whole = mlp(x)
        monkeypatch.setattr(layer, "LARGE", 2 * 5 * 32)
        monkeypatch.setattr(layer, "PART", 5 * 32)
        monkeypatch.setattr(layer, "onednn", watched)
        torch.testing.assert_close(mlp(x), whole)
        assert seen == [5 * 8, 5 * 32] * 4 + [8, 32]
        heard: list[Tensor] = []
        mlp.fc2.register_forward_hook(lambda _, args, out: heard.append(out))
        assert mlp(x) is heard[0]  # who listens to the second layer gets all of it


def test_products_are_counted_on_the_cpu_as_well() -> None:
    mlp = Mlp(4, 8)
    for trained in (False, True):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(trained):
            mlp(torch.randn(3, 4))
        assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 8


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_other_types_graphs_and_transforms_are_torchs() -> None:
    ours, torchs = twins(8, 8)
    x = torch.randn(2, 3, 8)
    assert ours.double()(x.double()).dtype == torch.float64
    ours.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    names = {str(node.target) for node in torch.export.export(ours, (x,)).graph.nodes}
    assert not any("mkldnn" in name for name in names)
    assert "mkldnn" not in str(torch.jit.trace(ours, x).graph)
    torch.testing.assert_close(torch.func.vmap(ours)(x), torchs(x))
    torch.testing.assert_close(torch.func.jacrev(ours)(x[0, 0]), torchs.weight)
