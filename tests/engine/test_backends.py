"""Every backend says what the model says."""

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.small import SMALL, shallow, small
from ziggurat.engine import backends, graph
from ziggurat.engine.backends import BACKENDS, Runner, fastest, missing, runner
from ziggurat.models.backbone import Backbone
from ziggurat.models.registry import create_model

EACH = [("eager", "nest_tiny"), ("onnx", "hvt_ti_2"), *(("openvino", name) for name in SMALL)]


def agrees(run: Runner, model: nn.Module, *size: int) -> None:
    """For one image and for more."""
    for count in (1, 3):
        images = torch.randn(count, 3, *size)
        with torch.no_grad():
            expected = model(images)
        torch.testing.assert_close(run(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "name"), EACH)
def test_a_backend_agrees_with_torch_for_any_number_of_images(backend: str, name: str) -> None:
    model = shallow(name)
    run = runner(model, backend)
    assert run.name == backend
    agrees(run, model, *model.img_size)


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_backend_takes_another_size_if_told(backend: str) -> None:
    model = shallow("nest_tiny")
    run = runner(model, backend, (40, 56))
    agrees(run, model, 40, 56)
    with pytest.raises(ValueError, match="images of 3 x 40 x 56, got 3 x 64 x 64"):
        run(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("name", ["timm/deit_tiny_patch16_224", "timm/mobilenetv3_small_050"])
def test_models_of_timm_run_on_openvino(name: str) -> None:
    size = {"img_size": 64, "depth": 2} if "deit" in name else {}
    model = create_model(name, num_classes=5, **size).eval()
    agrees(runner(model, "openvino", (64, 64)), model, 64, 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hvt_ti_2", "hivit_tiny"])
def test_a_compiled_model_agrees(name: str) -> None:
    torch.compiler.reset()
    model = shallow(name)
    agrees(runner(model, "compile"), model, *model.img_size)


def test_bfloat16_is_close_and_answers_in_float32() -> None:
    model = shallow("hvt_ti_2")
    images = torch.randn(2, 3, *model.img_size)
    full = runner(model, "eager")(images)
    for backend in ("eager", "openvino"):
        low = runner(model, backend, dtype=torch.bfloat16)(images)
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, full, rtol=0.1, atol=0.05)
    with pytest.raises(ValueError, match="for bfloat16 openvino does"):
        runner(model, "onnx", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"float32 or bfloat16, got torch\.float16"):
        runner(model, "eager", dtype=torch.float16)


def test_openvino_is_told_to_stay_in_float32() -> None:
    assert backends.settings(torch.float32, 2, 1)["INFERENCE_PRECISION_HINT"] == "f32"


def test_openvino_sends_no_statistics() -> None:
    graph.openvino()
    assert sys.modules["openvino_telemetry"] is None


def test_threads_take_turns() -> None:
    inside = 0

    def run(images: Tensor) -> Tensor:
        nonlocal inside
        inside += 1
        assert inside == 1
        threading.Event().wait(0.01)
        inside -= 1
        return images

    alone = Runner("eager", run)
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(alone(torch.ones(1)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8


def test_the_fastest_is_the_best_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*absent: str) -> Callable[[str], str | None]:
        return lambda name: f"no {name}" if name in absent else None

    for absent, expected in (
        ((), "openvino"),
        (("openvino",), "onnx"),
        (("openvino", "onnx"), "eager"),
    ):
        monkeypatch.setattr(backends, "missing", without(*absent))
        assert fastest() == expected
    assert fastest("cuda") == "compile"


def test_what_is_missing_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("eager") is None
    monkeypatch.setattr(graph.importlib.util, "find_spec", lambda name: None)
    assert missing("openvino") == "openvino needs openvino: `pip install 'ziggurat[openvino]'`"
    with pytest.raises(ImportError, match=r"onnx needs onnx, onnxscript, onnxruntime: .*export"):
        runner(shallow("hvt_ti_2"), "onnx")
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    assert missing("compile") == "compile needs a C++ compiler: install g++ or clang"


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(
        ValueError, match=f"no backend 'tensorrt': take one of {', '.join(BACKENDS)}"
    ):
        missing("tensorrt")


def test_a_model_that_cannot_be_traced_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, images: Tensor) -> Tensor:
            return images * self.weight if images.sum() > 0 else images

    with pytest.raises(ValueError, match="Odd cannot be traced"):
        runner(Odd(), "openvino")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each graph that OpenVINO compiles: how many images it takes, its streams and threads."""
    openvino, made = graph.openvino(), []
    compile_model = openvino.Core.compile_model

    def watched(core: Any, model: Any, device: str, told: dict[str, Any]) -> Any:
        made.append(
            "[{}] {} of {}".format(
                model.inputs[0].partial_shape[0], told["NUM_STREAMS"], told["INFERENCE_NUM_THREADS"]
            )
        )
        return compile_model(core, model, device, told)

    monkeypatch.setattr(openvino.Core, "compile_model", watched)
    return made


@pytest.mark.parametrize(
    ("threads", "each", "counts", "wanted"),
    [
        (1, 1, (3, 1), ["[1] 1 of 1"]),
        (2, 1, (1, 5, 2), ["[1] 1 of 2", "[1] 2 of 2"]),
        (4, 1, (9, 3, 1, 6), ["[1] 4 of 4", "[1] 1 of 4", "[?] 1 of 4"]),
        (1, 4, (9,), ["[4] 1 of 1", "[1] 1 of 1"]),
        (2, 2, (13, 4, 2), ["[2] 2 of 2", "[1] 1 of 2", "[1] 2 of 2"]),
        (3, 4, (30, 2), ["[4] 3 of 3", "[1] 3 of 3", "[?] 1 of 3"]),
    ],
)
def test_each_thread_of_openvino_takes_its_images_and_all_what_is_left(
    threads: int,
    each: int,
    counts: tuple[int, ...],
    wanted: list[str],
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each graph is compiled once, when it is needed; answers are in the order of the images."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(backends, "AHEAD", 1)
    monkeypatch.setattr(backends, "LIGHT", 0)
    monkeypatch.setattr(backends, "together", lambda alone: each)
    model = shallow("hvt_ti_2")
    run = runner(model, "openvino")
    for count in counts:
        images = torch.randn(count, 3, *model.img_size)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images), rtol=1e-4, atol=1e-5)
    assert compiled == wanted


def test_light_work_is_done_by_one_thread(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = shallow("hvt_ti_2")
    run = runner(model, "openvino")
    for count in (8, 1):
        run(torch.randn(count, 3, *model.img_size))
    assert compiled == ["[?] 1 of 1", "[1] 1 of 1"]


@pytest.mark.parametrize(("height", "wanted"), [(16, 4), (64, 2), (400, 1)])
def test_products_of_few_rows_are_shared_by_images(height: int, wanted: int) -> None:
    """One has 3 x height rows and one 3 x 4; attention's, of two maps, is not of these."""
    model = nn.Sequential(nn.Linear(8, 8), nn.AdaptiveAvgPool2d((4, 8)), nn.Linear(8, 64), Gram())
    made = graph.openvino_model(graph.traced(model, (height, 8)))
    assert backends.together(made) == 1  # of a number of images that is not known
    assert backends.together(backends.of_images(made, 1)) == wanted


class Gram(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x.mT


def test_multiply_adds_of_a_graph_are_counted() -> None:
    layers = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 4, 3, padding=1, groups=4)
    model = nn.Sequential(*layers, nn.Flatten(2), nn.Linear(16, 5))
    made = graph.openvino_model(graph.traced(model, (8, 8)))
    assert backends.multiplications(made) == math.inf
    made.reshape([2, 3, 8, 8])
    assert backends.multiplications(made) == 2 * (64 * 12 + 64 * 9 + 20 * 16)


def test_norms_on_a_grid_become_norms_in_a_row_of_the_same_numbers() -> None:
    model = shallow("nest_tiny")
    assert any(type(module) is nn.LayerNorm for module in model.modules())
    laid_out = graph.laid_out(model)
    assert not any(type(module) is nn.LayerNorm for module in laid_out.modules())
    x = torch.randn(2, 3, 5, 8)
    for shape in ((2, 3, 5, 8), (2, 15, 8), (30, 8)):
        torch.testing.assert_close(
            graph.RowNorm(8)(x.view(shape)), nn.LayerNorm(8)(x.view(shape)), rtol=0, atol=0
        )


@pytest.mark.parametrize("classes", [10, 0])
@pytest.mark.parametrize("name", SMALL)
def test_what_is_laid_out_says_the_same(name: str, classes: int) -> None:
    """HiViT's last product, behind which only the mean is asked for, is one of the mean."""
    torch.manual_seed(0)
    model = small(name, num_classes=classes).double().eval()
    images = torch.randn(2, 3, *model.img_size, dtype=torch.float64)
    laid_out = graph.laid_out(model)
    assert isinstance(laid_out, Backbone)
    with torch.no_grad():
        torch.testing.assert_close(laid_out(images), model(images), rtol=0, atol=1e-12)
    last = laid_out.stage(-1).blocks[-1]
    assert isinstance(last, graph.MeanBlock) == (name == "hivit_tiny")


def test_a_map_keeps_its_tokens() -> None:
    """Where nothing pools, a graph gives all of the last block's."""
    model = small("hivit_tiny", num_classes=0, global_pool="").double().eval()
    images = torch.randn(1, 3, 64, 48, dtype=torch.float64)
    with torch.no_grad():
        expected, found = model(images), graph.laid_out(model)(images)
    assert found.shape == (1, 64, 4, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_model_is_left_as_it_was() -> None:
    """What is laid out for a graph is a copy; for torch it keeps a checkpoint's names."""
    model = shallow("nest_tiny")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    laid_out = graph.traced(model)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert any(".apart." in name for name in laid_out.state_dict)
    assert set(graph.traced(model, elsewhere=False).state_dict) == set(before)
