"""One application: a page at ``/`` over an API under ``/api``.

    images              -> POST /api/predict -> classes
    image, methods      -> POST /api/explain -> classes, heat maps, GradCAT's paths
                        -> POST /api/figure  -> the same as one picture

Each request carries its image and is forgotten with its answer: there is nothing of one visitor
that another could see.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from ziggurat import __version__
from ziggurat.engine.explain import Explainer
from ziggurat.web.answers import Error, Health, Limits, Predictions
from ziggurat.web.guard import Guard, said
from ziggurat.web.metrics import KIND
from ziggurat.web.questions import IMAGES, TOP, documented, first, shown
from ziggurat.web.service import Service

PAGE = Path(__file__).parent / "page"
Answers = dict[int | str, dict[str, Any]]  # by status, as OpenAPI has them
ASKED = {
    400: "the request or an image in it cannot be read",
    404: "no such checkpoint",
    408: "the request came too slowly",
    413: "too many bytes or pixels",
    422: "another field is missing or wrong",
    503: "too many are being answered: try again after `Retry-After` seconds",
    504: "there was no answer in time",
}


def application(
    models: Mapping[str, Explainer],
    max_mb: float = 20,
    max_megapixels: float = 64,
    batch: int = 16,
    queue: int = 64,
    timeout: float = 30,
) -> FastAPI:
    """The page and its API for these models, by the names that visitors choose from."""
    limits = Limits(
        bytes=round(max_mb * 1e6), pixels=round(max_megapixels * 1e6), top=TOP, images=IMAGES,
        batch=batch, queue=queue, seconds=timeout,
    )  # fmt: skip
    service = Service(models, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Ziggurat",
        description="What a model sees in an image, and where. Nothing sent is kept.",
        version=__version__,
        docs_url=None,  # they fetch scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(Guard, service=service)
    app.add_exception_handler(StarletteHTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(UnicodeError, garbled)
    app.add_exception_handler(Exception, failed)
    add_routes(app, service)
    return app


def add_routes(app: FastAPI, service: Service) -> None:
    """All there is, with every answer that it may give."""
    asked: Answers = {code: {"model": Error, "description": why} for code, why in ASKED.items()}
    either = asked | {415: {"model": Error, "description": "neither a form nor JSON"}}
    drawn: Answers = {200: {"content": {"image/png": {}}, "description": "the figure"}}
    given: Answers = {
        200: {"content": {"image/*": {}}, "description": "the image's file"},
        "4XX": {"model": Error, "description": "404: no such example"},
    }
    health: Answers = {200: {"model": Health}, 503: {"model": Health, "description": "not now"}}
    text: Answers = {200: {"content": {KIND: {}}, "description": "Prometheus' text format"}}
    plain: Any = {"response_class": Response}
    app.get("/healthz", **plain, responses=health)(service.health)
    app.get("/metrics", **plain, responses=text)(service.measured)
    app.get("/api/about")(service.about)
    app.get("/api/examples/{name}", **plain, responses=given)(service.example)
    predicted: Any = {"response_model": Predictions, "openapi_extra": documented()}
    app.post("/api/predict", **predicted, responses=either)(service.predict)
    app.post("/api/explain", responses=asked)(service.explain)
    app.post("/api/figure", **plain, responses=drawn | asked)(service.figure)
    for file in PAGE.iterdir():
        app.add_route("/" if file.name == "index.html" else f"/{file.name}", sent(file))


def sent(file: Path) -> Callable[[Request], Response]:
    """A file of the page."""
    return lambda request: FileResponse(file)


async def refused(request: Request, error: Exception) -> Response:
    """A request that was answered with an error on purpose."""
    assert isinstance(error, StarletteHTTPException)
    if request.scope.get("route") is None and error.status_code == 404:
        words = f"there is nothing at {shown(request.url.path)}: see {request.app.openapi_url}"
        return said(404, words)
    if error.status_code == 405:
        taken = (error.headers or {}).get("Allow", "")
        words = f"{shown(request.method)} is not taken here: {taken} is"
        return said(405, words, error.headers)
    return said(error.status_code, str(error.detail), error.headers)


async def invalid(request: Request, error: Exception) -> Response:
    """A request whose fields are not what they should be: the first of them."""
    assert isinstance(error, RequestValidationError)
    return said(422, first(error.errors()[0], skip=1))


async def garbled(request: Request, error: Exception) -> Response:
    """A form whose texts are not what its charset says, or of a charset that reads nothing."""
    return said(400, "the form's texts cannot be read: send them in UTF-8")


async def failed(request: Request, error: Exception) -> Response:
    """A mistake of ours."""
    return said(500, "something went wrong on the server; its log says what")
