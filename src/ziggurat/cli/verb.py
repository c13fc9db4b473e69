"""What the verbs share: how one is added, and how numbers are taken and shown."""

import argparse
from collections.abc import Callable

BAR = "█"
BACKENDS = ("eager", "compile", "onnx", "openvino")  # of ziggurat.engine.backends
CHECKPOINT = "a run's folder (also its best/), a hub id, or NAME:WEIGHTS (timm/resnet50:published)"

Run = Callable[[argparse.Namespace], int | None]  # the exit code; None is 0
Verb = Callable[[Run, str], argparse.ArgumentParser]  # adds one, with an example that names it


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1 up, got {text!r}")
    return int(text)
