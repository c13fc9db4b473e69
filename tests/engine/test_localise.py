from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.small_voc import Thing, write
from tests.models.small import small
from ziggurat.engine.localise import CENTRE, in_view, localise, matched
from ziggurat.models.pretrained import save_pretrained
from ziggurat.tasks.augment import test_transform as as_tested

MIDDLE = (16, 16, 48, 48)


def saved(folder: Path, name: str, classes: list[str], crop: float = 1.0) -> str:
    torch.manual_seed(0)
    model = small(name, num_classes=len(classes))
    model.pretrained_cfg |= {"label_names": classes, "crop_pct": crop}
    return str(save_pretrained(model, folder / name))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(
        tmp_path / "voc",
        {
            "a": ((64, 64), [Thing("traffic light", MIDDLE), Thing("dog", (0, 0, 9, 9))]),
            "b": ((64, 64), [Thing("traffic light", MIDDLE)]),
            "c": ((64, 64), [Thing("dog", (0, 0, 8, 8)), Thing("unicorn", MIDDLE)]),
            "d": ((64, 64), [Thing("dog", MIDDLE, difficult=True)]),
        },
    )


def test_one_row_a_method_and_model_on_the_same_images(tmp_path: Path, data: Path) -> None:
    names = ["Traffic_Light", "DOG", "cat"]
    sources = [saved(tmp_path, name, names) for name in ("nest_tiny", "rest_lite")]
    found = localise(sources, data, ["cam", "gradcat"], steps=2)
    rows = found.measured()["rows"]
    methods = [("nest_tiny", "cam"), ("nest_tiny", "gradcat"), ("nest_tiny", CENTRE)]
    methods += [("rest_lite", "cam"), ("rest_lite", CENTRE)]
    assert [(Path(row["model"]).name, row["method"]) for row in rows] == methods
    for row in rows:
        assert (row["images"], row["cases"]) == (3, 4)  # not d, whose dog is difficult
        assert row["top1"] <= row["top5"] <= 100
        assert 0 < row["deletion"] < 1
        assert len(row["curves"]["insertion"]) == 3
        assert len(row["by_threshold"]["top5"]) == 21
        best = row["by_threshold"]["known"]
        assert row["known"] == max(best) == best[round(row["threshold"] * 20)]
    middle = rows[2]  # finds both traffic lights, never the dogs in the corner
    assert (middle["known"], middle["pointing"]) == (50, 50)
    assert middle["threshold"] == 0.3  # (0.5 / 0.7) ** 2 is the first IoU of a half
    assert any("unicorn" in note and "1 objects" in note for note in found.notes)
    assert any("gradcat: rest_lite" in note for note in found.notes)


def test_an_image_that_cannot_be_read_is_told_of(tmp_path: Path, data: Path) -> None:
    (data / "JPEGImages" / "a.png").write_bytes(b"no image")
    source = saved(tmp_path, "nest_tiny", ["traffic light", "dog"])
    found = localise([source], data, ["cam"], steps=0)
    assert len(found.skipped) == 1
    assert found.measured()["rows"][0]["images"] == 2
    assert "deletion" not in found.measured()["rows"][0]


def test_so_many_images_are_drawn_by_the_seed(tmp_path: Path, data: Path) -> None:
    source = saved(tmp_path, "nest_tiny", ["traffic light", "dog"])
    drawn = [localise([source], data, ["cam"], 1, 0, seed).rows[0].examples for seed in range(9)]
    assert all(len(one) == 1 for one in drawn)
    assert {index for one in drawn for index in one} == {0, 1, 2}


def test_an_object_that_the_crop_cuts_off_is_not_asked_for(tmp_path: Path, data: Path) -> None:
    source = saved(tmp_path, "nest_tiny", ["traffic light", "dog"], crop=0.75)
    found = localise([source], data, ["cam"], steps=0)
    assert found.measured()["rows"][0]["cases"] == 2  # 8 pixels a side are gone
    assert f"{source} sees no object in 1 images" in found.notes


@pytest.mark.parametrize(
    ("classes", "methods", "said"),
    [
        (["red", "green"], ["cam"], "none is known to"),
        (["dog"], ["cat"], "no method is called 'cat'"),
    ],
)
def test_what_cannot_be_measured_is_said(
    tmp_path: Path, data: Path, classes: list[str], methods: list[str], said: str
) -> None:
    source = saved(tmp_path, "nest_tiny", classes)
    with pytest.raises(ValueError, match=said):
        localise([source], data, methods)


def test_classes_match_but_for_case_and_what_separates_words() -> None:
    ours = ["dog", "Traffic-Light", "unicorn", "cat"]
    assert matched(ours, ["traffic_light", "Cat", "DOG", "cat"]) == {0: 2, 1: 0, 3: 3}


@pytest.mark.parametrize("size", [(64, 96), (97, 61), (300, 200), (41, 41), (33, 120)])
@pytest.mark.parametrize("wanted", [(3, 64, 64), (3, 48, 80)])
@pytest.mark.parametrize("crop", [1.0, 0.875, 0.7])
def test_a_box_goes_where_its_pixels_go(
    size: tuple[int, int], wanted: tuple[int, int, int], crop: float
) -> None:
    """The box around what is bright, before and after the model's own preprocessing."""
    config = {"input_size": wanted, "crop_pct": crop, "interpolation": "bilinear"}
    transform = as_tested(config)
    width, height = size
    x0, y0, x1, y1 = box = (width * 2 // 7, height // 3, width * 3 // 4, height * 4 // 5)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y0:y1, x0:x1] = 255
    seen = np.asarray(transform(Image.fromarray(pixels)))[0] > 127
    ys, xs = seen.any(1).nonzero()[0], seen.any(0).nonzero()[0]
    around = torch.tensor([xs[0], ys[0], xs[-1] + 1, ys[-1] + 1])
    moved, _ = in_view(transform, size, torch.tensor([box], dtype=torch.float32))
    assert (moved[0] - around).abs().max() <= 0.55


def test_what_is_left_of_a_box_is_its_share_in_view() -> None:
    config = {"input_size": (3, 32, 32), "crop_pct": 0.5, "interpolation": "bicubic"}
    moved, left = in_view(
        as_tested(config),
        (128, 64),
        torch.tensor([[0.0, 0, 64, 64], [40, 16, 60, 48], [0, 0, 9, 9]]),
    )
    assert moved[:2].tolist() == [[0, 0, 16, 32], [0, 0, 12, 32]]
    assert left.tolist() == pytest.approx([0.125, 0.6, 0])
