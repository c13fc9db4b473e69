import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from PIL import Image

from tests.engine.run_folders import cifar, history, make
from ziggurat.engine import checkpoint, report
from ziggurat.engine.checkpoint import Checkpoint
from ziggurat.engine.recipe import load
from ziggurat.tasks import figures

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "link", "img", "path"}


class Page(HTMLParser):
    """A parsed page that is well-formed: its texts, its references, its images."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.marked: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.references += [found[key] or "" for key in ("src", "href", "srcset") if key in found]
        assert not any(key.startswith("on") for key in found)
        if tag not in VOID:
            self.open.append(f"{tag}.{found.get('class') or ''}")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop().split(".")[0] == tag

    def handle_data(self, data: str) -> None:
        if not any(tag.startswith(("style", "script")) for tag in self.open):
            self.words.append(data)
        if "tr.marked" in self.open:
            self.marked.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


# The page.


def test_a_report_is_one_file_that_asks_for_nothing(run: Path) -> None:
    figures.confusion(torch.eye(2), ["a", "b"], run / "confusion.png")
    page = Page(report.write(run))
    assert page.references
    assert all(reference.startswith("data:") for reference in page.references)
    assert not re.search(r"(url\(|@import|src\s*=|href\s*=)\s*[\"']?\s*(https?:)?//", page.source)
    assert "default-src 'none'" in page.source
    assert "script" not in page.tags
    assert page.source.startswith("<!doctype html>")


def test_a_report_says_what_was_measured(run: Path) -> None:
    text = Page(report.write(run)).text
    assert "nest_tiny_cifar on cifar10" in text
    assert "70.00 % top-1 accuracy, measured on held-out data at the end" in text
    assert "the best model has 80.00" in text
    assert "8.0 min of training" in text
    assert "200 images/s" in text
    assert "1.0 % waiting for data" in text
    assert "2 steps skipped" in text
    assert "5 unreadable files" in text
    assert "10,000" in text
    assert "not finished" not in text


def test_a_report_says_how_to_get_it_again(run: Path) -> None:
    found = json.loads((run / "results.json").read_text())
    text = Page(report.write(run)).text
    for key in ("command", "commit", "date"):
        assert found[key] in text
    assert found["hardware"]["processor"] in text
    for name, version in found["versions"].items():
        assert f"{name} {version}" in text


def test_the_final_and_the_best_model_have_columns_of_their_own(run: Path) -> None:
    page = Page(report.write(run))
    assert "best model, epoch 3" in page.text
    assert page.marked[:3] == ["top-1 accuracy, %", "70.00", "80.00"]


def test_everything_is_escaped(tmp_path: Path) -> None:
    recipe = cifar(data=EVIL, note=f"</p>{EVIL}", init=EVIL, model_args={EVIL: EVIL})
    folder = make(tmp_path / EVIL.replace("/", "_"), recipe, history())
    lines = [*history(), {"step": 400, "epoch": 4.0, "test": {"top1": 1.0, EVIL: 2.0}}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"pretrained_cfg": {"label_names": [EVIL, '"><img src=x onerror=alert(1)>']}}
    (folder / "config.json").write_text(json.dumps(config))
    Image.new("RGB", (8, 8)).save(folder / "<b>mine</b>.png".replace("/", "_"))
    found = json.loads((folder / "results.json").read_text())
    found |= {"command": EVIL, "versions": {EVIL: EVIL}, "hardware": {"processor": EVIL}}
    (folder / "results.json").write_text(json.dumps(found))
    for path in (report.write(folder), report.compare([folder], tmp_path / "all.html")):
        page = Page(path)
        assert EVIL not in page.source
        assert EVIL in page.text
        assert page.tags.count("b") == page.source.count("<b>")
    assert '"><img src=x onerror=alert(1)>' in Page(folder / "report.html").text


# What the paper printed.


def test_the_papers_number_is_set_apart_as_the_papers(run: Path) -> None:
    page = Page(report.write(run))
    aside = re.search("<aside.*?</aside>", page.source)
    assert aside
    assert "Printed in the paper, not measured here" in aside[0]
    assert "96.04" in aside[0]
    assert "96.04" not in page.source.replace(aside[0], "")
    assert "departs from the paper's recipe: epochs <s>300</s> 4." in aside[0]


def test_a_run_of_the_papers_recipe_departs_from_nothing(tmp_path: Path) -> None:
    text = Page(report.write(make(tmp_path, cifar(), history()))).text
    assert "96.04" in text
    assert "departs" not in text


@pytest.mark.parametrize("changes", [{"data": "digits"}, {"paper": {"top1": 99.0}}])
def test_a_number_of_other_data_is_not_shown(tmp_path: Path, changes: dict[str, Any]) -> None:
    text = Page(report.write(make(tmp_path, cifar(**changes), history()))).text
    assert "Printed in the paper" not in text
    assert "96.04" not in text


def test_another_rows_number_is_not_shown(tmp_path: Path) -> None:
    start = {"init": "somewhere"}
    of_cifar10 = load("regionvit/transfer", changes=start).paper
    changes = start | {"data": "cifar100", "paper": of_cifar10}
    recipe = load("regionvit/transfer", changes=changes)
    text = Page(report.write(make(tmp_path, recipe, history()))).text
    assert "98.9" not in text


# The recipe.


def test_settings_that_are_not_the_default_stand_out(run: Path) -> None:
    page = Page(report.write(run))
    assert "warmup_epochs" in page.words
    assert "warmup_epochs" not in page.marked
    at = page.marked.index("epochs")
    assert page.marked[at : at + 3] == ["epochs", "4", "300"]
    at = page.marked.index("crop")
    assert page.marked[at : at + 3] == ["crop", "pad", "resized"]
    assert "model" not in page.marked  # has no default
    assert "crop_scale" not in page.marked  # a list in the file, a tuple in the code


def test_settings_of_another_version_are_shown(run: Path) -> None:
    file = run / "recipe.toml"
    file.write_text("bygone = true\n" + file.read_text())
    assert "bygone true" in Page(report.write(run)).text


def test_weights_that_cannot_be_read_have_no_card(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"1234")
    assert "parameters" not in Page(report.write(run)).text.split("All measures")[0]


# Figures.


def test_all_figures_are_embedded_ours_first(run: Path) -> None:
    for name in ("zebra_crossings", "mistakes", "another-view", "confusion", "classes"):
        Image.new("RGB", (32, 16)).save(run / f"{name}.png")
    page = Page(report.write(run))
    assert (run / "curves.png").exists()
    captions = re.findall('alt="([^"]*)"', page.source)
    known = ["Curves", "Confusion", "Classes", "Mistakes"]
    assert captions == [*known, "Another view", "Zebra crossings"]
    assert page.tags.count("img") == 6
    embedded = [base64.b64decode(r.split(",")[1]) for r in page.references if "image/png" in r]
    assert embedded[1] == (run / "confusion.png").read_bytes()


# Runs that are not whole.


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "my run", cifar(epochs=40), history(2), finished=False)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 210, "epo')
    text = Page(report.write(folder)).text
    assert "This run is not finished" in text
    assert "up to step 200." in text
    assert f"--out '{folder}' --resume" in text
    assert "2 of 40 epochs" in text
    assert "so far, at epoch 2" in text
    assert "4.0 min of training" in text
    assert "0 unreadable files" in text


def test_an_interrupted_runs_checkpoint_knows_what_was_skipped(tmp_path: Path) -> None:
    folder = make(tmp_path, cifar(), history(2), finished=False)
    (folder / "bad_files.txt").write_text("a.jpg: empty\nb.jpg: truncated\n")
    best = {"step": 100, "test": {"top1": 99.0}}
    state = {"best": best, "skipped": [7], "bad": [], "minutes": 150.0}
    checkpoint.save(folder / "checkpoints", 200, Checkpoint({}, None, {}, state), keep=1)
    text = Page(report.write(folder)).text
    assert "1 steps skipped" in text
    assert "2 unreadable files" in text
    assert "2.5 h of training" in text
    assert "the best model has 99.00" in text


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    folder = make(tmp_path, cifar(), [], finished=False)
    text = Page(report.write(folder)).text
    assert "what was logged, which is nothing yet" in text
    assert "nest_tiny_cifar on cifar10" in text


def test_results_alone_make_a_report(run: Path) -> None:
    (run / "recipe.toml").unlink()
    (run / "metrics.jsonl").unlink()
    text = Page(report.write(run)).text
    assert "nest_tiny_cifar on cifar10" in text
    assert "70.00 % top-1 accuracy" in text


def test_metrics_alone_make_a_report(run: Path) -> None:
    (run / "recipe.toml").unlink()
    (run / "results.json").write_text('{"measured": {"te')  # cut off
    assert "70.00 % top-1 accuracy" in Page(report.write(run)).text


def test_a_measure_that_is_no_number_is_shown_as_such(tmp_path: Path) -> None:
    lines = history()
    lines[-1]["test"] |= {"loss": math.nan, "images": math.inf}
    text = Page(report.write(make(tmp_path, cifar(), lines))).text
    assert "loss nan" in text
    assert "images measured inf" in text


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no run: there is neither recipe\.toml nor "):
        report.write(tmp_path)
    assert not list(tmp_path.iterdir())


# Several runs.


def test_runs_are_compared_the_best_first_each_with_its_report(tmp_path: Path) -> None:
    base = tmp_path / "runs"
    worse = make(base / "a & b" / "run", cifar(seed=1), history(top=50))
    better = make(base / "c" / "run", cifar(seed=2), history(top=70))
    begun = make(base / "new", cifar(), [], finished=False)
    page = Page(report.compare([worse, begun, better], tmp_path / "pages" / "all.html"))
    links = [unquote(r) for r in page.references if not r.startswith("data:")]
    assert links == [
        "../runs/c/run/report.html", "../runs/a & b/run/report.html", "../runs/new/report.html",
    ]  # fmt: skip
    assert all((tmp_path / "pages" / link).is_file() for link in links)
    assert page.marked[0] == "c/run"
    assert page.marked[-1] == "60.00"
    assert "3 runs compared" in page.text
    assert "different data" not in page.text


def test_a_comparison_keeps_reports_that_are_there(run: Path, tmp_path: Path) -> None:
    (run / "report.html").write_text("mine")
    report.compare([run], tmp_path / "all.html")
    assert (run / "report.html").read_text() == "mine"


def test_runs_on_different_data_are_not_compared_in_silence(tmp_path: Path) -> None:
    folders = [make(tmp_path / name, cifar(data=name), history()) for name in ("digits", "cifar10")]
    text = Page(report.compare(folders, tmp_path / "all.html")).text
    assert "measured on different data: cifar10, digits." in text


def test_only_our_own_script_may_run(run: Path, tmp_path: Path) -> None:
    page = Page(report.compare([run], tmp_path / "all.html"))
    scripts = re.findall("<script>(.*?)</script>", page.source, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.source


def test_there_must_be_something_to_compare(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        report.compare([], tmp_path / "all.html")
