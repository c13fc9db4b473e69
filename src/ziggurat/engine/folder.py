"""The folder of a run: whose it is, and what an earlier run left there."""

import shutil
from pathlib import Path

from ziggurat.engine.recipe import RECIPE, Recipe, parse, read
from ziggurat.engine.results import BAD, METRICS, RESULTS, SNAPSHOTS

MAY_CHANGE = {"name", "data", "workers", "save_minutes", "keep", "nonfinite", "max_bad"}  # resuming


def default_folder(recipe: Recipe) -> Path:
    """runs/nest-digits for nest/digits."""
    return Path("runs") / recipe.name.replace("/", "-")


def check(folder: Path, recipe: Recipe, resume: bool, overwrite: bool) -> None:
    """See that the folder is ours to write to or, to resume, that it holds this recipe."""
    saved = folder / RECIPE
    if not resume:
        if folder.exists() and any(folder.iterdir()):
            if not saved.is_file():
                raise FileExistsError(f"{folder} exists and is no run's: take another --out")
            if not overwrite:
                raise FileExistsError(
                    f"{folder} exists: --resume goes on with it, --overwrite starts again, "
                    "--out takes another folder"
                )
        return
    if not saved.is_file():
        raise FileNotFoundError(f"{folder} has no {RECIPE}: there is no run to resume")
    before, now = parse(read(saved)[1], str(saved)).flat(), recipe.flat()
    keys = sorted({*before, *now} - MAY_CHANGE)
    changed = [key for key in keys if before.get(key) != now.get(key)]
    if changed:
        lines = ", ".join(f"{key} {before.get(key)} -> {now.get(key)}" for key in changed)
        raise ValueError(f"{folder} was begun with another recipe ({lines}): resume it as it is")


def begin(folder: Path, recipe: Recipe) -> None:
    """Clear what an earlier run left, and write down what this one does."""
    for old in ("checkpoints", "best", SNAPSHOTS, "tensorboard"):
        shutil.rmtree(folder / old, ignore_errors=True)
    for pattern in (METRICS, RESULTS, BAD, "*.png", "report.html", "*.safetensors"):
        for file in folder.glob(pattern):
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECIPE).write_text(recipe.dump())
