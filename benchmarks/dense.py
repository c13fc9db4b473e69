"""Do small models learn real objects? Pets to be found, streets to be segmented, from scratch.

    python benchmarks/dense.py --seeds 0 1 2       # what is missing in benchmarks/results/dense

A small-scale study on two real sets that we may not ship (`--packs`): the Oxford-IIIT pets at 64
pixels, cat or dog with a box each (2,960 to train on, 740 to test on), and 92 + 34 street scenes
of CamVid with eleven classes. On each: a family of ours, timm's ResNet-18 of like cost, trained the
same way for the same steps, and ours with its backbone left as it began, only what stands on it
being trained. ResT is trained with and without a norm on each level (its supplement, Table 2).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import study
from PIL import Image
from rich.console import Console

from ziggurat.data.masks import encoded

RESULTS = study.RESULTS / "dense"
SIDE = 64  # pixels of a pet as it comes; half as many are looked at
EPOCHS = {"pets": 30, "streets": 120}
SMALL = {"pets": ["sides=[32]", "crop=[32,32]", "batch=32"], "streets": ["lr=1e-3"]}
NEST = ["--model", "nest_tiny_cifar", "--set"]
NEST += [
    "model_args={patch_size=4,dims=[64,128,256],heads=[2,4,8],depths=[2,2,4],attention='multi_head'}"
]
PETS, STREETS = "rest/coco_retinanet_small", "hivit/ade20k_upernet_small"


class Arm(NamedTuple):
    """One way to train."""

    about: str
    recipe: str
    words: list[str]


ARMS = {
    "pets_rest": Arm("ResT-Lite, LN on each level", PETS, []),
    "pets_plain": Arm("ResT-Lite, no LN", PETS, ["--set", "norm=false"]),
    "pets_nest": Arm("NesT, small, LN on each level", PETS, NEST),
    "pets_resnet": Arm("ResNet-18 (timm)", PETS, ["--model", "timm/resnet18"]),
    "pets_frozen": Arm("ResT-Lite, backbone untrained", PETS, ["--set", "freeze=true"]),
    "streets_nest": Arm("NesT, small", STREETS, NEST),
    "streets_resnet": Arm("ResNet-18 (timm)", STREETS, ["--model", "timm/resnet18"]),
    "streets_frozen": Arm("NesT, small, backbone untrained", STREETS, [*NEST, "freeze=true"]),
    "streets_rest": Arm("ResT-Lite", STREETS, ["--model", "rest_lite"]),
    "streets_hivit": Arm("HiViT, small", STREETS, []),
}


def pets(packs: Path, folder: Path) -> Path:
    """The pets as files with COCO's annotations: box and mask of all that is not background."""
    if (folder / "annotations").exists():
        return folder
    labels = np.load(packs / "pets64" / "labels.npz")
    for split, name in (("train", "train"), ("test", "val")):
        pictures = mosaic(packs / "pets64" / f"{split}.jpg", SIDE)
        trimaps = mosaic(packs / "pets64" / f"{split}_trimap.png", SIDE)
        species = labels[f"{split}_species"]
        (folder / name).mkdir(parents=True, exist_ok=True)
        images: list[dict[str, Any]] = []
        objects: list[dict[str, Any]] = []
        for i, kind in enumerate(species.tolist()):
            file = f"{i:05}.png"
            Image.fromarray(pictures[i]).save(folder / name / file)
            images.append({"id": i, "file_name": file, "width": SIDE, "height": SIDE})
            pet = trimaps[i] != 2
            if pet.any():
                objects.append(annotated(pet, len(objects) + 1, i, kind + 1))
        found = {
            "images": images,
            "annotations": objects,
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        }
        (folder / f"instances_{name}.json").write_text(json.dumps(found))
    (folder / "annotations").mkdir()
    for made in folder.glob("instances_*.json"):
        made.rename(folder / "annotations" / made.name)
    return folder


def mosaic(file: Path, side: int) -> np.ndarray:
    """The tiles of a picture, row by row: (N, side, side) or (N, side, side, 3)."""
    pixels = np.asarray(Image.open(file))
    rows, cols = pixels.shape[0] // side, pixels.shape[1] // side
    tiles = pixels.reshape(rows, side, cols, side, *pixels.shape[2:]).swapaxes(1, 2)
    return tiles.reshape(rows * cols, side, side, *pixels.shape[2:])


def annotated(pet: np.ndarray, number: int, image: int, category: int) -> dict[str, Any]:
    """One object, as COCO writes it down."""
    rows, cols = np.flatnonzero(pet.any(1)), np.flatnonzero(pet.any(0))
    x, y = int(cols[0]), int(rows[0])
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [x, y, int(cols[-1]) - x + 1, int(rows[-1]) - y + 1],
        "area": int(pet.sum()),
        "iscrowd": 0,
        "segmentation": encoded(pet),
    }


def run(name: str, seed: int, epochs: float | None, packs: Path, folder: Path) -> None:
    """One arm for one seed."""
    arm = ARMS[name]
    kind = name.partition("_")[0]
    data = pets(packs, folder / "pets") if kind == "pets" else packs / "camvid_small"
    words = ["train", arm.recipe, *arm.words, "--data", str(data), "--seed", str(seed)]
    words += ["--set", f"epochs={epochs or EPOCHS[kind]:g}", "eval_epochs=1000", "workers=0"]
    words += SMALL[kind]
    command = f"python benchmarks/dense.py {name} --seeds {seed}"
    study.run(words, folder / f"{name}-{seed}", RESULTS / f"{name}-{seed}.json", command)


def markdown(kind: str) -> str:
    """The arms of one set as the README shows them."""
    keys = {"pets": ("ap50", "ap"), "streets": ("miou", "accuracy")}[kind]
    heads = {"pets": "AP50 (seeds) | AP", "streets": "mean IoU (seeds) | pixels right"}[kind]
    lines = [f"| {kind} | epochs | {heads} |", "| --- | --- | --- | --- |"]
    found = study.kept(RESULTS)
    for name, arm in ARMS.items():
        if name.startswith(kind) and (runs := found.get(name)):
            measured = [one["measured"] for one in runs]
            first, second = ([one["test"][key] for one in measured] for key in keys)
            epochs = measured[0]["recipe"]["epochs"]
            lines.append(
                f"| {arm.about} | {epochs:g} | {study.spread(first)} | "
                f"{study.spread(second).split(' (')[0]} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = study.Parser(__doc__, ARMS, "runs/dense")
    packs = Path("../shared/data")  # beside this repository
    parser.add_argument("--packs", type=Path, default=packs, help="folder of the two packs")
    parser.add_argument("--epochs", type=float, help=f"of each run, if not {EPOCHS}")
    args = parser.parsed()
    if not (args.packs / "pets64").is_dir():
        parser.error(f"{args.packs} has no pets64: give the folder of the packs by --packs")
    for seed in args.seeds:
        for name in args.names:
            run(name, seed, args.epochs, args.packs, args.runs)
            for kind in ("pets", "streets"):
                study.update(kind, markdown(kind))
    for kind in ("pets", "streets"):
        Console().print(markdown(kind))


if __name__ == "__main__":
    main()
