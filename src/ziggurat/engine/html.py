"""Pieces of a page; a function that takes text escapes it, one that takes HTML says so.

A page is one file that asks for nothing from anywhere.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from ziggurat.data.files import written_whole
from ziggurat.tasks.drawing import number

NONE = "–"


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


def put(path: Path, text: str) -> Path:
    """Write a page whole or not at all."""
    with written_whole(path) as file:
        file.write(text.encode())
    return path


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


def card(value: str, word: str, alarming: bool = False) -> str:
    """A number and what it is."""
    kind = "card alarming" if alarming else "card"
    return f'<div class="{kind}"><b>{escape(value)}</b><span>{escape(word)}</span></div>'


def picture(file: Path, kind: str, caption: str = "") -> str:
    """An image as part of the page; one that cannot be read is left out."""
    try:
        with Image.open(file) as image:
            width = round(image.width * 96 / (image.info.get("dpi") or (96,))[0])
    except OSError:
        return ""
    word = file.stem.replace("_", " ").replace("-", " ").strip().capitalize()
    data = base64.b64encode(file.read_bytes()).decode()
    return (
        f'<figure class="{kind}"><img src="data:image/png;base64,{data}" width="{width}" '
        f'alt="{escape(word)}"><figcaption>{escape(caption or word)}</figcaption></figure>'
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


def amount(value: float | None) -> str:
    """A measure: whole numbers in full, others shortened."""
    if value is None:
        return NONE
    whole = abs(value) >= 1000 and float(value).is_integer()
    return f"{value:,.0f}" if whole else number(value)


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
h1 + p { margin-top: 16px }
h1 span { color: var(--muted); font-weight: 400 }
h3 { font-size: 1rem; margin: 34px 0 8px; font-weight: 650 }
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
.verdicts tbody th { width: 42% }
.verdicts td, .cells td { white-space: pre-line }
.holds, .fails, .undecided, .missing { font-weight: 650 }
.holds { color: var(--blue) }
.fails { color: var(--brick) }
.undecided, .missing { color: var(--muted) }
details { margin: 8px 0 }
summary { cursor: pointer; color: var(--muted); font-size: .9rem }
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
