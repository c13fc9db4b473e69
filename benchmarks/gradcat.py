"""GradCAT's decisions, by number: which sign, which maps, and what it costs.

    python benchmarks/gradcat.py                # into benchmarks/results/gradcat.json

Small NesTs learn to tell six shapes, one in a random sixteenth of each image, the rest noise. Then
images have one, two or four different shapes, and GradCAT goes down the tree for each of them. A
leaf is judged by the model itself: by how much the class's logit falls when that sixteenth, alone,
is replaced by fresh noise. The sign is the paper's minus or plus; maps are taken as a level leaves
them (raw) or where they are pooled.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import study
import torch
import torch.nn.functional as F
from torch import Tensor

import ziggurat
from ziggurat.engine import bench, results
from ziggurat.explain import explain
from ziggurat.explain.gradcat import levels, traversal
from ziggurat.models.nest import NesT

RESULTS = study.RESULTS / "gradcat.json"
SEEDS, STEPS, IMAGES, KNOWN = (0, 1), 3000, 60, 0.99  # at most so many steps
SIDE, CELL, SHAPE, NOISE = 32, 8, 6, 0.3  # pixels of an image, a sixteenth, a shape; deviation
COUNTS = (1, 2, 4)  # shapes an image, when tested
WAYS = ("pooled, plus", "pooled, minus", "raw, plus", "raw, minus")


def shapes() -> Tensor:
    """Disc, plus, cross, frame, rows, columns: (6, SHAPE, SHAPE)."""
    y, x = torch.meshgrid(torch.arange(SHAPE), torch.arange(SHAPE), indexing="ij")
    dy, dx = y - (SHAPE - 1) / 2, x - (SHAPE - 1) / 2
    disc, plus = dx**2 + dy**2 <= 6.5, (dx.abs() < 1) | (dy.abs() < 1)
    cross, frame = (x == y) | (x == SHAPE - 1 - y), (dx.abs() > 2) | (dy.abs() > 2)
    return torch.stack([disc, plus, cross, frame, y % 2 == 0, x % 2 == 0]).float()


def batch(images: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images (B, 3, SIDE, SIDE), and each one's classes and sixteenths, (B, count)."""
    pictures = torch.randn(images, 3, SIDE, SIDE, generator=draw) * NOISE
    known = shapes()
    classes = torch.stack([torch.randperm(6, generator=draw)[:count] for _ in range(images)])
    places = torch.stack([torch.randperm(16, generator=draw)[:count] for _ in range(images)])
    for picture, numbers, spots in zip(pictures, classes.tolist(), places.tolist(), strict=True):
        for number, spot in zip(numbers, spots, strict=True):
            colour = torch.rand(3, 1, 1, generator=draw) * 1.5 + 0.8
            dy, dx = torch.randint(0, CELL - SHAPE + 1, (2,), generator=draw).tolist()
            top, left = spot // 4 * CELL + dy, spot % 4 * CELL + dx
            picture[:, top : top + SHAPE, left : left + SHAPE] += known[number] * colour
    return pictures, classes, places


def trained(seed: int, most: int) -> tuple[NesT, float, int]:
    """A NesT of three levels that tells the shapes, its accuracy, and the steps it took.

    Trained until it is right of 99 in 100 fresh images: one that knows nothing has no evidence.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    shape: dict[str, Any] = dict(dims=(32, 64, 128), heads=(1, 2, 4), depths=(1, 1, 2))
    model = NesT(SIDE, patch_size=2, num_classes=6, **shape)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    accuracy, step = 0.0, 0
    while accuracy < KNOWN and step < most:
        images, classes, _ = batch(64, 1, draw)
        optimiser.zero_grad()
        F.cross_entropy(model(images), classes[:, 0]).backward()
        optimiser.step()
        step += 1
        if step % 50 == 0:
            images, classes, _ = batch(300, 1, draw)
            with torch.no_grad():
                accuracy = float((model(images).argmax(1) == classes[:, 0]).float().mean())
            print(f"seed {seed}, step {step}: {accuracy:.1%} right", flush=True)
    return model.eval(), accuracy, step


def without(model: NesT, image: Tensor, draw: torch.Generator) -> Tensor:
    """By how much each logit falls without each sixteenth: (16, classes)."""
    hidden = image.repeat(16, 1, 1, 1)
    for spot in range(16):
        rows = slice(spot // 4 * CELL, spot // 4 * CELL + CELL)
        columns = slice(spot % 4 * CELL, spot % 4 * CELL + CELL)
        hidden[spot, :, rows, columns] = torch.randn(3, CELL, CELL, generator=draw) * NOISE
    with torch.no_grad():
        return model(image) - model(hidden)


def raw(model: NesT, image: Tensor) -> tuple[list[Tensor], Tensor]:
    """A_2 and A_3 as their levels leave them, and the logits."""
    with torch.no_grad():
        second = model.stages[1](model.stages[0](model.embed(image)))
    third = model.stages[2](second.requires_grad_())
    return [second, third], model.head(model.norm(third).mean((1, 2)))


def leaf(model: NesT, maps: list[Tensor], logit: Tensor, sign: int) -> int:
    """The sixteenth that GradCAT ends in."""
    slopes = torch.autograd.grad(logit, maps, retain_graph=True)
    heats = [sign * (a * g).sum(-1)[0].detach() for a, g in zip(maps, slopes, strict=True)]
    x, y, _, _ = traversal(heats, model.strides[1:], (SIDE, SIDE))[-1].box
    return int(y * 4) * 4 + int(x * 4)


def judged(model: NesT, count: int, images: int) -> dict[str, dict[str, float]]:
    """For each way, how often the leaf is the shape's and what the logit loses without it."""
    draw = torch.Generator().manual_seed(100 + count)
    right, lost = defaultdict(list), defaultdict(list)
    for image, classes, places in zip(*batch(images, count, draw), strict=True):
        falls = without(model, image[None], draw)
        seen = {"pooled": levels(model, image[None]), "raw": raw(model, image[None])}
        for number, place in zip(classes.tolist(), places.tolist(), strict=True):
            found = {
                f"{kind}, {word}": leaf(model, maps, logits[0, number], sign)
                for kind, (maps, logits) in seen.items()
                for word, sign in (("plus", 1), ("minus", -1))
            }
            found["the best leaf"] = int(falls[:, number].argmax())
            for way, spot in found.items():
                right[way].append(float(spot == place))
                lost[way].append(float(falls[spot, number]))
    return {
        way: {"right": statistics.mean(right[way]), "lost": statistics.mean(lost[way])}
        for way in right
    }


def costs() -> dict[str, float]:
    """NesT-T at 224 pixels, one image, on one thread."""
    torch.set_num_threads(1)
    model = ziggurat.create_model("nest_tiny").eval()
    image = torch.randn(1, 3, 224, 224)
    runs: dict[str, bench.Run] = {
        "forward": torch.no_grad()(lambda: model(image)),
        "forward and backward": lambda: model(image)[0, 0].backward(),
        "one class": lambda: explain(model, image, [0], "gradcat"),
        "four classes": lambda: explain(model, image, range(4), "gradcat"),
    }
    spent = bench.interleaved(runs, 5)
    return {name: min(turn.seconds for turn in turns) for name, turns in spent.items()}


def markdown(measured: dict[str, Any]) -> str:
    """What the page shows."""
    ways = [*WAYS, "the best leaf"]
    lines = [f"| shapes, net | {' | '.join(ways)} |", "| --- |" + " ---: |" * len(ways)]
    for row in measured["judged"]:
        cells = [f"{row[way]['lost']:.2f} ({row[way]['right']:.0%})" for way in ways]
        lines.append(f"| {row['shapes']}, seed {row['seed']} | {' | '.join(cells)} |")
    cost = ", ".join(f"{name} {value:.2f} s" for name, value in measured["costs"].items())
    return "\n".join(lines) + f"\n\nNesT-T at 224 px, one thread: {cost}."


def main(words: Sequence[str] | None = None) -> None:
    """Train, judge, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    found = []
    for seed in SEEDS:
        model, accuracy, steps = trained(seed, args.steps)
        about = {"seed": seed, "accuracy": accuracy, "steps": steps}
        found += [
            {**about, "shapes": count, **judged(model, count, args.images)} for count in COUNTS
        ]
    measured = {"judged": found, "costs": costs()}
    print(f"wrote {results.write(args.out, measured, SEEDS[0])}")
    print(markdown(measured))
    study.show(args.out, markdown(measured))


if __name__ == "__main__":
    main()
