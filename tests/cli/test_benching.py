import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ziggurat.cli import main
from ziggurat.engine import bench

QUICK = ["--sizes", "64", "--batch", "1", "--rounds", "2"]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.SIDES, "cpu", (128,))


def test_bench_prints_tables_that_fit_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    words = ["bench", "hvt_ti_1", "timm/swin_tiny_patch4_window7_224", *QUICK]
    assert main([*words, "--dtype", "float32,bfloat16", "--out", "a.json", "--plot", "a.png"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    first, second = (line.split() for line in out.splitlines() if line.startswith(" swin_tiny"))
    assert first[1:3] == ["28.3", "0.43"]  # windows of 2 x 2 tokens are padded to 7 x 7
    assert len(second) == len(first) - 1  # no counts again, but times the first type
    assert "inference; 64 px, batch 1, eager, bfloat16, 1 thread; peak" in out
    assert "x eager" in out
    assert "wrote a.png" in out
    found = json.loads(Path("a.json").read_text())
    assert found["command"].startswith("python ")
    assert found["seed"] == 0
    assert [row["model"] for row in found["measured"]["rows"]][::2] == words[1:3]


def test_bench_speaks_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "hvt_ti_1", "hvt_ti_1", *QUICK, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]  # one model is measured once
    assert row["model"] == "hvt_ti_1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nest_tyni"], "no model is called 'nest_tyni': did you mean 'nest_tiny'?"),
        (["vit-pytorch/x"], "no model is called 'vit-pytorch/x': there are vit-pytorch/nest_tiny"),
        (["nest_tiny", "--against", "rest_lite"], "--against is one of the models measured"),
        (["nest_tiny", "--mode", "train", "--backend", "onnx"], "--backend onnx is for --mode inf"),
        (["nest_tiny", "--plot", "a.svg"], "--plot draws a PNG: take a name that ends in .png"),
        (["nest_tiny", "--out", ".", "--overwrite"], ". is a folder: name a file"),
        (["timm/resnet81"], "no model is called 'timm/resnet81': did you mean 'timm/resnet18'?"),
        (["timm/??????????"], "'timm/??????????': `timm.list_models()` lists them"),
        (["hvt_ti_4", "--sizes", "32"], "4 poolings take images from 81 x 81 pixels up"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, mistake: Callable[[list[str], str], None]
) -> None:
    mistake(["bench", *words], said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "8,0"], "argument --batch: takes a whole number from 1 up, got '0'"),
        (["--backend", "eager,tvm"], "takes eager, compile, onnx, openvino, got 'tvm'"),
        (["--dtype", "int4"], "takes float32, bfloat16, got 'int4'"),
    ],
)
def test_a_word_that_is_none_is_told(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "nest_tiny", *words])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_what_exists_is_not_replaced(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "kept"
    file.write_text("dear")
    assert main(["bench", "hvt_ti_1", option, str(file)]) == 2
    assert "exists: take another name or --overwrite" in capsys.readouterr().err
    assert file.read_text() == "dear"


def test_the_words_are_those_of_the_engine() -> None:
    from ziggurat.cli import benching
    from ziggurat.engine import backends, contest

    assert benching.MODES == contest.MODES
    assert tuple(benching.BACKENDS) == tuple(backends.BACKENDS)
    assert tuple(contest.DTYPES) == benching.DTYPES
