import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.layers.attention import Attention
from ziggurat.models.generators import (
    GENERATORS,
    ConvGenerator,
    Grow,
    NesTGenerator,
    TransGenerator,
    create_generator,
    load_generator,
    save_generator,
)
from ziggurat.models.nest import Level
from ziggurat.models.pretrained import save_pretrained
from ziggurat.models.registry import create_model
from ziggurat.models.weights import CheckpointError

UPSAMPLES = [  # Figure 7, middle: PS, NN and C3 and their combinations
    "shuffle", "shuffle-conv3", "conv3-shuffle", "nearest", "nearest-conv3", "conv3-nearest",
]  # fmt: skip


def tiny(**options: Any) -> NesTGenerator:
    settings: dict[str, Any] = dict(img_size=16, dim=16, heads=2, depths=(1, 1), latent=6)
    return NesTGenerator(**(settings | options))


def on_meta(name: str, **options: Any) -> Any:
    with torch.device("meta"):
        return create_generator(name, **options).eval()


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def multiply_adds(model: Any) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.empty(1, model.latent, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", GENERATORS)
def test_every_variant_makes_images_of_its_size(name: str) -> None:
    model = on_meta(name)
    images = model(torch.empty(2, model.latent, device="meta"))
    side = int(name.rpartition("_")[2])
    assert images.shape == (2, 3, side, side)
    assert (model.name, model.img_size, model.overrides) == (name, side, {})


def test_table_a4_is_built_as_printed() -> None:
    model = on_meta("nest_generator_64")
    met: list[tuple[int, ...]] = []

    def meet(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        met.append(tuple(args[0].shape))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.register_forward_pre_hook(meet)
    model(torch.empty(1, 8 * 8 * 1024, device="meta"))  # the input: 1 x n x d, reshaped
    printed = [(1024, 1, 5), (256, 4, 3), (64, 16, 3), (16, 64, 2)]  # d, blocks, layers; 4 to 1
    assert met == [(n, 64, d) for d, n, layers in printed for _ in range(layers)]
    assert all(attention.heads == 4 for attention in attentions)
    assert isinstance(model.norm, nn.LayerNorm)
    assert model.head.weight.shape == (3, 16, 1, 1)
    assert parameters(model.grow) == 0


def layers(dim: int, depth: int) -> int:
    return depth * (12 * dim**2 + 13 * dim)


@pytest.mark.parametrize("latent", [None, 128, 256])
def test_parameters_of_table_a4(latent: int | None) -> None:
    d = 1024
    blocks = sum(layers(d // 4**i, depth) for i, depth in enumerate((5, 3, 3, 2)))
    positions = 4 * 64 * d  # four times the tokens, a quarter of the width
    end = 2 * 16 + 16 * 3 + 3
    noise = 64 * d * (latent + 1) if latent else 0
    model = on_meta("nest_generator_64", latent=latent)
    assert parameters(model) == blocks + positions + end + noise
    trans = on_meta("trans_generator_64", latent=latent or 1)
    assert parameters(trans) == blocks + positions + end - 2 * 16 + 64 * d * ((latent or 1) + 1)


def test_multiply_adds_of_table_a4() -> None:
    wanted = {"nest_generator_64": 4096 * 16 * 3, "trans_generator_64": 4096 * 16 * 3}
    for i, depth in enumerate((5, 3, 3, 2)):
        tokens, dim = 64 * 4**i, 1024 // 4**i
        for name, seen in (("nest_generator_64", 64), ("trans_generator_64", tokens)):
            wanted[name] += depth * tokens * (12 * dim**2 + 2 * seen * dim)
    wanted["trans_generator_64"] += 256 * 64 * 1024  # from its latent
    assert {name: multiply_adds(on_meta(name)) for name in wanted} == wanted


def test_parameters_of_the_convolutions() -> None:
    model = on_meta("conv_generator_64")
    assert model.dims == (1024, 1024, 512, 256, 128)  # SAGAN's for 128 x 128, but its last block
    wanted = (128 + 1) * 16 * 1024 + 2 * 128 + 27 * 128 + 3
    for a, b in itertools.pairwise(model.dims):
        wanted += 2 * a + 9 * a * b + b + 2 * b + 9 * b * b + b + a * b + b
    assert parameters(model) == wanted


@pytest.mark.parametrize("side", [16, 32])
def test_small_variants_cost_alike(side: int) -> None:
    nest, conv = (multiply_adds(on_meta(f"{kind}_generator_{side}")) for kind in ("nest", "conv"))
    assert 0.8 < nest / conv < 1.25
    assert nest < 60e6


def test_the_first_level_is_nests_own() -> None:
    model = tiny(img_size=8, depths=(2,)).eval()
    noise = model.noise(3)
    x = model.embed(noise).view(3, 64, 16) + model.stages[0].pos.table.view(1, 64, 16)
    for block in model.stages[0].blocks:
        x = block(x)
    wanted = model.norm(x) @ model.head.weight.view(3, 16).T + model.head.bias
    found = model(noise).permute(0, 2, 3, 1).reshape(3, 64, 3)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", [NesTGenerator, TransGenerator])
def test_only_full_attention_sees_beyond_the_block(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(img_size=16, dim=16, heads=2, depths=(1, 1), latent=6)
    level = model.stages[1]
    assert isinstance(level, Level)
    x = torch.randn(1, 16, 16, 4, requires_grad=True)
    level(x)[0, 1, 2].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].abs().sum(-1) > 0
    wanted = torch.zeros(16, 16, dtype=torch.bool)
    wanted[:8, :8] = True
    assert torch.equal(seen, wanted if kind is NesTGenerator else torch.ones_like(wanted))


def meets(upsample: str) -> Tensor:
    """Which pixels change with the top left of four blocks behind the first level."""
    torch.manual_seed(0)
    model = tiny(img_size=32, dim=64, heads=2, depths=(1, 1, 1), upsample=upsample).double()
    x = torch.randn(1, 8, 8, 64, dtype=torch.float64)
    y = x.clone()
    y[:, :4, :4] += torch.randn(64)
    for grow, stage in zip(list(model.grow)[1:], list(model.stages)[1:], strict=True):
        x, y = stage(grow(x)), stage(grow(y))
    return (x - y).abs().sum(-1)[0] > 0


def test_blocks_never_meet_again_but_by_convolution() -> None:
    for upsample in ("shuffle", "nearest"):
        changed = meets(upsample)
        assert changed[:16, :16].all()
        assert changed.sum() == 16 * 16
    for upsample in ("shuffle-conv3", "nearest-conv3", "conv3-nearest"):
        assert meets(upsample).sum() > 16 * 16


def nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def test_pixels_are_shuffled_as_torch_does() -> None:
    x = torch.randn(2, 3, 5, 8)
    assert torch.equal(nchw(Grow("shuffle", 8)(x)), F.pixel_shuffle(nchw(x), 2))
    x = torch.arange(8.0).view(1, 1, 1, 8)  # one token of eight channels
    assert Grow("shuffle", 8)(x).tolist() == [[[[0, 4], [1, 5]], [[2, 6], [3, 7]]]]


def test_a_convolution_before_or_behind_nearest_neighbours_is_the_same() -> None:
    grow = Grow("nearest", 8)
    x = torch.randn(2, 3, 5, 8)
    doubled = F.interpolate(nchw(x), scale_factor=2)
    behind = F.conv2d(doubled, grow[0].weight, grow[0].bias)
    torch.testing.assert_close(nchw(grow(x)), behind)


@pytest.mark.parametrize("upsample", UPSAMPLES)
def test_every_way_up_of_figure_7_trains(upsample: str) -> None:
    grow = Grow(upsample, 16)
    assert grow(torch.randn(2, 3, 5, 16)).shape == (2, 6, 10, 4)
    model = tiny(upsample=upsample)
    model(model.noise(2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    "model",
    [
        tiny(latent=None),
        tiny(img_size=8, depths=(1,)),
        tiny(img_size=64, dim=128, depths=(1, 1, 1, 1), out_chans=1),
        TransGenerator(img_size=16, dim=16, heads=2, depths=(1, 1), latent=6),
        ConvGenerator(img_size=16, dim=8, latent=6),
        ConvGenerator(img_size=8, dim=7, latent=6, out_chans=1),
    ],
    ids=["reshaped", "8px", "64px", "trans", "conv", "conv 8px"],
)
def test_gradients_reach_every_parameter(model: Any) -> None:
    images = model(model.noise(4))
    assert images.shape == (4, model.out_chans, model.img_size, model.img_size)
    (images * torch.randn_like(images)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


def test_a_block_of_convolutions_is_sagans() -> None:
    """With the skip's convolution behind the doubling, where the official code has it."""
    model = ConvGenerator(img_size=16, dim=8, latent=6).eval()
    up = model.blocks[1]
    for norm in (up.norm1, up.norm2):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    x = torch.randn(2, 8, 8, 8)
    y = up.conv1(F.interpolate(up.norm1(x).relu(), size=(16, 16)))
    y = up.conv2(up.norm2(y).relu())
    wanted = y + up.skip(F.interpolate(x, size=(16, 16)))
    torch.testing.assert_close(up(x), wanted)
    assert model(10 * model.noise(2)).abs().max() <= 1


def test_one_noise_gives_one_image() -> None:
    model = tiny().eval()
    assert torch.equal(model(model.noise(3, seeded(0))), model(model.noise(3, seeded(0))))
    assert not torch.equal(model.noise(3, seeded(0)), model.noise(3, seeded(1)))
    one, three = model.noise(1, seeded(0)), model.noise(3, seeded(0))
    torch.testing.assert_close(model(one), model(torch.cat([one, three]))[:1])
    assert model.double().noise(2).dtype == torch.float64
    assert model.noise(2, device="meta").is_meta


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nest_generator_16", dict(dim=16, depths=(1, 1), upsample="nearest-conv3", latent=None)),
        ("conv_generator_16", dict(dim=8)),
        ("trans_generator_16", dict(dim=16, depths=[1, 1], out_chans=1)),
    ],
)
def test_it_is_saved_and_loaded_bit_by_bit(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = create_generator(name, **options)
    model(model.noise(8))  # moves the statistics of batch norms
    save_generator(model.eval(), tmp_path / "saved", about={"data": "digits", "steps": 3})
    again = load_generator(tmp_path / "saved")
    assert not again.training
    assert again.name == name
    assert again.about == {"data": "digits", "steps": 3}
    assert {n: t.tolist() for n, t in again.state_dict().items()} == {
        n: t.tolist() for n, t in model.state_dict().items()
    }
    noise = model.noise(2)
    assert torch.equal(again(noise), model(noise))
    save_generator(again, tmp_path / "twice")
    assert load_generator(tmp_path / "twice").about == again.about
    assert {p.name for p in (tmp_path / "saved").iterdir()} == {"config.json", "model.safetensors"}


def test_a_saved_generator_is_not_overwritten_unasked(tmp_path: Path) -> None:
    model = create_generator("conv_generator_16", dim=8)
    save_generator(model, tmp_path)
    with pytest.raises(FileExistsError, match=r"already has config\.json, model"):
        save_generator(model, tmp_path)
    other = create_generator("conv_generator_16", dim=4)
    save_generator(other, tmp_path, overwrite=True)
    assert load_generator(tmp_path).overrides == {"dim": 4}


def test_what_cannot_be_saved_or_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="built by create_generator know their name, got NesTG"):
        save_generator(tiny(), tmp_path / "nameless")
    model = create_generator("conv_generator_16", dim=8)
    with pytest.raises(ValueError, match=r"config\.json cannot hold .* give numbers"):
        save_generator(model, tmp_path / "odd", about={"what": object()})
    assert not (tmp_path / "odd").exists()
    save_pretrained(create_model("nest_tiny_cifar", depths=(1, 1), dims=8, heads=2), tmp_path)
    with pytest.raises(CheckpointError, match="holds nest_tiny_cifar, no generator"):
        load_generator(tmp_path)
    save_generator(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    config["model_args"]["dim"] = 12
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="does not fit conv_generator_16"):
        load_generator(tmp_path / "saved")


@pytest.mark.parametrize("upsample", ["shuffle", "nearest-conv3"])
def test_it_exports_for_any_batch(upsample: str) -> None:
    model = tiny(upsample=upsample).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (model.noise(2),), dynamic_shapes=({0: batch},)).module()
    noise = model.noise(5)
    torch.testing.assert_close(exported(noise), model(noise))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(img_size=32), r"2 levels end at 16 pixels, got img_size=32, depths=\(1, 1\)"),
        (dict(depths=()), r"0 levels end at .* got img_size=16, depths=\(\)"),
        (dict(dim=18), "divide the width by 4 1 times, got dim=18: take a multiple of 4"),
        (dict(dim=12, heads=4), "a width of 3 cannot be split into 4 heads: take one of 1, 3"),
        (dict(upsample="conv3"), "doubles the map exactly once, got 'conv3'"),
        (dict(upsample="shuffle-nearest"), "doubles the map exactly once"),
        (dict(upsample="bilinear"), "a step of upsample is one of .* got 'bilinear'"),
        (dict(latent=0), "at least one number .* got latent=0"),
        (dict(out_chans=0), "at least one channel, got .* out_chans=0"),
    ],
)
def test_what_cannot_be_built_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiny(**options)


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: ConvGenerator(48), ValueError, "img_size is 8, 16, 32, 64 and so on, got 48"),
        (lambda: ConvGenerator(4), ValueError, "img_size is 8, 16, 32, 64 and so on, got 4"),
        (lambda: ConvGenerator(32, 6), ValueError, "halve the width 2 times, got dim=6: .* of 4"),
        (
            lambda: create_generator("nest_generatr_64"),
            ValueError,
            "no generator is called 'nest_generatr_64': did you mean 'nest_generator_64'",
        ),
        (lambda: create_generator("zzz"), ValueError, "there are nest_generator_64, "),
        (
            lambda: create_generator("nest_generator_16", upsampl="nearest"),
            TypeError,
            "takes no option 'upsampl': did you mean 'upsample'",
        ),
        (
            lambda: create_generator("conv_generator_16", heads=2),
            TypeError,
            "takes no option 'heads': it takes img_size, dim, latent, out_chans",
        ),
        (lambda: tiny()(torch.randn(2, 7)), ValueError, r"takes noise as \(batch, 6\), got \(2, 7"),
        (lambda: tiny()(torch.randn(6)), ValueError, r"takes noise as \(batch, 6\), got \(6,\)"),
    ],
)
def test_what_is_asked_wrongly_is_said(build: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        build()
