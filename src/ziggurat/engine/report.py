"""A run as one page: what was trained, what it gave, how it went and how to do it again.

What the paper printed is shown as the paper's, apart from what was measured here.

    report.write(Path("runs/digits"))                        -> runs/digits/report.html
    report.compare([Path("runs/nest"), Path("runs/deit")], Path("runs/compare.html"))
"""

import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ziggurat.engine.html import (
    MARK,
    NONE,
    SORT,
    amount,
    card,
    duration,
    millions,
    page,
    picture,
    put,
    section,
    shown,
    table,
)
from ziggurat.engine.recipe import Recipe
from ziggurat.engine.results import BAD, SNAPSHOTS
from ziggurat.engine.runs import (
    Folder,
    defaults,
    departures,
    parameters,
    plain,
    read,
    read_text,
    titles,
)
from ziggurat.tasks import TASKS, curves
from ziggurat.tasks.drawing import number

REPORT = "report.html"
LISTED = 24  # class names that are spelt out
SOME = 4  # pictures of the way there
WAITING = 0.05  # of the time; more is worth a look
CHARTS = {  # drawn on white: a dark page turns them round
    "curves": "Loss, learning rate and the measure that decides, over the epochs.",
    "confusion": "What was taken for what: rows are true classes, columns the model's answers. "
    "Blue is right, red is wrong; the darker, the larger the share of the row.",
    "classes": "Accuracy of each class on held-out data, the worst first.",
    "precision": "Average precision of each class on held-out images, the worst first.",
    "iou": "Intersection over union of each class on held-out images, the worst first.",
}
PHOTOS = {
    "predictions": "Held-out images: what is marked in them, and what the model finds.",
    "mistakes": "The worst mistakes: what the model said and how sure it was, and what it was.",
    "samples": "Samples of the generator, none of them chosen.",
    "ways": "In each row the way from one sample to another.",
    "neighbours": "Generated images, and the training images that are most like them.",
    "paintings": "Held-out images with parts hidden, and what the model paints: what it saw it was "
    "never asked to paint. Where the loss leaves out each part's mean and contrast, they are the "
    "original's.",
}
APART = ("name", "source", "note", "paper")  # settings that change nothing


def write(folder: Path) -> Path:
    """Make report.html of whatever is in a run's folder; a run need not be finished."""
    run = read(folder)
    curves.curves(run.history, folder / "curves.png", run.main)
    body = [
        headline(run),
        unfinished(run),
        alarms(run),
        cards(run),
        section("How it went", known_picture(folder / "curves.png")),
        section("What it does", pictures(folder)),
        section("Along the way", snapshots(folder)),
        section("All measures", measures(run)),
        section("Classes", classes(run) + class_measures(run)),
        section("Recipe", settings(run)),
        section("How to get it again", provenance(run)),
    ]
    return put(folder / REPORT, page(f"{run.model} on {run.data}", "".join(body)))


def compare(folders: Sequence[Path], out: Path) -> Path:
    """Make one page of several runs, the best first, each with a link to its own report."""
    if not folders:
        raise ValueError("there is nothing to compare: give the folders of one or more runs")
    runs = dict(zip(titles(folders), map(read, folders), strict=True))
    for folder in folders:
        if not (folder / REPORT).exists():
            write(folder)
    main = next(iter(runs.values())).main
    order = sorted(runs, key=lambda name: at_the_end(runs[name], main), reverse=True)
    plot = out.with_suffix(".png")
    curves.compare({name: runs[name].history for name in order}, plot, main)
    title = f"{len(runs)} runs compared" if len(runs) > 1 else "one run"
    body = [
        f"<header>{MARK}<h1>{escape(title)}</h1></header>",
        different_data(list(runs.values())),
        section("", board([(name, runs[name]) for name in order], main, out.parent)),
        section(
            "", picture(plot, "chart", "On held-out data; the runs in the order of their ends.")
        ),
    ]
    return put(out, page(title, "".join(body), SORT))


def at_the_end(run: Folder, main: str) -> float:
    """How good it was; one that was not measured is the worst."""
    return curves.worth(main, run.last[main]) if main in run.last else float("-inf")


# Parts of a run's page.


def headline(run: Folder) -> str:
    """What was trained on what, and the number that counts."""
    about = " · ".join(str(run.recipe[key]) for key in ("task", "name") if run.recipe.get(key))
    value = run.last.get(run.main)
    return (
        f'<header>{MARK}<p class="about">{escape(about)}</p>'
        f"<h1>{escape(run.model)} <span>on {escape(run.data)}</span></h1>"
        f'<div class="results">{"" if value is None else result(run, value)}{paper(run)}</div>'
        "</header>"
    )


def result(run: Folder, value: float) -> str:
    """The measured number, large."""
    word, _, unit = curves.label_of(run.main).partition(", ")
    when = "at the end" if run.results else f"so far, at epoch {run.tests[-1]['epoch']:.4g}"
    best = run.best.get("test", {}).get(run.main, value)
    more = f"; the best model has {number(best)}" if best != value else ""
    return (
        f'<div class="result"><strong>{number(value)}<small>{escape(unit)}</small></strong>'
        f"<p>{escape(word)}, measured on held-out data {when}{more}</p></div>"
    )


def paper(run: Folder) -> str:
    """What the paper printed, if this run is of its row, and where this run departs from it."""
    changed = departures(run.recipe)
    printed: dict[str, float] = run.recipe.get("paper") or {}
    if not printed or changed.keys() & {"task", "data", "model", "paper"}:
        return ""
    numbers = ", ".join(
        f"<b>{value:g}</b> {escape(curves.label_of(key))}" for key, value in printed.items()
    )
    listed = ", ".join(
        f"{escape(key)} <s>{shown(there)}</s> {shown(here)}"
        for key, (there, here) in changed.items()
        if key not in APART
    )
    other = f"<p>This run departs from the paper's recipe: {listed}.</p>" if listed else ""
    source = escape(str(run.recipe.get("source", "")))
    return (
        '<aside class="paper"><h2>Printed in the paper, not measured here</h2>'
        f'<p>{numbers}</p><p class="source">{source}</p>{other}</aside>'
    )


def unfinished(run: Folder) -> str:
    """A word of warning over a run without results."""
    if run.results:
        return ""
    steps = [line["step"] for line in run.history if "step" in line]
    upto = f"up to step {steps[-1]:,}" if steps else "which is nothing yet"
    return (
        f'<p class="notice">This run is not finished: the page shows what was logged, {upto}. '
        f"<code>--out {escape(shlex.quote(str(run.path)))} --resume</code> goes on with it.</p>"
    )


def alarms(run: Folder) -> str:
    """What the task wants people to be told."""
    found = run.measured.get("alarms") or []
    return "".join(f'<p class="notice">{escape(str(text))}.</p>' for text in found)


def cards(run: Folder) -> str:
    """The small numbers."""
    wanted = run.recipe.get("epochs", run.epoch)
    epochs = f"{run.epoch:.4g}" + ("" if run.results else f" of {wanted:g}")
    steps = run.measured.get("steps") or max(
        (line.get("step", 0) for line in run.history), default=0
    )
    speed, waiting = run.logged("images_per_s"), run.logged("waiting")
    share = statistics.fmean(waiting) if waiting else 0
    skipped = run.measured.get("skipped_steps", run.state.get("skipped", []))
    bad = len(text.splitlines()) if (text := read_text(run.path / BAD)) else 0
    bad = bad or run.measured.get("bad_files", 0)
    processes = run.measured.get("processes", 1)
    noun = TASKS[run.recipe["task"]].noun if run.recipe.get("task") in TASKS else "images"
    count = parameters(run.path)
    found = [
        card(millions(count), "parameters") if count else "",
        card(epochs, "epochs") if run.history else "",
        card(f"{steps:,}", "steps") if steps else "",
        card(duration(run.minutes), "of training") if run.minutes is not None else "",
        card(f"{statistics.median(speed):,.0f}", f"{noun}/s, the median") if speed else "",
        card(f"{100 * share:.1f} %", "waiting for data", share > WAITING) if waiting else "",
        card(f"{len(skipped):,}", "steps skipped", bool(skipped)) if run.history else "",
        card(f"{bad:,}", "unreadable files", bool(bad)) if run.history else "",
        card(f"{processes}", "processes") if processes > 1 else "",
    ]
    return f'<div class="cards">{"".join(found)}</div>'


def pictures(folder: Path) -> str:
    """All figures but the curves: those we know first, then any others."""
    known = [*CHARTS, *PHOTOS]
    files = sorted(
        folder.glob("*.png"),
        key=lambda file: (known.index(file.stem) if file.stem in known else len(known), file.stem),
    )
    return "".join(known_picture(file) for file in files if file.stem != "curves")


def snapshots(folder: Path) -> str:
    """A few of the pictures made at evaluations, from the first to the last but one."""
    files = sorted((folder / SNAPSHOTS).glob("*.png"))[:-1]
    chosen = [files[i * len(files) // SOME] for i in range(min(SOME, len(files)))]
    if len(files) < SOME:
        chosen = files
    return "".join(
        picture(file, "photo", f"epoch {float(file.stem.partition('-')[2]):g}") for file in chosen
    )


def known_picture(file: Path) -> str:
    """A picture, with its caption if it is one of ours."""
    kind = "chart" if file.stem in CHARTS else "photo"
    return picture(file, kind, (CHARTS | PHOTOS).get(file.stem, ""))


def measures(run: Folder) -> str:
    """Every measure of the final and of the best model."""
    best = run.best.get("test") or {}
    keys = list(dict.fromkeys([*run.last, *best]))
    step = run.best.get("step")
    epochs = [line["epoch"] for line in run.tests if line.get("step") == step]
    at = f", epoch {epochs[0]:.4g}" if epochs else ""
    rows = [
        [escape(curves.label_of(key)), amount(run.last.get(key)), amount(best.get(key))]
        for key in keys
    ]
    end = "final model" if run.results else "last measured"
    marked = [key == run.main for key in keys]
    return table(["measure", end, f"best model{at}"], rows, marked, "numbers") if rows else ""


def classes(run: Folder) -> str:
    """Their names, as they travel with the model."""
    found = (run.config.get("pretrained_cfg") or {}).get("label_names") or []
    more = f" and {len(found) - LISTED:,} more" if len(found) > LISTED else ""
    words = ", ".join(escape(str(name)) for name in found[:LISTED])
    return f"<p>{len(found):,}: {words}{more}.</p>" if found else ""


def class_measures(run: Folder) -> str:
    """What was measured of each class at the end, the worst first."""
    found: dict[str, dict[str, float]] = run.measured.get("by_class") or {}
    keys = list(dict.fromkeys(key for own in found.values() for key in own))
    if not keys:
        return ""
    order = sorted(found, key=lambda name: found[name].get(keys[0], 0.0))
    rows = [[escape(name), *(amount(found[name].get(key)) for key in keys)] for name in order]
    heads = ["class", *map(curves.label_of, keys)]
    return table(heads, rows, [False] * len(rows), "numbers")


def settings(run: Folder) -> str:
    """Every setting of the loop and of the task; those that are not the default stand out."""
    if not run.recipe:
        return ""
    task = TASKS.get(str(run.recipe.get("task")))
    loop, own = defaults(Recipe), defaults(task.Settings) if task else {}
    ours = [key for key in loop if key in run.recipe and key not in APART]
    theirs = [key for key in run.recipe if key not in loop]
    theirs.sort(key=[*own, *theirs].index)
    texts = [str(run.recipe[key]).strip() for key in ("source", "note") if run.recipe.get(key)]
    return (
        "".join(f'<p class="source">{escape(text)}</p>' for text in texts)
        + '<div class="columns">'
        + setting_table("setting of the loop", ours, run.recipe, loop)
        + setting_table("setting of the task", theirs, run.recipe, own)
        + '</div><p class="source">Bold: not the default, which stands beside it.</p>'
    )


def setting_table(
    word: str, keys: Sequence[str], recipe: Mapping[str, Any], usual: Mapping[str, Any]
) -> str:
    """Key, value, and the default where it is another."""
    changed = [usual.get(key, ...) not in (..., plain(recipe[key])) for key in keys]
    rows = [
        [f"<code>{escape(key)}</code>", shown(recipe[key]), shown(usual[key]) if other else ""]
        for key, other in zip(keys, changed, strict=True)
    ]
    return table([word, "value", "default"], rows, changed, "settings") if rows else ""


def provenance(run: Folder) -> str:
    """Command, seed, commit, date, hardware, versions."""
    found = run.results
    machine, versions = found.get("hardware") or {}, found.get("versions") or {}
    rows = {
        "command": f"<code>{escape(str(found['command']))}</code>" if "command" in found else "",
        "seed": shown(found.get("seed", run.recipe.get("seed"))),
        "commit": f"<code>{escape(str(found['commit']))}</code>" if found.get("commit") else "",
        "date": escape(str(found.get("date", ""))),
        "processor": escape(str(machine.get("processor", ""))),
        "cores, memory": f"{shown(machine['cores'])}, {shown(machine.get('memory_gib'))} GiB"
        if "cores" in machine
        else "",
        "accelerators": escape(", ".join(map(str, machine.get("accelerators") or []))),
        "versions": escape(", ".join(f"{key} {value}" for key, value in versions.items())),
    }
    filled = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in rows.items() if value)
    return f"<dl>{filled}</dl>"


# Parts of a comparison.


def different_data(runs: Sequence[Folder]) -> str:
    """A warning where numbers cannot be compared."""
    data = sorted({run.data for run in runs})
    if len(data) < 2:
        return ""
    listed = escape(", ".join(data))
    return f'<p class="notice">These runs were measured on different data: {listed}.</p>'


def board(runs: Sequence[tuple[str, Folder]], main: str, base: Path) -> str:
    """A row for each run, the first marked as the best."""
    heads = ["run", "model", "data", "parameters, M", "epochs", "minutes", "samples/s", "seed"]
    rows = []
    for name, run in runs:
        link = quote(Path(os.path.relpath(run.path / REPORT, base)).as_posix())
        speed = run.logged("images_per_s")
        count, minutes = parameters(run.path), run.minutes
        rows.append(
            [
                f'<a href="{escape(link)}">{escape(name)}</a>',
                escape(run.model),
                escape(run.data),
                f"{count / 1e6:.2f}" if count else NONE,
                f"{run.epoch:.4g}" + ("" if run.results else " so far"),
                NONE if minutes is None else f"{minutes:.1f}",
                f"{statistics.median(speed):,.0f}" if speed else NONE,
                shown(run.recipe.get("seed", NONE)),
                amount(run.last.get(main)),
            ]
        )
    marked = [i == 0 and run.last.get(main) is not None for i, (_, run) in enumerate(runs)]
    return table([*heads, curves.label_of(main)], rows, marked, "board")
