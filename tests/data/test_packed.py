import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.small_files import names
from ziggurat.data.images import Arrays, open_data, open_images
from ziggurat.data.packed import save_npz


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

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        save_npz(file, **arrays(10))
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


# Without labels.


def test_images_without_labels_keep_their_splits(tmp_path: Path) -> None:
    made = arrays(40)
    np.savez(tmp_path / "a.npz", train_images=made["train_images"], test_images=made["test_images"])
    data = open_images(tmp_path / "a.npz")
    assert (len(data.train), len(data.test)) == (40, 6)
    assert (data.classes, data.size, data.name) == (("image",), 32, "a")
    assert {*data.train.labels, *data.test.labels} == {0}
    assert np.array_equal(data.test.image(5), made["test_images"][5])


def test_without_test_images_a_tenth_is_held_out_and_stays_mapped(tmp_path: Path) -> None:
    images = arrays()["train_images"]
    np.savez(tmp_path / "a.npz", train_images=images)
    data = open_images(tmp_path / "a.npz")
    assert 20 <= len(data.test) <= 60
    assert sorted(names(data.train) + names(data.test)) == sorted(
        f"a train {i}" for i in range(400)
    )
    for part in (data.train, pickle.loads(pickle.dumps(data.test))):
        assert isinstance(part, Arrays)
        assert isinstance(part.pixels, np.memmap)
        row = int(part.name(3).split()[-1])
        assert np.array_equal(part.image(3), images[row])
    assert len(pickle.dumps(data.test)) < 10_000
    assert data.size == 32
    assert names(open_images(tmp_path / "a.npz", seed=1).test) != names(data.test)
    assert len(open_images(tmp_path / "a.npz", seed=None).test) == 400


def test_labels_that_are_not_used_may_be_wrong(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays(test_labels=np.full(6, -1), train_labels=np.zeros(3)))
    data = open_images(tmp_path / "a.npz")
    assert {*data.train.labels, *data.test.labels} == {0}
    assert (len(data.train), len(data.test)) == (400, 6)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"images": np.zeros(1)}, "needs train_images and perhaps test_images, got images"),
        ({"train_images": np.zeros((9, 4, 4))}, r"train_images must be bytes .* got float64 \(9,"),
        ({"train_images": np.zeros((0, 4, 4), np.uint8)}, r"a\.npz has no images: take one of"),
    ],
)
def test_arrays_without_images_are_refused(
    tmp_path: Path, made: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **made)
    with pytest.raises(ValueError, match=message):
        open_images(tmp_path / "a.npz")
