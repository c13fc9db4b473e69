"""The libraries our users have take the models as they are."""

from collections import OrderedDict

import numpy as np
import pytest
import timm.data
import timm.utils
import torch
from torchvision.ops import FeaturePyramidNetwork

from tests.models.small import SMALL, small
from ziggurat.models.registry import TIMM_NAMES

PYRAMIDS = [name for name in SMALL if name != "hvt_ti_2"]  # one stride only: no pyramid


@pytest.mark.parametrize("name", SMALL)
def test_timms_transforms_ema_and_feature_extraction_take_them(name: str) -> None:
    model = small(name)
    config = timm.data.resolve_data_config({}, model=model)
    assert config["input_size"] == (3, 224, 224)
    ema = timm.utils.ModelEmaV3(model, decay=0.5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    ema.update(model)
    x = torch.randn(2, 3, *model.img_size)
    assert not torch.equal(ema.module.eval()(x), model.eval()(x))


@pytest.mark.parametrize("name", PYRAMIDS)
def test_segmentation_models_take_them_as_encoders(name: str) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    stages = len(small(name).dims)
    model = smp.UPerNet(
        f"tu-{TIMM_NAMES[name]}", encoder_weights=None, encoder_depth=stages + 1, classes=4
    )
    masks = model(torch.randn(2, 3, 64, 96))
    assert masks.shape == (2, 4, 64, 96)
    masks.sum().backward()


@pytest.mark.parametrize("name", PYRAMIDS)
def test_torchvisions_pyramid_takes_their_maps(name: str) -> None:
    backbone = timm.create_model(TIMM_NAMES[name], features_only=True, **SMALL[name])
    pyramid = FeaturePyramidNetwork(backbone.feature_info.channels(), 32)
    maps = backbone(torch.randn(1, 3, 97, 131))
    found = pyramid(OrderedDict((str(i), m) for i, m in enumerate(maps)))
    for level, m in zip(found.values(), maps, strict=True):
        assert level.shape == (1, 32, *m.shape[2:])


@pytest.mark.parametrize("name", ["nest_tiny", "rest_lite", "hivit_tiny"])
def test_grad_cam_takes_the_final_map_without_a_reshape(name: str) -> None:
    cam = pytest.importorskip("pytorch_grad_cam")
    model = small(name).eval()
    with cam.GradCAM(model, [model.final]) as explain:
        heat = explain(torch.randn(1, 3, *model.img_size), targets=None)
    assert heat.shape == (1, *model.img_size)
    assert np.isfinite(heat).all()
