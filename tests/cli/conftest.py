from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.small_runs import write
from ziggurat.cli import main


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.toml", epochs=0.2)


@pytest.fixture
def mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[list[str], str], None]:
    """Asks that words are answered by exit code 2 and one line."""
    monkeypatch.chdir(tmp_path)

    def check(words: list[str], said: str) -> None:
        assert main(words) == 2
        err = capsys.readouterr().err.lstrip("\n")  # what rich's bar leaves off a terminal
        assert said in err
        assert err.startswith("ziggurat: ")
        assert err.count("\n") == 1
        assert not list(tmp_path.iterdir())  # nothing is left in the way of the next try

    return check
