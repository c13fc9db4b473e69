import torch
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.layers import windows


@given(height=st.integers(1, 20), width=st.integers(1, 20), side=st.integers(1, 9))
def test_joining_undoes_splitting_and_nothing_is_added(height: int, width: int, side: int) -> None:
    x = torch.arange(2.0 * height * width * 3).reshape(2, height, width, 3)
    cut = windows.cut(height, width, side)
    groups = cut.split(x)
    assert len(groups) <= 4
    assert sum(group.numel() for group in groups) == x.numel()
    assert [len(group) for group in groups] == [2 * count for count in cut.counts]
    assert torch.equal(cut.join(groups), x)


def test_windows_at_the_border_are_smaller() -> None:
    cut = windows.cut(9, 8, 4)
    assert cut.parts == [(4, 4, 2, 2), (1, 4, 1, 2)]
    assert windows.cut(3, 5, 7).parts == [(3, 5, 1, 1)]
    assert cut.resized(lambda side: side // 2 or 1).parts == [(2, 2, 2, 2), (1, 2, 1, 2)]


def test_tokens_of_a_window_are_neighbours_row_by_row() -> None:
    x = torch.arange(16.0).reshape(1, 4, 4, 1)
    assert windows.split(x, 2, 2)[1].flatten().tolist() == [2, 3, 6, 7]
    assert torch.equal(windows.join(windows.split(x, 2, 2), 2, 2, 2, 2), x)


def test_a_whole_map_is_not_cut_for_others_would_copy_it() -> None:
    x = torch.randn(2, 8, 12, 3)
    (whole,) = windows.pieces(x, [8], [12])
    assert whole is x
    assert [tuple(piece.shape[1:3]) for piece in windows.pieces(x, [8], [7, 5])] == [(8, 7), (8, 5)]
