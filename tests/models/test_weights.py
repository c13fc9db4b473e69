import argparse
import os
import pickle
from pathlib import Path

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


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"model": s, "optimizer": {"state": {}}, "epoch": 3},
        lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {"model": {f"backbone.bottom_up.{k}": v for k, v in s.items()}},
        lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    ],
    ids=["model", "ddp", "detectron", "compiled"],
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
