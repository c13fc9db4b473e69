import argparse
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import ziggurat
from tests.models.small import SMALL, small
from tests.reference import Fixture
from ziggurat.models.registry import TIMM_NAMES
from ziggurat.models.weights import CheckpointError, load_checkpoint

FAMILY_FIXTURES = {
    "nest_tiny": "flax_nest_tiny_s196_224",
    "hvt_ti_1": "hvt_ti_1",
    "rest_lite": "rest_lite",
    "hivit_tiny": "hivit_tiny",
    "regionvit_ti": "regionvit_ti",
}


@pytest.mark.parametrize(("name", "fixture"), FAMILY_FIXTURES.items())
def test_official_weights_load_by_name_and_give_the_official_numbers(
    name: str, fixture: str
) -> None:
    reference = Fixture(fixture)
    model = ziggurat.create_model(name).eval()
    assert ziggurat.load_checkpoint(model, reference.state) == ([], [])
    with torch.no_grad():
        found = model(reference.images)
    np.testing.assert_allclose(found.numpy(), reference.outputs["logits"], rtol=0, atol=5e-4)


MM = {"neck.fpn_convs.0.conv.bias": torch.zeros(1), "roi_head.fc.weight": torch.zeros(2)}
NECK = {"backbone.fpn_lateral3.weight": torch.zeros(1), "head.cls_score.bias": torch.zeros(2)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"model": s, "optimizer": {"state": {}}, "epoch": 3},
        lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {"model": {f"backbone.bottom_up.{k}": v for k, v in s.items()}},
        lambda s: {"model": {f"backbone.bottom_up.{k}": v for k, v in s.items()} | NECK},
        lambda s: {"state_dict": {f"backbone.{k}": v for k, v in s.items()} | MM},
        lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    ],
    ids=["model", "ddp", "detectron", "detector", "mmdetection", "compiled"],
)
def test_the_authors_nesting_and_prefixes_are_peeled(wrap: object, tmp_path: Path) -> None:
    state = Fixture("rest_lite").state
    file = tmp_path / "checkpoint.pth"
    torch.save({**wrap(state), "args": argparse.Namespace(lr=1e-3)}, file)
    model = ziggurat.create_model("rest_lite")
    load_checkpoint(model, file)
    assert torch.equal(model.head.weight, state["head.weight"])


def test_flax_checkpoints_load_as_the_authors_wrote_them(tmp_path: Path) -> None:
    msgpack = pytest.importorskip("msgpack")
    state = Fixture("flax_nest_tiny_s16_32").state
    tree: dict[str, object] = {}
    for name, value in state.items():
        *path, last = name.split("/")
        here = tree
        for part in path:
            here = here.setdefault(part, {})  # type: ignore[assignment]
        array = value.numpy()
        packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
        here[last] = msgpack.ExtType(1, packed)
    file = tmp_path / "ckpt-300.flax"
    file.write_bytes(msgpack.packb({"optimizer": {"target": tree}, "step": 7}))
    model = ziggurat.create_model("nest_tiny_cifar")
    load_checkpoint(model, file)
    assert torch.equal(model.head.weight, state["Dense_0/kernel"].t())
    np.savez(tmp_path / "flat.npz", **{k: v.numpy() for k, v in state.items()})
    load_checkpoint(model, tmp_path / "flat.npz")


def test_a_flax_file_without_msgpack_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    (tmp_path / "checkpoint_300").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a Flax checkpoint: `pip install"):
        load_checkpoint(small("nest_tiny"), tmp_path / "checkpoint_300")


@pytest.mark.parametrize("name", SMALL)
def test_a_checkpoint_of_one_resolution_loads_into_another(name: str) -> None:
    model = small(name).eval()
    other = small(name, img_size=[side * 2 for side in small(name).img_size])
    done = load_checkpoint(other.eval(), model.state_dict())
    shapes = {n: v.shape for n, v in model.state_dict().items()}
    assert set(done.resized) == {n for n, v in other.state_dict().items() if v.shape != shapes[n]}
    assert other(torch.randn(1, 3, *other.img_size)).isfinite().all()
    back = small(name).eval()
    load_checkpoint(back, other.state_dict())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("channels", [1, 4])
def test_first_convolutions_adapt_to_other_channels(name: str, channels: int) -> None:
    model = small(name).eval()
    other = small(name, in_chans=channels).eval()
    done = load_checkpoint(other, model.state_dict())
    first = model.first_conv
    assert done.resized == [f"{c}.weight" for c in ([first] if isinstance(first, str) else first)]
    grey = torch.randn(1, 1, *model.img_size)
    if channels == 1:  # grey as three equal channels, or as one: the same picture
        torch.testing.assert_close(
            other(grey), model(grey.expand(1, 3, -1, -1)), rtol=1e-3, atol=1e-4
        )
    back = small(name).eval()
    if channels == 1:
        load_checkpoint(back, other.state_dict())
        torch.testing.assert_close(
            back(grey.expand(1, 3, -1, -1)), other(grey), rtol=1e-3, atol=1e-4
        )


def test_timm_itself_loads_and_adapts_our_weights(tmp_path: Path) -> None:
    state = Fixture("timm_nest_tiny_jx").state
    model = timm.create_model(
        TIMM_NAMES["nest_tiny"],
        pretrained=True,
        pretrained_cfg_overlay=dict(state_dict=state),
        act_layer="gelu",
        in_chans=1,
        num_classes=3,
    )
    assert model.patch_embed.weight.shape[1] == 1
    assert torch.equal(model.norm.weight, state["norm.weight"])


def test_a_misfit_lists_all_that_is_wrong_and_what_to_do() -> None:
    model = small("hivit_tiny")
    state = model.state_dict()
    state["norm.weight"] = torch.ones(5)
    state["extra.weight"] = torch.ones(5)
    del state["patch_embed.proj.bias"]
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(model, state)
    message = str(caught.value)
    assert "missing from the checkpoint: patch_embed.proj.bias" in message
    assert "not in the model: extra.weight" in message
    assert "norm.weight: (5,) in the checkpoint, (64,) in the model" in message
    assert "ignore=" in message
    done = load_checkpoint(model, state, ignore=("norm.weight", "extra.*", "*.proj.bias"))
    assert {"norm.weight", "extra.weight", "patch_embed.proj.bias"} <= set(done.ignored)


def test_another_number_of_classes_says_how_to_start_the_head_afresh() -> None:
    model = small("rest_lite", num_classes=3)
    with pytest.raises(CheckpointError, match=r'only the classifier differs.*ignore=\("head'):
        load_checkpoint(model, small("rest_lite").state_dict())
    load_checkpoint(model, small("rest_lite").state_dict(), ignore=("head.*",))


def test_a_model_is_unchanged_by_a_checkpoint_that_does_not_fit() -> None:
    model = small("nest_tiny")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = {k: torch.zeros_like(v) for k, v in before.items()} | {"nonsense": torch.ones(1)}
    with pytest.raises(CheckpointError):
        load_checkpoint(model, state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("bombed",))


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, data in (("a.pth", {"model": Bomb()}), ("b.pkl", Bomb())):
        if file.endswith("pth"):
            torch.save(data, file)
        else:
            Path(file).write_bytes(pickle.dumps(data))
        with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
            load_checkpoint(small("rest_lite"), file)
    np.savez("c.npz", weight=np.array([Bomb()], dtype=object))
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        load_checkpoint(small("rest_lite"), "c.npz")
    assert not Path("bombed").exists()


FEWER_AND_MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # blocks; official: most
    "nest_tiny": (dict(depths=(1, 1, 2)), dict(depths=(1, 1, 4))),
    "hvt_ti_1": (dict(depth=6), dict(depth=8)),
    "rest_lite": (dict(depths=(1, 1, 1, 1)), dict(depths=(1, 1, 2, 2))),
    "hivit_tiny": (dict(depths=(1, 1, 2)), dict(depths=(2, 1, 4))),
    "regionvit_ti": (dict(depths=(1, 1, 1, 1)), dict(depths=(1, 1, 3, 2))),
}


@pytest.mark.parametrize("name", FEWER_AND_MORE)
def test_a_larger_checkpoint_is_a_listing_not_a_crash(name: str) -> None:
    fewer, more = FEWER_AND_MORE[name]
    model = ziggurat.create_model(name, **fewer)
    ours = ziggurat.create_model(name, **more).state_dict()
    for state in (Fixture(FAMILY_FIXTURES[name]).state, ours):
        with pytest.raises(CheckpointError, match="does not fit") as caught:
            load_checkpoint(model, state)
        assert caught.value.unexpected


@pytest.mark.parametrize(
    ("fixture", "name", "overrides"),
    [
        ("timm_nest_tiny", "nest_tiny", dict(depths=(2, 2, 4))),
        ("timm_nest_base", "nest_tiny", {}),
        ("flax_nest_tiny_s16_32", "nest_tiny_cifar", dict(depths=(1, 1, 1, 1))),
        ("flax_nest_tiny_s16_32", "nest_tiny", {}),
    ],
)
def test_a_nest_of_another_size_is_a_listing_not_a_crash(
    fixture: str, name: str, overrides: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="does not fit"):
        load_checkpoint(ziggurat.create_model(name, **overrides), Fixture(fixture).state)


@pytest.mark.parametrize("names", [("step", "Transformer/encoderblock_0/scale"), ("levels.0.x",)])
def test_names_nest_does_not_know_are_reported_as_they_came(names: tuple[str, ...]) -> None:
    model = small("nest_tiny")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(model, {name: torch.ones(3) for name in names})
    assert caught.value.unexpected == sorted(n.replace("levels.", "stages.") for n in names)


def test_a_nest_table_that_is_no_square_of_blocks_is_not_resized() -> None:
    state = Fixture("timm_nest_tiny").state
    name = next(n for n in state if n.endswith("pos_embed"))
    state = {**state, name: state[name][:, :, :-1]}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(ziggurat.create_model("nest_tiny"), state)
    assert caught.value.unexpected == [name]
    assert caught.value.missing == ["stages.0.pos.table"]


def test_the_error_carries_every_name() -> None:
    model = small("hivit_tiny")
    own = model.state_dict()
    with pytest.raises(CheckpointError, match=r"and \d+ more") as caught:
        load_checkpoint(model, {"extra": torch.ones(1), "norm.weight": torch.ones(5)})
    error = caught.value
    assert error.missing == sorted(own.keys() - {"norm.weight"})
    assert error.unexpected == ["extra"]
    assert error.shapes == ["norm.weight: (5,) in the checkpoint, (64,) in the model"]
    assert CheckpointError("a file").missing == []


@pytest.mark.parametrize("content", [[torch.ones(2)], torch.ones(2), 3])
def test_a_file_without_names_is_one_clear_error(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=r"holds a \w+, expected names and tensors"):
        load_checkpoint(small("rest_lite"), tmp_path / "weights.pth")


@pytest.mark.parametrize("name", ["checkpoint_0299.pth", "ckpt-12.pt", "checkpoint_best.pth.tar"])
def test_a_torch_file_is_read_as_one_whatever_its_name(name: str, tmp_path: Path) -> None:
    model = small("rest_lite")
    torch.save(model.state_dict(), tmp_path / name)
    load_checkpoint(small("rest_lite"), tmp_path / name)


class CfgNode(dict[str, Any]):
    """yacs's: a dict that also has attributes."""

    def __setstate__(self, state: object) -> None:
        raise AssertionError("a stranger's class was run")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_settings_stored_beside_the_weights_do_no_harm(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small("hivit_tiny")
    package, module = types.ModuleType("yacs"), types.ModuleType("yacs.config")
    module.CfgNode = CfgNode  # type: ignore[attr-defined]
    monkeypatch.setattr(CfgNode, "__module__", "yacs.config")
    config = CfgNode(MODEL=CfgNode(TYPE="hivit"), DATA=["a", ("b", 3)])
    config.__dict__["__immutable__"] = True
    stored = {
        "model": model.state_dict(),
        "config": config,
        "args": argparse.Namespace(output_dir=tmp_path, lr=np.float64(1e-3)),
        "max_accuracy": np.float32(83.8),
        "epoch": np.int64(299),
    }
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yacs", package)
        patch.setitem(sys.modules, "yacs.config", module)
        torch.save(stored, tmp_path / "hivit.pth", _use_new_zipfile_serialization=zipped)
    twin = small("hivit_tiny")
    load_checkpoint(twin, tmp_path / "hivit.pth")
    assert torch.equal(twin.head.weight, model.head.weight)


class Stranger:
    pass


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_refused_class_is_named_in_one_plain_line(zipped: bool, tmp_path: Path) -> None:
    file = tmp_path / "strange.pth"
    torch.save({"model": Stranger()}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(small("rest_lite"), file)
    message = str(caught.value)
    assert f"refused for safety: it asks to run {__name__}.Stranger" in message
    assert "\n" not in message
    assert "\x1b" not in message


@pytest.mark.parametrize("name", SMALL)
def test_a_model_on_the_meta_device_is_filled(name: str) -> None:
    model = small(name).eval()
    with torch.device("meta"):
        empty = small(name).eval()
    empty.head.bias.requires_grad_(False)
    state = model.state_dict()
    load_checkpoint(empty, state)
    x = torch.randn(1, 3, *model.img_size)
    assert torch.equal(empty(x), model(x))
    assert [n for n, p in empty.named_parameters() if not p.requires_grad] == ["head.bias"]
    state["head.weight"].zero_()  # the caller's own: not shared
    assert empty.head.weight.any()


def test_a_meta_model_left_without_a_value_is_said() -> None:
    with torch.device("meta"):
        empty = small("nest_tiny", num_classes=3)
    with pytest.raises(CheckpointError, match=r"meta device.*no head\.bias, head\.weight.*CPU"):
        load_checkpoint(empty, small("nest_tiny").state_dict(), ignore=("head.*",))


def test_pretrained_without_a_hub_says_to_download_a_file() -> None:
    for create, name in ((ziggurat.create_model, "hivit_base"), (timm.create_model, "rest_lite")):
        with pytest.raises(ValueError, match=rf"no hub carries weights of {name}.*load_checkpoint"):
            create(name, pretrained=True)


def test_pretrained_takes_weights_that_are_given(tmp_path: Path) -> None:
    state = small("rest_lite").state_dict()
    torch.save(state, tmp_path / "rest.pth")
    for overlay in (dict(state_dict=state), dict(file=str(tmp_path / "rest.pth"))):
        model = small(
            "rest_lite", pretrained=True, pretrained_cfg_overlay=overlay | dict(num_classes=10)
        )
        assert torch.equal(model.head.weight, state["head.weight"])


def test_broken_empty_and_absent_files_are_one_clear_error(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file(small("rest_lite").state_dict(), whole)
    for name in ("cut.safetensors", "cut.pth", "cut.flax", "cut.npz"):
        (tmp_path / name).write_bytes(whole.read_bytes()[:1000])
        with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
            load_checkpoint(small("rest_lite"), tmp_path / name)
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(small("rest_lite"), tmp_path / "nothing.pth")
    with pytest.raises(CheckpointError, match="no weights found in the checkpoint"):
        load_checkpoint(small("rest_lite"), {"epoch": 3})
