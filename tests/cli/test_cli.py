import subprocess
import sys

import pytest

from ziggurat.cli import main, parser


@pytest.mark.parametrize(
    ("words", "message"),
    [(["modles"], "did you mean 'models'?"), (["info"], "required: name"), ([], "required")],
)
def test_a_wrong_word_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in parser().verbs:
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert f"example: ziggurat {verb}" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m ziggurat models 'hvt_ti_*' --json | head -1"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert found.returncode == 0
    assert "Traceback" not in found.stderr
