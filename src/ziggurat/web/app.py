"""One application: a page at ``/`` over an API under ``/api``.

    image, checkpoint, methods -> POST /api/explain -> classes, heat maps, GradCAT's paths
                               -> POST /api/figure  -> the same as one picture

Each request carries its image and is forgotten with its answer: there is nothing of one visitor
that another could see. Images are decoded, and models run, in threads, one at a time a model.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, File, Form, HTTPException, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from PIL import Image
from starlette.exceptions import HTTPException as StarletteHTTPException

from ziggurat import __version__
from ziggurat.data.images import BadImage, TooLarge, read_image
from ziggurat.engine.explain import Explained, Explainer
from ziggurat.explain import METHODS, reason
from ziggurat.explain.figures import TITLES, figure
from ziggurat.web.answers import (
    About,
    Answer,
    Error,
    ExampleImage,
    Limits,
    Method,
    Model,
    answer,
    as_png,
)
from ziggurat.web.examples import examples
from ziggurat.web.guard import HEADERS, Guard

PAGE = Path(__file__).parent / "page"
Answers = dict[int | str, dict[str, Any]]  # by status, as OpenAPI has them
MOST = 10  # classes that one request may ask for
KINDS = "send a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"

Upload = Annotated[UploadFile, File(description="the image's file; its name is not looked at")]
Called = Annotated[str, Form(description="a checkpoint of `/api/about`")]
Ways = Annotated[
    list[str] | None, Form(description="how to explain; the model's best if not given")
]
Numbers = Annotated[
    list[int] | None,
    Form(description="classes to explain, by number; the likeliest if not given", max_length=MOST),
]
Top = Annotated[int, Form(ge=1, le=MOST, description="how many of the likeliest classes")]


class Service:
    """What the routes do, for the models and limits a server was started with."""

    def __init__(self, models: Mapping[str, Explainer], max_bytes: int, max_pixels: int) -> None:
        self.models = dict(models)
        self.limits = Limits(bytes=max_bytes, pixels=max_pixels, top=MOST)
        self.turns = {name: CapacityLimiter(1) for name in models}
        self.decoders = CapacityLimiter(os.cpu_count() or 1)  # they take the memory

    async def about(self) -> About:
        """Checkpoints, methods, examples and limits."""
        return About(
            version=__version__,
            limits=self.limits,
            models=[
                Model(name=name, classes=list(model.classes), methods=list(model.methods))
                for name, model in self.models.items()
            ],
            methods=[Method(name=n, title=TITLES[n], about=about) for n, about in METHODS.items()],
            examples=[ExampleImage(name=n, credit=one.credit) for n, one in examples().items()],
        )

    async def example(self, name: str) -> Response:
        """An image to try."""
        if name not in examples():
            raise HTTPException(404, f"no example is called {name!r}")
        found = examples()[name]
        return Response(found.contents, media_type=found.media_type)

    async def explain(
        self, image: Upload, model: Called, method: Ways = None, classes: Numbers = None,
        top: Top = 5,
    ) -> Answer:  # fmt: skip
        """The likeliest classes of an image, and where the model sees them by each method."""
        found = await self.explained(image, model, method, classes, top)
        return await to_thread.run_sync(answer, model, found)

    async def figure(
        self, image: Upload, model: Called, method: Ways = None, classes: Numbers = None,
        top: Top = 5,
    ) -> Response:  # fmt: skip
        """The finished picture by one method, to keep."""
        if method and len(method) > 1:
            raise HTTPException(422, f"a figure is of one method, got {', '.join(method)}")
        (found,) = (await self.explained(image, model, method, classes, top)).values()
        file = await to_thread.run_sync(lambda: as_png(figure(found)))
        kept = {"Content-Disposition": 'attachment; filename="explanation.png"'}
        return Response(file, media_type="image/png", headers=kept)

    async def explained(
        self,
        image: UploadFile,
        name: str,
        methods: Sequence[str] | None,
        classes: Sequence[int] | None,
        top: int,
    ) -> dict[str, Explained]:
        """An explanation a method."""
        model = self.model(name)
        chosen = list(dict.fromkeys(methods or model.methods[:1]))
        check(model, name, chosen, classes or ())
        picture = await to_thread.run_sync(self.decode, image, limiter=self.decoders)
        work = partial(run, model, picture, chosen, classes, min(top, len(model.classes)))
        return await to_thread.run_sync(work, limiter=self.turns[name])

    def model(self, name: str) -> Explainer:
        """A checkpoint by its name."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise HTTPException(404, f"no checkpoint is called {name!r}: there are {known}")
        return self.models[name]

    def decode(self, image: UploadFile) -> Image.Image:
        """Pixels of a file, if they are few enough."""
        try:
            return read_image(image.file, "this file", self.limits.pixels)
        except TooLarge as error:
            raise HTTPException(413, str(error)) from None
        except BadImage as error:
            raise HTTPException(400, f"{error}; {KINDS}") from None


def check(model: Explainer, name: str, methods: Sequence[str], classes: Sequence[int]) -> None:
    """Methods and classes that the model does not have."""
    for method in methods:
        if method not in METHODS:
            raise HTTPException(422, f"no method is called {method!r}: {', '.join(METHODS)}")
        if method not in model.methods:
            raise HTTPException(422, f"{reason(model.model, method)}")
    for number in classes:
        if not 0 <= number < len(model.classes):
            most = len(model.classes) - 1
            raise HTTPException(422, f"{name} has classes 0 to {most}, got {number}")


def run(
    model: Explainer,
    image: Image.Image,
    methods: Sequence[str],
    classes: Sequence[int] | None,
    top: int,
) -> dict[str, Explained]:
    """All methods, one after the other."""
    return {method: model(image, method, classes, top) for method in methods}


def application(
    models: Mapping[str, Explainer], max_mb: float = 20, max_megapixels: float = 64
) -> FastAPI:
    """The page and its API for these models, by the names that visitors choose from."""
    service = Service(models, round(max_mb * 1e6), round(max_megapixels * 1e6))
    app = FastAPI(
        title="Ziggurat",
        description="What a model sees in an image, and where. Nothing sent is kept.",
        version=__version__,
        docs_url=None,  # they fetch scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.add_middleware(Guard, max_bytes=service.limits.bytes)
    app.add_exception_handler(StarletteHTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, failed)
    asked: Answers = {
        400: {"model": Error, "description": "the image cannot be read"},
        404: {"model": Error, "description": "no such checkpoint"},
        413: {"model": Error, "description": "too many bytes or pixels"},
        422: {"model": Error, "description": "another field is missing or wrong"},
    }
    drawn: Answers = {200: {"content": {"image/png": {}}, "description": "the figure"}}
    given: Answers = {
        200: {"content": {"image/*": {}}, "description": "the image's file"},
        "4XX": {"model": Error, "description": "404: no such example"},
    }
    app.get("/api/about")(service.about)
    app.get("/api/examples/{name}", response_class=Response, responses=given)(service.example)
    app.post("/api/explain", responses=asked)(service.explain)
    app.post("/api/figure", response_class=Response, responses=drawn | asked)(service.figure)
    for file in PAGE.iterdir():
        app.add_route("/" if file.name == "index.html" else f"/{file.name}", sent(file))
    return app


def sent(file: Path) -> Callable[[Request], Response]:
    """A file of the page."""
    return lambda request: FileResponse(file)


def said(code: int, words: str) -> JSONResponse:
    """An error, in the one form they all have."""
    return JSONResponse({"error": words}, code, HEADERS)


async def refused(request: Request, error: Exception) -> Response:
    """A request that was answered with an error on purpose."""
    assert isinstance(error, StarletteHTTPException)
    return said(error.status_code, str(error.detail))


async def invalid(request: Request, error: Exception) -> Response:
    """A request whose fields are not what they should be: the first of them."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return said(422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")


async def failed(request: Request, error: Exception) -> Response:
    """A mistake of ours."""
    return said(500, "something went wrong on the server; its log says what")
