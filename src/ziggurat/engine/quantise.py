"""Post-training quantisation to int8 by nncf: weights and activations of what multiplies matrices.

Ranges of activations are seen on real images. What nncf knows of transformers is used where there
is attention: softmax, GELU and the sums around them stay in float32.

Weights have a range for each channel. Activations have one in all for OpenVINO: before convolutions
that see channels apart nncf would give each its own, and OpenVINO cannot run that on tokens
(B, N, C), from which ResT makes its keys.
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
    from nncf.quantization.advanced_parameters import QuantizationParameters

    nncf.set_log_level(logging.ERROR)
    ranges = QuantizationParameters(per_channel=False if kind == "openvino" else None)
    batches = [images[i : i + 1].numpy() for i in range(len(images))]
    with graph.quiet():
        return nncf.quantize(
            made,
            nncf.Dataset(batches, lambda batch: {graph.INPUT: batch}),
            model_type=nncf.ModelType.TRANSFORMER if attends(model) else None,
            subset_size=len(batches),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_quantization_params=ranges
            ),
        )


def attends(model: nn.Module) -> bool:
    """Whether there is attention in it, ours or timm's."""
    return any("attention" in type(module).__name__.lower() for module in model.modules())
