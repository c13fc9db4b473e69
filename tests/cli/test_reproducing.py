import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from ziggurat.cli import main, reproducing
from ziggurat.data.images import open_data
from ziggurat.engine import claims, reproduce, studies
from ziggurat.engine.reproduce import Places
from ziggurat.models.pretrained import save_pretrained
from ziggurat.models.registry import create_model


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_tables_and_figures_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in claims.items())
    assert main(["reproduce", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == list(claims.items())


def test_a_table_is_counted_and_what_is_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "hvt/table3", "--minutes", "0", "--seeds", "1", "--jobs", "1"]) == 0
    out, said = capsys.readouterr()
    assert "3 runs to train, 1 at a time" in out
    assert "23.54" in out
    assert "not measured yet: “it significantly surpasses average pooling by 5.05%" in out
    assert "3 runs are left: the same command goes on with them" in said
    assert Path("reproduce/results/counts/hvt-table3.json").is_file()
    assert main(["reproduce", "hvt/table3", "--minutes", "0", "--seeds", "1", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert len(one["cells"]) == 6


def test_what_needs_a_clone_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "nest/figure7"]) == 0
    said = capsys.readouterr().err
    assert "needs a clone of the repository: python benchmarks/generate.py untrained speed" in said


def test_a_script_that_fails_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "clips.py").write_text("raise SystemExit(3)")
    assert reproducing.script("benchmarks/clips.py") == ["ended with 3: python benchmarks/clips.py"]


def test_names_are_tables_papers_studies_or_all() -> None:
    items, trained = reproducing.resolved(["rest", "nest/figure5", "hvt/pooling"])
    assert items[0] == "nest/figure5"
    assert items[1:] == [name for name in claims.items() if name.startswith("rest/")]
    assert set(trained) == {"hvt/pooling", "nest/aggregation", "rest/attention", "rest/levels"}
    items, trained = reproducing.resolved(["all"])
    assert items == list(claims.items())
    assert set(trained) == set(studies.names())


def test_a_figure_is_drawn_from_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def command(words: list[str]) -> int:
        asked.append(words)
        (Path(words[-1]) / "heads_1.png").write_text("a picture")
        return 0

    places = Places(tmp_path / "results", tmp_path / "runs", tmp_path)
    monkeypatch.setattr("ziggurat.cli.main", command)
    reproducing.draw("rest/figure1", "laptop", places)
    assert asked == []  # nothing is trained yet
    monkeypatch.setattr("ziggurat.engine.rerun.trained", lambda run, at: True)
    for _ in range(2):  # and once is enough
        reproducing.draw("rest/figure1", "laptop", places)
    ((verb, run, *words),) = asked
    assert verb == "analyse"
    assert run == str(tmp_path / "runs/laptop/rest-attention/emsa-0")
    assert words[0] == "--images"
    assert words[1].endswith("*.jpg")
    (found,) = reproduce.find("rest/figure1", "laptop", places).pictures
    assert found.read_text() == "a picture"
    assert not reproducing.pictures_lacking("rest/figure1", places)


@pytest.mark.parametrize(
    "name", ["nest/figure8", "hvt/figure3", "rest/figure1", "rest/figure2", "hivit/figure2"]
)
def test_a_figure_is_a_picture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the real commands, of models that have learned nothing."""
    places = Places(tmp_path / "results", tmp_path / "runs", tmp_path)
    for run in [run for runs in reproduce.runs_of(name, "laptop") for run in runs]:
        torch.manual_seed(run.seed)
        wanted = run.recipe
        options = {"num_classes": 10, "img_size": 32, **wanted.model_args}
        save_pretrained(create_model(wanted.model, **options), places.runs / run.name)
    monkeypatch.setattr("ziggurat.engine.rerun.trained", lambda run, at: True)
    monkeypatch.setattr("ziggurat.engine.trial.open_data", lambda data, seed: open_data("digits"))
    reproducing.draw(name, "laptop", places)
    found = reproduce.find(name, "laptop", places).pictures
    assert len(found) == len(reproduce.picture_files(name, places)) > 0
    for file in found:
        assert min(Image.open(file).size) > 100
    out, told = capsys.readouterr()
    assert out == ""  # of the commands' own
    assert [line for line in told.splitlines() if line] == [f"drew {file}" for file in found]


def test_a_report_is_not_written_over_unasked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text("mine")
    assert main(["reproduce", "--report"]) == 2
    assert "docs/reproduction.md exists: take another --out" in capsys.readouterr().err
    assert (tmp_path / "docs" / "reproduction.md").read_text() == "mine"
    assert main(["reproduce", "--report", "--out", "other"]) == 0
    assert (tmp_path / "other" / "reproduction.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nest/figure55"], "is called 'nest/figure55': did you mean 'nest/figure5'?"),
        ([], "give tables or figures (nest/figure5), a paper, all, --list or --report"),
        (["nest", "--list"], "give tables or figures (nest/figure5), a paper, all, --list or"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(["reproduce", *words], said)
