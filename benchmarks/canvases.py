"""Is an explanation right? Objects on a canvas, whose places are known.

    python benchmarks/canvases.py                  # what is missing in benchmarks/results/canvases

Canvases are 64 x 64 pixels: real digits on a ground of tiles; those held out have digits that no
canvas of training has. All models are trained alike, on labels alone.

Four: a digit of another class in each quadrant, in one of the quadrant's four cells of 16 pixels;
the label of a canvas is any one of its four. An explanation of a class is right or wrong by
construction: it points to the quadrant of that digit, and there to its sixteenth of the canvas.
GradCAT answers with its path, with the sign as we take it and with the printed one. Of a map, the
quadrant is the one with the most heat, and so is the sixteenth, among all sixteen.

One: a single digit of 24 to 48 pixels anywhere. Its box is asked for, as `ziggurat localise` does
it: NesT's Figure 8, right, at small scale.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

from ziggurat.data.packed import save_npz
from ziggurat.engine import results
from ziggurat.engine.analyse import batch
from ziggurat.engine.explain import Explainer
from ziggurat.engine.localise import localise
from ziggurat.explain import Explanation
from ziggurat.explain.figures import figure
from ziggurat.explain.gradcat import levels, traversal

RESULTS = study.RESULTS / "canvases"
FIGURE = study.ROOT / "docs" / "canvases.png"
CELL, CELLS = 16, 4  # pixels of a cell, and cells a side
SIDE = CELL * CELLS
SIDES = (24, 48)  # least and most pixels of a single digit
COUNTS = {"train": 10_000, "test": 1000}
ASKED = 250  # held-out canvases that are explained
EPOCHS, SEED = 4, 0
DROP = 0.5  # stochastic depth
SET = [f"img_size={SIDE}", f"epochs={EPOCHS}", "eval_epochs=1000", "workers=0", "crop_padding=2"]
SET += ["flip=0.0", "label_smoothing=0.0", "batch=64", "lr_per=0"]
MODELS: dict[
    str, tuple[str, list[str]]
] = {  # the map that is explained: 4 x 4 of NesT and the ResNet, 8 x 8 of DeiT
    "nest": ("NesT", []),
    "resnet": ("ResNet", ["model_args={channels=[24,48,96,192],output_stride=16}"]),
    "deit": ("DeiT", []),
}


class Arm(NamedTuple):
    """One model on one kind of canvas."""

    model: str
    about: str = ""
    drop_path: float = DROP

    @property
    def title(self) -> str:
        """For the table."""
        return MODELS[self.model][0] + self.about


ARMS = {
    "four_nest": Arm("nest"),
    "four_still": Arm("nest", ", no stochastic depth", 0.0),
    "one_nest": Arm("nest"),
    "one_resnet": Arm("resnet"),
    "one_deit": Arm("deit"),
}


Box = tuple[int, int, int, int]  # x, y, width, height


class Canvas(NamedTuple):
    """Digits and where they are."""

    pixels: np.ndarray  # (SIDE, SIDE, 3)
    classes: tuple[int, ...]  # of four, by quadrant: two at the top, two at the bottom
    cells: tuple[int, ...] = ()  # of four, each one's of sixteen, row by row
    box: Box = (0, 0, 0, 0)  # of one


class Painter:
    """Grounds, and digits of one split on them: a quarter of all digits is held out."""

    def __init__(self, split: str) -> None:
        found = load_digits()
        self.digits = found.images
        self.chance = np.random.default_rng(0 if split == "train" else 1)
        held_out = np.arange(len(found.target)) % 4 == 0
        mine = held_out if split == "test" else ~held_out
        self.by_class = [np.flatnonzero(mine & (found.target == c)) for c in range(10)]

    def ground(self) -> np.ndarray:
        """Dark tiles."""
        return self.chance.integers(0, 90, (SIDE // 8, SIDE // 8, 3)).repeat(8, 0).repeat(8, 1)

    def paint(self, ground: np.ndarray, kind: int, x: int, y: int, side: int) -> Box:
        """A bright digit of a class, and its box."""
        digit = self.digits[self.chance.choice(self.by_class[kind])]
        mark = Image.fromarray((digit * 255 / 16).astype(np.uint8))
        here = np.asarray(mark.resize((side, side), Image.Resampling.BILINEAR))[..., None] / 255
        part = ground[y : y + side, x : x + side]
        part[:] = part * (1 - here) + self.chance.integers(150, 256, 3) * here
        strokes = np.argwhere(here[..., 0] > 0.3)
        (top, left), (bottom, right) = strokes.min(0).tolist(), (strokes.max(0) + 1).tolist()
        return x + left, y + top, right - left, bottom - top

    def four(self) -> Canvas:
        """A digit a quadrant."""
        classes = self.chance.permutation(10)[:4].tolist()
        ground, cells = self.ground(), []
        for quadrant, kind in enumerate(classes):
            first = np.array([2 * (quadrant // 2), 2 * (quadrant % 2)])
            row, col = (first + self.chance.integers(0, 2, 2)).tolist()
            self.paint(ground, kind, col * CELL, row * CELL, CELL)
            cells.append(row * CELLS + col)
        return Canvas(ground.astype(np.uint8), tuple(classes), tuple(cells))

    def one(self) -> Canvas:
        """One digit, of any size, anywhere."""
        kind, side = int(self.chance.integers(10)), int(self.chance.integers(*SIDES, endpoint=True))
        x, y = self.chance.integers(0, SIDE - side, 2, endpoint=True).tolist()
        ground = self.ground()
        box = self.paint(ground, kind, x, y, side)
        return Canvas(ground.astype(np.uint8), (kind,), box=box)


def canvases(kind: str, split: str) -> list[Canvas]:
    """The canvases of a split; ``kind`` is four or one."""
    painter = Painter(split)
    draw = painter.four if kind == "four" else painter.one
    return [draw() for _ in range(COUNTS[split])]


def training_set(kind: str, folder: Path) -> Path:
    """Both splits as one file, a canvas' label being one of its classes by chance."""
    path = folder / f"{kind}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        chance = np.random.default_rng(2)
        splits = [canvases(kind, split) for split in COUNTS]
        pixels = [np.stack([one.pixels for one in made]) for made in splits]
        labels = [np.array([chance.choice(one.classes) for one in made]) for made in splits]
        names = [str(i) for i in range(10)]
        save_npz(path, pixels[0], labels[0], pixels[1], labels[1], names)
    return path


def trained(name: str, folder: Path) -> Path:
    """A model that knows canvases."""
    arm, kind = ARMS[name], name.partition("_")[0]
    words = ["train", f"{arm.model}/cifar10_small", "--data", str(training_set(kind, folder))]
    words += ["--seed", str(SEED), "--set", *SET, *MODELS[arm.model][1]]
    words += [f"drop_path={arm.drop_path}"]
    out = folder / name
    kept = RESULTS / f"{name}-{SEED}.json"
    study.run(words, out, kept, f"python benchmarks/canvases.py {name}", needed=True)
    return out


# Four.


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


def printed_sign(model: Explainer, canvas: Canvas) -> Explanation:
    """GradCAT as Algorithm 1 prints it: to the lowest product of map and gradient."""
    maps, logits = levels(model.model, batch(model, Image.fromarray(canvas.pixels)))
    paths = []
    for number in canvas.classes:
        slopes = torch.autograd.grad(logits[0, number], maps, retain_graph=True)
        heats = [-(a.detach() * g).sum(-1)[0] for a, g in zip(maps, slopes, strict=True)]
        paths.append(traversal(heats, model.model.strides[1:], (SIDE, SIDE)))
    return Explanation("gradcat", canvas.classes, torch.zeros(4, SIDE, SIDE), tuple(paths))


def judged(
    model: Explainer, explain: Callable[[Canvas], Explanation], asked: list[Canvas], title: str
) -> dict[str, float]:
    """How often a method is right, in per cent, of all classes that are there."""
    right, known = [], []
    for canvas in track(asked, title, transient=True):
        pixels = batch(model, Image.fromarray(canvas.pixels))
        with torch.inference_mode():
            best = model.model(pixels)[0].topk(4).indices.tolist()
        found = explain(canvas)
        for quadrant, (kind, cell) in enumerate(zip(canvas.classes, canvas.cells, strict=True)):
            where, sixteenth = pointed(found, quadrant)
            known.append(kind in best)
            right.append((where == quadrant, sixteenth == cell))
    return {
        "known": 100 * sum(known) / len(known),
        "quadrant": 100 * sum(one[0] for one in right) / len(right),
        "sixteenth": 100 * sum(one[1] for one in right) / len(right),
    }


def four(folder: Path) -> list[dict[str, Any]]:
    """Every method of every model of four digits, and a figure of the first canvas."""
    asked, rows = canvases("four", "test")[:ASKED], []
    for name, arm in ARMS.items():
        if not name.startswith("four"):
            continue
        model = Explainer(trained(name, folder))

        def by(method: str, model: Explainer = model) -> Callable[[Canvas], Explanation]:
            return lambda one: model(Image.fromarray(one.pixels), method, one.classes).found

        ways = {method: by(method) for method in model.methods}
        ways["gradcat, minus"] = lambda one, model=model: printed_sign(model, one)  # type: ignore[misc]
        for method, explain in ways.items():
            about = {"about": arm.title, "method": method, "canvases": len(asked)}
            rows.append(about | judged(model, explain, asked, f"{arm.title}: {method}"))
        if name == "four_nest":
            first = model(Image.fromarray(asked[0].pixels), "gradcat", asked[0].classes)
            figure(first).save(FIGURE)
    return rows


# One.


def boxes(folder: Path) -> Path:
    """The held-out canvases of one digit as COCO has them."""
    place = folder / "boxes"
    file = place / "annotations" / "instances_val.json"
    if file.exists():
        return place
    (place / "val").mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(exist_ok=True)
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for i, canvas in enumerate(canvases("one", "test")[:ASKED], 1):
        name = f"{i:04}.png"
        Image.fromarray(canvas.pixels).save(place / "val" / name)
        images.append({"id": i, "file_name": name, "width": SIDE, "height": SIDE})
        about = {"id": i, "image_id": i, "category_id": canvas.classes[0] + 1, "iscrowd": 0}
        box = {"bbox": list(canvas.box), "area": canvas.box[2] * canvas.box[3]}
        objects.append(about | box)
    classes = [{"id": i + 1, "name": str(i)} for i in range(10)]
    found = {"images": images, "annotations": objects, "categories": classes}
    file.write_text(json.dumps(found))
    return place


def one(folder: Path) -> list[dict[str, Any]]:
    """Every method of every model of one digit, at its best threshold."""
    arms = {name: arm for name, arm in ARMS.items() if name.startswith("one")}
    runs = {str(trained(name, folder)): arm.title for name, arm in arms.items()}
    found = localise(list(runs), boxes(folder), steps=0).measured()["rows"]
    return [{"about": runs[row.pop("model")], **row} for row in found]


# Both.


def markdown_four(rows: list[dict[str, Any]]) -> str:
    """The table as the README shows it."""
    lines = ["| four digits | found, % | method | right quadrant, % | right sixteenth, % |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in rows:
        lines.append(
            f"| {row['about']} | {row['known']:.1f} | {row['method']} | "
            f"**{row['quadrant']:.1f}** | **{row['sixteenth']:.1f}** |"
        )
    return "\n".join(lines)


def markdown_one(rows: list[dict[str, Any]]) -> str:
    """The same of boxes."""
    lines = ["| one digit | method | box right, % | and class right, % | pointing, % | threshold |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        lines.append(
            f"| {row['about']} | {row['method']} | **{row['known']:.1f}** | {row['top1']:.1f} | "
            f"{row['pointing']:.1f} | {row['threshold']:.2f} |"
        )
    return "\n".join(lines)


KINDS = {"four": (four, markdown_four), "one": (one, markdown_one)}


def main() -> None:
    """Train what is missing, explain, then write the tables."""
    args = study.Parser(__doc__, ARMS, "runs/canvases").parsed()
    for kind, (measure, markdown) in KINDS.items():
        if all(name in args.names for name in ARMS if name.startswith(kind)):
            rows = measure(args.runs)
            results.write(RESULTS / f"{kind}.json", rows, SEED)
            study.update_readme(f"canvases {kind}", markdown(rows))
            Console().print(markdown(rows))
        else:
            for name in args.names:
                trained(name, args.runs)


if __name__ == "__main__":
    main()
