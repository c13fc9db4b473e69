"""An image of the size its annotations speak of.

Cameras store a picture lying on its side and say so in EXIF. ``read_image`` turns it upright, but
some tools annotate what is stored: where only that has the size annotated, it is what is meant.
"""

from pathlib import Path

from PIL import ExifTags, Image

from ziggurat.data.images import BadImage, as_rgb, bad_image, decoded, known_formats, streamed

BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # EXIF's ways to lie on a side, and what undoes the turn upright


def sized(file: Path | bytes, name: str, size: tuple[int, int]) -> Image.Image:
    """Decode an image of ``size`` (width, height) as 8-bit RGB; another size is a BadImage."""
    return as_sized(file, name, size)[0]


def as_sized(file: Path | bytes, name: str, size: tuple[int, int]) -> tuple[Image.Image, str]:
    """The same, and the mode it was stored in."""
    with bad_image(name):
        image = decoded(file, name)
        if image.size != size and image.size == size[::-1]:
            _, turn = header(file, name)
            image = image.transpose(BACK[turn]) if turn in BACK else image
        if image.size != size:
            raise BadImage(other_size(name, image.size, size))
        return as_rgb(image), image.mode


def other_size(name: str, size: tuple[int, int], annotated: tuple[int, int]) -> str:
    """What to say of an image that its annotations do not fit."""
    return f"{name}: {size[0]} x {size[1]}, annotated as {annotated[0]} x {annotated[1]}"


def header(file: Path | bytes, name: str) -> tuple[tuple[int, int], int]:
    """Width and height as stored, and how EXIF would turn it, without decoding the pixels."""
    with bad_image(name), streamed(file) as stream:
        image = Image.open(stream, formats=known_formats())
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
        if image.format == "TIFF" and turn in BACK:  # PIL gives the size it will turn it to
            return (image.size[1], image.size[0]), turn
        return image.size, turn
