import torch

from ziggurat.layers.position import GridPosition, RelativeBias, resize, sin_cos


def test_a_bias_reads_the_offset_of_query_and_key() -> None:
    bias = RelativeBias(heads=2, height=3, width=4)
    with torch.no_grad():
        bias.table.copy_(torch.randn_like(bias.table))
    spread = bias(3, 4)
    for q in range(12):
        for k in range(12):
            dy, dx = q // 4 - k // 4, q % 4 - k % 4
            assert torch.equal(spread[:, q, k], bias.table[:, 2 + dy, 3 + dx])


def test_a_grid_of_its_own_size_is_the_parameter_itself() -> None:
    grid = GridPosition(4, 5, 8)
    assert grid(4, 5) is grid.table
    assert grid(6, 3).shape == (1, 6, 3, 8)
    constant = torch.full((1, 4, 5, 8), 2.0)
    torch.testing.assert_close(resize(constant, 9, 2), torch.full((1, 9, 2, 8), 2.0))


def test_inference_spreads_a_table_once_and_sees_every_change() -> None:
    bias = RelativeBias(heads=1, height=3, width=3).eval()
    with torch.no_grad():
        first = bias(3, 3)
        assert bias(3, 3) is first
        bias.table.fill_(1.0)
        assert bias(3, 3).eq(1).all()
        bias.load_state_dict({"table": torch.full((1, 5, 5), 2.0)})
        assert bias(3, 3).eq(2).all()
        bias.double()
        assert bias(3, 3).dtype == torch.float64
        assert bias(2, 2).shape == (1, 4, 4)
        bias.table.data.fill_(3.0)  # as averages of weights are often written
        assert bias(3, 3).eq(3).all()


def test_a_table_made_and_changed_in_inference_mode_is_seen_too() -> None:
    with torch.inference_mode():
        bias = RelativeBias(heads=1, height=3, width=3).eval()
        assert bias(3, 3).eq(0).all()
        bias.load_state_dict({"table": torch.full((1, 5, 5), 2.0)})
        assert bias(3, 3).eq(2).all()


def test_large_answers_are_not_kept() -> None:
    bias = RelativeBias(heads=1, height=3, width=3).eval()
    with torch.no_grad():
        assert bias(40, 40) is not bias(40, 40)
        assert bias(3, 3) is bias(3, 3)


def test_gradients_flow_in_training_and_in_eval() -> None:
    for mode in (True, False):
        bias = RelativeBias(heads=1, height=2, width=2).train(mode)
        bias(2, 2).sum().backward()
        assert bias.table.grad is not None
        assert bias.table.grad.sum() == 16  # each of 4 x 4 pairs once


def test_what_was_kept_in_inference_mode_does_not_leak_into_autograd() -> None:
    bias = RelativeBias(heads=1, height=2, width=2).eval().requires_grad_(False)
    with torch.inference_mode():
        bias(2, 2)
    x = torch.ones(4, 4, requires_grad=True)
    (x * bias(2, 2)).sum().backward()
    assert x.grad is not None


def test_sine_and_cosine_encode_columns_then_rows() -> None:
    table = sin_cos(3, 5, 8)[0]
    assert torch.equal(table[0, :, :4], table[2, :, :4])
    assert torch.equal(table[:, 0, 4:], table[:, 3, 4:])
    torch.testing.assert_close(table[1, 2, 0], torch.tensor(2.0).sin())
    torch.testing.assert_close(table[1, 2, 6], torch.tensor(1.0).cos())
