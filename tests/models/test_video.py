"""Clips through image models: nothing changes at step 0, and time is seen once it is learned."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ziggurat.layers.time import SpaceTimeBlock, TimeAttention, moments
from ziggurat.models.pretrained import from_pretrained, is_of_clips, open_model, save_pretrained
from ziggurat.models.registry import create_model
from ziggurat.models.video import INNER, SpaceTime
from ziggurat.models.weights import CheckpointError

SMALL: dict[str, dict[str, Any]] = {
    "nest_tiny": dict(depths=(1, 1, 2), dims=(48, 96, 192), heads=(3, 6, 12)),
    "hvt_ti_1": dict(depth=4),
    "rest_lite": dict(),
    "hivit_tiny": dict(depths=(1, 1, 2), dims=(48, 96, 192)),
    "regionvit_ti": dict(depths=(1, 1, 2, 1), dims=(32, 64, 128, 256)),
    "timm/vit_tiny_patch16_224": dict(depth=2),
}
FAMILIES = pytest.mark.parametrize("name", SMALL)
FRAMES = 4


def images_of(model: SpaceTime) -> dict[str, Tensor]:
    """The image model's weights by its own names."""
    return {
        name.removeprefix(INNER).replace(".space.", "."): value
        for name, value in model.state_dict().items()
        if ".time." not in name
    }


def pair_of(name: str, **more: Any) -> tuple[Any, SpaceTime]:
    """An image model and the model of clips that starts from it."""
    torch.manual_seed(0)
    options = {"num_classes": 5, "img_size": 64} | SMALL[name] | more
    image = create_model(name, **options).eval()
    clips = create_model(name, frames=FRAMES, **options).eval()
    image.load_state_dict(images_of(clips))
    return image, clips


@FAMILIES
@pytest.mark.parametrize("size", [(64, 64), (75, 53)])
def test_at_step_0_a_repeated_frame_is_answered_as_the_image(
    name: str, size: tuple[int, int]
) -> None:
    if name.startswith("timm/") and size != (64, 64):
        pytest.skip("timm's plain ViT takes one size")
    image, clips = (model.double() for model in pair_of(name))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        wanted, found = image(x), clips(x[:, None].expand(-1, FRAMES, -1, -1, -1))
    assert wanted.std() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@FAMILIES
def test_at_step_0_different_frames_are_averaged(name: str) -> None:
    image, clips = (model.double() for model in pair_of(name))
    x = torch.randn(2, FRAMES, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        apart = torch.stack([image(frame) for frame in x.unbind(1)]).mean(0)
        torch.testing.assert_close(clips(x), apart, rtol=0, atol=1e-9)


def taught(model: SpaceTime) -> SpaceTime:
    """Attention over time that is not the identity any more."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, TimeAttention):
            nn.init.normal_(module.fc.weight, std=0.3)
    return model


@FAMILIES
def test_order_matters_once_time_is_attended_to(name: str) -> None:
    clips = pair_of(name)[1].double()
    x = torch.randn(2, FRAMES, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(clips(x), clips(x.flip(1)), rtol=0, atol=1e-9)  # not yet
        taught(clips)
        assert (clips(x) - clips(x.flip(1))).abs().max() > 1e-4


def test_without_attention_over_time_frames_are_averaged(tmp_path: Path) -> None:
    image, _ = pair_of("regionvit_ti")
    save_pretrained(image, tmp_path / "image")
    options = dict(num_classes=5, img_size=64, **SMALL["regionvit_ti"])
    plain = open_model(
        "regionvit_ti", tmp_path / "image", frames=FRAMES, over_time=False, **options
    )
    assert not any(isinstance(module, TimeAttention) for module in plain.modules())
    save_pretrained(plain, tmp_path / "plain")
    again = from_pretrained(tmp_path / "plain")
    x = torch.randn(2, FRAMES, 3, 64, 64)
    with torch.no_grad():
        apart = torch.stack([image(frame) for frame in x.unbind(1)]).mean(0)
        torch.testing.assert_close(again(x), apart, rtol=0, atol=1e-5)


@FAMILIES
def test_clips_of_a_batch_do_not_see_each_other(name: str) -> None:
    _, clips = pair_of(name)
    taught(clips)
    x = torch.randn(3, FRAMES, 3, 64, 64)
    with torch.no_grad():
        alone = torch.cat([clips(one[None]) for one in x])
        torch.testing.assert_close(clips(x), alone, rtol=0, atol=1e-4)


@FAMILIES
def test_every_block_looks_through_time_and_learns(name: str) -> None:
    image, clips = pair_of(name)
    times = [m for m in clips.modules() if isinstance(m, TimeAttention)]
    blocks = [m for m in clips.modules() if isinstance(m, SpaceTimeBlock)]
    stages = [stage.blocks for stage in getattr(image, "stages", [image])]
    assert len(times) == len(blocks) == sum(map(len, stages))
    clips.train()
    clips(torch.randn(2, FRAMES, 3, 64, 64)).square().sum().backward()
    for time in times:
        assert time.fc.weight.grad.abs().max() > 0  # the first to move
        assert time.attn.qkv.weight.grad.abs().max() == 0  # nothing passes a weight of zero
    taught(clips).zero_grad()
    clips(torch.randn(2, FRAMES, 3, 64, 64)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for t in times for p in t.parameters())


def test_a_token_sees_its_own_place_in_all_frames_and_no_other() -> None:
    torch.manual_seed(0)
    time = TimeAttention(16, 4, frames=3).eval()
    nn.init.eye_(time.fc.weight)
    x = torch.randn(3 * 2, 5, 16, requires_grad=True)  # 3 frames of 2 clips, 5 places
    time(x)[1, 2].sum().backward()  # frame 0 of clip 1 at place 2
    assert x.grad is not None
    seen = x.grad.abs().sum(-1) > 0
    wanted = torch.zeros(6, 5, dtype=torch.bool)
    wanted[1::2, 2] = True
    assert torch.equal(seen, wanted)


def test_attention_over_time_is_attention() -> None:
    """Against softmax(q k / sqrt(d)) v, written out."""
    torch.manual_seed(0)
    time = TimeAttention(8, 2, frames=4).double().eval()
    nn.init.normal_(time.fc.weight)
    x = torch.randn(4, 8, dtype=torch.float64)
    y = time.norm(x) + moments(4, 8)
    q, k, v = (part.view(4, 2, 4).transpose(0, 1) for part in time.attn.qkv(y).chunk(3, 1))
    looked = ((q @ k.mT / 2).softmax(-1) @ v).transpose(0, 1).reshape(4, 8)
    wanted = x + time.fc(time.attn.proj(looked))
    torch.testing.assert_close(time(x[:, None])[:, 0], wanted)


@FAMILIES
def test_a_model_of_clips_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    _, clips = pair_of(name)
    taught(clips)
    clips.pretrained_cfg["label_names"] = list("abcde")
    save_pretrained(clips, tmp_path / "clips")
    assert is_of_clips(tmp_path / "clips")
    again = from_pretrained(tmp_path / "clips")
    assert isinstance(again, SpaceTime)
    assert again.pretrained_cfg["label_names"] == list("abcde")
    x = torch.randn(1, FRAMES, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(x), clips(x))
    longer = from_pretrained(tmp_path / "clips", frames=6, num_classes=3)
    assert longer(torch.randn(1, 6, 3, 64, 64)).shape == (1, 3)
    assert torch.equal(
        next(m for m in longer.modules() if isinstance(m, TimeAttention)).fc.weight,
        next(m for m in clips.modules() if isinstance(m, TimeAttention)).fc.weight,
    )


@FAMILIES
def test_image_weights_are_taken_over(name: str, tmp_path: Path) -> None:
    image, _ = pair_of(name)
    save_pretrained(image, tmp_path / "image")
    torch.save(image.state_dict(), tmp_path / "image.pth")
    options = {"img_size": 64} | SMALL[name]
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)  # ResT's norms make much of rounding
    image.double()
    repeated = x[:, None].expand(-1, 2, -1, -1, -1)
    with torch.no_grad():
        for init in (tmp_path / "image", tmp_path / "image.pth"):
            found = open_model(name, init, frames=2, num_classes=5, **options)
            torch.testing.assert_close(found.double().eval()(repeated), image(x))


def test_layers_decay_with_their_block() -> None:
    _, clips = pair_of("regionvit_ti")
    image = create_model("regionvit_ti", **SMALL["regionvit_ti"])
    of, own = clips.group_matcher(), image.group_matcher()
    assert of("image_model.stages.2.blocks.1.time.fc.weight") == own("stages.2.blocks.1.mlp.fc1")
    assert of("image_model.head.weight") == own("head.weight")
    _, vit = pair_of("timm/vit_tiny_patch16_224")
    from timm.models import group_parameters

    groups = group_parameters(vit, vit.group_matcher(), reverse=True)
    plain = create_model("timm/vit_tiny_patch16_224", depth=2)
    wanted = group_parameters(plain, plain.group_matcher(), reverse=True)
    assert groups["image_model.head.weight"] == wanted["head.weight"]
    assert groups["image_model.blocks.1.time.fc.weight"] == wanted["blocks.1.mlp.fc1.weight"]


def test_positions_that_do_not_decay_are_known_inside() -> None:
    _, clips = pair_of("nest_tiny")
    names = clips.no_weight_decay()
    assert names
    assert names <= dict(clips.named_parameters()).keys()


@FAMILIES
def test_blocks_are_computed_again_if_asked(name: str) -> None:
    _, clips = pair_of(name)
    x = torch.randn(2, FRAMES, 3, 64, 64)
    taught(clips)
    clips(x).square().sum().backward()
    wanted = {n: p.grad.clone() for n, p in clips.named_parameters()}
    clips.zero_grad()
    clips.set_grad_checkpointing()
    clips(x).square().sum().backward()
    for n, p in clips.named_parameters():
        torch.testing.assert_close(p.grad, wanted[n], rtol=1e-4, atol=1e-4, msg=n)


def test_it_exports_and_compiles() -> None:
    _, clips = pair_of("regionvit_ti")
    taught(clips)
    x = torch.randn(2, FRAMES, 3, 64, 64)
    with torch.no_grad():
        exported = torch.export.export(clips, (x,)).module()
        torch.testing.assert_close(exported(x), clips(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: create_model("regionvit_ti", frames=0), "frames is how many"),
        (lambda: create_model("regionvit_ti", frames=2.5), "frames is how many"),
        (lambda: create_model("timm/resnet18", frames=4), "no blocks of one width"),
    ],
)
def test_what_cannot_look_through_time_is_said(build: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


@pytest.mark.parametrize("shape", [(2, 3, 64, 64), (2, 5, 3, 64, 64)])
def test_other_than_clips_is_said(shape: tuple[int, ...]) -> None:
    _, clips = pair_of("rest_lite")
    with pytest.raises(ValueError, match="takes clips as"):
        clips(torch.randn(shape))


def test_a_model_of_clips_is_not_started_from_another_model(tmp_path: Path) -> None:
    _, clips = pair_of("rest_lite")
    save_pretrained(clips, tmp_path / "clips")
    with pytest.raises(CheckpointError, match="holds rest_lite"):
        open_model("nest_tiny", tmp_path / "clips", frames=4)


def test_a_convnet_of_timm_takes_clips_whose_frames_are_averaged() -> None:
    model = create_model("timm/test_efficientnet", num_classes=3, frames=2, over_time=False).eval()
    assert model.no_weight_decay() == set()  # timm's convnets do not say
    frame = torch.randn(1, 3, 64, 64)
    still = torch.stack([frame, frame], 1)
    assert torch.allclose(model(still), model.image_model(frame), atol=1e-6)
