"""Damaged files: each is read or refused, and none leaves anything behind."""

import asyncio
import sys
from pathlib import Path

import httpx2
import pytest

from tests.web.test_predict import PATH, files, metric

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import load

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def test_every_kind_of_file_is_read_before_it_is_damaged(served: str) -> None:
    with httpx2.Client(base_url=served) as client:
        for file in load.whole_files():
            assert client.post(PATH, files=files(file)).status_code == 200


def test_damaged_files_are_read_or_refused(served: str) -> None:
    found = load.whole_files()
    with httpx2.Client(base_url=served, timeout=60) as client:
        statuses = {
            client.post(PATH, files=files(load.damaged(i, found))).status_code for i in range(400)
        }
        assert statuses == set(load.FINE)
        assert metric(client, "ziggurat_errors_total") == 0


def test_damage_is_the_same_for_the_same_number() -> None:
    found = load.whole_files()
    assert load.damaged(7, found) == load.damaged(7, found)
    assert len({load.damaged(i, found) for i in range(200)}) > 190


@pytest.mark.slow
def test_ten_thousand_damaged_files_leave_nothing_behind(folders: list[Path]) -> None:
    """In a process of its own, whose memory is looked at after 2,000 and after all."""
    with load.serving(folders[0], "--backend", "eager", giving_back=True) as server:
        found = asyncio.run(load.fuzz(server.address, 10_000))
        assert server.process.poll() is None
        assert load.metric(server.address, "ziggurat_errors_total") == 0
    assert found["unexpected"] == 0
    early, late = found["memory_mb"]
    assert late - early < 10
