"""The files of an exported model: written, read again, and explained to whoever finds them.

Beside the model lie ``config.json``, which says what an image has to become and what the answers
are called, and a README with the lines that run it. ONNX and OpenVINO files carry the same inside.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ziggurat.engine import backends, graph
from ziggurat.models.pretrained import CARD, CONFIG, WEIGHTS, from_pretrained, save_pretrained
from ziggurat.models.video import SpaceTime

Run = Callable[[Tensor], Tensor]


class Format(NamedTuple):
    """One way to keep a model."""

    about: str  # in a line
    files: tuple[str, ...]  # the first is the one that users open
    needs: str | None  # of graph.EXTRAS
    imports: str  # of the README's lines
    runs: str  # those that make ``logits`` of ``batch``


FORMATS = {
    "onnx": Format(
        "ONNX, for ONNX Runtime and many others",
        ("model.onnx",),
        "onnx",
        "import onnxruntime",
        'session = onnxruntime.InferenceSession("model.onnx")\n'
        'logits = session.run(None, {"images": batch})[0]',
    ),
    "openvino": Format(
        "OpenVINO's model.xml and model.bin",
        ("model.xml", "model.bin"),
        "openvino",
        "import openvino",
        'settings = {"INFERENCE_PRECISION_HINT": "f32"}  # else it may take bfloat16\n'
        'model = openvino.Core().compile_model("model.xml", "CPU", settings)\n'
        "logits = model(batch)[0]",
    ),
    "torch-export": Format(
        "torch.export's archive: needs torch alone",
        ("model.pt2",),
        None,
        "import torch",
        'model = torch.export.load("model.pt2").module()\n'
        "logits = model(torch.from_numpy(batch)).detach().numpy()",
    ),
    "safetensors": Format(
        "weights and configuration, for ziggurat and timm", (WEIGHTS,), None, "", ""
    ),
}

CODE = """import json
import numpy as np
{imports}
from PIL import Image

config = json.load(open("config.json"))
image = Image.open("photo.jpg").convert("RGB")
(height, width), (H, W) = config["resize"], config["size"]
width, height = (
    max(width, int(height * image.width / image.height)),
    max(height, int(width * image.height / image.width)),
)
image = image.resize((width, height), Image.Resampling[config["interpolation"].upper()])
left, top = round((width - W) / 2), round((height - H) / 2)
pixels = np.asarray(image.crop((left, top, left + W, top + H)), np.float32) / 255
batch = ((pixels - config["mean"]) / config["std"]).astype(np.float32)
batch = batch.transpose(2, 0, 1)[None]  # (1, 3, H, W); any number of images at a time{clip}
{runs}
{says}"""


def about(model: nn.Module, size: tuple[int, int], dynamic: bool) -> dict[str, Any]:
    """What one has to know to use the model without ziggurat."""
    inner: Any = model.image_model if isinstance(model, SpaceTime) else model
    config = inner.pretrained_cfg
    names = config.get("label_names") or ()
    if len(names) != inner.num_classes:
        names = [f"class {i}" for i in range(inner.num_classes)]
    free: list[str | int] = ["batch", *([model.frames] if isinstance(model, SpaceTime) else [])]
    sides: list[str | int] = ["height", "width"] if dynamic else [*size]
    return {
        "model": graph.name_of(model),
        "classes": list(names),
        "input": [*free, 3, *sides],
        "size": list(size),
        "multiple": graph.multiple(model) if dynamic else None,
        "resize": [math.floor(side / config["crop_pct"]) for side in size],
        "interpolation": config["interpolation"],
        "mean": list(config["mean"]),
        "std": list(config["std"]),
    }


def write(kind: str, made: Any, folder: Path, said: dict[str, Any]) -> None:
    """Write ``made``, the model as ``kind`` keeps it, and what goes with it."""
    inside = {key: json.dumps(value) for key, value in said.items()}
    file = folder / FORMATS[kind].files[0]
    match kind:
        case "onnx":
            del made.metadata_props[:]
            for key, value in inside.items():
                made.metadata_props.add(key=key, value=value)
            file.write_bytes(made.SerializeToString())
        case "openvino":
            for key, value in inside.items():
                made.set_rt_info(value, ["ziggurat", key])
            graph.openvino().save_model(made, file, compress_to_fp16=False)
        case "torch-export":
            torch.export.save(made, file, extra_files={CONFIG: json.dumps(said)})
        case "safetensors":
            save_pretrained(made, folder)
            return
    (folder / CONFIG).write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n")
    (folder / CARD).write_text(card(kind, said))


def made(kind: str, model: nn.Module, size: tuple[int, int], dynamic: bool) -> Any:
    """The model as ``kind`` keeps it."""
    if kind == "safetensors":
        return model
    program = graph.traced(model, size, dynamic, elsewhere=kind != "torch-export")
    if kind == "onnx":
        return graph.onnx_model(program)
    return graph.openvino_model(program) if kind == "openvino" else program


def read(kind: str, folder: Path) -> Run:
    """What was written, as a user would run it."""
    file = str(folder / FORMATS[kind].files[0])
    match kind:
        case "onnx":
            return backends.by_onnx(file)
        case "openvino":
            return backends.by_openvino(file)
        case "torch-export":
            return torch.export.load(file).module()
    return from_pretrained(folder)


def card(kind: str, said: dict[str, Any]) -> str:
    """The README: what it is, and the lines that run it."""
    shape = " x ".join(map(str, said["input"]))
    answer = f"{len(said['classes'])} classes" if said["classes"] else "features"
    steps = f" (height and width in multiples of {said['multiple']})" if said["multiple"] else ""
    frames = said["input"][1] if len(said["input"]) == 5 else None
    code = CODE.format(
        imports=FORMATS[kind].imports,
        runs=FORMATS[kind].runs,
        clip=f"\nbatch = np.stack([batch] * {frames}, 1)  # a clip's frames" if frames else "",
        says='print(config["classes"][logits[0].argmax()])' if said["classes"] else "print(logits)",
    )
    return f"""# {said["model"]}

{FORMATS[kind].about}.
Takes `{graph.INPUT}`, {shape}{steps}, in float32; gives `{graph.OUTPUT}`, {answer}.

```python
{code}
```
"""
