from pathlib import Path

import pytest

from tests.engine.run_folders import cifar, history, make


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "run", cifar(epochs=4), history())
