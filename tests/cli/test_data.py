import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from ziggurat.cli import main


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


def test_images_without_classes_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(12):
        Image.new("RGB", (8, 8), (i, 0, 99)).save(tmp_path / f"{i}.png")
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "holds no folders" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path), "--unlabelled"]) == 0
    assert "ready to train on" in capsys.readouterr().out


def test_a_set_that_is_not_known_is_one_line(mistake: Callable[[list[str], str], None]) -> None:
    mistake(["data", "get", "cifar11"], "did you mean 'cifar10'?")
