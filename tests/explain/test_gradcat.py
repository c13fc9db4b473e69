import pytest
import torch
from torch import Tensor, nn

from tests.explain.painted import BLUE, GREEN, RED, counts_colours, painted
from tests.models.small import small
from ziggurat.explain import Node, explain
from ziggurat.explain.gradcat import levels, traversal
from ziggurat.models.nest import NesT

SPOTS = {RED: 1, GREEN: 14, BLUE: 11}


def sixteenth(node: Node) -> int:
    x0, y0, _, _ = node.box
    return int(y0 * 4) * 4 + int(x0 * 4)


@pytest.mark.parametrize("size", [(64, 64), (64, 96), (128, 128), (97, 131), (256, 192)])
def test_each_class_is_found_in_its_sixteenth_whatever_the_size(size: tuple[int, int]) -> None:
    found = explain(counts_colours(), painted(size, SPOTS), [RED, GREEN, BLUE], "gradcat")
    assert [sixteenth(path[-1]) for path in found.paths] == list(SPOTS.values())
    for path, heat in zip(found.paths, found.maps, strict=True):
        assert [node.level for node in path] == [1, 2]
        x0, y0, x1, y1 = path[-1].box
        assert (x1 - x0, y1 - y0) == (0.25, 0.25)
        leaf = heat == 1
        assert leaf.float().mean() == pytest.approx(1 / 16, abs=0.01)
        ys, xs = leaf.nonzero().T
        middle = (xs.float().mean() + 0.5) / size[1], (ys.float().mean() + 0.5) / size[0]
        assert middle == (
            pytest.approx((x0 + x1) / 2, abs=0.01),
            pytest.approx((y0 + y1) / 2, abs=0.01),
        )


def test_the_leaf_is_what_the_logit_would_miss_most() -> None:
    """The sign: with the paper's minus, the way leads where the class is not."""
    model = counts_colours()
    image = painted((64, 64), SPOTS)
    for colour, spot in SPOTS.items():
        loss = []
        for cell in range(16):
            row, column = divmod(cell, 4)
            hidden = image.clone()
            hidden[..., row * 16 : row * 16 + 16, column * 16 : column * 16 + 16] = 0
            loss.append(float((model(image) - model(hidden))[0, colour]))
        assert loss.index(max(loss)) == spot
        maps, logits = levels(model, image)
        slopes = torch.autograd.grad(logits[0, colour], maps)
        heats = [(a * g).sum(-1)[0].detach() for a, g in zip(maps, slopes, strict=True)]
        assert sixteenth(traversal(heats, model.strides[1:], (64, 64))[-1]) == spot
        minus = traversal([-heat for heat in heats], model.strides[1:], (64, 64))
        assert sixteenth(minus[-1]) != spot


def test_the_roots_children_share_the_logit() -> None:
    model = small("nest_tiny").eval()
    nn.init.normal_(model.head.bias)
    image = torch.randn(1, 3, 64, 64)
    for number, path in zip([0, 7], explain(model, image, [0, 7], "gradcat").paths, strict=True):
        shared = sum(path[0].values) * (4 * 4 / 4)  # positions of a child
        assert shared == pytest.approx(
            float(model(image)[0, number] - model.head.bias[number]), abs=1e-5
        )
        for node in path:
            assert node.values[node.child] == max(node.values)


def test_activation_times_gradient_says_nothing_before_a_norm() -> None:
    """Why maps are taken where they are pooled: a norm ignores scale (Euler's theorem)."""
    model = small("nest_tiny").eval()
    nn.init.normal_(model.norm.weight)
    state = model.embed(torch.randn(1, 3, 64, 64))
    for stage in model.stages:
        state = stage(state)
    normed = model.normed(state)
    logit = model.head(normed.mean((1, 2)))[0, 3]
    before, behind = (
        (x * g).sum(-1).abs().mean()
        for x, g in zip((state, normed), torch.autograd.grad(logit, (state, normed)), strict=True)
    )
    assert before < 1e-3 * behind


@pytest.mark.parametrize(
    "options",
    [
        {"aggregate": "merge"},
        {"aggregate": "query"},
        {"aggregate": "max3"},
        {"aggregate": "conv3s2-norm"},
        {"plane": "block"},
    ],
    ids=str,
)
def test_any_aggregation_has_a_tree(options: dict[str, str]) -> None:
    model = small("nest_tiny", **options).eval()
    image = torch.randn(1, 3, 64, 80)
    maps, logits = levels(model, image)
    assert torch.allclose(logits, model(image), atol=1e-5)
    assert [tuple(a.shape[1:3]) for a in maps] == [(8, 10), (4, 5)]
    assert len(explain(model, image, [1], "gradcat").paths[0]) == 2


def test_a_cifar_tree_is_one_level_deeper() -> None:
    model = NesT(32, num_classes=4, patch_size=1, dims=8, heads=1, depths=(1, 1, 1, 1)).eval()
    (path,) = explain(model, torch.randn(1, 3, 32, 32), [2], "gradcat").paths
    assert [node.box[2] - node.box[0] for node in path] == [1 / 2, 1 / 4, 1 / 8]


def test_a_map_of_one_position_has_no_quarters() -> None:
    model = small("nest_tiny").eval()
    found = explain(model, torch.randn(1, 3, 9, 9), [2], "gradcat")
    assert found.paths == ((),)
    assert found.maps.shape == (1, 9, 9)
    assert not found.maps.any()


def test_all_classes_share_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("nest_tiny").eval()
    calls = 0
    embed = model.embed

    def counted(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return embed(images)

    monkeypatch.setattr(model, "embed", counted)
    explain(model, torch.randn(1, 3, 64, 64), range(10), "gradcat")
    assert calls == 1
