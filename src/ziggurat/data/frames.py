"""A video file to frames, which are sought by time; the file is not read whole.

    clip.mp4 -> read_clip(count=8) -> (8, H, W, 3) uint8

Time, not the number of a frame, says where in a clip something happens: frames may be shown for
different times. To get at one, the decoder is sent to the key frame before it and decodes from
there; if it is already between the two, it goes on from where it is.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ziggurat.data.images import MAX_PIXELS, BadImage, bad_image

EXTENSIONS = frozenset({
    "mp4", "m4v", "mov", "qt", "webm", "mkv", "avi", "divx", "wmv", "asf", "flv", "f4v", "3gp",
    "3g2", "mpg", "mpeg", "mpe", "vob", "ts", "m2ts", "mts", "ogv", "gif", "h264", "264",
})  # fmt: skip
# By FFmpeg's names. These say how long they are, and where their key frames are.
INDEXED = ("mov", "matroska", "avi", "asf", "flv")
# These do not, or not reliably. All others are refused: some are pictures, some read other files.
PLAIN = ("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "ogg", "gif")


class BadClip(BadImage):
    """A clip that cannot be read; the message is ``path: reason``."""


class Lost(Exception):
    """Seeking does not lead where it should."""


class Viewed(NamedTuple):
    """What a clip shows, and what it is."""

    frames: np.ndarray  # (count, H, W, 3) uint8
    seconds: float  # from the first frame to the end of the last
    codec: str


def read_clip(file: str | Path, name: str, count: int, jitter: bool = False) -> np.ndarray:
    """RGB frames (count, H, W, 3) of a file, evenly spread; ``name`` is for the BadClip.

    The clip is cut into ``count`` equal parts of time. Each gives the frame that is shown at its
    middle or, with ``jitter``, at a moment that numpy's global random numbers choose. Where there
    are fewer frames than parts some come twice. All are turned upright, of 8 bits, and of the
    first one's size. Of a file that is cut off, or longer by its own account than its frames, the
    parts are of what can be decoded.
    """
    return viewed(file, name, count, jitter).frames


def viewed(file: str | Path, name: str, count: int, jitter: bool = False) -> Viewed:
    """``read_clip``, and what else is known then."""
    library()
    within = np.random.random(count) if jitter else 0.5
    moments = (np.arange(count) + within) / count  # of the whole, 0..1
    with bad_clip(name):
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode):
            raise BadClip(f"{name}: not a file")
        if not found.st_size:
            raise BadClip(f"{name}: the file is empty")
        open(file, "rb").close()  # whether one may; what FFmpeg says then is about the contents
        with suppress(Lost):
            return sought(file, name, moments)
        return seen_through(file, name, moments)


def library() -> Any:
    """PyAV, which has FFmpeg's decoders; it keeps FFmpeg's own messages to itself."""
    try:
        import av
    except ImportError:
        raise ImportError("video needs PyAV: pip install 'ziggurat[video]'") from None
    return av


@contextmanager
def bad_clip(name: str) -> Iterator[None]:
    """Whatever goes wrong with a clip, as a BadClip in one line."""
    try:
        with bad_image(name):
            yield
    except BadClip:
        raise
    except BadImage as error:
        raise BadClip(str(error)) from None


@contextmanager
def video_in(file: str | Path, name: str) -> Iterator[tuple[Any, Any]]:
    """An open file and its video stream."""
    av = library()
    # One thread: the loader has its own processes. "file:" for names that look like a URL.
    options = {"format_whitelist": ",".join((*INDEXED, *PLAIN)), "protocol_whitelist": "file"}
    try:
        container = av.open(
            f"file:{os.fspath(file)}", "r", options=options, metadata_errors="replace"
        )
    except av.error.FFmpegError:
        raise BadClip(f"{name}: not a video of a kind that can be read, or cut off") from None
    with container:
        stream = container.streams.best("video")
        if stream is None or stream.disposition & av.stream.Disposition.attached_pic:
            only = ", only audio" if container.streams.audio else ""
            raise BadClip(f"{name}: has no video{only}")
        if stream.codec_context is None:
            raise BadClip(f"{name}: its video cannot be decoded")
        W, H = stream.codec_context.width, stream.codec_context.height
        if W * H > MAX_PIXELS:
            raise BadClip(f"{name}: {W} x {H}, more than {MAX_PIXELS / 1e6:.0f} million pixels")
        stream.codec_context.thread_count = 1
        yield container, stream


# Decoding.


def packets(container: Any, stream: Any) -> Iterator[Any]:
    """What is read of a stream, from where it stands to its end or to what cannot be read."""
    with suppress(library().error.FFmpegError, IndexError):  # PyAV's, of streams that begin late
        for packet in container.demux(stream):
            if packet.size and not packet.is_corrupt:
                yield packet


def frames_of(stream: Any, packet: Any) -> list[Any]:
    """What a decoder gives for a packet, or of what it kept (None); of a damaged one nothing."""
    try:
        return stream.decode(packet)
    except library().error.FFmpegError:
        return []


def time_of(frame: Any) -> int:
    """When a frame is shown, in the stream's unit."""
    if frame.pts is None:
        raise Lost
    return frame.pts


def as_arrays(frames: Sequence[Any]) -> np.ndarray:
    """Frames as one array (N, H, W, 3), upright."""
    from av.video.reformatter import VideoReformatter

    convert = VideoReformatter().reformat  # one for all: it takes longer to make than to use
    W, H = frames[0].width, frames[0].height
    pixels = np.stack([
        convert(frame, W, H, "rgb24", threads=1).to_ndarray() for frame in frames
    ])  # fmt: skip
    return np.ascontiguousarray(np.rot90(pixels, round(frames[0].rotation / 90), axes=(1, 2)))


# By seeking.


def sought(file: str | Path, name: str, moments: np.ndarray) -> Viewed:
    """A clip whose file has an index; raises Lost where that or its length is not to be trusted."""
    with video_in(file, name) as (container, stream):
        if not set(container.format.name.split(",")) & set(INDEXED):
            raise Lost
        reel = Reel(container, stream)
        start, length = reel.start, length_of(container, stream)
        slack = length / (2 * len(moments))  # half a part
        found = [reel.at(start + moment * length, slack) for moment in moments]
        seconds = float(length * stream.time_base)
        return Viewed(as_arrays(found), seconds, stream.codec_context.name)


def length_of(container: Any, stream: Any) -> int:
    """How long a stream is, in its own unit, by the file's account."""
    length = stream.duration or 0
    if not length and container.duration:
        length = round(container.duration / (stream.time_base * 1_000_000))
    if length <= 0:
        raise Lost
    return length


class Reel:
    """A stream that is wound to ever later moments, by seeking where that saves decoding."""

    def __init__(self, container: Any, stream: Any) -> None:
        self.container, self.stream = container, stream
        self.key = self.landed = 0  # times of key frames: the last decoded, the first since a seek
        self.gap = 0.0  # from one to the next as far as known; infinite: longer than was hoped
        self.indexed = True
        self.frame: Any = None  # that is shown now
        self.ahead: Any = None  # that follows, if any does
        self.run()
        self.start = time_of(self.frame)

    def run(self) -> None:
        """Decode on from where the container stands."""
        self.coming = self.decoded()
        self.frame, self.ahead = next(self.coming, None), next(self.coming, None)
        if self.frame is None:
            raise Lost

    def decoded(self) -> Iterator[Any]:
        """Frames in the order they are shown."""
        first = True
        for packet in packets(self.container, self.stream):
            if packet.is_keyframe or first:
                time = packet.dts if packet.pts is None else packet.pts
                if time is None:
                    raise Lost
                if first:
                    self.landed = time
                else:
                    self.gap = time - self.key
                self.key, first = time, False
            yield from frames_of(self.stream, packet)
        yield from frames_of(self.stream, None)

    def at(self, moment: float, slack: float) -> Any:
        """The frame that is shown then; Lost if there is none by more than ``slack``."""
        if self.before(moment) and self.indexed and moment >= self.key + self.gap:
            self.seek(moment)
        while self.before(moment):
            self.frame, self.ahead = self.ahead, next(self.coming, None)
            if self.ahead is not None and time_of(self.ahead) < time_of(self.frame):
                raise Lost
        if self.ahead is None and moment > time_of(self.frame) + self.frame.duration + slack:
            raise Lost
        return self.frame

    def before(self, moment: float) -> bool:
        """Whether a later frame than the present one is shown then."""
        return self.ahead is not None and time_of(self.ahead) <= moment

    def seek(self, moment: float) -> None:
        """Go to the last key frame before a moment or, if the index is imprecise, further back."""
        key, second = self.key, float(1 / self.stream.time_base)
        for place in (moment, moment - second, self.start):
            try:
                self.container.seek(int(place), stream=self.stream)
            except library().error.FFmpegError:
                raise Lost from None
            self.run()
            if time_of(self.frame) <= moment:
                break
        else:
            raise Lost
        if self.landed < key:  # as of files without an index, where that is always the first
            self.indexed = False
        if self.key <= key:
            self.gap = np.inf


# Without.


def seen_through(file: str | Path, name: str, moments: np.ndarray) -> Viewed:
    """A clip decoded from first to last, twice: to see what frames there are, and to keep some."""
    with video_in(file, name) as (container, stream):
        times, last = [], None
        for last in all_frames(container, stream):
            times.append(last.pts)
        if last is None:
            raise BadClip(f"{name}: none of its frames can be decoded")
        rate = stream.average_rate or stream.guessed_rate
        if None not in times and (np.diff(times) > 0).all():
            end = times[-1] + (last.duration or np.median(np.diff(times) if times[1:] else 0))
            wanted = np.searchsorted(times, times[0] + moments * (end - times[0]), "right") - 1
            seconds = float((end - times[0]) * stream.time_base)
        else:  # frames without times, or with wrong ones, are shown at a constant rate
            wanted = (moments * len(times)).astype(int)
            seconds = float(len(times) / rate) if rate else 0.0
    with video_in(file, name) as (container, stream):
        kept = {}
        for i, frame in enumerate(all_frames(container, stream)):
            if i in wanted:
                kept[i] = frame
            if i == wanted[-1]:
                break
        found = [kept[i] for i in wanted.tolist()]
        return Viewed(as_arrays(found), seconds, stream.codec_context.name)


def all_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Every frame that can be decoded."""
    for packet in packets(container, stream):
        yield from frames_of(stream, packet)
    yield from frames_of(stream, None)
