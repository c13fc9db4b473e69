from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.explain.painted import GREEN, RED, painted
from tests.models.small import small
from ziggurat.explain import cam, explain, reason
from ziggurat.explain.view import look

OURS = [
    ("nest_tiny", {}),
    ("hvt_ti_2", {}),
    ("hvt_ti_2", {"pool_2d": True}),
    ("rest_lite", {}),
    ("hivit_tiny", {}),
    ("regionvit_ti", {"regional": "none"}),
]
TIMMS = [
    ("resnet10t", {}),
    ("convnext_atto", {}),  # a norm behind the mean
    ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1), "embed_dim": 24, "img_size": 64}),
    ("vit_tiny_patch16_224", {"depth": 2, "img_size": 64, "global_pool": "avg"}),
]


def built(name: str, options: dict[str, Any], ours: bool) -> nn.Module:
    torch.manual_seed(0)
    model = small(name, **options) if ours else timm.create_model(name, num_classes=10, **options)
    nn.init.normal_(model.get_classifier().weight)
    nn.init.normal_(model.get_classifier().bias)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "options", "ours"), [(*m, True) for m in OURS] + [(*m, False) for m in TIMMS], ids=str
)
def test_the_mean_of_cam_and_the_bias_are_the_logit(
    name: str, options: dict[str, Any], ours: bool
) -> None:
    model = built(name, options, ours)
    assert reason(model, "cam") is None
    image = torch.randn(1, 3, *((72, 90) if ours else (64, 64)))
    view = look(model, image, linear=True)
    heat = cam.cam(view, [0, 3, 9])
    nowhere = model.forward_head(torch.zeros_like(view.values))[0]  # what no position adds
    logits = model(image)[0]
    found = heat.mean(1) + nowhere[[0, 3, 9]]
    assert torch.allclose(found, logits[[0, 3, 9]], atol=1e-5, rtol=1e-5)
    assert heat.std() > 0.01


def test_cam_is_the_weights_on_the_map() -> None:
    model = small("nest_tiny").eval()
    image = torch.randn(1, 3, 64, 64)
    heat = cam.cam(look(model, image, linear=True), [4])
    by_hand = torch.einsum("c,chw->hw", model.head.weight[4], model.forward_features(image)[0])
    assert torch.allclose(heat.view(4, 4), by_hand, atol=1e-6)


def test_captums_grad_cam_is_cam_on_an_averaged_map() -> None:
    captum = pytest.importorskip("captum.attr")
    model = small("rest_lite").eval()
    image = torch.randn(1, 3, 64, 96)
    theirs = captum.LayerGradCam(model, model.final).attribute(image, target=5)
    ours = cam.cam(look(model, image, linear=True), [5])
    assert torch.allclose(ours, 6 * theirs.flatten(1), atol=1e-5)


@pytest.mark.parametrize("name", ["nest_tiny", "hivit_tiny", "resnet10t"])
def test_grad_cam_plus_plus_is_pytorch_grad_cams(name: str) -> None:
    theirs = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    ours = name != "resnet10t"
    model = built(name, {}, ours)
    with torch.no_grad():
        model.get_classifier().weight.mul_(100)  # theirs adds 1e-6 to the square of a gradient
    image = torch.randn(1, 3, 64, 64)
    layer = model.final if ours else model.layer4[-1]
    with theirs.GradCAMPlusPlus(model, [layer]) as method:
        heats = [method(image, [targets.ClassifierOutputTarget(n)])[0] for n in (2, 6)]
    found = explain(model, image, [2, 6], "gradcam++").maps.numpy()
    assert np.abs(found - np.stack(heats)).max() < 2e-3
    assert found.std() > 0.1


def test_a_class_token_is_explained_where_it_last_looks() -> None:
    """As pytorch-grad-cam recommends for ViT: the last block's input, without the token."""
    model = built("deit_tiny_patch16_224", {"depth": 2, "img_size": 48}, ours=False)
    image = torch.randn(1, 3, 48, 48)
    view = look(model, image)
    tokens = model.patch_embed(image)
    before = model.blocks[0](model.norm_pre(model._pos_embed(tokens)))
    assert torch.allclose(view.values, before, atol=1e-5)
    assert torch.allclose(view.logits, model(image), atol=1e-5)
    assert view.positions(view.values).shape == (1, 9, 192)
    assert explain(model, image, [1], "gradcam++").maps.max() == 1


def test_regionvit_is_explained_by_the_local_tokens_its_last_stage_sees() -> None:
    model = small("regionvit_ti").eval()
    image = torch.randn(1, 3, 56, 84)
    view = look(model, image)
    assert torch.allclose(view.logits, model(image), atol=1e-5)
    local = model.forward_stages(image).maps[-2]
    assert torch.allclose(view.values.permute(0, 3, 1, 2), local, atol=1e-5)


class Bright(nn.Module):
    """Class c is how much there is of bright colour c: what is blurred counts for less."""

    num_classes = num_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(50.0))

    def forward_features(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(images, 8).square()

    def forward_head(self, features: Tensor) -> Tensor:
        return self.scale * features.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def test_group_cam_finds_what_is_painted() -> None:
    image = painted((128, 192), {RED: 5, GREEN: 15})
    found = explain(Bright(), image, [RED, GREEN], "groupcam").maps
    for heat, colour in zip(found, (RED, GREEN), strict=True):
        y, x = divmod(int(heat.argmax()), 192)
        assert image[0, colour, y, x] == 1
        assert (heat > 0).float().mean() < 0.2


def test_group_cam_weighs_masks_by_what_they_make_likelier() -> None:
    model = Bright()
    image = painted((64, 64), {RED: 5, GREEN: 14}) + 0.1 * torch.rand(1, 3, 64, 64)
    view = look(model, image)
    enlarged = partial(cam.enlarged, view=view, size=(64, 64))
    heat = cam.group_cam(view, [RED], image, model, enlarged)[0]
    slope = view.positions(torch.autograd.grad(view.logits[0, RED], view.values)[0])[0].mean(0)
    expected = torch.zeros(64, 64)
    blurred = cam.blur(image)
    for channel in (cam.known(view) * slope).T.relu():  # three channels are three groups of one
        kept = channel.where(channel > channel.quantile(0.7), 0)
        if kept.max() > 0:
            mask = cam.scaled(enlarged(kept[None]))[0]
            gain = model(image * mask + blurred * (1 - mask)).softmax(1) - model(blurred).softmax(1)
            expected += gain[0, RED].item() * mask
    assert torch.allclose(heat, expected.relu(), atol=1e-5)
    assert heat.max() > 0.01


def test_a_model_that_never_changes_its_mind_has_no_group_cam() -> None:
    class Stubborn(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.zeros(len(images), 3)

    image = painted((64, 64), {RED: 5})
    view = look(Bright(), image)
    enlarged = partial(cam.enlarged, view=view, size=(64, 64))
    assert not cam.group_cam(view, [RED], image, Stubborn(), enlarged).any()
