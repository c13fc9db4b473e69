import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.small_shards import shard
from ziggurat.data.annotations import ObjectSplit, SceneSplit
from ziggurat.data.check import check, kind_of
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


# Objects and scenes.


def objects(root: Path, counts: dict[str, int]) -> Path:
    """COCO's layout; image i of a split has i objects, the first of which are dogs."""
    (root / "annotations").mkdir(parents=True)
    for seed, (split, count) in enumerate(counts.items()):
        for i in range(count):
            noise(root / split / f"{i}.png", 100 * seed + i)
        found = {
            "images": [
                {"id": i, "file_name": f"{i}.png", "width": 8, "height": 6} for i in range(count)
            ],
            "annotations": [
                {"id": 10 * i + j, "image_id": i, "category_id": 1 + (j > 0), "bbox": [1, 1, 4, 4]}
                for i in range(count)
                for j in range(i)
            ],
            "categories": [{"id": i, "name": n} for i, n in ((1, "dog"), (2, "cat"), (3, "cow"))],
        }
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return root


def scenes(root: Path, counts: dict[str, int]) -> Path:
    """The plain layout: of each map half is sky, a third sea, the rest void; there is no mud."""
    ids = np.array([[0] * 8] * 3 + [[1] * 8] * 2 + [[255] * 8], np.uint8)
    for seed, (split, count) in enumerate(counts.items()):
        for i in range(count):
            noise(root / split / "images" / f"{i}.png", 100 * seed + i)
            (root / split / "masks").mkdir(exist_ok=True)
            Image.fromarray(ids).save(root / split / "masks" / f"{i}.png")
    (root / "classes.txt").write_text("sky\nsea\nmud")
    return root


def change(file: Path, number: int, **more: Any) -> None:
    """Change an annotation."""
    found = json.loads(file.read_text())
    found["annotations"][number] |= more
    file.write_text(json.dumps(found))


def test_the_kind_of_data_is_told_by_its_layout(tmp_path: Path, good: Path) -> None:
    coco = objects(tmp_path / "coco", {"train": 2, "val": 2})
    assert kind_of(coco) == kind_of("coco") == "objects"
    assert kind_of(coco / "annotations" / "instances_val.json") == "objects"
    assert kind_of(scenes(tmp_path / "scenes", {"train": 1, "val": 1})) == "scenes"
    assert kind_of(tmp_path / "scenes" / "train") == kind_of("ade20k") == "scenes"
    for spec in (good, good / "train", "digits", tmp_path / "gone", "shard-{0..3}.tar"):
        assert kind_of(spec) is None


def test_objects_are_counted(tmp_path: Path) -> None:
    report = check(objects(tmp_path / "coco", {"train": 4, "val": 3}), progress=False)
    assert report.ok
    train, test = report.train, report.test
    assert isinstance(train, ObjectSplit)
    assert isinstance(test, ObjectSplit)
    assert (train.images, train.read, train.objects, train.without) == (4, 4, 6, 1)
    assert train.per_class == {"dog": 3, "cat": 3, "cow": 0}
    assert (test.objects, test.crowds, test.largest, test.modes) == (3, 0, (8, 6), {"RGB": 3})
    assert report.remarks == ["no objects to train on of class 'cow'"]
    assert report.lines()[:3] == [
        "coco: 3 classes",
        "train 4 images, 6 objects, 0 cow to 3 dog; 1 images without objects",
        "      8 x 6 to 8 x 6 pixels, median 8 x 6; RGB 4",
    ]
    found = json.loads(json.dumps(report.as_dict()))
    assert (found["ok"], found["train"]["objects"], found["test"]["without"]) == (True, 6, 1)


def test_what_is_wrong_with_objects_is_found(tmp_path: Path) -> None:
    root = objects(tmp_path, {"train": 4, "val": 3})
    file = root / "annotations" / "instances_train.json"
    change(file, 0, bbox=[9, 9, 2, 2])
    change(file, 1, iscrowd=1, segmentation=[[1, 1, 2, 2]])
    change(file, 3, segmentation={"size": [6, 8], "counts": "04"})
    (root / "train" / "1.png").unlink()
    noise(root / "val" / "1.png", 7, (6, 8))
    (root / "val" / "2.png").write_bytes((root / "train" / "2.png").read_bytes())
    report = check(root, progress=False)
    assert isinstance(report.train, ObjectSplit)
    assert (report.train.objects, report.train.crowds) == (5, 1)
    assert report.train.unreadable[0] == f"{root}/train/1.png: No such file or directory"
    assert "train/3.png: annotation 30: segment 0 is no mask" in report.train.unreadable[1]
    assert "2 of 4 training images cannot be read, the first: " in report.problems[0]
    assert report.problems[1].endswith("val/1.png: 6 x 8, annotated as 8 x 6")
    assert "1 images are for training and for testing" in report.problems[2]
    assert report.remarks[0] == (
        "left out among training images: polygons that are not 3 points or more (1), boxes outside "
        "the image (1)"
    )


def test_objects_that_cannot_be_opened_are_the_problem(tmp_path: Path) -> None:
    root = objects(tmp_path, {"train": 4, "val": 3})
    change(root / "annotations" / "instances_val.json", 2, category_id=9)
    (found,) = problems(root)
    assert "annotation 21 has category_id 9" in found
    assert "give `--data DIR`" in problems(Path("coco"))[0]


def test_scenes_are_measured(tmp_path: Path) -> None:
    report = check(scenes(tmp_path / "set", {"train": 3, "val": 2}), progress=False)
    assert report.ok
    train = report.train
    assert isinstance(train, SceneSplit)
    assert (train.images, train.read, train.modes) == (3, 3, {"RGB": 3})
    assert train.per_class == {"sky": 3, "sea": 3, "mud": 0}
    assert train.shares == pytest.approx({"sky": 1 / 2, "sea": 1 / 3, "mud": 0})
    assert train.void == pytest.approx(1 / 6)
    assert report.remarks == ["no pixels to train on of class 'mud'"]
    assert report.lines()[1] == "train 3 images, 0.0% mud to 50.0% sky, 16.7% void"
    assert json.loads(json.dumps(report.as_dict()))["test"]["void"] == pytest.approx(1 / 6)


def test_what_is_wrong_with_scenes_is_found(tmp_path: Path) -> None:
    root = scenes(tmp_path, {"train": 4, "val": 2})
    Image.fromarray(np.full((6, 8), 9, np.uint8)).save(root / "train" / "masks" / "2.png")
    Image.fromarray(np.full((6, 8), 2, np.uint8)).save(root / "train" / "masks" / "3.png")
    (root / "train" / "masks" / "0.png").write_text("x")
    Image.new("RGB", (8, 6)).save(root / "val" / "masks" / "1.png")
    report = check(root, progress=False)
    assert isinstance(report.train, SceneSplit)
    said = "train/masks/2.png: id 9, but there are 3 classes, 0 to 2, and 255 for none"
    assert report.train.out_of_range == [f"{root}/{said}"]
    assert report.train.unreadable == [
        f"{root}/train/masks/0.png: not an image of a kind that can be read"
    ]
    assert len(report.problems) == 3
    assert "label maps hold ids, not colours" in report.problems[1]
    assert report.problems[2].startswith("1 of 4 training maps have ids out of range, the first: ")
    assert report.remarks == ["pixels to train on, but none to test, of class 'mud'"]
    (root / "val" / "images" / "1.png").unlink()
    (found,) = problems(root)
    assert "has no image in" in found


def test_a_limit_holds_for_objects_and_scenes_too(tmp_path: Path) -> None:
    for root in (
        objects(tmp_path / "a", {"train": 5, "val": 3}),
        scenes(tmp_path / "b", {"train": 5, "val": 3}),
    ):
        report = check(root, limit=2, progress=False)
        assert (report.train.images, report.train.read, report.test.read) == (5, 2, 2)
        assert report.lines()[1].endswith(", 2 of them read")


def test_images_of_objects_can_be_checked_for_pretraining(tmp_path: Path) -> None:
    root = objects(tmp_path / "coco", {"train": 12, "val": 3})
    report = check(root, progress=False, labelled=False)
    assert report.ok
    assert not isinstance(report.train, ObjectSplit)
    assert report.train.images == 12
