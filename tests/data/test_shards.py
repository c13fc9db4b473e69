import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.small_shards import greys, png, shard, tar
from ziggurat.data import shards
from ziggurat.data.images import BadImage, open_data, open_images
from ziggurat.data.shards import INDEX, Shards, expanded, split_of

# What is in them.


def test_a_folder_of_shards_is_two_splits_in_order(folder: Path) -> None:
    data = open_data(folder)
    assert data.classes == ("0", "1")
    assert data.name == "set"
    assert greys(data.train) == list(range(12))
    assert greys(data.test) == [12, 13, 14, 15]
    assert [data.train.label(i) for i in range(12)] == [0, 1] * 6
    assert data.train.name(5) == f"{folder / 'train-0001.tar'}: 0005.png"


@pytest.mark.parametrize(
    ("pattern", "train", "test"),
    [
        ("{train-{0000..0001},val-0000}.tar", 8, 4),
        ("*.tar", 12, 4),
        ("*-000[02].tar", 8, 4),
        ("{train,val}-0000.tar", 4, 4),
    ],
)
def test_a_pattern_names_shards(folder: Path, pattern: str, train: int, test: int) -> None:
    data = open_data(f"{folder}/{pattern}")
    assert (len(data.train), len(data.test)) == (train, test)


def test_braces_count_with_their_zeros() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert set(expanded("{a-{0..1},b}.tar")) == {"a-0.tar", "a-1.tar", "b.tar"}
    with pytest.raises(ValueError, match=r"\{5\} in a-\{5\}\.tar must be"):
        expanded("a-{5}.tar")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("x/train-01.tar", "train"),
        ("x/imagenet_val_01.tar", "val"),
        ("x/test/01.tar", "test"),
        ("test/train-01.tar", "train"),
        ("x/trainer-01.tar", None),
        ("my test set/01.tar", None),
        ("https://host/validation/0.tar", "validation"),
    ],
)
def test_a_shard_or_its_folder_names_the_split(name: str, split: str | None) -> None:
    assert split_of(name) == split


def test_shards_of_one_kind_are_split_by_hash(folder: Path) -> None:
    data = open_data(f"{folder}/train-*.tar")
    assert 2 <= len(data.test) < 6
    assert sorted(greys(data.train) + greys(data.test)) == list(range(12))
    assert greys(open_data(f"{folder}/train-*.tar").test) == greys(data.test)


def test_a_text_file_lists_shards(folder: Path) -> None:
    (folder / "shards.txt").write_text("train-{0001..0002}.tar\n\nval-0000.tar\n")
    for spec in (folder, folder / "shards.txt"):
        assert greys(open_data(spec).train) == list(range(4, 12))


def test_a_missing_shard_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no shard .*train-0003\.tar"):
        open_data(f"{folder}/train-{{0000..0003}}.tar")


def test_labels_may_be_json_or_names_and_folders_are_part_of_the_key(tmp_path: Path) -> None:
    label = json.dumps({"label": "dog", "caption": "x"}).encode()
    tar(tmp_path / "a.tar", {
        "a/1.jpg": png(1), "a/1.json": label,
        "b/1.json": b"{}", "b/1.png": png(2), "b/1.cls": b"cat\n",
        "c/1.cls": b"dog", "c/1.PNG": png(3), "d/1.json": label, "d/1.webp": png(4),
        "e/1.png": png(5), "f/1.cls": b"cat", "f/1.png": png(6), "f/1.txt": b"?",
    })  # fmt: skip
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    both = dict(zip(greys(data.train) + greys(data.test),
                    [*data.train.labels, *data.test.labels], strict=True))  # fmt: skip
    assert both == {1: 1, 2: 0, 3: 1, 4: 1, 6: 0}
    assert data.train.ignored == {".txt": 1, "images without a label": 1}


@pytest.mark.parametrize(
    ("file", "text"),
    [("classes.txt", "cat\ndog\n"), ("classes.json", '["cat", "dog"]'),
     ("classes.json", '{"dog": 1, "cat": 0}')],
)  # fmt: skip
def test_class_names_lie_beside_the_shards(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    assert open_data(folder).classes == ("cat", "dog")
    assert open_data(f"{folder}/*.tar").classes == ("cat", "dog")


def test_class_names_of_another_shape_are_refused(folder: Path) -> None:
    (folder / "classes.json").write_text('{"cat": 7}')
    with pytest.raises(ValueError, match=r"classes\.json must be a list of class names"):
        open_data(folder)


def test_a_damaged_shard_is_named(folder: Path) -> None:
    path = folder / "train-0001.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"train-0001\.tar is damaged or is no plain tar file"):
        open_data(folder)


def test_a_bad_image_in_a_shard_is_named(tmp_path: Path) -> None:
    tar(tmp_path / "train.tar", {"1.jpg": b"text", "1.cls": b"0"})
    shard(tmp_path / "val.tar", 0, count=1)
    data = open_data(tmp_path)
    with pytest.raises(BadImage, match=r"train\.tar: 1\.jpg: not an image of a kind"):
        data.train.image(0)


def test_a_shard_that_shrank_or_went_gives_bad_images(folder: Path) -> None:
    train = open_data(folder).train
    path = folder / "train-0002.tar"
    path.write_bytes(path.read_bytes()[:550])
    with pytest.raises(BadImage, match=r"0008\.png: the shard ends after \d+ of its"):
        train.image(8)
    path.unlink()
    with pytest.raises(BadImage, match=r"0008\.png: No such file"):
        train.image(8)


# Without labels.


def test_samples_without_a_label_are_images(tmp_path: Path) -> None:
    for first, name in ((0, "train-0.tar"), (20, "train-1.tar")):
        members = {f"{i}.png": png(i) for i in range(first, first + 20)}
        tar(tmp_path / name, members | {f"{first}.txt": b"a caption"})
    data = open_images(tmp_path)
    assert sorted(greys(data.train) + greys(data.test)) == list(range(40))
    assert 1 <= len(data.test) <= 12
    assert data.classes == ("image",)
    assert {*data.train.labels, *data.test.labels} == {0}
    assert data.train.ignored == {".txt": 2}
    tar(tmp_path / "val.tar", {"40.png": png(40)})
    assert greys(open_images(tmp_path).test) == [40]
    with pytest.raises(ValueError, match="has no training images"):
        open_data(tmp_path)


def test_one_index_serves_with_and_without_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar(tmp_path / "a.tar", {
        "1.png": png(1), "1.cls": b"cat", "2.png": png(2), "2.jpg": png(9), "3.png": png(3),
        "3.json": b'{"label": "cat"}', "3.jpg": png(9), "4.png": png(4), "4.json": b"{}",
    })  # fmt: skip
    for kept in (False, True):
        if kept:
            monkeypatch.setattr(shards, "read_tar", None)
        images, data = open_images(tmp_path), open_data(tmp_path)
        assert sorted(greys(images.train) + greys(images.test)) == [1, 2, 3, 4]
        assert images.train.ignored == {"more images of one sample": 2}
        assert sorted(greys(data.train) + greys(data.test)) == [1, 3]
        assert data.train.ignored == {"more images of one sample": 1, "images without a label": 2}
        assert data.classes == ("cat",)


def test_labelled_shards_are_split_as_for_a_classifier(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", 0, count=120, classes=12)
    assert greys(open_images(tmp_path).test) == greys(open_data(tmp_path).test)


def test_shards_without_images_are_refused(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"1.txt": b"x", "1.cls": b"0"})
    with pytest.raises(ValueError, match=r"a\.tar has no images, only \.txt \(1\): take one of"):
        open_images(tmp_path / "a.tar")


# The index.


def test_a_shard_is_indexed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_data(folder)
    assert len(list(folder.glob(f"*{INDEX}"))) == 4
    monkeypatch.setattr(shards, "read_tar", None)
    again = open_data(folder)
    assert greys(again.train) == greys(before.train)
    assert [again.train.name(i) for i in range(12)] == [before.train.name(i) for i in range(12)]


def test_a_changed_shard_is_indexed_anew(folder: Path) -> None:
    open_data(folder)
    shard(folder / "train-0001.tar", 40, count=2)
    assert greys(open_data(folder).train) == [0, 1, 2, 3, 40, 41, 8, 9, 10, 11]
    path = folder / "train-0001.tar"
    size = path.stat().st_size
    shard(path, 50, count=2)
    os.utime(path, ns=(0, time.time_ns() + 10**9))
    assert path.stat().st_size == size
    assert greys(open_data(folder).train)[4:6] == [50, 51]


def test_a_damaged_index_is_made_again(folder: Path) -> None:
    open_data(folder)
    (folder / f"train-0001.tar{INDEX}").write_bytes(b"PK damaged")
    assert greys(open_data(folder).train) == list(range(12))


def test_an_index_goes_to_the_cache_where_the_folder_is_not_ours(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shards.save_index

    def save(path: Path, *rest: Any) -> None:
        if path.parent == folder:
            raise PermissionError(13, "Permission denied")
        kept(path, *rest)

    monkeypatch.setattr(shards, "save_index", save)
    open_data(folder)
    assert not list(folder.glob(f"*{INDEX}"))
    assert len(list((cache / "index").iterdir())) == 4
    monkeypatch.setattr(shards, "read_tar", None)
    assert greys(open_data(folder).train) == list(range(12))


# The order.


def many(count: int, each: int) -> Shards:
    total = count * each
    return Shards(
        [f"{i}.tar" for i in range(count)],
        np.repeat(np.arange(count), each),
        np.zeros(total, np.int64),
        np.zeros(total, np.int64),
        [""] * total,
        np.zeros(total, np.int64),
        ("a",),
    )


def test_an_epoch_reads_few_shards_at_a_time() -> None:
    images = many(20, 50)
    order = images.order(torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(1000))
    turns = torch.from_numpy(images.shard)[order].view(5, 200)
    groups = [set(turn.tolist()) for turn in turns]
    assert [len(group) for group in groups] == [shards.GROUP] * 5
    assert set.union(*groups) == set(range(20))
    assert all(len(set(turn[:20].tolist())) > 1 for turn in turns)  # mixed, not one by one


def test_each_epoch_has_another_order() -> None:
    images = many(20, 5)
    first, again, other = (images.order(torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert many(0, 5).order(torch.Generator()).tolist() == []


def test_shards_survive_pickling(folder: Path) -> None:
    train = open_data(folder).train
    assert greys(pickle.loads(pickle.dumps(train))) == greys(train)
