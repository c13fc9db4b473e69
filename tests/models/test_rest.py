import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tests.reference
from tests.reference import Fixture, Reading, check_parity
from ziggurat.models.rest import EMSA, POSITIONS, VARIANTS, ResT
from ziggurat.models.weights import load_checkpoint

SHARED = Path(__file__).parents[3] / "shared" / "reference"
SMALL: dict[str, Any] = dict(dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), img_size=64, num_classes=5)


def readings() -> dict[str, Reading]:
    tokens = lambda x: x.flatten(1, 2)  # noqa: E731
    found: dict[str, Reading] = {
        "stem": ("stem", lambda x: x.permute(0, 3, 1, 2)),
        "norm": ("norm", tokens),
        "pooled": ("head_drop", lambda x: x[:, :, None, None]),
    }
    for i in range(4):
        found[f"stage{i + 1}"] = (f"stages.{i}", tokens)
        found[f"stage{i + 1}.0.attn"] = (f"stages.{i}.blocks.0.attn", lambda x: x)
        if i:
            found[f"patch_embed_{i + 1}"] = (f"stages.{i}.down", tokens)
    return found


@pytest.mark.parametrize("fixture", ["rest_lite", "rest_lite_stress", "rest_base"])
def test_the_official_models_are_reproduced(fixture: str) -> None:
    reference = Fixture(fixture)
    model = ResT(**VARIANTS[fixture.removesuffix("_stress")])
    load_checkpoint(model, reference.state)
    check_parity(reference, model, readings(), atol=5e-4)


@pytest.mark.shared
def test_the_official_model_is_reproduced_at_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SHARED / "rest_lite_256x320.npz").is_file():
        pytest.skip(f"no fixture at {SHARED}")
    monkeypatch.setattr(tests.reference, "HERE", SHARED)
    reference = Fixture("rest_lite_256x320")
    model = ResT(**VARIANTS["rest_lite"])
    load_checkpoint(model, reference.state)
    check_parity(reference, model, readings(), atol=5e-4)


def official_v2(name: str) -> str:
    """What the official code of version 2 calls a parameter of ours."""
    for i, part in enumerate(("conv1", "norm1", "", "conv2", "norm2", "", "conv3")):
        name = name.replace(f"stem.{part}.", f"stem.proj.{i}.") if part else name
    name = re.sub(r"stages\.(\d)\.blocks", lambda m: f"stage{int(m[1]) + 1}", name)
    name = re.sub(r"stages\.(\d)\.down", lambda m: f"patch_{int(m[1]) + 1}", name)
    name = re.sub(r"(patch_\d)\.conv", r"\1.proj", name)
    return name.replace(".pos.", ".pos.pa_conv.").replace(".up.", ".up.0.")


def test_version_2_gives_what_the_official_code_gives() -> None:
    model = ResT(**{**SMALL, "dims": (16, 32, 64, 128), "depths": (1, 1, 1, 2)}, version=2)
    keys = {}
    for name, value in model.state_dict().items():
        kind = "norm_weight" if value.ndim == 1 and name.endswith("weight") else "weight"
        kind = "running_var" if name.endswith("running_var") else kind
        kind = kind if value.dtype.is_floating_point else "int"
        keys[official_v2(name)] = {"kind": kind, "shape": value.shape}
    # No fixture: five logits of wofmanaf/ResT's rest_v2.py (7673627), retyped and run at this size.
    reference = object.__new__(Fixture)
    reference.about = {"scale": 0.08, "keys": keys, "input": {"shape": (1, 3, 64, 96)}}
    load_checkpoint(model, reference.state)
    with torch.no_grad():
        found = model.double().eval()(reference.images.double())
    official = [-1.126248476177, -0.740299922190, 0.049315772972, -0.625203650723, -0.892400902809]
    expected = torch.tensor([official], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_our_own_names_are_left_as_they_are() -> None:
    for version in (1, 2):
        model = ResT(**SMALL, version=version)
        assert model.convert(model.state_dict()).keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "params", "gmacs"),
    [
        ("rest_lite", 10.508, 1.533),
        ("rest_small", 13.680, 2.093),
        ("rest_base", 30.327, 4.626),
        ("rest_large", 51.676, 8.360),
        ("restv2_tiny", 30.435, 4.083),
        ("restv2_small", 41.206, 5.954),
        ("restv2_base", 55.965, 7.860),
        ("restv2_large", 86.533, 13.801),
    ],
)
def test_the_variants_cost_what_the_official_ones_do(
    name: str, params: float, gmacs: float
) -> None:
    with torch.device("meta"):
        model, image = ResT(**VARIANTS[name]), torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(image)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(params, abs=5e-4)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=6e-4)


def test_plain_attention_has_the_parameters_of_table_1() -> None:
    with torch.device("meta"):
        model = ResT(**VARIANTS["rest_lite"], attention="msa")
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 10.48


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [(97, 131), (225, 225), (32, 32)])
def test_maps_of_any_size_are_halved_rounding_up(size: tuple[int, int], version: int) -> None:
    model = ResT(**SMALL, version=version).eval()
    with torch.no_grad():
        found = model.forward_stages(torch.randn(1, 3, *size))
    for i, one in enumerate(found.maps):
        assert one.shape == (1, model.dims[i], *(-(-side // model.strides[i]) for side in size))
        assert one.isfinite().all()
    assert found.pooled.isfinite().all()


def by_the_formula(attn: EMSA, x: Tensor, height: int, width: int) -> Tensor:
    """IN(Softmax(Conv(q k^T / sqrt(d)))) v with every map written out."""
    B, N, C = x.shape
    few = x.transpose(1, 2).reshape(B, C, height, width)
    few = attn.sr_norm(attn.sr(few).flatten(2).transpose(1, 2))
    split = lambda t: t.reshape(B, -1, attn.heads, C // attn.heads).permute(0, 2, 1, 3)  # noqa: E731
    q, k, v = split(attn.q(x)), *map(split, attn.kv(few).chunk(2, dim=2))
    assert attn.mix is not None
    maps = q @ k.transpose(2, 3) / (C // attn.heads) ** 0.5
    maps = F.conv2d(maps, attn.mix.weight, attn.mix.bias).softmax(3)
    mean = maps.mean((2, 3), keepdim=True)
    variance = (maps - mean).square().mean((2, 3), keepdim=True)
    maps = (maps - mean) / (variance + 1e-5).sqrt()
    return attn.proj((maps @ v).transpose(1, 2).reshape(B, N, C))


@pytest.mark.parametrize(("height", "width", "reduction"), [(6, 7, 2), (5, 3, 1), (1, 1, 1)])
def test_attention_is_the_papers_formula(height: int, width: int, reduction: int) -> None:
    torch.manual_seed(0)
    attn = EMSA(24, 3, reduction, mix=True, up=False, eps=1e-5).double()
    x = torch.randn(2, height * width, 24, dtype=torch.float64)
    expected = by_the_formula(attn, x, height, width)
    torch.testing.assert_close(attn(x, height, width), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_nearly_flat_map_survives_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    attn = EMSA(16, 2, 1, mix=True, up=False, eps=1e-5)
    logits, v = (0.02 * torch.randn(1, 2, 64, 64)).to(dtype), torch.randn(1, 2, 64, 8).to(dtype)
    exact = attn.normalised(logits.double(), v.double())
    found = attn.normalised(logits, v)
    assert found.dtype == dtype
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize(
    "options",
    [dict(attention="emsa", position=kind) for kind in POSITIONS]
    + [dict(attention="msa"), dict(version=2)],
    ids=str,
)
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    model = ResT(**SMALL, **options).train()
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_recomputing_blocks_in_backward_changes_no_gradient() -> None:
    model = ResT(**SMALL).double().train()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_positions_cost_a_small_kernel_or_a_vector_for_each_cell() -> None:
    sizes = {}
    for kind in POSITIONS:
        model = ResT(**SMALL, position=kind)
        sizes[kind] = sum(p.numel() for p in model.parameters())
    dims = SMALL["dims"]
    assert sizes["pa"] == sizes["gl"] == sizes["none"] + sum(dim * (9 + 1) for dim in dims)
    cells = (16 * 16, 8 * 8, 4 * 4, 2 * 2)
    learned = sum(n * dim for n, dim in zip(cells, dims, strict=True))
    assert sizes["learned"] == sizes["none"] + learned


def test_pixel_attention_scales_and_group_linear_adds() -> None:
    x = torch.randn(1, 5, 6, 8)
    for kind, at_zero in (("pa", 0.5 * x), ("gl", x), ("learned", x), ("none", x)):
        pos = ResT(**SMALL, position=kind).stem.pos
        for parameter in pos.parameters():
            nn.init.zeros_(parameter)
        torch.testing.assert_close(pos(x), at_zero)


def test_learned_positions_of_another_size_are_resized_on_loading() -> None:
    small = ResT(**SMALL, position="learned")
    large = ResT(**{**SMALL, "img_size": 96}, position="learned").eval()
    resized = load_checkpoint(large, small.state_dict()).resized
    owners = ["stem", "stages.1.down", "stages.2.down", "stages.3.down"]
    assert resized == [f"{owner}.pos.grid.table" for owner in owners]
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(large(images), small.eval()(images))


def test_it_starts_as_the_official_code_does() -> None:
    torch.manual_seed(0)
    model = ResT(**VARIANTS["rest_lite"])
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
    assert not model.get_parameter("stages.1.blocks.0.attn.q.bias").any()
    assert model.get_parameter("stages.1.down.conv.bias").any()
    assert not ResT(**SMALL, version=2).get_parameter("stages.1.down.conv.bias").any()


def test_what_cannot_be_built_or_taken_is_said_so() -> None:
    with pytest.raises(ValueError, match="takes 3 channels, got 4"):
        ResT(**SMALL)(torch.randn(1, 4, 64, 64))
    with pytest.raises(ValueError, match="width of 16 cannot be split into 3 heads"):
        ResT(**SMALL, heads=(1, 3, 4, 8))
    with pytest.raises(ValueError, match="attention is one of 'emsa', 'msa', got 'mqa'"):
        ResT(**SMALL, attention="mqa")
    with pytest.raises(ValueError, match="position is one of 'pa', 'gl'"):
        ResT(**SMALL, position="ape")
    with pytest.raises(ValueError, match="version 1 and version 2, got 3"):
        ResT(**SMALL, version=3)
    with pytest.raises(ValueError, match="4 values of reductions"):
        ResT(**SMALL, reductions=(8, 4))
    with pytest.raises(ValueError, match=r"reductions are 1 or even, got \(8, 3, 2, 1\)"):
        ResT(**SMALL, reductions=(8, 3, 2, 1), version=2)
    with pytest.raises(ValueError, match="depths has the number of blocks of each stage, got none"):
        ResT(**SMALL | dict(depths=(), dims=(), heads=(), reductions=()))
