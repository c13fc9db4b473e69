"""Classification with a teacher (NesT, Table A2; DeiT, Section 4, without the second token).

The teacher sees what the student sees, erased and mixed alike, but at its own resolution and in
its own normalisation.
"""

from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ziggurat.data.images import Data
from ziggurat.models.pretrained import open_model
from ziggurat.tasks.augment import Batch, as_bytes
from ziggurat.tasks.classify import Classify, ClassifySettings, check_classes
from ziggurat.tasks.task import Settings, Wanted


class DistillSettings(ClassifySettings):
    """Classification's, and whom to learn from."""

    teacher: str  # a run's folder, a hub id, or a name of ours or timm's
    teacher_weights: str | None = None  # a checkpoint for a name; None: its published weights
    distillation: Literal["soft", "hard"] = "hard"
    alpha: float = Field(0.5, ge=0, le=1)  # the teacher's share of the loss
    tau: float = Field(1.0, gt=0)  # soft: the temperature


class Distill(Classify):
    """Classify, with a teacher's answer beside the label.

    hard: (1 - alpha) CE(student, label) + alpha CE(student, teacher's class)
    soft: (1 - alpha) CE(student, label) + alpha tau^2 KL(teacher / tau, student / tau)
    """

    Settings: ClassVar[type[Settings]] = DistillSettings
    settings: DistillSettings
    teacher_mean: Tensor
    teacher_std: Tensor

    @classmethod
    def build(cls, wanted: Wanted, settings: Any, data: Any) -> Self:
        """With its teacher at hand; a finished student is measured without."""
        task = super().build(wanted, settings, data)
        task.listen(data)
        return task

    def listen(self, data: Data) -> None:
        """Fetch the teacher, and what it wants to see."""
        source = self.settings.teacher_weights or "published"
        teacher = open_model(self.settings.teacher, source).eval()
        teacher.requires_grad_(False)
        advice = "fine-tune or probe it on this data first"
        check_classes(f"the teacher {self.settings.teacher}", teacher, data, advice)
        config = teacher.pretrained_cfg
        self.teacher = [teacher]  # in a list: neither trained nor saved
        self.teacher_size: tuple[int, int] = tuple(config["input_size"][1:])
        self.register_buffer("teacher_mean", as_bytes(config["mean"]), persistent=False)
        self.register_buffer("teacher_std", as_bytes(config["std"]), persistent=False)

    def forward(self, batch: Batch, player: str = "model") -> dict[str, Tensor]:
        """The label's loss and the teacher's."""
        images, targets = self.prepared(batch)
        logits = self.logits(images).float()
        found = self.losses(logits, targets)
        taught = self.taught(images)
        if self.settings.distillation == "hard":
            loss = F.cross_entropy(logits, taught.argmax(1))
        else:
            tau = self.settings.tau
            loss = tau**2 * F.kl_div(
                (logits / tau).log_softmax(1),
                (taught / tau).log_softmax(1),
                reduction="batchmean",
                log_target=True,
            )
        alpha = self.settings.alpha
        return found | {
            "loss": (1 - alpha) * found["loss"] + alpha * loss,
            "label_loss": found["loss"].detach(),
            "teacher_loss": loss.detach(),
        }

    @torch.no_grad()
    def taught(self, images: Tensor) -> Tensor:
        """The teacher's logits for the student's images."""
        teacher = self.teacher[0].to(images.device)
        pixels = images * self.std + self.mean
        if tuple(pixels.shape[2:]) != self.teacher_size:
            pixels = F.interpolate(pixels, self.teacher_size, mode="bicubic", antialias=True)
        found: Tensor = teacher((pixels - self.teacher_mean) / self.teacher_std)
        return found.float()
