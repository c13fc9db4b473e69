import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from ziggurat.cli import main


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


def test_info_of_clips_counts_attention_over_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "regionvit_s", "--frames", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input"] == [8, 3, 224, 224]
    assert round(found["macs"] / 1e9, 1) == 59.4  # RegionViT's Table 7
    assert sum(part["macs"] for part in found["parts"]) == found["macs"]
    assert sum(part["params"] for part in found["parts"]) == found["params"]
    assert main(["info", "regionvit_s", "--frames", "8"]) == 0
    assert "8 frames" in capsys.readouterr().out


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


@pytest.mark.parametrize("kind", ["nest", "trans", "conv"])
def test_info_of_a_generator_goes_from_noise_to_pixels(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", f"{kind}_generator_64", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert sum(part["params"] for part in about["parts"]) == about["params"]
    assert sum(part["macs"] for part in about["parts"]) == about["macs"]
    shapes = [part["shape"] for part in about["parts"][1:]]
    assert [shape[1] for shape in shapes] == [8, 16, 32, 64, 64]
    assert shapes[-1] == [3, 64, 64]
    if kind == "nest":
        assert [shape[0] for shape in shapes[:-1]] == [1024, 256, 64, 16]  # Table A4
    assert main(["info", f"{kind}_generator_64"]) == 0
    assert "noise" in capsys.readouterr().out


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
    ("words", "said"),
    [
        (["models", "nets_tiny"], "did you mean 'nest_tiny'?"),
        (["info", "hivit_bas"], "did you mean 'hivit_base'?"),
        (["info", "nest_tiny", "--size", "1", "2", "3"], "takes one side or height and width"),
        (["info", "nest_generater_64"], "did you mean 'nest_generator_64'?"),
        (["info", "nest_generator_64", "--size", "32"], "leave --size and --frames out"),
        (["info", "conv_generator_16", "--picture", "x.png"], "`ziggurat generate` shows"),
        (["info", "nest_tiny", "--size", "-5"], "takes one side or height and width"),
        (["info", "deit_tiny_patch16_224", "--size", "128"], "does not take 128 x 128 images"),
        (["info", "hvt_s_4", "--size", "32"], "takes images from 81 x 81 pixels up"),
        (["info", "nest_tiny", "--picture", "x.png", "--image", "no.jpg"], "no image at no.jpg"),
        (["info", "nest_tiny", "--picture", "x.png", "--image", __file__], "read as an image"),
    ],
)
def test_a_mistake_about_models_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(words, said)
