import json
from pathlib import Path

import pytest

from ziggurat.engine import results


def test_a_result_says_how_to_get_it_again(tmp_path: Path) -> None:
    file = results.write(tmp_path / "deep" / "a.json", {"speed": 2.0}, seed=3)
    found = json.loads(file.read_text())
    assert found["measured"] == {"speed": 2.0}
    assert found["seed"] == 3
    assert found["hardware"]["cores"] >= 1
    for key in ("command", "commit", "date", "versions"):
        assert found[key]


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = results.write(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        results.write(file, object())
    assert json.loads(file.read_text())["measured"] == 1
    assert list(tmp_path.iterdir()) == [file]
