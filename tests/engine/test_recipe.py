import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2
from torch import nn

from ziggurat.engine import measure
from ziggurat.engine import recipe as recipes
from ziggurat.engine.recipe import ROWS, Recipe, RecipeError, parse, read, value_of
from ziggurat.models.generators import create_generator
from ziggurat.tasks.augment import ModelSettings
from ziggurat.tasks.dense import DenseSettings
from ziggurat.tasks.detect import DetectSettings, detector
from ziggurat.tasks.generate import GenerateSettings
from ziggurat.tasks.segment import SegmentSettings, segmenter
from ziggurat.tasks.video import VideoSettings

ANY = ["any/finetune", "any/laptop", "any/probe"]  # for models of one's own
SMALL = [name for name in recipes.names() if name.endswith(("_small", "/digits"))]
PAPERS = [name for name in recipes.names() if name not in ANY + SMALL]
CLASSES = {
    "digits": 10, "cifar10": 10, "cifar100": 100, "pets": 37, "cars": 196, "chestxray8": 8,
    "imagenet": 1000, "imagenet21k": 21841, "coco": 80, "ade20k": 150,
    "kinetics400": 400, "something-something-v2": 174, "clips": 7,
}  # fmt: skip
YOURS = {"model": "nest_tiny", "data": "digits"}
NEEDY = [name for name in recipes.names() if read(name)[1].get("needs_init")]


def start(name: str | Path) -> dict[str, str]:
    """What a recipe that goes on from a trained model has to be given."""
    return {"init": "somewhere"} if name in NEEDY else {}


def load(
    name: str | Path, model: str | None = None, changes: dict[str, Any] | None = None
) -> Recipe:
    """A recipe, with somewhere to start from if it needs that."""
    return recipes.load(name, model, start(name) | (changes or {}))


def rows_of(name: str) -> list[Recipe]:
    """A recipe once for each of its rows, also of those that share a model."""
    origin, table = read(name)
    rows = [YOURS] if name in ANY else table.pop(ROWS)
    return [parse({"name": name} | table | row | start(name), origin) for row in rows]


def setting(recipe: Recipe, key: str) -> Any:
    """A key of the loop's or of the task's, as they stand side by side in a file."""
    return getattr(recipe if hasattr(recipe, key) else recipe.settings, key)


def build(recipe: Recipe) -> nn.Module:
    """The model of a recipe on the meta device, a detector or segmenter with all that is on it."""
    settings, classes = recipe.settings, CLASSES[recipe.data]
    if isinstance(settings, GenerateSettings):
        with torch.device("meta"):
            return create_generator(recipe.model, **recipe.model_args).eval()
    if isinstance(settings, DenseSettings):
        options = {"num_classes": 0, "drop_path_rate": settings.drop_path}
        backbone = measure.build(recipe.model, None, **options | recipe.model_args)
        with torch.device("meta"):
            if isinstance(settings, DetectSettings):
                return detector(backbone, settings, classes).eval()
            assert isinstance(settings, SegmentSettings)
            return segmenter(backbone, settings, classes).eval()
    assert isinstance(settings, ModelSettings)
    options = {
        "num_classes": 0 if recipe.task == "pretrain" else classes,
        "drop_path_rate": settings.drop_path,
        "drop_rate": settings.drop,
    }
    if isinstance(settings, VideoSettings):
        options["frames"] = settings.frames
    return measure.build(recipe.model, settings.img_size, **options | recipe.model_args).eval()


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def mine(folder: Path, text: str = "") -> Path:
    """A file with what every recipe needs, and ``text``."""
    return written(
        folder, f'task = "classify"\ndata = "digits"\nmodel = "nest_tiny_cifar"\n{text}\n'
    )


every_recipe = pytest.mark.parametrize("name", recipes.names())
every_table = pytest.mark.parametrize("name", PAPERS + SMALL)
every_small_one = pytest.mark.parametrize("name", SMALL)


# What ships.


@pytest.mark.parametrize("name", [n for n in recipes.names() if "coco" in n or "ade20k" in n])
def test_dense_recipes_take_any_family(name: str) -> None:
    for model in ("nest_tiny", "hvt_s_1", "rest_lite", "hivit_tiny", "regionvit_ti"):
        assert build(load(name, model)) is not None


@every_recipe
def test_every_row_is_valid_and_its_model_can_be_built(name: str) -> None:
    found = rows_of(name)
    assert found
    for recipe in found:
        assert recipe.name == name
        assert recipe.source
        model = build(recipe)
        assert all(parameter.is_meta for parameter in model.parameters())


@every_table
def test_the_first_row_is_the_default_and_a_model_finds_its_own(name: str) -> None:
    found = rows_of(name)
    assert load(name) == found[0]
    first = {recipe.model: recipe for recipe in reversed(found)}
    for model, recipe in first.items():
        assert load(name, model) == recipe


@every_recipe
def test_a_file_states_only_what_differs_from_the_defaults(name: str) -> None:
    table = read(name)[1]
    settings = type(rows_of(name)[0].settings)
    for row in [table, *table.pop(ROWS, [])]:
        for key, value in row.items():
            field = Recipe.model_fields.get(key) or settings.model_fields[key]
            again = row is not table and key in table  # goes back on what the others share
            assert again or field.is_required() or field.default != value, key


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_recipe_cites_it(name: str) -> None:
    assert "arXiv:" in load(name).source


@every_small_one
def test_a_small_recipe_says_that_it_is_no_papers(name: str) -> None:
    assert "small-scale" in load(name).source
    assert not load(name).paper


@every_small_one
def test_a_small_recipe_runs_at_its_size(name: str) -> None:
    for recipe in rows_of(name):
        model: Any = build(recipe)
        if isinstance(recipe.settings, DenseSettings):
            side = recipe.settings.short
            image = torch.zeros(3, side, side, device="meta")
            finest = model.features([image])["0"] if recipe.task == "detect" else model([image])
            assert finest.shape[2] == side // (8 if "retinanet" in name else 4)
            continue
        if isinstance(recipe.settings, GenerateSettings):
            noise = torch.zeros(2, model.latent, device="meta")
            assert model(noise).shape == (2, 3, model.img_size, model.img_size)
            continue
        side = setting(recipe, "img_size")
        frames = (recipe.settings.frames,) if isinstance(recipe.settings, VideoSettings) else ()
        images = torch.zeros(2, *frames, 3, side, side, device="meta")
        width = model.num_features if recipe.task == "pretrain" else CLASSES[recipe.data]
        assert model(images).shape == (2, width)


@pytest.mark.parametrize("name", [name for name in SMALL if name.endswith("cifar10_small")])
def test_the_compared_models_are_of_like_size(name: str) -> None:
    count = sum(parameter.numel() for parameter in build(load(name)).parameters())
    assert 1e6 < count < 2e6


def test_the_compared_models_see_the_same_images_and_start_from_nothing() -> None:
    found = [load(name) for name in SMALL if name.endswith("cifar10_small")]
    assert len(found) == 7
    alike = ("task", "data", "img_size", "test_crop", "mean", "std")
    assert len({tuple(setting(recipe, key) for key in alike) for recipe in found}) == 1
    assert all(recipe.init is None for recipe in found)


# The papers' and their codes' numbers (shared/reference/FACTS.md, Section 7).

SHARED: dict[str, Any] = dict(
    optimizer="adamw", schedule="cosine", epochs=300, weight_decay=0.05, drop_path=0.1,
    clip_grad=None, ema=None, layer_decay=None, cooldown_epochs=0, precision="fp32",
    mixup=0.8, cutmix=1.0, mix_switch=0.5, mix_prob=1.0, label_smoothing=0.1, erase=0.25,
    repeats=1, freeze=False,
)  # fmt: skip
PLAIN = dict(
    auto_augment="none", color_jitter=0, erase=0, mixup=0, cutmix=0, label_smoothing=0, drop_path=0
)
NEST = dict(warmup_lr=0, min_lr=0)
CIFAR = NEST | dict(
    warmup_epochs=5, img_size=32, crop="pad", crop_padding=2, test_crop=1, mean=None
)
HVT = dict(warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5, weight_decay=0.025, repeats=3)
REST = dict(batch=2048, peak_lr=2e-3, warmup_epochs=5, clip_grad=5, repeats=3)
REST_384 = dict(
    batch=1024, peak_lr=1e-5, epochs=30, warmup_epochs=0, weight_decay=1e-8, schedule="step",
    decay_epochs=30, decay_rate=0.1, img_size=384, clip_grad=5, repeats=3,
)  # fmt: skip
HIVIT = dict(batch=1024, peak_lr=1e-3, warmup_epochs=20, warmup_lr=1e-6, min_lr=1e-5)
FINETUNE = dict(
    batch=1024, peak_lr=2e-3, epochs=100, warmup_epochs=5, min_lr=1e-6, layer_decay=0.85,
    drop_path=0.2, betas=None,
)  # fmt: skip
MAE = dict(
    batch=4096, peak_lr=2.4e-3, epochs=1600, warmup_epochs=40, weight_decay=0.05, betas=(0.9, 0.95),
    optimizer="adamw", schedule="cosine", min_lr=0, clip_grad=None, drop_path=0, img_size=224,
    crop_scale=(0.2, 1), auto_augment="none", color_jitter=0, flip=0.5, mask_ratio=0.75,
    feed="visible", stages="all", normalise=True, pixel_loss="mse", decoder_dim=512,
    decoder_depth=6, decoder_heads=16,
)  # fmt: skip
REGIONVIT = dict(batch=4096, peak_lr=4e-3, warmup_epochs=50, warmup_lr=1e-6, repeats=3)
IN21K = dict(batch=4096, peak_lr=1e-3, epochs=120, warmup_epochs=5, weight_decay=0.01, repeats=3)
REGIONVIT_384 = dict(
    batch=1024, peak_lr=2e-4, epochs=30, warmup_epochs=0, weight_decay=1e-8, img_size=384,
    test_crop=1, repeats=3,
)  # fmt: skip
TRANSFER = dict(
    batch=768, peak_lr=0.01, epochs=1000, warmup_epochs=5, weight_decay=1e-4, optimizer="sgd",
    momentum=0.9, erase=0, drop_path=0, img_size=224, repeats=3,
)  # fmt: skip
DENSE = dict(
    optimizer="adamw", weight_decay=0.05, clip_grad=None, ema=None, precision="fp32", flip=0.5,
    freeze=False,
)  # fmt: skip
COCO = DENSE | dict(
    batch=16, peak_lr=1e-4, schedule="step", decay_rate=0.1, width=256, anchor=32, norm=True,
    most=100, least_score=0.05,
)  # fmt: skip
ONCE = COCO | dict(epochs=12.17, decay_at=(8.12, 10.82), layer_decay=None, crop_first=0)
REGIONVIT_COCO = ONCE | dict(sides=(672,), longest=1120, drop_path=0.2)
REST_COCO = ONCE | dict(sides=(640, 672, 704, 736, 768, 800), longest=1333)

VIDEO = dict(
    optimizer="adamw", peak_lr=2e-4, weight_decay=1e-4, frames=8, img_size=224, sides=(256, 320),
    test_crop=0.875, crops=3, mixup=0.8, cutmix=1.0, drop_path=0.1, label_smoothing=0.1, erase=0,
)  # fmt: skip
EXPECTED: dict[tuple[str, str], dict[str, Any]] = {
    ("nest/imagenet", "nest_tiny"): NEST
    | dict(batch=1024, peak_lr=1e-3, warmup_epochs=20, drop_path=0.2, crop_scale=(0.05, 1)),
    ("nest/imagenet", "nest_small"): NEST | dict(peak_lr=1e-3, drop_path=0.3),
    ("nest/imagenet", "nest_base"): NEST | dict(peak_lr=1e-3, drop_path=0.5),
    ("nest/cifar10", "nest_tiny_cifar"): CIFAR | dict(batch=192, peak_lr=2.5e-4 * 192 / 256),
    ("nest/cifar10", "nest_small_cifar"): CIFAR | dict(batch=64, peak_lr=2.5e-4 * 64 / 256),
    ("nest/cifar10", "nest_base_cifar"): CIFAR | dict(batch=32, peak_lr=2.5e-4 * 32 / 256),
    ("nest/cifar100", "nest_tiny_cifar"): CIFAR | dict(batch=192, peak_lr=2.5e-4 * 192 / 256),
    ("nest/cifar100", "nest_small_cifar"): CIFAR | dict(batch=64, peak_lr=2.5e-4 * 64 / 256),
    ("nest/cifar100", "nest_base_cifar"): CIFAR | dict(batch=32, peak_lr=2.5e-4 * 32 / 256),
    ("nest/cifar_distill", "nest_base_cifar"): CIFAR
    | dict(batch=32, distillation="hard", alpha=0.5),
    ("nest/cifar_distill", "timm/deit_base_patch16_224"): CIFAR,
    ("hvt/imagenet", "hvt_s_1"): HVT | dict(batch=1024, peak_lr=1e-3),
    ("hvt/cifar100", "hvt_s_4"): HVT | dict(batch=128, peak_lr=1.25e-4, img_size=224),
    ("rest/imagenet", "rest_lite"): REST | dict(warmup_lr=4e-6, min_lr=4e-5),
    ("rest/imagenet", "rest_small"): REST,
    ("rest/imagenet", "rest_base"): REST | dict(drop_path=0.2),
    ("rest/imagenet", "rest_large"): REST
    | dict(batch=1920, peak_lr=1.875e-3, warmup_lr=3.75e-6, min_lr=3.75e-5, drop_path=0.3),
    ("rest/imagenet_plain", "rest_lite"): PLAIN
    | dict(batch=2048, optimizer="momentum", momentum=0.9, weight_decay=1e-4, schedule="step")
    | dict(epochs=100),
    ("rest/imagenet384", "rest_lite"): REST_384,
    ("rest/imagenet384", "rest_large"): REST_384,
    ("hivit/imagenet", "hivit_tiny"): HIVIT | dict(drop_path=0.05),
    ("hivit/imagenet", "hivit_small"): HIVIT | dict(drop_path=0.3),
    ("hivit/imagenet", "hivit_base"): HIVIT | dict(drop_path=0.5),
    ("hivit/mae", "hivit_base"): MAE,
    ("hivit/mae", "hivit_large"): MAE,
    ("swin/simmim", "timm/swin_base_patch4_window7_224"): dict(
        batch=2048,
        peak_lr=8e-4,
        epochs=100,
        warmup_epochs=10,
        weight_decay=0.05,
        img_size=192,
        mask_ratio=0.6,
        unit=32,
        pixel_loss="l1",
        normalise=False,
        decoder_depth=0,
        stages="last",
        crop_scale=(0.67, 1),
        feed="all",
        optimizer="adamw",
        schedule="cosine",
    ),
    ("hivit/imagenet_finetune", "hivit_base"): FINETUNE,
    ("hivit/imagenet_finetune", "hivit_large"): FINETUNE,
    ("hivit/imagenet_probe", "hivit_base"): PLAIN
    | dict(batch=16384, peak_lr=6.4, epochs=90, optimizer="lars", weight_decay=0, freeze=True),
    ("regionvit/imagenet", "regionvit_ti"): REGIONVIT | dict(repeats=1),
    ("regionvit/imagenet", "regionvit_s"): REGIONVIT,
    ("regionvit/imagenet", "regionvit_b_plus"): REGIONVIT,
    ("regionvit/imagenet21k", "regionvit_b"): IN21K,
    ("regionvit/imagenet384", "regionvit_m"): REGIONVIT_384,
    ("regionvit/imagenet384", "regionvit_b_plus"): REGIONVIT_384,
    ("regionvit/coco_retinanet", "regionvit_s"): REGIONVIT_COCO | dict(framework="retinanet"),
    ("regionvit/coco_retinanet", "regionvit_b_plus"): REGIONVIT_COCO,
    ("regionvit/coco_maskrcnn", "regionvit_s"): REGIONVIT_COCO | dict(framework="maskrcnn"),
    ("regionvit/coco_maskrcnn", "regionvit_b_plus"): REGIONVIT_COCO,
    ("rest/coco_retinanet", "rest_small"): REST_COCO | dict(framework="retinanet", drop_path=0.1),
    ("rest/coco_retinanet", "rest_base"): REST_COCO | dict(drop_path=0.2),
    ("hivit/coco_maskrcnn", "hivit_base"): COCO
    | dict(
        peak_lr=3e-4, epochs=12, decay_at=(9, 11), layer_decay=0.9, drop_path=0.2, crop_first=0.5
    )
    | dict(sides=tuple(range(480, 801, 32)), longest=1333, framework="maskrcnn"),
    ("hivit/ade20k_upernet", "hivit_base"): DENSE
    | dict(batch=32, peak_lr=4e-5, schedule="poly", power=1, layer_decay=0.75, drop_path=0.1)
    | dict(crop=(512, 512), slide=(512, 512), aux_weight=0.4, width=512, norm=False),
    ("regionvit/k400", "regionvit_s"): VIDEO,
    ("regionvit/k400", "regionvit_m"): VIDEO,
    ("regionvit/ssv2", "regionvit_s"): VIDEO,
    ("nest/imagenet64_gan", "nest_generator_64"): dict(
        optimizer="adam", betas=(0, 0.99), peak_lr=1e-4, batch=256, weight_decay=0, flip=0.5
    )
    | dict(schedule="constant", discriminator="discriminator"),
    ("regionvit/transfer", "regionvit_s"): TRANSFER,
    ("regionvit/transfer", "regionvit_m"): TRANSFER,
}


@pytest.mark.parametrize(("name", "model"), EXPECTED)
def test_a_papers_numbers_are_those_of_its_code(name: str, model: str) -> None:
    recipe = load(name, model)
    shared = SHARED if recipe.task in ("classify", "distill") else {}
    for key, value in (shared | EXPECTED[name, model]).items():
        expected = pytest.approx(value, rel=1e-9, abs=1e-11) if is_number(value) else value
        assert setting(recipe, key) == expected, key


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_no_papers_recipe_is_left_unchecked() -> None:
    assert {name for name, _ in EXPECTED} == set(PAPERS)


def test_what_is_trained_longer_or_larger_is_a_row_of_its_own() -> None:
    once, thrice = rows_of("hivit/coco_maskrcnn")
    assert (thrice.epochs, thrice.decay_at, thrice.peak_lr) == (36, (27, 33), 1e-4)
    assert thrice.paper["ap"] > once.paper["ap"]
    for name in ("regionvit/coco_retinanet", "regionvit/coco_maskrcnn"):
        *_, usual, large = rows_of(name)
        assert usual.model_args == large.model_args == {"windows": 14, "peg": True}
        assert (setting(large, "sides"), setting(large, "longest")) == ((896,), 1344)
    norms = [setting(recipe, "norm") for recipe in rows_of("rest/coco_retinanet")]
    assert norms == [True, True, False, False]


def test_larger_regions_are_used_for_larger_images() -> None:
    windows = {
        recipe.model: recipe.model_args["windows"] for recipe in rows_of("regionvit/imagenet384")
    }
    assert windows["regionvit_b"] == [12] * 4  # 7 at 224
    assert windows["regionvit_b_plus"] == [24, 24, 24, 12]


def test_mae_decays_no_weight_but_timms_lars_adapts_only_what_decays() -> None:
    recipe = load("hivit/imagenet_probe")
    assert 0 < recipe.weight_decay < 1e-9
    layer = nn.Linear(4, 2)
    optimizer = create_optimizer_v2(
        layer, recipe.optimizer, lr=1.0, weight_decay=recipe.weight_decay, momentum=0.9
    )
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    layer(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    moved = (layer.weight - before[0]).norm() / before[0].norm()
    torch.testing.assert_close(moved, torch.tensor(0.001), rtol=1e-3, atol=0)
    torch.testing.assert_close(layer.bias, before[1] - 3)


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "nest/imagenet": ("2.5e-6", "2.5e-4"),
        "nest/cifar10": ("2.5e-6", "2.5e-4", "multi-query"),
        "nest/cifar100": ("2.5e-6", "2.5e-4", "multi-query"),
        "nest/cifar_distill": ("PyramidNet", "hard"),
        "hvt/imagenet": ("0.0005", "1e-3", "M = 0"),
        "hvt/cifar100": ("8 x 128", "224"),
        "rest/imagenet": ("TRAINING.md",),
        "rest/imagenet_plain": ("ResNet", "check"),
        "rest/imagenet384": ("no result",),
        "hivit/imagenet": ("moving average",),
        "hivit/imagenet_finetune": ("5e-4", "2e-3"),
        "hivit/imagenet_probe": ("MAE",),
        "hivit/mae": ("1.5e-4", "1e-4", "relative"),
        "regionvit/imagenet": ("82.6", "83.2", "default is 5", "14, 14, 14 and 7"),
        "regionvit/imagenet384": ("0.002", "0.0002", "73.4"),
        "regionvit/transfer": ("erasing",),
        "regionvit/k400": ("not printed", "TimeSformer", "erasing"),
        "regionvit/ssv2": ("mirrored",),
        "nest/imagenet64_gan": ("not said", "10 (Mescheder"),
        "regionvit/coco_retinanet": ("beside the", "BGR", "windows of 14"),
        "regionvit/coco_maskrcnn": ("without the mask head",),
        "rest/coco_retinanet": ("norm=false", "path"),
        "hivit/coco_maskrcnn": ("1e-4", "14 x 14", "middle of a stage"),
        "hivit/ade20k_upernet": ("4e-5", "1e-3", "80,000"),
    }.items(),
)
def test_a_note_says_where_paper_and_code_disagree(name: str, words: tuple[str, ...]) -> None:
    for word in words:
        assert word in load(name).note


def test_accuracies_are_those_of_the_papers_tables() -> None:
    printed: set[tuple[str, str]] = set()
    for file in (resources.files("ziggurat") / "tables").iterdir():
        rows = [row for table in tomllib.loads(file.read_text())["tables"] for row in table["rows"]]
        printed |= {(row.get("model", ""), str(n)) for row in rows for n in row["printed"].values()}
    digits = {"hvt": 2, "nest/cifar10": 2, "nest/cifar100": 2, "rest/imagenet_plain": 2}
    for name in PAPERS:
        if name not in UNTABLED:
            places = digits.get(name, digits.get(name.split("/")[0], 1))
            for recipe in rows_of(name):
                top1 = recipe.paper.get("top1")
                assert top1 is None or (recipe.model, f"{top1:.{places}f}") in printed


UNTABLED = (  # no table of parameters, so not in ziggurat/tables
    "nest/cifar_distill", "hivit/imagenet_finetune", "hivit/imagenet_probe", "regionvit/transfer",
)  # fmt: skip


# Rows.


def test_a_model_without_a_row_takes_what_all_rows_share() -> None:
    recipe = load("nest/imagenet", "hivit_tiny")
    assert recipe.model == "hivit_tiny"
    assert recipe.warmup_epochs == 20
    assert setting(recipe, "drop_path") == 0.1  # no row's
    assert recipe.paper == {}


def test_changes_go_over_the_row(tmp_path: Path) -> None:
    recipe = load("nest/imagenet", "nest_base", {"drop_path": 0.0, "epochs": 3, "data": "digits"})
    assert (setting(recipe, "drop_path"), recipe.epochs, recipe.data) == (0.0, 3, "digits")
    assert recipe.model == "nest_base"


def test_rows_may_change_the_data(tmp_path: Path) -> None:
    assert {recipe.data for recipe in rows_of("regionvit/transfer")} == {
        "cifar10", "cifar100", "pets", "cars", "chestxray8",
    }  # fmt: skip
    with pytest.raises(RecipeError, match=r"^regionvit/transfer\.toml: data is missing$"):
        load("regionvit/transfer", "nest_tiny")


def test_a_file_of_ones_own_needs_no_rows(tmp_path: Path) -> None:
    file = mine(tmp_path, "epochs = 2.5")
    assert load(file).epochs == 2.5
    assert load(file, "hvt_s_1").model == "hvt_s_1"
    assert load(file).name == "mine"


# Mistakes.

MISTAKES = {
    "batches = 3": "classify has no setting 'batches': did you mean 'batch'?",
    "mixupp = 3": "classify has no setting 'mixupp': did you mean 'mixup'?",
    "teacher = 'x'": "classify has no setting 'teacher': it takes ",
    "epochs = 0": "epochs should be greater than 0, got 0",
    "batch = 0": "batch should be greater than or equal to 1, got 0",
    "layer_decay = 1.5": "layer_decay should be less than or equal to 1, got 1.5",
    "drop_path = 1": "drop_path should be less than 1, got 1",
    "erase = -0.1": "erase should be greater than or equal to 0, got -0.1",
    "batch = 'many'": "batch should be a valid integer, unable to parse string as an integer, "
    "got 'many'",
    "batch = 1.5": "batch should be a valid integer, got a number with a fractional part, got 1.5",
    "lr = []": "lr should be a valid number, got []",
    "betas = [0.9]": "betas.1 is missing",
    "mean = [0, 0]": "mean.2 is missing",
    "schedule = 'linear'": "schedule should be 'cosine', 'step', 'poly' or 'constant', "
    "got 'linear'",
    "crop = 'centre'": "crop should be 'resized', 'pad' or 'none', got 'centre'",
    "freeze = 'perhaps'": "freeze should be a valid boolean, unable to interpret input, "
    "got 'perhaps'",
    "paper = { top1 = 'good' }": "paper.top1 should be a valid number, "
    "unable to parse string as a number, got 'good'",
    "rows = 3": "rows is a list of tables, written [[rows]]",
    "rows = [3]": "rows is a list of tables, written [[rows]]",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_with_file_key_and_what_is_allowed(tmp_path: Path, text: str) -> None:
    file = mine(tmp_path, text)
    with pytest.raises(RecipeError) as caught:
        load(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: {MISTAKES[text]}")
    assert "\n" not in said


@pytest.mark.parametrize("name", NEEDY)
def test_what_goes_on_from_a_trained_model_does_not_start_from_nothing(name: str) -> None:
    with pytest.raises(RecipeError, match="it goes on from a trained model: give --init"):
        recipes.load(name)


def test_a_row_is_the_one_most_like_the_changes() -> None:
    assert load("regionvit/transfer", changes={"data": "cifar100"}).paper == next(
        recipe.paper for recipe in rows_of("regionvit/transfer") if recipe.data == "cifar100"
    )
    assert not load("nest/cifar10", changes={"data": "digits"}).paper  # printed for other data


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = inf", "lr should be a finite number"),
        ("batch = true", "batch is no switch, got true"),
        ("img_size = 0", "img_size should be greater than or equal to 1"),
        ("crop_scale = [1.0, 0.1]", "crop_scale should be the least and the most"),
    ],
)
def test_what_pydantic_would_let_pass_does_not(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load(mine(tmp_path, text))


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes("# Zürich".encode("latin-1"))
    with pytest.raises(RecipeError, match="is not text in UTF-8"):
        load(file)


def test_a_mistake_in_a_change_is_told_alike() -> None:
    with pytest.raises(RecipeError, match=r"^nest/digits\.toml: lr should be greater than 0, got "):
        load("nest/digits", changes={"lr": -1.0})
    with pytest.raises(RecipeError, match=r"no setting 'epoch': did you mean 'epochs'\?$"):
        load("nest/digits", changes={"epoch": 1})


@pytest.mark.parametrize("missing", ["data", "model"])
def test_what_every_recipe_needs_is_asked_for(tmp_path: Path, missing: str) -> None:
    lines = mine(tmp_path).read_text().splitlines()
    file = written(tmp_path, "\n".join(line for line in lines if not line.startswith(missing)))
    with pytest.raises(RecipeError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: {missing} is missing"


@pytest.mark.parametrize("task", ['task = "cook"', ""])
def test_an_unknown_task_is_told_the_known_ones(tmp_path: Path, task: str) -> None:
    file = written(tmp_path, f'{task}\ndata = "digits"\nmodel = "nest_tiny"')
    with pytest.raises(RecipeError) as caught:
        load(file)
    got = "'cook'" if task else "None"
    assert str(caught.value).startswith(f"{file}: task is one of classify, distill")
    assert str(caught.value).endswith(f"got {got}")


def test_a_teacher_is_distillations_to_ask_for(tmp_path: Path) -> None:
    text = mine(tmp_path).read_text().replace("classify", "distill")
    with pytest.raises(RecipeError, match=r": teacher is missing$"):
        load(written(tmp_path, text))
    assert setting(load(written(tmp_path, text + 'teacher = "resnet18"')), "teacher") == "resnet18"


def test_what_is_not_toml_is_told_with_the_line(tmp_path: Path) -> None:
    file = mine(tmp_path, "epochs = = 3")
    with pytest.raises(RecipeError) as caught:
        load(file)
    said = str(caught.value)
    assert said.startswith(f"{file} is not TOML: ")
    assert "line 4" in said
    assert "\n" not in said


def test_an_unknown_recipe_is_told_the_nearest() -> None:
    with pytest.raises(
        RecipeError, match=r"^no recipe is called 'nest/digit': did you mean 'nest/digits'\?$"
    ):
        load("nest/digit")
    with pytest.raises(RecipeError, match=r"^no recipe is called 'zzzz': `ziggurat"):
        load("zzzz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none.toml"
    with pytest.raises(RecipeError, match=r"^there is no recipe file .*none\.toml$"):
        load(file)


# To a file and back.


@every_recipe
def test_a_dumped_recipe_is_loaded_as_it_was(tmp_path: Path, name: str) -> None:
    for recipe in rows_of(name):
        assert load(written(tmp_path, recipe.dump())) == recipe


def test_changes_are_dumped_with_the_rest(tmp_path: Path) -> None:
    changes = {
        "betas": [0.9, 0.95], "ema": 0.999, "img_size": [24, 32], "init": "a 'quoted' \\ folder",
        "model_args": {"dims": [32, 64], "attention": "multi_head"}, "freeze": True, "workers": 0,
    }  # fmt: skip
    recipe = load("nest/digits", changes=changes)
    again = load(written(tmp_path, recipe.dump()))
    assert again == recipe
    assert again.betas == (0.9, 0.95)
    assert setting(again, "img_size") == (24, 32)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("-0.5", -0.5),
        ("true", True),
        ("false", False),
        ("[0.9, 0.95]", [0.9, 0.95]),
        ("{ dims = [32, 64] }", {"dims": [32, 64]}),
        ('"3"', "3"),
        ("nest_tiny", "nest_tiny"),
        ("runs/my first", "runs/my first"),
        ("rand-m9-mstd0.5", "rand-m9-mstd0.5"),
        ("none", "none"),
        ("", ""),
    ],
)
def test_what_follows_set_is_a_value_or_a_word(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)
