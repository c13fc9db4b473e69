"""The API is what its documentation says: schemathesis asks whatever that allows, and does not."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404]  # no schema can say which bytes are an image

[[operations]]
include-path-regex = "explain|figure"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 422]  # nor which class or method a checkpoint has
"""


def asked(address: str, folder: Path, *words: str) -> None:
    (folder / "schemathesis.toml").write_text(CONFIG)
    program = [sys.executable, "-m", "schemathesis.cli", "run", "--no-color", "--warnings", "off"]
    run = subprocess.run(
        [*program, "--generation-database", "none", *words, f"{address}/api/openapi.json"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_api_is_what_it_says(served: str, tmp_path: Path) -> None:
    words = ["--max-examples", "5", "--seed", "1", "--phases", "examples,coverage,fuzzing"]
    asked(served, tmp_path, *words)


@pytest.mark.slow
def test_the_api_is_what_it_says_in_thousands_of_requests(served: str, tmp_path: Path) -> None:
    asked(served, tmp_path, "--max-examples", "500", "--workers", "4")
