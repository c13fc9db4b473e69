"""A batch norm in evaluation is part of the convolution before it."""

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from ziggurat.layers.convolution import normed


def layers(bias: bool = False) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """As after some training: no norm's numbers are those it starts with."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 4, 3, 2, padding=1, bias=bias), nn.BatchNorm2d(4, eps=1e-3)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    for numbers in (norm.weight, norm.running_var):
        nn.init.uniform_(numbers, 0.5, 2.0)
    for numbers in (norm.bias, norm.running_mean):
        nn.init.normal_(numbers)
    return conv, norm


@pytest.mark.parametrize("bias", [False, True])
def test_in_evaluation_both_are_one_convolution_of_the_same_gradients(bias: bool) -> None:
    conv, norm = (layer.double() for layer in layers(bias))
    norm.eval()
    found = []
    for answer in (lambda x: normed(conv, norm, x), lambda x: norm(conv(x))):
        torch.manual_seed(1)
        x = torch.randn(2, 3, 9, 9, dtype=torch.float64).requires_grad_()
        y = answer(x)
        learned = [*conv.parameters(), *norm.parameters()]
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, *learned])))
    torch.testing.assert_close(*found)


def test_in_training_the_norm_learns_from_the_batch() -> None:
    conv, norm = layers()
    before = norm.running_mean.clone()
    y = normed(conv, norm.train(), torch.randn(8, 3, 9, 9))
    torch.testing.assert_close(y.mean((0, 2, 3)), norm.bias)
    assert not torch.equal(norm.running_mean, before)


def test_other_norms_and_those_that_keep_no_mean_are_run_as_they_are() -> None:
    conv, _ = layers()
    x = torch.randn(2, 3, 9, 9)
    for norm in (
        nn.GroupNorm(2, 4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm2d(4, affine=False),
        BatchNormAct2d(4),  # torch's and then ReLU
    ):
        norm.eval()
        torch.testing.assert_close(normed(conv, norm, x), norm(conv(x)), rtol=0, atol=0)


@pytest.mark.parametrize("which", [0, 1])
def test_who_listens_to_either_hears_it(which: int) -> None:
    pair = layers()
    pair[1].eval()
    said: list[Tensor] = []
    pair[which].register_forward_hook(lambda _, args, out: said.append(out))
    answer = normed(*pair, torch.randn(2, 3, 9, 9))
    assert len(said) == 1
    assert which == 0 or said[0] is answer
