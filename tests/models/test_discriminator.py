import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.models.discriminator import (
    DISCRIMINATORS,
    Conv,
    Discriminator,
    Down,
    blur,
    blur_kernel,
    deviation,
    rectified,
)


def penalty(model: nn.Module, images: Tensor) -> Tensor:
    """R1: how steep the logits are at these images."""
    images = images.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
    return slopes.square().sum((1, 2, 3)).mean()


@pytest.mark.parametrize("side", [8, 16, 32, 64, 128])
def test_images_of_any_power_of_two_get_one_logit_each(side: int) -> None:
    model = Discriminator(side, dim=16, full_to=8, in_chans=1)
    logits = model(torch.randn(3, 1, side, side))
    assert logits.shape == (3,)
    assert logits.isfinite().all()


def test_widths_are_stylegan2s() -> None:
    with torch.device("meta"):
        assert Discriminator(64).dims == (512,) * 5
        assert Discriminator(256).dims == (128, 256, *(512,) * 5)  # configuration F
        assert Discriminator(32, **DISCRIMINATORS["discriminator_small"]).dims == (32, 64, 128, 128)


@pytest.mark.parametrize("options", DISCRIMINATORS.values(), ids=DISCRIMINATORS)
def test_parameters_of_the_discriminator(options: dict[str, int]) -> None:
    with torch.device("meta"):
        model = Discriminator(64, **options)
    d = model.dims[-1]
    wanted = 3 * model.dims[0] + model.dims[0]
    for a, b in itertools.pairwise(model.dims):
        wanted += 9 * a * a + a + 9 * a * b + b + a * b
    wanted += 9 * (d + 1) * d + d + 16 * d * d + d + d + 1
    assert sum(p.numel() for p in model.parameters()) == wanted
    assert {*model.state_dict()} == {name for name, _ in model.named_parameters()}


def test_the_blur_is_1_3_3_1_of_sum_one() -> None:
    kernel = blur_kernel()
    assert (64 * kernel).tolist() == [[1, 3, 3, 1], [3, 9, 9, 3], [3, 9, 9, 3], [1, 3, 3, 1]]
    x = torch.randn(2, 3, 6, 6)
    around = F.pad(x, (2, 2, 2, 2))
    wanted = torch.zeros(2, 3, 7, 7)
    for i, j in itertools.product(range(4), range(4)):
        wanted += (1, 3, 3, 1)[i] * (1, 3, 3, 1)[j] / 64 * around[:, :, i : i + 7, j : j + 7]
    torch.testing.assert_close(blur(x, kernel, 2), wanted)
    torch.testing.assert_close(blur(torch.ones(1, 1, 8, 8), kernel, 0), torch.ones(1, 1, 5, 5))


def test_halving_blurs_then_takes_every_second() -> None:
    """As StyleGAN2's ``conv_downsample_2d`` pads: (2, 2) for conv3, (1, 1) for conv1."""
    x = torch.randn(2, 3, 8, 8)
    for size in (1, 3):
        conv = Conv(3, 5, size, halve=True)
        blurred = blur(F.pad(x, [(size + 1) // 2] * 4), blur_kernel(), 0)
        wanted = F.conv2d(blurred, conv.weight * conv.scale)[:, :, ::2, ::2]
        assert wanted.shape == (2, 5, 4, 4)
        torch.testing.assert_close(conv(x), wanted)


def test_weights_are_scaled_when_used() -> None:
    torch.manual_seed(0)
    conv = Conv(64, 64, 3)
    assert abs(conv.weight.std() - 1) < 0.02
    x = torch.randn(4, 64, 16, 16)
    inside = conv(x)[:, :, 1:-1, 1:-1]
    assert abs(inside.std() - 1) < 0.05
    wanted = F.conv2d(x, conv.weight / math.sqrt(64 * 9), conv.bias, padding=1)
    torch.testing.assert_close(conv(x), wanted)


def test_a_block_adds_its_skip_and_keeps_the_deviation() -> None:
    torch.manual_seed(0)
    block = Down(6, 10)
    x = torch.randn(2, 6, 8, 8)
    y = math.sqrt(2) * F.leaky_relu(block.conv1(x), 0.2)
    y = math.sqrt(2) * F.leaky_relu(block.conv2(y), 0.2)
    torch.testing.assert_close(block(x), (y + block.skip(x)) / math.sqrt(2))
    assert block.skip.bias is None
    x = torch.randn(10_000)
    assert abs(rectified(x).square().mean() - 1.04) < 0.05


@pytest.mark.parametrize(("batch", "group"), [(8, 4), (4, 4), (6, 3), (10, 2), (3, 3), (1, 1)])
def test_images_of_a_group_are_told_how_much_they_differ(batch: int, group: int) -> None:
    x = torch.randn(batch, 3, 4, 4, dtype=torch.float64)
    found = deviation(x)
    assert found.shape == (batch, 1, 4, 4)
    apart = batch // group
    for i in range(batch):
        members = torch.stack([x[j] for j in range(batch) if j % apart == i % apart])
        assert len(members) == group
        variance = ((members - members.mean(0)) ** 2).mean(0)
        wanted = (variance + 1e-8).sqrt().mean()
        torch.testing.assert_close(found[i], wanted.expand(1, 4, 4))


def test_the_whole_is_stylegan2s() -> None:
    def active(x: Tensor) -> Tensor:
        return math.sqrt(2) * torch.where(x > 0, x, 0.2 * x)

    model = Discriminator(16, dim=8, full_to=8)
    images = torch.randn(4, 3, 16, 16)
    x = active(model.embed(images))
    for block in model.blocks:
        x = block(x)
    assert x.shape == (4, 8, 4, 4)
    x = active(model.conv(torch.cat([x, deviation(x)], 1)))
    x = active(x.flatten(1) @ model.linear.weight.T / math.sqrt(8 * 16) + model.linear.bias)
    wanted = x @ model.head.weight[0] / math.sqrt(8) + model.head.bias
    torch.testing.assert_close(model(images), wanted)


def test_a_batch_of_equals_is_seen_through() -> None:
    torch.manual_seed(0)
    model = Discriminator(8, dim=8)
    x = torch.randn(4, 3, 8, 8)
    alone = model(x[:1])
    torch.testing.assert_close(model(x[:1].expand(4, -1, -1, -1)), alone.expand(4))
    assert (model(x)[:1] - alone).abs() > 1e-4


def test_the_gradient_of_the_r1_penalty_is_right() -> None:
    torch.manual_seed(0)
    model = Discriminator(8, dim=4).double()
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    penalty(model, images).backward()
    for name, p in model.named_parameters():
        if p.grad is None:  # what is added last does not change a slope
            assert name == "head.bias"
            continue
        assert p.grad.isfinite().all()
        way = torch.randn_like(p)
        step = 1e-6
        beside = []
        for by in (step, -2 * step, step):
            with torch.no_grad():
                p.add_(way, alpha=by)
            beside.append(penalty(model, images))
        slope = (beside[0] - beside[1]) / (2 * step)
        torch.testing.assert_close(slope, (p.grad * way).sum(), rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_the_r1_penalty_is_finite_for_any_batch(batch: int) -> None:
    model = Discriminator(16, dim=16, full_to=8)
    images = torch.randn(batch, 3, 16, 16)
    images[-1] = images[0]  # images that do not differ at all
    (model(images).sum() + penalty(model, images)).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@pytest.mark.parametrize("side", [4, 12, 48, 0])
def test_other_sizes_are_said(side: int) -> None:
    with pytest.raises(ValueError, match=f"img_size is 8, 16, 32, 64 and so on, got {side}"):
        Discriminator(side)


def test_too_few_channels_are_said() -> None:
    with pytest.raises(ValueError, match="leaves no channel: take dim=8 or more"):
        Discriminator(64, dim=4, full_to=8)
    Discriminator(64, dim=8, full_to=8)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16), (3, 16, 16)])
def test_other_images_are_said(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes images as \(batch, 3, 16, 16\), got"):
        Discriminator(16, dim=8)(torch.randn(shape))
