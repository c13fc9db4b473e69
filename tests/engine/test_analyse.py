from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.models.small import small
from ziggurat.engine.analyse import analyse
from ziggurat.models.pretrained import save_pretrained


def saved(folder: Path, name: str, seed: int) -> str:
    torch.manual_seed(seed)
    return str(save_pretrained(small(name), folder / f"{name}{seed}"))


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    files = []
    for i in range(3):
        files.append(str(tmp_path / f"{i}.png"))
        noise = torch.randint(0, 255, (40, 50, 3), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(files[-1])
    return files


def test_heads_and_seeds_are_measured_together(tmp_path: Path, images: list[str]) -> None:
    sources = [saved(tmp_path, "rest_lite", seed) for seed in range(2)]
    found = analyse(sources, images)
    assert found.variances is not None
    assert found.variances.shape == (3, 4)  # images, layers
    assert (found.variances > 0).all()
    measured = found.measured()
    layers = measured["heads"][sources[0]]
    assert list(layers) == ["stages.1.blocks.0", "stages.2.blocks.0", "stages.3.blocks.0"]
    for places in layers.values():
        for one in places.values():
            alike = torch.tensor(one["similarity"])
            assert torch.allclose(alike.diag(), torch.ones(len(alike)), atol=1e-4)
    assert not found.notes


def test_the_mean_is_that_of_the_images(tmp_path: Path, images: list[str]) -> None:
    source = saved(tmp_path, "rest_lite", 0)
    alone = [analyse([source], [image]).heads[source]["stages.3.blocks.0"] for image in images]
    together = analyse([source], images).heads[source]["stages.3.blocks.0"]
    for mean, *each in zip(together, *alone, strict=True):
        assert torch.allclose(mean, torch.stack(each).mean(0), atol=1e-6)


def test_the_same_weights_do_not_vary(tmp_path: Path, images: list[str]) -> None:
    sources = [saved(tmp_path / part, "hivit_tiny", 0) for part in ("a", "b")]
    found = analyse(sources, images)
    assert found.variances is not None
    assert found.variances.abs().max() == 0


def test_what_cannot_be_compared_is_noted(tmp_path: Path, images: list[str]) -> None:
    sources = [saved(tmp_path, name, 0) for name in ("nest_tiny", "hivit_tiny")]
    (tmp_path / "0.png").write_bytes(b"no image")
    found = analyse(sources, images)
    assert found.variances is None
    assert "one architecture" in found.notes[0]
    assert len(found.notes) == len(found.skipped) == 1
    assert found.images == images[1:]
    assert "mixes no heads" in analyse(sources[:1], images[1:]).notes[0]


def test_a_mistake_is_said(tmp_path: Path, images: list[str]) -> None:
    source = saved(tmp_path, "nest_tiny", 0)
    with pytest.raises(ValueError, match="given twice"):
        analyse([source, source], images)
    (tmp_path / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="none of the 1 images can be read"):
        analyse([source], images[:1])
