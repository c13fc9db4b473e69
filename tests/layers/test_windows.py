import torch
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.layers import windows


@given(height=st.integers(1, 20), width=st.integers(1, 20), size=st.integers(1, 9))
def test_joining_undoes_splitting(height: int, width: int, size: int) -> None:
    x = torch.arange(2.0 * height * width * 3).reshape(2, height, width, 3)
    cut = windows.partition(height, width, size)
    assert torch.equal(windows.join(windows.split(x, cut), cut), x)


@given(height=st.integers(1, 20), width=st.integers(1, 20), size=st.integers(1, 9))
def test_the_mask_hides_padding_and_nothing_else(height: int, width: int, size: int) -> None:
    cut = windows.partition(height, width, size)
    real = windows.split(torch.ones(1, height, width, 1), cut)[..., 0]
    mask = windows.key_mask(cut, real)
    if mask is None:
        assert real.all()
    else:
        assert torch.equal(mask[:, 0, 0] == 0, real == 1)
        assert (mask[:, 0, 0] == 0).any(1).all()


def test_a_map_that_fits_one_window_is_never_padded() -> None:
    cut = windows.partition(5, 7, 7)
    assert (cut.h, cut.w, cut.windows, cut.padding) == (5, 7, 1, (0, 0))
    assert windows.partition(8, 7, 7).padding == (6, 0)
