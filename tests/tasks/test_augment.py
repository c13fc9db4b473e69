"""Images on their way to a model."""

import numpy as np
from PIL import Image

from ziggurat.data.images import Arrays
from ziggurat.data.loading import seed_all
from ziggurat.tasks.augment import ImageSettings, Reader, train_transform
from ziggurat.tasks.augment import test_transform as held_out_transform


def test_padding_and_cropping_shift_by_at_most_the_padding() -> None:
    settings = ImageSettings(
        crop="pad", crop_padding=2, flip=0.0, auto_augment="none", color_jitter=0.0
    )
    transform = train_transform(settings, (8, 8))
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[4, 4] = 255
    seen = set()
    for i in range(200):
        seed_all(i)
        where = np.argwhere(np.asarray(transform(Image.fromarray(pixels)))[0] == 255)
        seen.add(tuple(where[0]))
    assert seen == {(y, x) for y in range(2, 7) for x in range(2, 7)}


def test_strong_augmentation_takes_any_strength() -> None:
    transform = train_transform(ImageSettings(auto_augment="rand-m10-mstd0.5-inc1"), (16, 16))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20, 3), np.uint8))
    for i in range(300):  # among them timm's posterize with no bit left
        seed_all(i)
        assert np.asarray(transform(image)).shape == (3, 16, 16)


def test_a_photo_is_tested_in_its_centre() -> None:
    config = {"input_size": (3, 8, 8), "crop_pct": 0.5, "interpolation": "nearest"}
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[4:12, 12:20] = 200
    assert (np.asarray(held_out_transform(config)(Image.fromarray(pixels))) == 200).all()


def test_an_image_that_is_too_small_is_a_bad_one() -> None:
    images = Arrays(np.zeros((2, 1, 1, 3), np.uint8), np.zeros(2), ("dot",), "dots")
    found = Reader(images, np.asarray, replace=True, least=8)(0)
    assert found.pixels is None
    assert found.bad == ("dots 0: 1 x 1, smaller than 8", "dots 1: 1 x 1, smaller than 8")
