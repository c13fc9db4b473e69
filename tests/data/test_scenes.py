import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ziggurat.data.images import BadImage
from ziggurat.data.scenes import VOC, VOID, Scenes, open_scenes

SHARED = Path(__file__).parents[3] / "shared" / "data" / "camvid_small"
MAP = np.array([[0, 1, 2], [VOID, 2, 2]], np.uint8)


def picture(path: Path, grey: int = 0, size: tuple[int, int] = (3, 2)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path)
    return path


def labels(path: Path, ids: np.ndarray = MAP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(ids).save(path)
    return path


def pairs(images: Path, maps: Path, *names: str, ids: np.ndarray = MAP) -> None:
    for i, name in enumerate(names):
        picture(images / f"{name}.png", i)
        labels(maps / f"{name}.png", ids)


def plain(
    root: Path, other: str = "val", maps: str = "masks", classes: str = "sky sea mud"
) -> Path:
    """Three images to train on, two to test."""
    pairs(root / "train" / "images", root / "train" / maps, "c", "a", "b")
    pairs(root / other / "images", root / other / maps, "d", "e")
    if classes:
        (root / "classes.txt").write_text("\n".join(classes.split()))
    return root


def only(root: Path, ids: np.ndarray | None = None) -> Scenes:
    """A set of one image and its map."""
    pairs(root / "images", root / "masks", "a", ids=MAP if ids is None else ids)
    (root / "classes.txt").write_text("sky\nsea\nmud\n")
    return open_scenes(root, seed=None).test


# Layouts.


@pytest.mark.parametrize("maps", ["masks", "labels", "annotations"])
@pytest.mark.parametrize("other", ["val", "validation", "test"])
def test_two_folders_of_images_and_maps_are_the_two_splits(
    tmp_path: Path, other: str, maps: str
) -> None:
    data = open_scenes(plain(tmp_path / "set", other, maps))
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.classes == data.train.classes == ("sky", "sea", "mud")
    assert (data.mean, data.std, data.name) == (None, None, "set")
    assert data.train.name(0) == str(tmp_path / "set" / "train" / "images" / "a.png")
    assert data.train.image(0).getpixel((0, 0)) == (1, 1, 1)
    found = data.train.labels(0)
    assert found.dtype == np.uint8
    assert np.array_equal(found, MAP)


@pytest.mark.parametrize("maps", ["masks", "labels", "annotations"])
def test_splits_may_be_below_images_and_maps(tmp_path: Path, maps: str) -> None:
    for split, names in (("train", "abc"), ("val", "de")):
        pairs(tmp_path / "images" / split, tmp_path / maps / split, *names)
    data = open_scenes(tmp_path)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.classes == ("0", "1", "2")
    assert data.test.map_name(0) == str(tmp_path / maps / "val" / "d.png")


def test_names_pair_images_and_maps_at_any_depth(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "deep" / "x.y.jpg")
    labels(tmp_path / "masks" / "deep" / "x.y.png")
    (tmp_path / "images" / "notes.txt").write_text("x")
    test = open_scenes(tmp_path, seed=None).test
    assert test.name(0) == str(tmp_path / "images" / "deep" / "x.y.jpg")
    assert np.array_equal(test.labels(0), MAP)


def test_without_splits_a_tenth_is_held_out(tmp_path: Path) -> None:
    pairs(tmp_path / "images", tmp_path / "masks", *(f"{i:03}" for i in range(200)))
    data = open_scenes(tmp_path)
    assert 10 <= len(data.test) <= 30
    assert len(data.train) + len(data.test) == 200
    names = [{*images.paths} for images in (data.train, data.test)]
    assert not names[0] & names[1]
    assert {*open_scenes(tmp_path, seed=1).test.paths} != names[1]
    whole = open_scenes(tmp_path, seed=None)
    assert (len(whole.train), len(whole.test)) == (0, 200)


def ade(root: Path, ids: np.ndarray) -> Path:
    for split, names in (("training", "ab"), ("validation", "c")):
        pairs(root / "images" / split, root / "annotations" / split, *names, ids=ids)
    return root


def test_ade20k_counts_from_one(tmp_path: Path) -> None:
    data = open_scenes(ade(tmp_path, np.array([[0, 1, 2], [150, VOID, 3]], np.uint8)))
    assert (len(data.train), len(data.test)) == (2, 1)
    assert (len(data.classes), data.classes[0], data.classes[149]) == (150, "1", "150")
    assert data.test.labels(0).tolist() == [[VOID, 0, 1], [149, VOID, 2]]
    ade(tmp_path, np.full((2, 3), 151, np.uint8))
    with pytest.raises(BadImage, match=r"c\.png: id 151, but there are 150 classes, 1 to 150, and"):
        data.test.labels(0)


def test_ade20ks_names_are_those_of_its_table(tmp_path: Path) -> None:
    (ade(tmp_path, np.ones((2, 3), np.uint8)) / "objectInfo150.txt").write_text(
        "Idx\tRatio\tTrain\tVal\tName\n1\t0.15\t11664\t1172\twall\n2\t0.1\t6046\t612\tbuilding \n"
    )
    assert open_scenes(tmp_path).classes == ("wall", "building")


def voc(root: Path) -> Path:
    """Palettes, and one image on no list."""
    for name in ("2007_1", "2007_2", "2007_3"):
        picture(root / "JPEGImages" / f"{name}.jpg")
        indices = Image.fromarray(np.array([[0, 20, 1], [VOID, 2, 2]], np.uint8), "P")
        indices.putpalette(bytes(range(256)) * 3)
        (root / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        indices.save(root / "SegmentationClass" / f"{name}.png")
    picture(root / "JPEGImages" / "other.jpg")
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True, exist_ok=True)
    (lists / "train.txt").write_text("2007_3\n2007_1\n")
    (lists / "val.txt").write_text("2007_2\n")
    return root


def test_pascal_voc_is_read_by_its_lists_and_palettes_as_indices(tmp_path: Path) -> None:
    data = open_scenes(voc(tmp_path))
    assert data.classes == VOC
    assert len(VOC) == 21
    assert (len(data.train), len(data.test)) == (2, 1)
    assert data.train.name(0).endswith("JPEGImages/2007_3.jpg")
    assert data.test.labels(0).tolist() == [[0, 20, 1], [VOID, 2, 2]]


def test_a_list_of_voc_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    voc(tmp_path)
    file = tmp_path / "ImageSets" / "Segmentation" / "val.txt"
    file.write_text("2007_2\ngone\nlost\n")
    with pytest.raises(ValueError, match=r"val\.txt lists gone, which .*JPEGImages lacks \(2 such"):
        open_scenes(tmp_path)
    file.write_text("other\n")
    with pytest.raises(ValueError, match=r"lists other, which .*SegmentationClass lacks"):
        open_scenes(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=r"no ImageSets/Segmentation/val\.txt, which lists images"):
        open_scenes(tmp_path)


# Classes.


def test_without_names_classes_are_counted_by_their_ids(tmp_path: Path) -> None:
    plain(tmp_path, classes="")
    labels(tmp_path / "val" / "masks" / "e.png", np.full((2, 3), 7, np.uint8))
    assert open_scenes(tmp_path).classes == tuple("01234567")


def test_a_map_that_cannot_be_read_does_not_keep_classes_from_being_counted(
    tmp_path: Path,
) -> None:
    plain(tmp_path, classes="")
    (tmp_path / "train" / "masks" / "a.png").write_text("x")
    data = open_scenes(tmp_path)
    assert data.classes == ("0", "1", "2")
    with pytest.raises(BadImage, match=r"masks/a\.png: not an image"):
        data.train.labels(0)
    for file in tmp_path.glob("*/masks/*"):
        file.write_text("x")
    with pytest.raises(ValueError, match=r"a\.png: not an image"):
        open_scenes(tmp_path)


def test_classes_that_are_too_many_or_too_few_are_refused(tmp_path: Path) -> None:
    plain(tmp_path, classes="")
    wide = labels(tmp_path / "train" / "masks" / "a.png", np.full((2, 3), 300, np.uint16))
    with pytest.raises(ValueError, match=r"a\.png: id 300, but without a classes\.txt ids count"):
        open_scenes(tmp_path)
    labels(wide)
    (tmp_path / "classes.txt").write_text("\n".join(map(str, range(255))))
    with pytest.raises(ValueError, match="has 255 classes: 2 to 254"):
        open_scenes(tmp_path)
    (tmp_path / "classes.txt").write_text("one")
    with pytest.raises(ValueError, match="has 1 classes: 2 to 254"):
        open_scenes(tmp_path)


def test_black_and_white_maps_say_which_ids_to_take(tmp_path: Path) -> None:
    for name in "ab":
        picture(tmp_path / "images" / f"{name}.png")
        labels(tmp_path / "masks" / f"{name}.png", np.array([[0, 0, 0], [255] * 3], np.uint8))
    with pytest.raises(ValueError, match="no id but 0 and 255, which is no class: take the ids 0"):
        open_scenes(tmp_path)


# Maps.


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_maps_may_have_more_bits_if_their_ids_fit(tmp_path: Path, kind: type[np.number]) -> None:
    found = only(tmp_path, MAP.astype(kind)).labels(0)
    assert found.dtype == np.uint8
    assert np.array_equal(found, MAP)


def test_a_map_of_one_bit_has_two_classes(tmp_path: Path) -> None:
    found = only(tmp_path, np.array([[True, False, True]] * 2)).labels(0)
    assert found.tolist() == [[1, 0, 1]] * 2


@pytest.mark.parametrize(("kind", "id"), [(np.uint8, 3), (np.uint16, 256), (np.int32, -1)])
def test_an_id_that_is_no_class_is_bad(tmp_path: Path, kind: type[np.number], id: int) -> None:
    ids = MAP.astype(kind)
    ids[1, 1] = id
    said = rf"masks/a\.tif: id {id}, but there are 3 classes, 0 to 2, and 255 for none"
    only(tmp_path)
    file = labels(tmp_path / "masks" / "a.tif", ids)
    (tmp_path / "masks" / "a.png").unlink()
    images = open_scenes(tmp_path, seed=None).test
    assert images.map_name(0) == str(file)
    with pytest.raises(BadImage, match=said):
        images.labels(0)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_a_map_of_colours_is_bad(tmp_path: Path, mode: str) -> None:
    images = only(tmp_path)
    Image.new(mode, (3, 2)).save(tmp_path / "masks" / "a.png")
    with pytest.raises(BadImage, match=f"mode {mode}, but label maps hold ids, not colours: take"):
        images.labels(0)


def test_a_map_that_is_a_jpeg_is_bad(tmp_path: Path) -> None:
    images = only(tmp_path)
    Image.new("L", (3, 2)).save(tmp_path / "masks" / "a.png", "JPEG")
    with pytest.raises(BadImage, match="a JPEG, which changes the ids of a label map: take PNG"):
        images.labels(0)


def test_a_map_of_another_size_than_its_image_is_bad(tmp_path: Path) -> None:
    images = only(tmp_path)
    labels(tmp_path / "masks" / "a.png", MAP.T)
    for read in (images.labels, images.image):
        with pytest.raises(BadImage, match=r"images/a\.png: 3 x 2, annotated as 2 x 3$"):
            read(0)


def test_a_map_or_an_image_that_cannot_be_read_is_bad(tmp_path: Path) -> None:
    images = only(tmp_path)
    file = tmp_path / "masks" / "a.png"
    whole = file.read_bytes()
    for contents, said in (
        (b"", "empty|not an image"),
        (b"<html>", "not an image"),
        (whole[:50], ""),
    ):
        file.write_bytes(contents)
        with pytest.raises(BadImage, match=rf"masks/a\.png: .*({said})"):
            images.labels(0)
    file.write_bytes(whole)
    picture(tmp_path / "images" / "a.png").write_text("x")
    for read in (images.labels, images.image):
        with pytest.raises(BadImage, match=r"images/a\.png: not an image"):
            read(0)


def test_a_huge_map_is_bad_before_it_fills_the_memory(tmp_path: Path) -> None:
    images = only(tmp_path)

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "masks" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + body)
    for read in (images.labels, images.image):
        with pytest.raises(BadImage, match=r"a\.png: .*more than 179 million pixels"):
            read(0)


@pytest.mark.parametrize("upright", [True, False])
def test_an_image_lying_on_its_side_is_as_its_map(tmp_path: Path, upright: bool) -> None:
    images = only(tmp_path)
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(stored).save(tmp_path / "images" / "a.png", exif=exif)
    expected = np.rot90(stored, -1) if upright else stored
    labels(tmp_path / "masks" / "a.png", np.zeros(expected.shape, np.uint8))
    assert images.labels(0).shape == expected.shape
    assert np.array_equal(np.asarray(images.image(0))[..., 0], expected)


def test_scenes_are_ordered_and_survive_pickling(tmp_path: Path) -> None:
    images = open_scenes(plain(tmp_path)).train
    order = images.order(torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == [0, 1, 2]
    assert torch.equal(order, images.order(torch.Generator().manual_seed(0)))
    again = pickle.loads(pickle.dumps(images))
    assert np.array_equal(again.labels(1), images.labels(1))


# What is refused.


def test_an_image_without_a_map_is_named_and_so_is_a_map_without_an_image(tmp_path: Path) -> None:
    plain(tmp_path)
    for name in "xy":
        picture(tmp_path / "train" / "images" / f"{name}.png")
    with pytest.raises(
        ValueError, match=r"train/images/x\.png has no label map in .*train/masks \(2 such of 5\)"
    ):
        open_scenes(tmp_path)
    for name in "xyz":
        labels(tmp_path / "train" / "masks" / f"{name}.png")
    with pytest.raises(
        ValueError, match=r"train/masks/z\.png has no image in .*train/images \(1 such of 6\)"
    ):
        open_scenes(tmp_path)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    picture(plain(tmp_path) / "train" / "images" / "a.jpg")
    with pytest.raises(ValueError, match=r"has both a\.jpg and a\.png: leave one of them there"):
        open_scenes(tmp_path)


def test_a_folder_that_is_none_says_what_it_must_have(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no folder .*gone: give one with train/ and val"
    ):
        open_scenes(tmp_path / "gone")
    with pytest.raises(ValueError, match="holds no label maps: it must have train/ and val/"):
        open_scenes(tmp_path)
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 1 1")
    with pytest.raises(ValueError, match=r"labels holds no image files, only \.txt \(1\)$"):
        open_scenes(tmp_path)
    labels(tmp_path / "labels" / "a.png")
    with pytest.raises(ValueError, match="has no images to"):
        open_scenes(tmp_path)


def test_ade20k_by_name_says_what_to_give() -> None:
    with pytest.raises(
        ValueError, match="give `--data DIR`, a folder with images/ and annotations"
    ):
        open_scenes("ade20k")


# CamVid.


@pytest.mark.shared
def test_a_part_of_camvid_is_read() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data/camvid_small")
    data = open_scenes(SHARED)
    assert (len(data.train), len(data.test), len(data.classes)) == (92, 34, 11)
    seen = set()
    for i in range(len(data.test)):
        found = data.test.labels(i)
        assert found.shape == (360, 480)
        assert data.test.image(i).size == (480, 360)
        seen |= {*np.unique(found).tolist()}
    assert seen == {*range(11), VOID}
