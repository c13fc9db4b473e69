"""Pictures of what a model does."""

from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

SIDE, GAP, LINE = 224, 12, 40
INK, PAPER = (30, 30, 40), (255, 255, 255)


def open_image(path: str | Path) -> Image.Image:
    """An image file as RGB; one clear error for anything else."""
    try:
        return Image.open(path).convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image at {path}") from None
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None


def sample_image() -> Image.Image:
    """A photograph that ships with scikit-learn."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise ImportError(
            "no image given, and the sample photo comes with scikit-learn: "
            "pass --image FILE or `pip install 'ziggurat[demo]'`"
        ) from None
    return Image.fromarray(load_sample_image("china.jpg"))


def as_colours(features: Tensor) -> Image.Image:
    """(C, H, W) as a picture: its three main components as red, green and blue."""
    _, H, W = features.shape
    tokens = features.float().flatten(1).t()  # (H * W, C)
    tokens = tokens - tokens.mean(0)
    _, _, axes = torch.linalg.svd(tokens, full_matrices=False)
    axes = axes[:3]
    axes = axes * axes.sum(1, keepdim=True).sign()  # else signs, and colours, are arbitrary
    colours = tokens @ axes.t()
    low, high = colours.quantile(0.02, 0), colours.quantile(0.98, 0)
    colours = ((colours - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    colours = nn.functional.pad(colours, (0, 3 - colours.shape[1]))
    pixels = (colours * 255).byte().reshape(H, W, 3).numpy()
    return Image.fromarray(pixels)


def stage_sheet(
    model: nn.Module, image: str | Path | None = None, size: tuple[int, int] | None = None
) -> Image.Image:
    """The image as the model sees it, at ``size`` if given, and each stage's map, side by side."""
    show = getattr(model, "forward_intermediates", None)
    if show is None:
        raise ValueError(f"{type(model).__name__} does not show its stages")
    model.eval()
    photo = sample_image() if image is None else open_image(image)
    config = resolve_data_config({"input_size": (3, *size)} if size else {}, model=model)
    prepared = create_transform(**config)(photo)
    with torch.no_grad():
        maps = show(prepared[None], intermediates_only=True)
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    seen = ((prepared * std + mean).clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
    tiles = [(Image.fromarray(seen), f"image  {' x '.join(map(str, seen.shape[:2]))}")]
    for i, found in enumerate(maps):
        _, channels, height, width = found.shape
        tiles.append((as_colours(found[0]), f"stage {i + 1}  {channels} x {height} x {width}"))
    sheet = Image.new("RGB", (len(tiles) * (SIDE + GAP) + GAP, SIDE + LINE + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for i, (tile, label) in enumerate(tiles):
        x = GAP + i * (SIDE + GAP)
        smooth = Image.Resampling.BICUBIC if i == 0 else Image.Resampling.NEAREST
        sheet.paste(tile.resize((SIDE, SIDE), smooth), (x, LINE))
        draw.text((x, LINE // 2 - 8), label, fill=INK, font=font)
    return sheet
