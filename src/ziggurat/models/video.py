"""Clips: any image model with attention over time before each of its blocks.

    clips (B, T, C, H, W) -> (T * B, C, H, W) -> [over time -> block] x depth -> pool -> mean over T

TimeSformer's divided space-time attention (arXiv:2102.05095) on a hierarchical model, as RegionViT
has it (arXiv:2106.02689, Section 4.3 and Table 7); one adapter for all families, and for timm's
plain ViT, which makes it a TimeSformer.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ziggurat.layers.time import SpaceTimeBlock, TimeAttention
from ziggurat.models.backbone import Backbone

INNER = "image_model."
HEAD_DIM = 32  # channels of a head before a block that has no attention: HiViT's first stages


class Place(NamedTuple):
    """Where a block stands."""

    blocks: Any  # a ModuleList or a Sequential
    at: int
    dim: int  # its tokens' width


class SpaceTime(nn.Module):
    """An image model that takes clips, and takes over its weights as they are.

    A clip of one repeated frame is answered as the image was, until the attention over time has
    learned something. ``frames`` is fixed; weights of one number fit any other. Not ``over_time``:
    frames are only averaged, whatever their order, to see what attention over time is good for.

        create_model("regionvit_s", frames=8, num_classes=400)
    """

    def __init__(self, image_model: Any, frames: int, over_time: bool = True) -> None:
        super().__init__()
        if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
            raise ValueError(f"frames is how many a clip has, 1 or more, got {frames!r}")
        self.image_model = image_model
        self.frames = frames
        self.over_time = over_time
        for place in list(places(image_model)) if over_time else ():
            block = place.blocks[place.at]
            time = TimeAttention(place.dim, heads_of(block, place.dim), frames, rate_of(block))
            place.blocks[place.at] = SpaceTimeBlock(time.to(next(block.parameters())), block)
        self.pretrained_cfg = dict(image_model.pretrained_cfg)
        names = self.pretrained_cfg.get("classifier") or "head"
        names = (names,) if isinstance(names, str) else names
        self.pretrained_cfg["classifier"] = tuple(INNER + name for name in names)

    def checked(self, clips: Tensor) -> Tensor:
        """The clips, if there are as many frames as this model is for."""
        if clips.ndim != 5 or clips.shape[1] != self.frames:
            raise ValueError(
                f"{self.name} takes clips as (batch, {self.frames} frames, channels, height, "
                f"width), got {tuple(clips.shape)}: for other numbers of frames build it with "
                "another frames="
            )
        return clips

    def forward_features(self, clips: Tensor) -> Tensor:
        """The image model's features of all frames, time first: (T * B, ...)."""
        return self.image_model.forward_features(self.checked(clips).transpose(0, 1).flatten(0, 1))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool each frame, average them, classify."""
        pooled = self.image_model.forward_head(x, pre_logits=True)
        pooled = pooled.unflatten(0, (self.frames, -1)).mean(0)
        return pooled if pre_logits else self.get_classifier()(pooled)

    def forward(self, clips: Tensor) -> Tensor:
        """Logits (B, num_classes) of clips (B, T, C, H, W)."""
        return self.forward_head(self.forward_features(clips))

    # What others ask of a model, answered by the one inside.

    @property
    def name(self) -> str:
        """The image model's."""
        return str(getattr(self.image_model, "name", type(self.image_model).__name__))

    @property
    def num_classes(self) -> int:
        """How many there are, 0 without a classifier."""
        return self.image_model.num_classes

    @property
    def num_features(self) -> int:
        """Channels that are classified."""
        return self.image_model.num_features

    def get_classifier(self) -> nn.Module:
        """The classifier of images, now of clips."""
        return self.image_model.get_classifier()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh one."""
        self.image_model.reset_classifier(num_classes, global_pool)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """As of the image model; timm's convnets do not say."""
        spared: set[str] = getattr(self.image_model, "no_weight_decay", set)()
        return {INNER + name for name in spared}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> Any:
        """Layers as of the image model; attention over time is of its block's."""
        inner = self.image_model.group_matcher(coarse)
        if callable(inner):
            layer: Callable[[str], Any] = inner
            return lambda name: layer(name.removeprefix(INNER))
        return {
            key: within(pattern)
            if isinstance(pattern, str)
            else [(within(part), order) for part, order in pattern]
            for key, pattern in inner.items()
        }

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Re-compute blocks in backward instead of keeping their activations."""
        self.image_model.set_grad_checkpointing(enable)

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Only our own checkpoints are of clips."""
        return state

    def fit(self, name: str, value: Tensor) -> Tensor:
        """As the image model resizes what was learned at another size."""
        if isinstance(self.image_model, Backbone):
            return self.image_model.fit(name.removeprefix(INNER), value)
        return value


def places(model: nn.Module) -> Iterator[Place]:
    """Where a model's blocks are."""
    if isinstance(model, Backbone):
        for i, dim in enumerate(model.dims):
            stage = model.stage(i)
            yield from (Place(stage.blocks, j, dim) for j in range(len(stage.blocks)))
        return
    blocks, width = getattr(model, "blocks", None), getattr(model, "embed_dim", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not isinstance(width, int):
        raise ValueError(
            f"{type(model).__name__} has no blocks of one width that could look through time: "
            "take one of ours (`ziggurat models`), or a plain ViT of timm's"
        )
    yield from (Place(blocks, j, width) for j in range(len(blocks)))


def heads_of(block: nn.Module, dim: int) -> int:
    """As many as the block's own attention has."""
    attention = getattr(block, "attn", None)
    for name in ("heads", "num_heads"):
        if isinstance(found := getattr(attention, name, None), int):
            return found
    return max(1, dim // HEAD_DIM) if dim % HEAD_DIM == 0 else 1


def rate_of(block: nn.Module) -> float:
    """How often the block leaves its own branches out."""
    for name in ("drop_path", "drop_path1"):
        if isinstance(rate := getattr(getattr(block, name, None), "drop_prob", None), float):
            return rate
    return 0.0


def within(pattern: str) -> str:
    """timm's pattern for names of a model that now stands inside another."""
    return pattern.replace("^", "^" + INNER.replace(".", r"\."), 1)
