import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ziggurat

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools builds in place, and takes in what lies there from before."""
    out, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(out), str(copy)], check=True)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_carries_data_types_version_and_entry_point(wheel: Path) -> None:
    assert f"-{ziggurat.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        entry = next(n for n in names if n.endswith("entry_points.txt"))
        assert "ziggurat = ziggurat.cli:main" in files.read(entry).decode()
    assert "ziggurat/py.typed" in names
    tables = {f"ziggurat/tables/{p.name}" for p in (ROOT / "src/ziggurat/tables").glob("*.toml")}
    assert len(tables) == 5
    assert tables <= names
    page = {f"ziggurat/web/page/{p.name}" for p in (ROOT / "src/ziggurat/web/page").iterdir()}
    assert "ziggurat/web/page/index.html" in page
    assert page <= names
    assert not [n for n in names if n.startswith("tests")]


def test_the_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    there = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(there)]
    subprocess.run([*command, str(wheel)], check=True)
    code = """
import sys, ziggurat
assert ziggurat.__file__.startswith(sys.argv[1]), ziggurat.__file__
from ziggurat.engine.tables import printed
assert printed("nest_tiny")["params_m"] == "17"
assert ziggurat.create_model("hvt_ti_4", depth=4)
"""
    subprocess.run(
        [sys.executable, "-c", code, str(there)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(there), "PATH": "/usr/bin:/bin"},
        check=True,
    )
