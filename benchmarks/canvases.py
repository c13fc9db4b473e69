"""Is the explanation right? Four objects on a canvas, one of them asked for.

    python benchmarks/canvases.py                  # what is missing in benchmarks/results/canvases

Each canvas of 64 x 64 pixels has a real digit of another class in each quadrant, in one of the
quadrant's four cells of 16 pixels, on a ground of tiles; held-out canvases have digits that no
canvas of training has. NesT, a ResNet and a DeiT of like cost are trained alike, a canvas' label
being any one of its four. So an explanation of a class is right or wrong by construction: it points
to the quadrant of that digit, and there to its sixteenth of the canvas.

GradCAT answers with its path. Of a map, the quadrant is the one with the most heat, and so is the
sixteenth, among all sixteen.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
from PIL import Image
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

from ziggurat.data.packed import save_npz
from ziggurat.engine import results
from ziggurat.engine.explain import Explainer
from ziggurat.explain import Explanation

RESULTS = study.RESULTS / "canvases"
FOUND = RESULTS / "found.json"
CELL, CELLS = 16, 4  # pixels of a cell, and cells a side
SIDE = CELL * CELLS
COUNTS = {"train": 20_000, "test": 1000}
ASKED = 250  # canvases whose four classes are each explained
EPOCHS, SEED = 4, 0
METHODS = ("gradcat", "cam", "gradcam++", "groupcam", "rollout")
SET = [f"img_size={SIDE}", f"epochs={EPOCHS}", "eval_epochs=1000", "workers=0", "crop_padding=2"]
SET += ["flip=0.0", "label_smoothing=0.0", "batch=64", "lr_per=0"]


class Arm(NamedTuple):
    """One model."""

    about: str
    recipe: str


ARMS = {
    "nest": Arm("NesT", "nest/cifar10_small"),
    "resnet": Arm("ResNet", "resnet/cifar10_small"),
    "deit": Arm("DeiT", "deit/cifar10_small"),
}


class Canvas(NamedTuple):
    """Four digits; each has a class and a cell of its own quadrant."""

    pixels: np.ndarray  # (SIDE, SIDE, 3)
    classes: tuple[int, ...]  # by quadrant: top left, top right, bottom left, bottom right
    cells: tuple[int, ...]  # of sixteen, row by row


def canvases(split: str) -> list[Canvas]:
    """The canvases of a split; a quarter of the digits is held out."""
    digits = load_digits()
    chance = np.random.default_rng(0 if split == "train" else 1)
    mine = np.arange(len(digits.target)) % 4 != 0
    mine = mine if split == "train" else ~mine
    by_class = [np.flatnonzero(mine & (digits.target == c)) for c in range(10)]
    found = []
    for _ in range(COUNTS[split]):
        classes = chance.permutation(10)[:4]
        ground = chance.integers(0, 90, (SIDE // 8, SIDE // 8, 3)).repeat(8, 0).repeat(8, 1)
        cells = []
        for quadrant, kind in enumerate(classes):
            digit = digits.images[chance.choice(by_class[kind])]
            first = np.array([2 * (quadrant // 2), 2 * (quadrant % 2)])
            row, col = (first + chance.integers(0, 2, 2)).tolist()
            mark = Image.fromarray((digit * 255 / 16).astype(np.uint8))
            here = np.asarray(mark.resize((CELL, CELL), Image.Resampling.BILINEAR)) / 255
            y, x = row * CELL, col * CELL
            part = ground[y : y + CELL, x : x + CELL]
            colour = chance.integers(150, 256, 3)
            part[:] = part * (1 - here[..., None]) + colour * here[..., None]
            cells.append(int(row * CELLS + col))
        found.append(Canvas(ground.astype(np.uint8), tuple(classes.tolist()), tuple(cells)))
    return found


def training_set(folder: Path) -> Path:
    """Both splits as one file, a canvas' label being one of its four by chance."""
    path = folder / "canvases.npz"
    if not path.exists():
        chance = np.random.default_rng(2)
        splits = [canvases(split) for split in COUNTS]
        pixels = [np.stack([one.pixels for one in made]) for made in splits]
        labels = [np.array([chance.choice(one.classes) for one in made]) for made in splits]
        names = [str(i) for i in range(10)]
        save_npz(path, pixels[0], labels[0], pixels[1], labels[1], names)
    return path


def trained(name: str, folder: Path) -> Path:
    """A model that knows canvases."""
    data = training_set(folder)
    words = ["train", ARMS[name].recipe, "--data", str(data), "--seed", str(SEED), "--set", *SET]
    command = f"python benchmarks/canvases.py {name}"
    out = folder / name
    study.run(words, out, RESULTS / f"{name}-{SEED}.json", command, needed=True)
    return out


def pointed(found: Explanation, at: int) -> tuple[int, int]:
    """The quadrant and the sixteenth that an explanation points to, for one of its classes."""
    if found.paths:
        path = found.paths[at]
        x0, y0, _, _ = path[1].box
        return path[0].child, int(y0 * CELLS) * CELLS + int(x0 * CELLS)
    heat = found.maps[at]
    quarters = heat.unflatten(1, (2, -1)).unflatten(0, (2, -1)).mean((1, 3))
    cells = heat.unflatten(1, (CELLS, -1)).unflatten(0, (CELLS, -1)).mean((1, 3))
    return int(quarters.argmax()), int(cells.argmax())


def judged(model: Explainer, method: str, asked: list[Canvas]) -> dict[str, float]:
    """How often a method is right, in per cent: for all classes that are there, and known ones."""
    right: list[tuple[bool, bool, bool]] = []
    for canvas in track(asked, f"{method}", transient=True):
        seen = model(Image.fromarray(canvas.pixels), method, canvas.classes)
        best = {guess.name for guess in seen.top}  # the four likeliest
        for quadrant, (kind, cell) in enumerate(zip(canvas.classes, canvas.cells, strict=True)):
            where, sixteenth = pointed(seen.found, quadrant)
            right.append((str(kind) in best, where == quadrant, sixteenth == cell))
    known = [one for one in right if one[0]]
    return {
        "known": 100 * len(known) / len(right),
        "quadrant": 100 * sum(one[1] for one in right) / len(right),
        "sixteenth": 100 * sum(one[2] for one in right) / len(right),
        "quadrant_if_known": 100 * sum(one[1] for one in known) / len(known),
        "sixteenth_if_known": 100 * sum(one[2] for one in known) / len(known),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as the README shows it."""
    lines = ["| model | classes found, % | method | right quadrant, % | right sixteenth, % |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in rows:
        lines.append(
            f"| {row['about']} | {row['known']:.1f} | {row['method']} | "
            f"**{row['quadrant']:.1f}** | **{row['sixteenth']:.1f}** |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, explain, then write the table."""
    parser = study.Parser(__doc__, ARMS, "runs/canvases")
    args = parser.parsed()
    rows = []
    asked = canvases("test")[:ASKED]
    for name in args.names:
        explainer = Explainer(trained(name, args.runs))
        for method in METHODS:
            if method in explainer.methods:
                about = {"about": ARMS[name].about, "method": method, "canvases": len(asked)}
                rows.append(about | judged(explainer, method, asked))
    if args.names == list(ARMS):
        results.write(FOUND, rows, SEED)
        study.update_readme("canvases", markdown(rows))
    Console().print(markdown(rows))


if __name__ == "__main__":
    main()
