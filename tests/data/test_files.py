import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ziggurat.data import files
from ziggurat.data.files import Texts, held_out, save_npz
from ziggurat.data.images import Arrays, BadImage, Images, open_data


def picture(path: Path, grey: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(path)
    return path


def tree(root: Path, counts: dict[str, int]) -> Path:
    """Class folders with so many images each."""
    for name, count in counts.items():
        for i in range(count):
            picture(root / name / f"{i:03}.png", i)
    return root


def names(images: Images) -> list[str]:
    return [images.name(i) for i in range(len(images))]


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


# Lists.


def lines(path: Path, *text: str) -> Path:
    path.write_text("\n".join(text) + "\n")
    return path


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


# Packed arrays.


def arrays(count: int = 400, **changed: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        "train_images": random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        "train_labels": np.arange(count) % 3,
        "test_images": random.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8),
        "test_labels": np.arange(6) % 3,
    }
    return made | changed


def test_a_packed_set_comes_back(tmp_path: Path) -> None:
    made = arrays()
    data = open_data(save_npz(tmp_path / "small.npz", **made, classes=["a", "b", "ß"]))
    assert data.classes == ("a", "b", "ß")
    assert (data.size, data.name) == (32, "small")
    for split, images in (("train", data.train), ("test", data.test)):
        assert np.array_equal(images.image(5), made[f"{split}_images"][5])
        assert images.labels.tolist() == made[f"{split}_labels"].tolist()
    assert data.test.name(5) == "small test 5"
    assert os.listdir(tmp_path) == ["small.npz"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpys_own_files_and_grey_images_are_read(tmp_path: Path, save: Any) -> None:
    grey = np.arange(6 * 20, dtype=np.uint8).reshape(6, 4, 5)
    labels = np.arange(6).reshape(6, 1) % 3
    save(tmp_path / "a.npz", **arrays(train_images=grey, train_labels=labels))
    data = open_data(tmp_path / "a.npz")
    assert data.train.image(1).mode == "RGB"
    assert np.array_equal(np.asarray(data.train.image(1))[..., 2], grey[1])
    assert data.size is None
    assert data.classes == ("0", "1", "2")


def test_a_packed_set_is_mapped_and_sent_to_workers_by_name(tmp_path: Path) -> None:
    train = open_data(save_npz(tmp_path / "a.npz", **arrays())).train
    assert isinstance(train, Arrays)
    assert isinstance(train.pixels, np.memmap)
    sent = pickle.dumps(train)
    assert len(sent) < 10_000
    assert np.array_equal(pickle.loads(sent).image(399), train.image(399))


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(train_labels=np.array([print] * 400, dtype=object)))
    with pytest.raises(ValueError, match="train_labels holds pickled objects, which run code"):
        open_data(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_images": np.zeros((400, 4, 4, 3))}, r"must be bytes .* got float64 \(400,"),
        ({"train_images": np.zeros((400, 3, 4, 4), np.uint8)}, r"got uint8 \(400, 3, 4, 4\)"),
        ({"test_labels": np.zeros(5, int)}, r"must be 6 whole numbers, got int64 \(5,\)"),
        ({"test_labels": np.zeros(6)}, "test_labels must be 6 whole numbers, got float64"),
        ({"test_labels": np.full(6, -1)}, "a test 0 has label -1, but there are 3 classes, 0 to 2"),
        ({"test_labels": np.full(6, 2**40)}, "has label 1099511627776"),
        ({"classes": np.array(["a", "b"])}, r"train 2 has label 2, but there are 2 classes"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(**changed))
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "a.npz")


def test_a_missing_array_or_a_cut_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_images=np.zeros(1))
    with pytest.raises(ValueError, match="has no train_labels, test_images, test_labels"):
        open_data(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"b\.npz is damaged"):
        open_data(tmp_path / "b.npz")


def test_a_set_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_npz(tmp_path / "a.npz", **arrays())
    before = file.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(files.np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        save_npz(file, **arrays(10))
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


def test_texts_keep_any_file_name() -> None:
    given = ["", "a", "ß/ü", os.fsdecode(b"bad-\xff"), "日本"]
    texts = pickle.loads(pickle.dumps(Texts(given)))
    assert list(texts) == given
    assert len(texts) == 5
