"""What was found in a picture, drawn onto it: boxes, masks, a colour for each class."""

import colorsys
import functools
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ziggurat.tasks.drawing import shorten

LETTERS = 24  # of a class name
MASK, MAP = 0.5, 0.6  # how much of the picture a colour covers
LEAST, MOST = 480, 1600  # pixels of the long side of a drawing


@functools.cache
def colour(number: int) -> tuple[int, int, int]:
    """A colour for a class: neighbours in number are far apart in hue."""
    hue = (number * 0.618034 + 0.03) % 1
    value = (0.95, 0.8, 0.65)[number // 7 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.75, 0.55, 0.9)[number % 3], value)
    return round(255 * red), round(255 * green), round(255 * blue)


def sized(picture: Image.Image) -> tuple[Image.Image, float]:
    """A copy large enough for names to be read, no larger than a page; and its scale."""
    longest = max(picture.size)
    scale = max(LEAST / longest, 1.0) if longest <= MOST else MOST / longest
    size = tuple(max(1, round(side * scale)) for side in picture.size)
    small = longest <= 96
    how = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
    return picture.convert("RGB").resize((size[0], size[1]), how), scale


def with_objects(
    picture: Image.Image,
    boxes: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    scores: np.ndarray | None = None,
    masks: np.ndarray | None = None,
) -> Image.Image:
    """Boxes (n, 4), each with its class and score, over masks (n, H, W), the surest on top."""
    drawn, scale = sized(picture)
    order = range(len(boxes) - 1, -1, -1)
    if masks is not None:
        pixels = np.asarray(drawn).astype(np.float32)
        for i in order:
            mask = Image.fromarray(masks[i].astype(np.uint8) * 255).resize(drawn.size)
            share = np.asarray(mask)[..., None] / 255 * MASK
            pixels = pixels * (1 - share) + share * np.array(colour(int(labels[i])))
        drawn = Image.fromarray(pixels.round().astype(np.uint8))
    pen = ImageDraw.Draw(drawn)
    font = ImageFont.load_default(max(11, max(drawn.size) / 48))
    line = max(2, round(max(drawn.size) / 320))
    for i in order:
        fill = colour(int(labels[i]))
        x1, y1, x2, y2 = (float(value) * scale for value in boxes[i])
        pen.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=fill, width=line)
        name = shorten(classes[int(labels[i])], LETTERS)
        tag(pen, (x1, y1), name if scores is None else f"{name} {scores[i]:.2f}", fill, font)
    return drawn


def tag(
    pen: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    fill: tuple[int, int, int],
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    """Words on a plate over a corner, or below it where there is no room above."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = max(0, min(corner[0], pen.im.size[0] - width))
    y = corner[1] - height if corner[1] >= height else corner[1]
    pen.rectangle((x, y, x + width, y + height), fill=fill)
    dark = sum(w * c for w, c in zip((0.3, 0.59, 0.11), fill, strict=True)) > 140
    pen.text((x + 3 - left, y + 3 - top), text, fill="black" if dark else "white", font=font)


def with_map(picture: Image.Image, labels: np.ndarray, classes: Sequence[str]) -> Image.Image:
    """A colour for the class of each pixel (H, W); a key of the classes there are on the right."""
    return keyed(coloured(picture, labels, classes), [labels], classes)


def coloured(picture: Image.Image, labels: np.ndarray, classes: Sequence[str]) -> Image.Image:
    """A colour for the class of each pixel (H, W); those of no class stay as they are."""
    drawn, _ = sized(picture)
    numbers = Image.fromarray(labels.astype(np.uint8)).resize(drawn.size, Image.Resampling.NEAREST)
    at = np.asarray(numbers)
    palette = np.array([colour(i) for i in range(len(classes))] + [(0, 0, 0)], np.float32)
    known = at < len(classes)
    pixels = np.asarray(drawn).astype(np.float32)
    mixed = pixels * (1 - MAP) + palette[np.where(known, at, len(classes))] * MAP
    return Image.fromarray(np.where(known[..., None], mixed, pixels).round().astype(np.uint8))


def keyed(drawn: Image.Image, maps: Sequence[np.ndarray], classes: Sequence[str]) -> Image.Image:
    """The picture with names and colours beside it of the classes in maps, the largest first."""
    each = [np.bincount(one.ravel(), minlength=256)[: len(classes)] for one in maps]
    counts = np.sum(each, axis=0)
    present = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    letters = max(12, drawn.height / 28)
    font = ImageFont.load_default(letters)
    step = round(letters * 1.5)
    names = [shorten(classes[i], LETTERS) for i in present][: max(1, drawn.height // step)]
    wide = max((font.getlength(name) for name in names), default=0)
    whole = Image.new("RGB", (drawn.width + round(wide + 2.4 * step), drawn.height), "white")
    whole.paste(drawn)
    pen = ImageDraw.Draw(whole)
    x = drawn.width + step // 2
    for row, (i, name) in enumerate(zip(present, names, strict=False)):
        y = row * step + step // 4
        pen.rectangle((x, y, x + step * 0.7, y + step * 0.7), fill=colour(i))
        pen.text((x + step, y + step * 0.35), name, fill="#22252b", font=font, anchor="lm")
    return whole
