"""The one way to run a model fast: by torch, compiled by it, or by ONNX Runtime or OpenVINO.

    run = runner(model, fastest())
    logits = run(images)  # any number of images

How fast ours are on each, on a CPU in float32: see the README.
"""

import importlib.util
import math
import os
import shutil
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ziggurat.engine import graph

BACKENDS = {
    "eager": "torch as it is",
    "compile": "torch.compile: the first call takes a minute",
    "onnx": "ONNX Runtime, on the CPU",
    "openvino": "OpenVINO, on the CPU",
}
AHEAD = 16  # requests that OpenVINO is given for each thread, before one is waited for
FEW = 128  # rows of a product, below which more are multiplied faster
SHARED = ((0.5, 4), (0.1, 2))  # multiply-adds in such products; images then computed together
LIGHT = 2**24  # multiply-adds of an image, below which threads cost more than they save


class Runner:
    """A model on a backend: float32 images (B, C, H, W) to its answer in float32.

    Any number of images. Calls from several threads take turns: each uses all cores it may.
    """

    def __init__(self, name: str, run: Callable[[Tensor], Tensor]) -> None:
        self.name = name
        self._run = run
        self._turn = threading.Lock()

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """What the model says of each, where the images are."""
        with self._turn:
            return self._run(images)


def missing(name: str) -> str | None:
    """Why a backend cannot run here, and what to do; None if it can."""
    match checked(name):
        case "eager":
            return None
        case "compile":
            if torch.cuda.is_available():
                there = importlib.util.find_spec("triton") is not None
                return None if there else "compile needs triton: `pip install triton`"
            compilers = (os.environ.get("CXX", "g++"), "g++", "clang++", "cl")
            there = any(shutil.which(name) for name in compilers)
            return None if there else "compile needs a C++ compiler: install g++ or clang"
    return graph.lacking(name)


def fastest(device: str | torch.device = "cpu") -> str:
    """The backend to take on a device, of those installed.

    On a CPU OpenVINO, which beats eager for every family, then ONNX Runtime, which does for more
    than one image; both are ready after seconds, where torch.compile takes a minute. Elsewhere
    torch.compile.
    """
    order = ("openvino", "onnx") if torch.device(device).type == "cpu" else ("compile",)
    return next((name for name in order if missing(name) is None), "eager")


def runner(
    model: nn.Module,
    backend: str,
    img_size: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Runner:
    """``model``, put into evaluation, on a backend.

    ``img_size`` is that of the images, the model's own if not given: ONNX Runtime and OpenVINO
    take no other. ``dtype`` is float32, or bfloat16 for matrix products, where images and answers
    stay in float32. What is done to the model later, only ``eager`` and ``compile`` may see.
    """
    if reason := missing(backend):
        raise ImportError(reason)
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"a backend computes in float32 or bfloat16, got {dtype}")
    model.eval()
    device = next(model.parameters()).device
    if backend in ("onnx", "openvino") and device.type != "cpu":
        raise ValueError(f"{backend} runs on the CPU, the model is on {device}: take compile")
    match backend:
        case "eager":
            return Runner(backend, by_torch(model, dtype))
        case "compile":
            options: dict[str, Any] = {
                "freezing": device.type == "cpu"
            }  # weights are constants, laid out for it
            return Runner(backend, by_torch(torch.compile(model, options=options), dtype))
        case "onnx":
            if dtype != torch.float32:
                raise ValueError(
                    "ONNX Runtime computes in float32 here: for bfloat16 openvino does"
                )
            made = graph.onnx_model(graph.traced(model, img_size))
            run = by_onnx(made.SerializeToString())
        case _:
            run = by_openvino(graph.openvino_model(graph.traced(model, img_size)), dtype)
    return Runner(backend, fitting(run, graph.example(model, img_size).shape[1:], backend))


def by_torch(model: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The model, compiled or not."""

    def run(images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            return model(images).float()

    return run


def by_onnx(made: str | bytes) -> Callable[[Tensor], Tensor]:
    """A session of ONNX Runtime for a file, or what would be in it, on as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (found,) = session.run(None, {graph.INPUT: images.contiguous().numpy()})
        return torch.from_numpy(found)

    return run


def by_openvino(made: Any, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
    """A model of OpenVINO, or the path of one, on as many threads as torch.

    Each thread computes images of its own: it waits for no other, and has the cache to itself. It
    is given one at a time, or some ``together``. All threads share what is left over, or one image,
    on which somebody waits. A light model does all on one thread. Each such number of images has a
    graph of its own: with all sizes known OpenVINO lays out memory once, and takes kernels that it
    does not have for any number.
    """
    core = graph.openvino().Core()
    anything = core.read_model(made) if isinstance(made, str | Path) else made
    alone = of_images(anything, 1)
    heavy = multiplications(alone) >= LIGHT
    int8 = any(op.get_type_name() == "FakeQuantize" for op in alone.get_ops())
    threads = torch.get_num_threads() if heavy else 1
    groups = sorted({together(alone), 1}, reverse=True) if heavy else []
    requests: dict[int, list[Any]] = {count: [] for count in groups}

    @cache
    def compiled(count: int | None, streams: int) -> Any:
        chosen = anything if count is None else of_images(anything, count)
        return core.compile_model(chosen, "CPU", settings(dtype, threads, streams, int8))

    def by_threads(images: np.ndarray, count: int) -> list[np.ndarray]:
        own = requests[count]
        parts = [images[i : i + count] for i in range(0, len(images), count)]
        while len(own) < len(parts):
            own.append(compiled(count, threads).create_infer_request())
        begun = own[: len(parts)]
        for request, part in zip(begun, parts, strict=True):
            request.start_async([part], share_inputs=True)
        for request in begun:
            request.wait()
        return [request.get_output_tensor().data.copy() for request in begun]

    def run(images: Tensor) -> Tensor:
        given = images.contiguous().numpy()
        found: list[np.ndarray] = []
        done = 0
        for count in groups:
            even = len(given) - (len(given) - done) % (count * threads)
            step = AHEAD * count * threads
            for i in range(done, even, step):
                found += by_threads(given[i : min(i + step, even)], count)
            done = even
        rest = given[done:]
        if len(rest) or not found:
            found.append(compiled(1 if len(rest) == 1 else None, 1)(rest)[0])
        return torch.from_numpy(np.concatenate(found))

    return run


def of_images(made: Any, count: int) -> Any:
    """An OpenVINO graph for so many images."""
    made = made.clone()
    made.reshape([count, *list(made.inputs[0].partial_shape)[1:]])
    return made


def together(alone: Any) -> int:
    """Images that a thread is best given at once, by the graph of one.

    A product of few rows is far from the peak, and more images make more rows; beyond that they
    only take each other's cache. HVT (97 tokens, 48 ...) gains 1.09 to 1.17 times by four, ResT and
    RegionViT (49 tokens in their last stage) 1.04 by two, NesT and HiViT (196) nothing.
    """
    few = whole = 0
    for op in alone.get_ops():
        if op.get_type_name() == "MatMul":
            given, weights = op.input_values()
            out = op.output(0).partial_shape
            if weights.partial_shape.is_dynamic or len(weights.shape) > 2 or out.is_dynamic:
                continue  # attention's own, or nobody knows
            out = op.output(0).shape
            work = math.prod(out) * given.shape[-1]
            whole += work
            few += work if math.prod(list(out)[:-1]) < FEW else 0
    return next((count for share, count in SHARED if few >= share * whole > 0), 1)


def multiplications(made: Any) -> float:
    """Multiply-adds of an OpenVINO graph's layers, attention's own left out; no end: not known."""
    found = 0
    for op in made.get_ops():
        kind = op.get_type_name()
        if kind in ("MatMul", "Convolution", "GroupConvolution"):
            if any(value.partial_shape.is_dynamic for value in (*op.input_values(), op.output(0))):
                return math.inf
            given, weights = (list(value.shape) for value in op.input_values())
            inner = given[-2 if op.get_attributes().get("transpose_a") else -1 :][:1]
            each = {"MatMul": inner, "Convolution": weights[1:]}.get(kind, weights[2:])
            found += math.prod(op.output(0).shape) * math.prod(each)
    return found


def settings(dtype: torch.dtype, threads: int, streams: int, int8: bool = False) -> dict[str, Any]:
    """What OpenVINO is told: left alone it may take bfloat16, and pins its threads to cores.

    Two processes with a thread each would share one core. What it makes of int8 attention for one
    thread (snippets) writes beyond its memory: RegionViT-S ended the process (OpenVINO 2026.4).
    """
    alone = {"SNIPPETS_MODE": "DISABLE"} if int8 and threads == streams else {}
    return alone | {
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
        "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": streams,
        "ENABLE_CPU_PINNING": False,
    }


def fitting(
    run: Callable[[Tensor], Tensor], shape: torch.Size, backend: str
) -> Callable[[Tensor], Tensor]:
    """Refuse images that the graph was not made for."""

    def checked(images: Tensor) -> Tensor:
        if images.shape[1:] != shape or images.dtype != torch.float32:
            wanted, got = (" x ".join(map(str, sizes)) for sizes in (shape, images.shape[1:]))
            raise ValueError(
                f"this {backend} graph takes float32 images of {wanted}, got {got} in "
                f"{images.dtype}: resize them, or make a runner for their img_size"
            )
        return run(images)

    return checked


def checked(name: str) -> str:
    """A backend's name, if it is one."""
    if name not in BACKENDS:
        raise ValueError(f"there is no backend {name!r}: take one of {', '.join(BACKENDS)}")
    return name
