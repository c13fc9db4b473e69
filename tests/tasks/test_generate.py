"""Two players on the one loop: each learns by its own loss, and what they make is measured."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves

from tests.engine.children import child, two
from tests.engine.small_runs import small
from tests.engine.test_train import reached
from ziggurat.cli import main
from ziggurat.engine import checkpoint
from ziggurat.engine import train as training
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.recipe import RecipeError
from ziggurat.engine.train import Diverged, train
from ziggurat.models.generators import load_generator
from ziggurat.models.pretrained import save_pretrained
from ziggurat.models.registry import create_model
from ziggurat.tasks.generate import Generate, apart, mosaic, sampled, ways
from ziggurat.tasks.task import Wanted

GAN: dict[str, Any] = {
    "name": "small gan",
    "task": "generate",
    "data": "digits",
    "model": "nest_generator_16",
    "model_args": {"dim": 32, "depths": [1, 1], "heads": 2, "latent": 8},
    "epochs": 0.04,
    "batch": 32,
    "optimizer": "adam",
    "lr": 1e-3,
    "lr_per": 0,
    "betas": [0.0, 0.99],
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup_epochs": 0,
    "ema": 0.9,
    "flip": 0.0,
    "discriminator": "discriminator_small",
    "discriminator_args": {"dim": 16},
    "compared": 24,
    "eval_epochs": 100,
    "log_steps": 1,
    "workers": 0,
}


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small network to compare images by."""
    torch.manual_seed(0)
    model = create_model(
        "nest_tiny_cifar", img_size=16, num_classes=10, dims=[16, 32], depths=[1, 1], heads=[1, 2],
        patch_size=2,
    )  # fmt: skip
    return str(save_pretrained(model, tmp_path_factory.mktemp("features") / "model"))


@pytest.fixture(scope="module")
def run(features: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small(**GAN, features=features), out)
    return out


def task_of(**changes: Any) -> Generate:
    """The task alone."""
    torch.manual_seed(0)
    found = small(**GAN | changes)
    data = Generate.open("digits", found.settings, 0)
    return Generate.build(Wanted(found.model, GAN["model_args"], None), found.settings, data)


def batch_of(task: Generate, count: int = 8) -> Any:
    """A few real images."""
    samples = task.train_samples()
    return samples.collate([samples.make(i) for i in range(count)])


def test_a_run_leaves_samples_and_measures(run: Path) -> None:
    found = json.loads((run / "results.json").read_text())["measured"]
    assert {"fid", "kid", "precision", "recall", "variety"} <= found["test"].keys()
    assert found["test"]["real"] == found["test"]["generated"] == 24
    for name in ("samples", "ways", "neighbours", "curves"):
        assert (run / f"{name}.png").exists()
    page = (run / "report.html").read_text()
    assert "FID" in page
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "discriminator_loss", "discriminator_on_real"} <= lines[0].keys()


def test_eval_gives_the_trainings_last_figures(run: Path) -> None:
    wanted = json.loads((run / "results.json").read_text())["measured"]["test"]
    assert evaluate(run).measures == wanted


@pytest.mark.parametrize("player", Generate.players)
def test_one_player_learns_at_a_time(player: str) -> None:
    task = task_of(r1_every=1)
    task(batch_of(task), player)["loss"].backward()
    for name in Generate.players:
        gradients = [p.grad for p in task.player(name).parameters()]
        if name == player:
            assert all(g is not None and g.isfinite().all() for g in gradients)
        else:
            assert all(g is None for g in gradients)


def test_losses_are_logistic_with_r1() -> None:
    """Mescheder et al., Eq. 9; the non-saturating loss of the generator."""
    task = task_of(r1=3.0, r1_every=1).double()
    real, fake = torch.rand(2, 6, 3, 16, 16, dtype=torch.float64) * 2 - 1
    found = task.judge(real.clone(), fake)
    x = real.clone().requires_grad_()
    logits = task.discriminator(x)
    (slope,) = torch.autograd.grad(logits.sum(), x)
    wanted = F.softplus(-logits).mean() + F.softplus(task.discriminator(fake)).mean()
    wanted = wanted + 1.5 * slope.square().flatten(1).sum(1).mean()
    torch.testing.assert_close(found["loss"], wanted, rtol=1e-5, atol=1e-6)


def test_the_penalty_comes_seldom_and_weighs_more() -> None:
    task = task_of(r1=1.0, r1_every=4)
    real, fake = torch.rand(2, 6, 3, 16, 16) * 2 - 1
    torch.manual_seed(0)
    losses = torch.stack([task.judge(real.clone(), fake)["loss"].detach() for _ in range(60)])
    plain, more = losses.min(), losses.max()
    often = (losses > (plain + more) / 2).float().mean()
    assert 0.1 < often < 0.45
    every = task_of(r1=1.0, r1_every=1).judge(real.clone(), fake)["loss"]
    torch.testing.assert_close(more - plain, 4 * (every.detach() - plain), rtol=1e-3, atol=1e-5)


def test_a_run_that_was_stopped_goes_on_bit_by_bit(
    run: Path, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both players, the average and the random numbers."""
    recipe = small(**GAN | {"save_minutes": 0}, features=features)
    step = training.Loop.train_step

    def stop(self: Any, parts: Any) -> None:
        if self.step == 1:
            raise KeyboardInterrupt
        step(self, parts)

    monkeypatch.setattr(training.Loop, "train_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run")
    monkeypatch.setattr(training.Loop, "train_step", step)
    train(recipe, tmp_path / "run", resume=True)
    wanted, found = (load_file(path / "model.safetensors") for path in (run, tmp_path / "run"))
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_a_run_that_is_killed_goes_on_with_both_players(features: str, tmp_path: Path) -> None:
    changes = GAN | {"epochs": 0.4, "save_minutes": 0.001, "features": features, "compared": 8}
    straight = child(tmp_path / "straight", changes)
    straight.join()
    assert straight.exitcode == 0
    for i, target in enumerate((3, 9)):
        process = child(tmp_path / "killed", changes, resume=i > 0)
        while process.is_alive() and reached(tmp_path / "killed") < target:
            time.sleep(0.01)
        assert process.is_alive(), "it ended before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    last = child(tmp_path / "killed", changes, resume=True)
    last.join()
    assert last.exitcode == 0
    ends = [checkpoint.saved(tmp_path / run / "checkpoints")[-1] for run in ("straight", "killed")]
    assert ends[0].name == ends[1].name
    wanted, found = (load_file(end / "task.safetensors") for end in ends)
    assert any("discriminator" in name for name in wanted)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    moments = [tree_leaves(torch.load(end / "optimizer.pt", weights_only=True)) for end in ends]
    assert len(moments[0]) == len(moments[1])
    for one, other in zip(*moments, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    wanted, found = (
        load_file(tmp_path / run / "model.safetensors") for run in ("straight", "killed")
    )
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)  # the average


def test_a_player_without_a_finite_loss_stops_the_game(
    features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the other player's steps go well."""
    forward = Generate.forward

    def broken(self: Any, batch: Any, player: str = "model") -> dict[str, torch.Tensor]:
        found = forward(self, batch, player)
        return found if player == "discriminator" else {"loss": found["loss"] * torch.nan}

    monkeypatch.setattr(Generate, "forward", broken)
    monkeypatch.setattr(training, "PATIENCE", 3)
    with pytest.raises(Diverged, match="step 3: model's loss is nan, 3 steps in a row"):
        train(small(**GAN | {"epochs": 0.2}, features=features), tmp_path / "run")


def test_two_processes_play_one_game(features: str, tmp_path: Path) -> None:
    """Each with its share of the real images; what is measured counts every image once."""
    recipe = small(**GAN | {"epochs": 0.08}, features=features)
    two(train, recipe, tmp_path / "run")
    found = json.loads((tmp_path / "run" / "results.json").read_text())["measured"]
    assert found["processes"] == 2
    assert found["test"]["real"] == found["test"]["generated"] == 24


def test_collapsed_samples_are_told(features: str) -> None:
    task = task_of(features=features)
    for parameter in task.model.parameters():
        torch.nn.init.zeros_(parameter)
    samples = task.test_samples()
    task.measure(task.model.eval(), samples.collate([samples.make(i) for i in range(8)]))
    assert task.measured()["variety"] < 1
    assert "collapsed" in task.alarms()[0]


def test_images_are_made(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(run), "--count", "5", "--out", str(tmp_path / "a.png")]
    assert main([*words, "--files", str(tmp_path / "files"), "--seed", "3"]) == 0
    assert len(list((tmp_path / "files").iterdir())) == 5
    with Image.open(tmp_path / "files" / "000000.png") as image:
        assert image.size == (16, 16)
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--truncation", "0"]) == 2
    assert "--truncation" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--truncation", "0.5"]) == 0


def test_a_seed_gives_its_images_whatever_the_count(run: Path) -> None:
    model = load_generator(run)
    few, many = sampled(model, 3, 7), sampled(model, 6, 7)
    assert torch.equal(few, many[:3])
    assert not torch.equal(few, sampled(model, 3, 8))
    assert not torch.equal(few, sampled(model, 3, 7, truncation=0.5))
    assert few.dtype == torch.uint8


def test_ways_begin_and_end_at_noise_of_their_own(run: Path) -> None:
    model = load_generator(run)
    found = ways(model, 0).unflatten(0, (4, 9))
    start, end = model.noise(8, torch.Generator().manual_seed(0)).chunk(2)
    made = ((model(start) + 1) * 127.5).round().clamp(0, 255).byte()
    assert (found[:, 0].int() - made.int()).abs().max() <= 1
    made = ((model(end) + 1) * 127.5).round().clamp(0, 255).byte()
    assert (found[:, -1].int() - made.int()).abs().max() <= 1


def test_a_mosaic_shows_every_image() -> None:
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 16, 16) * 40
    sheet = mosaic(images, 3)
    assert sheet.size == (3 * 66 + 2, 2 * 66 + 2)
    assert [sheet.getpixel((10 + 66 * (i % 3), 10 + 66 * (i // 3)))[0] for i in range(5)] == [
        0, 40, 80, 120, 160,
    ]  # fmt: skip


def test_images_that_are_one_are_not_apart() -> None:
    one = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
    assert apart(one.expand(4, -1, -1, -1)) == 0
    assert apart(torch.cat([one, 255 - one])) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"discriminator": "resnet"}, "should be one of"),
        ({"r1": -1.0}, "r1"),
        ({"mixup": 0.1}, "generate has no setting 'mixup'"),
    ],
)
def test_a_wrong_setting_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        small(**GAN | changes)
