"""Post-training quantisation to int8 by nncf: weights and activations of what multiplies matrices.

Ranges of activations are seen on real images. What nncf knows of transformers is used where there
is attention: softmax, GELU and the sums around them stay in float32.
"""

import logging
from typing import Any

from torch import Tensor, nn

from ziggurat.engine import graph


def quantised(kind: str, made: Any, model: nn.Module, images: Tensor) -> Any:
    """An ONNX or OpenVINO model in int8; ``images`` are normalised, (N, 3, H, W)."""
    graph.need("nncf")
    graph.openvino()  # nncf would send statistics, too
    import nncf

    nncf.set_log_level(logging.ERROR)
    batches = [images[i : i + 1].numpy() for i in range(len(images))]
    with graph.quiet():
        return nncf.quantize(
            made,
            nncf.Dataset(batches, lambda batch: {graph.INPUT: batch}),
            model_type=nncf.ModelType.TRANSFORMER if attends(model) else None,
            subset_size=len(batches),
        )


def attends(model: nn.Module) -> bool:
    """Whether there is attention in it, ours or timm's."""
    return any("attention" in type(module).__name__.lower() for module in model.modules())
