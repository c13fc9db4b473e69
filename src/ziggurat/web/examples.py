"""Images to try: two photographs and two held-out digits, all of which ship with scikit-learn."""

import functools
import io
from importlib import resources
from typing import NamedTuple

from sklearn.datasets import images as photos

from ziggurat.data.get import digits

PHOTOS = {"china": "danielbuechele", "flower": "vultilion"}  # each CC BY 2.0
DIGITS = ("3", "8")


class Example(NamedTuple):
    """An image file, and whose it is."""

    credit: str
    media_type: str
    contents: bytes


@functools.cache
def examples() -> dict[str, Example]:
    """All of them by name."""
    files = resources.files(photos)
    found = {
        name: Example(f"{by}, CC BY 2.0", "image/jpeg", (files / f"{name}.jpg").read_bytes())
        for name, by in PHOTOS.items()
    }
    held_out = digits().test
    for name in DIGITS:
        file = io.BytesIO()
        index = held_out.labels.tolist().index(held_out.classes.index(name))
        held_out.image(index).save(file, "PNG")
        found[f"digit-{name}"] = Example("scikit-learn", "image/png", file.getvalue())
    return found
