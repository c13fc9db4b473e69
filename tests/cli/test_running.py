import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from ziggurat.cli import main


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
        (["eval", "nowhere/at/all"], "neither a folder nor a hub id"),
        (["predict", "nowhere/at/all", "x.png"], "there is no image, folder or pattern 'x.png'"),
        (["report", "nowhere"], "nowhere is not a run's folder"),
    ],
)
def test_a_mistake_in_running_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(words, said)
