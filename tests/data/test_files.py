import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.small_files import names, picture, tree
from ziggurat.data.files import Texts, held_out
from ziggurat.data.images import BadImage, open_data, open_images

# Folders.


@pytest.mark.parametrize("other", ["val", "validation", "test"])
def test_two_folders_of_class_folders_are_the_two_splits(tmp_path: Path, other: str) -> None:
    tree(tmp_path / "train", {"dog": 2, "cat": 3})
    tree(tmp_path / other, {"dog": 1, "cat": 1})
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.name == tmp_path.name
    assert (len(data.train), len(data.test)) == (5, 2)
    assert [data.train.label(i) for i in range(5)] == [0, 0, 0, 1, 1]
    assert data.train.name(4) == str(tmp_path / "train" / "dog" / "001.png")
    assert data.train.image(2).getpixel((0, 0)) == (2, 2, 2)
    assert (data.mean, data.std, data.size) == (None, None, None)


def test_splits_with_different_classes_are_refused_by_name(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"dog": 1, "cat": 1, "cow": 1})
    tree(tmp_path / "val", {"dog": 1, "cat": 1, "catt": 1})
    with pytest.raises(
        ValueError, match=r"class 'cow' only in train/ and class 'catt' only in val/"
    ):
        open_data(tmp_path)


def test_train_without_a_second_split_says_what_to_do(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"dog": 1, "cat": 1})
    with pytest.raises(ValueError, match=r"has train/ but no val/.*give .*train to have a tenth"):
        open_data(tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    assert open_data(tree(tmp_path, {"train": 2, "bus": 2})).classes == ("bus", "train")


def test_images_without_class_folders_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(ValueError, match="holds no folders: put the images of each class"):
        open_data(tmp_path)


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    with pytest.raises(ValueError, match="has no training images"):
        open_data(tmp_path)


def test_a_test_class_that_is_never_trained_is_refused(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"dog": 2})
    (tmp_path / "train" / "cat").mkdir()
    tree(tmp_path / "val", {"dog": 1, "cat": 1})
    with pytest.raises(ValueError, match=r"class 'cat' in .*: test images, but none"):
        open_data(tmp_path)


def test_files_are_found_at_any_depth_and_others_counted(tmp_path: Path) -> None:
    tree(tmp_path, {"dog": 4, "cat": 4})
    picture(tmp_path / "dog" / "deep" / "er" / "x.PNG")
    picture(tmp_path / "dog" / ".hidden.png")
    picture(tmp_path / ".git" / "x.png")
    (tmp_path / "dog" / "notes.txt").write_text("x")
    (tmp_path / "cat" / "noext").write_text("x")
    (tmp_path / "readme.md").write_text("x")
    data = open_data(tmp_path)
    assert len(data.train) + len(data.test) == 9
    assert any(name.endswith("deep/er/x.PNG") for name in names(data.train) + names(data.test))
    assert data.train.ignored == {
        "hidden": 2, ".txt": 1, "no extension": 1, "outside class folders": 1
    }  # fmt: skip
    assert data.test.ignored == {}


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    tree(tmp_path / "far", {"x": 3})
    tree(tmp_path / "data", {"dog": 2})
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "far" / "x")
    (tmp_path / "data" / "dog" / "loop").symlink_to(tmp_path / "data" / "dog")
    (tmp_path / "data" / "dog" / "one.png").symlink_to(tmp_path / "far" / "x" / "000.png")
    (tmp_path / "data" / "dog" / "broken.png").symlink_to(tmp_path / "gone.png")
    data = open_data(tmp_path / "data")
    assert len(data.train) + len(data.test) == 7
    (broken,) = (
        (images, i)
        for images in (data.train, data.test)
        for i in range(len(images))
        if "broken" in images.name(i)
    )
    with pytest.raises(BadImage, match=r"broken\.png: No such file"):
        broken[0].image(broken[1])


def test_a_tenth_is_held_out_of_every_class(tmp_path: Path) -> None:
    data = open_data(tree(tmp_path, {"dog": 200, "cat": 100, "cow": 2, "fox": 1}))
    counts = np.bincount(data.test.labels, minlength=4).tolist()
    assert 4 <= counts[0] <= 16
    assert counts[1] == 1
    assert 10 <= counts[2] <= 30
    assert counts[3] == 0
    assert not set(names(data.train)) & set(names(data.test))


def test_added_files_leave_the_others_where_they_are(tmp_path: Path) -> None:
    before = open_data(tree(tmp_path, {"dog": 60, "cat": 60}))
    for i in range(40):
        picture(tmp_path / "dog" / f"more-{i}.png")
    tree(tmp_path, {"cow": 20})
    after = open_data(tmp_path)
    assert set(names(before.train)) <= set(names(after.train))
    assert set(names(before.test)) <= set(names(after.test))


def test_the_split_depends_on_relative_paths_and_seed_alone(tmp_path: Path) -> None:
    tree(tmp_path / "a", {"dog": 50, "cat": 50})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    here, there = open_data(tmp_path / "a"), open_data(tmp_path / "b")
    relative = [os.path.relpath(name, tmp_path / "b") for name in names(there.test)]
    assert [os.path.relpath(name, tmp_path / "a") for name in names(here.test)] == relative
    other = open_data(tmp_path / "a", seed=1)
    assert names(other.test) != names(here.test)


def test_the_split_does_not_depend_on_the_order_of_the_keys() -> None:
    keys = [f"c/{i}" for i in range(300)]
    labels = np.arange(300) % 3
    mixed = np.random.default_rng(0).permutation(300)
    held = held_out(keys, labels, seed=0)
    again = held_out([keys[i] for i in mixed], labels[mixed], seed=0)
    assert np.array_equal(held[mixed], again)


# Folders without classes.


def test_images_at_any_depth_are_of_one_class(tmp_path: Path) -> None:
    tree(tmp_path, {".": 20, "dog": 10, "a/b/c": 10})
    picture(tmp_path / "a" / "b" / ".hidden.png")
    (tmp_path / "readme.md").write_text("x")
    (tmp_path / "dog" / "clip.mp4").write_text("x")
    data = open_images(tmp_path)
    found = names(data.train) + names(data.test)
    assert sorted(found) == sorted(str(path) for path in tmp_path.rglob("[0-9]*.png"))
    assert data.classes == data.train.classes == ("image",)
    assert {*data.train.labels, *data.test.labels} == {0}
    assert 1 <= len(data.test) <= 10
    assert data.train.ignored == {"hidden": 1, ".md": 1, ".mp4": 1}
    assert data.test.ignored == {}
    assert names(open_images(tmp_path).test) == names(data.test)
    assert names(open_images(tmp_path, seed=1).test) != names(data.test)


@pytest.mark.parametrize("other", ["val", "validation", "test"])
def test_two_folders_without_classes_are_the_two_splits(tmp_path: Path, other: str) -> None:
    tree(tmp_path / "train", {".": 2, "dog": 3, "a/b": 1})
    tree(tmp_path / other, {".": 1, "cat": 2})
    data = open_images(tmp_path)
    assert (len(data.train), len(data.test)) == (6, 3)
    assert {*data.train.labels, *data.test.labels} == {0}
    assert data.test.name(0) == str(tmp_path / other / "000.png")


def test_train_alone_is_split_as_if_it_were_given(tmp_path: Path) -> None:
    tree(tmp_path / "set" / "train", {".": 30, "dog": 30})
    data = open_images(tmp_path / "set")
    assert data.name == "set"
    assert names(data.test) == names(open_images(tmp_path / "set" / "train").test)
    assert len(data.train) + len(data.test) == 60
    assert 1 <= len(data.test) <= 15


def test_a_link_from_train_to_its_own_folder_ends(tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(tmp_path)
    tree(tmp_path, {".": 20})
    data = open_images(tmp_path)
    assert len(data.train) + len(data.test) == 20


def test_what_a_classifier_is_tested_on_is_held_out_without_labels_too(tmp_path: Path) -> None:
    tree(tmp_path, {f"class {i}": 10 for i in range(12)})
    picture(tmp_path / "cover.png")
    assert names(open_images(tmp_path).test) == names(open_data(tmp_path).test)


@pytest.mark.parametrize("each", [1, 2])
def test_folders_too_small_to_be_classes_do_not_split(tmp_path: Path, each: int) -> None:
    tree(tmp_path, {f"photo {i}": each for i in range(100)})
    assert 2 * each <= len(open_images(tmp_path).test) <= 22 * each


def test_without_a_seed_all_images_are_for_testing(tmp_path: Path) -> None:
    data = open_images(tree(tmp_path, {".": 3, "dog": 1}), seed=None)
    assert (len(data.train), len(data.test)) == (0, 4)


def test_a_folder_without_images_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no images: take one of .* a folder of images, a"):
        open_images(tmp_path)
    for i in range(3):
        (tmp_path / f"{i}.mp4").write_text("x")
    with pytest.raises(ValueError, match=r"has no images, only \.mp4 \(3\): take one of"):
        open_images(tmp_path)
    (tmp_path / "val").mkdir()
    tree(tmp_path, {"train": 2})
    with pytest.raises(ValueError, match="has no test images"):
        open_images(tmp_path)


# Names.


def test_texts_keep_any_file_name() -> None:
    given = ["", "a", "ß/ü", os.fsdecode(b"bad-\xff"), "日本"]
    texts = pickle.loads(pickle.dumps(Texts(given)))
    assert list(texts) == given
    assert len(texts) == 5
