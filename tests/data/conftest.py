from pathlib import Path

import pytest

from tests.data.small_shards import shard


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ZIGGURAT_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards to train on and one to test."""
    for i in range(3):
        shard(tmp_path / "set" / f"train-{i:04}.tar", 4 * i)
    shard(tmp_path / "set" / "val-0000.tar", 12)
    return tmp_path / "set"
