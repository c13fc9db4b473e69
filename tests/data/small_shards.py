"""Shards of a few grey images each."""

import io
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from ziggurat.data.images import Images


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(file, "PNG")
    return file.getvalue()


def tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, contents in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            file.addfile(info, io.BytesIO(contents))
    return path


def shard(path: Path, first: int, count: int = 4, classes: int = 2) -> Path:
    """Samples whose grey is their number and whose class is it modulo ``classes``."""
    members = {}
    for i in range(first, first + count):
        members[f"{i:04}.png"] = png(i)
        members[f"{i:04}.cls"] = str(i % classes).encode()
    return tar(path, members)


def greys(images: Images) -> list[int]:
    found = []
    for i in range(len(images)):
        pixel: Any = images.image(i).getpixel((0, 0))
        found.append(pixel[0])
    return found
