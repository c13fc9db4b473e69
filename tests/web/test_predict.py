"""``/api/predict``, asked as programs do."""

import base64
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from tests.web.conftest import Gate, bomb, encoded, picture, serving, until
from ziggurat.data.images import BadImage
from ziggurat.engine.explain import Explainer
from ziggurat.web import service
from ziggurat.web.answers import Predictions
from ziggurat.web.app import application

PATH = "/api/predict"
IMAGE = encoded(picture())


def files(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", ("a.png", image)) for image in images]


def text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def own(model: Explainer, seeds: Sequence[int], top: int) -> list[list[tuple[str, float]]]:
    found = model.classifier(map(picture, seeds), top)
    return [[(guess.name, guess.probability) for guess in one.top] for one in found]


def told(answer: Any) -> list[list[tuple[str, float]]]:
    assert answer.status_code == 200, answer.text
    found = Predictions.model_validate(answer.json())
    return [[(guess.name, guess.probability) for guess in image.top] for image in found.images]


def same(one: Any, other: Any) -> bool:
    """Up to what the size of a batch does to the last digits."""
    names = [[[name for name, _ in image] for image in each] for each in (one, other)]
    shares = [[share for image in each for _, share in image] for each in (one, other)]
    return names[0] == names[1] and shares[0] == pytest.approx(shares[1], abs=1e-5)


def test_predictions_are_the_classifiers_however_images_are_sent(
    client: TestClient, models: dict[str, Explainer]
) -> None:
    images = [encoded(picture(seed)) for seed in (1, 2)]
    expected = own(models["rest_lite"], (1, 2), 3)
    wishes: dict[str, Any] = {"model": "rest_lite", "top": 3}
    texts = list(map(text, images))
    as_url = [f"data:image/png;base64,{one}" for one in texts]
    in_lines = [base64.encodebytes(image).decode() for image in images]
    assert same(told(client.post(PATH, files=files(*images), data=wishes)), expected)
    for several in (texts, as_url, in_lines):
        assert same(told(client.post(PATH, json={"image": several, **wishes})), expected)
    alone = told(client.post(PATH, json={"image": texts[1], **wishes}))
    assert same(alone, expected[1:])


def test_the_first_model_and_five_classes_are_taken_if_none_are_named(
    client: TestClient, models: dict[str, Explainer]
) -> None:
    answer = client.post(PATH, files=files(encoded(picture(3))))
    assert answer.json()["model"] == "nest_tiny"
    assert same(told(answer), own(models["nest_tiny"], (3,), 5))
    timing = answer.json()["timing"]
    assert timing["batch"] == 1
    assert timing["model"] > 0 <= timing["waiting"]


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "text": ({"files": files(b"hello")}, 400, "this file: not an image of a kind"),
    "an empty file": ({"files": files(b"")}, 400, "this file: the file is empty"),
    "the second": ({"files": files(IMAGE, b"x")}, 400, "image 2 of 2: not an image"),
    "a bomb": ({"files": files(bomb(9000, 9000))}, 413, "this file: 9000 x 9000, more than 20 m"),
    "a line": ({"files": files(bomb(5000, 2))}, 413, "5000 x 2, more than 100 times as long"),
    "large": ({"files": files(bytes(5_000_000))}, 413, "more than 4 MB were sent"),
    "many": ({"files": files(*[IMAGE] * 17)}, 400, "Maximum number of files is 16"),
    "no file": ({"files": [("image", (None, "text"))]}, 422, "image: a file is expected"),
    "a field": ({"files": files(IMAGE), "data": {"topk": 3}}, 422, "topk: Extra inputs"),
    "top": ({"files": files(IMAGE), "data": {"top": 11}}, 422, "top: Input should be less"),
    "no images": ({"files": [("top", (None, "3"))]}, 422, "image: Field required"),
    "a model": ({"files": files(IMAGE), "data": {"model": "x"}}, 404, "no checkpoint is called"),
    "a long name": ({"json": {"image": "", "model": 999 * "x"}}, 404, f"'{80 * 'x'}…'"),
    "nothing": ({}, 415, "send image files as multipart/form-data, or base64 in application/json"),
    "urlencoded": ({"data": {"image": "x"}}, 415, "send image files as"),
    "no boundary": ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, ""),
    "broken JSON": (
        {"content": b'{"image', "headers": {"content-type": "application/json"}}, 400,
        "Invalid JSON: EOF while parsing",
    ),
    "no object": ({"json": []}, 422, "Input should be an object"),
    "a number": ({"json": {"image": 5}}, 422, "image: Input should be a valid array"),
    "none": ({"json": {"image": []}}, 422, "image: Value should have at least 1 item"),
    "too many": ({"json": {"image": [text(IMAGE)] * 17}}, 422, "at most 16 items"),
    "far too many": ({"json": {"image": [1] * 9999}}, 422, "at most 16 images and what they are"),
    "keys": ({"json": dict.fromkeys(map(str, range(9999)))}, 422, "at most 16 images and what"),
    "no letters": ({"json": {"image": "é"}}, 400, "this file: no base64 ("),
    "a charset": (
        {
            "content": b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--x--\r\n',
            "headers": {"content-type": "multipart/form-data; boundary=x; charset=undefined"},
        },
        400, "the form's texts cannot be read: send them in UTF-8",
    ),
    "no base64": ({"json": {"image": "%%%"}}, 400, "this file: no base64 ("),
    "base64 of text": ({"json": {"image": text(b"hello")}}, 400, "this file: not an image"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "status", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_taken_is_one_line(
    client: TestClient, asked: dict[str, Any], status: int, said: str
) -> None:
    found = client.post(PATH, **asked)
    assert found.status_code == status, found.text
    assert set(found.json()) == {"error"}
    assert said in found.json()["error"]
    assert found.json()["error"].count("\n") == 0


def test_requests_that_come_together_are_computed_together(gate: Gate) -> None:
    with (
        TestClient(application({"gate": gate.model}, batch=8)) as client,
        ThreadPoolExecutor() as pool,
    ):

        def ask(seed: int) -> Any:
            return client.post(PATH, files=files(encoded(picture(seed))))

        first = pool.submit(ask, 0)
        assert gate.begun.wait(20)
        later = [pool.submit(ask, seed) for seed in range(1, 5)]
        until(lambda: queued(client) == 4)
        gate.go.set()
        found = [told(one.result())[0] for one in (first, *later)]
        assert later[0].result().json()["timing"]["batch"] == 4
        assert metric(client, 'ziggurat_batch_size_bucket{le="4.0",model="gate"}') == 2
    assert gate.batches == [1, 4]
    expected = own(Explainer(gate.model.classifier.model), range(5), 5)
    assert same(found, expected)  # each its own


def test_who_comes_to_a_full_house_is_told_to_come_again(gate: Gate) -> None:
    app = application({"gate": gate.model}, queue=2)
    with TestClient(app) as client, ThreadPoolExecutor() as pool:

        def ask() -> Any:
            return client.post(PATH, files=files(IMAGE))

        inside = [pool.submit(ask) for _ in range(2)]
        until(lambda: metric(client, "ziggurat_requests_inside") == 2)
        for found in (ask(), client.post("/api/explain", files=files(IMAGE))):
            assert (found.status_code, found.headers["retry-after"]) == (503, "1")
            assert found.json() == {"error": "2 requests are at work or wait: try again"}
        assert client.get("/healthz").status_code == 200
        gate.go.set()
        assert [one.result().status_code for one in inside] == [200, 200]
        assert ask().status_code == 200
        refused = 'ziggurat_requests_total{route="/api/predict",status="503"}'
        assert metric(client, refused) == 1


def test_images_that_do_not_fit_the_queue_are_told_to_come_again(gate: Gate) -> None:
    app = application({"gate": gate.model}, batch=1, queue=20)
    with TestClient(app) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, PATH, files=files(IMAGE))
        assert gate.begun.wait(20)
        waiting = pool.submit(client.post, PATH, files=files(*[IMAGE] * 16))
        until(lambda: queued(client) == 16)
        found = client.post(PATH, files=files(*[IMAGE] * 5))
        assert (found.status_code, found.headers["retry-after"]) == (503, "1")
        assert found.json() == {"error": "16 wait already: try again"}
        gate.go.set()
        assert first.result().status_code == waiting.result().status_code == 200


def test_what_takes_too_long_is_given_up_and_never_computed(gate: Gate) -> None:
    app = application({"gate": gate.model}, batch=1, timeout=0.5)
    with TestClient(app) as client, ThreadPoolExecutor() as pool:
        asked = [pool.submit(client.post, PATH, files=files(IMAGE)) for _ in range(3)]
        for one in asked:
            assert one.result().status_code == 504
            assert one.result().json() == {"error": "there was no answer within 0.5 s"}
        assert queued(client) == 0
        gate.go.set()
        assert client.post(PATH, files=files(IMAGE)).status_code == 200
    assert gate.batches == [1, 1]  # the first, which had begun, and the last


def test_who_goes_away_is_forgotten_and_nobody_else_loses(gate: Gate) -> None:
    """Visitors who hang up while their images wait, among others who stay."""
    app = application({"gate": gate.model}, batch=8)
    with serving(app) as (address, _), ThreadPoolExecutor() as pool:
        assert gate.begun.wait(20)  # a server tries its models at the start
        stay = [pool.submit(httpx2.post, address + PATH, files=files(IMAGE)) for _ in range(3)]
        leaving = [threading.Thread(target=leave, args=(address,)) for _ in range(3)]
        for one in leaving:
            one.start()
        with httpx2.Client(base_url=address) as client:
            until(lambda: queued(client) >= 3)
            for one in leaving:
                one.join()
            until(lambda: metric(client, GONE) == 3)
            assert queued(client) == 3
            gate.go.set()
            assert [one.result().status_code for one in stay] == [200] * 3
    assert sum(gate.batches) == 1 + 7 + 8 + 3


GONE = 'ziggurat_requests_total{route="/api/predict",status="499"}'


def leave(address: str) -> None:
    """Ask, and do not wait for the answer."""
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(address + PATH, files=files(IMAGE), timeout=1)


def queued(client: Any) -> float:
    return metric(client, 'ziggurat_queue{model="gate"}')


def metric(client: Any, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def test_the_rest_of_a_request_that_a_bad_image_ended_is_not_decoded(
    models: dict[str, Explainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it, and it has no place any more."""
    begun: list[bytes] = []
    go = threading.Event()

    def read(file: bytes, name: str, most: int) -> Any:
        if file == b"bad":
            raise BadImage("it is bad")
        begun.append(file)
        assert go.wait(20)
        return picture()

    monkeypatch.setattr(service, "read_image", read)
    app = application(models)
    decoders = app.state.service.decoding.count
    with TestClient(app) as client:
        found = client.post(PATH, files=files(b"bad", *[IMAGE] * (decoders + 3)))
        assert (found.status_code, found.json()["error"].split(";")[0]) == (400, "it is bad")
        go.set()
        assert client.post(PATH, files=files(IMAGE)).status_code == 200
    assert len(begun) <= decoders + 1  # those that threads were at, and the last request's


def test_it_says_that_it_is_stuck_while_no_thread_can_decode(
    models: dict[str, Explainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def read(*_: object) -> Any:
        assert go.wait(20)
        return picture()

    monkeypatch.setattr(service, "read_image", read)
    app = application(models, timeout=0.2)
    with TestClient(app) as client:
        assert client.get("/healthz").json() == {"status": "ready"}
        count = app.state.service.decoding.count
        assert client.post(PATH, files=files(*[IMAGE] * count)).status_code == 504
        until(lambda: client.get("/healthz").json() == {"status": "stuck"})
        assert client.get("/healthz").status_code == 503
        go.set()
        until(lambda: client.get("/healthz").status_code == 200)
