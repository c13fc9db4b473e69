"""Classification: augmentation, mixing, probing, what is measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import ziggurat
from tests.engine.small_runs import small
from ziggurat.data.loading import seed_all
from ziggurat.engine import train
from ziggurat.tasks.augment import Batch, collate
from ziggurat.tasks.classify import Classify


def task_of(**changes: Any) -> Classify:
    built = train.build(small(**changes))
    assert isinstance(built, Classify)
    return built


def first_batch(task: Classify, count: int = 8) -> Batch:
    samples = task.test_samples()
    return collate([samples.make(i) for i in range(count)])


def test_pixels_are_normalised_as_timm_does() -> None:
    task = task_of()
    batch = first_batch(task)
    from timm.data import create_transform

    config = task.model.pretrained_cfg
    transform = create_transform(
        config["input_size"], mean=config["mean"], std=config["std"], crop_pct=1.0,
        interpolation="bicubic",
    )  # fmt: skip
    theirs = torch.stack([transform(task.data.test.image(i)) for i in range(8)])
    torch.testing.assert_close(task.normalised(batch.images), theirs, rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_cross_entropy_of_mixed_labels() -> None:
    task = task_of(mixup=0.8, cutmix=0.0, label_smoothing=0.1).eval()
    batch = first_batch(task)
    seed_all(1)
    images, targets = task.prepared(batch)
    seed_all(1)
    found = task(batch)["loss"]
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    by_hand = -(targets * task.model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(found, by_hand)
    raw = task.normalised(batch.images)
    share = float(((images - raw.flip(0)) / (raw - raw.flip(0))).nanmedian())
    torch.testing.assert_close(images, share * raw + (1 - share) * raw.flip(0))


def test_cutmix_labels_are_the_shares_of_the_area() -> None:
    task = task_of(mixup=0.0, cutmix=1.0, label_smoothing=0.0)
    batch = first_batch(task)._replace(labels=torch.arange(8))
    seed_all(3)
    images, targets = task.prepared(batch)
    raw = task.normalised(batch.images)
    kept = (images == raw).all(1) | (raw == raw.flip(0)).all(1)
    other = (images == raw.flip(0)).all(1)
    assert (kept | other).all()
    share = targets[torch.arange(8), torch.arange(8)]
    pasted = 1 - share[0]
    assert 0 < pasted < 1
    assert int((~kept[0]).sum()) <= round(float(pasted) * 16 * 16)


def test_an_odd_share_cannot_be_mixed() -> None:
    task = task_of(mixup=0.8)
    with pytest.raises(ValueError, match="mixup pairs the images of a batch, got 7 of them"):
        task(first_batch(task, 7))


def test_measures_agree_with_counting_by_hand() -> None:
    task = task_of()
    model = task.model.eval()
    batch = first_batch(task, 40)
    with torch.no_grad():
        task.measure(model, batch)
        logits = model(task.normalised(batch.images))
    found = task.measured()
    guess = logits.argmax(1)
    assert found["top1"] == 100 * int((guess == batch.labels).sum()) / 40
    five = (logits.topk(5).indices == batch.labels[:, None]).any(1).float().mean()
    assert found["top5"] == pytest.approx(100 * float(five))
    loss = nn.functional.cross_entropy(logits, batch.labels)
    assert found["loss"] == pytest.approx(float(loss), rel=1e-6)
    assert task.last_confusion.sum() == 40
    worst = task.last_mistakes[0]
    losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    assert worst.at == int(batch.at[int(losses.where(guess != batch.labels, -1.0).argmax())])
    with pytest.raises(ValueError, match="no test image could be read"):
        task.measured()  # counting starts afresh


def test_a_probe_trains_the_classifier_alone_and_folds_its_norm(tmp_path: Path) -> None:
    start = train.train(small(epochs=0.2), tmp_path / "start")
    before = ziggurat.from_pretrained(start.folder).state_dict()
    recipe = small(epochs=1, init=str(start.folder), freeze=True, lr=0.05)
    run = train.train(recipe, tmp_path / "probe")
    after = ziggurat.from_pretrained(run.folder).state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]) != name.startswith("head."), name
    assert run.metrics["top1"] > start.metrics["top1"]


def test_a_probes_folded_classifier_answers_as_norm_and_classifier_do() -> None:
    task = task_of(freeze=True)
    norm = task.probe_norm
    assert isinstance(norm, nn.BatchNorm1d)
    norm.running_mean = torch.randn(norm.num_features)
    norm.running_var = torch.rand(norm.num_features) + 0.5
    nn.init.normal_(task.model.head.weight)
    task.eval()
    images = torch.randn(4, 3, 16, 16)
    deployed = task.deployed(task.model)
    assert deployed is not task.model
    torch.testing.assert_close(deployed(images), task.logits(images), rtol=1e-4, atol=1e-4)


def test_fine_tuning_takes_another_size_and_other_classes(tmp_path: Path) -> None:
    start = train.train(small(epochs=0.2), tmp_path / "start")
    images = np.random.default_rng(0).integers(0, 255, (40, 12, 12, 3), np.uint8)
    labels = np.arange(40) % 3
    np.savez(
        tmp_path / "three.npz", train_images=images, train_labels=labels, test_images=images,
        test_labels=labels, classes=np.array(["x", "y", "z"]),
    )  # fmt: skip
    recipe = small(
        init=str(start.folder), data=str(tmp_path / "three.npz"), img_size=24, batch=20,
        layer_decay=0.7,
    )  # fmt: skip
    task: Any = train.build(recipe)
    assert task.model.head.out_features == 3
    assert task.size == (24, 24)
    own = ziggurat.from_pretrained(start.folder).state_dict()
    assert torch.equal(task.model.state_dict()["patch_embed.weight"], own["patch_embed.weight"])
    run = train.train(recipe, tmp_path / "run")
    assert ziggurat.from_pretrained(run.folder).pretrained_cfg["label_names"] == ["x", "y", "z"]


def test_trained_weights_keep_their_normalisation(tmp_path: Path) -> None:
    start = train.train(small(epochs=0.1, mean=(0.1,) * 3, std=(0.9,) * 3), tmp_path / "start")
    tuned: Any = train.build(small(init=str(start.folder)))
    assert tuned.model.pretrained_cfg["mean"] == [0.1] * 3
    asked: Any = train.build(small(init=str(start.folder), mean=(0.2,) * 3))
    assert asked.model.pretrained_cfg["mean"] == (0.2,) * 3
    fresh: Any = train.build(small())
    assert fresh.model.pretrained_cfg["mean"] == fresh.data.mean


def test_foreign_data_without_a_split_is_measured_whole(tmp_path: Path) -> None:
    run = train.train(small(epochs=0.1), tmp_path / "run")
    for name in map(str, range(10)):
        (tmp_path / "more" / name).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), i).save(tmp_path / "more" / name / f"{i}.png")
    assert ziggurat.evaluate(run.folder, str(tmp_path / "more"))[0]["images"] == 30


def test_a_start_of_another_model_is_refused(tmp_path: Path) -> None:
    start = train.train(small(epochs=0.1), tmp_path / "start")
    with pytest.raises(ValueError, match="holds nest_tiny_cifar, not nest_small_cifar"):
        train.build(small(init=str(start.folder), model="nest_small_cifar"))
