from pathlib import Path

import torch
from PIL import Image

from ziggurat.engine.charts import LETTERS, accuracy, examples, framed, head
from ziggurat.engine.localise import CENTRE, Example, Row

WHITE, PINK, BLACK = (255, 255, 255), (255, 47, 208), (0, 0, 0)


def row(model: str, method: str, shift: int) -> Row:
    """Three images, whose box is found if it is not shifted."""
    made = Row(model, method)
    truth = torch.tensor([[8.0, 8, 24, 24]])
    for i in range(3):
        heat = torch.zeros(40, 40)
        heat[8:24, 8 + shift : 24 + shift] = 1
        made.tally.add([0], {0: heat}, {0: truth})
        made.examples[i] = Example(Image.new("RGB", (40, 40)), heat, truth, "dog")
    return made


def test_true_boxes_are_white_and_the_one_found_is_pink() -> None:
    truth, found = torch.tensor([[10.0, 20, 60, 80]]), torch.tensor([50.0, 50, 100, 100])
    drawn = framed(Image.new("RGB", (100, 100), BLACK), truth, found)
    scale = drawn.width / 100
    assert drawn.getpixel((round(10 * scale) + 2, round(40 * scale))) == WHITE
    assert drawn.getpixel((round(70 * scale), round(50 * scale) + 2)) == PINK
    assert drawn.getpixel((round(30 * scale), round(40 * scale))) == BLACK


def test_a_method_without_a_box_has_none_drawn() -> None:
    empty = framed(Image.new("RGB", (100, 100)), torch.zeros(0, 4), torch.zeros(4))
    assert empty.getextrema() == ((0, 0),) * 3


def test_a_long_name_keeps_its_end() -> None:
    assert head(Row("runs/nest", "cam")) == "cam  runs/nest"
    long = head(Row("somewhere/far/away/in/runs/nest", "gradcam++"))
    assert long.startswith("gradcam++  …")
    assert long.endswith("runs/nest")
    assert len(long) <= LETTERS + 2


def test_pictures_have_a_column_for_each_method_but_the_centre(tmp_path: Path) -> None:
    rows = [row("a", "cam", 0), row("a", "rollout", 16), row("a", CENTRE, 4)]
    assert Image.open(accuracy(rows, tmp_path / "accuracy.png")).width == 800  # no curves
    one = Image.open(examples(rows[:1], tmp_path / "one.png")).width
    both = Image.open(examples(rows, tmp_path / "both.png")).width
    assert one < both < 2 * one
