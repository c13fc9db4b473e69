"""What README and docs say can be done, done."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ziggurat
from tests.data.small_clips import write_clip
from tests.tasks import small_objects, small_scenes
from ziggurat.cli import main
from ziggurat.engine import bench
from ziggurat.engine.results import RESULTS

ROOT = Path(__file__).parents[1]
MADE = (
    ROOT / "docs" / "reproduction.md"
)  # lists commands that train: tests/engine/test_reproduction
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {MADE})]
TEXT = "\n".join(page.read_text() for page in PAGES)
BUILDS = sorted(set(re.findall(r"`(create_model\([^`]+\))`", TEXT)))
TARGETS = sorted(set(re.findall(r"(?:^|`)make (\w+)", TEXT, re.MULTILINE)))
COMMAND = re.compile(
    r"^((?:torchrun|ziggurat|curl) [^\n]*)$|`(ziggurat [^`\n]+)`|```python\n(.*?)```", re.M | re.S
)
SHORT = ["--set", "epochs=0.01", "batch=8"]
ELSEWHERE = ("ziggurat data get cifar10",)  # tests/data/test_get.py does it, on request


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of."""
    chance = np.random.default_rng(0)
    for folder, count in (("photos", 150), ("imagenet/train", 3), ("imagenet/val", 1)):
        for name in ("cat", "dog"):
            (tmp_path / folder / name).mkdir(parents=True)
            for i in range(count):
                pixels = chance.integers(0, 255, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{i}.png")
    small_objects.write(tmp_path / "objects", {"train": 16, "val": 4})
    for colour in ("red", "green", "blue"):  # the objects' classes
        (tmp_path / "colours" / colour).mkdir(parents=True)
        for i in range(20):
            pixels = chance.integers(0, 255, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "colours" / colour / f"{i}.png")
    small_scenes.write(tmp_path / "scenes", {"train": 8, "val": 4})
    for i, kind in enumerate(("growing", "shrinking")):
        for split, count in (("train", 4), ("val", 2)):
            for j in range(count):
                frames = chance.integers(0, 255, (8, 64, 80, 3), np.uint8) // (i + 1)
                write_clip(tmp_path / "clips" / split / kind / f"{j}.mp4", frames)
    (tmp_path / "digits").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "digits" / "3.png")
    monkeypatch.setitem(bench.SIDES, "cpu", (256,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_a_page_says_can_be_done(page: Path, place: Path) -> None:
    """In its order; training for a step or two, and serving as long as the page is read."""
    with ExitStack() as servers:
        do_all(page.read_text(), servers)


def do_all(text: str, servers: ExitStack) -> None:
    address = ""
    for line, inline, code in COMMAND.findall(text):
        command = line or inline
        if code:
            exec(code, {})
        elif command.startswith("torchrun"):
            run_all(command)
        elif command.startswith("ziggurat serve"):
            address = servers.enter_context(serving(command))
        elif command.startswith("curl"):
            words = shlex.split(command.replace("http://127.0.0.1:8000", address))
            subprocess.run([*words, "--fail", "--silent", "--show-error"], check=True)
        elif "…" not in command and command not in ELSEWHERE:
            words = shlex.split(command)[1:]
            words += ["sheet.png"] if command.endswith("--picture") else []
            words += shortened(words)
            assert main(words) == 0, command


@contextmanager
def serving(command: str) -> Iterator[str]:
    """Its address, once the page is there; at the end it is stopped as a user does it."""
    words = [sys.executable, "-m", *shlex.split(command), "--port", "0"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert started.stdout
    said = started.stdout.readline()
    try:
        found = re.search(r"at (http://\S+)", said)
        assert found, f"{command}: {said}"
        with urllib.request.urlopen(found[1]) as answer:
            assert answer.status == 200
        yield found[1]
    finally:
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0


def shortened(words: list[str]) -> list[str]:
    """What makes a training, or a measurement, short enough for a test."""
    if words[0] == "bench":
        return ["--batch", "1", "--rounds", "1", "--sizes", "96"]
    if words[0] == "reproduce" and not {"--list", "--report"} & {*words}:
        return ["--minutes", "0"]  # counts
    trains = words[0] in ("train", "pretrain", "finetune", "probe", "distill")
    if not trains or "--list" in words:
        return []
    return [*SHORT, "compared=8"] if any("gan" in word for word in words) else SHORT


def run_all(command: str) -> None:
    """Start processes as said: four machines of eight are one of one here."""
    command = command.replace("--nnodes 4 --nproc_per_node 8", "--nnodes 1 --nproc_per_node 1")
    command = command.replace("head:29500", "localhost:0")
    words = shlex.split(command)[1:]
    few = ["batch=2", "img_size=64"] if "regionvit/imagenet" in words else []
    short = [] if "reproduce" in words else [*SHORT, *few]
    launch = [sys.executable, "-m", "torch.distributed.run", *words, *short]
    subprocess.run(launch, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300)
    if "--out" in words:
        found = json.loads(Path(words[words.index("--out") + 1], RESULTS).read_text())
        said = words[words.index("--nproc_per_node") + 1]
        assert found["measured"]["processes"] == int(said), command


@pytest.mark.parametrize("build", [b for b in BUILDS if "pretrained=True" not in b])
def test_every_documented_model_builds(build: str) -> None:
    with torch.device("meta"):
        eval(build, {"create_model": ziggurat.create_model})


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_exists(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_every_option_named_in_the_docs_is_taken() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    sections = re.split(r"\n## ", page)
    first = {
        "NesT": "nest_tiny_cifar", "HVT": "hvt_s_0", "ResT": "rest_lite", "HiViT": "hivit_tiny",
        "RegionViT": "regionvit_s",
    }  # fmt: skip
    for section in sections:
        name = first.get(section.split("\n")[0])
        for option, value in re.findall(r"`(\w+)=(\"[^\"`]*\"|\d+|True|False)`", section):
            if name is not None:
                with torch.device("meta"):
                    ziggurat.create_model(name, **{option: eval(value)})


def test_every_linked_file_exists() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
