from pathlib import Path

import pytest
import timm
import torch

import ziggurat
from tests.models.small import SMALL, small
from ziggurat.models.nest import NesT
from ziggurat.models.weights import CheckpointError


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_model_comes_back_the_same(name: str, tmp_path: Path) -> None:
    model = small(name, in_chans=1, num_classes=3).eval()
    folder = ziggurat.save_pretrained(model, tmp_path / name)
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    twin = ziggurat.from_pretrained(folder)
    x = torch.randn(2, 1, *model.img_size)
    assert torch.equal(twin(x), model(x))
    assert not twin.training
    assert twin.overrides == model.overrides
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(theirs(x), model(x))


def test_timms_baselines_are_saved_the_same_way(tmp_path: Path) -> None:
    model = ziggurat.create_model("resnet10t", num_classes=3).eval()
    twin = ziggurat.from_pretrained(ziggurat.save_pretrained(model, tmp_path))
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(twin(x), model(x))


def test_another_size_is_resized_and_other_classes_start_afresh(tmp_path: Path) -> None:
    model = small("hivit_tiny").eval()
    folder = ziggurat.save_pretrained(model, tmp_path)
    assert ziggurat.from_pretrained(folder, img_size=96).img_size == (96, 96)
    twin = ziggurat.from_pretrained(folder, num_classes=4)
    assert twin.get_classifier().out_features == 4
    assert torch.equal(twin.norm.weight, model.norm.weight)


def test_a_model_without_classifier_or_pooling_comes_back_without(tmp_path: Path) -> None:
    plain = small("hivit_tiny", num_classes=0).eval()
    cut = small("rest_lite").eval()
    cut.reset_classifier(0, "")
    for name, model in (("plain", plain), ("cut", cut)):
        folder = ziggurat.save_pretrained(model, tmp_path / name)
        twin = ziggurat.from_pretrained(folder)
        assert (twin.num_classes, twin.global_pool) == (0, model.global_pool)
        x = torch.randn(1, 3, *model.img_size)
        assert torch.equal(twin(x), model(x))
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        assert torch.equal(theirs(x), model(x))
    pooled = ziggurat.from_pretrained(tmp_path / "cut", num_classes=4, global_pool="avg")
    assert pooled(torch.randn(1, 3, *cut.img_size)).shape == (1, 4)


def test_timms_baselines_remember_what_was_changed(tmp_path: Path) -> None:
    changed = dict(img_size=32, embed_dim=48, depth=1, num_heads=3)
    model = ziggurat.create_model("vit_tiny_patch16_224", in_chans=1, **changed).eval()
    twin = ziggurat.from_pretrained(ziggurat.save_pretrained(model, tmp_path))
    x = torch.randn(1, 1, 32, 32)
    assert torch.equal(twin(x), model(x))


def test_timms_model_of_a_name_we_have_too_stays_timms(tmp_path: Path) -> None:
    model = ziggurat.create_model("timm/nest_tiny")
    twin = ziggurat.from_pretrained(ziggurat.save_pretrained(model, tmp_path))
    assert type(twin) is type(model)


def test_other_classes_start_timms_own_classifier_afresh(tmp_path: Path) -> None:
    model = ziggurat.create_model("resnet10t", num_classes=3)
    twin = ziggurat.from_pretrained(ziggurat.save_pretrained(model, tmp_path), num_classes=5)
    assert twin.fc.out_features == 5
    assert torch.equal(twin.conv1[0].weight, model.conv1[0].weight)


def test_what_may_differ_is_ignored_when_named(tmp_path: Path) -> None:
    folder = ziggurat.save_pretrained(small("hivit_tiny"), tmp_path)
    with pytest.raises(CheckpointError, match=r"not in the model: .*bias\.table"):
        ziggurat.from_pretrained(folder, rpe=False)
    ziggurat.from_pretrained(folder, ignore=("*.bias.table",), rpe=False)


@pytest.mark.parametrize("name", ["hivit_tiny", "resnet10t"])
def test_a_features_only_model_is_not_saved(name: str, tmp_path: Path) -> None:
    model = ziggurat.create_model(name, features_only=True)
    with pytest.raises(ValueError, match=r"features_only model.*save the whole model"):
        ziggurat.save_pretrained(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_option_that_json_cannot_hold_is_said(tmp_path: Path) -> None:
    model = ziggurat.create_model("resnet10t", act_layer=torch.nn.SiLU)
    with pytest.raises(ValueError, match=r"config\.json cannot hold what the model was built with"):
        ziggurat.save_pretrained(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_only_models_with_a_name_are_saved(tmp_path: Path) -> None:
    for model in (torch.nn.Linear(2, 2), NesT(img_size=32, dims=8, heads=1, depths=(1,))):
        with pytest.raises(ValueError, match=r"only models built by create_model know their name"):
            ziggurat.save_pretrained(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_existing_folder_is_not_overwritten_unasked(tmp_path: Path) -> None:
    model = small("rest_lite")
    ziggurat.save_pretrained(model, tmp_path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        ziggurat.save_pretrained(model, tmp_path)
    ziggurat.save_pretrained(model, tmp_path, overwrite=True)


def test_a_failed_save_leaves_the_old_files_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small("rest_lite")
    ziggurat.save_pretrained(model, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("ziggurat.models.pretrained.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        ziggurat.save_pretrained(small("rest_lite"), tmp_path, overwrite=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("source", ["nowhere", "./no/such/folder", "a/b/c"])
def test_what_is_neither_folder_nor_hub_id_is_said(source: str) -> None:
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        ziggurat.from_pretrained(source)


def test_a_name_without_weights_is_told_how_to_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    for name in ("rest_lite", "timm/resnet18"):
        with pytest.raises(CheckpointError, match=f"{name}:published or {name}:FILE"):
            ziggurat.from_pretrained(name)


def test_the_hub_is_asked_for_both_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = small("nest_tiny").eval()
    ziggurat.save_pretrained(model, tmp_path)
    asked = []

    def download(repo: str, file: str) -> str:
        asked.append((repo, file))
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    x = torch.randn(1, 3, *model.img_size)
    assert torch.equal(ziggurat.from_pretrained("someone/nest")(x), model(x))
    assert asked == [("someone/nest", "config.json"), ("someone/nest", "model.safetensors")]


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        ziggurat.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"not a model's config.json"):
        ziggurat.from_pretrained(tmp_path)
