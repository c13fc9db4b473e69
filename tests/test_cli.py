import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.engine.small_runs import write
from ziggurat.cli import main, parser
from ziggurat.engine.recipe import load, names


def test_models_prints_a_table_with_the_papers_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["models", "re*"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("regionvit_b_p")]
    assert " ".join(row) == "regionvit_b_plus 224 73.79 73.8 13.58 13.6 128 256 512 1024"


def test_models_speaks_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "hivit_tiny", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["params"] == 19_181_668
    assert row["paper_flops_g"] == "4.6"
    assert row["dims"] == [96, 192, 384]
    assert row["strides"] == [4, 8, 16]


def test_info_shows_stages_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "nest_tiny", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert sum(part["params"] for part in about["parts"]) == about["params"]
    assert sum(part["macs"] for part in about["parts"]) == about["macs"]
    assert [part["shape"] for part in about["parts"][1:4]] == [
        [96, 56, 56],
        [192, 28, 28],
        [384, 14, 14],
    ]
    assert main(["info", "nest_tiny"]) == 0
    out = capsys.readouterr().out
    assert "stage 3" in out
    assert "Aggregate" in out  # the paper's sketch


@pytest.mark.parametrize("name", ["hvt_ti_1", "rest_lite", "hivit_tiny", "regionvit_ti"])
def test_info_takes_every_family_at_another_size(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", name, "--size", "128", "160", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["input"] == [3, 128, 160]
    assert sum(part["macs"] for part in about["parts"]) == about["macs"]


def test_info_takes_timms_models_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "deit_tiny_patch16_224", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["params"] == sum(part["params"] for part in about["parts"]) == 5_717_416


def test_the_stages_are_drawn_and_not_overwritten_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo, out = tmp_path / "photo.png", tmp_path / "stages.png"
    Image.effect_mandelbrot((300, 200), (-2, -1.5, 1, 1.5), 50).convert("P").save(photo)
    words = ["info", "hivit_tiny", "--picture", str(out), "--image", str(photo)]
    assert main(words) == 0
    sheet = Image.open(out)
    assert sheet.width > 3 * sheet.height
    assert main(words) == 2
    assert "exists: take another name or --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models", "nets_tiny"], "did you mean 'nest_tiny'?"),
        (["info", "hivit_bas"], "did you mean 'hivit_base'?"),
        (["info", "nest_tiny", "--size", "1", "2", "3"], "takes one side or height and width"),
        (["info", "nest_tiny", "--size", "-5"], "takes one side or height and width"),
        (["info", "deit_tiny_patch16_224", "--size", "128"], "does not take 128 x 128 images"),
        (["info", "hvt_s_4", "--size", "32"], "takes images from 81 x 81 pixels up"),
        (["info", "nest_tiny", "--picture", "x.png", "--image", "no.jpg"], "no image at no.jpg"),
        (["info", "nest_tiny", "--picture", "x.png", "--image", __file__], "read as an image"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("ziggurat: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [(["modles"], "did you mean 'models'?"), (["info"], "required: name"), ([], "required")],
)
def test_a_wrong_word_is_one_line_too(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in parser().verbs:
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert f"example: ziggurat {verb}" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m ziggurat models 'hvt_ti_*' --json | head -1"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert found.returncode == 0
    assert "Traceback" not in found.stderr


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.toml", epochs=0.2)


def test_training_measuring_and_predicting(
    small_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", str(small_file), "--out", run, "--set", "seed=3", "lr=1e-3"]) == 0
    trained = capsys.readouterr().out
    assert main(["eval", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"top1 {found['top1']:.6g}" in trained
    assert "seed = 3\n" in (tmp_path / "run" / "recipe.toml").read_text()

    Image.new("L", (8, 8), 255).save(tmp_path / "white.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    images = [str(tmp_path / "white.png"), str(tmp_path / "b*.png")]
    assert main(["predict", run, *images, "--json", "--top", "2"]) == 1
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [len(row["top"]) for row in rows] == [2, 0]
    assert sum(guess["probability"] for guess in rows[0]["top"]) <= 1
    assert "broken.png" in rows[1]["error"]
    assert "skipped" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "which recipe? `ziggurat train --list` shows them"),
        (["train", "nest/digit"], "no recipe is called 'nest/digit': did you mean 'nest/digits'?"),
        (
            ["train", "nest/digits", "--set", "epoch=3"],
            "no setting 'epoch': did you mean 'epochs'?",
        ),
        (["train", "nest/digits", "--set", "epochs=-1"], "epochs should be greater than 0, got -1"),
        (["train", "nest/digits", "--set", "mixup=much"], "mixup should be a valid number"),
        (["train", "nest/digits", "--set", "auto_augment=foo"], "auto_augment should be timm's"),
        (["train", "nest/digits", "--set", "mixup=0.8", "batch=63"], "mixup pairs the images"),
        (["finetune", "--data", "digits"], "--init is missing"),
        (["train", "nest/digits", "--set", "epochs"], "--set takes key=value, got 'epochs'"),
        (["train", "nest/digits", "--data", "digit"], "digits"),
        (["train", "nest/digits", "--model", "nest_tyni"], "did you mean 'nest_tiny'?"),
        (["train", "nest/imagenet"], "--data"),
        (["train", "nest/digits", "--out", "nowhere", "--resume"], "no run to resume"),
        (["finetune", "nest/digits"], "--init is missing"),
        (["distill", "nest/digits"], "teacher"),
        (["eval", "nowhere/at/all"], "neither a folder nor a hub id"),
        (["predict", "nowhere/at/all", "x.png"], "there is no image, folder or pattern 'x.png'"),
        (["report", "nowhere"], "nowhere is not a run's folder"),
        (["data", "get", "cifar11"], "did you mean 'cifar10'?"),
    ],
)
def test_a_mistake_in_training_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.strip().count("\n") == 0
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())  # nothing is left in the way of the next try


def test_a_dry_run_says_what_it_takes_and_writes_nothing(
    small_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(small_file), "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert 'model = "nest_tiny_cifar"' in out
    for word in ("1438 images", "22 steps an epoch", "minutes an epoch", "MiB for a step"):
        assert word in out
    assert not (tmp_path / "run").exists()


def test_minutes_choose_the_epochs(
    small_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(small_file), "--out", str(tmp_path / "run"), "--minutes", "0.02"]
    assert main(words) == 0
    assert "0.02 minutes are" in capsys.readouterr().err
    epochs = float(load(tmp_path / "run" / "recipe.toml").epochs)
    assert epochs != 0.2
    assert main([*words, "--resume"]) == 0  # as many as fitted then


def test_the_list_of_recipes_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names())


def test_own_data_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            image = Image.new("RGB", (8, 8), (i, ord(name), 99))
            image.save(tmp_path / "photos" / name / f"{i}.png")
    assert main(["data", "check", str(tmp_path / "photos"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    (tmp_path / "photos" / "a" / "0.png").write_bytes(b"no image")
    assert main(["data", "check", str(tmp_path / "photos")]) == 1
    assert "0.png" in capsys.readouterr().out
