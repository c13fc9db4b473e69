"""Do images without labels help where labels are few? HiViT on CIFAR-10, a twentieth of its labels.

    ziggurat data get cifar10
    python benchmarks/labels.py --seeds 0 1 2   # what is missing in benchmarks/results/labels

A small-scale study. For each seed: masked autoencoding on all 50,000 images without their labels
(hivit/mae_small, narrower), then the same model on 2,500 labelled ones, from scratch and from
there, with the same steps on the same images; and a linear classifier on the frozen features of
that encoder and of one that was never trained. Tested on the 10,000 test images.
"""

from pathlib import Path
from typing import Any

import numpy as np
import study
import torch
from rich.console import Console

import ziggurat
from ziggurat.data.get import named
from ziggurat.data.images import Arrays
from ziggurat.data.packed import save_npz
from ziggurat.engine import recipe

RESULTS = study.RESULTS / "labels"
PER_CLASS = 250
SMALL = [  # narrower than the recipe's
    "model_args={dims=[48, 96], heads=3, depths=[1, 3], unit=4, rpe=false}",
    "decoder_dim=48",
    "decoder_depth=1",
    "decoder_heads=3",
]
ARMS = {
    "scratch": "trained from scratch",
    "tuned": "fine-tuned from pre-training",
    "random": "linear probe of a random encoder",
    "probed": "linear probe of the pre-trained encoder",
}
PLAIN = ["img_size=32", "crop=pad", "test_crop=1.0", "auto_augment=none", "color_jitter=0.0"]
PLAIN += ["eval_epochs=1000", "workers=0"]  # measured once, at the end
TUNE = ["lr=1e-3", "lr_per=128", "warmup_epochs=2", "drop_path=0.1"]


def few(path: Path) -> Path:
    """CIFAR-10 with a twentieth of its training images, as many of each class."""
    if path.exists():
        return path
    data = named("cifar10")
    train, test = data.train, data.test
    assert isinstance(train, Arrays)
    assert isinstance(test, Arrays)
    chance = np.random.default_rng(0)
    chosen = [chance.permutation(np.flatnonzero(train.labels == c))[:PER_CLASS] for c in range(10)]
    at = np.sort(np.concatenate(chosen))
    arrays = (np.asarray(train.pixels)[at], train.labels[at], np.asarray(test.pixels), test.labels)
    return save_npz(path, *arrays, data.classes)


def untrained(folder: Path, seed: int) -> Path:
    """The encoder as it begins."""
    if not (folder / "config.json").exists():
        changes = {
            key: recipe.value_of(value) for key, _, value in (w.partition("=") for w in SMALL)
        }
        wanted = recipe.load("hivit/mae_small", changes=changes)
        settings: Any = wanted.settings
        torch.manual_seed(seed)
        model = ziggurat.create_model(
            wanted.model, img_size=settings.img_size, num_classes=0, **wanted.model_args
        )
        data = named("cifar10")  # its normalisation, as pre-training's
        model.pretrained_cfg.update(input_size=(3, 32, 32), mean=data.mean, std=data.std)
        ziggurat.save_pretrained(model, folder)
    return folder


def run(arm: str, seed: int, epochs: float, before: float, folder: Path) -> None:
    """One arm for one seed, and the pre-training it needs."""
    data = few(folder / "cifar10-few.npz")
    mae = folder / f"mae-{seed}"
    words = ["pretrain", "hivit/mae_small", "--seed", str(seed), "--set", *SMALL]
    words += [f"epochs={before:g}", "eval_epochs=3", "workers=0"]
    command = f"python benchmarks/labels.py {arm} --seeds {seed}"
    if arm in ("tuned", "probed"):
        study.run(words, mae, RESULTS / f"mae-{seed}.json", command, needed=True)
    start = untrained(folder / f"random-encoder-{seed}", seed)
    start = mae if arm in ("tuned", "probed") else start
    if arm in ("scratch", "tuned"):
        decay = "layer_decay=0.85" if arm == "tuned" else "layer_decay=1.0"
        words = ["finetune", "--set", *PLAIN, *TUNE, decay]
    else:
        words = ["probe", "--set", *PLAIN]
    words += [f"epochs={epochs:g}", "--init", str(start), "--data", str(data), "--seed", str(seed)]
    study.run(words, folder / f"{arm}-{seed}", RESULTS / f"{arm}-{seed}.json", command)


def markdown() -> str:
    """The arms as the README shows them."""
    lines = ["| 2,500 labels | epochs | top-1 (seeds) |", "| --- | --- | --- |"]
    found = study.kept(RESULTS)
    for arm, about in ARMS.items():
        if runs := found.get(arm):
            tops = [one["measured"]["test"]["top1"] for one in runs]
            epochs = runs[0]["measured"]["recipe"]["epochs"]
            lines.append(f"| {about} | {epochs:g} | {study.spread(tops)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = study.Parser(__doc__, ARMS, "runs/labels")
    parser.add_argument("--epochs", type=float, default=16, help="over the labelled images")
    parser.add_argument("--before", type=float, default=6, help="epochs of pre-training")
    args = parser.parsed()
    for seed in args.seeds:
        for arm in args.names:
            run(arm, seed, args.epochs, args.before, args.runs)
            study.update("labels", markdown())
    Console().print(markdown())


if __name__ == "__main__":
    main()
