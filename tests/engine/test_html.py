from pathlib import Path

import pytest

from ziggurat.engine import html


def test_colours_follow_the_reader_and_paper_is_white() -> None:
    source = html.page("title", "body")
    assert "@media screen and (prefers-color-scheme: dark)" in source
    assert "@media print" in source


def test_an_old_page_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.html"
    html.put(path, "old")
    assert html.put(path, "new – ") == path
    assert path.read_text(encoding="utf-8") == "new – "
    assert list(path.parent.iterdir()) == [path]


def test_a_broken_picture_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "confusion.png"
    file.write_bytes(b"not a picture")
    assert html.picture(file, "chart") == ""


@pytest.mark.parametrize(
    ("count", "said"), [(12, "12"), (6_004_000, "6 M"), (1_520_000, "1.52 M"), (999_700, "1 M")]
)
def test_counts_are_said_in_three_digits(count: int, said: str) -> None:
    assert html.millions(count) == said
