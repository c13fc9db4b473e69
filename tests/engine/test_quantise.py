"""Graphs in int8."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.models.small import SHALLOW, shallow, small
from ziggurat.engine import export, formats
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


def test_a_weight_that_is_used_twice_is_kept_once_and_in_int8(tmp_path: Path) -> None:
    """RegionViT's attention among regions and within them, a third of its blocks' weights."""
    torch.manual_seed(0)
    model = small("regionvit_ti", dims=(256,), depths=(1,), windows=7).eval()
    images = torch.randn(2, 3, *model.img_size)
    made = quantised("onnx", formats.made("onnx", model, model.img_size, False), model, images)
    formats.write("onnx", made, tmp_path, formats.about(model, model.img_size, False))
    params = sum(weight.numel() for weight in model.parameters())
    assert export.weight("onnx", tmp_path) < 1.2 * params
    with torch.no_grad():
        difference = formats.read("onnx", tmp_path)(images) - model(images)
        assert difference.norm() < 0.2 * model(images).norm()


RUN = """
import sys, torch
from pathlib import Path
from ziggurat.engine import formats
torch.set_num_threads(int(sys.argv[2]))
run = formats.read("openvino", Path(sys.argv[1]))
assert run(torch.ones(4, 3, 224, 224)).isfinite().all()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_regionvit_in_int8_runs_whatever_threads_there_are(
    int8_regionvit: Path, threads: int
) -> None:
    """With one thread a stream OpenVINO's own attention would end the process."""
    subprocess.run([sys.executable, "-c", RUN, str(int8_regionvit), str(threads)], check=True)


@pytest.fixture(scope="module")
def int8_regionvit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = create_model("regionvit_s", depths=(1, 1, 1, 1)).eval()
    made = formats.made("openvino", model, (224, 224), False)
    made = quantised("openvino", made, model, torch.randn(1, 3, 224, 224))
    place = tmp_path_factory.mktemp("int8")
    formats.write("openvino", made, place, formats.about(model, (224, 224), False))
    return place


def test_attention_is_told_from_convolution() -> None:
    with torch.device("meta"):
        assert attends(shallow("hivit_tiny"))
        assert not attends(create_model("timm/resnet10t"))
