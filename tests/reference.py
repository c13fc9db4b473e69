"""The official models' outputs for weights made by a rule (tests/fixtures), and how to compare.

The rule, for a key k of shape s: ``default_rng(crc32(k)).standard_normal(s)`` in float32, times
``scale``; norm weights + 1; running variances abs + 1; ``alias`` is another key's very tensor;
``int`` tables are left to the model. The input is ``default_rng(0).standard_normal``.
"""

import json
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).parent / "fixtures"


class Fixture:
    """One official model: its weights, an input, what came out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.about: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
        self.outputs = dict(np.load(HERE / f"{name}.npz"))

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Official key -> tensor; aliases are given too, integer tables are not."""
        scale = np.float32(self.about["scale"])
        state: dict[str, Tensor] = {}
        for key, entry in self.about["keys"].items():
            if entry["kind"] == "alias":
                state[key] = state[entry["alias_of"]]
                continue
            if entry["kind"] == "int":
                continue
            rng = np.random.default_rng(zlib.crc32(key.encode()))
            value = rng.standard_normal(tuple(entry["shape"])).astype(np.float32) * scale
            if entry["kind"] == "norm_weight":
                value = value + np.float32(1)
            elif entry["kind"] == "running_var":
                value = np.abs(value) + np.float32(1)
            state[key] = torch.from_numpy(np.array(value))
        return state

    @property
    def images(self) -> Tensor:
        shape = tuple(self.about["input"]["shape"])
        return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def slice64(x: Tensor) -> np.ndarray[Any, Any]:
    """The 64 values a fixture keeps of a feature in the official layout."""
    values = x.detach().reshape(-1)
    return values[(torch.arange(64) * (values.numel() - 1)) // 63].double().numpy()


Reading = tuple[str, Callable[[Any], Tensor]]
"""A module's path and how its output (``>path``: its first input) looks in the official layout."""


def check_parity(
    fixture: Fixture, model: nn.Module, readings: dict[str, Reading], atol: float = 1e-5
) -> None:
    """Outputs to ``atol`` in float32 and 1e-8 in float64, and every feature slice in both.

    A fixture's slices are float32 and reach 20 in the stress models, where the last digit alone
    is 2e-6: they are met to ``atol`` of the feature's largest value, or of 1 if that is less.
    """
    missing = fixture.about["features"].keys() - readings.keys()
    assert not missing, f"features of {fixture.name} that nothing compares: {missing}"
    out = fixture.about["output"]
    for dtype, key, exact in ((torch.float32, out, atol), (torch.float64, f"{out}_fp64", 1e-8)):
        model.eval().to(dtype)
        found, caught = run_catching(model, fixture.images.to(dtype), readings)
        for feature, about in fixture.about["features"].items():
            assert list(caught[feature].shape) == about["shape"], feature
            expected = fixture.outputs[f"slice.{feature}"]
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(
                slice64(caught[feature]), expected, rtol=0, atol=atol * scale, err_msg=feature
            )
        np.testing.assert_allclose(found.numpy(), fixture.outputs[key], rtol=0, atol=exact)


def run_catching(
    model: nn.Module, images: Tensor, readings: dict[str, Reading]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The model's answer, and what it passed at each reading."""
    caught: dict[str, Tensor] = {}
    hooks = []
    for feature, (path, read) in readings.items():

        def catch(
            _module: nn.Module,
            came: Any,
            went: Any,
            feature: str = feature,
            read: Callable[[Any], Tensor] = read,
            before: bool = path.startswith(">"),
        ) -> None:
            caught[feature] = read(came[0] if before else went)

        hooks.append(model.get_submodule(path.lstrip(">")).register_forward_hook(catch))
    with torch.no_grad():
        found = model(images)
    for hook in hooks:
        hook.remove()
    return found, caught
