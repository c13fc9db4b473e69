"""Pre-training on the one loop, and what starts from it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import ziggurat
from tests.engine.children import child
from tests.engine.test_train import same_weights
from ziggurat.engine import recipe, train
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.recipe import Recipe, RecipeError
from ziggurat.engine.results import history
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks.augment import collate
from ziggurat.tasks.pretrain import Pretrain

MASKED: dict[str, Any] = {
    "name": "masked",
    "task": "pretrain",
    "data": "digits",
    "model": "hivit_tiny",
    "model_args": {"dims": [8, 16], "depths": [1, 1], "heads": 2, "unit": 4, "rpe": False},
    "img_size": 16,
    "epochs": 0.5,
    "batch": 64,
    "lr": 2e-3,
    "lr_per": 0,
    "warmup_epochs": 0.1,
    "test_crop": 1.0,
    "mask_ratio": 0.75,
    "normalise": True,
    "decoder_dim": 16,
    "decoder_depth": 1,
    "decoder_heads": 2,
    "log_steps": 1,
    "eval_epochs": 0.25,
    "workers": 0,
}


def masked(**changes: Any) -> Recipe:
    return recipe.parse(MASKED | changes, "masked")


def task_of(**changes: Any) -> Pretrain:
    built = train.build(masked(**changes))
    assert isinstance(built, Pretrain)
    return built


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "run"
    train.train(masked(epochs=2), folder)
    return folder


def test_a_run_learns_and_shows_what_it_paints(run: Path) -> None:
    lines = history(run / "metrics.jsonl")
    tests = [line["test"] for line in lines if "test" in line]
    assert tests[-1]["explained"] > tests[0]["explained"]
    assert tests[-1]["images"] == 359
    snapshots = sorted((run / "snapshots").glob("*.png"))
    assert [file.stem for file in snapshots[:2]] == ["epoch-00000.27", "epoch-00000.55"]
    last = np.asarray(Image.open(run / "paintings.png"))
    assert (last == np.asarray(Image.open(snapshots[-1]))).all()
    page = (run / "report.html").read_text()
    assert "Held-out images with parts hidden" in page
    assert "Along the way" in page
    assert "epoch 0.27" in page


def test_eval_gives_the_number_that_training_printed(run: Path) -> None:
    expected = json.loads((run / "results.json").read_text())["measured"]["test"]
    assert evaluate(run)[0] == expected


def test_the_variance_explained_is_that_of_hidden_pixels() -> None:
    task = task_of().eval()
    samples = task.test_samples()
    batch = collate([samples.make(i) for i in range(6)])
    images = task.normalised(batch.images)
    with torch.no_grad():
        task.measure(task.model, batch)
        painting = task.model.painting(images, task.noise(batch.at, batch.images))
        loss = task.model(images, task.noise(batch.at, batch.images))
    found = task.measured()
    hidden = painting.hidden.bool()
    error = (painting.painted - painting.target)[hidden].square().sum()
    around = painting.target[hidden]
    around = (around - around.mean(-1, keepdim=True)).square().sum()
    assert found["explained"] == pytest.approx(100 * float(1 - error / around), rel=1e-5)
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_an_images_mask_does_not_depend_on_its_batch() -> None:
    task = task_of()
    images = torch.zeros(2, 3, 16, 16)
    alone = torch.cat([task.noise(torch.tensor([i]), images[:1]) for i in (7, 3)])
    assert torch.equal(task.noise(torch.tensor([7, 3]), images), alone)


def test_what_is_shown_is_the_image_and_what_is_pasted_keeps_what_was_seen() -> None:
    task = task_of()
    samples = task.test_samples()
    batch = collate([samples.make(0)])
    ((original, seen, painted, both),) = task.painted(task.model, batch.images, batch.at)
    hidden = np.asarray(seen) == 128
    assert 0.7 < hidden.mean() <= 0.9
    assert (np.asarray(both)[~hidden] == np.asarray(original)[~hidden]).all()
    assert (np.asarray(both)[hidden] == np.asarray(painted)[hidden]).mean() > 0.95


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    changes = {**MASKED, "save_minutes": 0, "workers": 1}
    process = child(straight, changes)
    process.join(300)
    assert process.exitcode == 0
    for step in (3, 8):
        process = child(killed, changes, resume=step > 3)
        while not (killed / "checkpoints" / f"step-{step:08d}").exists() and process.is_alive():
            process.join(0.01)
        process.kill()
        process.join()
    process = child(killed, changes, resume=True)
    process.join(300)
    assert process.exitcode == 0
    assert same_weights(straight, killed)
    decoders = [load_file(folder / "decoder.safetensors") for folder in (straight, killed)]
    assert all(torch.equal(value, decoders[1][name]) for name, value in decoders[0].items())


@pytest.mark.parametrize("start", ["any/finetune", "any/probe"])
def test_training_starts_from_the_encoder(run: Path, tmp_path: Path, start: str) -> None:
    chosen = recipe.load(start, changes={"init": str(run), "data": "digits", "epochs": 0.1})
    assert chosen.model == "hivit_tiny"
    task = train.build(chosen)
    learned = load_file(run / "model.safetensors")
    own = task.model.state_dict()
    assert own["head.weight"].shape[0] == 10
    same = [name for name in learned if torch.equal(own[name], learned[name])]
    assert len(same) == len(learned)


def test_pretraining_goes_on_from_pretraining(run: Path, tmp_path: Path) -> None:
    """With the positions and the decoder it has learned."""
    task = task_of(init=str(run))
    learned = load_file(run / "model.safetensors")
    assert torch.equal(task.model.encoder.pos.table, learned["pos.table"])
    decoder = load_file(run / "decoder.safetensors")
    own = task.model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in decoder.items())
    fresh = task_of(init=str(run / "model.safetensors"))
    assert torch.equal(fresh.model.encoder.pos.table, learned["pos.table"])
    assert not torch.equal(fresh.model.decoder.pred.weight, decoder["decoder.pred.weight"])
    save_file(own, tmp_path / "whole.safetensors")
    whole = task_of(init=str(tmp_path / "whole.safetensors"))
    assert torch.equal(whole.model.decoder.pred.weight, decoder["decoder.pred.weight"])
    with pytest.raises(CheckpointError, match="is another decoder"):
        task_of(init=str(run), decoder_dim=32)


SWIN = {"embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
OTHERS: dict[str, dict[str, Any]] = {
    "averaged, bfloat16": {"ema": 0.9, "precision": "bf16"},
    "not square": {"img_size": [16, 24]},
    "all units": {"feed": "all", "mask_ratio": 0.5},
    "timm": {"model": "timm/swin_tiny_patch4_window7_224", "model_args": SWIN, "img_size": 32,
             "unit": 8, "stages": "last", "decoder_depth": 0, "pixel_loss": "l1",
             "normalise": False},
    "resnet": {"model": "timm/resnet18", "model_args": {"channels": [8, 8, 8, 8]},
               "img_size": 32, "unit": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_saved_measures_the_same(name: str, tmp_path: Path) -> None:
    done = train.train(masked(**{"epochs": 0.2} | OTHERS[name]), tmp_path / "run")
    assert evaluate(done.folder)[0] == done.metrics
    best = json.loads((done.folder / "results.json").read_text())["measured"]["best"]
    assert evaluate(done.folder / "best")[0] == best["test"]
    assert (done.folder / "paintings.png").is_file()


def test_other_families_are_pretrained_by_the_same_command(tmp_path: Path) -> None:
    options = {"dims": [16, 32], "depths": [1, 1], "heads": [1, 2], "patch_size": 2}
    changes = {"model": "nest_tiny_cifar", "model_args": options, "unit": 4, "epochs": 0.1}
    done = train.train(masked(**changes), tmp_path / "nest")
    model = ziggurat.from_pretrained(done.folder)
    assert model.num_classes == 0
    assert model(torch.randn(1, 3, 16, 16)).shape == (1, 32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_ratio": 0}, "mask_ratio should be greater than 0, got 0"),
        ({"mask_ratio": 1}, "mask_ratio should be less than 1, got 1"),
        ({"feed": "some"}, "feed should be 'visible' or 'all', got 'some'"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        masked(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"img_size": 18}, "whole units of 4 x 4 pixels, got 18 x 18: take a multiple of 4"),
        ({"img_size": 1}, "whole units of 4 x 4 pixels, got 1 x 1"),
        ({"img_size": 4}, "leaves none of 1 units visible"),
        ({"unit": 8}, "leaves out its own units of 4 pixels a side, got unit=8: take unit=4"),
        ({"decoder_dim": 18}, r"decoder_dim is a multiple of 4 and of decoder_heads \(2\), got 18"),
    ],
)
def test_what_does_not_fit_together_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train.build(masked(**changes))


def test_a_video_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"....ftypisom")
    with pytest.raises(ValueError, match=r"clip.mp4"):
        train.build(masked(data=str(tmp_path / "clip.mp4")))


def test_prediction_says_what_is_missing(run: Path) -> None:
    with pytest.raises(ValueError, match="knows no classes: fine-tune or probe it first"):
        ziggurat.predict(run, Image.new("RGB", (16, 16)))
