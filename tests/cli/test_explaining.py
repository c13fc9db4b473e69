from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import ziggurat
from tests.models.small import SMALL
from ziggurat.cli import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    built = ziggurat.create_model("nest_tiny", num_classes=3, **SMALL["nest_tiny"])
    built.pretrained_cfg.update(label_names=["cat", "dog", "cow"], input_size=(3, 64, 64))
    return str(ziggurat.save_pretrained(built, tmp_path / "model"))


@pytest.fixture
def image(tmp_path: Path) -> str:
    Image.effect_mandelbrot((90, 70), (-2, -1, 1, 1), 30).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


def test_one_image_makes_one_picture_that_is_not_lost(
    model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "why.png"
    assert main(["explain", model, image, "--classes", "dog, cow", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{image}: dog ")
    assert said.endswith(f"; gradcat in {out}\n")
    first = out.read_bytes()
    assert Image.open(out).format == "PNG"
    again = ["explain", model, image, "--method", "cam", "--top", "1", "--out", str(out)]
    assert main(again) == 2
    assert capsys.readouterr().err == f"ziggurat: {out} exists: take another --out or --overwrite\n"
    assert out.read_bytes() == first
    assert main([*again, "--overwrite"]) == 0
    assert out.read_bytes() != first


def test_several_images_make_a_folder_and_bad_ones_are_skipped(
    model: str, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "more" / "a.png")
    (tmp_path / "more" / "bad.png").write_bytes(b"no image")
    out = tmp_path / "out"
    words = ["explain", model, image, str(tmp_path / "more"), "--out", str(out)]
    assert main([*words, "--method", "gradcam++"]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["a-2.png", "a.png"]
    assert "ziggurat: skipped" in capsys.readouterr().err
    assert main(words) == 2
    assert "exists: take another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--classes", "kow"], "no class is called 'kow': did you mean 'cow'?"),
        (["--out", "x.jpg"], "pictures are PNG files, got --out x.jpg: take x.png"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, model: str, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", model, image, *words]) == 2
    assert capsys.readouterr().err == f"ziggurat: {said}\n"
    assert not Path("x.png").exists()


def test_what_is_not_there_is_told(mistake: Callable[[list[str], str], None]) -> None:
    mistake(["explain", "nowhere", "x.png"], "there is no image, folder or pattern 'x.png'")


def test_a_method_that_the_model_does_not_allow_is_told_with_the_nearest(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = ziggurat.create_model("hvt_ti_2", num_classes=3, **SMALL["hvt_ti_2"])
    built.pretrained_cfg["input_size"] = (3, 64, 64)
    folder = str(ziggurat.save_pretrained(built, tmp_path / "hvt"))
    assert (
        main(["explain", folder, image, "--method", "gradcat", "--out", str(tmp_path / "b.png")])
        == 2
    )
    assert "no tree of 2 x 2 blocks, which NesT has; nearest is cam" in capsys.readouterr().err
