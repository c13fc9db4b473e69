"""Hierarchical vision transformers: NesT, HVT, ResT, HiViT and RegionViT, inside timm.

    model = ziggurat.create_model("hivit_base", num_classes=10)

``import ziggurat`` itself is light: torch comes with the first name that needs it. Every variant
is registered in timm too, whichever of the two is imported first.
"""

import sys
from importlib import abc, import_module, machinery, util
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ziggurat import complexity
    from ziggurat.engine.evaluate import evaluate
    from ziggurat.engine.predict import predict
    from ziggurat.engine.train import train
    from ziggurat.models.pretrained import from_pretrained, save_pretrained
    from ziggurat.models.registry import create_model, list_models
    from ziggurat.models.weights import CheckpointError, load_checkpoint

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "complexity",
    "create_model",
    "evaluate",
    "from_pretrained",
    "list_models",
    "load_checkpoint",
    "predict",
    "save_pretrained",
    "train",
]

HOMES = {
    "CheckpointError": "ziggurat.models.weights",
    "create_model": "ziggurat.models.registry",
    "evaluate": "ziggurat.engine.evaluate",
    "from_pretrained": "ziggurat.models.pretrained",
    "list_models": "ziggurat.models.registry",
    "load_checkpoint": "ziggurat.models.weights",
    "predict": "ziggurat.engine.predict",
    "save_pretrained": "ziggurat.models.pretrained",
    "train": "ziggurat.engine.train",
}


def __getattr__(name: str) -> Any:
    """The public functions, imported when first asked for (PEP 562)."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    if name == "complexity":
        return import_module("ziggurat.complexity")
    raise AttributeError(f"module 'ziggurat' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, imported or not."""
    return sorted({*globals(), *__all__})


class RegisterBehindTimm(abc.MetaPathFinder):
    """Registers our variants as soon as timm has been imported, and not before.

    timm has no entry point for plug-ins; importing it here would cost every `ziggurat --help`
    the seconds that torch takes.
    """

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        """timm's own spec, its loader followed by our registration; nothing for other names.

        Others may ask for the spec without importing: only an import takes this finder away.
        """
        if name != "timm" or self.asking:
            return None
        self.asking = True
        try:
            spec = util.find_spec(name)
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            import_module("ziggurat.models.registry")

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec

    asking = False


if "timm" in sys.modules:
    import_module("ziggurat.models.registry")
else:
    sys.meta_path.insert(0, RegisterBehindTimm())
