"""A model as a graph that runs without its Python code: torch.export's, ONNX, OpenVINO's.

The number of images is free in all of them; height and width are those the graph was made for,
unless they are asked to be free, too.
"""

import contextlib
import copy
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ziggurat.layers.attention import Attention, Block
from ziggurat.layers.position import LearnedTable
from ziggurat.models.backbone import Backbone, pair
from ziggurat.models.registry import create_model
from ziggurat.models.video import SpaceTime

INPUT, OUTPUT = "images", "logits"
EXTRAS = {  # packages -> what installs them
    "onnx": ("export", ("onnx", "onnxscript", "onnxruntime")),
    "openvino": ("openvino", ("openvino",)),
    "nncf": ("openvino", ("openvino", "nncf")),
}


def lacking(what: str) -> str | None:
    """What to install for a way to export; None if all is there."""
    extra, packages = EXTRAS[what]
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"{what} needs {', '.join(absent)}: `pip install 'ziggurat[{extra}]'`"


def need(what: str) -> None:
    """Raise an ImportError that says what to install."""
    if reason := lacking(what):
        raise ImportError(reason)


def openvino() -> Any:
    """OpenVINO without the usage statistics it would send: its package for that is not there."""
    need("openvino")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def input_size(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width a model was built for."""
    inner: Any = model.image_model if isinstance(model, SpaceTime) else model
    config = getattr(inner, "pretrained_cfg", None) or {}
    overrides = getattr(inner, "overrides", {})
    channels, *sides = config.get("input_size") or (3, 224, 224)
    channels = getattr(inner, "in_chans", overrides.get("in_chans", channels))
    height, width = pair(getattr(inner, "img_size", overrides.get("img_size", sides)))
    return channels, height, width


def example(model: nn.Module, img_size: tuple[int, int] | None = None) -> Tensor:
    """Two images, or clips, that the model takes."""
    channels, *sides = input_size(model)
    device = next(model.parameters()).device
    frames = (model.frames,) if isinstance(model, SpaceTime) else ()
    return torch.randn(2, *frames, channels, *(img_size or sides), device=device)


def traced(
    model: nn.Module,
    img_size: tuple[int, int] | None = None,
    dynamic: bool = False,
    elsewhere: bool = True,
) -> ExportedProgram:
    """The model in inference for any number of images; with ``dynamic`` of any size.

    That is any multiple of ``multiple(model)``: begun patches are not padded then. It is laid out
    for what runs it ``elsewhere``, or has the weights of a checkpoint, for torch.
    """
    model = for_any_size(model) if dynamic else model
    model = laid_out(model) if elsewhere else model
    free: dict[int, Any] = {0: Dim("batch", min=1)}
    if dynamic:  # traced at another size than its own, so that positions are resized
        img_size, free = other_size(model, 2, 1), free | {2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    images = example(model, img_size)
    model.eval()
    try:
        with quiet(), torch.no_grad(), made_of_tables(model, None if dynamic else images):
            program = torch.export.export(model, (images,), dynamic_shapes=(free,))
    except Exception as error:  # torch has many kinds, of no common base
        said = str(error).strip().splitlines()
        reason = said[0] if said else repr(error)
        raise ValueError(f"{name_of(model)} cannot be traced: {reason}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it would tell of this machine's folders
    return program


class RowNorm(nn.LayerNorm):
    """A norm of tokens in a row, whatever they were in.

    One on a grid OpenVINO takes to pieces, and brings a convolution's map into another order first.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, ..., C) -> (B, ..., C)."""
        return super().forward(x.flatten(1, -2)).view_as(x) if x.ndim > 3 else super().forward(x)


class MeanBlock(Block):
    """A last block of which the mean over tokens is all that is used: each token is that mean.

    It is taken before the block's last product, which is linear, so that this is one of one token.
    """

    def forward(self, x: Tensor, *context: object) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        x = x + self.attn(self.norm1(x), *context)
        hidden = self.mlp.act(self.mlp.fc1(self.norm2(x)))
        return (x.mean(1, True) + self.mlp.fc2(hidden.mean(1, True))).expand_as(x)


def laid_out(model: nn.Module) -> nn.Module:
    """A copy with the blocks, products and norms that ONNX Runtime and OpenVINO run best."""
    if not any(isinstance(module, Attention) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, Attention):
            module.take_apart()
        elif type(module) is nn.LayerNorm:
            module.__class__ = RowNorm
    if isinstance(model, Backbone) and model.only_mean and model.global_pool:
        last = model.stage(-1).blocks[-1]
        if type(last) is Block:
            last.__class__ = MeanBlock
    return model


def for_any_size(model: nn.Module) -> nn.Module:
    """A model whose graph may hold for many sizes, timm's plain transformers told so."""
    if isinstance(model, SpaceTime) or (isinstance(model, Backbone) and not model.exports_any_size):
        raise ValueError(
            f"{name_of(model)} needs another graph for each size, which its windows or positions "
            "follow: export it once for each size that you need, with --size, without --dynamic"
        )
    options: dict[str, Any] = dict(getattr(model, "overrides", {}))
    if not hasattr(model, "dynamic_img_size") or model.dynamic_img_size:
        return model
    made = create_model(f"timm/{name_of(model)}", **options | {"dynamic_img_size": True})
    made.reset_classifier(model.num_classes)
    made.load_state_dict(model.state_dict())
    return made


def multiple(model: nn.Module) -> int:
    """What height and width are multiples of: the stride of the last stage."""
    last: Any = getattr(model, "feature_info", None) or [{"reduction": 32}]
    return int(last[-1]["reduction"])


def other_size(model: nn.Module, down: int, right: int) -> tuple[int, int]:
    """A size that a dynamic graph takes: the model's own and so many steps more."""
    step, (_, height, width) = multiple(model), input_size(model)
    return (-(-height // step) + down) * step, (-(-width // step) + right) * step


def name_of(model: nn.Module) -> str:
    """What ``create_model`` calls it, if it knows it."""
    inner: Any = model.image_model if isinstance(model, SpaceTime) else model
    config = getattr(inner, "pretrained_cfg", None) or {}
    return str(getattr(inner, "name", config.get("architecture", type(inner).__name__)))


@contextlib.contextmanager
def made_of_tables(model: nn.Module, images: Tensor | None) -> Iterator[None]:
    """What is made of learned tables for such images is a constant of the graph.

    It need not be made again for each call, and not every format knows how (bicubic resizing).
    """
    tables = [module for module in model.modules() if isinstance(module, LearnedTable)]
    made: dict[tuple[LearnedTable, Hashable], Any] = {}

    def once(table: LearnedTable, key: Hashable, make: Callable[[], Any]) -> Any:
        if (table, key) not in made:
            found = make()
            parts = [part.contiguous() for part in (found if isinstance(found, list) else [found])]
            made[table, key] = parts if isinstance(found, list) else parts[0]
        return made[table, key]

    if images is None:
        yield
        return
    for table in tables:
        table.kept = partial(once, table)  # type: ignore[method-assign]
    try:
        model(images)
        yield
    finally:
        for table in tables:
            del table.kept


def onnx_model(program: ExportedProgram) -> Any:
    """The graph as an ``onnx.ModelProto``.

    torch folds no transpose of a weight that two products share while there is one for each; then
    it makes them one. Asked again, it folds this, too: what is transposed in the graph, nncf would
    leave in float32.
    """
    need("onnx")
    with quiet():
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
        )
        assert made is not None
        made.optimize()
    return made.model_proto


def openvino_model(program: ExportedProgram) -> Any:
    """The graph as an ``openvino.Model``."""
    ov = openvino()
    shape = shape_of(program)
    with quiet():
        if -1 in shape[-2:]:  # arithmetic of sizes, which only its reader of ONNX knows
            made = ov.convert_model(io.BytesIO(onnx_model(program).SerializeToString()))
        else:
            made = ov.convert_model(program, input=[ov.PartialShape(shape)])
    made.inputs[0].get_tensor().set_names({INPUT})
    made.outputs[0].get_tensor().set_names({OUTPUT})
    return made


def shape_of(program: ExportedProgram) -> list[int]:
    """What the graph takes, -1 for what is free."""
    given = program.graph_signature.user_inputs[0]
    value = next(node.meta["val"] for node in program.graph.nodes if node.name == given)
    return [side if isinstance(side, int) else -1 for side in value.shape]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters' remarks about their own insides from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
