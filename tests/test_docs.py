"""What README and docs say can be done, done."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ziggurat

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
COMMANDS = sorted(set(re.findall(r"`(ziggurat [^`]+)`", TEXT)))
BUILDS = sorted(set(re.findall(r"`(create_model\([^`]+\))`", TEXT)))
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
TARGETS = sorted(set(re.findall(r"(?:^|`)make (\w+)", TEXT, re.MULTILINE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str, tmp_path: Path) -> None:
    if command.endswith("--picture"):
        command += " sheet.png"
    shell = command.replace("ziggurat", f"{sys.executable} -m ziggurat", 1)
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=True)


@pytest.mark.parametrize("build", [b for b in BUILDS if "pretrained=True" not in b])
def test_every_documented_model_builds(build: str) -> None:
    with torch.device("meta"):
        eval(build, {"create_model": ziggurat.create_model})


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(code, {})


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
