"""The page in real Chromium."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.web.conftest import bomb, encoded, picture

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: `apt install chromium`"
)
SECONDS = 20_000

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        expect.set_options(timeout=SECONDS)
        found = play.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"] if os.geteuid() == 0 else [],  # chromium asks it of root
        )
        yield found
        found.close()


@pytest.fixture
def visit(browser: Browser, served: str) -> Iterator[Visit]:
    """A new visitor; that the page has no mistake and asks nobody else is seen at the end."""
    wrong: list[str] = []
    contexts = []

    def enter(**options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if told(said.text) else None)
        page.on("request", lambda asked: wrong.append(asked.url) if elsewhere(asked.url) else None)
        page.goto(served)
        expect(page.locator("#examples button")).to_have_count(4)
        return page

    def elsewhere(url: str) -> bool:
        return not url.startswith((served, "data:", f"blob:{served}"))

    def told(text: str) -> bool:
        return "Failed to load resource" not in text  # an answer of 4xx, which is on purpose

    yield enter
    for context in contexts:
        context.close()
    assert not wrong


def give(page: Page, contents: bytes, name: str = "photo.png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": contents})


def buttons(page: Page, panel: int = 0) -> Locator:
    return page.locator(".panel").nth(panel).locator(".classes li button")


def drawn(page: Page, selector: str) -> str:
    """The pixels of a canvas."""
    return str(page.locator(selector).first.evaluate("canvas => canvas.toDataURL()"))


def test_an_image_is_uploaded_and_another_class_changes_the_figure(visit: Visit) -> None:
    page = visit()
    give(page, encoded(picture()))
    expect(buttons(page)).to_have_count(5)
    first, second = buttons(page).nth(0), buttons(page).nth(1)
    expect(first).to_have_attribute("aria-pressed", "true")
    shares = [
        float(re.findall(r"[\d.]+ %", text)[0][:-2]) for text in buttons(page).all_inner_texts()
    ]
    assert shares == sorted(shares, reverse=True)
    before = [drawn(page, f".{view} canvas") for view in ("path", "heat")]
    words = page.locator(".tree svg[role=img]").get_attribute("aria-label")
    second.click()
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(first).to_have_attribute("aria-pressed", "false")
    assert drawn(page, ".heat canvas") != before[1]
    assert page.locator(".tree svg[role=img]").get_attribute("aria-label") != words
    name = second.locator("span").first.inner_text()
    expect(page.locator(".heat .note")).to_contain_text(name)
    first.click()
    assert [drawn(page, f".{view} canvas") for view in ("path", "heat")] == before


def test_the_tree_and_the_boxes_are_those_of_the_answer(visit: Visit) -> None:
    page = visit()
    with page.expect_response("**/api/explain") as answered:
        give(page, encoded(picture(3)))
    (tree,) = [one for one in answered.value.json()["explanations"] if one["method"] == "gradcat"]
    path = tree["classes"][0]["path"]
    assert len(path) == 2
    expect(page.locator(".path .seen rect.line")).to_have_count(len(path))
    expect(page.locator(".tree svg[role=img] text")).to_have_count(1 + 4 * len(path))
    expect(page.locator(".tree g.taken text")).to_have_count(1 + len(path))
    taken = page.locator(".tree g.taken text").all_text_contents()
    for step, said in zip(path, taken[1:], strict=True):
        value = float(said.replace("−", "-"))
        assert value == pytest.approx(step["values"][step["child"]], rel=0.1, abs=0.01)


def test_an_example_is_taken_and_a_file_can_be_dropped_and_pasted(visit: Visit) -> None:
    page = visit()
    page.get_by_role("button", name="Example: flower").click()
    expect(buttons(page)).to_have_count(5)
    expect(page.locator("#called")).to_have_text("flower")
    seen = page.locator(".heat .seen img").get_attribute("src")
    for kind in ("drop", "paste"):
        page.evaluate(
            """([kind, bytes]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`));
              document.body.dispatchEvent(kind === "drop"
                ? new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true })
                : new ClipboardEvent(kind, { clipboardData: data, bubbles: true }));
            }""",
            [kind, list(encoded(picture(kind == "drop")))],
        )
        expect(page.locator("#called")).to_have_text(f"{kind}.png")
        expect(page.locator(".heat .seen img")).not_to_have_attribute("src", seen or "")
        seen = page.locator(".heat .seen img").get_attribute("src")


def test_the_overlay_fades(visit: Visit) -> None:
    page = visit()
    give(page, encoded(picture()))
    heat = page.locator(".heat canvas")
    expect(heat).to_have_css("opacity", "0.55")
    page.locator("#opacity").fill("20")
    expect(heat).to_have_css("opacity", "0.2")
    expect(page.locator("#percent")).to_have_text("20 %")


def test_two_checkpoints_are_compared_and_choose_together(visit: Visit) -> None:
    page = visit()
    page.select_option("#other", "rest_lite")
    give(page, encoded(picture()))
    expect(page.locator(".panel h2")).to_have_text(["nest_tiny", "rest_lite"])
    expect(page.locator(".panel").nth(1).locator(".tree")).to_be_hidden()
    known = [set(buttons(page, i).locator("span:nth-of-type(1)").all_inner_texts()) for i in (0, 1)]
    unlike = sorted(known[0] - known[1])[0]  # explained on demand in the other
    buttons(page).filter(has_text=unlike).click()
    for panel in (0, 1):
        chosen = page.locator(".panel").nth(panel).locator("button[aria-pressed=true]")
        expect(chosen).to_contain_text(unlike)
    page.select_option("#model", "rest_lite")  # which is then not compared with itself
    expect(page.locator(".panel h2")).to_have_text(["rest_lite"])


def test_another_class_and_another_method_are_asked_for(visit: Visit) -> None:
    page = visit()
    give(page, encoded(picture()))
    expect(buttons(page)).to_have_count(5)
    shown = buttons(page).locator("span:nth-of-type(1)").all_inner_texts()
    other = next(f"class {i}" for i in range(2, 10) if f"class {i}" not in shown)
    field = page.get_by_label("Another class")
    field.fill(other)
    field.press("Enter")
    expect(page.locator("button[aria-pressed=true]")).to_contain_text(other)
    field.fill("no such class")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("has no class “no such class”")
    ways = page.locator(".heat select option").all_inner_texts()
    for way in ways[1:]:
        page.select_option(".heat select", label=way)
        expect(page.locator(".heat canvas")).to_have_attribute(
            "aria-label", f"Heat map of {other} by {way}"
        )


def test_the_figure_is_downloaded(visit: Visit, tmp_path: Path) -> None:
    page = visit()
    give(page, encoded(picture()))
    buttons(page).nth(1).click()
    for view, method in (("path", "gradcat"), ("heat", "cam")):
        with page.expect_download() as download:
            page.locator(f".{view} .download").click()
        assert download.value.suggested_filename.startswith(f"nest_tiny-{method}-")
        download.value.save_as(tmp_path / f"{view}.png")
        assert (tmp_path / f"{view}.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_taken_is_told_kindly(visit: Visit) -> None:
    page = visit()
    alert = page.get_by_role("alert")
    give(page, b"this is no image", "broken.jpg")
    expect(alert).to_contain_text("This file: not an image of a kind that can be read")
    give(page, bomb(10_000, 10_000), "bomb.png")
    expect(alert).to_have_text("This file: 10000 x 10000, more than 20 million pixels")
    give(page, bytes(5_000_000), "large.png")
    expect(alert).to_contain_text("This file has 5.0 MB, more than the 4 MB that are taken")
    expect(page.locator(".panel")).to_have_count(0)
    give(page, encoded(picture()))  # and it goes on
    expect(buttons(page)).to_have_count(5)
    expect(alert).to_be_hidden()
    give(page, b"broken again", "<img src=x onerror=alert(1)>.png")
    expect(alert).to_contain_text("not an image")
    expect(page.locator(".panel")).to_have_count(0)  # what was seen before is not taken for it
    expect(page.locator("#called")).to_have_text("<img src=x onerror=alert(1)>.png")


def test_names_are_text_and_never_markup(visit: Visit) -> None:
    page = visit()
    give(page, encoded(picture()))
    expect(buttons(page)).to_have_count(5)
    field = page.get_by_label("Another class")
    field.fill("<b>cat</b>")
    field.press("Enter")
    chosen = page.locator("button[aria-pressed=true] span").first
    expect(chosen).to_have_text("<b>cat</b>")
    assert not page.locator(".panel b", has_text="cat").filter(has_not_text="<b>").count()


def test_two_visitors_see_their_own_images(visit: Visit) -> None:
    alone = []
    for seed in (1, 2):
        page = visit()
        give(page, encoded(picture(seed)))
        expect(buttons(page)).to_have_count(5)
        alone.append(shown(page))
    assert alone[0] != alone[1]
    pages = visit(), visit()
    for _ in range(3):
        for seed, page in enumerate(pages, start=1):  # neither waits for the other
            give(page, encoded(picture(seed)))
        for page, own in zip(pages, alone, strict=True):
            expect(page.locator("#status")).to_be_empty()
            expect(buttons(page)).to_have_count(5)
            assert shown(page) == own


def shown(page: Page) -> tuple[str | None, list[str], str]:
    """All that tells one image from another."""
    image = page.locator(".heat .seen img").get_attribute("src")
    return image, buttons(page).all_inner_texts(), drawn(page, ".heat canvas")


def test_it_fits_a_phone(visit: Visit) -> None:
    page = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.select_option("#other", "rest_lite")
    page.get_by_role("button", name="Example: china").tap()
    expect(page.locator(".panel")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for box in page.locator("button:visible, select:visible").all():
        found = box.bounding_box()
        assert found
        assert found["x"] >= 0
        assert found["x"] + found["width"] <= 360
        assert found["height"] >= 34


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit()
    page.locator("#examples button").first.focus()
    page.keyboard.press("Enter")
    expect(buttons(page)).to_have_count(5)
    buttons(page).first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(buttons(page).nth(1)).to_have_attribute("aria-pressed", "true")
    expect(buttons(page).nth(1)).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(visit: Visit, scheme: str) -> None:
    """WCAG's 4.5 for text, by the colours the page is made of."""
    page = visit(color_scheme=scheme)
    rules = "n => getComputedStyle(document.documentElement).getPropertyValue(n).trim()"
    colour = {
        n: page.evaluate(rules, f"--{n}")
        for n in ("ink", "muted", "blue", "card", "paper", "bar", "warm")
    }
    for front, backs in {
        "ink": ("card", "paper", "bar", "warm"), "muted": ("card", "paper"), "blue": ("paper",),
    }.items():  # fmt: skip
        for back in backs:
            assert contrast(colour[front], colour[back]) >= 4.5, (front, back)


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        full = colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:])
        parts = [int(full[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
