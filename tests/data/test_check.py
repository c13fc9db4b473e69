import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.small_shards import shard
from ziggurat.data.check import check
from ziggurat.data.images import open_data
from ziggurat.data.packed import save_npz


def noise(path: Path, seed: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Two classes, six images to train on, two to test."""
    root = tmp_path / "set"
    for i in range(3):
        noise(root / "train" / "cat" / f"{i}.png", i, (8 + i, 6))
        noise(root / "train" / "dog" / f"{i}.jpg", 10 + i)
    noise(root / "val" / "cat" / "0.png", 20, mode="L")
    noise(root / "val" / "dog" / "0.png", 21)
    return root


def problems(path: Path, **options: Any) -> list[str]:
    report = check(path, progress=False, **options)
    assert report.ok == (not report.problems)
    return report.problems


def test_good_data_is_counted_and_has_no_problems(good: Path) -> None:
    report = check(good, progress=False)
    assert report.ok
    assert not report.remarks
    assert not report.duplicates
    assert (report.name, report.classes) == ("set", ("cat", "dog"))
    assert (report.train.images, report.train.read) == (6, 6)
    assert report.train.per_class == {"cat": 3, "dog": 3}
    assert (report.train.smallest, report.train.median, report.train.largest) == (
        (8, 6), (8, 6), (10, 6)
    )  # fmt: skip
    assert report.train.modes == {"RGB": 6}
    assert report.test.modes == {"L": 1, "RGB": 1}


def test_a_report_can_be_printed_and_written_as_json(good: Path) -> None:
    (good / "train" / "cat" / "bad.jpg").write_text("x")
    report = check(good, progress=False)
    found = json.loads(json.dumps(report.as_dict()))
    assert found["ok"] is False
    assert found["train"]["per_class"] == {"cat": 4, "dog": 3}
    lines = report.lines()
    assert lines[0] == "set: 2 classes"
    assert lines[1] == "train 7 images, 3 to 4 a class"
    assert lines[2] == "      8 x 6 to 10 x 6 pixels, median 8 x 6; RGB 6"
    assert lines[-2].startswith("problem: 1 of 7 training images cannot be read")
    assert lines[-1] == "1 to mend"


def test_unreadable_files_are_listed_with_their_reasons(good: Path) -> None:
    (good / "train" / "cat" / "empty.png").touch()
    whole = noise(good / "val" / "dog" / "1.jpg", 30, (64, 64))
    whole.write_bytes(whole.read_bytes()[:800])
    report = check(good, progress=False)
    assert report.train.unreadable == [f"{good / 'train/cat/empty.png'}: the file is empty"]
    assert len(report.test.unreadable) == 1
    assert report.problems[0].startswith("1 of 7 training images cannot be read, the first: ")
    assert "truncated" in report.problems[1]


def test_an_image_in_both_splits_is_found(good: Path) -> None:
    for name in ("copy.jpg", "again.jpg"):
        (good / "val" / "dog" / name).write_bytes((good / "train" / "dog" / "1.jpg").read_bytes())
    report = check(good, progress=False)
    one = str(good / "train/dog/1.jpg")
    assert sorted(report.duplicates) == [
        (one, str(good / "val/dog/again.jpg")),
        (one, str(good / "val/dog/copy.jpg")),
    ]
    assert "2 images are for training and for testing, the first: " in report.problems[0]


def test_two_empty_files_are_unreadable_not_duplicates(good: Path) -> None:
    for split in ("train", "val"):
        (good / split / "cat" / "x.png").touch()
    assert check(good, progress=False).duplicates == []


def test_what_training_refuses_is_a_problem_and_the_rest_is_still_read(good: Path) -> None:
    noise(good / "train" / "cow" / "0.png", 40)
    (good / "val" / "dog" / "bad.png").touch()
    with pytest.raises(ValueError, match="class 'cow' only in train/"):
        open_data(good)
    report = check(good, progress=False)
    assert "class 'cow' only in train/" in report.problems[0]
    assert "cannot be read" in report.problems[1]
    assert report.train.images == 7
    assert report.remarks == [
        "images to train on, but none to test, of class 'cow'",
        "a single image to train on of class 'cow'",
    ]


def test_empty_classes_are_a_problem(good: Path) -> None:
    for split in ("train", "val"):
        (good / split / "cow").mkdir()
    assert problems(good) == ["no images at all of class 'cow'"]


def test_one_class_is_a_problem(tmp_path: Path) -> None:
    for i in range(4):
        noise(tmp_path / "only" / f"{i}.png", i)
    assert problems(tmp_path) == ["there is only one class, 'only'"]


def test_files_passed_over_are_remarked(good: Path) -> None:
    (good / "train" / "cat" / "notes.xml").write_text("x")
    (good / "train" / "cat" / ".DS_Store").write_text("x")
    report = check(good, progress=False)
    assert report.ok
    (remark,) = report.remarks
    assert remark.startswith("files passed over among training images: ")
    assert ".xml (1)" in remark
    assert "hidden (1)" in remark


def test_a_label_out_of_range_is_a_problem(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    file = save_npz(tmp_path / "a.npz", images, np.array([0, 1, 2, 7]), images[:1] ^ 1,
                    np.array([0]), ["a", "b", "c"])  # fmt: skip
    found = check(file, progress=False)
    assert found.problems == [
        "a train 3 has label 7, but there are 3 classes, 0 to 2 (1 such training images)"
    ]
    assert found.train.per_class == {"a": 1, "b": 1, "c": 1}


def test_what_cannot_be_opened_at_all_is_the_problem(tmp_path: Path) -> None:
    (found,) = problems(tmp_path / "gone")
    assert "no such file or folder" in found
    report = check("cifra10", progress=False)
    assert report.lines()[-1] == "1 to mend"


def test_a_limit_reads_a_few_that_are_spread_out(good: Path) -> None:
    (good / "train" / "dog" / "2.jpg").write_text("the last")
    report = check(good, limit=2, progress=False)
    assert (report.train.images, report.train.read) == (6, 2)
    assert len(report.train.unreadable) == 1
    assert "6 images, 3 to 3 a class, 2 of them read" in report.lines()[1]


def test_shards_and_names_are_checked_too(tmp_path: Path) -> None:
    for i, name in enumerate(("train-0", "train-1", "val-0")):
        shard(tmp_path / f"{name}.tar", 4 * i)
    assert check(tmp_path, progress=False).ok
    report = check("digits", limit=100, progress=False)
    assert report.train.read == 100
    assert report.train.largest == (8, 8)


def test_images_without_labels_are_checked_without_classes(tmp_path: Path) -> None:
    for i in range(8):
        noise(tmp_path / "set" / f"{i}.png", i)
    report = check(tmp_path / "set", progress=False, labelled=False)
    assert report.ok
    assert not report.remarks
    assert report.as_dict()["classes"] == ()
    assert report.train.per_class == report.test.per_class == {}
    lines = report.lines()
    assert lines[0] == "set"
    assert lines[1] == f"train {report.train.images} images"
    assert lines[-1] == "ready to train on"
    assert "holds no folders" in problems(tmp_path / "set")[0]


def test_bad_files_without_labels_are_found(tmp_path: Path, good: Path) -> None:
    noise(good / "train" / "loose.png", 50)
    (good / "val" / "only here").mkdir()
    (good / "val" / "only here" / "bad.png").touch()
    (good / "val" / "copy.jpg").write_bytes((good / "train" / "dog" / "1.jpg").read_bytes())
    found = problems(good, labelled=False)
    assert len(found) == 2
    assert "1 of 4 test images cannot be read" in found[0]
    assert "1 images are for training and for testing" in found[1]
    (empty,) = problems(tmp_path / "gone", labelled=False)
    assert "no such file or folder" in empty


def test_an_image_too_small_to_pretrain_on_is_found(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for i, side in enumerate((16, 16, 1, 16)):
        pixels = np.full((side, side, 3), i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "set" / f"{i}.png")
    found = check(tmp_path / "set", progress=False, labelled=False)
    assert found.train.unreadable + found.test.unreadable == [
        f"{tmp_path / 'set' / '2.png'}: 1 x 1, smaller than 4"
    ]
