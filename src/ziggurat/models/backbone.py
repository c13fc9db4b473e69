"""The contract of every family: what tasks, timm and its users ask of a model.

A family says how an image becomes a state (``embed``), what its stages do to the state, and, if
the state is more than a map, how it is read: as a map (``stage_map``) or as what the head pools
(``normed``, ``finish``, ``pool``). All of timm's methods follow from these.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from timm.models import adapt_input_conv, checkpoint
from torch import Tensor, nn

from ziggurat.layers.position import LearnedTable


class Features(NamedTuple):
    """``maps`` feed dense tasks, ``pooled`` classification: other tokens in RegionViT (Fig. 2)."""

    maps: list[Tensor]  # one (B, C, H, W) a stage, finest first
    pooled: Tensor  # (B, C)


class Stage(nn.Module):
    """One resolution: ``blocks`` run one after the other, re-computed in backward if asked."""

    blocks: nn.ModuleList
    checkpointing = False

    def step(self, block: nn.Module, *args: Any) -> Any:
        """One block."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *args)
        return block(*args)

    def run(self, x: Tensor, *context: Any) -> Tensor:
        """Tokens through all blocks; ``context`` is what each wants beside them."""
        for block in self.blocks:
            x = self.step(block, x, *context)
        return x


class Backbone(nn.Module):
    """A hierarchical vision transformer that speaks timm's language.

    ``name`` is the variant's name and appears in errors; ``overrides`` is what the user changed
    of that variant. Both are set by ``create_model`` and travel with ``save_pretrained``.
    """

    name = "this model"
    overrides: dict[str, Any]
    first_conv: ClassVar[str | tuple[str, ...]]  # modules that see the image's channels
    graph_for_each_size: ClassVar[bool] = True  # how windows are cut is not one formula for all
    exports_any_size: ClassVar[bool] = False  # to a graph that holds for multiples of its stride
    only_mean: ClassVar[bool] = False  # of the last block's tokens is used where there is pooling
    stages: nn.ModuleList
    head: nn.Module
    norm: nn.Module

    def __init__(
        self,
        img_size: int | tuple[int, int],
        in_chans: int,
        num_classes: int,
        dims: Sequence[int],
        strides: Sequence[int],
        drop_rate: float,
        global_pool: str,
        smallest: int = 1,
    ) -> None:
        super().__init__()
        self.img_size = pair(img_size)
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = dims[-1]
        self.dims = tuple(dims)
        self.strides = tuple(strides)
        self.smallest = smallest
        self.global_pool = checked_pool(global_pool)
        self.final = nn.Identity()  # passes what the head pools: a target layer for Grad-CAM
        self.head_drop = nn.Dropout(drop_rate)
        self.feature_info: list[dict[str, Any]] = [
            {"num_chs": dim, "reduction": stride, "module": f"stages.{i}"}
            for i, (dim, stride) in enumerate(zip(dims, strides, strict=True))
        ]

    # What a family says of itself.

    def embed(self, images: Tensor) -> Any:
        """Images (B, in_chans, H, W) to what the first stage takes."""
        raise NotImplementedError

    def stage_map(self, state: Any) -> Tensor:
        """What a stage left behind, as a map (B, C, H, W); it is one already, channels last."""
        return state.permute(0, 3, 1, 2)

    def normed(self, state: Any) -> Any:
        """The last state behind the final norm; as it is if that norm is not one of the map."""
        return self.norm(state)

    def finish(self, state: Any) -> Tensor:
        """What the last stage left behind, as the head takes it: here a map (B, C, H, W)."""
        return self.stage_map(self.normed(state))

    def pool(self, features: Tensor) -> Tensor:
        """``finish``'s answer, averaged over positions: (B, C)."""
        return features.mean((2, 3))

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The official checkpoint's names (and layouts) to ours; ours as they are."""
        return state

    def fit(self, name: str, value: Tensor) -> Tensor:
        """A checkpoint's tensor of another resolution or window, resized to this model's.

        What cannot be resized comes back as it is, and is reported as of another shape.
        """
        owner, _, last = name.rpartition(".")
        module = self.get_submodule(owner)
        if last == "table" and isinstance(module, LearnedTable):
            return module.fit(value)
        first = (self.first_conv,) if isinstance(self.first_conv, str) else self.first_conv
        if owner in first and last == "weight" and value.shape[1] in (1, 3):
            return adapt_input_conv(
                self.in_chans, value.expand(-1, 3, -1, -1) / (3 / value.shape[1])
            )
        return value

    # What follows from it.

    def stage(self, i: int) -> Stage:
        """One of ``stages``, typed."""
        stage = self.stages[i]
        assert isinstance(stage, Stage)
        return stage

    def checked(self, images: Tensor) -> Tensor:
        """The images, if this model can take them; one clear error if not."""
        if images.ndim != 4:
            raise ValueError(
                f"{self.name} takes images as (batch, channels, height, width), "
                f"got {tuple(images.shape)}"
            )
        if not images.is_floating_point():
            raise ValueError(
                f"{self.name} takes normalised float images, got {images.dtype}: "
                "divide by 255, subtract the mean and divide by the deviation"
            )
        channels, height, width = images.shape[1:]
        if channels != self.in_chans:
            raise ValueError(
                f"{self.name} takes {self.in_chans} channels, got {channels}: "
                f"build it with in_chans={channels} or convert the images"
            )
        free = self.exports_any_size and torch.compiler.is_exporting()
        if self.graph_for_each_size and not free:  # torch would look for that formula for minutes
            height, width = operator.index(height), operator.index(width)
        if min(height, width) < self.smallest:
            raise ValueError(
                f"{self.name} takes images from {self.smallest} x {self.smallest} pixels up, "
                f"got {height} x {width}: enlarge them or take a smaller patch_size"
            )
        return images

    def forward_features(self, images: Tensor) -> Tensor:
        """All stages, and the norm where it comes before pooling."""
        state = self.embed(self.checked(images))
        for stage in self.stages:
            state = stage(state)
        return self.final(self.finish(state))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify; ``pre_logits`` stops before the classifier."""
        if self.global_pool:
            x = self.pool(x)
        elif self.num_classes and not pre_logits:
            raise ValueError(
                f"{self.name} has {self.num_classes} classes but does not pool: "
                'build it with num_classes=0, or with global_pool="avg"'
            )
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes); features if the classifier was removed."""
        return self.forward_head(self.forward_features(images))

    def forward_stages(self, images: Tensor) -> Features:
        """Every stage's map and the pooled features, from one pass."""
        state = self.embed(self.checked(images))
        maps = []
        for stage in self.stages:
            state = stage(state)
            maps.append(self.stage_map(state))
        return Features(maps, self.pool(self.finish(state)))

    def taken(self, indices: int | Sequence[int] | None) -> list[int]:
        """timm's way to name stages: None for all, an int for the last n, or their indices."""
        stages = len(self.stages)
        if indices is None:
            return list(range(stages))
        if isinstance(indices, int):
            indices = range(-indices, 0)
        if not indices or not all(-stages <= i < stages for i in indices):
            raise IndexError(f"{self.name} has stages 0 to {stages - 1}, got {list(indices)}")
        return [i % stages for i in indices]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Maps of the chosen stages, and the final features, as timm's models give them.

        ``norm`` applies the final norm to the last stage's map, if the family's norm is of that
        map: HiViT's comes behind the mean, RegionViT's is the regional tokens'.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt is NCHW or NHWC, got {output_fmt!r}")
        take = self.taken(indices)
        state = self.embed(self.checked(x))
        maps = []
        for i, stage in enumerate(self.stages):
            if stop_early and i > max(take):
                break
            state = stage(state)
            if i in take:
                last = i == len(self.dims) - 1  # stages may have been pruned
                found = self.stage_map(self.normed(state) if norm and last else state)
                maps.append(found if output_fmt == "NCHW" else found.permute(0, 2, 3, 1))
        return maps if intermediates_only else (self.final(self.finish(state)), maps)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] | None = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Drop what the chosen stages do not need, so that every parameter left is used."""
        take = self.taken(indices)
        self.stages = self.stages[: max(take) + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def get_classifier(self) -> nn.Module:
        """The classifier: a linear layer, or an identity once removed."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh classifier of ``num_classes``, none for 0."""
        if global_pool is not None:
            self.global_pool = checked_pool(global_pool)
        self.num_classes = num_classes
        here = next(self.parameters())
        self.head = classifier(self.num_features, num_classes).to(here.device, here.dtype)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """Learned positions."""
        return {
            f"{name}.table"
            for name, module in self.named_modules()
            if isinstance(module, LearnedTable)
        }

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """Layer of a parameter, for layer-wise decay: stem, then every block, then the head.

        What leads into a stage (merging, pooling, positions) goes with the block before it, as
        in HiViT's fine-tuning code; ``coarse`` makes each stage one layer.
        """
        starts = [0]
        for i in range(len(self.stages)):
            starts.append(starts[-1] + len(self.stage(i).blocks))

        def layer(name: str) -> tuple[float, ...]:
            part, _, rest = name.partition(".")
            if part in ("norm", "head"):
                return (float("inf"),)
            if part != "stages":
                return (0,)
            index, _, rest = rest.partition(".")
            stage = int(index)
            if coarse:
                return (stage + 1,)
            part, _, rest = rest.partition(".")
            if part != "blocks":
                return (starts[stage],)
            return (starts[stage] + int(rest.split(".")[0]) + 1,)

        return layer

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Re-compute blocks in backward instead of keeping their activations."""
        for i in range(len(self.stages)):
            self.stage(i).checkpointing = enable


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """One side or (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"an image has at least one pixel a side, got img_size={size}")
    return height, width


def per_stage(value: int | Sequence[int], stages: int, what: str) -> tuple[int, ...]:
    """One value for all stages, or one for each."""
    values = (value,) * stages if isinstance(value, int) else tuple(value)
    if len(values) != stages:
        raise ValueError(f"{stages} stages need {stages} values of {what}, got {values}")
    return values


def choice(value: str, allowed: Sequence[str], what: str) -> str:
    """The value, if it is one of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{what} is one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def checked_pool(global_pool: str) -> str:
    """timm's ways to pool that make sense here: the mean, or none at all."""
    return choice(global_pool, ("avg", ""), "global_pool")


def init_weights(module: nn.Module) -> None:
    """DeiT's way: N(0, 0.02) for linear layers and tables, biases 0, convolutions as torch's."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, LearnedTable):
        nn.init.trunc_normal_(module.table, std=0.02)


def classifier(dim: int, classes: int) -> nn.Module:
    """A linear classifier, or an identity for 0 classes."""
    if not classes:
        return nn.Identity()
    head = nn.Linear(dim, classes)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head
