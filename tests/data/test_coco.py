import json
import math
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as reference

from ziggurat.data.coco import ObjectImages, encoded, masks, open_objects
from ziggurat.data.images import BadImage

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools'

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
SQUARE = [2, 1, 6, 1, 6, 5, 2, 5]
SHARED = Path(__file__).parents[3] / "shared" / "data" / "coco_tiny"


def one(id: int = 1, image_id: int = 1, **more: Any) -> dict[str, Any]:
    """An annotation."""
    return {"id": id, "image_id": image_id, "category_id": 3, "bbox": [2, 1, 4, 4]} | more


def listed(count: int = 1, size: tuple[int, int] = (10, 8)) -> list[dict[str, Any]]:
    """Images 1, 2 ..."""
    return [
        {"id": i, "file_name": f"{i}.png", "width": size[0], "height": size[1]}
        for i in range(1, count + 1)
    ]


def written(
    path: Path,
    annotations: list[Any],
    images: list[Any] | None = None,
    categories: list[Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """A file, and its images in a folder."""
    images = listed() if images is None else images
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({
        "images": images,
        "annotations": annotations,
        "categories": CATEGORIES if categories is None else categories,
    })  # fmt: skip
    path.write_text(text)
    for i, image in enumerate(images):
        file = (folder or path.parent) / image["file_name"]
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (image["width"], image["height"]), (i, 0, 0)).save(file)
    return path


def read(path: Path, annotations: list[Any], **more: Any) -> ObjectImages:
    """All of one file, for testing."""
    return open_objects(written(path / "a.json", annotations, **more), seed=None).test


def refused(path: Path, annotations: list[Any], said: str, **more: Any) -> None:
    with pytest.raises(ValueError, match=said) as error:
        read(path, annotations, **more)
    assert "\n" not in str(error.value)
    assert "a.json" in str(error.value)


# What a file says.


def test_objects_are_as_the_file_says(tmp_path: Path) -> None:
    rle = {"size": [8, 10], "counts": [8, 16, 56]}
    images = read(
        tmp_path,
        [
            one(30, 2, area=9.5, segmentation=[SQUARE]),
            one(10, 1, category_id=7, iscrowd=1, segmentation=rle, area=16),
            one(20, 2, bbox=[0, 0, 1.5, 2.25], area=3),
        ],
        images=listed(3),
    )
    assert len(images) == 3
    first, second, third = (images.objects(i) for i in range(3))
    assert first.ids.tolist() == [10]
    assert (first.labels.tolist(), first.crowd.tolist()) == ([1], [True])
    assert first.segments == [rle]
    assert second.ids.tolist() == [30, 20]
    assert second.boxes.tolist() == [[2, 1, 6, 5], [0, 0, 1.5, 2.25]]
    assert second.areas.tolist() == [9.5, 3]
    assert second.segments == [[SQUARE], None]
    assert not second.crowd.any()
    for objects in (first, second, third):
        kinds = [array.dtype.name for array in (*objects[:4], objects.ids)]
        assert kinds == ["float32", "int64", "bool", "float32", "int64"]
    assert third.boxes.shape == (0, 4)
    assert (len(third.labels), len(third.areas), third.segments) == (0, 0, [])
    assert [images.image_id(i) for i in range(3)] == [1, 2, 3]
    assert images.size(1) == (10, 8)
    assert images.name(1) == str(tmp_path / "2.png")
    assert images.image(1).getpixel((0, 0)) == (1, 0, 0)


def test_classes_are_sorted_by_id_and_stay_without_objects(tmp_path: Path) -> None:
    data = open_objects(written(tmp_path / "a.json", [one()]), seed=None)
    assert data.classes == data.test.classes == ("cat", "dog")
    assert data.category_ids == (3, 7)
    assert (data.mean, data.std, data.name) == (None, None, "a")


def test_two_classes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    same = [{"id": 3, "name": "fish"}, {"id": 4, "name": "fish"}, {"id": 5, "name": "crab"}]
    images = read(tmp_path, [one()], categories=same)
    assert images.classes == ("fish (3)", "fish (4)", "crab")


def test_an_area_that_is_missing_is_the_masks_or_the_boxs(tmp_path: Path) -> None:
    triangle = [2, 1, 6, 1, 2, 5]
    found = [
        one(1, segmentation=[triangle]),
        one(2, area=0),
        one(3, area=math.nan, segmentation={"size": [8, 10], "counts": [8, 16, 56]}),
    ]
    areas = read(tmp_path, found).objects(0).areas
    assert areas.tolist() == [masks([[triangle]], 8, 10).sum(), 16, 16]


def test_images_are_ordered_and_survive_pickling(tmp_path: Path) -> None:
    images = read(tmp_path, [one(1), one(2, 3)], images=listed(5))
    order = images.order(torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(5))
    assert torch.equal(order, images.order(torch.Generator().manual_seed(0)))
    again = pickle.loads(pickle.dumps(images))
    assert again.objects(2).ids.tolist() == [2]
    assert again.name(2) == images.name(2)


def test_what_an_image_gives_may_be_changed(tmp_path: Path) -> None:
    images = read(tmp_path, [one()])
    images.objects(0).boxes[:] = 0
    assert images.objects(0).boxes.tolist() == [[2, 1, 6, 5]]


# What is mended or left out.


def test_boxes_are_clipped_and_those_left_empty_counted(tmp_path: Path) -> None:
    boxes = [
        [-3, -2, 5, 4], [8, 6, 100, 1e300], [2, 2, 0, 3], [2, 2, 3, -1], [10, 2, 3, 3],
        [math.nan, 1, 2, 2], [1, 1, math.inf, 2], [1, 1, 1, 1],
    ]  # fmt: skip
    images = read(tmp_path, [one(i, bbox=bbox, area=1) for i, bbox in enumerate(boxes)])
    objects = images.objects(0)
    assert objects.ids.tolist() == [0, 1, 7]
    assert objects.boxes.tolist() == [[0, 0, 2, 2], [8, 6, 10, 8], [1, 1, 2, 2]]
    assert images.ignored == {
        "boxes that are not finite": 2,
        "boxes without width or height": 2,
        "boxes outside the image": 1,
    }


def test_polygons_that_cannot_be_drawn_are_left_out_and_counted(tmp_path: Path) -> None:
    line, odd = [1, 1, 5, 5], [1, 1, 5, 5, 1, 5, 3]
    images = read(
        tmp_path,
        [
            one(1, segmentation=[line, SQUARE, odd]),
            one(2, segmentation=[line]),
            one(3, segmentation=[[1, 1, 5, 5, math.nan, 3]]),
            one(4, segmentation=[[1, 1, 1e9, 5, 1, 3]]),
            one(5, segmentation=[]),
            one(6, segmentation=[[]]),
        ],
    )
    assert images.objects(0).segments == [[SQUARE], None, None, None, None, None]
    assert images.ignored == {
        "polygons that are not 3 points or more": 4,
        "polygons that are not finite": 1,
        "polygons far outside the image": 1,
    }


# What is refused.


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"category_id": 5}, "annotation 9 has category_id 5, which the file does not list"),
        ({"category_id": [3]}, r"annotation 9 has category_id \[3\]"),
        ({"image_id": 4}, "annotation 9 has image_id 4, which the file does not list"),
        ({"image_id": None}, "annotation 9 has image_id None"),
        ({"image_id": math.inf}, "annotation 9 has image_id inf"),
        ({"bbox": [1, 2, 3]}, r"annotation 9 must have 4 numbers as its bbox, got \[1, 2, 3\]"),
        ({"bbox": [1, 2, 3, "4"]}, "annotation 9 must have 4 numbers"),
        ({"bbox": None}, "annotation 9 must have 4 numbers as its bbox, got None"),
        ({"segmentation": "x"}, "annotation 9 must have polygons or an RLE"),
        ({"segmentation": SQUARE}, "annotation 9 must have polygons or an RLE"),
        ({"segmentation": [[1, 1, 5, 5, 1, "5"]]}, "annotation 9 has a polygon of something else"),
        (
            {"segmentation": {"size": [10, 8], "counts": [80]}},
            r"annotation 9 has an RLE of size \[10, 8\], but its image has \[8, 10\] \(height",
        ),
        ({"segmentation": {"counts": [80]}}, "annotation 9 has an RLE of size None"),
        (
            {"segmentation": {"size": [8, 10], "counts": [70]}},
            "annotation 9 has an RLE whose counts do not add up to 8 x 10 pixels",
        ),
        ({"segmentation": {"size": [8, 10], "counts": [90, -10]}}, "counts do not add up"),
        ({"segmentation": {"size": [8, 10]}}, "counts do not add up"),
        (
            {"segmentation": {"size": [8, 10], "counts": "08é"}},
            "annotation 9 has an RLE whose counts are damaged: '08é'",
        ),
        ({"segmentation": {"size": [8, 10], "counts": "08P"}}, "counts are damaged: '08P'"),
        ({"segmentation": {"size": [8, 10], "counts": ""}}, "counts are damaged: ''"),
        ({"area": 10**400}, "annotation 9 has a number that is too large"),
        ({"bbox": [1, 1, 10**400, 1]}, "annotation 9 has a number that is too large"),
        ({"segmentation": [[10**400, *SQUARE[1:]]]}, "annotation 9 has a number that is too large"),
        ({"id": "x"}, "annotation 1, by its place, must have a whole number as its id, got 'x'"),
    ],
)
def test_an_annotation_that_is_wrong_is_named(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    refused(tmp_path, [one(9, **more)] if "id" not in more else [one(**more)], said)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ({"id": None}, "an image must have a whole number as its id, got None"),
        ({"id": 2**70}, "an image must have a whole number"),
        ({"width": 0}, "image 1 cannot be 0 x 8 pixels"),
        ({"width": "10"}, "image 1 must have a whole number as its width, got '10'"),
        ({"width": 10**6, "height": 10**6}, "image 1 cannot be 1000000 x 1000000 pixels"),
        ({"file_name": ""}, "image 1 has no file_name"),
        ({"file_name": 5}, "image 1 has no file_name"),
    ],
)
def test_an_image_that_is_wrong_is_named(tmp_path: Path, image: dict[str, Any], said: str) -> None:
    path = written(tmp_path / "a.json", [one()])
    found = json.loads(path.read_text())
    found["images"][0] |= image
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=said):
        open_objects(path)


def test_an_id_of_two_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, [one()], "1 is the id of several images", images=listed() * 2)
    refused(tmp_path, [one(4), one(4)], "4 is the id of several annotations")
    refused(tmp_path, [one()], "3 is the id of several categories", categories=CATEGORIES[1:] * 2)
    refused(tmp_path, [one()], "has no categories", categories=[])
    refused(tmp_path, [one()], "category 3 has no name", categories=[{"id": 3}])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"a\.json is not JSON: "),
        ("", r"a\.json is not JSON: "),
        ("[" * 100_000, r"a\.json is not JSON: "),
        ("\xff", r"a\.json is not JSON: "),
        ("[]", r"a\.json must be a JSON object with images, annotations and categories"),
        ("{}", r"a\.json has no list of images"),
        ('{"images": [], "annotations": {}}', r"a\.json has no list of annotations"),
        ('{"images": [], "annotations": []}', r"a\.json has no list of categories"),
        ('{"images": [3], "annotations": []}', r"a\.json: entry 1 of images must be"),
    ],
    ids=["cut", "empty", "deep", "bytes", "list", "nothing", "annotations", "categories", "number"],
)
def test_what_is_no_file_of_instances_says_so(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=said) as error:
        open_objects(tmp_path / "a.json")
    assert "\n" not in str(error.value)


def test_nothing_to_train_or_test_on_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", [], listed(40))
    with pytest.raises(ValueError, match="a has no objects to train on"):
        open_objects(path)
    with pytest.raises(ValueError, match="a has no objects to test on"):
        open_objects(path, seed=None)
    with pytest.raises(ValueError, match="a has no images to train on"):
        open_objects(written(path, [], []))


# Where files are.


def coco(root: Path, train: str = "train2017", val: str = "val2017", images: str = "{}") -> Path:
    for split, count in ((train, 3), (val, 2)):
        written(
            root / "annotations" / f"instances_{split}.json",
            [one(i, i) for i in range(1, count + 1)],
            listed(count),
            folder=root / images.format(split),
        )
    return root


@pytest.mark.parametrize("images", ["{}", "images/{}", "images", "."])
@pytest.mark.parametrize(("train", "val"), [("train2017", "val2017"), ("train", "val")])
def test_cocos_own_folder_is_read(tmp_path: Path, train: str, val: str, images: str) -> None:
    data = open_objects(coco(tmp_path / "set", train, val, images))
    assert (len(data.train), len(data.test), data.name) == (3, 2, "set")
    assert data.train.image(2).size == (10, 8)
    assert data.test.name(1) == str(tmp_path / "set" / images.format(val) / "2.png")


def test_a_folder_without_the_year_is_found_too(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "val2017").rename(tmp_path / "val")
    assert open_objects(tmp_path).test.name(0) == str(tmp_path / "val" / "1.png")


def test_other_annotations_of_coco_are_left_alone(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "annotations" / "captions_train2017.json").write_text("x")
    assert len(open_objects(tmp_path).train) == 3


def test_for_testing_alone_only_the_test_file_is_read(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "annotations" / "instances_train2017.json").write_text("x")
    data = open_objects(tmp_path, seed=None)
    assert (len(data.train), len(data.test), data.classes) == (0, 2, ("cat", "dog"))


@pytest.mark.parametrize("other", ["valid", "val", "test"])
def test_an_export_of_roboflow_is_read(tmp_path: Path, other: str) -> None:
    for split in ("train", other):
        written(tmp_path / "set" / split / "_annotations.coco.json", [one()])
    data = open_objects(tmp_path / "set")
    assert data.name == "set"
    assert data.test.name(0) == str(tmp_path / "set" / other / "1.png")
    one_of = open_objects(tmp_path / "set" / "train" / "_annotations.coco.json", seed=None)
    assert one_of.name == "train"


def test_of_one_file_a_tenth_is_held_out_by_name(tmp_path: Path) -> None:
    annotations = [one(i, i, segmentation=[[i / 4, *SQUARE[1:]]], area=i) for i in range(1, 201)]
    path = written(tmp_path / "a.json", [*annotations, one(999, bbox=[1, 1, 0, 0])], listed(200))
    data = open_objects(path)
    assert 10 <= len(data.test) <= 30
    assert len(data.train) + len(data.test) == 200
    for images in (data.train, data.test):
        for i in range(len(images)):
            objects, number = images.objects(i), images.image_id(i)
            assert images.name(i).endswith(f"/{number}.png")
            assert objects.ids.tolist() == objects.areas.tolist() == [number]
            assert objects.segments[0][0][0] == number / 4
    assert data.train.ignored == {"boxes without width or height": 1}
    assert data.test.ignored == {}
    other = open_objects(path, seed=1)
    assert list(data.test.paths) != list(other.test.paths)
    whole = open_objects(path, seed=None)
    assert (len(whole.train), len(whole.test)) == (0, 200)
    assert whole.test.ignored == data.train.ignored
    before = set(data.test.paths)
    written(path, annotations[:150], listed(150))
    kept = {f"{i}.png" for i in range(1, 151)}
    assert set(open_objects(path).test.paths) == before & kept


def test_file_names_may_have_folders(tmp_path: Path) -> None:
    images = [listed()[0] | {"file_name": "deep/er/x.png"}]
    path = written(tmp_path / "a.json", [one()], images)
    assert open_objects(path, seed=None).test.name(0) == str(tmp_path / "deep/er/x.png")


def test_one_of_cocos_files_finds_its_images(tmp_path: Path) -> None:
    coco(tmp_path)
    data = open_objects(tmp_path / "annotations" / "instances_val2017.json", seed=None)
    assert data.test.name(0) == str(tmp_path / "val2017" / "1.png")


def test_categories_that_differ_are_refused(tmp_path: Path) -> None:
    coco(tmp_path)
    file = tmp_path / "annotations" / "instances_val2017.json"
    for other, said in (
        ([*CATEGORIES, {"id": 8, "name": "cow"}], "8 is missing in train and 'cow' in val"),
        ([CATEGORIES[1], {"id": 7, "name": "Dog"}], "7 is 'dog' in train and 'Dog' in val"),
    ):
        written(file, [one()], categories=other)
        with pytest.raises(ValueError, match=f"must have the same categories, but {said}"):
            open_objects(tmp_path)


def test_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*gone: give a COCO \.json, or a folder"):
        open_objects(tmp_path / "gone")
    with pytest.raises(ValueError, match="is no COCO data: it must have annotations/instances_tr"):
        open_objects(tmp_path)
    coco(tmp_path)
    written(tmp_path / "annotations" / "instances_train2014.json", [one()])
    with pytest.raises(
        ValueError, match=r"instances_train2014\.json, instances_train2017\.json: l"
    ):
        open_objects(tmp_path)
    for file in (tmp_path / "annotations").glob("*train*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"no file for train: add one, or give .* a tenth"):
        open_objects(tmp_path)
    assert len(open_objects(tmp_path, seed=None).test) == 2


def test_coco_by_name_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="give `--data DIR`, a folder with annotations/, train201"):
        open_objects("coco")


# Images.


def test_images_that_are_all_missing_are_refused_with_one_of_them(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", [one()], listed(30))
    for i in range(1, 21):
        (tmp_path / f"{i}.png").unlink()
    with pytest.raises(
        ValueError, match=r"cannot find any of the first 20 images, such as .*/1\.p"
    ):
        open_objects(path)
    coco(tmp_path / "set")
    (tmp_path / "set" / "train2017").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"first 3 images, such as .*/set/train2017/1\.png$"):
        open_objects(tmp_path / "set")


def test_an_image_that_is_missing_or_of_another_size_is_bad(tmp_path: Path) -> None:
    images = read(tmp_path, [one()], images=listed(3))
    (tmp_path / "2.png").unlink()
    Image.new("RGB", (8, 8)).save(tmp_path / "3.png")
    with pytest.raises(BadImage, match=r"2\.png: No such file"):
        images.image(1)
    with pytest.raises(BadImage, match=r"3\.png: 8 x 8, annotated as 10 x 8$"):
        images.image(2)


@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_an_image_lying_on_its_side_is_as_annotated(tmp_path: Path, kind: str, turn: int) -> None:
    """Turned upright, unless only what is stored has the size annotated."""
    stored = np.zeros((32, 64, 3), np.uint8)
    stored[:16, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = turn
    name = f"1.{kind}"
    upright = [{"id": 1, "file_name": name, "width": 32, "height": 64}]
    lying = [{"id": 1, "file_name": name, "width": 64, "height": 32}]
    found = []
    for images in (upright, lying):
        sets = read(tmp_path, [one()], images=images)
        Image.fromarray(stored).save(tmp_path / name, exif=exif)
        if turn < 5 and images is upright:
            with pytest.raises(BadImage, match="64 x 32, annotated as 32 x 64"):
                sets.image(0)
            return
        found.append(np.asarray(sets.image(0)))
    assert found[0].shape == (64, 32, 3)
    assert (abs(found[1].astype(int) - stored) < 9).all()


# Masks.


def drawn(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    runs = reference.merge(reference.frPyObjects(polygons, height, width))
    return reference.decode(runs).astype(bool)


numbers = st.floats(-20, 60, allow_nan=False) | st.integers(-20, 60).map(lambda n: n / 10)
polygons = st.integers(3, 8).flatmap(lambda n: st.lists(numbers, min_size=2 * n, max_size=2 * n))


@settings(max_examples=150, deadline=None)
@given(st.lists(polygons, min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 40))
def test_polygons_are_drawn_as_by_pycocotools(
    segment: list[list[float]], height: int, width: int
) -> None:
    found = masks([segment], height, width)
    assert (found.shape, found.dtype.name) == ((1, height, width), "bool")
    assert np.array_equal(found[0], drawn(segment, height, width))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 30))
def test_both_kinds_of_runs_are_read_as_by_pycocotools(seed: int, height: int, width: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((height, width)) < random.random()
    compressed = reference.encode(np.asfortranarray(mask, np.uint8))
    flat = mask.ravel(order="F")
    changes = np.flatnonzero(np.diff(flat, prepend=False))
    counts = np.diff([0, *changes, mask.size]).tolist()
    text = compressed["counts"].decode()
    for segment in (
        {"size": [height, width], "counts": text},
        {"size": [height, width], "counts": counts},
        compressed,
    ):
        assert np.array_equal(masks([segment], height, width)[0], mask)
    assert encoded(mask) == {"size": [height, width], "counts": text}
    assert json.loads(json.dumps(encoded(mask))) == encoded(mask)


def test_several_masks_keep_their_places_and_a_box_alone_has_none() -> None:
    other = [0, 0, 3, 0, 3, 3]
    found = masks([[SQUARE], None, [SQUARE, other]], 8, 10)
    assert np.array_equal(found[0], drawn([SQUARE], 8, 10))
    assert not found[1].any()
    assert np.array_equal(found[2], drawn([SQUARE, other], 8, 10))
    assert masks([], 8, 10).shape == (0, 8, 10)


@pytest.mark.parametrize(
    "segment",
    [
        {"size": [8, 9], "counts": "`2"},
        {"size": [8, 10], "counts": "oooo"},
        {"size": [8, 10], "counts": "04"},
        {"size": [8, 10], "counts": [10, 10]},
        {"size": [8, 10]},
        {"size": [1, 1], "counts": [0, 1]},
    ],
)
def test_damaged_runs_are_refused(segment: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="segment 1 is no mask of height 8 and width 10") as error:
        masks([None, segment], 8, 10)
    assert "\n" not in str(error.value)


def test_a_mask_that_is_damaged_is_named_by_its_annotation(tmp_path: Path) -> None:
    images = read(tmp_path, [one(5, segmentation={"size": [8, 10], "counts": "04"})])
    with pytest.raises(ValueError, match=r"1\.png: annotation 5: segment 0 is no mask"):
        images.objects(0)


def test_without_faster_coco_eval_masks_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval.core", None)
    for make in (lambda: masks([[SQUARE]], 8, 10), lambda: encoded(np.ones((2, 2), bool))):
        with pytest.raises(ImportError, match=r"pip install 'ziggurat\[detect\]'"):
            make()
    assert not masks([None], 8, 10).any()


# COCO itself.


@pytest.mark.shared
def test_a_part_of_coco_is_as_pycocotools_reads_it() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data/coco_tiny")
    from pycocotools.coco import COCO

    data = open_objects(SHARED)
    assert (len(data.train), len(data.test), len(data.classes)) == (47, 38, 80)
    assert (data.classes[0], data.category_ids[79]) == ("person", 90)
    count = 0
    for split, images in (("train", data.train), ("val", data.test)):
        reference = COCO(SHARED / "annotations" / f"instances_{split}.json")
        assert images.ignored == {}
        for i in range(len(images)):
            objects, (width, height) = images.objects(i), images.size(i)
            found = masks(objects.segments, height, width)
            assert sorted(objects.ids) == sorted(reference.getAnnIds(images.image_id(i)))
            for j, number in enumerate(objects.ids.tolist()):
                expected = reference.anns[number]
                x, y, w, h = expected["bbox"]
                assert np.allclose(objects.boxes[j], (x, y, x + w, y + h), atol=1e-2)
                assert data.category_ids[objects.labels[j]] == expected["category_id"]
                assert objects.crowd[j] == expected["iscrowd"]
                assert objects.areas[j] == pytest.approx(expected["area"])
                assert np.array_equal(found[j], reference.annToMask(expected))
                count += 1
        assert images.image(0).size == images.size(0)
    assert count == 749
