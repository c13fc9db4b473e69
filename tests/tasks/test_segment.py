"""Segmentation: every family under UPerNet, maps that stay on their images, what is measured."""

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
from torchvision import tv_tensors

import ziggurat
from tests.engine.small_runs import small
from tests.tasks.small_scenes import CLASSES, write
from tests.tasks.test_masking import FAMILIES
from tests.tasks.test_upernet import images_of, tiny
from ziggurat.cli import main
from ziggurat.data.loading import seed_all
from ziggurat.data.scenes import VOID, SceneData, open_scenes
from ziggurat.engine import train
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.optim import optimizer
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks import segment
from ziggurat.tasks.dense import DenseBatch, Labels, scaled, train_steps
from ziggurat.tasks.heads import read_head
from ziggurat.tasks.segment import (
    Part,
    Segment,
    SegmentSettings,
    labels_of,
    logits_of,
    scores,
)
from ziggurat.tasks.task import Wanted
from ziggurat.tasks.upernet import UPerNet, stretched

NEST = "nest_tiny_cifar"
OURS = [name for name in FAMILIES if not name.startswith("timm/")]
SMALL: dict[str, Any] = {"sides": (32,), "crop": (32, 32), "flip": 0.0, "width": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("scenes"), {"train": 8, "val": 4})


@pytest.fixture(scope="module")
def data(folder: Path) -> SceneData:
    return open_scenes(folder, 0)


def task_of(data: SceneData, name: str = NEST, **changes: Any) -> Segment:
    seed_all(0)
    wanted = Wanted(name, {"img_size": 32, **FAMILIES[name]}, None)
    return Segment.build(wanted, SegmentSettings(**SMALL | changes), data)


def batch_of(found: Segment, count: int = 4, test: bool = False) -> DenseBatch:
    samples = found.test_samples() if test else found.train_samples()
    seed_all(1)
    return samples.collate([samples.make(i) for i in range(count)])


def measured(found: Segment, at_once: int = 4) -> dict[str, float]:
    samples = found.test_samples()
    found.eval()
    for first in range(0, len(found.data.test), at_once):
        last = min(first + at_once, len(found.data.test))
        found.measure(found.model, samples.collate([samples.make(i) for i in range(first, last)]))
    return found.measured()


def mixed(found: Segment) -> Segment:
    """With answers of several classes, however little it has learnt."""
    seed_all(3)
    nn.init.normal_(found.model.classifier[1].weight)
    nn.init.zeros_(found.model.classifier[1].bias)
    return found


# Every family.


@pytest.mark.parametrize("name", OURS)
def test_every_family_learns_and_is_read_back_to_the_same_numbers(
    name: str, data: SceneData, tmp_path: Path
) -> None:
    found = task_of(data, name)
    batch = batch_of(found)
    rule = torch.optim.AdamW(found.parameters(), 5e-3)
    losses = []
    for _ in range(12):
        loss = found(batch)["loss"]
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    numbers = measured(mixed(found))
    found.save(tmp_path, found.model)
    again = Segment.saved(tmp_path, found.settings, data)
    assert measured(again) == numbers
    assert torch.equal(again.counts, found.counts)
    assert (found.counts.sum(0) > 0).sum() > 1  # not all are one class
    images = found.normaliser(batch.images)
    with torch.no_grad():
        assert torch.equal(again.model(again.normaliser(batch.images)), found.model(images))
    head = read_head(tmp_path)
    assert head is not None
    assert (head.task, head.about) == ("segment", {"classes": list(CLASSES)})
    assert SegmentSettings(**head.settings) == found.settings
    assert ziggurat.from_pretrained(tmp_path).name == found.whole[0].name


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("norm", [True, False])
def test_every_parameter_gets_a_gradient(name: str, norm: bool, data: SceneData) -> None:
    found = task_of(data, name, norm=norm, aux_weight=0.4)
    losses = found(batch_of(found))
    losses["loss"].backward()
    assert [n for n, p in found.named_parameters() if p.grad is None] == []
    without = task_of(data, name, norm=norm)
    without(batch_of(without))["loss"].backward()
    assert [n for n, p in without.named_parameters() if p.grad is None] == []


def test_a_frozen_backbone_stays_as_it_is(data: SceneData) -> None:
    found = task_of(data, "hvt_ti_1", freeze=True, drop_path=0.5)
    found.train()
    assert found.model.decoder.training
    assert not any(m.training for m in found.model.pyramid.backbone.modules())
    found(batch_of(found))["loss"].backward()
    lacking = [n for n, p in found.named_parameters() if p.grad is None]
    assert lacking
    assert all(n.startswith("model.pyramid.backbone.") for n in lacking)
    own = [n for n, _ in found.named_parameters() if n.startswith("model.pyramid.backbone.")]
    assert lacking == own


def test_layers_of_the_backbone_are_decayed_one_by_one(folder: Path) -> None:
    model = tiny()
    matcher = model.group_matcher()
    backbone = model.pyramid.backbone
    first = next(n for n, _ in backbone.named_parameters())
    assert matcher(f"pyramid.backbone.{first}") == (0.0,)
    assert matcher("decoder.fusion_block.0.weight") == matcher("classifier.1.weight")
    assert matcher("classifier.1.weight")[0] == float("inf")
    own = {f"pyramid.backbone.{n}" for n in backbone.no_weight_decay()}
    assert model.no_weight_decay() == own
    recipe = recipe_of(folder, layer_decay=0.5)
    scales = {group["lr_scale"] for group in optimizer(model, recipe).param_groups}
    assert {1.0, 0.5, 0.25} <= scales


# Images of any size.


def test_a_convolutional_network_of_timm_segments_odd_sizes() -> None:
    seed_all(0)
    options: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8), "num_classes": 0}
    model = UPerNet(ziggurat.create_model("timm/convnext_atto", **options), 4, width=8).eval()
    found = labels_of(model, images_of((51, 43))[0], (51, 43), SegmentSettings(**SMALL))
    assert found.shape == (51, 43)


def test_an_image_is_measured_the_same_whatever_is_beside_it(data: SceneData) -> None:
    found = mixed(task_of(data))
    alone = measured(found, at_once=1)
    counts = found.counts
    assert (counts.sum(0) > 0).sum() > 1
    assert measured(found) == alone
    assert torch.equal(found.counts, counts)
    assert alone["images"] == 4


def test_maps_of_different_sizes_are_joined_with_void(data: SceneData) -> None:
    found = task_of(data, crop=None)
    batch = batch_of(found)
    assert len({image.shape for image in batch.images}) == 2
    losses = found.eval()(batch)
    targets = segment.joined([target["labels"] for target in batch.targets])
    assert targets.shape == (4, 40, 40)
    with torch.no_grad():
        logits = found.model(found.normaliser(batch.images))
    each = [
        F.cross_entropy(
            stretched(logits[i : i + 1], 4, (40, 40))[..., :H, :W],
            target["labels"][None].long(),
            ignore_index=VOID,
            reduction="none",
        )
        for i, target in enumerate(batch.targets)
        for H, W in [target["labels"].shape]
    ]
    pixels = sum(int((target["labels"] != VOID).sum()) for target in batch.targets)
    by_hand = torch.stack([x.sum() for x in each]).sum() / pixels
    torch.testing.assert_close(losses["loss"], by_hand)


# Void.


def test_void_pixels_count_for_nothing(data: SceneData) -> None:
    found = task_of(data).eval()
    batch = batch_of(found, test=False)
    base = found(batch)
    half = [{"labels": t["labels"].clone()} for t in batch.targets]
    for target in half:
        target["labels"][:16] = VOID
    losses = found(batch._replace(targets=half))
    with torch.no_grad():
        logits = stretched(found.model(found.normaliser(batch.images)), 4, (32, 32))
    true = torch.stack([t["labels"] for t in half]).long()
    lower = logits[:, :, 16:].permute(0, 2, 3, 1)[true[:, 16:] != VOID]
    torch.testing.assert_close(
        losses["loss"], F.cross_entropy(lower, true[:, 16:][true[:, 16:] != VOID])
    )
    right = (lower.argmax(1) == true[:, 16:][true[:, 16:] != VOID]).double().mean()
    assert float(losses["accuracy"]) == pytest.approx(100 * float(right), rel=1e-5)
    assert not torch.equal(losses["loss"], base["loss"])


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_a_batch_of_void_alone_has_no_loss_and_no_gradient(weight: float, data: SceneData) -> None:
    found = task_of(data, aux_weight=weight)
    batch = batch_of(found)
    void = [{"labels": torch.full_like(t["labels"], VOID)} for t in batch.targets]
    losses = found(batch._replace(targets=void))
    assert {key: float(value.detach()) for key, value in losses.items()} == dict.fromkeys(losses, 0)
    losses["loss"].backward()
    assert all(p.grad is not None and not p.grad.any() for p in found.parameters())


def test_maps_are_scaled_without_mixing_classes_and_padded_with_void() -> None:
    labels = Labels(torch.tensor([[0, 7], [7, 200]], dtype=torch.uint8))
    image = tv_tensors.Image(torch.full((3, 2, 2), 9, dtype=torch.uint8))
    settings = SegmentSettings(sides=(6,), crop=(10, 9), flip=0.0)
    seed_all(0)
    larger, target = train_steps(settings, scaled((6,), None))(image, {"labels": labels})
    found = target["labels"]
    assert type(found) is Labels
    assert found.shape == (10, 9) == larger.shape[1:]
    inner = found.as_subclass(Tensor)
    assert sorted(inner.unique().tolist()) == [0, 7, 200, VOID]
    there = inner != VOID
    assert int(there.sum()) == 36
    block = inner[there].reshape(6, 6)
    assert torch.equal(
        block, labels.as_subclass(Tensor).repeat_interleave(3, 0).repeat_interleave(3, 1)
    )
    assert (larger[:, there] == 9).all()
    grey = torch.tensor([124, 116, 104], dtype=torch.uint8)  # ImageNet's mean
    assert (larger[:, ~there] == grey[:, None]).all()
    mask = train_steps(settings, scaled((6,), None))(
        image, {"masks": tv_tensors.Mask(labels[None])}
    )
    assert VOID not in mask[1]["masks"].unique().tolist()  # other masks are padded with nothing


def test_a_flip_takes_the_map_with_it(data: SceneData) -> None:
    plain, flipped = (batch_of(task_of(data, crop=None, flip=flip)) for flip in (0.0, 1.0))
    for i in range(4):
        assert torch.equal(plain.images[i].flip(-1), flipped.images[i])
        assert torch.equal(plain.targets[i]["labels"].flip(-1), flipped.targets[i]["labels"])


def test_training_images_and_their_maps_are_cut_alike(data: SceneData) -> None:
    batch = batch_of(task_of(data, sides=(32, 48), crop=(24, 28), flip=0.5), 8)
    for image, target in zip(batch.images, batch.targets, strict=True):
        labels = target["labels"]
        assert image.shape == (3, 24, 28)
        assert labels.shape == (24, 28)
        assert labels.dtype == torch.uint8
        red = (image[0] > 150) & (image[1] < 90)
        both = red & (labels == 1)
        assert both.sum() >= 0.8 * max(red.sum(), (labels == 1).sum())


# A part that shows more than one class.


def stripes(share: float) -> Labels:
    labels = torch.zeros(100, 100, dtype=torch.uint8)
    labels[:, round(100 * (1 - share)) :] = 1
    return Labels(labels)


def test_a_part_of_mostly_one_class_is_drawn_again() -> None:
    image = tv_tensors.Image(torch.zeros(3, 100, 100, dtype=torch.uint8))
    good = {}
    for most in (0.75, 1.0):
        seed_all(0)
        part = Part((20, 20), most)
        found = [part(image, {"labels": stripes(0.5)})[1]["labels"] for _ in range(60)]
        shares = [float(labels.as_subclass(Tensor).float().mean()) for labels in found]
        good[most] = sum(0.25 <= share <= 0.75 for share in shares)
    assert good[1.0] < 15  # 11 of 81 places
    assert 35 < good[0.75] < 60  # 1 - (70 / 81)^11 = 80 %


def test_void_decides_nothing_about_a_part() -> None:
    part = Part((4, 4), 0.75)
    labels = torch.full((4, 4), VOID, dtype=torch.uint8)
    assert not part.varied(labels)
    labels[0] = 0
    assert not part.varied(labels)
    labels[0, 0] = 1
    assert part.varied(labels)  # three of four
    assert Part((4, 4), 1.0).varied(torch.full((4, 4), VOID, dtype=torch.uint8))


def test_a_part_is_no_larger_than_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    image = tv_tensors.Image(torch.zeros(3, 10, 100, dtype=torch.uint8))
    found, target = Part((20, 20), 0.75)(image, {"labels": Labels(torch.zeros(10, 100).byte())})
    assert found.shape == (3, 10, 20)
    assert target["labels"].shape == (10, 20)
    assert type(target["labels"]) is Labels
    tries: list[Tensor] = []

    def refuse(_: Part, labels: Tensor) -> bool:
        tries.append(labels)
        return False

    monkeypatch.setattr(Part, "varied", refuse)
    Part((20, 20), 0.75)(image, {"labels": Labels(torch.zeros(10, 100).byte())})
    assert len(tries) == 11


# Windows.


@pytest.mark.parametrize("slide", [(45, 36), (64, 64), (45, 99)])
def test_one_window_is_the_whole_image(slide: tuple[int, int]) -> None:
    model = tiny().eval()
    (image,) = images_of((45, 36))
    whole = logits_of(model, image, SegmentSettings(**SMALL))
    assert torch.equal(whole, stretched(model([image]), 4, (45, 36))[0])
    assert torch.equal(logits_of(model, image, SegmentSettings(**SMALL, slide=slide)), whole)


def test_windows_are_averaged_where_they_meet() -> None:
    model = tiny().eval()
    (image,) = images_of((32, 50))
    settings = SegmentSettings(**SMALL, slide=(32, 32), slide_stride=(32, 16))
    with torch.no_grad():
        found = logits_of(model, image, settings)
        parts = [stretched(model([image[..., x : x + 32]]), 4, (32, 32))[0] for x in (0, 16, 18)]
    padded = [F.pad(p, (x, 50 - 32 - x)) for x, p in zip((0, 16, 18), parts, strict=True)]
    count = sum(F.pad(torch.ones(32, 32), (x, 18 - x)) for x in (0, 16, 18))
    torch.testing.assert_close(found, (padded[0] + padded[1] + padded[2]) / count)
    assert torch.equal(found[..., :16], parts[0][..., :16])


@pytest.mark.parametrize("size", [(32, 32), (33, 70), (20, 45)])
def test_windows_leave_nothing_out(size: tuple[int, int]) -> None:
    model = tiny().eval()
    (image,) = images_of(size)
    with torch.no_grad():
        found = logits_of(model, image, SegmentSettings(**SMALL, slide=(16, 16)))
    assert found.shape == (4, *size)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slide_stride": (8, 8)}, "slide_stride should come with slide"),
        ({"slide": (16, 16), "slide_stride": (8, 17)}, r"no more than the window's \(16, 16\)"),
        ({"most_of_one": 0.0}, "greater than 0"),
    ],
)
def test_windows_that_leave_gaps_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SegmentSettings(**SMALL, **changes)


def test_labels_have_the_size_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = tiny().eval(), SegmentSettings(**SMALL)
    (image,) = images_of((32, 40))
    found = labels_of(model, image, (77, 91), settings)
    logits = logits_of(model, image, settings)[None]
    larger = F.interpolate(logits, (77, 91), mode="bilinear", align_corners=False)
    assert torch.equal(found, larger.argmax(1)[0].byte())
    for few in (1, 3 * 77 * 91):
        monkeypatch.setattr(segment, "AT_ONCE", few)  # classes one by one, and three by three
        assert torch.equal(labels_of(model, image, (77, 91), settings), found)
    assert len(found.unique()) > 1


# Batches.


def test_one_image_at_a_time_is_refused_in_training_alone(data: SceneData) -> None:
    found = task_of(data)
    with pytest.raises(ValueError, match="at least 2 images at a time in a process, got 1: take"):
        found.check_share(1)
    found.check_share(2)
    with pytest.raises(ValueError, match="at least 2 images"):
        found(batch_of(found, 1))
    assert found.eval()(batch_of(found, 1))["loss"].isfinite()


def test_the_auxiliary_loss_is_weighed(data: SceneData) -> None:
    found = task_of(data, aux_weight=0.4).eval()
    batch = batch_of(found)
    losses = found(batch)
    images = found.normaliser(batch.images)
    logits, aux = found.model(images, auxiliary=True)
    assert aux.shape == (4, 4, 2, 2)
    assert torch.equal(logits, found.model(images))
    targets = torch.stack([t["labels"] for t in batch.targets]).long()
    first, second = (
        F.cross_entropy(stretched(x, stride, (32, 32)), targets, ignore_index=VOID)
        for x, stride in ((logits, 4), (aux, 16))
    )
    torch.testing.assert_close(losses["loss"], first + 0.4 * second)
    torch.testing.assert_close(losses["aux_loss"], second)


# What is measured.


def test_measures_agree_with_torchmetrics(data: SceneData) -> None:
    found = mixed(task_of(data, slide=(24, 24)))
    numbers = measured(found, at_once=3)
    shape: dict[str, Any] = {"num_classes": 4, "ignore_index": VOID}
    iou = MulticlassJaccardIndex(**shape)
    each = MulticlassJaccardIndex(**shape, average="none")
    classwise = MulticlassAccuracy(**shape, average="none")
    overall = MulticlassAccuracy(**shape, average="micro")
    batch = batch_of(found, 4, test=True)
    images = found.normaliser(batch.images)
    for image, target, size in zip(images, batch.targets, batch.sizes, strict=True):
        assert target["labels"].shape == size
        labels = labels_of(found.model, image, size, found.settings)
        for metric in (iou, each, classwise, overall):
            metric.update(labels.long()[None], target["labels"].long()[None])
    assert numbers["miou"] == pytest.approx(100 * float(iou.compute()), rel=1e-5)
    assert numbers["accuracy"] == pytest.approx(100 * float(overall.compute()), rel=1e-5)
    own = 100 * classwise.compute()[:3]  # no unicorns, which torchmetrics would count as missed
    assert numbers["class_accuracy"] == pytest.approx(float(own.mean()), rel=1e-5)
    by_class = found.by_class()
    for i, name in enumerate(CLASSES[:3]):
        assert by_class[name]["iou"] == pytest.approx(100 * float(each.compute()[i]), rel=1e-5)
        assert by_class[name]["accuracy"] == pytest.approx(float(own[i]), rel=1e-5)


def test_classes_that_are_nowhere_do_not_count() -> None:
    counts = torch.tensor([[6, 2, 0, 0], [1, 3, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    iou, accuracy = scores(counts)
    assert iou[:3].tolist() == pytest.approx([100 * 6 / 9, 100 * 3 / 7, 0])  # found, never there
    assert iou[3].isnan()
    assert accuracy[:2].tolist() == pytest.approx([75, 60])
    assert accuracy[2:].isnan().all()
    true, guess = (x.repeat_interleave(counts.flatten()) for x in
                   (torch.arange(4).repeat_interleave(4), torch.arange(4).repeat(4)))  # fmt: skip
    theirs = MulticlassJaccardIndex(4, ignore_index=VOID)(guess, true)
    assert float(iou.nanmean()) == pytest.approx(100 * float(theirs), rel=1e-6)


def test_processes_count_together(data: SceneData, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mixed(task_of(data))
    together = measured(found)
    samples = found.test_samples()
    shares: list[Any] = []
    for indices in ((0, 2), (1, 3)):
        found.measure(found.model, samples.collate([samples.make(i) for i in indices]))
        shares.append((found.confusion.confmat.clone(), found.images))
        found.confusion.reset()
        found.images = 0
    monkeypatch.setattr(segment, "over_processes", lambda _: shares)
    assert found.measured() == together


def test_what_cannot_be_measured_is_said(data: SceneData) -> None:
    found = task_of(data).eval()
    with pytest.raises(ValueError, match="no test image could be read"):
        found.measured()
    batch = batch_of(found, 2, test=True)
    void = [{"labels": torch.full_like(t["labels"], VOID)} for t in batch.targets]
    found.measure(found.model, batch._replace(targets=void))
    with pytest.raises(ValueError, match="no pixel of the 2 test images has a class"):
        found.measured()
    assert measured(found)["images"] == 4  # counting started afresh


def test_data_of_other_classes_is_refused(data: SceneData, tmp_path: Path) -> None:
    found = task_of(data)
    found.save(tmp_path, found.model)
    other = data._replace(classes=(*CLASSES[:3], "horse", "cow"))
    with pytest.raises(CheckpointError, match=r"knows 4 classes, ground, .* the data has 5"):
        Segment.saved(tmp_path, found.settings, other)
    ziggurat.save_pretrained(found.whole[0], tmp_path / "plain")
    with pytest.raises(CheckpointError, match="is no model of the task segment"):
        Segment.saved(tmp_path / "plain", found.settings, data)


def test_without_its_extra_the_command_to_install_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("segmentation_models_pytorch"):
            raise ImportError(name)
        return there(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'ziggurat\[seg\]'"):
        tiny()


# A run.


def recipe_of(folder: Path, **changes: Any) -> Any:
    options = {"img_size": 32, **FAMILIES[NEST]}
    found = SMALL | {"name": "small", "task": "segment", "data": str(folder), "model": NEST}
    found |= {"model_args": options, "epochs": 3, "batch": 4, "lr": 5e-3, "lr_per": 0}
    found |= {"warmup_epochs": 0, "workers": 0, "log_steps": 1, "aux_weight": 0.4}
    return small(**found | changes)


def test_a_run_segments_draws_and_is_measured_again(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "scenes"
    shutil.copytree(folder, data)
    (data / "val" / "images" / "3.png").write_bytes(b"no image")
    changes: dict[str, Any] = {"epochs": 40, "eval_epochs": 30, "ema": 0.5, "max_bad": 0.5}
    changes |= {"sides": (64,), "crop": (64, 64), "photometric": 0.1}
    run = train.train(recipe_of(data, **changes), tmp_path / "run")
    assert run.metrics["images"] == 3
    found = evaluate(run.folder)
    assert found.measures == run.metrics
    assert len(found.bad) == 1
    assert run.metrics["miou"] > 45  # ground alone would give 27
    for name in ("predictions.png", "iou.png"):
        assert Image.open(run.folder / name).size[0] > 400
    with pytest.raises(ValueError, match="at least 2 images at a time"):
        train.train(recipe_of(data, batch=4, accumulate=4), tmp_path / "one")


def test_figures_name_the_classes(data: SceneData, tmp_path: Path, drawn: list[Figure]) -> None:
    found = task_of(data)
    assert found.figures(tmp_path) == []
    measured(found)
    found.snapshot(tmp_path / "now.png", found.model)
    assert [path.name for path in found.figures(tmp_path)] == ["predictions.png", "iou.png"]
    names = [label.get_text() for label in drawn[-1].axes[0].get_yticklabels()]
    assert sorted(names) == sorted(found.by_class())
    assert any("% of pixels" in text.get_text() for text in drawn[-1].axes[0].texts)
    assert (tmp_path / "predictions.png").read_bytes() == (tmp_path / "now.png").read_bytes()


def test_pictures_and_label_maps_do_not_take_each_others_names(
    data: SceneData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = task_of(data)
    found.save(tmp_path / "model", found.model)
    given, sizes = tmp_path / "given", {"a-labels.png": (40, 44), "a.png": (48, 36)}
    given.mkdir()
    for name, size in sizes.items():
        Image.new("RGB", size).save(given / name)
    for names in (list(sizes), list(sizes)[::-1]):
        out = tmp_path / names[0]
        words = ["predict", tmp_path / "model", *(given / name for name in names), "--out", out]
        assert main([str(word) for word in words]) == 0
        maps = {file.name: Image.open(file) for file in out.glob("*.png")}
        maps = {name: image for name, image in maps.items() if image.mode == "L"}
        assert len(list(out.glob("*.png"))) == 4
        assert sorted(image.size for image in maps.values()) == sorted(sizes.values())
    Image.new("RGB", (40, 40)).save(given / "b.jpg")
    Image.new("RGB", (40, 40)).save(given / "b-labels.png")
    before = {file.name: file.read_bytes() for file in given.iterdir()}
    words = ["predict", tmp_path / "model", given / "b.jpg", given / "b-labels.png"]
    assert main([str(word) for word in (*words, "--overwrite", "--out", given)]) == 2
    assert "b-labels.png is given and would be written over" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in given.iterdir()} == before
