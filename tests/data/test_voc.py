from pathlib import Path

import pytest

from tests.data.small_voc import Thing, write
from tests.tasks import small_objects
from ziggurat.data.voc import open_boxes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(
        tmp_path / "voc",
        {
            "a": ((40, 30), [Thing("dog", (4, 6, 20, 16)), Thing("cat", (0, 0, 40, 30), True)]),
            "b": ((20, 20), []),
            "c": ((30, 50), [Thing("cat", (10, 10, 30, 50))]),
        },
    )


def test_boxes_are_edges_of_pixels_counted_from_0(folder: Path) -> None:
    images = open_boxes(folder)
    assert images.classes == ("cat", "dog")
    assert [len(images.objects(i).boxes) for i in range(3)] == [2, 0, 1]
    first = images.objects(0)
    assert first.boxes.tolist() == [[4, 6, 20, 16], [0, 0, 40, 30]]
    assert first.labels.tolist() == [1, 0]
    assert first.crowd.tolist() == [False, True]  # difficult
    picture = images.image(0)
    assert picture.crop((4, 6, 20, 16)).getextrema() == ((255, 255),) * 3
    assert images.size(2) == (30, 50)


def test_the_images_to_test_on_are_those_listed(folder: Path) -> None:
    (folder / "ImageSets" / "Main").mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "val.txt").write_text("c\n")
    images = open_boxes(folder)
    assert [Path(images.name(i)).name for i in range(len(images))] == ["c.png"]


def test_coco_is_read_as_ever(tmp_path: Path) -> None:
    folder = small_objects.write(tmp_path / "coco", {"train": 3, "val": 2})
    assert len(open_boxes(folder)) == 2
    assert len(open_boxes(folder / "annotations" / "instances_train.json")) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<annotation>", "is not XML"),
        ("<annotation><object><name>dog</name></object></annotation>", "a number as bndbox/xmin"),
        ("<annotation><object/></annotation>", "an object without a name"),
        ("<annotation><size><width>nan</width></size></annotation>", "a number as size/width"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, text: str, said: str) -> None:
    (folder / "Annotations" / "a.xml").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        open_boxes(folder)
    assert "a.xml" in str(error.value)


def test_a_missing_image_is_named(folder: Path) -> None:
    (folder / "JPEGImages" / "c.png").unlink()
    with pytest.raises(ValueError, match="there is no image"):
        open_boxes(folder)


def test_the_size_comes_from_the_image_where_the_file_does_not_say(folder: Path) -> None:
    file = folder / "Annotations" / "c.xml"
    file.write_text(file.read_text().replace("<width>30</width>", "<width>0</width>"))
    assert open_boxes(folder).size(2) == (30, 50)


def test_a_folder_without_boxes_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="COCO's folder"):
        open_boxes(tmp_path)
