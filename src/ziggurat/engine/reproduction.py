"""The papers beside what we get, as one page and as Markdown; every number is from a results file.

report(places, "laptop", Path("docs"))   -> docs/reproduction.html, reproduction.md, reproduction/
"""

import shutil
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from ziggurat.data.files import written_whole
from ziggurat.engine import claims, html, studyplots
from ziggurat.engine.beside import Table, arms, cells, overview, sources, trainings, verdict_rows
from ziggurat.engine.claims import PAPERS
from ziggurat.engine.reproduce import Found, Places, Trained, cell_kinds, find, sums, tally
from ziggurat.engine.studies import Scale
from ziggurat.engine.verdicts import FAILS, HOLDS, MISSING, UNDECIDED, WORDS

NAME = "reproduction"
CLASSES = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided", MISSING: "missing"}
INTRO = (
    "Every numbered table and figure of the five papers, and the sentences of them that compare "
    "things. What an architecture fixes is counted, to the last printed digit. What a clock "
    "decides is measured as a ratio, in one interleaved run. What takes training is trained as a "
    "miniature: the same comparison, small models, real small images, the same budget for every "
    "row, several seeds. A miniature can say that a claim holds or does not hold there; its "
    "accuracies are not the paper's."
)
MADE = "<!-- made by `ziggurat reproduce --report`: change the results, not this page -->"
RULE = (
    "A trained claim holds if all of the 95 % interval of the difference lies on the claimed side "
    "(Welch's, over seeds), does not hold if all of it lies on the other, and is undecided "
    "otherwise. A ratio holds if nine tenths of it are reached. A count holds within one of the "
    "last printed digit. Cells that differ say why, mostly that the official code has another "
    "number than the paper; those of no model here are of models that no library we use has."
)


def gather(scale: Scale, places: Places, tick: Callable[[int, int], None]) -> list[Found]:
    """Everything that is kept."""
    names = list(claims.items())
    found = []
    for at, name in enumerate(names):
        tick(at, len(names))
        found.append(find(name, scale, places))
    return found


def report(
    places: Places, scale: Scale, out: Path, tick: Callable[[int, int], None] = lambda *_: None
) -> list[Path]:
    """Write the page, the Markdown and the pictures that it shows."""
    found = gather(scale, places, tick)
    pictures = draw(found, out)
    page, text = out / f"{NAME}.html", out / f"{NAME}.md"
    html.put(page, as_html(found, pictures, scale, out))
    with written_whole(text) as file:
        file.write(as_markdown(found, pictures, scale, out).encode())
    return [page, text]


def draw(found: Sequence[Found], out: Path) -> dict[str, list[Path]]:
    """The pictures of each table and figure, and of each paper's verdicts."""
    folder = out / NAME
    pictures: dict[str, list[Path]] = {}
    drawn: dict[tuple[str, str], Path] = {}
    for one in found:
        shown = [out / file for file in one.item.pictures if (out / file).is_file()]
        shown += [copied(file, folder / file.name) for file in one.pictures]
        for study in one.studies:
            how = "lines" if study.study.x and one.item.draw == "rows" else one.item.draw
            key = study.study.id, how
            if key not in drawn:
                file = folder / f"{study.study.id.replace('/', '-')}-{how}.png"
                made = studyplots.draw(how, study, file)
                if made is None:
                    continue
                drawn[key] = made
            shown.append(drawn[key])
        pictures[one.name] = shown
    for paper in PAPERS:
        judged = [j for one in found if one.paper == paper for j in one.judged]
        points = [j for j in judged if j.claim.kind == "trained" and j.unit == "points"]
        made = studyplots.verdicts(points, folder / f"{paper}-verdicts.png")
        pictures[paper] = [made] if made else []
    return pictures


def copied(file: Path, to: Path) -> Path:
    """A picture beside the page."""
    to.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(file, to))


# HTML.


def as_html(
    found: Sequence[Found], pictures: dict[str, list[Path]], scale: Scale, out: Path
) -> str:
    """One page that asks for nothing from anywhere."""
    body = [
        f"<header>{html.MARK}<h1>The papers, reproduced <span>at {scale} scale</span></h1>"
        f"<p>{escape(INTRO)}</p></header>",
        cards(found),
        html.section("In short", web(overview(found))),
        html.section("Every claim", f"<p>{escape(RULE)}</p>" + every_claim(found, pictures)),
        *(paper_section(paper, found, pictures) for paper in PAPERS),
    ]
    return html.page("The papers, reproduced", "".join(body))


def cards(found: Sequence[Found]) -> str:
    """The whole in numbers."""
    kinds = cell_kinds([cell for one in found for cell in one.cells])
    counts = tally(j for one in found for j in one.judged)
    return (
        '<div class="cards">'
        + html.card(str(len(found)), "tables and figures")
        + html.card(str(kinds["agree"]), "counted cells agree")
        + html.card(str(kinds["differ"]), "differ, each with its reason")
        + "".join(html.card(str(counts[word]), f"claims: {word}") for word in WORDS if counts[word])
        + html.card(str(len(trainings(found))), "trainings")
        + "</div>"
    )


def web(table: Table) -> str:
    """A table of text as HTML."""
    rows = [
        [
            f'<span class="{CLASSES[cell]}">{escape(cell)}</span>'
            if cell in CLASSES
            else escape(cell)
            for cell in row
        ]
        for row in table.rows
    ]
    return html.table(table.heads, rows, [False] * len(rows), table.kind)


def every_claim(found: Sequence[Found], pictures: dict[str, list[Path]]) -> str:
    """By paper, with a picture of the trained ones."""
    parts = []
    for paper in PAPERS:
        judged = [j for one in found if one.paper == paper for j in one.judged]
        words = "The claimed difference and its 95 % interval; rings are the paper's."
        parts.append(
            f"<h3>{escape(claims.paper(paper).name)}</h3>"
            + "".join(html.picture(file, "chart", words) for file in pictures[paper])
            + web(verdict_rows(judged))
        )
    return "".join(parts)


def paper_section(paper: str, found: Sequence[Found], pictures: dict[str, list[Path]]) -> str:
    """Its tables and figures one by one."""
    own = [one for one in found if one.paper == paper]
    about = claims.paper(paper)
    return html.section(
        f"{about.name} ({about.source})", "".join(item_html(one, pictures) for one in own)
    )


def item_html(one: Found, pictures: dict[str, list[Path]]) -> str:
    """A table or figure: what it claims, what we get."""
    parts = [
        f'<h3 id="{escape(one.name.replace("/", "-"))}">{one.item.name}: {escape(one.item.title)}'
        f"</h3><p>{escape(one.item.about)}.</p>"
    ]
    parts += [
        f'<p class="about">{escape(study.study.title)}. {escape(words(study))}</p>'
        + web(arms(study))
        for study in one.studies
        if study.results
    ]
    parts += [html.picture(file, "chart", caption(file)) for file in pictures[one.name]]
    if one.cells:
        head = sums(one.cells)
        parts.append(f"<details><summary>{head}</summary>{web(cells(one))}</details>")
    if one.item.gap:
        parts.append(f'<p class="source">Not checked: {escape(one.item.gap)}.</p>')
    lines = [*sources(one), *(draw.command for draw in one.item.draws)]
    if lines:
        listed = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
        parts.append(f"<details><summary>commands</summary><ul>{listed}</ul></details>")
    return "".join(parts)


def words(study: Trained) -> str:
    """What a study says of itself, on one line."""
    return " ".join(study.study.about.split())


def caption(file: Path) -> str:
    """A picture's name in words."""
    return file.stem.replace("-", " ").replace("_", " ").capitalize()


# Markdown.


def as_markdown(
    found: Sequence[Found], pictures: dict[str, list[Path]], scale: Scale, out: Path
) -> str:
    """The same for the repository."""
    parts = [
        f"# The papers, reproduced at {scale} scale",
        f"{MADE}\n{INTRO}",
        f"The same as [one page with pictures]({NAME}.html).",
        marked(overview(found)),
        f"## Every claim\n\n{RULE}",
    ]
    for paper in PAPERS:
        judged = [j for one in found if one.paper == paper for j in one.judged]
        parts.append(f"### {claims.paper(paper).name}")
        parts += [image(file, out) for file in pictures[paper]]
        parts.append(marked(verdict_rows(judged)))
    for paper in PAPERS:
        about = claims.paper(paper)
        parts.append(f"## {about.name} ({about.source})")
        parts += [item_markdown(one, pictures, out) for one in found if one.paper == paper]
    return "\n\n".join(parts) + "\n"


def item_markdown(one: Found, pictures: dict[str, list[Path]], out: Path) -> str:
    """A table or figure."""
    parts = [f"### {one.item.name}: {one.item.title}\n\n{one.item.about}."]
    for study in one.studies:
        if study.results:
            parts.append(f"{study.study.title}. {words(study)}\n\n{marked(arms(study))}")
    parts += [image(file, out) for file in pictures[one.name]]
    if one.cells:
        parts.append(folded(sums(one.cells), marked(cells(one))))
    if one.item.gap:
        parts.append(f"Not checked: {one.item.gap}.")
    lines = [*sources(one), *(draw.command for draw in one.item.draws)]
    if lines:
        parts.append(folded("commands", "\n".join(f"- `{line}`" for line in lines)))
    return "\n\n".join(parts)


def image(file: Path, out: Path) -> str:
    """A picture beside the page."""
    return f"![{caption(file)}]({file.relative_to(out).as_posix()})"


def folded(head: str, body: str) -> str:
    """What is shown when it is asked for."""
    return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"


def marked(table: Table) -> str:
    """A table of text as Markdown."""
    lines = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join(f"| {' | '.join(tidy(cell) for cell in line)} |" for line in lines)


def tidy(cell: str) -> str:
    """A cell on one line; what would end it or be read as markup is not."""
    safe = cell.replace("|", "\\|").replace("<", "&lt;").replace("$", "\\$")
    return "<br>".join(" ".join(line.split()) for line in safe.split("\n"))
