"""A run as one page: what was trained, what it gave, how it went and how to do it again.

The page is one file that asks for nothing from anywhere. What the paper printed is shown as the
paper's, apart from what was measured here.

    report.write(Path("runs/digits"))                        -> runs/digits/report.html
    report.compare([Path("runs/nest"), Path("runs/deit")], Path("runs/compare.html"))
"""

import base64
import contextlib
import hashlib
import json
import math
import os
import shlex
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from PIL import Image
from safetensors import SafetensorError, safe_open

from ziggurat.engine import checkpoint
from ziggurat.engine.recipe import RECIPE, ROWS, Recipe, RecipeError, names, parse
from ziggurat.engine.recipe import read as read_recipe
from ziggurat.engine.results import BAD, METRICS, RESULTS
from ziggurat.engine.results import history as history_of
from ziggurat.models.pretrained import CONFIG, WEIGHTS
from ziggurat.tasks import TASKS, figures

REPORT = "report.html"
NONE = "–"
LISTED = 24  # class names that are spelt out
WAITING = 0.05  # of the time; more is worth a look
CHARTS = {  # drawn on white: a dark page turns them round
    "curves": "Loss, learning rate and the measure that decides, over the epochs.",
    "confusion": "What was taken for what: rows are true classes, columns the model's answers. "
    "Blue is right, red is wrong; the darker, the larger the share of the row.",
    "classes": "Accuracy of each class on held-out images, the worst first.",
}
PHOTOS = {
    "mistakes": "The worst mistakes: what the model said and how sure it was, and what it was."
}
APART = ("name", "source", "note", "paper")  # settings that change nothing


class Folder(NamedTuple):
    """What there is of a run."""

    path: Path
    recipe: dict[str, Any]  # flat
    history: list[dict[str, Any]]  # metrics.jsonl
    results: dict[str, Any]  # results.json; empty: not finished
    state: dict[str, Any]  # of the last checkpoint, where there are no results
    config: dict[str, Any]  # config.json of the saved model
    main: str  # the measure that decides

    @property
    def model(self) -> str:
        """What was trained."""
        return str(self.recipe.get("model", self.path.name))

    @property
    def data(self) -> str:
        """What it was trained on."""
        return str(self.recipe.get("data", "unknown data"))

    @property
    def measured(self) -> dict[str, Any]:
        """What a finished run found."""
        return dict(self.results.get("measured") or {})

    @property
    def tests(self) -> list[dict[str, Any]]:
        """Its evaluations."""
        return [line for line in self.history if line.get("test")]

    @property
    def last(self) -> dict[str, float]:
        """Measures at the end, or the last there are."""
        return self.measured.get("test") or (self.tests[-1]["test"] if self.tests else {})

    @property
    def best(self) -> dict[str, Any]:
        """Step and measures of the best model."""
        found = self.measured.get("best") or self.state.get("best")
        known = [line for line in self.tests if self.main in line["test"]]
        return found or max(known, key=lambda line: line["test"][self.main], default={})

    @property
    def epoch(self) -> float:
        """How far it came."""
        return max((line["epoch"] for line in self.history), default=0)

    @property
    def minutes(self) -> float | None:
        """How long it took."""
        logged = [line["minutes"] for line in self.history[-1:] if "minutes" in line]
        found = self.measured.get("minutes", self.state.get("minutes"))
        return (logged or [None])[0] if found is None else found

    def logged(self, key: str) -> list[float]:
        """All values of a key of the training steps."""
        return [line[key] for line in self.history if key in line]


def write(folder: Path) -> Path:
    """Make report.html of whatever is in a run's folder; a run need not be finished."""
    run = read(folder)
    figures.curves(run.history, folder / "curves.png", run.main)
    body = [
        headline(run),
        unfinished(run),
        cards(run),
        section("How it went", picture(folder / "curves.png")),
        section("What it gets wrong", pictures(folder)),
        section("All measures", measures(run)),
        section("Classes", classes(run)),
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
    order = sorted(runs, key=lambda name: runs[name].last.get(main, float("-inf")), reverse=True)
    plot = out.with_suffix(".png")
    figures.compare({name: runs[name].history for name in order}, plot, main)
    title = f"{len(runs)} runs compared" if len(runs) > 1 else "one run"
    body = [
        f"<header>{MARK}<h1>{escape(title)}</h1></header>",
        different_data(list(runs.values())),
        section("", board([(name, runs[name]) for name in order], main, out.parent)),
        section(
            "", picture(plot, "On held-out data; the runs in the order of their ends.", "chart")
        ),
    ]
    return put(out, page(title, "".join(body), SORT))


# What is in a folder.


def read(folder: Path) -> Folder:
    """Collect what a run has left so far."""
    results = read_json(folder / RESULTS)
    measured = results.get("measured") or {}
    recipe: dict[str, Any] = dict(measured.get("recipe") or {})
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError):
        recipe = tomllib.loads((folder / RECIPE).read_text())
    history = list(history_of(folder / METRICS)) or measured.get("history") or []
    if not (recipe or history):
        raise FileNotFoundError(f"{folder} has no run: there is neither {RECIPE} nor {METRICS}")
    saved = checkpoint.saved(folder / "checkpoints")
    state = read_json(saved[-1] / checkpoint.STATE) if saved and not results else {}
    task = TASKS.get(str(recipe.get("task")))
    main = task.best if task else figures.main_measure([history])
    return Folder(folder, recipe, history, results, state, read_json(folder / CONFIG), main)


def read_json(file: Path) -> dict[str, Any]:
    """A file's table; empty if it is not there or not whole."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def parameters(folder: Path) -> int | None:
    """How many there are, by the header of the weights; a norm's statistics are none."""
    for file in (folder / WEIGHTS, folder / "best" / WEIGHTS):
        with contextlib.suppress(OSError, SafetensorError), safe_open(file, "pt") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            return sum(
                math.prod(part.get_shape())
                for name, part in slices.items()
                if part.get_dtype() in ("F64", "F32", "F16", "BF16")
                and not name.endswith(("running_mean", "running_var"))
            )
    return None


def departures(recipe: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a run changed of the recipe that ships under its name: key -> (there, here)."""
    name = str(recipe.get("name"))
    if name not in names():
        return {}
    origin, table = read_recipe(name)
    rows = [row for row in table.pop(ROWS, []) if row.get("model") == recipe.get("model")]
    found = []
    for row in rows or [{"model": recipe.get("model")}]:
        with contextlib.suppress(RecipeError):
            start = {"init": recipe["init"]} if recipe.get("init") else {}  # is the user's to give
            ours = parse({"name": name} | table | row | start, origin).flat()
            keys = [key for key in {**ours, **recipe} if ours.get(key) != recipe.get(key)]
            found.append({key: (ours.get(key), recipe.get(key)) for key in keys})
    return min(found, key=lambda changed: ("data" in changed, len(changed)), default={})


def titles(folders: Sequence[Path]) -> list[str]:
    """The shortest paths that tell the folders apart."""
    whole = [folder.resolve() for folder in folders]
    shared = os.path.commonpath([path.parent for path in whole])
    return [path.relative_to(shared).as_posix() for path in whole]


# Parts of the page.


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
    word, _, unit = figures.label_of(run.main).partition(", ")
    when = "at the end" if run.results else f"so far, at epoch {run.tests[-1]['epoch']:.4g}"
    best = run.best.get("test", {}).get(run.main, value)
    more = f"; the best model has {figures.number(best)}" if best != value else ""
    return (
        f'<div class="result"><strong>{figures.number(value)}<small>{escape(unit)}</small></strong>'
        f"<p>{escape(word)}, measured on held-out data {when}{more}</p></div>"
    )


def paper(run: Folder) -> str:
    """What the paper printed, if this run is of its row, and where this run departs from it."""
    changed = departures(run.recipe)
    printed: dict[str, float] = run.recipe.get("paper") or {}
    if not printed or changed.keys() & {"task", "data", "model", "paper"}:
        return ""
    numbers = ", ".join(
        f"<b>{value:g}</b> {escape(figures.label_of(key))}" for key, value in printed.items()
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
    count = parameters(run.path)
    found = [
        card(millions(count), "parameters") if count else "",
        card(epochs, "epochs") if run.history else "",
        card(f"{steps:,}", "steps") if steps else "",
        card(duration(run.minutes), "of training") if run.minutes is not None else "",
        card(f"{statistics.median(speed):,.0f}", "images/s, the median") if speed else "",
        card(f"{100 * share:.1f} %", "waiting for data", share > WAITING) if waiting else "",
        card(f"{len(skipped):,}", "steps skipped", bool(skipped)) if run.history else "",
        card(f"{bad:,}", "unreadable files", bool(bad)) if run.history else "",
        card(f"{processes}", "processes") if processes > 1 else "",
    ]
    return f'<div class="cards">{"".join(found)}</div>'


def card(value: str, word: str, alarming: bool = False) -> str:
    """A number and what it is."""
    kind = "card alarming" if alarming else "card"
    return f'<div class="{kind}"><b>{escape(value)}</b><span>{escape(word)}</span></div>'


def pictures(folder: Path) -> str:
    """All figures but the curves: those we know first, then any others."""
    known = [*CHARTS, *PHOTOS]
    files = sorted(
        folder.glob("*.png"),
        key=lambda file: (known.index(file.stem) if file.stem in known else len(known), file.stem),
    )
    return "".join(picture(file) for file in files if file.stem != "curves")


def picture(file: Path, caption: str = "", kind: str = "") -> str:
    """An image as part of the page; one that cannot be read is left out."""
    try:
        with Image.open(file) as image:
            width = round(image.width * 96 / (image.info.get("dpi") or (96,))[0])
    except OSError:
        return ""
    stem = file.stem
    word = stem.replace("_", " ").replace("-", " ").strip().capitalize()
    caption = escape(caption or (CHARTS | PHOTOS).get(stem, word))
    data = base64.b64encode(file.read_bytes()).decode()
    kind = kind or ("chart" if stem in CHARTS else "photo")
    return (
        f'<figure class="{kind}"><img src="data:image/png;base64,{data}" width="{width}" '
        f'alt="{escape(word)}"><figcaption>{caption}</figcaption></figure>'
    )


def measures(run: Folder) -> str:
    """Every measure of the final and of the best model."""
    best = run.best.get("test") or {}
    keys = list(dict.fromkeys([*run.last, *best]))
    step = run.best.get("step")
    epochs = [line["epoch"] for line in run.tests if line.get("step") == step]
    at = f", epoch {epochs[0]:.4g}" if epochs else ""
    rows = [
        [escape(figures.label_of(key)), amount(run.last.get(key)), amount(best.get(key))]
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


def defaults(model: Any) -> dict[str, Any]:
    """The fields of a pydantic model: its default, or the ellipsis if there is none."""
    return {
        key: ... if field.is_required() else plain(field.get_default(call_default_factory=True))
        for key, field in model.model_fields.items()
    }


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


def different_data(runs: Sequence[Folder]) -> str:
    """A warning where numbers cannot be compared."""
    data = sorted({run.data for run in runs})
    if len(data) < 2:
        return ""
    listed = escape(", ".join(data))
    return f'<p class="notice">These runs were measured on different data: {listed}.</p>'


def board(runs: Sequence[tuple[str, Folder]], main: str, base: Path) -> str:
    """A row for each run, the first marked as the best."""
    heads = ["run", "model", "data", "parameters, M", "epochs", "minutes", "images/s", "seed"]
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
    return table([*heads, figures.label_of(main)], rows, marked, "board")


# Pieces of HTML; a function that takes text escapes it, one that takes HTML says so.


def page(title: str, body: str, script: str = "") -> str:
    """A whole document around a body of HTML; the browser is told to fetch nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    policy += f"; script-src 'sha256-{digest}'" if script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f'</title><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head>\n<body><main>{body}</main>"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """A part with a heading, of HTML; nothing if it is empty."""
    head = f"<h2>{escape(title)}</h2>" if title else ""
    return f"\n<section>{head}{body}</section>" if body else ""


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool], kind: str
) -> str:
    """Rows of HTML cells under plain headings; marked rows stand out."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr{" class=marked" if mark else ""}><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row, mark in zip(rows, marked, strict=True)
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def shown(value: Any) -> str:
    """A setting as a recipe writes it, escaped."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{escape(str(k))} = {shown(v)}' for k, v in value.items())}}}"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def plain(value: Any) -> Any:
    """A value as it comes back from a file."""
    return list(map(plain, value)) if isinstance(value, list | tuple) else value


def amount(value: float | None) -> str:
    """A measure: whole numbers in full, others shortened."""
    if value is None:
        return NONE
    whole = abs(value) >= 1000 and float(value).is_integer()
    return f"{value:,.0f}" if whole else figures.number(value)


def millions(count: int) -> str:
    """Three digits and a letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * size:  # 999.7 k are 1 M
            return f"{count / size:.3g} {letter}"
    return str(count)


def duration(minutes: float) -> str:
    """Seconds, minutes or hours."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.1f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def read_text(file: Path) -> str:
    """A file's text; empty if there is none."""
    return file.read_text(errors="replace") if file.exists() else ""


def put(path: Path, text: str) -> Path:
    """Write a page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


MARK = (
    '<svg class="mark" viewBox="0 0 32 24" role="img" aria-label="ziggurat">'
    '<path d="M12 0h8v7h-8zM6 8.5h20v7H6zM0 17h32v7H0z"/></svg>'
)

CSS = """
:root { --paper: #faf9f7; --card: #fff; --ink: #22252b; --muted: #666d79; --line: #e4e3df;
  --blue: #2f5f9e; --brick: #b84c25; --tint: #f1f4f9; --warm: #fbf0ea; color-scheme: light dark }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #161616; --card: #1f1f1f; --ink: #e8e7e4; --muted: #a2a4a8; --line: #343434;
    --blue: #8fb5ea; --brick: #ee9a75; --tint: #232a35; --warm: #33251e }
  .chart img { filter: invert(.88) hue-rotate(180deg) }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-size: 16px; font-variant-numeric: tabular-nums }
main { max-width: 1120px; margin: 0 auto; padding: 48px 24px 64px }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; margin: 0; font-weight: 650;
  overflow-wrap: anywhere }
h1 span { color: var(--muted); font-weight: 400 }
h2 { font-size: 1.15rem; margin: 0 0 14px; font-weight: 650 }
p { margin: 0 0 10px; max-width: 80ch }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere }
a { color: var(--blue) }
section { margin-top: 44px }
.mark { width: 34px; fill: var(--brick); display: block; margin-bottom: 18px }
.about, .source { color: var(--muted); font-size: .9rem; white-space: pre-line }
.about { margin-bottom: 4px }
.results { display: flex; flex-wrap: wrap; gap: 20px 48px; align-items: flex-end;
  margin-top: 26px }
.result { flex: 1 1 300px }
.result strong { font-size: 4.6rem; line-height: 1; font-weight: 700; letter-spacing: -.035em;
  color: var(--blue) }
.result small { font-size: .42em; font-weight: 500; margin-left: .18em; letter-spacing: 0 }
.result p { color: var(--muted); margin: 10px 0 0 }
.paper { flex: 1 1 300px; max-width: 540px; border: 1.5px dashed var(--line); border-radius: 10px;
  padding: 14px 18px 8px; font-size: .92rem }
.paper h2 { font-size: .8rem; color: var(--muted); margin-bottom: 6px; font-weight: 600 }
.paper p { margin-bottom: 6px }
.paper s { color: var(--muted) }
.notice { margin: 28px 0 0; padding: 12px 16px; border-left: 4px solid var(--brick);
  background: var(--warm); border-radius: 0 8px 8px 0; max-width: none }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin-top: 36px }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 16px; display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 9px }
.card b { font-size: 1.3rem; font-weight: 650; white-space: nowrap }
.card span { color: var(--muted); font-size: .85rem }
.alarming { border-color: var(--brick); background: var(--warm) }
.alarming b { color: var(--brick) }
figure { margin: 0 0 20px; padding: 18px; border: 1px solid var(--line); border-radius: 12px;
  background: var(--card); break-inside: avoid }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; border-radius: 4px }
figcaption { color: var(--muted); font-size: .9rem; margin-top: 12px }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; margin-bottom: 12px }
table { border-collapse: collapse; width: 100%; font-size: .92rem }
th, td { padding: 7px 16px; text-align: left; border-top: 1px solid var(--line);
  vertical-align: top; font-weight: 400 }
thead th { border-top: 0; color: var(--muted); font-size: .82rem; white-space: nowrap }
.numbers { max-width: 720px }
.numbers td, .numbers thead th + th, .board td:nth-child(n + 4), .board thead th:nth-child(n + 4)
  { text-align: right }
.board td { white-space: nowrap }
.marked th, .marked td { background: var(--tint); font-weight: 650 }
.settings td { overflow-wrap: anywhere }
.settings .marked td:last-child { color: var(--muted); font-weight: 400 }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr));
  gap: 0 20px; align-items: start; margin-top: 14px }
.sorting { cursor: pointer; user-select: none }
.sorting:hover { color: var(--ink) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 22px; margin: 0;
  font-size: .92rem }
dt { color: var(--muted) }
dd { margin: 0; overflow-wrap: anywhere }
@media (max-width: 760px) { .cards { grid-template-columns: repeat(2, 1fr) } }
@media (max-width: 560px) { main { padding: 28px 16px } .result strong { font-size: 3.4rem }
  figure { padding: 8px } }
@media print {
  body { background: #fff; font-size: 11pt } main { max-width: none; padding: 0 }
  tr, .card, .paper, .notice { break-inside: avoid } h2 { break-after: avoid }
  figure, .scroll { padding: 0; border: 0 } section { margin-top: 24pt }
  * { print-color-adjust: exact }
}
"""

SORT = """
const number = cell => parseFloat(cell.textContent.replaceAll(",", ""));
for (const head of document.querySelectorAll(".board thead th")) {
  head.className = "sorting";
  head.tabIndex = 0;
  head.onkeydown = event => event.key === "Enter" && head.click();
  head.onclick = () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const up = head.ariaSort !== "ascending";
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [a, b].map(row => number(row.cells[at]));
      return x - y || (isNaN(x) - isNaN(y))
        || a.cells[at].textContent.localeCompare(b.cells[at].textContent);
    });
    body.append(...(up ? rows : rows.reverse()));
    for (const other of head.parentNode.cells) other.ariaSort = null;
    head.ariaSort = up ? "ascending" : "descending";
  };
}
"""
