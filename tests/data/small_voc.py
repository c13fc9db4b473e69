"""A folder as Pascal VOC has it."""

from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw


class Thing(NamedTuple):
    """An object, in edges of pixels."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool = False


def write(root: Path, images: dict[str, tuple[tuple[int, int], list[Thing]]]) -> Path:
    """Each image, (width, height), with white rectangles for its objects."""
    for folder in ("JPEGImages", "Annotations"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for stem, (size, things) in images.items():
        picture = Image.new("RGB", size)
        pen = ImageDraw.Draw(picture)
        parts = []
        for name, (x0, y0, x1, y1), difficult in things:
            pen.rectangle((x0, y0, x1 - 1, y1 - 1), fill="white")
            parts.append(
                f"<object><name>{name}</name><difficult>{int(difficult)}</difficult><bndbox>"
                f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
                "</bndbox></object>"
            )
        picture.save(root / "JPEGImages" / f"{stem}.png")
        text = (
            f"<annotation><filename>{stem}.jpg</filename><size><width>{size[0]}</width>"
            f"<height>{size[1]}</height><depth>3</depth></size>{''.join(parts)}</annotation>"
        )
        (root / "Annotations" / f"{stem}.xml").write_text(text)
    return root
