from pathlib import Path
from typing import Any

from matplotlib.text import Text
from PIL import Image

from ziggurat.engine import tradeoff


def row(model: str, speed: float, top1: float | None, **others: Any) -> dict[str, Any]:
    about = {"size": 224, "batch": 8, "backend": "eager", "dtype": "float32", "macs": 5e9}
    return about | {"model": model, "per_second": speed, "top1": top1} | others


def measured(*rows: dict[str, Any]) -> dict[str, Any]:
    peaks = [
        {"gflops": [90.0, speed, 210.0], "batch": batch, "dtype": dtype, "sizes": [size]}
        for batch in (8, 1)
        for size in (64, 96, 224)
        for dtype, speed in (("float32", 100.0 + batch), ("bfloat16", 200.0 + size))
    ]
    return {"mode": "infer", "rows": list(rows), "peak": peaks}


def test_accuracy_is_drawn_where_two_papers_print_one(tmp_path: Path) -> None:
    rows = [row("nest_tiny", 8, 81.5), row("timm/deit_small_patch16_224", 10, 79.8)]
    with_both = tradeoff.draw(measured(*rows, row("timm/resnet50", 11, None)), tmp_path / "a.png")
    again = row("nest_tiny", 9, 81.5, backend="onnx")
    without = tradeoff.draw(measured(rows[0], again), tmp_path / "b.png")
    assert Image.open(with_both).width == 2 * Image.open(without).width


def test_every_batch_and_size_has_panels_of_its_own(tmp_path: Path) -> None:
    rows = [
        row("nest_tiny", 8, None, batch=batch, size=size) for batch in (8, 1) for size in (64, 96)
    ]
    one, four = (tradeoff.draw(measured(*rows[:n]), tmp_path / f"{n}.png") for n in (1, 4))
    assert Image.open(four).height == 4 * Image.open(one).height
    assert list(tradeoff.grouped(rows)) == [(64, 8), (96, 8), (64, 1), (96, 1)]


def test_the_peak_is_the_one_beside_a_row_in_its_type() -> None:
    found = measured()
    assert tradeoff.peak_of(found, row("nest_tiny", 8, None, batch=1, size=96)) == 101
    low = row("nest_tiny", 8, None, dtype="bfloat16", size=96)
    assert tradeoff.peak_of(found, low) == 296
    del found["peak"][0]["sizes"]
    assert tradeoff.peak_of(found, row("nest_tiny", 8, None, size=384)) == 108


def test_backends_have_marks(tmp_path: Path) -> None:
    rows = [row("nest_tiny", 8 + i, 81.5, backend=name) for i, name in enumerate(("eager", "onnx"))]
    assert tradeoff.kinds(rows) == ["eager, float32", "onnx, float32"]
    assert tradeoff.draw(measured(*rows), tmp_path / "a.png").exists()


def test_names_of_near_points_do_not_cover_each_other() -> None:
    figure = tradeoff.canvas(5, 4)
    axes = figure.subplots()
    rows = [row(name, 10.0, 80.0) for name in ("nest_tiny", "hivit_tiny", "rest_small", "hvt_s_1")]
    tradeoff.points(axes, rows, [80.0] * 4)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text).extents for text in axes.texts]  # without its line
    assert len(boxes) == 4
    assert not any(
        tradeoff.covered(one, other) for i, one in enumerate(boxes) for other in boxes[i + 1 :]
    )


def test_names_are_short_where_nothing_is_lost() -> None:
    assert tradeoff.short("timm/swin_tiny_patch4_window7_224") == "swin_tiny"
    assert tradeoff.short("timm/deit_small_patch16_224") == "deit_small"
    assert tradeoff.short("timm/nest_tiny") == "timm/nest_tiny"  # ours has that name, too
    assert tradeoff.short("vit-pytorch/nest_tiny") == "vit-pytorch/nest_tiny"


def test_an_axis_has_round_numbers_however_short_it_is() -> None:
    assert tradeoff.ticks((1.2, 60))[1] == ["2", "5", "10", "20", "50"]
    assert tradeoff.ticks((11, 42))[1] == ["15", "20", "30"]
    assert tradeoff.ticks((4.1, 5.1))[1] == ["4.2", "4.4", "4.6", "4.8", "5"]
