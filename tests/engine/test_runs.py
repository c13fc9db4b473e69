from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ziggurat.engine import runs
from ziggurat.engine.recipe import load


def test_results_alone_are_enough(run: Path) -> None:
    (run / "recipe.toml").unlink()
    (run / "metrics.jsonl").unlink()
    found = runs.read(run)
    assert (found.model, found.data, found.main) == ("nest_tiny_cifar", "cifar10", "top1")
    assert found.last["top1"] == 70
    assert found.best["test"]["top1"] == 80


def test_metrics_alone_are_enough(run: Path) -> None:
    (run / "recipe.toml").unlink()
    (run / "results.json").write_text('{"measured": {"te')  # cut off
    found = runs.read(run)
    assert (found.results, found.main) == ({}, "top1")
    assert found.last["top1"] == 70
    assert found.best["test"]["top1"] == 80


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no run: there is neither recipe\.toml nor "):
        runs.read(tmp_path)


def test_another_rows_number_is_a_departure() -> None:
    start = {"init": "somewhere"}
    of_cifar10 = load("regionvit/transfer", changes=start).paper
    changes = start | {"data": "cifar100", "paper": of_cifar10}
    recipe = load("regionvit/transfer", changes=changes)
    assert runs.departures(recipe.flat()) == {"paper": ({"top1": 90.0}, {"top1": 98.9})}


def test_folders_are_told_apart_by_the_shortest_paths() -> None:
    assert runs.titles([Path("a/b/run"), Path("a/c/run")]) == ["b/run", "c/run"]
    assert runs.titles([Path("a/b/run")]) == ["run"]


def test_parameters_are_counted_without_reading_them(run: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10))
    model.register_buffer("index", torch.zeros(1000, dtype=torch.long))
    save_file(model.state_dict(), run / "model.safetensors")
    assert runs.parameters(run) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 9, b"\2" + b"\0" * 7 + b"[]"])
def test_weights_that_cannot_be_read_are_not_counted(run: Path, content: bytes) -> None:
    (run / "model.safetensors").write_bytes(content)
    assert runs.parameters(run) is None
