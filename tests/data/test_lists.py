from pathlib import Path

import pytest

from tests.data.small_files import lines, names, picture
from ziggurat.data.images import open_data, open_images


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for i in range(4):
        picture(tmp_path / "img" / f"a photo {i}.png", i)
    return tmp_path


def test_a_csv_gives_path_label_and_split(pictures: Path) -> None:
    file = lines(
        pictures / "list.csv",
        "\ufeffLabel,path,split",
        "dog,img/a photo 0.png,train",
        f'cat,"{pictures}/img/a photo 1.png",train',
        "dog,img/a photo 2.png,val",
    )
    data = open_data(file)
    assert data.classes == ("cat", "dog")
    assert [data.train.label(0), data.train.label(1), data.test.label(0)] == [1, 0, 1]
    assert data.train.image(1).getpixel((0, 0)) == (1, 1, 1)
    assert data.test.image(0).getpixel((0, 0)) == (2, 2, 2)
    assert data.name == "list"


def test_paths_may_be_called_files_and_rows_without_a_split_are_passed_over(pictures: Path) -> None:
    rows = [f"img/a photo {i}.png,{i % 2},{split}" for i, split in enumerate(["train", "", "val"])]
    data = open_data(lines(pictures / "a.csv", "file,label,split", *rows))
    assert names(data.train) == [str(pictures / "img" / "a photo 0.png")]
    assert len(data.test) == 1
    assert (data.train.ignored, data.test.ignored) == ({"in no split": 1}, {})


def test_a_txt_gives_path_and_label_and_is_split_by_hash(pictures: Path) -> None:
    rows = [f"img/a photo {i}.png {i % 2}" for i in range(4)]
    data = open_data(lines(pictures / "list.txt", *rows))
    assert data.classes == ("0", "1")
    assert (len(data.train), len(data.test)) == (2, 2)
    again = open_data(lines(pictures / "list.txt", *rows[::-1]))
    assert sorted(names(again.test)) == sorted(names(data.test))


def test_numbers_are_named_by_a_file_beside_the_list(pictures: Path) -> None:
    lines(pictures / "classes.txt", "cat", "dog", "cow")
    rows = ["img/a photo 0.png,1", "img/a photo 1.png,1"]
    data = open_data(lines(pictures / "a.csv", "path,label", *rows))
    assert data.classes == ("cat", "dog", "cow")
    assert data.train.label(0) == 1


def test_words_that_only_look_like_numbers_are_names(pictures: Path) -> None:
    rows = [f"img/a photo {i}.png,{label}" for i, label in enumerate(["007", "13", "007"])]
    assert open_data(lines(pictures / "a.csv", "path,label", *rows)).classes == ("007", "13")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ["file,class", "a,b"],
            "names its columns: path, label and perhaps split; got file, class",
        ),
        (["path,label", "a.png,"], r"a\.csv line 2 has no label"),
        (["path,label,split", "a.png,1,trian"], "line 2 has split 'trian': it must be train, val"),
        (["path,label"], "lists no images"),
        (["path,label", "a.png,-1"], "has label -1, but there are 0 classes"),
        (["path,label", "a.png,123456789"], "has label 123456789: a label is the number"),
        (["path,label,split", "a.png,x,train", "b.png,y,test"], "class 'y' in a: test images, but"),
    ],
)
def test_a_wrong_list_says_where(tmp_path: Path, text: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_data(lines(tmp_path / "a.csv", *text))


def test_a_label_beyond_the_named_classes_is_refused(pictures: Path) -> None:
    lines(pictures / "classes.txt", "cat", "dog")
    with pytest.raises(ValueError, match=r"a photo 0\.png has label 2, but there are 2 classes"):
        open_data(lines(pictures / "a.csv", "path,label", "img/a photo 0.png,2"))
    with pytest.raises(ValueError, match="has class 'cow', which its class names lack"):
        open_data(lines(pictures / "a.csv", "path,label", "img/a photo 0.png,cow"))


def test_a_line_without_label_says_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.txt line 2 must be `path label`, got 'b\.png'"):
        open_data(lines(tmp_path / "a.txt", "a.png 1", "b.png"))


# Without labels.


def test_a_txt_of_paths_needs_no_labels(pictures: Path) -> None:
    rows = [f"img/a photo {i}.png" for i in range(4)]
    data = open_images(lines(pictures / "list.txt", *rows, ""))
    found = names(data.train) + names(data.test)
    assert sorted(found) == [str(pictures / row) for row in rows]
    assert len(data.test) >= 1
    assert data.classes == ("image",)
    assert data.train.label(0) == 0
    assert data.train.image(0).size == (4, 4)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("img/a photo 0.png", "img/a photo 0.png"),
        ("img/a photo 0.png dog", "img/a photo 0.png"),
        ("img/a photo 0.png\t7", "img/a photo 0.png"),
        ("img/a photo 0.png masks/0.png", "img/a photo 0.png"),
        ("img/b.png c.png", "img/b.png c.png"),
        ("img/gone.png c.png", "img/gone.png c.png"),
        ("img/no extension", "img/no extension"),
        ("img/no extension 3", "img/no extension"),
        ("img/none 3", "img/none"),
        ("img/none", "img/none"),
    ],
)
def test_a_last_word_is_a_label_or_part_of_the_path(pictures: Path, line: str, path: str) -> None:
    picture(pictures / "img" / "b.png c.png")
    picture(pictures / "img" / "a.png").rename(pictures / "img" / "no extension")
    data = open_images(lines(pictures / "list.txt", line), seed=None)
    assert names(data.test) == [str(pictures / path)]


def test_a_very_long_line_is_no_file(tmp_path: Path) -> None:
    data = open_images(lines(tmp_path / "list.txt", "word " * 2000), seed=None)
    assert len(data.test) == 1


def test_labels_may_be_there_in_part_or_be_wrong(pictures: Path) -> None:
    rows = ["img/a photo 0.png,dog", "img/a photo 1.png,", "img/a photo 2.png,123456789"]
    data = open_images(lines(pictures / "a.csv", "path,label", *rows))
    assert data.classes == ("image",)
    assert {*data.train.labels, *data.test.labels} == {0}
    assert len(data.train) + len(data.test) == 3


def test_a_list_with_labels_is_split_as_for_a_classifier(tmp_path: Path) -> None:
    rows = [f"{i}.png {i % 12}" for i in range(120)]
    file = lines(tmp_path / "list.txt", *rows)
    assert names(open_images(file).test) == names(open_data(file).test)


def test_a_csv_without_labels_may_have_splits(pictures: Path) -> None:
    rows = [f"img/a photo {i}.png,{split}" for i, split in enumerate(["train", "val", "train"])]
    data = open_images(lines(pictures / "a.csv", "path,split", *rows))
    assert names(data.test) == [str(pictures / "img" / "a photo 1.png")]
    assert len(data.train) == 2
    alone = [f"{i}.png,train" for i in range(50)]
    assert 1 <= len(open_images(lines(pictures / "b.csv", "path,split", *alone)).test) <= 15


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.csv", ["name", "a.png"], "names its columns: path and perhaps split; got name"),
        ("a.csv", ["path,split", ",train"], "line 2 has no path"),
        ("a.csv", ["path,split", "a.png,trian"], "line 2 has split 'trian': it must be train"),
        ("a.csv", ["path"], r"a\.csv lists no images: give a path a line"),
        ("a.txt", ["", " "], r"a\.txt lists no images: give a path a line"),
        ("a.txt", ["a.png"], "a has no test images"),
    ],
)
def test_a_wrong_list_without_labels_says_where(
    tmp_path: Path, file: str, text: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        open_images(lines(tmp_path / file, *text))
    assert "\n" not in str(error.value)
