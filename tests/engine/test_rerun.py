"""Nothing that is kept is trained again, and what was killed goes on."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.children import PROCESSES
from tests.engine.small_runs import SMALL
from ziggurat.engine import checkpoint, rerun, results, studies
from ziggurat.engine.recipe import Recipe, parse
from ziggurat.engine.rerun import locked, missing, one, work
from ziggurat.engine.signals import Stopped
from ziggurat.engine.studies import Run, Study


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two arms of a second each, and one that starts from the first."""
    file = tmp_path / "tiny.toml"
    file.write_text(parse(SMALL | {"epochs": 0.3}, "tiny").dump())
    study = Study(
        id="x/tiny",
        title="t",
        scales={"laptop": {"recipe": str(file)}},
        arms=[
            {"id": "a", "label": "A"},
            {"id": "b", "label": "B", "set": {"lr": 1e-3}},
            {"id": "c", "label": "C", "after": "a"},
        ],
    )
    monkeypatch.setattr(studies, "owners", lambda scale: Owners(study))
    monkeypatch.setattr(studies, "study", lambda name: study)
    return study


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that leave a result at once; the arms that were asked for."""
    asked: list[str] = []

    def train(recipe: Recipe, folder: Path, resume: bool, overwrite: bool) -> None:
        asked.append(recipe.name.rpartition("/")[2])
        measured = {"recipe": recipe.flat(), "test": {"top1": 50.0}, "minutes": 1.0}
        results.write(folder / "results.json", measured, recipe.seed)

    monkeypatch.setattr(rerun, "train", train)
    return asked


class Owners(dict[str, tuple[str, str]]):
    """Every arm is its own."""

    def __init__(self, study: Study) -> None:
        runs = (studies.run_of(study, arm, "laptop", 0) for arm in study.arms)
        super().__init__({studies.fingerprint(run): (study.id, run.arm) for run in runs})


def names(runs: list[Run]) -> list[str]:
    return [f"{run.arm}-{run.seed}" for run in runs]


def test_a_study_is_trained_once(tiny: Study, tmp_path: Path) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    told: list[str] = []
    todo = missing([tiny], "laptop", 2, out, at)
    assert names(todo) == ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]
    found = work([todo[0], todo[2]], out, at, jobs=2, tell=told.append)
    assert names(found.done) == ["a-0", "c-0"]  # the second waited for the first
    assert (found.left, found.failed) == ([], {})
    assert told[0].startswith("1 of 2  laptop/x-tiny/a-0  top1 ")
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*.json")}
    assert len(times) == 2
    todo = missing([tiny], "laptop", 2, out, at)
    assert names(todo) == ["b-0", "a-1", "b-1", "c-1"]  # what is kept is not trained again
    assert names(missing([tiny], "laptop", 1, out, at)) == ["b-0"]
    assert {file: file.stat().st_mtime_ns for file in times} == times
    kept = json.loads((out / "laptop" / "x-tiny" / "c-0.json").read_text())
    assert kept["command"] == "ziggurat reproduce x/tiny --scale laptop --seeds 1"
    assert kept["measured"]["recipe"]["init"].endswith("laptop/x-tiny/a-0")


def test_what_a_run_starts_from_is_trained_again_if_it_is_gone(
    tiny: Study, tmp_path: Path, instant: list[str]
) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    run_a, run_b, run_c = missing([tiny], "laptop", 1, out, at)
    one(run_a, out, at)
    one(run_b, out, at)
    assert names(missing([tiny], "laptop", 1, out, at)) == ["c-0"]
    assert names(missing([tiny], "laptop", 1, out, tmp_path / "elsewhere")) == ["a-0", "c-0"]
    assert run_c.after == run_a


def test_a_killed_run_goes_on_and_repeats_nothing(tiny: Study, tmp_path: Path) -> None:
    """What was logged before the kill is still there, to the very digits of the clock."""
    out, at = tmp_path / "out", tmp_path / "runs"
    run = missing([tiny], "laptop", 1, out, at)[0]
    often = run.recipe.model_copy(update={"epochs": 1.0, "save_minutes": 0.0})
    run = run._replace(recipe=often)
    process = PROCESSES.Process(target=rerun.child, args=(run, out, at, 1, None))
    process.start()
    folder = at / run.name
    while len(checkpoint.saved(folder / "checkpoints")) < 2:  # two are kept
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join()
    step = int(checkpoint.saved(folder / "checkpoints")[-1].name.removeprefix("step-"))
    before = (folder / "metrics.jsonl").read_text().splitlines()[:step]
    assert not (out / f"{run.name}.json").exists()
    found = work([run], out, at, tell=lambda text: None)
    assert found.done == [run]
    after = (folder / "metrics.jsonl").read_text().splitlines()
    assert after[:step] == before
    assert [json.loads(line)["step"] for line in after[:22]] == list(range(1, 23))
    assert work([], out, at).done == []


def sleeping(*args: Any) -> None:
    """A run that ends when it is asked to, as the loop does."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    time.sleep(100)


def test_when_time_is_up_all_are_stopped_and_left(
    tiny: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    monkeypatch.setattr(rerun, "child", sleeping)
    todo = missing([tiny], "laptop", 1, out, at)
    began = time.monotonic()
    found = work(todo, out, at, jobs=2, minutes=1 / 60)
    assert time.monotonic() - began < 90
    assert (found.done, sorted(names(found.left)), found.failed) == ([], ["a-0", "b-0", "c-0"], {})
    assert work(todo, out, at, minutes=0).left == todo


def test_a_run_that_was_finished_but_not_kept_is_kept(
    tiny: Study, tmp_path: Path, instant: list[str]
) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    run = missing([tiny], "laptop", 1, out, at)[0]
    one(run, out, at)
    (out / f"{run.name}.json").unlink()
    one(run, out, at)
    assert (out / f"{run.name}.json").exists()
    assert instant == ["a"]


def test_a_run_of_another_definition_is_trained_anew(
    tiny: Study, tmp_path: Path, instant: list[str]
) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    run = missing([tiny], "laptop", 1, out, at)[0]
    one(run, out, at)
    changed = run._replace(recipe=run.recipe.model_copy(update={"lr": 5e-4}))
    assert studies.kept(changed, out) is None
    one(changed, out, at)
    assert studies.kept(changed, out) is not None
    assert instant == ["a", "a"]


def test_a_run_that_fails_is_told_and_the_others_go_on(tiny: Study, tmp_path: Path) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    run_a, run_b, run_c = missing([tiny], "laptop", 1, out, at)
    wrong = run_a._replace(recipe=run_a.recipe.model_copy(update={"data": "nowhere/"}))
    late = run_b._replace(recipe=run_b.recipe.model_copy(update={"data": "digits:3"}))
    told: list[str] = []
    found = work([wrong, late, run_c], out, at, tell=told.append)
    assert list(found.failed) == [run_a.name, run_b.name]
    assert names(found.left) == ["c-0"]  # it would start from the one that failed
    assert "no data is called 'nowhere/'" in found.failed[run_a.name]
    assert any(line.startswith("failed: laptop/x-tiny/a-0: ") for line in told)


def test_two_commands_do_not_train_the_same_run(tiny: Study, tmp_path: Path) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    run = missing([tiny], "laptop", 1, out, at)[0]
    with locked(at / run.name) as free:
        assert free
        found = work([run], out, at, tell=lambda text: None)
    assert (found.done, names(found.left), found.failed) == ([], ["a-0"], {})


def test_under_a_launcher_runs_share_all_processes_and_a_time(
    tiny: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does the sharing; here, that each run is asked for, and that time stops them."""
    out, at = tmp_path / "out", tmp_path / "runs"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    asked: list[str] = []
    monkeypatch.setattr(rerun, "one", lambda run, out, at: asked.append(run.arm))
    monkeypatch.setattr(rerun, "said", lambda run, out: "")
    found = work(missing([tiny], "laptop", 1, out, at), out, at, tell=lambda text: None)
    assert asked == ["a", "b", "c"]
    assert names(found.done) == ["a-0", "b-0", "c-0"]

    def stopped(run: Run, out: Path, at: Path) -> None:
        event = threading.Event()
        before: Any = signal.signal(signal.SIGTERM, lambda *_: event.set())
        event.wait(20)
        signal.signal(signal.SIGTERM, before)
        assert event.is_set()
        raise rerun.Interrupted(signal.SIGTERM, 3, at)

    monkeypatch.setattr(rerun, "one", stopped)
    found = work(missing([tiny], "laptop", 1, out, at), out, at, minutes=0.2 / 60)
    assert (found.done, len(found.left)) == ([], 3)
    assert os.environ["RANK"] == "0"


def test_asked_to_stop_it_stops_its_runs_and_says_how_to_go_on(
    tiny: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, at = tmp_path / "out", tmp_path / "runs"
    monkeypatch.setattr(rerun, "child", sleeping)
    pool = rerun.Pool(out, at, 2, None, print, 2)
    asking = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    asking.start()
    with pytest.raises(Stopped, match="the same command goes on") as stopped:
        pool.run(missing([tiny], "laptop", 1, out, at)[:2])
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert (pool.running, names(pool.left)) == ({}, ["a-0", "b-0"])
