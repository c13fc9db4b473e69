"""Files that say what the model says, or none at all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ziggurat
from tests.models.small import SMALL, shallow
from ziggurat.cli import exporting, main
from ziggurat.engine import export as exporter
from ziggurat.engine import formats, graph, trial
from ziggurat.engine.export import Comparison, export
from ziggurat.engine.formats import FORMATS
from ziggurat.engine.predict import predict
from ziggurat.models.registry import create_model

CLASSES = [f"kind {i}" for i in range(10)]
DEIT = dict(img_size=32, patch_size=8, embed_dim=48, num_heads=3, depth=2)
OTHERS: dict[str, dict[str, Any]] = {
    "timm/deit_tiny_patch16_224": DEIT,
    "timm/resnet10t": {},
}


def made(name: str) -> Any:
    """A small model with names for its classes and loud logits."""
    torch.manual_seed(0)
    if name in OTHERS:
        model = create_model(name, num_classes=10, **OTHERS[name]).eval()
        side = OTHERS[name].get("img_size", 64)
    else:
        model = shallow(name).eval()
        side = model.img_size[0]
    model.pretrained_cfg.update(label_names=CLASSES, input_size=(3, side, side), crop_pct=0.9)
    torch.nn.init.normal_(model.get_classifier().weight, std=0.5)
    return model


QUICK = {
    ("nest_tiny", "onnx"),
    ("hvt_ti_2", "safetensors"),
    ("rest_lite", "openvino"),
    ("hivit_tiny", "torch-export"),
    ("regionvit_ti", "openvino"),
    ("timm/deit_tiny_patch16_224", "onnx"),
    ("timm/resnet10t", "torch-export"),
}
EACH = [
    pytest.param(name, kind, marks=() if (name, kind) in QUICK else pytest.mark.slow)
    for name in (*SMALL, *OTHERS)
    for kind in FORMATS
]


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_files_say_what_the_model_says(name: str, kind: str, tmp_path: Path) -> None:
    found = export(made(name), kind, tmp_path / "out")
    assert found.found.images == 32
    assert found.found.difference < 1e-4
    assert found.found.agreement == 100
    assert found.found.largest > 0.1
    assert found.bytes > 1000
    assert {file.name for file in found.folder.iterdir()} == {
        *FORMATS[kind].files, "config.json", "README.md",
    }  # fmt: skip
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("kind", ["onnx", "openvino", "torch-export"])
def test_the_readme_runs_it_without_ziggurat(kind: str, tmp_path: Path) -> None:
    model = made("hvt_ti_2")
    out = export(model, kind, tmp_path / "out", size=(48, 64)).folder
    trial.photographs()[0].save(out / "photo.jpg", quality=95)
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code += "import sys\nassert 'ziggurat' not in sys.modules\nprint(np.float64(logits).tolist())"
    said = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=out, check=True, capture_output=True, text=True
    )
    name, logits = said.stdout.splitlines()
    (expected,) = predict(model, out / "photo.jpg", top=10)
    chances = np.exp(json.loads(logits)[0])
    assert name == expected.top[0].name
    assert sorted(chances / chances.sum(), reverse=True) == pytest.approx(
        [guess.probability for guess in expected.top], abs=1e-4
    )


def test_files_carry_what_one_has_to_know(tmp_path: Path) -> None:
    import onnx
    import openvino

    model = made("hvt_ti_2")
    export(model, "onnx", tmp_path / "onnx")
    export(model, "openvino", tmp_path / "openvino")
    export(model, "torch-export", tmp_path / "torch")
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    assert config["classes"] == CLASSES
    assert config["input"] == ["batch", 3, 64, 64]
    assert config["resize"] == [71, 71]
    props = onnx.load(tmp_path / "onnx" / "model.onnx").metadata_props
    assert {prop.key: json.loads(prop.value) for prop in props} == config
    read = openvino.Core().read_model(tmp_path / "openvino" / "model.xml")
    assert json.loads(read.get_rt_info(["ziggurat", "classes"]).astype(str)) == CLASSES
    inside = {"config.json": ""}
    torch.export.load(tmp_path / "torch" / "model.pt2", extra_files=inside)
    assert json.loads(inside["config.json"]) == config
    for file in ("onnx/model.onnx", "torch/model.pt2", "openvino/model.xml"):
        assert str(Path(ziggurat.__file__).parent).encode() not in (tmp_path / file).read_bytes()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rest_lite", "torch-export"),
        ("timm/deit_tiny_patch16_224", "torch-export"),
        *(
            pytest.param(name, kind, marks=pytest.mark.slow)
            for name, kind in (
                ("rest_lite", "openvino"),
                ("rest_lite", "onnx"),
                ("timm/deit_tiny_patch16_224", "onnx"),
                ("timm/resnet10t", "onnx"),
                ("timm/resnet10t", "openvino"),
            )
        ),
    ],
)
def test_sizes_are_free_where_one_graph_holds_for_them(
    name: str, kind: str, tmp_path: Path
) -> None:
    model = made(name)
    found = export(model, kind, tmp_path / "out", dynamic=True)
    assert [size for size, _ in found.others] == [
        " x ".join(map(str, graph.other_size(model, *more))) for more in ((1, 3), (0, 2))
    ]
    assert all(one.agreement == 100 and one.difference < 1e-4 for _, one in found.others)
    out = found.folder
    config = json.loads((out / "config.json").read_text())
    assert config["input"] == ["batch", 3, "height", "width"]
    assert f"in multiples of {config['multiple']}" in (out / "README.md").read_text()


@pytest.mark.parametrize("name", ["nest_tiny", "hvt_ti_2", "hivit_tiny", "regionvit_ti"])
def test_where_it_does_not_hold_it_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"another graph for each size, .* with --size"):
        export(made(name), "onnx", tmp_path / "out", dynamic=True)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_resizes_positions_otherwise_is_not_kept(tmp_path: Path) -> None:
    """OpenVINO reads the antialiased bicubic resizing of ONNX, and does without antialiasing."""
    with pytest.raises(ValueError, match=r"openvino model .* differs from the original"):
        export(made("timm/deit_tiny_patch16_224"), "openvino", tmp_path / "out", dynamic=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nest_tiny", "timm/deit_tiny_patch16_224"])
def test_another_size_is_exported_as_the_model_takes_it(name: str, tmp_path: Path) -> None:
    out = export(made(name), "torch-export", tmp_path / "out", size=(48, 80)).folder
    config = json.loads((out / "config.json").read_text())
    assert config["input"] == ["batch", 3, 48, 80]
    assert config["resize"] == [53, 88]


def test_a_model_of_clips_is_exported(tmp_path: Path) -> None:
    model = create_model("hivit_tiny", frames=3, num_classes=4, **SMALL["hivit_tiny"])
    for config in (model.pretrained_cfg, model.image_model.pretrained_cfg):
        config["input_size"] = (3, 64, 64)
    found = export(model, "torch-export", tmp_path / "out")
    assert found.what == "clips that pan over photographs"
    config = json.loads((found.folder / "config.json").read_text())
    assert config["input"] == ["batch", 3, 3, 64, 64]


def test_features_are_exported_where_there_are_no_classes(tmp_path: Path) -> None:
    model = made("hvt_ti_2")
    model.reset_classifier(0)
    found = export(model, "openvino", tmp_path / "out").found
    assert found.agreement is None
    assert "gives `logits`, features" in (tmp_path / "out" / "README.md").read_text()


def test_what_differs_from_the_original_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "read", lambda kind, folder: lambda x: torch.ones(len(x), 10))
    with pytest.raises(ValueError, match="nothing was written"):
        export(made("hvt_ti_2"), "torch-export", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_not_a_number_is_a_difference() -> None:
    with pytest.raises(ValueError, match="differs from the original by nan"):
        exporter.equal(Comparison(1, float("nan"), 1.0, 0.0), "it")


def test_an_earlier_export_is_replaced_if_asked_and_nothing_else(tmp_path: Path) -> None:
    model, out = made("hvt_ti_2"), tmp_path / "out"
    export(model, "torch-export", out)
    with pytest.raises(FileExistsError, match="--overwrite"):
        export(model, "safetensors", out)
    export(model, "safetensors", out, overwrite=True)
    assert not (out / "model.pt2").exists()
    (out / "diary.txt").touch()
    with pytest.raises(FileExistsError, match=r"holds diary\.txt, no export's"):
        export(model, "torch-export", out, overwrite=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(kind="tflite"), "there is no format 'tflite': take one of onnx"),
        (dict(kind="safetensors", int8=True), "keeps a model as it is"),
        (dict(kind="torch-export", int8=True), "int8 is for onnx and openvino"),
        (dict(kind="onnx", dynamic=True, int8=True), "leave --int8"),
        (dict(kind="onnx", dynamic=True, size=(64, 64)), "leave --size"),
        (dict(kind="onnx", int8=True), "calibrated on images like yours"),
    ],
)
def test_what_cannot_be_is_said_at_once(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        export(made("hvt_ti_2"), out=tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_only_classifiers_of_colour_are_taken(tmp_path: Path) -> None:
    grey = shallow("hvt_ti_2")
    grey.in_chans = 1
    with pytest.raises(ValueError, match="takes 1 channels"):
        export(grey, "onnx", tmp_path / "out")


def test_the_command_line_knows_every_format() -> None:
    assert tuple(FORMATS) == exporting.FORMATS


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two folders of plain colours with some noise."""
    chance = np.random.default_rng(0)
    for i, name in enumerate(("dark", "bright")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for j in range(30):
            pixels = chance.integers(0, 100, (40, 40, 3)) + 150 * i
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{j}.png")
    return tmp_path / "photos"


def two_classes(photos: Path) -> Any:
    """It tells them apart by their first channel."""
    model = made("hvt_ti_2")
    model.reset_classifier(2)
    model.pretrained_cfg["label_names"] = ["bright", "dark"]
    dark, bright = (
        trial.pixels([Image.open(next((photos / name).iterdir()))], trial.test_transform(
            model.pretrained_cfg
        ))
        for name in ("dark", "bright")
    )  # fmt: skip
    prepare = exporter.normal(model)
    with torch.no_grad():
        features = [
            model.forward_head(model.forward_features(prepare(x)), pre_logits=True)[0]
            for x in (bright, dark)
        ]
        apart, middle = features[0] - features[1], (features[0] + features[1]) / 2
        model.head.weight[:] = torch.stack([apart, -apart]) * 4 / apart.norm() ** 2
        model.head.bias[:] = -(model.head.weight @ middle)
    return model


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_int8_is_calibrated_and_measured_on_data(kind: str, photos: Path, tmp_path: Path) -> None:
    found = export(two_classes(photos), kind, tmp_path / "out", int8=True, data=str(photos))
    assert found.int8 is not None
    assert found.int8.bytes < found.bytes
    assert found.int8.calibrated + found.int8.found.images == 60
    assert found.int8.found.top1 == (100, 100)
    assert found.int8.found.difference > found.found.difference
    assert found.what == "test images of photos"


def test_int8_that_loses_too_much_is_not_written() -> None:
    lossy = Comparison(100, 0.5, 5.0, 95.0, (80.0, 77.0))
    with pytest.raises(ValueError, match=r"accuracy from 80\.0 to 77\.0 per cent, and may lose 2"):
        exporter.close(lossy, 2)
    exporter.close(lossy, 3)
    with pytest.raises(ValueError, match=r"agreement with float32 from 100\.0 to 95\.0"):
        exporter.close(lossy._replace(top1=None), 2)


def test_a_user_s_images_are_split_between_calibration_and_trial(photos: Path) -> None:
    model = made("hvt_ti_2")
    found = trial.trial(model, model, [str(photos)], calibrate=True)
    assert found.seen is not None
    assert len(found.seen) == len(found.images) == 30
    one = [str(photos / "dark" / "0.png")]
    assert len(trial.trial(model, model, one).images) == 1
    with pytest.raises(ValueError, match="give 20 or more, got 1 that can be read"):
        trial.trial(model, model, one, calibrate=True)


def test_a_run_is_tried_on_its_own_test_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    ziggurat.save_pretrained(two_classes(photos), run)
    (run / "recipe.toml").write_text(
        f'name = "n"\ntask = "classify"\nmodel = "hvt_ti_2"\ndata = "{photos}"\nseed = 0\n'
    )
    out = tmp_path / "out"
    assert main(["export", str(run), "--format", "torch-export", "--out", str(out)]) == 0
    assert "test images of photos" in capsys.readouterr().out
    words = ["export", str(run), "--format", "torch-export", "--out", str(out), "--json"]
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--images", str(photos / "dark" / "0.png")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["what"] == "given images"
    assert said["found"]["agreement"] == 100
    assert said["int8"] is None
