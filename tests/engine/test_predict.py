import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.small import small
from ziggurat.data.images import TooLarge
from ziggurat.engine.predict import Classifier


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(0)
    model = small("nest_tiny")
    torch.nn.init.normal_(model.get_classifier().weight, std=1.0)
    return Classifier(model)


def noise(seed: int, size: tuple[int, int] = (80, 60)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def test_an_image_is_the_same_alone_and_among_others(classifier: Classifier) -> None:
    """The call and its parts, which a service takes one by one."""
    images = [noise(seed) for seed in range(5)]
    together = list(classifier(images, top=3, batch=4))
    for image, answer in zip(images, together, strict=True):
        (row,) = classifier.probabilities([classifier.pixels(image, "it")])
        assert row.sum() == pytest.approx(1, abs=1e-5)
        alone = classifier.guesses(row, 3)
        assert [guess.name for guess in answer.top] == [guess.name for guess in alone]
        shares = [guess.probability for guess in answer.top]
        assert shares == pytest.approx([guess.probability for guess in alone], abs=1e-6)
        assert shares == sorted(shares, reverse=True)


def test_a_line_is_refused_before_it_is_scaled_to_gigabytes(classifier: Classifier) -> None:
    for size in ((4000, 1), (1, 4000), (1_000_000, 9)):
        with pytest.raises(TooLarge, match=r"it: .* more than 100 times as long as wide"):
            classifier.pixels(Image.new("RGB", size), "it")
    assert classifier.pixels(Image.new("RGB", (100, 1)), "it").shape == classifier.shape
    first, second = classifier([Image.new("RGB", (4000, 1)), noise(0)])
    assert first.error == "image 0: 4000 x 1, more than 100 times as long as wide"
    assert second.top
