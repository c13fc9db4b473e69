"""Optimiser and schedule from a recipe, through timm."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn

from ziggurat.engine.recipe import Recipe, RecipeError

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)  # one kernel for a whole step


def optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Weights decay, biases, norms and what the model names do not; layers by their depth."""
    known = [str(name) for name in list_optimizers()]
    if recipe.optimizer not in known:
        raise RecipeError(
            f"{recipe.name}: optimizer is one of timm's ({', '.join(known[:8])} ...), "
            f"got {recipe.optimizer!r}"
        )
    options: dict[str, Any] = {"betas": recipe.betas, "eps": recipe.eps}
    options = {key: value for key, value in options.items() if value is not None}
    if get_optimizer_class(recipe.optimizer, bind_defaults=False) in FUSED:
        options["fused"] = True
    return create_optimizer_v2(
        model,
        recipe.optimizer,
        lr=recipe.peak_lr,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        layer_decay=recipe.layer_decay,
        **options,
    )


class Schedule:
    """The learning rate of each step: a function of the step alone."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, per_epoch: int) -> None:
        self.optimizer = optimizer
        self.steps = max(1, round((recipe.epochs + recipe.cooldown_epochs) * per_epoch))
        cosine = max(1, round(recipe.epochs * per_epoch))
        warmup = min(round(recipe.warmup_epochs * per_epoch), cosine - 1)
        constant = recipe.schedule == "constant"  # a step that never comes
        every = 2**62 if constant else max(1, round(recipe.decay_epochs * per_epoch))
        kind: str = "step" if constant else recipe.schedule
        if kind == "step" and recipe.decay_at and not constant:
            kind = "multistep"
        self.scheduler: Scheduler
        self.scheduler, _ = create_scheduler_v2(
            optimizer,
            kind,
            num_epochs=cosine,  # "epochs" of one step: timm counts in whole ones
            decay_epochs=every,
            # timm's comes one step early
            decay_milestones=[round(at * per_epoch) + 1 for at in sorted(recipe.decay_at)],
            decay_rate=recipe.power if kind == "poly" else recipe.decay_rate,
            min_lr=recipe.min_lr,
            warmup_lr=recipe.warmup_lr,
            warmup_epochs=warmup,
            step_on_epochs=False,
            updates_per_epoch=1,
        )

    def set(self, step: int) -> float:
        """Set the learning rate of ``step``; the highest of any layer is returned."""
        self.scheduler.step_update(step)
        return max(float(group["lr"]) for group in self.optimizer.param_groups)
