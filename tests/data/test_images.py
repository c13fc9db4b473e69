import io
import pickle
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps

from ziggurat.data.images import (
    NAMES,
    Arrays,
    BadImage,
    TooLarge,
    open_data,
    open_images,
    read_image,
)

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(file: bytes) -> np.ndarray:
    image = read_image(file, "x")
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def quarters() -> Image.Image:
    """Red, green / blue, white."""
    image = Image.new("RGB", (32, 32), RED)
    image.paste(GREEN, (16, 0, 32, 16))
    image.paste(BLUE, (0, 16, 16, 32))
    image.paste(WHITE, (16, 16, 32, 32))
    return image


def corners(file: bytes) -> list[tuple[int, ...]]:
    """Middle of each quarter, rounded to pure colours."""
    found = (pixels(file) > 127) * 255
    H, W, _ = found.shape
    return [tuple(found[y, x]) for y in (H // 4, 3 * H // 4) for x in (W // 4, 3 * W // 4)]


# What is unusual is read as it is meant.


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_every_usual_format_is_read(kind: str) -> None:
    assert corners(encoded(quarters(), kind)) == [RED, GREEN, BLUE, WHITE]


def test_a_path_bytes_and_an_open_file_give_the_same(tmp_path: Path) -> None:
    contents = encoded(quarters(), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(contents)
    with open(path, "rb") as file:
        found = [np.asarray(read_image(f, "a")) for f in (path, str(path), contents, file)]
        assert not file.closed
    assert all(np.array_equal(found[0], other) for other in found)


def test_a_cmyk_jpeg_keeps_its_colours() -> None:
    file = encoded(quarters().convert("CMYK"), "JPEG", quality=95)
    assert Image.open(io.BytesIO(file)).mode == "CMYK"
    assert corners(file) == [RED, GREEN, BLUE, WHITE]


def test_adobes_ycck_jpeg_keeps_its_colours() -> None:
    """Planes of the negative, black ink inverted, and the marker's last byte says so."""
    planes = [*ImageOps.invert(quarters()).convert("YCbCr").split(), Image.new("L", (32, 32), 255)]
    image = Image.merge("CMYK", [ImageOps.invert(plane) for plane in planes])  # as PIL will again
    file = bytearray(encoded(image, "JPEG", quality=95, subsampling=0))
    file[file.index(b"Adobe") + 11] = 2
    assert corners(bytes(file)) == [RED, GREEN, BLUE, WHITE]


def test_what_is_transparent_lies_on_white() -> None:
    half = Image.new("RGBA", (4, 4), (*RED, 0))
    half.paste((*RED, 255), (2, 0, 4, 4))
    half.putpixel((0, 0), (0, 0, 0, 128))
    found = pixels(encoded(half, "PNG"))
    assert (found[1:, :2] == WHITE).all()
    assert (found[:, 2:] == RED).all()
    assert (abs(found[0, 0] - 127) <= 1).all()


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_transparency_is_found_in_every_mode(mode: str) -> None:
    """An alpha channel, a see-through entry of a palette, a see-through colour."""
    grey = Image.new("L", (4, 4), 0)
    grey.paste(90, (2, 0, 4, 4))
    options: dict[str, Any] = {}
    if mode == "LA":
        image = Image.merge("LA", [grey, grey.point(lambda value: 255 * bool(value))])
    else:
        image = grey.convert(mode)
        options["transparency"] = image.getpixel((0, 0))
    found = pixels(encoded(image, "PNG", **options))
    assert (found[:, :2] == WHITE).all()
    assert (found[:, 2:] == 90).all()


def test_a_palettes_partly_transparent_entries_are_mixed_with_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *BLUE])
    image.putpixel((1, 0), 1)
    found = pixels(encoded(image, "PNG", transparency=bytes([255, 128])))
    assert tuple(found[0, 0]) == RED
    assert (abs(found[0, 1] - (127, 127, 255)) <= 1).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_not_clipped(kind: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    found = pixels(encoded(Image.fromarray(values), kind))
    assert found[0, :, 0].tolist() == [0, 1, 128, 255]
    assert (found == found[..., :1]).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 128.0, 255.0], [0, 128, 255]),
        ([0.0, 32896.0, 65535.0], [0, 128, 255]),
        ([-3.0, 0.0, 3.0], [0, 128, 255]),
        ([7e6, 7e6, 7e6], [0, 0, 0]),
    ],
)
def test_real_numbers_are_scaled_by_the_range_that_holds_them(
    values: list[float], expected: list[int]
) -> None:
    image = Image.fromarray(np.array([values], dtype=np.float32))
    assert pixels(encoded(image, "TIFF"))[0, :, 0].tolist() == expected


def test_whole_numbers_of_32_bits_are_stretched() -> None:
    image = Image.fromarray(np.array([[-100_000, 0, 100_000]], dtype=np.int32))
    assert pixels(encoded(image, "TIFF"))[0, :, 0].tolist() == [0, 128, 255]


def test_pixels_that_are_no_numbers_are_bad() -> None:
    image = Image.fromarray(np.array([[0, np.nan]], dtype=np.float32))
    with pytest.raises(BadImage, match="x: pixels that are not finite numbers"):
        read_image(encoded(image, "TIFF"), "x")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    file = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert getattr(Image.open(io.BytesIO(file)), "n_frames", 1) == 3
    assert corners(file) == [RED] * 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_turns_an_image_upright(kind: str, turn: int) -> None:
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = quarters().resize((32, 16))
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = image.transpose(back[turn]) if turn > 1 else image
    file = encoded(stored, kind, exif=exif)
    assert read_image(file, "x").size == (32, 16)
    assert corners(file) == [RED, GREEN, BLUE, WHITE]


def test_a_16_bit_image_is_turned_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(np.array([[0, 65535]], dtype=np.uint16))
    assert pixels(encoded(image, "PNG", exif=exif))[:, 0, 0].tolist() == [0, 255]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_spoil_the_image() -> None:
    file = encoded(quarters(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert corners(file) == [RED, GREEN, BLUE, WHITE]


# What cannot be read says so.


def test_a_truncated_jpeg_is_bad() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    file = encoded(Image.fromarray(noise), "JPEG")
    with pytest.raises(BadImage, match=r"^a/b\.jpg: .*truncated"):
        read_image(file[: len(file) // 2], "a/b.jpg")


@pytest.mark.filterwarnings("ignore:Truncated File Read")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_file_cut_anywhere_is_read_or_bad(kind: str) -> None:
    file = encoded(quarters(), kind)
    reasons = []
    for length in range(0, len(file), max(1, len(file) // 40)):
        try:
            read_image(file[:length], "cut")
        except BadImage as error:
            reasons.append(str(error))
    assert len(reasons) > 3
    assert all(reason.startswith("cut: ") and "\n" not in reason for reason in reasons)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "JPEG2000"])
def test_a_file_with_wrong_bytes_is_read_or_bad(kind: str) -> None:
    file = encoded(quarters(), kind)
    random = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(file)
        for at in random.integers(0, len(file), 5):
            damaged[at] = random.integers(0, 256)
        try:
            assert read_image(bytes(damaged), "x").mode == "RGB"
        except BadImage:
            continue


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>404 not found</html>", "not an image of a kind that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a kind"),
        (png(0, 5), "not an image|no pixels"),
        (png(5, 5), "truncated"),
    ],
    ids=["empty", "html", "eps", "zero", "hollow"],
)
def test_what_is_no_image_is_bad(tmp_path: Path, contents: bytes, reason: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(contents)
    with pytest.raises(BadImage, match=rf"a\.jpg: .*({reason})"):
        read_image(path, str(path))


def test_a_missing_file_is_bad(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"gone\.jpg: No such file or directory$"):
        read_image(tmp_path / "gone.jpg", "gone.jpg")


def test_a_huge_image_is_bad_before_it_fills_the_memory() -> None:
    with pytest.raises(BadImage, match="x: more than 179 million pixels"):
        read_image(png(60_000, 60_000), "x")


def test_a_smaller_limit_is_asked_of_the_header_alone() -> None:
    with pytest.raises(TooLarge, match=r"x: 50 x 41, more than 0\.002 million pixels"):
        read_image(png(50, 41), "x", most=2000)  # of its pixels there is none: it would be cut off
    assert read_image(encoded(Image.new("L", (50, 40)), "PNG"), "x", most=2000).size == (50, 40)


def test_a_limit_set_in_pil_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(BadImage, match="x: 60000 x 60000, more than 179 million"):
        read_image(png(60_000, 60_000), "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadImage, match=r"more than 179 million pixels|truncated"):
            read_image(png(10_000, 10_000), "x")
    assert Image.MAX_IMAGE_PIXELS is None
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


# What --data takes.


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no data is called 'cifra10': did you mean 'cifar10'\?"):
        open_data("cifra10")


def test_an_unknown_path_is_answered_with_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file or folder: take one of digits, .*\.npz"):
        open_data(tmp_path / "gone")
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(ValueError, match=r"a\.pdf is not data that can be read: take one of"):
        open_data(tmp_path / "a.pdf")


def test_what_holds_no_images_is_answered_with_what_does(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_text("x")
    for spec, said in (
        ("clip.mp4", "is not data that can be read"),
        ("gone", "there is no such file or folder"),
        ("gone.txt", "there is no such file or folder"),
        ("gone.tar", "there is no shard"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            open_images(tmp_path / spec)
        assert "\n" not in str(error.value)
        assert "the path of a folder of images, a list" in str(error.value) or "shard" in said
    with pytest.raises(ValueError, match=r"did you mean 'cifar10'\?"):
        open_images("cifra10")


def test_a_named_set_is_the_same_without_its_labels() -> None:
    data, images = open_data("digits"), open_images("digits")
    assert (images.mean, images.std, images.size) == (data.mean, data.std, 8)
    assert images.classes == images.train.classes == ("image",)
    assert {*images.train.labels, *images.test.labels} == {0}
    assert np.array_equal(images.test.image(17), data.test.image(17))
    assert len(data.classes) == 10


@pytest.mark.parametrize("name", [n for n in NAMES if n != "digits"])
def test_a_set_that_is_not_there_says_in_one_line_how_to_get_it(name: str) -> None:
    with pytest.raises(ValueError, match=rf"--data DIR|ziggurat data get {name}") as error:
        open_data(name)
    assert "\n" not in str(error.value)


def test_the_digits_split_is_fixed_and_stratified() -> None:
    data = open_data("digits")
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert data.classes == tuple("0123456789")
    assert data.size == 8
    for label in range(10):
        test, train = ((images.labels == label).sum() for images in (data.test, data.train))
        assert abs(test - (test + train) / 5) <= 0.5
    again = open_data("digits", seed=1)
    assert isinstance(data.test, Arrays)
    assert isinstance(again.test, Arrays)
    assert np.array_equal(data.test.pixels, again.test.pixels)


def test_the_digits_are_all_there_with_their_statistics() -> None:
    from sklearn.datasets import load_digits

    data = open_data("digits")
    image = data.test.image(17)
    assert (image.mode, image.size) == ("RGB", (8, 8))
    assert data.test.name(17) == "digits test 17"
    assert isinstance(data.train, Arrays)
    assert isinstance(data.test, Arrays)
    whole = np.concatenate([data.train.pixels, data.test.pixels])
    given = np.rint(load_digits().images * 255 / 16)
    assert sorted(row.tobytes() for row in whole) == sorted(
        row.tobytes() for row in given.astype(np.uint8)
    )
    assert data.mean is not None
    assert data.std is not None
    assert data.mean[0] == pytest.approx(data.train.pixels.mean() / 255, abs=1e-7)
    assert data.std[0] == pytest.approx(data.train.pixels.std() / 255, abs=1e-7)


def test_without_scikit_learn_the_digits_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'ziggurat\[demo\]'"):
        open_data("digits")


def test_an_order_is_a_permutation_that_follows_the_generator() -> None:
    images = open_data("digits").train
    first, second, other = (images.order(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort().values, torch.arange(len(images)))


def test_images_survive_pickling() -> None:
    images = open_data("digits").test
    again = pickle.loads(pickle.dumps(images))
    assert np.array_equal(again.image(3), images.image(3))
    assert again.label(3) == images.label(3)


def test_a_jpeg_that_goes_over_its_pixels_again_and_again_is_refused() -> None:
    """A scan of some bytes costs as much as one of all pixels."""
    file = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole.rindex(b"\xff\xda")
    assert read_image(whole, "a.jpg", 64 * 48).size == (64, 48)
    attack = whole[:-2] + whole[last:-2] * 20 + whole[-2:]
    assert read_image(attack, "a.jpg").size == (64, 48)  # there it does no harm
    with pytest.raises(TooLarge, match=r"a.jpg: 30 passes over 64 x 48 pixels"):
        read_image(attack, "a.jpg", 64 * 48)


def test_a_tiff_of_tiles_larger_than_itself_is_refused() -> None:
    tags = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 50_000, 324: 8}
    tags[325] = 8
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    file = struct.pack("<2sHI8xH", b"II", 42, 16, len(tags)) + entries + bytes(4)
    with pytest.raises(TooLarge, match=r"a.tif: tiles of more than 64 million pixels"):
        read_image(file, "a.tif", 64_000_000)
