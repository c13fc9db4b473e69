"""Several processes share the work: the same curve, every sample once, and they resume.

What torchrun starts is in tests/test_docs.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.engine import sharded_run
from tests.engine.children import two, ziggurat
from tests.engine.small_runs import small, write
from tests.engine.test_train import losses, same_weights
from tests.tasks.test_pretrain import masked
from ziggurat.engine import train
from ziggurat.engine.evaluate import evaluate


def rewound(folder: Path, step: int) -> Path:
    """A copy of a run as it was when it had been killed behind a step."""
    copy = Path(shutil.copytree(folder, folder.with_name("killed")))
    for later in sorted((copy / "checkpoints").glob("step-*")):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    for file in (train.RESULTS, "model.safetensors", "config.json"):
        (copy / file).unlink()
    return copy


def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    changes = {"epochs": 0.5, "eval_epochs": 100}
    train.train(small(**changes), tmp_path / "one")
    file = write(tmp_path / "small.toml", **changes)
    two(ziggurat, "train", file, "--out", tmp_path / "two")
    one, both = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(both) >= 10
    for (_, a), (_, b) in zip(one, both, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert (
        evaluate(tmp_path / "two")[0]["top1"]
        == json.loads((tmp_path / "two" / train.RESULTS).read_text())["measured"]["test"]["top1"]
    )
    found = [json.loads((tmp_path / n / train.RESULTS).read_text()) for n in ("one", "two")]
    tests = [result["measured"]["test"] for result in found]
    assert tests[0]["images"] == tests[1]["images"] == 359  # each once
    assert tests[0]["top1"] == pytest.approx(tests[1]["top1"], abs=1)


def test_shards_of_the_weights_give_the_same_curve_and_resume(tmp_path: Path) -> None:
    """FSDP: no process has all weights, and yet what is saved is whole."""
    changes = {"epochs": 0.5, "save_minutes": 0, "keep": 100, "clip_grad": 1.0}
    train.train(small(**changes), tmp_path / "one")
    file = write(tmp_path / "small.toml", **changes)
    two(sharded_run.run, file, tmp_path / "sharded")
    one, both = losses(tmp_path / "one"), losses(tmp_path / "sharded")
    assert len(one) == len(both) >= 10
    for (_, a), (_, b) in zip(one, both, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert evaluate(tmp_path / "sharded")[0]["images"] == 359
    killed = rewound(tmp_path / "sharded", 4)
    two(sharded_run.run, file, killed, True)
    assert same_weights(tmp_path / "sharded", killed)


RESUMED: dict[str, dict[str, Any]] = {
    "rest_lite": {"dims": [8, 16, 32], "heads": [1, 1, 2], "depths": [1, 1, 1],
                  "reductions": [4, 2, 1]},
    "regionvit_ti": {"dims": [8, 16, 32], "depths": [1, 1, 1], "windows": [4, 4, 2],
                     "head_dim": 8},
}  # fmt: skip


@pytest.mark.parametrize("model", RESUMED)
def test_a_killed_run_of_two_processes_resumes_to_the_same_bits(model: str, tmp_path: Path) -> None:
    """With BatchNorm, parameters of two kinds of tokens, and a file that cannot be read."""
    chance = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(40):
            pixels = chance.integers(0, 255, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "cat" / "broken.png").write_bytes(b"no image")
    changes: dict[str, Any] = {
        "data": str(tmp_path / "photos"),
        "model": model,
        "model_args": RESUMED[model],
    }
    changes |= {"img_size": 32, "batch": 8, "epochs": 1, "save_minutes": 0, "keep": 100}
    file = write(tmp_path / "small.toml", **changes, max_bad=0.1, workers=1)
    two(ziggurat, "train", file, "--out", tmp_path / "run")
    killed = rewound(tmp_path / "run", 3)
    two(ziggurat, "train", file, "--out", killed, "--resume")
    assert same_weights(tmp_path / "run", killed)
    found = json.loads((killed / train.RESULTS).read_text())["measured"]
    alone = evaluate(killed)[0]
    assert alone["images"] == found["test"]["images"]  # each once, in two processes and in one
    assert alone["top1"] == pytest.approx(found["test"]["top1"])
    assert found["processes"] == 2
    noted = (killed / "bad_files.txt").read_text().splitlines()
    assert len({line for line in noted if "broken.png" in line}) == 1


def test_pretraining_shares_its_work(tmp_path: Path) -> None:
    """Every parameter is used, in HiViT and where all units are fed."""
    for feed in ("visible", "all"):
        file = tmp_path / f"{feed}.toml"
        file.write_text(masked(epochs=0.2, feed=feed, eval_epochs=100).dump())
        two(ziggurat, "train", file, "--out", tmp_path / feed)
        found = json.loads((tmp_path / feed / train.RESULTS).read_text())["measured"]
        assert found["processes"] == 2
        assert found["test"]["images"] == 359
        assert evaluate(tmp_path / feed)[0]["loss"] == pytest.approx(found["test"]["loss"])
