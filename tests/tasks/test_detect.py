"""Detection: every family learns, measures as COCO does, is kept, goes on and is used."""

import contextlib
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision import tv_tensors

import ziggurat
from tests.engine.children import two
from tests.engine.small_runs import small
from tests.engine.test_train import losses, same_weights
from tests.tasks import small_objects
from tests.tasks.test_masking import FAMILIES
from tests.tasks.test_pretrain import MASKED
from ziggurat.cli import main
from ziggurat.data.coco import ObjectData, open_objects
from ziggurat.data.images import BadImage
from ziggurat.data.loading import seed_all
from ziggurat.data.masks import encoded
from ziggurat.engine import train
from ziggurat.engine.detection_cost import in_words
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.find import Finder, places
from ziggurat.engine.optim import optimizer
from ziggurat.engine.recipe import Recipe
from ziggurat.engine.signals import Interrupted
from ziggurat.models.weights import CheckpointError
from ziggurat.tasks.dense import DenseBatch, scaled
from ziggurat.tasks.detect import Detect, DetectSettings, train_transform
from ziggurat.tasks.detectors import Found
from ziggurat.tasks.heads import HEAD
from ziggurat.tasks.task import Wanted

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # pycocotools'

OURS = [name for name in FAMILIES if not name.startswith("timm/")]
NEST = "nest_tiny_cifar"
BOTH = ("retinanet", "maskrcnn")
FRAMEWORKS = pytest.mark.parametrize("framework", BOTH)
SETTINGS: dict[str, Any] = {"sides": (48,), "width": 16, "anchor": 8, "most": 20}
SMALL: dict[str, Any] = {
    "name": "found", "task": "detect", "model": NEST, "framework": "retinanet",
    "model_args": {key: list(value) if isinstance(value, tuple) else value
                   for key, value in ({"img_size": 32} | FAMILIES[NEST]).items()},
    "epochs": 2, "batch": 4, "lr": 2e-3, "lr_per": 0, "warmup_epochs": 0.0, "log_steps": 1,
    "eval_epochs": 1, "workers": 0, "least_score": 0.0, **SETTINGS,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_objects.write(tmp_path_factory.mktemp("objects") / "set", {"train": 8, "val": 6})


@pytest.fixture(scope="module")
def data(folder: Path) -> ObjectData:
    return open_objects(folder)


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, train.Run]:
    """A finished run of each framework; Mask R-CNN's in half precision and averaged."""
    root = tmp_path_factory.mktemp("runs")
    changes: dict[str, Any] = {"precision": "bf16", "ema": 0.5, "framework": "maskrcnn"}
    return {
        "retinanet": train.train(found(folder, epochs=8, eval_epochs=4), root / "retinanet"),
        "maskrcnn": train.train(found(folder, epochs=1, **changes), root / "maskrcnn"),
    }


def found(folder: Path, **changes: Any) -> Recipe:
    return small(**SMALL | {"data": str(folder)} | changes)


def task_of(data: ObjectData, name: str = NEST, **changes: Any) -> Detect:
    seed_all(0)
    wanted = Wanted(name, {"img_size": 32, **FAMILIES[name]}, None)
    settings = {"framework": "retinanet", "least_score": 0.0} | SETTINGS | changes
    return Detect.build(wanted, DetectSettings(**settings), data)


def batch_of(task: Detect, *indices: int, test: bool = False) -> DenseBatch:
    samples = task.test_samples() if test else task.train_samples()
    seed_all(1)
    return samples.collate([samples.make(i) for i in indices])


def measured(task: Detect) -> dict[str, float]:
    task.eval()
    for i in range(len(task.data.test)):
        task.measure(task.model, batch_of(task, i, test=True))
    return task.measured()


def same(one: Path, other: Path) -> bool:
    """Whether two runs hold the same detector."""
    first, second = load_file(one / HEAD), load_file(other / HEAD)
    heads = all(torch.equal(value, second[name]) for name, value in first.items())
    return same_weights(one, other) and heads


# Every family.


@FRAMEWORKS
@pytest.mark.parametrize("name", OURS)
def test_every_family_learns_finds_and_is_read_back_to_the_same(
    name: str, framework: str, data: ObjectData, tmp_path: Path
) -> None:
    task = task_of(data, name, framework=framework)
    batch = batch_of(task, 1, 4)
    steps, rate = (14, 1e-3) if framework == "retinanet" else (6, 2e-3)
    rule = torch.optim.AdamW(task.parameters(), rate)
    seen = []
    for _ in range(steps):
        seed_all(2)
        loss = task(batch)["loss"]
        rule.zero_grad()
        loss.backward()
        rule.step()
        seen.append(float(loss.detach()))
    assert seen[-1] < 0.85 * seen[0]
    numbers = measured(task)
    assert numbers["images"] == 6
    task.save(tmp_path, task.model)
    again = Detect.saved(tmp_path, task.settings, data)
    assert measured(again) == numbers
    (image,) = task.normaliser(batch_of(task, 1, test=True).images)
    one, other = (model.found(image, (52, 37)) for model in (task.model, again.model))
    assert len(one.boxes) == 20
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None)
    (drawn,) = Finder(tmp_path)([data.test.name(1)])
    np.testing.assert_allclose([x.box for x in drawn.objects], one.boxes, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("timm/resnet18", {"channels": [8, 8, 16, 16]}),
        ("timm/vit_tiny_patch16_224",
         {"patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "dynamic_img_size": True}),
    ],
    ids=["resnet", "vit"],
)  # fmt: skip
def test_timms_models_detect_as_ours_do(
    name: str, options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """With layer-wise decay; a ViT of timm's takes whole patches alone, so images are cut."""
    changes: dict[str, Any] = {"crop": [40, 48], "sides": [48], "layer_decay": 0.8, "epochs": 0.5}
    task: Any = train.build(found(folder, model=name, model_args=options, **changes))
    rule = optimizer(task.model, found(folder, model=name, model_args=options, **changes))
    seed_all(0)
    task(batch_of(task, 0, 1))["loss"].backward()
    rule.step()
    task.save(tmp_path, task.model)
    again = Detect.saved(tmp_path, task.settings, task.data)
    image = torch.randn(3, 40, 48)
    one, other = (model.eval().found(image, (40, 48)) for model in (task.model, again.model))
    assert len(one.boxes)
    assert torch.equal(one.boxes, other.boxes)


def test_the_loss_is_the_sum_of_its_parts(data: ObjectData) -> None:
    task = task_of(data, framework="maskrcnn")
    seed_all(0)
    parts = task(batch_of(task, 1, 4))
    total = parts.pop("loss")
    assert parts.keys() == {"objectness", "rpn_box_reg", "classifier", "box_reg", "mask"}
    torch.testing.assert_close(total, sum(parts.values()))


# Data and augmentation.


def test_crowds_are_measured_but_not_learned_from(data: ObjectData) -> None:
    task = task_of(data, framework="maskrcnn", flip=0)
    crowded = [i for i in range(len(data.train)) if data.train.objects(i).crowd.any()]
    assert crowded
    for i in crowded:
        target = task.train_samples().make(i).target
        assert len(target["labels"]) == (~data.train.objects(i).crowd).sum()
    tested = [i for i in range(len(data.test)) if data.test.objects(i).crowd.any()]
    target = task.test_samples().make(tested[0]).target
    assert target["iscrowd"].tolist() == data.test.objects(tested[0]).crowd.tolist()
    assert target["area"].tolist() == data.test.objects(tested[0]).areas.tolist()


def test_tested_images_are_scaled_and_what_is_marked_stays(data: ObjectData) -> None:
    sample = task_of(data, sides=(96, 64), test_side=80).test_samples().make(1)
    assert sample.image is not None
    assert sample.image.shape == (3, 52 * 80 // 37, 80)
    assert sample.size == (52, 37)
    np.testing.assert_array_equal(sample.target["boxes"], data.test.objects(1).boxes)


Scene = tuple[tv_tensors.Image, dict[str, Any]]
BOXES = [(4, 6, 44, 30), (50, 10, 90, 56), (10, 40, 40, 70), (60, 62, 96, 78)]


def scene(height: int = 80, width: int = 100) -> Scene:
    """Rectangles in colours of their own on black."""
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    masks = torch.zeros(len(BOXES), height, width, dtype=torch.uint8)
    for i, (x1, y1, x2, y2) in enumerate(BOXES):
        image[:, y1:y2, x1:x2] = torch.tensor(COLOURS[i])[:, None, None]
        masks[i, y1:y2, x1:x2] = 1
    boxes = tv_tensors.BoundingBoxes(
        torch.tensor(BOXES, dtype=torch.float32), format="XYXY", canvas_size=(height, width)
    )
    target = {"boxes": boxes, "labels": torch.arange(4), "masks": tv_tensors.Mask(masks)}
    return tv_tensors.Image(image), target


COLOURS = [[250, 20, 20], [20, 250, 20], [20, 20, 250], [250, 250, 20]]


def augmented(seed: int, **changes: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The scene as a detector would be given it."""
    settings = {"framework": "maskrcnn", "sides": (80,), "flip": 0.0} | changes
    seed_all(seed)
    image, target = train_transform(DetectSettings(**settings))(*scene())
    plain = {key: torch.as_tensor(value).as_subclass(Tensor) for key, value in target.items()}
    return image.as_subclass(Tensor), plain


def test_a_flip_mirrors_image_boxes_and_masks() -> None:
    image, target = scene()
    mirrored, found = augmented(0, flip=1.0)
    assert torch.equal(mirrored, image.flip(2).as_subclass(Tensor))
    assert torch.equal(found["masks"], target["masks"].flip(2).as_subclass(Tensor))
    assert found["boxes"].tolist() == [[100 - x2, y1, 100 - x1, y2] for x1, y1, x2, y2 in BOXES]


def test_a_cut_keeps_exactly_what_can_be_seen_of_objects() -> None:
    """Every object has a colour of its own: who is there can be read off the pixels."""
    counts = set()
    for seed in range(20):
        image, found = augmented(seed, crop=(32, 40))
        assert image.shape == (3, 32, 40)
        seen = [
            i for i, colour in enumerate(COLOURS)
            if (image == torch.tensor(colour, dtype=torch.uint8)[:, None, None]).all(0).any()
        ]  # fmt: skip
        assert found["labels"].tolist() == seen
        for label, box, mask in zip(*(found[k] for k in ("labels", "boxes", "masks")), strict=True):
            colour = torch.tensor(COLOURS[label], dtype=torch.uint8)[:, None, None]
            assert torch.equal(mask.bool(), (image == colour).all(0))
            x1, y1, x2, y2 = (int(v) for v in box)
            assert mask[y1:y2, x1:x2].all()
            assert mask.sum() == (x2 - x1) * (y2 - y1)
        counts.add(len(seen))
    assert len(counts) > 1


def test_an_object_whose_mask_is_gone_is_gone_with_its_box() -> None:
    image, target = scene()
    target["masks"][1, 20:] = 0  # its box reaches on
    transform = train_transform(
        DetectSettings(framework="maskrcnn", sides=(80,), flip=0.0, crop=(30, 100))
    )
    kept = set()
    for seed in range(20):
        seed_all(seed)
        found = transform(image, target)[1]
        assert found["masks"].flatten(1).any(1).all()
        kept.add(1 in found["labels"])
    assert kept == {True, False}


@pytest.mark.parametrize(
    "changes",
    [
        {"sides": (40, 64, 120), "longest": 130, "flip": 0.5},
        {"sides": (64,), "crop": (96, 50), "flip": 0.5},
        {"sides": (48, 64), "longest": 80, "crop_first": 1.0},
    ],
    ids=["scaled", "cut", "cut first"],
)
def test_boxes_and_masks_stay_on_their_objects(changes: dict[str, Any]) -> None:
    for seed in range(6):
        image, found = augmented(seed, **changes)
        H, W = image.shape[1:]
        if "crop" in changes:
            assert changes["crop"] == (H, W)
        else:
            assert max(H, W) <= changes["longest"]
            assert min(H, W) in changes["sides"] or max(H, W) >= changes["longest"] - 1
        assert len(found["labels"])
        for label, box, mask in zip(*(found[k] for k in ("labels", "boxes", "masks")), strict=True):
            inner = -torch.nn.functional.max_pool2d(-mask[None].float(), 5, 1, 2)[0]  # off the rim
            pixels = image[:, inner.bool()].float()
            if pixels.shape[1]:
                far = (pixels - torch.tensor(COLOURS[label])[:, None]).abs().mean()
                assert far < 25
            ys, xs = mask.nonzero().T
            extent = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            assert (extent - box).abs().max() <= 2


def test_what_a_cut_lacks_is_of_the_mean_colour(data: ObjectData) -> None:
    image, found = augmented(0, crop=(120, 100), mean=(0.2, 0.4, 0.6))
    assert image[:, -1, 0].tolist() == [51, 102, 153] or image[:, 0, 0].tolist() == [51, 102, 153]
    assert len(found["labels"]) == 4


def test_the_short_side_is_scaled_and_the_long_one_bounded() -> None:
    image = tv_tensors.Image(torch.zeros(3, 30, 50, dtype=torch.uint8))
    assert {scaled((20, 60), None)(image).shape[1:] for _ in range(20)} == {(20, 33), (60, 100)}
    assert scaled((60,), 80)(image).shape[1:] == (48, 80)


# What is measured.


def noisy(target: dict[str, Tensor], size: tuple[int, int], chance: np.random.Generator) -> Found:
    """A made-up answer: true boxes moved or not, doubles, wrong classes, nonsense."""
    H, W = size
    rows = []
    for box, label in zip(target["boxes"].numpy(), target["labels"].tolist(), strict=True):
        for _ in range(int(chance.integers(0, 4))):
            spread = chance.choice([0.0, 0.03, 0.1, 0.25]) * (box[2:] - box[:2]).max()
            wrong = int(chance.integers(0, 3)) if chance.random() < 0.2 else label
            rows.append((box + chance.normal(0, 1, 4) * spread, wrong))
    for _ in range(int(chance.integers(0, 5))):
        rows.append((chance.random(4) * [W, H, W, H], int(chance.integers(0, 3))))
    boxes = np.array([box for box, _ in rows]).reshape(-1, 4)
    boxes = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:] - 2), boxes[:, 2:]], 1)
    boxes = np.clip(boxes, 0, [W - 1, H - 1, W, H])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    y, x = np.mgrid[:H, :W] + 0.5
    masks = [((x - (a + c) / 2) / (c - a)) ** 2 + ((y - (b + d) / 2) / (d - b)) ** 2 < 0.3
             for a, b, c, d in boxes]  # fmt: skip
    scores = np.sort(chance.random(len(rows)))[::-1].copy()
    return Found(
        torch.from_numpy(boxes).float(),
        torch.tensor([label for _, label in rows], dtype=torch.long),
        torch.from_numpy(scores).float(),
        torch.from_numpy(np.array(masks).reshape(-1, H, W)),
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects of all three sizes and crowds on images that need not be seen."""
    chance = np.random.default_rng(3)
    root = tmp_path_factory.mktemp("large")
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for i in range(12):
        W, H = 220, 180
        images.append({"id": 50 + i, "file_name": f"{50 + i}.png", "width": W, "height": H})
        Image.new("RGB", (W, H)).save(root / f"{50 + i}.png")
        for _ in range(int(chance.integers(0, 6))):
            w, h = chance.integers(*((8, 30), (40, 90), (110, 170))[chance.integers(0, 3)], 2)
            x, y = chance.integers(0, W - w), chance.integers(0, H - h)
            x, y, w, h = (int(value) for value in (x, y, w, h))
            one: dict[str, Any] = {
                "id": 1 + len(objects), "image_id": 50 + i, "bbox": [x, y, w, h],
                "category_id": small_objects.CATEGORIES[int(chance.integers(0, 2))]["id"],
                "iscrowd": int(chance.random() < 0.15), "area": w * h * chance.uniform(0.3, 1),
                "segmentation": [small_objects.rectangle((x, y, w, h))],
            }  # fmt: skip
            if one["iscrowd"]:
                mask = np.zeros((H, W), bool)
                mask[y : y + h, x : x + w] = True
                one["segmentation"] = encoded(mask)
            objects.append(one)
    listed = {"images": images, "annotations": objects, "categories": small_objects.CATEGORIES}
    (root / "large.json").write_text(json.dumps(listed))
    return root / "large.json"


def as_coco(annotations: Path, lines: list[dict[str, Any]], kind: str) -> COCOeval:
    """COCO's own evaluation."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        truth = COCO(str(annotations))
        result = COCOeval(truth, truth.loadRes(lines), kind)
        result.evaluate()
        result.accumulate()
        result.summarize()
    return result


@FRAMEWORKS
def test_average_precision_is_cocos_own(
    framework: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pycocotools reads the file itself, and the answers as a results file gives them."""
    data = open_objects(large, None)
    task = task_of(data, framework=framework)
    chance = np.random.default_rng(4)
    lines: list[dict[str, Any]] = []
    for i in range(len(data.test)):
        batch = batch_of(task, i, test=True)
        answer = noisy(batch.targets[0], batch.sizes[0], chance)
        if framework == "retinanet":
            answer = answer._replace(masks=None)
        monkeypatch.setattr(task.model, "found", lambda image, size, a=answer: a)
        task.measure(task.model, batch)
        for j, (x1, y1, x2, y2) in enumerate(answer.boxes.double().tolist()):
            line: dict[str, Any] = {"image_id": data.test.image_id(i)}
            line["score"] = float(answer.scores[j])
            line["category_id"] = data.category_ids[int(answer.labels[j])]
            line["bbox"] = [x1, y1, x2 - x1, y2 - y1]
            if answer.masks is not None:
                line["segmentation"] = encoded(answer.masks[j].numpy())
            lines.append(line)
    numbers = task.measured()
    by_class = task.by_class()
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
    for kind, prefix in (("bbox", ""), ("segm", "mask_"))[: 1 + (framework == "maskrcnn")]:
        own = [{k: v for k, v in line.items() if kind == "segm" or k != "segmentation"}
               for line in lines]  # fmt: skip
        if kind == "segm":
            own = [{k: v for k, v in line.items() if k != "bbox"} for line in own]
        expected = as_coco(large, own, kind)
        assert 0 < expected.stats[:6].min() < expected.stats[:6].max() < 1
        for name, value in zip(names, expected.stats, strict=False):
            assert numbers[prefix + name] / 100 == pytest.approx(value, abs=1e-6), prefix + name
        precision = expected.eval["precision"][:, :, :, 0, 2]  # of all areas, 100 at most
        for number, name in enumerate(data.classes[:2]):
            each = precision[:, :, number].mean()
            assert by_class[name][f"{prefix}ap"] / 100 == pytest.approx(each, abs=1e-6)
    assert by_class.keys() == {"red", "green"}  # nothing is blue
    assert numbers["images"] == 12
    with pytest.raises(ValueError, match="no test image could be read"):
        task.measured()  # counting starts afresh


def test_crowds_alone_cannot_be_measured(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "crowds.json"
    listed = json.loads((folder / "annotations" / "instances_val.json").read_text())
    listed["annotations"] = [one for one in listed["annotations"] if one["iscrowd"]]
    file.write_text(json.dumps(listed))
    for image in (folder / "val").iterdir():
        shutil.copy(image, tmp_path)
    with pytest.raises(ValueError, match="the 6 test images that could be read show crowds at"):
        measured(task_of(open_objects(file, None)))


def test_sizes_that_no_object_has_are_not_measured(data: ObjectData) -> None:
    numbers = measured(task_of(data))
    assert "ap_small" in numbers
    assert "ap_large" not in numbers


# Runs.


@FRAMEWORKS
def test_a_run_measures_the_same_when_it_is_read_back(
    framework: str, runs: dict[str, train.Run]
) -> None:
    run = runs[framework]
    measures, bad, by_class = evaluate(run.folder)
    assert measures == run.metrics
    assert measures["ap50"] > 0
    assert not bad
    result = json.loads((run.folder / train.RESULTS).read_text())["measured"]
    assert by_class == result["by_class"]
    assert evaluate(run.folder / "best")[0] == result["best"]["test"]


def test_a_run_learns(runs: dict[str, train.Run]) -> None:
    seen = [loss for _, loss in losses(runs["retinanet"].folder)]
    assert seen[-1] < seen[0]


@FRAMEWORKS
def test_the_report_has_pictures_and_a_table_of_the_classes(
    framework: str, runs: dict[str, train.Run]
) -> None:
    folder = runs[framework].folder
    page = (folder / "report.html").read_text()
    for name in ("predictions", "precision"):
        assert Image.open(folder / f"{name}.png").width > 100
    assert "Held-out images: what is marked in them, and what the model finds." in page
    assert "Average precision of each class" in page
    table = page[page.index(">Classes<") :]
    table = table[: table.index("</table>")]
    assert "red" in table
    assert "green" in table
    assert ("mask" in table) == (framework == "maskrcnn")
    assert len(list((folder / "snapshots").glob("*.png"))) == (2 if framework == "retinanet" else 1)


RANDOM: dict[str, Any] = {
    "framework": "maskrcnn", "photometric": 0.5, "drop_path": 0.2, "sides": [40, 48],
    "crop": [40, 40], "epochs": 1.5, "eval_epochs": 100,
}  # fmt: skip


def test_an_interrupted_run_ends_with_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = found(folder, **RANDOM)
    straight = train.train(recipe, tmp_path / "straight")
    real, calls = Detect.forward, []

    def interrupted(self: Detect, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Detect, "forward", interrupted)
        with pytest.raises(Interrupted, match="saved at step 2"):
            train.train(recipe, tmp_path / "run")
    run = train.train(recipe, tmp_path / "run", resume=True)
    assert losses(run.folder) == losses(straight.folder)
    assert len(losses(run.folder)) == 3
    assert run.metrics == straight.metrics
    assert same(run.folder, straight.folder)


def test_two_processes_measure_what_one_does(folder: Path, tmp_path: Path) -> None:
    """Some of their batches have no object, and all parameters must yet have gradients."""
    recipe = found(folder, framework="maskrcnn", batch=2, epochs=1)
    two(train.train, recipe, tmp_path / "run")
    result = json.loads((tmp_path / "run" / train.RESULTS).read_text())["measured"]
    alone, _, by_class = evaluate(tmp_path / "run")
    assert result["processes"] == 2
    assert alone["images"] == result["test"]["images"] == 6
    assert alone["ap50"] > 0
    assert alone == pytest.approx(result["test"])
    assert by_class.keys() == result["by_class"].keys()


# Where a detector starts from.


def saved_classifier(folder: Path) -> Path:
    args = {"img_size": 32, "dims": [8, 16, 32], "heads": 2, "depths": [1, 1, 1], "unit": 8}
    task = train.build(small(model="hivit_tiny", model_args=args, img_size=32, mean=(0.1,) * 3))
    task.save(folder, task.model)
    return folder


def saved_pretraining(folder: Path) -> Path:
    args = {"dims": [8, 16, 32], "heads": 2, "depths": [1, 1, 1], "unit": 8}
    task = train.build(small(**MASKED | {"model_args": args, "img_size": 32}))
    task.save(folder, task.deployed(task.model))
    return folder


def saved_detector(folder: Path, data: ObjectData) -> Path:
    task = task_of(data, "hivit_tiny", framework="maskrcnn")
    task.save(folder, task.model)
    return folder


@pytest.mark.parametrize("kind", ["classifier", "pretraining", "detector"])
def test_a_detector_starts_from_any_training_of_its_backbone(
    kind: str, folder: Path, data: ObjectData, tmp_path: Path
) -> None:
    if kind == "detector":
        saved_detector(tmp_path, data)
    else:
        (saved_classifier if kind == "classifier" else saved_pretraining)(tmp_path)
    with torch.no_grad():
        state = load_file(tmp_path / "model.safetensors")
        save_file({n: v + 0.01 * torch.randn_like(v) for n, v in state.items()},
                  tmp_path / "model.safetensors", {"format": "pt"})  # fmt: skip
    learned = load_file(tmp_path / "model.safetensors")
    task: Any = train.build(found(folder, model="hivit_tiny", init=str(tmp_path), model_args={}))
    own = task.model.pyramid.backbone.state_dict()
    assert set(learned) - set(own) <= {"head.weight", "head.bias", "norm.weight", "norm.bias"}
    assert all(torch.equal(value, learned[name]) for name, value in own.items())
    mean = 255 * ziggurat.from_pretrained(tmp_path).pretrained_cfg["mean"][0]
    assert float(task.normaliser.mean[0]) == pytest.approx(mean)
    assert (kind == "classifier") == (mean == pytest.approx(25.5))


def test_a_frozen_backbone_is_kept_as_it_started(folder: Path, tmp_path: Path) -> None:
    run = train.train(found(folder, freeze=True, epochs=0.5), tmp_path / "run")
    fresh: Any = train.build(found(folder, freeze=True, epochs=0.5))
    started = fresh.model.pyramid.backbone.state_dict()
    learned = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(value, learned[name]) for name, value in started.items())
    assert not torch.equal(
        load_file(run.folder / HEAD)["pyramid.norms.0.weight"],
        fresh.model.state_dict()["pyramid.norms.0.weight"],
    )


# What cannot be.


def test_mask_rcnn_is_not_trained_on_boxes_alone(tmp_path: Path) -> None:
    boxes = small_objects.write(tmp_path / "boxes", {"train": 8, "val": 6}, masks=False)
    said = r"boxes: (\d+) of \1 objects have a box but no mask, .*: take framework = retinanet"
    with pytest.raises(ValueError, match=said) as error:
        train.build(found(boxes, framework="maskrcnn"))
    assert "\n" not in str(error.value)
    assert len(Detect.open(str(boxes), found(boxes).settings, 0).train) == 8


def test_an_image_with_a_damaged_mask_is_named_and_replaced(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "set")
    file = tmp_path / "set" / "annotations" / "instances_train.json"
    listed = json.loads(file.read_text())
    one = listed["annotations"][0]
    size = next(image for image in listed["images"] if image["id"] == one["image_id"])
    one["segmentation"] = {"size": [size["height"], size["width"]], "counts": "04"}
    file.write_text(json.dumps(listed))
    task = task_of(open_objects(tmp_path / "set"), framework="maskrcnn")
    at = next(i for i in range(8) if task.data.train.image_id(i) == one["image_id"])
    with pytest.raises(BadImage, match=rf"{one['image_id']}\.png: annotation {one['id']}: "):
        task.data.train.mask(at, task.data.train.objects(at), 0)
    sample = task.train_samples().make(at)
    assert sample.at == (at + 1) % 8
    assert f"{one['image_id']}.png: annotation {one['id']}: " in sample.bad[0]
    del one["area"]  # counted from the mask, which RetinaNet does not see otherwise
    file.write_text(json.dumps(listed))
    task = task_of(open_objects(tmp_path / "set"))
    assert f"annotation {one['id']}: " in task.train_samples().make(at).bad[0]


def test_other_classes_cannot_be_measured(runs: dict[str, train.Run], tmp_path: Path) -> None:
    other = small_objects.write(tmp_path / "other", {"train": 3, "val": 3})
    for file in (other / "annotations").iterdir():
        file.write_text(file.read_text().replace('"green"', '"lime"'))
    said = "knows 3 classes, red, green, blue; the data has 3, red, lime, blue: measure it on"
    with pytest.raises(CheckpointError, match=said):
        evaluate(runs["retinanet"].folder, str(other))


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "other task": ({"task": "segment"}, "the settings of its head: "),
    "unknown task": ({"task": "cook"}, "its task is 'cook'"),
    "no task": ({"task": None}, "is not a head that `ziggurat train` wrote: 'task'"),
    "settings": ({"settings": '{"framework": "yolo", "sides": [48]}'},
                 "framework should be 'retinanet' or 'maskrcnn', got 'yolo'"),
    "other settings": ({"settings": '{"framework": "retinanet", "sides": [48], "width": 24}'},
                       "does not fit its own settings: "),
    "no settings": ({"settings": "[]"}, "is missing"),
    "broken": ({"settings": "{"}, "is not a head that"),
    "no classes": ({"about": "{}"}, "is not a head that `ziggurat train` wrote: 'classes'"),
    "classes": ({"about": '{"classes": [1, 2]}'}, "its classes have no names"),
    "ids": ({"about": '{"classes": ["a", "b"], "category_ids": [1]}'}, "other numbers than names"),
    "fewer classes": ({"about": '{"classes": ["a", "b"]}'}, "does not fit its own settings: "),
}  # fmt: skip


@pytest.fixture
def copied(runs: dict[str, train.Run], tmp_path: Path) -> Path:
    """A detector that someone has passed on, without its recipe."""
    folder = tmp_path / "passed"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", HEAD):
        shutil.copy(runs["retinanet"].folder / name, folder)
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one line that a mistake is answered with."""
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err.lstrip("\n")
    assert said.startswith("ziggurat: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("kind", [*HOSTILE, "garbage", "empty", "cut"])
def test_a_hostile_head_is_one_clear_line(
    kind: str, copied: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, image = copied / HEAD, folder / "val" / "000000000200.png"
    if kind in HOSTILE:
        from safetensors import safe_open

        changes, words = HOSTILE[kind]
        with safe_open(file, "pt") as opened:
            said = opened.metadata() | changes
        save_file(load_file(file), file, {k: v for k, v in said.items() if v is not None})
    else:
        whole = file.read_bytes()
        file.write_bytes({"garbage": b"x" * 1000, "empty": b"", "cut": whole[:-100]}[kind])
        words = "is not a head that `ziggurat train` wrote"
    assert words in told(capsys, "predict", copied, image, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    told(capsys, "eval", copied, "--data", folder)


def test_a_backbone_alone_detects_nothing(copied: Path, folder: Path) -> None:
    (copied / HEAD).unlink()
    with pytest.raises(CheckpointError, match="neither detects nor segments"):
        Finder(copied)
    shutil.copy(folder.parent / "set" / "annotations" / "instances_val.json", copied)
    with pytest.raises(CheckpointError, match="is no model of the task detect"):
        Detect.saved(copied, DetectSettings(framework="retinanet", sides=(48,)), None)


# The command line.


@pytest.fixture
def pictures(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "val", tmp_path / "pictures"))


@FRAMEWORKS
def test_predictions_are_pictures_and_results_that_coco_takes(
    framework: str,
    runs: dict[str, train.Run],
    folder: Path,
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    words = ["predict", str(runs[framework].folder), str(pictures), "--out", str(out)]
    assert main([*words, "--least", "0.02"]) == 0
    assert f"6 pictures and predictions.json in {out}" in capsys.readouterr().out
    assert {file.stem for file in out.glob("*.png")} == {f"{200 + i:012}" for i in range(6)}
    drawn = Image.open(out / "000000000200.png")
    assert drawn.size == (480, 400)  # ten times the file's
    lines = json.loads((out / "predictions.json").read_text())
    assert {line["category_id"] for line in lines} <= {3, 7, 9}
    assert ("segmentation" in lines[0]) == (framework == "maskrcnn")
    annotations = folder / "annotations" / "instances_val.json"
    if framework == "retinanet":  # Mask R-CNN was measured in half precision
        stats = as_coco(annotations, lines, "bbox").stats
        assert 100 * stats[0] == pytest.approx(runs[framework].metrics["ap"], abs=1e-3)
    else:
        as_coco(annotations, lines, "segm")


def test_what_was_predicted_before_is_left_alone(
    runs: dict[str, train.Run], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, image = tmp_path / "out", pictures / "000000000201.png"
    out.mkdir()
    (out / "holiday.png").write_bytes(b"precious")
    words = ["predict", runs["retinanet"].folder, image, "--out", out]
    assert "out exists: take another --out or --overwrite" in told(capsys, *words)
    assert [file.name for file in out.iterdir()] == ["holiday.png"]
    assert main([str(word) for word in (*words, "--overwrite", "--json")]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert {line["image_id"] for line in lines} == {201}
    assert (out / "holiday.png").read_bytes() == b"precious"
    told(capsys, "predict", runs["retinanet"].folder, image, "--out", image)


def predicted(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    """The lines of results."""
    assert main([str(word) for word in ("predict", *words, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


def ids_of(lines: list[dict[str, Any]]) -> set[Any]:
    return {line["image_id"] for line in lines}


@pytest.mark.parametrize(
    ("name", "image_id"),
    [
        ("000000000042.png", 42),
        ("COCO_val2014_000000000042.png", 42),
        ("frame42.png", "frame42.png"),
        ("42_b.png", "42_b.png"),
        ("a-42.png", "a-42.png"),
        ("_7.png", 7),
        ("²_².png", "²_².png"),
    ],
)
def test_an_image_has_the_number_of_its_name_or_the_name(
    name: str, image_id: int | str, tmp_path: Path
) -> None:
    (place,) = places([str(tmp_path / name)], tmp_path / "out", labels=False)
    assert place.image_id == image_id
    assert type(place.image_id) is type(image_id)


def test_results_are_not_rounded(
    runs: dict[str, train.Run], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pictures / "000000000201.png"
    lines = predicted(capsys, runs["retinanet"].folder, image, "--out", tmp_path / "out")
    (found,) = Finder(runs["retinanet"].folder)([image])
    assert len(lines) == len(found.objects) > 0
    for line, one in zip(lines, found.objects, strict=True):
        x1, y1, x2, y2 = one.box
        assert (line["score"], line["bbox"]) == (one.score, [x1, y1, x2 - x1, y2 - y1])


def test_annotations_number_images_of_any_name(
    runs: dict[str, train.Run], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also two of one name, by the folders they are in; and images to train on."""
    data, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    shutil.copytree(folder, data)
    names = {"train": {100: "dog.png"}, "val": {200: "a/cat.png", 201: "b/cat.png", 202: "7.png"}}
    for split, renamed in names.items():
        file = data / "annotations" / f"instances_{split}.json"
        listed = json.loads(file.read_text())
        for image in listed["images"]:
            if image["id"] in renamed:
                (data / split / renamed[image["id"]]).parent.mkdir(exist_ok=True)
                (data / split / image["file_name"]).rename(data / split / renamed[image["id"]])
                image["file_name"] = renamed[image["id"]]
        file.write_text(json.dumps(listed))
    shutil.copytree(data / "val" / "b", elsewhere / "b")
    model, out = runs["retinanet"].folder, ("--out", tmp_path / "out", "--overwrite")
    given = [data / "val" / name for name in ("7.png", "a/cat.png")]
    given += [elsewhere / "b" / "cat.png", data / "train" / "dog.png"]
    lines = predicted(capsys, model, *given, *out, "--data", data)
    assert list(dict.fromkeys(line["image_id"] for line in lines)) == [202, 200, 201, 100]
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "7.png", "cat.png", "cat-2.png", "dog.png", "predictions.json",
    }  # fmt: skip
    one = data / "annotations" / "instances_val.json"
    assert ids_of(predicted(capsys, model, given[0], *out, "--data", one)) == {202}


def test_what_annotations_do_not_number_is_told_before_anything_is_predicted(
    runs: dict[str, train.Run], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, image = folder / "annotations" / "instances_val.json", folder / "val/000000000200.png"
    other = Path(shutil.copy(image, tmp_path / "other.png"))
    words = ["predict", runs["retinanet"].folder, image]
    out = ("--out", tmp_path / "out", "--data", data)
    assert f"{data} does not list {other}: " in told(capsys, *words, other, *out)
    again = Path(shutil.copy(image, tmp_path))
    said = f"{image} and {again} would both be image 200 in predictions.json: leave one of them out"
    assert said in told(capsys, *words, again, *out)
    told(capsys, *words, *out[:-1], tmp_path / "nowhere.json")
    assert not (tmp_path / "out").exists()


def test_two_images_of_one_number_are_refused(
    runs: dict[str, train.Run], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = pictures / "000000000201.png"
    other = Path(shutil.copy(one, pictures / "b_201.png"))
    said = told(capsys, "predict", runs["retinanet"].folder, one, other, "--out", tmp_path / "out")
    assert f"{one} and {other} would both be image 201 in predictions.json: " in said
    assert "--data" in said
    assert not (tmp_path / "out").exists()


def test_an_image_is_not_written_over(
    runs: dict[str, train.Run], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.read_bytes() for file in pictures.iterdir()}
    link = tmp_path / "link"
    link.symlink_to(pictures)
    words = ["predict", runs["retinanet"].folder, pictures, "--overwrite", "--out"]
    for out in (pictures, link):
        said = told(capsys, *words, out)
        assert "000000000200.png is given and would be written over: take another --out" in said
    assert {file.name: file.read_bytes() for file in pictures.iterdir()} == before


def test_an_image_that_cannot_be_read_is_one_line_and_exit_code_1(
    runs: dict[str, train.Run], pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "000000000201.png").write_bytes(b"no image")
    out = tmp_path / "out"
    assert main(["predict", str(runs["retinanet"].folder), str(pictures), "--out", str(out)]) == 1
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("ziggurat: skipped ")
    assert "000000000201.png" in lines[0]
    assert len(list(out.glob("*.png"))) == 5
    assert "5 pictures" in said.out


def test_a_model_that_was_passed_on_is_measured_on_other_data(
    copied: Path,
    runs: dict[str, train.Run],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", str(copied), "--data", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("by_class").keys() == {"red", "green"}
    assert answer.pop("skipped") == 0
    assert answer == runs["retinanet"].metrics
    assert "does not say what it was trained on: give --data" in told(capsys, "eval", copied)
    assert main(["eval", str(copied), "--data", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "ap50" in table
    assert "green" in table


def test_unreadable_test_images_are_told_and_left_out(
    runs: dict[str, train.Run], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "set")
    (tmp_path / "set" / "val" / "000000000200.png").write_bytes(b"no image")
    measures, bad, _ = evaluate(runs["retinanet"].folder, str(tmp_path / "set"))
    assert measures["images"] == 5
    assert len(bad) == 1
    assert "000000000200.png" in bad[0]


@FRAMEWORKS
def test_a_dry_run_says_what_a_detector_costs(
    framework: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.toml"
    file.write_text(found(folder, framework=framework, sides=[96], longest=200).dump())
    assert main(["train", str(file), "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    heads = "heads" if framework == "retinanet" else r"rpn [\d.]+, boxes"
    said = r"# [\d.]+ M parameters, ([\d.]+) G multiply-adds at 96 x 200: "
    said += rf"backbone [\d.]+, fpn [\d.]+, {heads} [\d.]+"
    line = re.fullmatch(said, last)
    assert line
    terms = [float(value) for value in re.findall(r" ([\d.]+)(?:,|$)", last.split(": ")[1])]
    assert sum(terms) == pytest.approx(float(line[1]), abs=0.06)


def test_the_cost_of_sizes_that_a_backbone_refuses_is_left_out(data: ObjectData) -> None:
    seed_all(0)
    options = {"patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 0}
    wanted = Wanted("timm/vit_tiny_patch16_224", options | {"dynamic_img_size": True}, None)
    settings = DetectSettings(framework="retinanet", **SETTINGS | {"sides": (44,)})
    task = Detect.build(wanted, settings, data)
    assert re.fullmatch(r"[\d.]+ M parameters", in_words(task))
