"""Clips of 16 x 96 pixels that show the number of each frame, as a row of black and white bits."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

BITS = 12


def numbered(count: int) -> np.ndarray:
    """Frames (count, 16, 96, 3) that can be told apart after any codec."""
    bits = np.arange(count)[:, None] >> np.arange(BITS) & 1  # (count, 12)
    rows = np.repeat(bits.astype(np.uint8) * 255, 8, axis=1)  # (count, 96)
    return np.broadcast_to(rows[:, None, :, None], (count, 16, 8 * BITS, 3)).copy()


def numbers(frames: np.ndarray) -> list[int]:
    """What ``numbered`` wrote."""
    cells = frames.reshape(len(frames), frames.shape[1], BITS, 8, 3).mean((1, 3, 4)) > 128
    return (cells << np.arange(BITS)).sum(1).tolist()


def middles(frames: int, count: int) -> list[int]:
    """The frames in the middles of so many parts, where all are shown equally long."""
    return [int((i + 0.5) * frames / count) for i in range(count)]


def write_clip(
    path: Path,
    frames: np.ndarray | int = 20,
    fps: int = 10,
    codec: str = "libx264",
    pts: list[int] | None = None,
    rotation: int = 0,
    audio: float = 0.0,
    cover: bool = False,
    container: dict[str, str] | None = None,
    **options: Any,
) -> Path:
    """Encode frames, or one that is a ``cover``.

    ``pts`` are in milliseconds, ``audio`` in seconds, ``rotation`` in degrees clockwise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(frames, int):
        frames = numbered(frames)
    with av.open(str(path), "w", options=container or {}) as file:
        sound = file.add_stream("aac", rate=8000) if audio else None
        if len(frames):
            if codec == "libx264":
                options = {"preset": "ultrafast", "bf": 0} | options
            stream: Any = file.add_stream(
                codec, rate=fps, options={key: str(value) for key, value in options.items()}
            )
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = {"gif": "rgb8", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
            if cover:
                stream.disposition = av.stream.Disposition.attached_pic
            if pts:
                stream.codec_context.time_base = Fraction(1, 1000)
            for i, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                if pts:
                    frame.pts, frame.time_base = pts[i], Fraction(1, 1000)
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        if sound:
            for i in range(int(audio * 8000 / 1024)):
                noise = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
                noise.sample_rate, noise.pts = 8000, 1024 * i
                file.mux(sound.encode(noise))
            file.mux(sound.encode(None))
    if rotation:
        turn(path, rotation)
    return path


def turn(path: Path, degrees: int) -> None:
    """Write into an MP4 that its frames are to be shown turned clockwise, as phones do."""
    contents = bytearray(path.read_bytes())
    a, b = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = (a << 16, b << 16, 0, -b << 16, a << 16, 0, 0, 0, 1 << 30)
    at = contents.index(b"tkhd") + 4 + 40
    contents[at : at + 36] = struct.pack(">9i", *matrix)
    path.write_bytes(contents)


def cut(path: Path, share: float) -> Path:
    """Leave only the beginning of a file."""
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])
    return path
