"""The loop: what is killed goes on to the same bits, what is shared gives the same curve."""

import json
import math
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import ziggurat
from tests.engine.children import child
from tests.engine.small_runs import ALL_RANDOM, small
from ziggurat.data.loading import seed_all
from ziggurat.engine import checkpoint, train
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.processes import accelerator
from ziggurat.engine.recipe import Recipe
from ziggurat.engine.results import METRICS
from ziggurat.engine.signals import Interrupted
from ziggurat.engine.train import Diverged
from ziggurat.tasks.classify import Classify


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def same_weights(one: Path, other: Path) -> bool:
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def test_a_run_killed_five_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    changes = ALL_RANDOM | {"epochs": 4, "save_minutes": 0.001}
    straight = child(tmp_path / "straight", changes)
    straight.join()
    assert straight.exitcode == 0
    steps = len(losses(tmp_path / "straight"))
    chance = random.Random(0)
    killed = tmp_path / "killed"
    stops = []
    for i in range(5):
        first = i == 0
        process = child(killed, changes, resume=not first)
        target = steps * (i + 1) // 7
        while process.is_alive() and reached(killed) < target:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)  # anywhere in a step, or in the middle of a save
        assert process.is_alive(), "it ended before it was killed: more steps are needed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        stops.append(reached(killed))
    last = child(killed, changes, resume=True)
    last.join()
    assert last.exitcode == 0
    assert len(set(stops)) == 5
    assert any(stop % 22 for stop in stops)  # in the middle of an epoch
    assert same_weights(tmp_path / "straight", killed)
    assert losses(tmp_path / "straight") == losses(killed)


def reached(folder: Path) -> int:
    """The last checkpoint's step."""
    found = checkpoint.saved(folder / "checkpoints")
    return int(found[-1].name.removeprefix("step-")) if found else 0


def test_a_run_is_a_folder_that_loads_and_measures_the_same(tmp_path: Path) -> None:
    run = train.train(small(ema=0.9), tmp_path / "run")
    model = ziggurat.from_pretrained(run.folder)
    assert model.pretrained_cfg["label_names"] == [str(i) for i in range(10)]
    found, bad, _ = evaluate(run.folder)
    assert not bad
    assert found == run.metrics
    for name in ("config.json", "model.safetensors", "README.md", "recipe.toml", "report.html"):
        assert (run.folder / name).is_file()
    best = json.loads((run.folder / train.RESULTS).read_text())["measured"]["best"]
    assert evaluate(run.folder / "best")[0] == best["test"]


def test_the_loop_does_what_a_bare_loop_does(tmp_path: Path) -> None:
    """The same batches through the same model by hand give the same weights."""
    recipe = small(epochs=0.3, weight_decay=0.1)
    run = train.train(recipe, tmp_path / "run")
    task: Any = train.build(recipe)
    samples = task.train_samples()
    decayed = [p for p in task.model.parameters() if p.ndim > 1]
    named = dict(task.model.named_parameters())
    free = {name for name in task.model.no_weight_decay()} | {
        name for name, p in named.items() if p.ndim <= 1
    }
    groups = [
        {"params": [p for n, p in named.items() if n in free], "weight_decay": 0.0},
        {"params": [p for n, p in named.items() if n not in free], "weight_decay": 0.1},
    ]
    assert decayed
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_lr)
    per_epoch = len(samples.source) // recipe.batch
    steps = round(recipe.epochs * per_epoch)
    warm = round(recipe.warmup_epochs * per_epoch)
    task.train()
    generator = torch.Generator().manual_seed(recipe.seed * 100_003)
    order = torch.randperm(len(samples.source), generator=generator).tolist()
    for step in range(steps):
        wave = (1 + math.cos(math.pi * step / steps)) / 2
        rate = recipe.min_lr + wave * (recipe.peak_lr - recipe.min_lr)
        if step < warm:
            rate = recipe.warmup_lr + step / warm * (recipe.peak_lr - recipe.warmup_lr)
        for group in optimizer.param_groups:
            group["lr"] = rate
        found = []
        for position in range(step * recipe.batch, (step + 1) * recipe.batch):
            seed_all(recipe.seed, 0, position)
            found.append(samples.make(order[position]))
        seed_all(recipe.seed, step, 0, 0)
        task(samples.collate(found))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    ours = load_file(run.folder / "model.safetensors")
    for name, value in task.model.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    whole = train.train(small(epochs=0.3), tmp_path / "whole")
    parts = train.train(small(epochs=0.3, accumulate=4), tmp_path / "parts")
    for (_, a), (_, b) in zip(losses(whole.folder), losses(parts.folder), strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_an_existing_run_is_left_alone(tmp_path: Path) -> None:
    recipe = small(epochs=0.1)
    train.train(recipe, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="--resume goes on with it, --overwrite"):
        train.train(small(epochs=0.1, seed=1), tmp_path / "run")
    with pytest.raises(ValueError, match="another recipe \\(seed 0 -> 1\\)"):
        train.train(small(epochs=0.1, seed=1), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    train.train(small(epochs=0.1, seed=1), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before


def test_a_folder_that_is_no_runs_is_never_cleared(tmp_path: Path) -> None:
    (tmp_path / "holiday.png").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="is no run's: take another --out"):
        train.train(small(epochs=0.1), tmp_path, overwrite=True)
    assert (tmp_path / "holiday.png").read_bytes() == b"precious"


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    recipe = small(epochs=0.2)
    straight = train.train(recipe, tmp_path / "straight")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "recipe.toml").write_text(recipe.dump())
    run = train.train(recipe, tmp_path / "killed", resume=True)
    assert same_weights(run.folder, straight.folder)


def test_what_does_not_change_the_result_may_change_when_resuming(tmp_path: Path) -> None:
    train.train(small(epochs=0.2), tmp_path / "run")
    train.train(small(epochs=0.2, workers=1, max_bad=0.5, keep=1), tmp_path / "run", resume=True)


def test_lines_of_the_log_are_those_of_an_uninterrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(epochs=1, log_steps=7, eval_epochs=0.5)
    train.train(recipe, tmp_path / "straight")
    real = Classify.forward
    calls = []

    def interrupted(self: Classify, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 11:  # a multiple of neither, but an evaluation is due
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    monkeypatch.setattr(Classify, "forward", interrupted)
    with pytest.raises(Interrupted):
        train.train(recipe, tmp_path / "run")
    monkeypatch.undo()
    train.train(recipe, tmp_path / "run", resume=True)
    train.train(recipe, tmp_path / "run", resume=True)  # once more: it is finished
    timed = ("minutes", "images_per_s", "waiting")
    one, two = (
        [
            {key: value for key, value in json.loads(line).items() if key not in timed}
            for line in (tmp_path / name / METRICS).read_text().splitlines()
        ]
        for name in ("straight", "run")
    )
    assert one == two


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    run = train.train(small(epochs=0.2), tmp_path / "run")
    again = train.train(small(epochs=0.2), tmp_path / "run", resume=True)
    assert again.metrics == run.metrics


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal goes to the processes that read data, too, as torchrun and a terminal send it."""
    recipe = small(epochs=0.5, workers=1)
    straight = train.train(recipe, tmp_path / "straight")
    real = Classify.forward
    calls = []

    def interrupted(self: Classify, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                if "resource_tracker" not in " ".join(process.cmdline()):
                    process.send_signal(number)
            time.sleep(0.2)
        return real(self, *args)

    monkeypatch.setattr(Classify, "forward", interrupted)
    said = r"saved at step 3: go on with `ziggurat train --out .* --resume`"
    with pytest.raises(Interrupted, match=said) as stop:
        train.train(recipe, tmp_path / "run")
    assert stop.value.exit_code == 128 + number
    monkeypatch.undo()
    run = train.train(recipe, tmp_path / "run", resume=True)
    assert same_weights(run.folder, straight.folder)


def test_a_frozen_schedule_keeps_the_decay_of_layers(tmp_path: Path) -> None:
    recipe = small(schedule="constant", warmup_epochs=0.0, layer_decay=0.5)
    loop = train.Loop(recipe, None, accelerator("fp32"))
    loop.schedules[0].set(3)
    rates = {group["lr"] for group in loop.optimizers[0].param_groups}
    assert len(rates) == 4  # stem, two blocks, head
    assert max(rates) == recipe.peak_lr


class Poisoned(Classify):
    """A task whose loss is no number at some steps."""

    at: tuple[int, ...] = ()
    calls = 0

    def forward(self, batch: Any, player: str = "model") -> dict[str, torch.Tensor]:
        found = super().forward(batch, player)
        type(self).calls += 1
        if self.calls in self.at:
            found["loss"] = found["loss"] * float("nan")
            for buffer in self.model.buffers():
                if buffer.is_floating_point():
                    buffer.fill_(float("nan"))  # as BatchNorm's would be
        return found


def poisoned(monkeypatch: pytest.MonkeyPatch, *at: int) -> None:
    monkeypatch.setattr(Poisoned, "at", at)
    monkeypatch.setattr(Poisoned, "calls", 0)
    monkeypatch.setitem(train.TASKS, "classify", Poisoned)


def test_a_loss_that_is_no_number_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poisoned(monkeypatch, 2, 4)
    few = {"dims": [16, 32, 64], "heads": [1, 2, 4], "depths": [1, 1, 1], "reductions": [4, 2, 1]}
    recipe = small(epochs=0.3, model="rest_lite", model_args=few, img_size=32)  # it has BatchNorm
    run = train.train(recipe, tmp_path / "run")
    result = json.loads((run.folder / train.RESULTS).read_text())["measured"]
    assert result["skipped_steps"] == [2, 4]
    assert "step 2 skipped: model's loss is nan" in capsys.readouterr().err
    assert all(v.isfinite().all() for v in load_file(run.folder / "model.safetensors").values())


def test_a_loss_that_is_no_number_stops_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, 2)
    with pytest.raises(Diverged, match="step 2: model's loss is nan; a lower lr"):
        train.train(small(epochs=0.3, nonfinite="stop"), tmp_path / "run")


def test_a_loss_that_stays_no_number_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, *range(2, 100))
    with pytest.raises(Diverged, match="20 steps in a row"):
        train.train(small(epochs=2), tmp_path / "run")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    found = checkpoint.Checkpoint({"a": torch.zeros(1000)}, None, {"optimizers": []}, {"step": 1})
    first = checkpoint.save(tmp_path, 1, found, keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # what follows does not fit
    try:
        with pytest.raises(OSError, match=f"step 2 could not be written .*is whole: {first}"):
            checkpoint.save(tmp_path, 2, found, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.load(tmp_path).state == {"step": 1}


def test_the_last_checkpoints_are_kept_and_a_broken_one_is_named(tmp_path: Path) -> None:
    found = checkpoint.Checkpoint({"a": torch.zeros(2)}, None, {"optimizers": []}, {"step": 1})
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, found, keep=2)
    assert [path.name for path in checkpoint.saved(tmp_path)] == ["step-00000004", "step-00000005"]
    (tmp_path / "step-00000005" / checkpoint.TASK).write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-00000005 cannot be read .*: remove it to resume"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("precision", ["bf16"])
def test_other_precisions_train(precision: str, tmp_path: Path) -> None:
    run = train.train(small(epochs=0.3, precision=precision), tmp_path / "run")
    assert math.isfinite(run.metrics["loss"])


def test_too_many_unreadable_files_stop_a_run(tmp_path: Path) -> None:
    from PIL import Image

    for split, count in (("train", 12), ("val", 4)):
        for name in ("a", "b"):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (16, 16), (i * 9, 0, 0)).save(folder / f"{i}.png")
    (tmp_path / "data" / "train" / "a" / "3.png").write_bytes(b"no image")
    recipe: Recipe = small(data=str(tmp_path / "data"), batch=8, epochs=2)
    with pytest.raises(
        ValueError, match="1 of 24 training files cannot be read, more than max_bad"
    ):
        train.train(recipe, tmp_path / "stopped")
    run = train.train(
        small(data=str(tmp_path / "data"), batch=8, epochs=2, max_bad=0.1), tmp_path / "run"
    )
    assert (run.folder / train.BAD).read_text().count("3.png") == 1
    assert json.loads((run.folder / train.RESULTS).read_text())["measured"]["bad_files"] == 1


def test_a_batch_larger_than_the_data_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a batch of 4096 is more than the 1438 training images"):
        train.train(small(batch=4096), tmp_path / "run")
