import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.data.small_clips import cut, middles, numbered, numbers, turn, write_clip
from tests.data.small_files import lines, names, picture
from ziggurat.data import frames as reading
from ziggurat.data.check import ClipSplit, check, kind_of
from ziggurat.data.clips import EXTENSIONS, BadClip, Clips, open_clips, read_clip
from ziggurat.data.images import BadImage, Data, open_data
from ziggurat.data.loading import Once, loader

SHARED = Path(__file__).parents[3] / "shared" / "data" / "video"


def shown(path: Path, count: int, jitter: bool = False) -> list[int]:
    return numbers(read_clip(path, path.name, count, jitter))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All packets that go to a decoder, their sizes."""
    read = reading.packets
    seen: list[int] = []

    def packets(container: Any, stream: Any) -> Iterator[Any]:
        for packet in read(container, stream):
            seen.append(packet.size)
            yield packet

    monkeypatch.setattr(reading, "packets", packets)
    return seen


# The right frames.


@pytest.mark.parametrize("count", [1, 3, 8, 40])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("one_group.mp4", {"g": 100}),
        ("groups.mp4", {"g": 6}),
        ("b_frames.mp4", {"g": 12, "bf": 3}),
        ("open_groups.mp4", {"g": 12, "bf": 3, "x264-params": "open-gop=1"}),
        ("fragments.mp4", {"g": 12, "container": {"movflags": "frag_keyframe+empty_moov"}}),
        ("pictures.mov", {"codec": "mjpeg"}),
        ("plain.mkv", {"g": 6}),
        ("vp9.webm", {"codec": "libvpx-vp9", "g": 6, "deadline": "realtime", "cpu-used": 8}),
        ("no_length.webm", {"codec": "libvpx", "g": 6, "container": {"live": "1"}}),
        ("plain.avi", {"codec": "mpeg4", "g": 6}),
        ("b_frames.avi", {"codec": "mpeg4", "g": 6, "bf": 2}),
        ("wrong_times.avi", {"g": 12, "bf": 3}),
        ("no_index.wmv", {"codec": "wmv2", "g": 6}),
        ("plain.flv", {"codec": "flv", "g": 6}),
        ("plain.ts", {"g": 6, "bf": 2}),
        ("plain.mpg", {"codec": "mpeg2video", "fps": 25, "g": 6, "bf": 2}),
        ("raw.h264", {"g": 6}),
        ("plain.gif", {"codec": "gif"}),
    ],
)
def test_the_middle_of_each_part_is_shown(
    tmp_path: Path, name: str, options: dict[str, Any], count: int
) -> None:
    path = write_clip(tmp_path / name, 30, **options)
    found = read_clip(path, name, count)
    assert found.shape == (count, 16, 96, 3)
    assert found.dtype == np.uint8
    assert numbers(found) == middles(30, count)
    assert path.suffix[1:] in EXTENSIONS


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_parts_are_of_time_where_frames_are_shown_unequally_long(tmp_path: Path, name: str) -> None:
    times = [*range(0, 1000, 50), *range(1000, 5000, 1000)]  # 20 in the first second, then one each
    path = write_clip(tmp_path / name, 24, fps=10, pts=times, g=4)  # the last one for 1 / fps
    moments = [(i + 0.5) / 10 * 4100 for i in range(10)]
    assert shown(path, 10) == [sum(time <= moment for time in times) - 1 for moment in moments]


def test_jitter_stays_in_its_part_and_follows_numpys_random_numbers(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", 80, g=10)
    found = []
    for seed in (0, 1, 0):
        np.random.seed(seed)
        found.append(shown(path, 8, jitter=True))
    assert found[0] == found[2] != found[1]
    assert found[0] != middles(80, 8)
    for frames in found:
        assert [frame // 10 for frame in frames] == list(range(8))
    state = np.random.get_state()[1]
    shown(path, 8)
    assert np.array_equal(state, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(1, [0] * 8), (3, [0, 0, 0, 1, 1, 2, 2, 2]), (7, [0, 1, 2, 3, 3, 4, 5, 6])],
)
@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.gif"])
def test_of_fewer_frames_some_come_twice(
    tmp_path: Path, name: str, frames: int, expected: list[int]
) -> None:
    codec = {"a.mp4": "libx264", "a.webm": "libvpx", "a.gif": "gif"}[name]
    assert shown(write_clip(tmp_path / name, frames, codec=codec), 8) == expected


@pytest.mark.parametrize(("degrees", "corner"), [(90, (0, 1)), (180, (1, 1)), (270, (1, 0))])
def test_frames_are_turned_upright(tmp_path: Path, degrees: int, corner: tuple[int, int]) -> None:
    pixels = np.zeros((4, 32, 64, 3), np.uint8)
    pixels[:, :16, :32] = 255  # the upper left quarter
    found = read_clip(write_clip(tmp_path / "a.mp4", pixels, rotation=degrees), "a", 2)
    assert found.shape == ((2, 64, 32, 3) if degrees != 180 else (2, 32, 64, 3))
    halves = found.reshape(2, 2, found.shape[1] // 2, 2, found.shape[2] // 2, 3).mean((0, 2, 4, 5))
    assert np.unravel_index(halves.argmax(), (2, 2)) == corner
    assert np.sort(halves.ravel())[-2] < 10


def test_frames_that_change_their_size_are_of_the_first_ones(tmp_path: Path) -> None:
    small, large = (np.full((6, side, side, 3), 200, np.uint8) for side in (32, 64))
    first, second = (
        write_clip(tmp_path / name, pixels, g=2).read_bytes()
        for name, pixels in (("a.ts", small), ("b.ts", large))
    )
    (tmp_path / "a.ts").write_bytes(first + second)
    found = read_clip(tmp_path / "a.ts", "a", 4)
    assert found.shape == (4, 32, 32, 3)
    assert abs(found.astype(int) - 200).max() < 8


def test_colours_come_as_red_green_blue(tmp_path: Path) -> None:
    pixels = np.zeros((2, 16, 16, 3), np.uint8)
    pixels[..., 0] = 250
    red, green, blue = read_clip(write_clip(tmp_path / "a.mp4", pixels), "a", 1)[0, 8, 8].tolist()
    assert red > 200 > 60 > max(green, blue)


def test_sound_is_passed_over_even_if_longer(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mkv"):
        assert shown(write_clip(tmp_path / name, 20, audio=8.0), 8) == middles(20, 8)


# Not all of a file is read.


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_of_a_long_clip_little_is_decoded(tmp_path: Path, decoded: list[int], name: str) -> None:
    codec = "mpeg4" if name == "a.avi" else "libx264"
    path = write_clip(tmp_path / name, 2000, fps=25, codec=codec, g=20, sc_threshold=0)
    assert shown(path, 8) == middles(2000, 8)
    assert len(decoded) < 8 * 30
    assert sum(decoded) < 0.15 * path.stat().st_size


def test_within_a_group_the_decoder_goes_on_from_where_it_is(
    tmp_path: Path, decoded: list[int]
) -> None:
    path = write_clip(tmp_path / "a.mp4", 200, g=1000, sc_threshold=0)
    shown(path, 16)
    assert len(decoded) < 210
    decoded.clear()
    write_clip(path, 200, g=50, sc_threshold=0)
    shown(path, 16)
    assert len(decoded) < 250


def test_files_are_closed(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4")
    broken = cut(shutil.copy(path, tmp_path / "b.mp4"), 0.6)
    before = psutil.Process().open_files()
    shown(path, 2)
    with pytest.raises(BadClip):
        shown(broken, 2)
    assert psutil.Process().open_files() == before


# What is wrong with files.


def only_audio(path: Path) -> None:
    write_clip(path, numbered(0), audio=1.0)


def audio_with_a_cover(path: Path) -> None:
    write_clip(path, 1, codec="mjpeg", audio=1.0, cover=True)


def a_picture(path: Path) -> None:
    picture(path.with_suffix(".png")).rename(path)


def a_playlist(path: Path) -> None:
    write_clip(path.with_name("other.ts"))
    lines(path, "#EXTM3U", "#EXT-X-TARGETDURATION:2", "#EXTINF:2,", "other.ts", "#EXT-X-ENDLIST")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.touch(), "the file is empty"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: os.mkfifo(path), "not a file"),
        (only_audio, "has no video, only audio"),
        (audio_with_a_cover, "has no video, only audio"),
        (lambda path: path.write_text("no video\n" * 200), "not a video of a kind that can be"),
        (lambda path: path.write_bytes(bytes(5000)), "not a video of a kind that can be read"),
        (a_picture, "not a video of a kind that can be read"),
        (a_playlist, "not a video of a kind that can be read"),
        (lambda path: cut(write_clip(path), 0.5), "not a video of a kind that can be read, or cut"),
        (
            lambda path: cut(write_clip(path, container={"movflags": "faststart"}), 0.5),
            "none of its frames can be decoded",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], make: Any, reason: str
) -> None:
    path = tmp_path / "a.mp4"
    make(path)
    capfd.readouterr()
    with pytest.raises(BadImage, match=f"^the name: {reason}") as error:
        read_clip(path, "the name", 8)
    assert isinstance(error.value, BadClip)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.avi", "a.ts"])
def test_what_is_left_of_a_file_that_is_cut_off_is_spread_over_anew(
    tmp_path: Path, name: str
) -> None:
    codec = {"a.webm": "libvpx", "a.avi": "mpeg4"}.get(name, "libx264")
    moov = {"container": {"movflags": "faststart"}} if name == "a.mp4" else {}
    share = 0.85 if name == "a.avi" else 0.7
    path = cut(write_clip(tmp_path / name, 60, codec=codec, g=12, **moov), share)
    found = shown(path, 8)
    steps = np.diff(found)
    assert 20 < found[-1] < 55
    assert found[0] == steps[0] // 2
    assert np.ptp(steps) <= 1


def test_damage_is_never_more_than_a_bad_clip(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    whole = {
        name: np.frombuffer(write_clip(tmp_path / name, 20, codec=codec).read_bytes(), np.uint8)
        for name, codec in (("a.mp4", "libx264"), ("a.webm", "libvpx"), ("a.avi", "mpeg4"))
    }
    read, refused = 0, []
    for name, contents in whole.items():
        for _ in range(40):
            damaged = contents.copy()
            damaged[rng.integers(0, len(damaged), 20)] = rng.integers(0, 256, 20)
            (tmp_path / name).write_bytes(damaged.tobytes())
            try:
                assert len(read_clip(tmp_path / name, name, 8)) == 8
                read += 1
            except BadClip as error:
                refused.append(str(error))
    assert 20 < read < 120
    assert all(reason.startswith(("a.mp4: ", "a.webm: ", "a.avi: ")) for reason in refused)
    assert capfd.readouterr() == ("", "")


def test_any_name_and_any_title_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("http:a.mp4", "a b%03d.mp4", "ä.mp4", os.fsdecode(b"\xff.mp4")):
        shutil.copy(write_clip(tmp_path / "a.mp4"), name)
        assert shown(Path(name), 2) == middles(20, 2)
    path = write_clip(tmp_path / "a.mp4")
    contents = path.read_bytes()
    assert b"Lavf" in contents
    path.write_bytes(contents.replace(b"Lavf", b"\xff\xfe\xfd\xfc"))  # no UTF-8
    assert shown(path, 2) == middles(20, 2)


def test_without_pyav_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"jump": 1, "kick": 1})
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"video needs PyAV: pip install 'ziggurat\[video\]'"):
        read_clip(tmp_path / "jump" / "0.mp4", "a", 8)
    with pytest.raises(ImportError, match="video needs PyAV"):
        open_clips(tmp_path)
    assert check(tmp_path, progress=False).problems == [
        "video needs PyAV: pip install 'ziggurat[video]'"
    ]


# Sets.


def tree(root: Path, counts: dict[str, int], first: int = 0) -> Path:
    """Folders with so many clips each, all different: 0.mp4 and so on."""
    for name, count in counts.items():
        for i in range(count):
            write_clip(root / name / f"{i}.mp4", numbered(10)[first:])
            first += 1
    return root


def copies(path: Path, *to: Path) -> None:
    for place in to:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip.mp4", 6)


def test_folders_of_clips_are_opened_as_those_of_images_are(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"kick": 2, "jump": 1})
    tree(tmp_path / "val", {"kick": 1, "jump": 1})
    picture(tmp_path / "train" / "kick" / "thumbnail.jpg")
    data = open_clips(tmp_path)
    assert isinstance(data.train, Clips)
    assert isinstance(data.test, Clips)
    assert data.classes == ("jump", "kick")
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.train.ignored == {".jpg": 1}
    assert data.train.name(0) == str(tmp_path / "train" / "jump" / "0.mp4")
    assert data.train.clip(1, 4).shape == (4, 16, 96, 3)
    assert numbers(np.asarray(data.test.image(0))[None]) == [1 + 9 // 2]
    assert len(data.train.order(torch.Generator().manual_seed(0))) == 3
    assert len(open_clips(tmp_path / "train", seed=None).test) == 3


def test_of_class_folders_alone_a_tenth_is_held_out(clip: Path) -> None:
    root = clip.parent / "set"
    copies(clip, *(root / name / f"{i}.MKV" for name in ("jump", "kick") for i in range(20)))
    data = open_clips(root)
    assert len(data.train) + len(data.test) == 40
    assert 2 <= len(data.test) <= 10
    assert {*data.test.labels.tolist()} == {0, 1}


@pytest.mark.parametrize("column", ["path", "file", "video"])
def test_a_csv_gives_path_label_and_split(clip: Path, column: str) -> None:
    root = clip.parent / "set"
    copies(clip, root / "a" / "0.mp4", root / "a" / "1.mp4", root / "a" / "2.mp4")
    file = lines(
        root / "list.csv",
        f"{column},label,split,source",
        "a/0.mp4,a jump,train,x",
        "a/1.mp4,kick,train,x",
        "a/gone.mp4,kick,train,x",
        "a/2.mp4,kick,val,x",
        "a/2.mp4,run,,x",
    )
    data = open_clips(file)
    assert data.classes == ("a jump", "kick")
    assert names(data.train) == [str(root / "a" / "0.mp4"), str(root / "a" / "1.mp4")]
    assert data.test.labels.tolist() == [1]
    assert data.train.ignored == {"in no split": 1, "missing": 1}
    assert data.test.ignored == {}


def test_a_list_needs_no_line_that_names_columns(clip: Path) -> None:
    root = clip.parent / "set"
    copies(clip, *(root / f"a clip {i}.mp4" for i in range(4)))
    spaces = [f"a clip {i}.mp4 {i % 2}" for i in range(4)]
    commas = [f"a clip {i}.mp4,{('jump', 'a kick')[i % 2]}" for i in range(4)]
    assert open_clips(lines(root / "list.txt", *spaces)).classes == ("0", "1")
    for rows, classes in ((spaces, ("0", "1")), (commas, ("a kick", "jump"))):
        data = open_clips(lines(root / "list.csv", *rows))
        assert data.classes == classes
        assert sorted(names(data.train) + names(data.test)) == [
            str(root / f"a clip {i}.mp4") for i in range(4)
        ]


# Kinetics.

COLUMNS = "label,youtube_id,time_start,time_end,split"


def kinetics_csv(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return lines(path, COLUMNS, *rows)


@pytest.mark.parametrize(
    ("train", "test", "places"),
    [
        ("train.csv", "val.csv", ("train/air drumming", "val/air drumming")),
        ("train.csv", "validate.csv", ("train/air_drumming", "validate/air_drumming")),
        ("annotations/train.csv", "annotations/val.csv", ("train", "val")),
        ("train.csv", "test.csv", ("train", "test")),
        (
            "annotations/kinetics_train.csv",
            "annotations/kinetics_val.csv",
            ("videos_train/air_drumming", "videos_val/air_drumming"),
        ),
        ("train.csv", "val.csv", ("all", "all")),
    ],
)
def test_kinetics_lists_find_their_clips(
    clip: Path, train: str, test: str, places: tuple[str, str]
) -> None:
    root = clip.parent / "k400"
    kinetics_csv(
        root / train,
        '"air drumming",-3B32lodo2M,59,69,train',
        '"air drumming",0wHOYxjRmlw,4,14,train',
        '"zumba",by_id_alone,4,14,train',
        '"waxing back",gone,4,14,train',
    )
    kinetics_csv(
        root / test,
        "air drumming,_dbcJuKJQNs,40,50,validate",
        "zumba,gone,140,150,validate",
    )
    copies(
        clip,
        root / places[0] / "-3B32lodo2M_000059_000069.mp4",
        root / places[0] / "0wHOYxjRmlw_000004_000014.mkv",
        root / places[0] / "by_id_alone.webm",
        root / places[1] / "_dbcJuKJQNs_000040_000050.mp4",
    )
    data = open_clips(root)
    assert data.name == "k400"
    assert data.classes == ("air drumming", "waxing back", "zumba")  # also what has no clip
    assert names(data.train) == [
        str(root / places[0] / name)
        for name in (
            "-3B32lodo2M_000059_000069.mp4", "0wHOYxjRmlw_000004_000014.mkv", "by_id_alone.webm"
        )
    ]  # fmt: skip
    assert data.train.labels.tolist() == [0, 0, 2]
    assert names(data.test) == [str(root / places[1] / "_dbcJuKJQNs_000040_000050.mp4")]
    assert (data.train.ignored, data.test.ignored) == ({"missing": 1}, {"missing": 1})


@pytest.mark.parametrize("separator", [" ", ","])
def test_two_lists_of_paths_and_labels_are_the_splits(clip: Path, separator: str) -> None:
    root = clip.parent / "set"
    copies(clip, *(root / "videos" / f"{i}.mp4" for i in range(4)))
    rows = [separator.join((f"videos/{i}.mp4", str(i % 2))) for i in range(4)]
    lines(root / "train.csv", *rows[:3], separator.join((str(root / "videos" / "gone.mp4"), "2")))
    lines(root / "val.csv", separator.join((str(root / "videos" / "3.mp4"), "1")))
    data = open_clips(root)
    assert data.classes == ("0", "1", "2")
    assert data.train.labels.tolist() == [0, 1, 0]
    assert names(data.test) == [str(root / "videos" / "3.mp4")]
    assert data.train.ignored == {"missing": 1}


def test_one_of_kinetics_lists_is_a_list_too(clip: Path) -> None:
    root = clip.parent / "k400"
    kinetics_csv(
        root / "annotations" / "all.csv", "a,x,0,10,train", "b,y,0,10,train", "a,z,1,2,val"
    )
    copies(clip, *(root / f"{name}.mp4" for name in ("train/x", "train/y", "val/z_000001_000002")))
    data = open_clips(root / "annotations" / "all.csv")
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.test)) == (2, 1)


def test_lists_of_images_beside_class_folders_are_not_kinetics(clip: Path) -> None:
    root = clip.parent / "set"
    for split in ("train", "val"):
        lines(clip.parent / f"{split}.csv", "id,label", "0,jump")
        copies(clip, root / split / "jump" / "0.mp4", root / split / "kick" / "0.mp4")
    assert len(open_clips(root).train) == 2


# Something-Something.


def something(root: Path, labels: str, prefix: str = "") -> Path:
    place = root / labels
    place.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {
        "labels": {"Holding something": "1", "Approaching something with your camera": "0"},
        "train": [
            {"id": "78687", "label": "holding potato", "template": "Holding [something]"},
            {"id": "1", "label": "x", "template": "Approaching [something] with your camera"},
            {"id": "2", "label": "x", "template": "Holding [something]"},
        ],
        "validation": [{"id": "3", "label": "holding cup", "template": "Holding [something]"}],
    }
    for name, found in parts.items():
        (place / f"{prefix}{name}.json").write_text(json.dumps(found))
    return root


@pytest.mark.parametrize(
    ("labels", "prefix", "videos"),
    [
        ("labels", "", "20bn-something-something-v2"),
        (".", "something-something-v2-", "20bn-something-something-v2"),
        ("annotations", "something-something-v2-", "videos"),
        (".", "", "."),
    ],
)
def test_somethings_classes_are_numbered_by_its_labels(
    clip: Path, labels: str, prefix: str, videos: str
) -> None:
    root = something(clip.parent / "ssv2", labels, prefix)
    copies(clip, root / videos / "78687.webm", root / videos / "1.mp4", root / videos / "3.webm")
    data = open_clips(root)
    assert data.name == "ssv2"
    assert data.classes == ("Approaching something with your camera", "Holding something")
    assert names(data.train) == [str(root / videos / "78687.webm"), str(root / videos / "1.mp4")]
    assert data.train.labels.tolist() == [1, 0]
    assert data.test.labels.tolist() == [1]
    assert data.train.ignored == {"missing": 1}
    assert kind_of(root) == "clips"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("labels.json", '{"a": 1, "b": 2}', r"labels\.json must give each class its number"),
        ("labels.json", '{"Holding something": "0"}', "has class 'Approaching something with your"),
        ("train.json", "[1]", r"train\.json must be a list of objects with id and template"),
        ("train.json", "[", r"train\.json is not JSON"),
        ("validation.json", None, r"there is no .*validation\.json"),
    ],
)
def test_wrong_annotations_say_which(clip: Path, name: str, text: str | None, message: str) -> None:
    root = something(clip.parent / "ssv2", "labels")
    copies(clip, *(root / "videos" / f"{i}.webm" for i in (1, 2, 3, 78687)))
    if text is None:
        (root / "labels" / name).unlink()
    else:
        (root / "labels" / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        open_clips(root)
    assert "\n" not in str(error.value)


# What is refused.


def images(root: Path) -> Path:
    for name in ("jump", "kick"):
        picture(root / name / "0.jpg")
    return root


def listed_images(root: Path) -> Path:
    images(root)
    return lines(root / "a.csv", "path,label", "jump/0.jpg,jump", "kick/0.jpg,kick")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "gone", "there is no .*gone: take a folder of class folders of vid"),
        (lambda root: picture(root / "a.png"), r"a\.png is not data of clips: take a folder"),
        (lambda root: write_clip(root / "a.mp4"), r"a\.mp4 is one clip, not a set: take a folder"),
        (images, "holds images, not clips: take a folder of class folders of videos"),
        (listed_images, "holds images, not clips"),
        (lambda root: picture(root / "a.png").parent, "put the clips of each class in a folder"),
        (lambda root: lines(root / "a.csv", "clip,label", "a,b"), "names its columns: path, label"),
        (lambda root: lines(root / "a.csv", "path,label"), r"a\.csv lists no clips"),
        (lambda root: lines(root / "a.csv", "a.mp4 1", "b 2"), "line 2 must be `path label` or `p"),
        (
            lambda root: lines(root / "a.csv", "a.mp4 1", "b.mp4 1", "c.mp4 1"),
            r"none of the \d training clips that a lists is there, such as .*[abc]\.mp4",
        ),
        (
            lambda root: kinetics_csv(root / "a.csv", "jump,x,0,1,train", "jump,,0,1,train"),
            r"a\.csv line 3 has no youtube_id",
        ),
    ],
)
def test_what_is_no_set_of_clips_says_so_in_one_line(
    tmp_path: Path, make: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        open_clips(make(tmp_path))
    assert "\n" not in str(error.value)


def test_a_class_that_is_never_trained_is_refused(clip: Path) -> None:
    root = clip.parent / "k400"
    kinetics_csv(root / "train.csv", "a,x,0,10,train", "b,gone,0,10,train")
    kinetics_csv(root / "val.csv", "b,y,0,10,val")
    copies(clip, root / "train" / "x.mp4", root / "val" / "y.mp4")
    with pytest.raises(ValueError, match="class 'b' in k400: test clips, but none to train on"):
        open_clips(root)
    shutil.rmtree(root / "train")
    assert len(open_clips(root, seed=None).test) == 1
    with pytest.raises(ValueError, match="none of the 2 training clips that k400 lists is there"):
        open_clips(root)


# In the loader.


class Make:
    def __init__(self, data: Data) -> None:
        self.data = data

    def __call__(self, index: int) -> np.ndarray:
        assert isinstance(self.data.train, Clips)
        return self.data.train.clip(index, 4, jitter=True)


def test_workers_decode_as_the_process_that_started_them_does(tmp_path: Path) -> None:
    data = open_clips(tree(tmp_path, {"jump": 4, "kick": 4}))
    found = []
    for workers in (0, 2):
        batches = loader(Make(data), list, Once(data.train, 2), seed=0, workers=workers)
        found.append([numbers(clip) for batch in batches for clip in batch])
    assert found[0] == found[1]
    assert len(found[0]) == len(data.train) >= 4


# Checking.


def test_a_set_of_clips_is_checked(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"jump": 2, "kick": 1})
    tree(tmp_path / "val", {"jump": 1, "kick": 1}, first=5)
    turn(tmp_path / "train" / "jump" / "0.mp4", 90)
    report = check(tmp_path, progress=False)
    assert report.ok
    assert isinstance(report.train, ClipSplit)
    assert report.train.per_class == {"jump": 2, "kick": 1}
    assert report.train.modes == {"h264": 3}
    assert (report.train.smallest, report.train.largest) == ((16, 96), (96, 16))
    assert report.train.seconds == pytest.approx((0.8, 0.9, 1.0))
    assert report.lines()[1:4] == [
        "train 3 clips, 1 to 2 a class",
        "      16 x 96 to 96 x 16 pixels, median 96 x 16; h264 3",
        "      0.8 to 1.0 seconds, median 0.9",
    ]
    assert json.loads(json.dumps(report.as_dict()))["test"]["seconds"] == [
        pytest.approx(0.4), pytest.approx(0.45), pytest.approx(0.5)
    ]  # fmt: skip


def test_bad_clips_are_listed_with_their_reasons(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"jump": 1, "kick": 1})
    tree(tmp_path / "val", {"jump": 1, "kick": 1})
    (tmp_path / "train" / "jump" / "empty.mp4").touch()
    only_audio(tmp_path / "train" / "kick" / "audio.mp4")
    report = check(tmp_path, progress=False)
    assert sorted(report.train.unreadable) == [
        f"{tmp_path / 'train/jump/empty.mp4'}: the file is empty",
        f"{tmp_path / 'train/kick/audio.mp4'}: has no video, only audio",
    ]
    assert report.problems[0].startswith("2 of 4 training clips cannot be read, the first: ")
    assert report.problems[1].startswith("2 clips are for training and for testing, the first: ")
    assert "a single clip to train on" not in " ".join(report.remarks)


def test_missing_clips_are_remarked(clip: Path) -> None:
    root = clip.parent / "k400"
    kinetics_csv(root / "train.csv", "a,x,0,10,train", "b,gone,0,10,train")
    kinetics_csv(root / "val.csv", "a,y,0,10,val")
    write_clip(root / "train" / "x.mp4", 4)
    copies(clip, root / "val" / "y.mp4")
    report = check(root, progress=False)
    assert report.problems == ["no clips at all of class 'b'"]
    assert report.remarks == [
        "files passed over among training clips: missing (1)",
        "a single clip to train on of class 'a'",
    ]


def test_what_a_set_is_of_is_seen_by_its_names(clip: Path) -> None:
    root = clip.parent / "set"
    copies(clip, root / "jump" / "0.mp4", root / "jump" / "1.mp4")
    assert kind_of(root) == "clips"
    picture(root / "jump" / "thumbnail.jpg")
    assert kind_of(root) == "clips"
    assert kind_of(images(clip.parent / "images")) is None
    write_clip(clip.parent / "gifs" / "a" / "0.gif", 4, codec="gif")
    assert kind_of(clip.parent / "gifs") is None
    assert kind_of(lines(clip.parent / "a.txt", "x/0.mp4 1")) == "clips"
    assert kind_of(lines(clip.parent / "b.txt", "x/0.jpg 1")) is None
    assert kind_of(kinetics_csv(clip.parent / "c.csv")) == "clips"
    assert open_data(images(clip.parent / "images"), seed=None).test.noun == "images"


# Real clips.


@pytest.mark.shared
def test_real_clips_can_all_be_read() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs ../shared/data/video")
    data = open_clips(SHARED / "labels.csv")
    assert (len(data.train), len(data.test), len(data.classes)) == (85, 24, 7)
    assert data.train.ignored == {"in no split": 33}
    files = sorted(SHARED.glob("*/*.mp4"))
    assert len(files) == 142
    for file in files:
        found = read_clip(file, file.name, 8)
        assert found.shape[0] == 8
        assert found.std() > 5
