"""What every family promises, whichever it is: timm's methods, any size, torch's tools."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.optim
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models import group_parameters
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from tests.models.small import SMALL, shallow, small
from ziggurat.layers.position import LearnedTable
from ziggurat.models.backbone import Backbone
from ziggurat.models.registry import VARIANTS, create_model, list_models

EVERY = pytest.mark.parametrize("name", SMALL)
BORDERS = (45, 34)  # cut windows in the first stage of a shallow model, less than one in the last


def images_for(model: Backbone, batch: int = 2) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, model.in_chans, *model.img_size)


def loud(model: Backbone) -> Backbone:
    """Tables and classifier far from zero, so that leaving one out shows in the logits."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("table"):
                p.normal_(std=1.0)
            elif name.startswith("head."):
                p.normal_(std=0.3)
    return model


@EVERY
def test_features_and_head_make_the_forward_pass(name: str) -> None:
    model = small(name).eval()
    x = images_for(model)
    features = model.forward_features(x)
    assert torch.equal(model(x), model.forward_head(features))
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    assert torch.equal(model.get_classifier()(pooled), model(x))


@EVERY
def test_intermediates_are_maps_with_the_declared_channels_and_strides(name: str) -> None:
    model = small(name).eval()
    x = images_for(model)
    final, maps = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    for found, about in zip(maps, model.feature_info, strict=True):
        side = [-(-s // about["reduction"]) for s in model.img_size]
        assert list(found.shape) == [2, about["num_chs"], *side]
    last = model.forward_intermediates(x, indices=1, intermediates_only=True, output_fmt="NHWC")
    assert torch.equal(last[0].permute(0, 3, 1, 2), maps[-1])
    first = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
    assert torch.equal(first[0], maps[0])
    normed = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
    assert torch.equal(normed[0], maps[-1]) == (name in ("hivit_tiny", "regionvit_ti"))
    if name in ("nest_tiny", "rest_lite"):
        assert torch.equal(normed[0], final)
    stages = model.forward_stages(x)
    assert torch.equal(stages.pooled, model.forward_head(final, pre_logits=True))
    assert all(torch.equal(a, b) for a, b in zip(stages.maps, maps, strict=True))


@EVERY
def test_the_classifier_can_be_replaced_and_removed(name: str) -> None:
    model = small(name).eval()
    x = images_for(model)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    model.reset_classifier(0)
    assert model(x).shape == (2, model.num_features)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), model.forward_features(x))


@EVERY
def test_positions_are_not_decayed_and_layers_are_numbered_through(name: str) -> None:
    model = small(name)
    parameters = dict(model.named_parameters())
    assert model.no_weight_decay() <= parameters.keys()
    if name != "regionvit_ti":  # the official recipe decays its tables
        tables = {f"{n}.table" for n, m in model.named_modules() if isinstance(m, LearnedTable)}
        assert model.no_weight_decay() == tables
    layers = group_parameters(model, model.group_matcher(), reverse=True)
    assert layers.keys() == parameters.keys()
    blocks = sum(len(model.stage(i).blocks) for i in range(len(model.stages)))
    assert set(layers.values()) == set(range(blocks + 2))  # stem, blocks, norm and head
    assert layers["head.weight"] == blocks + 1
    coarse = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert set(coarse.values()) == set(range(len(model.stages) + 2))


@EVERY
def test_timms_layer_decay_takes_the_model(name: str) -> None:
    model = small(name)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1.0, layer_decay=0.5)
    scales = sorted({group["lr_scale"] for group in optimizer.param_groups})
    assert scales[-1] == 1.0
    assert scales[0] == 0.5 ** (
        sum(len(model.stage(i).blocks) for i in range(len(model.stages))) + 1
    )


@EVERY
def test_checkpointing_gives_the_same_gradients(name: str) -> None:
    model = small(name, drop_path_rate=0.2).train()
    twin = copy.deepcopy(model)
    twin.set_grad_checkpointing()
    x = images_for(model)
    for one in (model, twin):
        torch.manual_seed(3)
        one(x).square().sum().backward()
    for (n, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=n)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_of_every_variant_gets_a_gradient(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
        x = torch.empty(2, 3, *model.img_size)
    model.train()(x).sum().backward()
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not unused


@EVERY
def test_no_gradient_is_zero_but_that_of_a_bias_before_softmax(name: str) -> None:
    model = small(name).double().train()
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    found = model.forward_stages(images_for(model).double())
    loss = model.head(found.pooled).square().sum() + sum(m.square().sum() for m in found.maps)
    loss.backward()
    zero = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A head-mixing bias is a constant before softmax: it cannot have any effect (FACTS, 3).
    assert not [n for n in zero if not n.endswith("attn.mix.bias")]


# Any resolution.


@EVERY
@settings(max_examples=12, deadline=None)
@given(height=st.integers(32, 130), width=st.integers(32, 130))
def test_any_size_gives_finite_logits_and_whole_maps(name: str, height: int, width: int) -> None:
    model = small(name).eval()
    x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(height))
    with torch.no_grad():
        found = model.forward_stages(x)
    assert found.pooled.isfinite().all()
    for one, stride in zip(found.maps, model.strides, strict=True):
        assert one.shape[2:] == (-(-height // stride), -(-width // stride))
        assert one.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_takes_its_smallest_image_and_says_what_is_smaller(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
        least = max(32, model.smallest)
        odd = model(torch.empty(1, 3, least, least + 13))
        assert odd.shape == (1, model.num_classes)
        assert model(torch.empty(2, 3, 225, 97)).shape == (2, model.num_classes)
        if model.smallest > 1:
            small_side = model.smallest - 1
            with pytest.raises(ValueError, match=f"from {model.smallest} x {model.smallest}"):
                model(torch.empty(1, 3, small_side, small_side))


@EVERY
def test_at_the_training_size_nothing_is_resized_or_cut_short(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small(name).eval()
    x = images_for(model)
    with torch.no_grad():
        expected = model(x)

    def never(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("resized or padded at the training size")

    monkeypatch.setattr(torch.nn.functional, "interpolate", never)
    monkeypatch.setattr(torch.nn.functional, "pad", never)
    monkeypatch.setattr(torch, "cat", torch.cat if name == "regionvit_ti" else never)
    with torch.no_grad():
        assert torch.equal(model(x), expected)


@EVERY
def test_a_batch_gives_what_its_images_give_alone(name: str) -> None:
    model = small(name).eval()
    x = torch.randn(3, 3, 97, 70)
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


# Torch's tools.


@EVERY
def test_it_compiles_without_a_graph_break(name: str) -> None:
    torch.compiler.reset()
    model = shallow(name).eval()
    x = images_for(model)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@EVERY
def test_a_compiled_model_takes_several_sizes_and_trains(name: str) -> None:
    torch.compiler.reset()
    model = shallow(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in (model.img_size, tuple(2 * side for side in model.img_size), BORDERS):
        x = torch.randn(2, 3, *size)
        model.zero_grad()
        compiled(x).square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        model(x).square().sum().backward()
        for p, grad in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, grad, rtol=1e-3, atol=1e-4)


@EVERY
def test_it_exports_with_a_dynamic_batch(name: str) -> None:
    model = small(name).eval()
    x = images_for(model)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    more = torch.cat([x, x.flip(3)])
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(more), model(more), rtol=1e-4, atol=1e-4)


@EVERY
@pytest.mark.parametrize("size", [None, BORDERS], ids=["trained", "other"])
def test_onnx_runtime_agrees_with_a_dynamic_batch(
    name: str, size: tuple[int, int] | None, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = shallow(name).eval()
    x = images_for(model) if size is None else torch.randn(2, 3, *size)
    file = tmp_path / "model.onnx"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        model, (x,), file, dynamo=True, input_names=["images"], dynamic_shapes=({0: batch},),
        verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    more = torch.cat([x, x.flip(3)])
    (found,) = session.run(None, {"images": more.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(more).numpy(), rtol=1e-3, atol=1e-4)


@EVERY
def test_bfloat16_autocast_stays_close_and_trains(name: str) -> None:
    model = small(name).train()
    x = images_for(model)
    loud(model)

    def trains() -> bool:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        return all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    # torch's convolution (2.15, bfloat16, CPU) gives one weight of RegionViT's a gradient that is
    # not finite in one of 20 to 60 identical steps: the same numbers, another time, are right.
    assert any(trains() for _ in range(4))
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = model(x).float()
    with torch.no_grad():
        full = model(x)
    assert full.std() > 0.1
    assert (low - full).norm() < 0.1 * full.norm()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_built_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert all(t.is_meta for t in [*model.parameters(), *model.buffers()])


@EVERY
def test_a_model_built_on_meta_is_filled_by_a_state_dict(name: str) -> None:
    model = small(name).eval()
    with torch.device("meta"):
        empty = small(name).eval()
    empty.load_state_dict(model.state_dict(), assign=True)
    x = images_for(model)
    assert torch.equal(empty(x), model(x))


@EVERY
def test_copies_and_pickles_give_the_same_and_leave_kept_tables_behind(name: str) -> None:
    model = small(name).eval()
    x = torch.randn(1, 3, 80, 72)
    with torch.no_grad():
        expected = model(x)  # fills what is kept in inference
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        kept = [m._kept for m in twin.modules() if isinstance(m, LearnedTable)]
        assert kept == [None] * len(kept)
        with torch.no_grad():
            assert torch.equal(twin(x), expected)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).keys() == model.state_dict().keys()


@EVERY
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of its CPU kernel
def test_an_ensemble_runs_under_vmap(name: str) -> None:
    models = [loud(small(name)).eval().requires_grad_(False) for _ in range(2)]
    params, buffers = torch.func.stack_module_state(models)
    x = images_for(models[0])

    def one(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(models[0], (p, b), (x,))

    with torch.no_grad():
        models[0](x)  # what it keeps must not leak into the others
        together = torch.func.vmap(one)(params, buffers)
        alone = torch.stack([model(x) for model in models])
    assert alone.std() > 0.1
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)


# A user's mistakes.


@EVERY
def test_classes_without_pooling_and_images_without_pixels_are_named(name: str) -> None:
    with pytest.raises(ValueError, match="has 10 classes but does not pool"):
        small(name, global_pool="")(torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"at least one pixel a side, got img_size=0"):
        small(name, img_size=0)


@EVERY
def test_a_pruned_model_norms_only_what_the_whole_one_would(name: str) -> None:
    whole = FeatureGetterNet(small(name), [0], norm=True)
    assert whole(torch.randn(1, 3, 64, 64))[0].isfinite().all()


@EVERY
def test_wrong_channels_and_shapes_are_named(name: str) -> None:
    model = small(name)
    with pytest.raises(ValueError, match=r"takes 3 channels, got 1: build it with in_chans=1"):
        model(torch.randn(1, 1, 64, 64))
    with pytest.raises(ValueError, match=r"\(batch, channels, height, width\), got \(3, 64, 64\)"):
        model(torch.randn(3, 64, 64))
    with pytest.raises(ValueError, match=r"takes normalised float images, got torch.uint8"):
        model(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


def test_all_names_of_the_issue_are_there() -> None:
    sizes = ("tiny", "small", "base")
    expected = {f"nest_{s}" for s in sizes} | {f"nest_{s}_cifar" for s in sizes}
    expected |= {f"hvt_{s}_{m}" for s in ("ti", "s") for m in range(5)}
    expected |= {"scale_hvt_ti_4", "hvt_s_2_2d"}
    expected |= {f"rest_{s}" for s in ("lite", "small", "base", "large")}
    expected |= {f"hivit_{s}" for s in ("tiny", "small", "base", "large")}
    expected |= {f"regionvit_{s}{p}" for s in ("ti", "s", "m", "b") for p in ("", "_plus")}
    assert expected <= set(list_models())
