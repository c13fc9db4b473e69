"""Graphs in int8."""

from pathlib import Path

import pytest
import torch

from tests.models.small import SHALLOW, shallow, small
from ziggurat.engine import formats
from ziggurat.engine.quantise import attends, quantised
from ziggurat.models.registry import create_model


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_convolutions_over_tokens_run_in_int8(kind: str, tmp_path: Path) -> None:
    """ResT's keys: OpenVINO refuses ranges of activations that differ by the channel of a token.

    As wide as this, weights with a norm folded in would be computed in the graph, where nncf's
    reader of ONNX stumbles over them.
    """
    torch.manual_seed(0)
    model = small("rest_lite", **SHALLOW["rest_lite"] | {"dims": (32, 64)}).eval()
    size = model.img_size
    images = torch.randn(4, 3, *size)
    made = quantised(kind, formats.made(kind, model, size, False), model, images)
    formats.write(kind, made, tmp_path, formats.about(model, size, False))
    with torch.no_grad():
        difference = formats.read(kind, tmp_path)(images) - model(images)
        assert difference.norm() < 0.2 * model(images).norm()


def test_attention_is_told_from_convolution() -> None:
    with torch.device("meta"):
        assert attends(shallow("hivit_tiny"))
        assert not attends(create_model("timm/resnet10t"))
