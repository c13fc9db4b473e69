import base64
import io
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageFile
from torch import Tensor

from tests.web.conftest import CLASSES, bomb, encoded, picture, until
from ziggurat.engine.explain import Explained, Explainer
from ziggurat.web.answers import About, Answer
from ziggurat.web.app import PAGE, application

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect/></svg>'


def ask(client: TestClient, image: bytes, path: str = "explain", **fields: Any) -> Any:
    files = {"image": ("../../a<b>.png", image)}
    return client.post(f"/api/{path}", files=files, data={"model": "nest_tiny"} | fields)


def pixels(url: str) -> np.ndarray:
    kind, data = url.split(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_what_can_be_asked_for_is_told(client: TestClient) -> None:
    about = About.model_validate(client.get("/api/about").json())
    nest, rest = about.models
    assert (nest.name, rest.name) == ("nest_tiny", "rest_lite")
    assert nest.methods[0] == "gradcat"
    assert "gradcat" not in rest.methods
    assert nest.classes == list(CLASSES)
    assert nest.backend == "eager"
    assert (about.limits.bytes, about.limits.pixels) == (4_000_000, 20_000_000)
    assert {*nest.methods, *rest.methods} <= {method.name for method in about.methods}
    for example in about.examples:
        found = client.get(f"/api/examples/{example.name}")
        assert found.headers["content-type"].startswith("image/")
        assert Image.open(io.BytesIO(found.content)).width >= 8


def test_an_answer_is_the_explainers(client: TestClient, models: dict[str, Explainer]) -> None:
    image = picture()
    fields = {"method": ["gradcat", "cam"], "top": 3}
    found = Answer.model_validate(ask(client, encoded(image), **fields).json())
    assert [one.method for one in found.explanations] == ["gradcat", "cam"]
    for one in found.explanations:
        own = models["nest_tiny"](image, one.method, top=3)
        assert [guess.name for guess in found.top] == [guess.name for guess in own.top]
        assert (pixels(found.image) == np.asarray(own.image)).all()
        assert [each.number for each in one.classes] == list(own.found.classes)
        for each, heat, guess in zip(one.classes, own.found.maps, own.top, strict=True):
            assert (each.name, each.probability) == pytest.approx(tuple(guess))
            assert abs(pixels(each.heat) / 255 - heat.numpy()).max() <= 0.5 / 255 + 1e-6
    for each in found.explanations[0].classes:
        for i, step in enumerate(each.path):
            x0, y0, x1, y1 = step.box
            assert (step.level, x1 - x0, y1 - y0) == (i + 1, 0.5 ** (i + 1), 0.5 ** (i + 1))
            assert step.values[step.child] == max(step.values)
    assert not any(each.path for each in found.explanations[1].classes)


def test_classes_can_be_chosen(client: TestClient) -> None:
    everything = ask(client, encoded(picture()), top=10).json()
    chances = {
        one["number"]: one["probability"] for one in everything["explanations"][0]["classes"]
    }
    assert sum(chances.values()) == pytest.approx(1)
    found = ask(client, encoded(picture()), classes=[7, 1]).json()["explanations"][0]["classes"]
    assert [(one["number"], one["name"]) for one in found] == [(7, "class 7"), (1, "dog & fox")]
    assert [one["probability"] for one in found] == pytest.approx([chances[7], chances[1]])


def test_a_figure_is_a_file_to_keep(client: TestClient) -> None:
    found = ask(client, encoded(picture()), "figure", method="cam", classes=2)
    assert found.headers["content-type"] == "image/png"
    assert found.headers["content-disposition"].startswith("attachment")
    assert Image.open(io.BytesIO(found.content)).width > 64
    both = ask(client, encoded(picture()), "figure", method=["cam", "gradcat"])
    assert (both.status_code, both.json()["error"]) == (
        422,
        "a figure is of one method, got cam, gradcat",
    )


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_images_of_other_kinds_are_taken(client: TestClient, kind: str) -> None:
    assert ask(client, encoded(picture(), kind)).status_code == 200


def test_odd_images_are_seen_as_people_see_them(client: TestClient) -> None:
    upright = picture(size=(64, 64))
    seen = pixels(ask(client, encoded(upright)).json()["image"])
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    turned = encoded(upright.transpose(Image.Transpose.ROTATE_90), exif=exif)
    assert (pixels(ask(client, turned).json()["image"]) == seen).all()
    animated = encoded(upright, save_all=True, append_images=[picture(1, (64, 64))])
    assert (pixels(ask(client, animated).json()["image"]) == seen).all()
    for mode in ("RGBA", "CMYK", "P", "1", "LA", "I;16", "F"):
        grey = upright.convert("L") if mode in ("I;16", "F") else upright
        kind = "TIFF" if mode in ("CMYK", "I;16", "F") else "PNG"
        assert ask(client, encoded(grey.convert(mode), kind)).status_code == 200, mode


BROKEN = {
    "text": b"hello",
    "empty": b"",
    "svg": SVG,
    "cut": encoded(picture())[:200],
    "page": b"<!doctype html><script>alert(1)</script>",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("file", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_answered_kindly(client: TestClient, file: bytes) -> None:
    found = ask(client, file)
    assert found.status_code == 400
    assert found.json()["error"].startswith("this file: ")
    assert found.json()["error"].count("\n") == 0


def test_a_bomb_is_refused_unopened(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ImageFile.ImageFile] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", opened.append)
    file = bomb(10_000, 10_000)
    assert len(file) < 100_000
    found = ask(client, file)
    assert found.status_code == 413
    assert found.json()["error"] == "this file: 10000 x 10000, more than 20 million pixels"
    beyond = ask(client, bomb(20_000, 20_000))  # where PIL itself refuses
    assert beyond.status_code == 413
    assert not opened


def test_large_uploads_are_cut_off(client: TestClient) -> None:
    assert ask(client, encoded(picture()) + bytes(3_500_000)).status_code == 200
    found = ask(client, bytes(5_000_000))
    assert (found.status_code, found.json()["error"]) == (413, "more than 4 MB were sent")


def test_an_upload_that_does_not_say_its_length_is_cut_off(served: str) -> None:
    def parts() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        yield from (bytes(1_000_000) for _ in range(20))

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    found = httpx2.post(f"{served}/api/explain", content=parts(), headers=kind)
    assert (found.status_code, found.json()["error"]) == (413, "more than 4 MB were sent")


def test_nothing_is_left_behind(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the temporary folder, where large uploads are, nor in the one it runs in."""
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(here)
    large = encoded(picture()) + bytes(3_000_000)
    assert ask(client, large).status_code == 200
    assert ask(client, b"no image" + bytes(3_000_000)).status_code == 400
    assert not [*temporary.iterdir(), *here.iterdir()]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "rest"}, 404, "no checkpoint is called 'rest': there are nest_tiny, rest_lite"),
        ({"model": "../runs/nest_tiny"}, 404, "no checkpoint is called '../runs/nest_tiny'"),
        ({"model": "rest_lite", "method": "gradcat"}, 422, "rest_lite has no tree"),
        ({"method": "magic"}, 422, "no method is called 'magic': gradcat, "),
        ({"classes": 10}, 422, "nest_tiny has classes 0 to 9, got 10"),
        ({"classes": -1}, 422, "nest_tiny has classes 0 to 9, got -1"),
        ({"classes": "cat"}, 422, "classes.0: "),
        ({"classes": list(range(10)) * 2}, 422, "classes: "),
        ({"top": 0}, 422, "top: "),
        ({"top": 1000}, 422, "top: "),
    ],
)
def test_a_wrong_field_is_one_line(
    client: TestClient, fields: dict[str, Any], status: int, said: str
) -> None:
    found = ask(client, encoded(picture()), **fields)
    assert found.status_code == status
    assert set(found.json()) == {"error"}
    assert said in found.json()["error"]


def test_every_error_has_one_form(client: TestClient) -> None:
    for found, status in (
        (client.post("/api/explain", data={"model": "nest_tiny"}), 422),
        (client.post("/api/explain", data={"model": "nest_tiny", "image": "text"}), 422),
        (client.get("/api/explain"), 405),
        (client.get("/api/nothing"), 404),
        (client.get("/api/examples/nothing"), 404),
        (client.get("/../app.py"), 404),
    ):
        assert found.status_code == status, found.url
        assert set(found.json()) == {"error"}


class Slow:
    """A model that answers when it may, and knows how many asked it at once."""

    classes, methods = CLASSES, ("cam",)

    def __init__(self, own: Explainer) -> None:
        self.own, self.go = own, threading.Event()
        self.classifier = own.classifier
        self.inside = self.most = self.begun = 0

    def seen(self, pixels: Tensor, method: str, classes: Sequence[int] | None, top: int) -> Any:
        self.inside += 1
        self.begun += 1
        self.most = max(self.most, self.inside)
        assert self.go.wait(20)
        time.sleep(0.05)
        self.inside -= 1
        found: Explained = self.own.seen(pixels, method, classes, top)
        return found


def test_a_model_works_for_one_at_a_time_and_keeps_nobody_else_waiting(
    models: dict[str, Explainer],
) -> None:
    slow = Slow(models["nest_tiny"])
    app = application({"slow": slow, "rest_lite": models["rest_lite"]})  # type: ignore[dict-item]
    images = [encoded(picture(seed)) for seed in range(3)]
    with TestClient(app) as client, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(ask, client, image, model="slow") for image in images]
        until(lambda: slow.begun)
        assert client.get("/healthz").status_code == 200
        assert ask(client, images[0], model="rest_lite").status_code == 200
        assert not any(one.done() for one in waiting)
        slow.go.set()
        seen = [one.result().json()["image"] for one in waiting]
    assert (slow.begun, slow.most) == (3, 1)
    assert len(set(seen)) == 3  # each its own


def test_a_mistake_of_ours_tells_nothing_of_the_server(models: dict[str, Explainer]) -> None:
    class Failing(Slow):
        def seen(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("a secret path")

    app = application({"failing": Failing(models["nest_tiny"])})  # type: ignore[dict-item]
    with TestClient(app, raise_server_exceptions=False) as client:
        found = ask(client, encoded(picture()), model="failing")
    assert found.status_code == 500
    assert found.json() == {"error": "something went wrong on the server; its log says what"}
    assert found.headers["x-content-type-options"] == "nosniff"


def test_the_browser_is_told_to_trust_nothing_else(client: TestClient) -> None:
    for path in ("/", "/page.js", "/api/about", "/api/nothing", "/api/examples/china"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert "unsafe" not in headers["content-security-policy"]


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|(src|href)=\"//|@import|url\(", text), file.name
    page = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\bon\w+=|\bstyle=", page)


def test_the_api_is_documented_as_it_is(client: TestClient) -> None:
    found = client.get("/api/openapi.json").json()
    assert set(found["paths"]) == {
        "/healthz",
        "/metrics",
        "/api/about",
        "/api/examples/{name}",
        "/api/predict",
        "/api/explain",
        "/api/figure",
    }
    schemas = found["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    for path, more in (("/api/explain", set()), ("/api/figure", set()), ("/api/predict", {"415"})):
        question = found["paths"][path]["post"]
        kinds = {"multipart/form-data"} | ({"application/json"} if more else set())
        assert set(question["requestBody"]["content"]) == kinds
        errors = {"400", "404", "408", "413", "422", "503", "504", *more}
        assert set(question["responses"]) == {"200", *errors}
        for status in errors:
            schema = question["responses"][status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Error"}
    figure = found["paths"]["/api/figure"]["post"]["responses"]["200"]["content"]
    assert list(figure) == ["image/png"]
    body = schemas[next(name for name in schemas if name.startswith("Body_") and "explain" in name)]
    assert set(body["required"]) == {"image", "model"}
