"""Is an explanation right? Objects on a canvas, whose places are known.

    python benchmarks/canvases.py --seeds 0 1      # both, into benchmarks/results/canvases

Canvases are 64 x 64 pixels: real digits on a ground of tiles; those held out have digits that no
canvas of training has. Models are trained alike, on labels alone.

Four: a digit of another class in each quadrant, in one of the quadrant's four cells of 16 pixels. A
NesT is trained to tell all four (a quarter of the target each). An explanation of a class is right
or wrong by construction: it points to the quadrant of that digit, and there to its sixteenth of the
canvas. GradCAT answers with its path, with the sign as we take it and with the printed one. Of a
map, the quadrant is the one with the most heat, and so is the sixteenth, among all sixteen.

One: a single digit of 24 to 48 pixels anywhere. Its box is asked for, as `ziggurat localise` does
it: NesT's Figure 8, right, at small scale.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from torch import nn

import ziggurat
from ziggurat.data.packed import save_npz
from ziggurat.engine import results
from ziggurat.engine.analyse import batch
from ziggurat.engine.explain import Explainer
from ziggurat.engine.localise import localise
from ziggurat.engine.predict import Classifier
from ziggurat.explain import Explanation
from ziggurat.explain.figures import figure
from ziggurat.explain.gradcat import levels, traversal

RESULTS = study.RESULTS / "canvases"
FIGURE = study.ROOT / "docs" / "canvases.png"
CELL, CELLS = 16, 4  # pixels of a cell, and cells a side
SIDE = CELL * CELLS
SIDES = (24, 48)  # least and most pixels of a single digit
COUNTS = {"train": 8000, "test": 1000}
ASKED = 250  # held-out canvases that are explained
EPOCHS, BATCH, RATE, DROP = 4, 64, 1e-3, 0.5  # the last is stochastic depth
FOUR = {"NesT": DROP, "NesT, no stochastic depth": 0.0}
PRINTED = "gradcat, minus"
ONE = {  # the map that is explained is of 4 x 4 for NesT and ResNet, of 8 x 8 for DeiT
    "NesT": ["nest/cifar10_small"],
    "ResNet": ["resnet/cifar10_small", "model_args={channels=[24,48,96,192],output_stride=16}"],
    "DeiT": ["deit/cifar10_small"],
}
SET = [f"img_size={SIDE}", f"epochs={EPOCHS}", "eval_epochs=1000", "workers=0", "crop_padding=2"]
SET += ["flip=0.0", "label_smoothing=0.0", f"batch={BATCH}", f"lr={RATE}", "lr_per=0"]
SET += [f"drop_path={DROP}"]
COLUMNS = {
    "four": {
        "known": "digits told, %",
        "quadrant": "right quadrant, %",
        "sixteenth": "right sixteenth, %",
    },
    "one": {"known": "box right, %", "top1": "and class right, %", "pointing": "pointing, %"},
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


# Four.


def trained(drop_path: float, seed: int, folder: Path) -> Explainer:
    """A NesT that tells which four digits are there."""
    out = folder / f"four-{drop_path}-{seed}"
    if out.exists():
        return Explainer(out)
    torch.manual_seed(seed)
    train = canvases("four", "train")
    model = ziggurat.create_model(
        "nest_tiny_cifar",
        img_size=SIDE,
        patch_size=4,
        dims=(64, 128, 256),
        heads=(2, 4, 8),
        depths=(1, 1, 1),
        attention="multi_head",
        drop_path_rate=drop_path,
    )
    config = {"input_size": (3, SIDE, SIDE), "crop_pct": 1.0}
    model.pretrained_cfg |= config | {"label_names": [str(i) for i in range(10)]}
    known = Classifier(model)
    model.train()
    pixels = torch.from_numpy(np.stack([one.pixels for one in train])).permute(0, 3, 1, 2)
    targets = torch.zeros(len(train), 10)
    targets.scatter_(1, torch.tensor([one.classes for one in train]), 1 / 4)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    epochs = [torch.randperm(len(train)).split(BATCH) for _ in range(EPOCHS)]
    batches = [at for epoch in epochs for at in epoch]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, len(batches), pct_start=0.1)
    for at in track(batches, f"training, seed {seed}, drop path {drop_path}", transient=True):
        images = (pixels[at].float() - known.mean) / known.std
        optimiser.zero_grad()
        F.cross_entropy(model(images), targets[at]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    ziggurat.save_pretrained(model, out)
    return Explainer(out)


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


def judged(model: Explainer, method: str, asked: list[Canvas]) -> dict[str, float]:
    """How often a method is right, in per cent, of all classes that are there."""
    right: dict[str, list[bool]] = {key: [] for key in COLUMNS["four"]}
    for canvas in track(asked, method, transient=True):
        picture = Image.fromarray(canvas.pixels)
        with torch.inference_mode():
            best = model.model(batch(model, picture))[0].topk(4).indices.tolist()
        if method == PRINTED:
            found = printed_sign(model, canvas)
        else:
            found = model(picture, method, canvas.classes).found
        for quadrant, (kind, cell) in enumerate(zip(canvas.classes, canvas.cells, strict=True)):
            where, sixteenth = pointed(found, quadrant)
            right["known"].append(kind in best)
            right["quadrant"].append(where == quadrant)
            right["sixteenth"].append(sixteenth == cell)
    return {key: 100 * sum(cases) / len(cases) for key, cases in right.items()}


def four(seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Every method of every NesT, and a figure of the first canvas."""
    asked, rows = canvases("four", "test")[:ASKED], []
    for seed in seeds:
        for about, drop_path in FOUR.items():
            model = trained(drop_path, seed, folder)
            for method in (*model.methods, PRINTED):
                found = judged(model, method, asked)
                rows.append({"about": about, "seed": seed, "method": method} | found)
                print(rows[-1], flush=True)
            if seed == seeds[0] and drop_path:
                first = asked[0]
                figure(model(Image.fromarray(first.pixels), "gradcat", first.classes)).save(FIGURE)
    return rows


# One.


def training_set(folder: Path) -> Path:
    """Both splits as one file."""
    path = folder / "one.npz"
    if not path.exists():
        splits = [canvases("one", split) for split in COUNTS]
        pixels = [np.stack([one.pixels for one in made]) for made in splits]
        labels = [np.array([one.classes[0] for one in made]) for made in splits]
        names = [str(i) for i in range(10)]
        save_npz(path, pixels[0], labels[0], pixels[1], labels[1], names)
    return path


def boxes(folder: Path) -> Path:
    """The held-out canvases as COCO has them."""
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
        objects.append(about | {"bbox": canvas.box, "area": canvas.box[2] * canvas.box[3]})
    classes = [{"id": i + 1, "name": str(i)} for i in range(10)]
    found = {"images": images, "annotations": objects, "categories": classes}
    file.write_text(json.dumps(found))
    return place


def one(seeds: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Every method of every model, at its best threshold."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in seeds:
        runs = {}
        for about, (recipe, *args) in ONE.items():
            words = ["train", recipe, "--data", str(training_set(folder)), "--seed", str(seed)]
            out = folder / f"{about.lower()}-{seed}"
            kept = RESULTS / f"{out.name}.json"
            command = f"python benchmarks/canvases.py one --seeds {seed}"
            study.run([*words, "--set", *SET, *args], out, kept, command, needed=True)
            runs[str(out)] = about
        found = localise(list(runs), boxes(folder), steps=0).measured()["rows"]
        rows += [{"about": runs[row.pop("model")], "seed": seed, **row} for row in found]
    return rows


# Both.


def markdown(kind: str, rows: list[dict[str, Any]]) -> str:
    """As the README shows it: a row a model and method, the mean and deviation of its seeds."""
    columns = COLUMNS[kind]
    lines = [f"| {kind} | method | {' | '.join(columns.values())} |"]
    lines.append("| --- | --- |" + " --- |" * len(columns))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["about"], row["method"]), []).append(row)
    for (about, method), own in groups.items():
        cells = [study.spread([row[key] for row in own]) for key in columns]
        lines.append(f"| {about} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, explain, then write the tables."""
    args = study.Parser(__doc__, COLUMNS, "runs/canvases").parsed()
    for kind in args.names:
        rows = (four if kind == "four" else one)(args.seeds, args.runs)
        results.write(RESULTS / f"{kind}.json", rows, args.seeds[0])
        study.update(f"canvases {kind}", markdown(kind, rows))
        Console().print(markdown(kind, rows))


if __name__ == "__main__":
    main()
