from collections.abc import Callable
from pathlib import Path

import pytest

from ziggurat.cli import main
from ziggurat.engine.recipe import load, names


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
    ],
)
def test_a_mistake_in_training_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(words, said)


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
