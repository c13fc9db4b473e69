"""Image files of 4 x 4 grey pixels, lists of them, and sets in memory."""

from pathlib import Path

from PIL import Image

from ziggurat.data.images import Images


def picture(path: Path, grey: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (grey, grey, grey)).save(path)
    return path


def tree(root: Path, counts: dict[str, int]) -> Path:
    """Class folders with so many images each."""
    for name, count in counts.items():
        for i in range(count):
            picture(root / name / f"{i:03}.png", i)
    return root


def names(images: Images) -> list[str]:
    return [images.name(i) for i in range(len(images))]


def lines(path: Path, *text: str) -> Path:
    path.write_text("\n".join(text) + "\n")
    return path
