"""Clips are trained on, measured and predicted; order is learned where it can be."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.data.small_clips import write_clip
from tests.engine.small_runs import SMALL, small
from ziggurat.cli import main
from ziggurat.data.clips import open_clips
from ziggurat.engine import recipe
from ziggurat.engine.evaluate import evaluate
from ziggurat.engine.recipe import RecipeError
from ziggurat.engine.train import train
from ziggurat.engine.watch import Watcher
from ziggurat.models.pretrained import from_pretrained, save_pretrained
from ziggurat.models.registry import create_model
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import Batch
from ziggurat.tasks.video import Crops, RandomCut, Video, averaged, scaled

LEFT_OUT = (
    "data",
    "crop",
    "crop_padding",
    "auto_augment",
    "color_jitter",
)  # given, or an image's alone
CLIPS: dict[str, Any] = {key: value for key, value in SMALL.items() if key not in LEFT_OUT} | {
    "name": "small clips",
    "task": "video",
    "frames": 4,
    "sides": [16, 18],
    "crops": 1,
    "batch": 8,
    "epochs": 15,
    "lr": 3e-3,
    "weight_decay": 0.0,
}


def growing(number: int) -> np.ndarray:
    """A clip (12, 20, 24, 3) of a square that grows."""
    chance = np.random.default_rng(number)
    clip = np.broadcast_to(chance.integers(0, 60, (20, 24, 3)), (12, 20, 24, 3)).astype(np.uint8)
    y, x = chance.integers(7, 13, 2)
    for t in range(12):
        half = 1 + t // 2
        clip[t, max(0, y - half) : y + half, max(0, x - half) : x + half] = 230
    return clip


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that only the order of frames tells apart."""
    folder = tmp_path_factory.mktemp("clips")
    for split, count in (("train", 32), ("val", 6)):
        for i in range(count):
            frames = growing(i + 100 * (split == "val"))
            for label, clip in (("growing", frames), ("shrinking", frames[::-1])):
                write_clip(folder / split / label / f"{i}.mp4", clip)
    return folder


@pytest.fixture(scope="module")
def run(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that learned them."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small(**CLIPS, data=str(clips)), out)
    return out


def test_order_is_learned(run: Path) -> None:
    found = json.loads((run / "results.json").read_text())["measured"]["test"]
    assert found["top1"] == 100
    assert found["images"] == 12
    assert (run / "report.html").exists()


def test_without_attention_over_time_it_is_chance(clips: Path, tmp_path: Path) -> None:
    train(small(**CLIPS, data=str(clips), over_time=False), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "results.json").read_text())["measured"]["test"]
    assert found["top1"] == 50
    assert found["loss"] > 0.9 * math.log(2)


def test_eval_gives_the_trainings_last_figures(run: Path) -> None:
    wanted = json.loads((run / "results.json").read_text())["measured"]["test"]
    assert evaluate(run).measures == wanted


def test_eval_needs_no_recipe(run: Path, clips: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((run / file).read_bytes())
    found = evaluate(tmp_path, data=str(clips), batch=8).measures
    assert found["top1"] == 100


def test_a_clip_is_predicted_and_its_frames_are_shown(
    run: Path, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.mp4").touch()
    words = ["predict", str(run), str(clips / "val" / "shrinking"), str(tmp_path / "empty.mp4")]
    out = tmp_path / "strips"
    assert main([*words, "--out", str(out), "--json"]) == 1
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["top"][0]["name"] for row in rows[:-1]] == ["shrinking"] * 6
    assert "the file is empty" in rows[-1]["error"]
    assert "skipped" in said.err
    assert sorted(path.name for path in out.iterdir()) == [f"{i}.png" for i in range(6)]
    with Image.open(out / "0.png") as strip:
        assert strip.width > 4 * strip.height / 2  # four frames side by side

    one = str(clips / "val" / "growing" / "0.mp4")
    assert main(["predict", str(run), one, "--out", str(tmp_path / "one")]) == 0
    said = capsys.readouterr()
    assert "growing" in said.out
    assert "1 strips of frames" in said.out


def test_strips_are_not_overwritten_unasked(
    run: Path, clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").touch()
    one = str(clips / "val" / "growing" / "0.mp4")
    assert main(["predict", str(run), one, "--out", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_watcher_is_of_clips_alone(run: Path, tmp_path: Path) -> None:
    found = list(Watcher(run)([run.parent / "nowhere.mp4"]))
    assert found[0].error
    save_pretrained(create_model("rest_lite", num_classes=2), tmp_path / "images")
    with pytest.raises(ValueError, match="no model of clips"):
        Watcher(tmp_path / "images")


FAMILIES = {
    "nest_tiny_cifar": SMALL["model_args"],
    "hvt_ti_1": {"patch_size": 4, "dim": 32, "heads": 2, "depth": 2},
    "rest_lite": {"dims": [16, 32], "heads": [1, 2], "depths": [1, 1], "reductions": [2, 1]},
    "hivit_tiny": {"dims": [8, 16, 32], "heads": 2, "depths": [1, 1, 1], "unit": 8},
    "regionvit_ti": {"dims": [32, 64], "depths": [1, 1], "windows": 2},
    "timm/vit_tiny_patch16_224": {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_and_is_loaded_again(name: str, clips: Path, tmp_path: Path) -> None:
    changes = {"model": name, "model_args": FAMILIES[name], "epochs": 1, "mixup": 0.8}
    found = small(**CLIPS | changes, data=str(clips))
    train(found, tmp_path / "run")
    wanted = json.loads((tmp_path / "run" / "results.json").read_text())["measured"]["test"]
    assert evaluate(tmp_path / "run").measures == wanted
    assert isinstance(from_pretrained(tmp_path / "run"), SpaceTime)


def test_it_starts_from_images_and_from_clips(run: Path, clips: Path, tmp_path: Path) -> None:
    image = create_model("nest_tiny_cifar", img_size=16, num_classes=7, **SMALL["model_args"])
    save_pretrained(image, tmp_path / "image")
    for init in (tmp_path / "image", run):
        changes = {"init": str(init), "epochs": 0.4, "model_args": {}}
        train(small(**CLIPS | changes, data=str(clips)), tmp_path / f"from-{init.name}")
        assert from_pretrained(tmp_path / f"from-{init.name}").num_classes == 2
    assert evaluate(tmp_path / "from-run").measures["top1"] == 100  # it knew already


def test_an_unreadable_clip_is_replaced_and_counted(clips: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for label in ("growing", "shrinking"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for i in range(6):
                file = Path(split) / label / f"{i}.mp4"
                (tmp_path / "data" / file).write_bytes((clips / file).read_bytes())
    whole = (tmp_path / "data" / "train" / "shrinking" / "2.mp4").read_bytes()
    (tmp_path / "data" / "train" / "shrinking" / "2.mp4").write_bytes(whole[:60])
    (tmp_path / "data" / "val" / "shrinking" / "3.mp4").write_bytes(b"")
    changes = {"epochs": 1, "max_bad": 0.2, "batch": 12}
    train(small(**CLIPS | changes, data=str(tmp_path / "data")), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "results.json").read_text())["measured"]
    assert found["bad_files"] >= 1
    assert found["test"]["images"] == 11
    strict = small(**CLIPS | changes | {"max_bad": 0.0}, data=str(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"2\.mp4"):
        train(strict, tmp_path / "strict")


def test_three_crops_are_top_left_centre_and_bottom_right() -> None:
    config = {"input_size": (3, 8, 8), "crop_pct": 0.5, "test_crops": 3}
    frames = torch.arange(16 * 32, dtype=torch.uint8).view(1, 1, 16, 32).expand(2, 3, -1, -1)
    found = Crops(config)(frames)
    assert found.shape == (3, 2, 3, 8, 8)
    wanted = [frames[..., :8, :8], frames[..., 4:12, 12:20], frames[..., 8:, 24:]]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    centre = Crops(config | {"test_crops": 1})(frames)
    assert torch.equal(centre, found[1:2])


@pytest.mark.parametrize("size", [(16, 16), (12, 20), (20, 12)])
@pytest.mark.parametrize("shape", [(20, 24), (9, 40), (64, 17)])
def test_a_clip_of_any_shape_holds_what_is_cut(
    size: tuple[int, int], shape: tuple[int, int]
) -> None:
    frames = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
    assert RandomCut((16, 18), size, 0.5)(frames).shape == (2, 3, *size)
    config = {"input_size": (3, *size), "crop_pct": 1.0, "test_crops": 3}
    assert Crops(config)(frames).shape == (3, 2, 3, *size)
    H, W = scaled(torch.zeros(1, 3, 90, 160), 16, (16, 16)).shape[2:]
    assert (H, W) == (16, 28)


def test_probabilities_of_crops_are_averaged() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])  # of three crops of one clip

    class Said(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return logits.flatten(0, 1)

    found = averaged(Said(), torch.zeros(1, 3, 2, 3, 4, 4))
    torch.testing.assert_close(found.exp(), logits.softmax(-1).mean(1))


def test_frames_of_a_clip_are_cut_and_mixed_alike(clips: Path) -> None:
    task = Video.build(
        recipe_wanted(), small(**CLIPS | {"cutmix": 1.0}, data="clips").settings, open_clips(clips)
    )
    still = torch.randint(0, 256, (8, 1, 3, 16, 16), dtype=torch.uint8).expand(-1, 4, -1, -1, -1)
    batch = Batch(still, torch.arange(8) % 2, torch.arange(8), ())
    torch.manual_seed(0)
    np.random.seed(0)
    images, shares = task.prepared(batch)
    assert images.shape == (8, 4, 3, 16, 16)
    assert shares.shape == (8, 2)
    assert torch.equal(images, images[:, :1].expand_as(images))
    assert not torch.equal(images[:, 0], task.normalised(still)[:, 0])


def recipe_wanted() -> Any:
    from ziggurat.tasks.task import Wanted

    return Wanted("nest_tiny_cifar", SMALL["model_args"], None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sides": [20, 18]}, "the least and the most"),
        ({"frames": 0}, "frames"),
        ({"crops": 2}, "crops"),
        ({"auto_augment": "none"}, "video has no setting 'auto_augment'"),
    ],
)
def test_a_wrong_setting_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        small(**CLIPS | changes, data="clips")


def test_a_short_side_must_hold_what_the_model_sees(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="take larger sides"):
        train(small(**CLIPS | {"sides": [12, 16]}, data=str(clips)), tmp_path / "run")


@pytest.mark.parametrize("name", ["regionvit/k400", "regionvit/ssv2"])
def test_the_papers_recipes_start_from_images(name: str) -> None:
    with pytest.raises(RecipeError, match="give --init"):
        recipe.load(name)
    found = recipe.load(name, changes={"init": "somewhere"})
    assert found.settings.frames == 8  # type: ignore[attr-defined]
    assert found.settings.sides == (256, 320)  # type: ignore[attr-defined]
    assert found.peak_lr == 2e-4
    assert found.weight_decay == 1e-4
