import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.data.small_voc import Thing, write
from tests.models.small import small
from ziggurat.cli import main
from ziggurat.models.pretrained import save_pretrained


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small runs of one architecture, and boxes."""
    monkeypatch.chdir(tmp_path)
    for seed in range(2):
        torch.manual_seed(seed)
        model = small("rest_lite", num_classes=2)
        model.pretrained_cfg |= {"label_names": ["dog", "cat"]}
        save_pretrained(model, tmp_path / f"run{seed}")
    things = [Thing("dog", (10, 10, 40, 30)), Thing("owl", (0, 0, 5, 5))]
    write(tmp_path / "voc", {stem: ((60, 50), things) for stem in "abc"})
    return tmp_path


def test_localising_prints_a_table_and_writes_results_and_pictures(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["localise", "run0", "run1", "--data", "voc", "--method", "cam", "--steps", "2"]
    assert main([*words, "--out", "told"]) == 0
    said = capsys.readouterr().out
    assert "known top-1 top-5 pointing deletion insertion threshold" in " ".join(said.split())
    assert said.count("centre") == 2
    assert "class 'owl': not known to every model, 3 objects left out" in said
    found = json.loads((place / "told" / "results.json").read_text())
    assert {"command", "seed", "commit", "hardware"} < found.keys()
    assert len(found["measured"]["rows"]) == 4
    for name in ("accuracy.png", "boxes.png"):
        assert min(Image.open(place / "told" / name).size) > 300
    assert main([*words, "--out", "again", "--json", "--count", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["images"] == 2


def test_without_deletion_there_is_no_column_for_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run0").rename(place / "a:dog:[b]")  # no mark-up, no emoji
    words = ["localise", "a:dog:[b]", "--data", "voc", "--method", "cam", "--steps", "0"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "a:dog:[b]" in said
    assert "pointing" in said
    assert "deletion" not in said
    assert (place / "localised" / "accuracy.png").exists()


def test_analysing_prints_both_tables_and_draws_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["analyse", "run0", "run1", "--images", "voc/JPEGImages"]
    assert main([*words, "--count", "2"]) == 0
    said = capsys.readouterr().out
    assert "diversity of heads in run1" in said
    assert "variance between models" in said
    assert "2 images" in said
    drawn = {file.name for file in (place / "analysed").iterdir()}
    parts = ("stages", "heads")
    assert drawn == {"results.json", "seeds.png"} | {f"{p}_{i}.png" for p in parts for i in (1, 2)}
    assert main([*words, "--json", "--overwrite"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["variances"]) == 4
    assert found["images"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["localise", "nowhere/at/all", "--data", "x.json"], "there is no x.json"),
        (["analyse", "nowhere/at/all", "--images", "x.png"], "there is no image, folder"),
    ],
)
def test_a_mistake_in_localising_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(words, said)


def test_results_are_not_written_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "localised").mkdir()
    (place / "localised" / "mine.txt").write_text("mine")
    assert main(["localise", "run0", "--data", "voc"]) == 2
    assert "take another --out or --overwrite" in capsys.readouterr().err
