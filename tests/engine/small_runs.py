"""Runs that take seconds: a NesT of two levels on digits."""

from pathlib import Path
from typing import Any

from ziggurat.engine import recipe
from ziggurat.engine.recipe import Recipe

SMALL: dict[str, Any] = {
    "name": "small",
    "task": "classify",
    "data": "digits",
    "model": "nest_tiny_cifar",
    "model_args": {"dims": [16, 32], "depths": [1, 1], "heads": [1, 2], "patch_size": 2},
    "img_size": 16,
    "epochs": 1,
    "batch": 64,
    "lr": 2e-3,
    "lr_per": 0,
    "warmup_epochs": 0.2,
    "crop": "pad",
    "crop_padding": 1,
    "test_crop": 1.0,
    "flip": 0.0,
    "auto_augment": "none",
    "color_jitter": 0.0,
    "erase": 0.0,
    "drop_path": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "log_steps": 1,
    "eval_epochs": 100,
    "workers": 0,
}
ALL_RANDOM: dict[str, Any] = {  # everything that draws random numbers
    "auto_augment": "rand-m9-mstd0.5-inc1",
    "flip": 0.5,
    "erase": 0.25,
    "drop_path": 0.2,
    "drop": 0.1,
    "mixup": 0.8,
    "cutmix": 1.0,
    "repeats": 2,
    "ema": 0.99,
    "clip_grad": 1.0,
    "accumulate": 2,
    "workers": 1,
}


def small(**changes: Any) -> Recipe:
    """The small recipe with changes; that of another task is given whole."""
    return recipe.parse(changes if "name" in changes else SMALL | changes, "small")


def write(path: Path, **changes: Any) -> Path:
    """The small recipe as a file."""
    path.write_text(small(**changes).dump())
    return path
