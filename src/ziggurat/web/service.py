"""What the routes do, for the models and limits a server was started with.

Images are decoded in as many threads as torch has, two at least. Each model has one thread for
predictions, which takes those of many requests at once, and one for explanations. Whatever is given
up before its turn, by its visitor or because its time is over, is dropped.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeVar

import torch
from fastapi import File, Form, HTTPException, Request, Response, UploadFile
from fastapi.responses import JSONResponse
from torch import Tensor

from ziggurat import __version__
from ziggurat.data.images import BadImage, TooLarge, read_image
from ziggurat.engine.explain import Explained, Explainer
from ziggurat.explain import METHODS, reason
from ziggurat.explain.figures import TITLES, figure
from ziggurat.web.answers import (
    About,
    Answer,
    ExampleImage,
    Limits,
    Method,
    Model,
    answer,
    as_png,
)
from ziggurat.web.batching import Batcher, Full
from ziggurat.web.examples import examples
from ziggurat.web.metrics import KIND, Metrics
from ziggurat.web.questions import TOP, position, question, shown

KINDS = "send a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
AGAIN = {"Retry-After": "1"}  # seconds

Upload = Annotated[UploadFile, File(description="the image's file; its name is not looked at")]
Called = Annotated[str, Form(min_length=1, description="a checkpoint of `/api/about`")]
NAMES = {"type": "string", "enum": list(METHODS)}
Ways = Annotated[
    list[str],
    Form(
        default_factory=list,
        description="how to explain; the model's best if not given",
        json_schema_extra={"items": NAMES},
    ),
]
Way = Annotated[
    list[str],
    Form(
        default_factory=list,
        description="how to explain, one; the model's best if not given",
        json_schema_extra={"items": NAMES, "maxItems": 1},
    ),
]
Numbers = Annotated[
    list[int],
    Form(
        default_factory=list,
        description="classes to explain, by number; the likeliest if not given",
        max_length=TOP,
    ),
]
Top = Annotated[int, Form(ge=1, le=TOP, description="how many of the likeliest classes")]
Found = TypeVar("Found")


class Computed(NamedTuple):
    """One image's row of a batch."""

    probabilities: Tensor  # (classes,)
    began: float
    seconds: float
    batch: int


class Crew:
    """Threads for what cannot be interrupted."""

    def __init__(self, count: int, name: str) -> None:
        self.count, self.pool = count, ThreadPoolExecutor(count, name)
        self.since: dict[int, float] = {}  # when threads that are at work began

    def begun(self, work: Callable[..., Found], *words: object) -> Found:
        """Do it, in one of the threads."""
        own = threading.get_ident()
        self.since[own] = time.monotonic()
        try:
            return work(*words)
        finally:
            del self.since[own]

    async def do(self, work: Callable[..., Found], *words: object) -> Found:
        """Have it done when a thread is free, unless it is given up before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, self.begun, work, *words)

    def stuck(self, seconds: float) -> bool:
        """Whether all threads have been at one thing for longer than that."""
        now = time.monotonic()
        late = [now - since > seconds for since in list(self.since.values())]
        return len(late) == self.count and all(late)


class Served:
    """One checkpoint with its two threads."""

    coming = 0  # images for it that are being decoded

    def __init__(self, name: str, model: Explainer, limits: Limits, metrics: Metrics) -> None:
        self.name, self.model, self.limits = name, model, limits
        most = max(limits.queue, limits.images, limits.batch)  # a whole request fits
        self.batcher: Batcher[Tensor, Computed] = Batcher(
            self.compute, limits.batch, most, lambda: self.coming > 0
        )
        self.explaining = Crew(1, "explain")
        self.waiting, self.counting = metrics.waiting.labels(name), threading.Lock()
        self.sizes, self.times = metrics.batches.labels(name), metrics.model.labels(name)

    def about(self) -> Model:
        """What can be asked of it."""
        return Model(
            name=self.name,
            classes=list(self.model.classes),
            methods=list(self.model.methods),
            backend=self.model.classifier.runner.name,
        )

    def compute(self, pixels: list[Tensor]) -> list[Computed]:
        """A batch."""
        self.counted()
        began = time.perf_counter()
        rows = self.model.classifier.probabilities(pixels)
        seconds = time.perf_counter() - began
        self.sizes.observe(len(pixels))
        self.times.observe(seconds)
        return [Computed(row, began, seconds, len(pixels)) for row in rows]

    async def predict(self, pixels: Sequence[Tensor]) -> list[Computed]:
        """Each image's row, when its turn has come."""
        try:
            turns = self.batcher.submit(pixels)
        except Full as full:
            raise HTTPException(503, f"{full}: try again", AGAIN) from None
        self.counted()
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, turns))
        except asyncio.CancelledError:
            self.counted()
            raise

    def counted(self) -> None:
        """Tell how many wait, from whichever thread."""
        with self.counting:
            self.waiting.set(len(self.batcher))

    async def warm(self) -> None:
        """The first calls, which can take long, before anybody waits for them.

        A whole batch, and one less, which is made of what a backend has for fewer images.
        """
        blank = torch.zeros(self.model.classifier.shape, dtype=torch.uint8)
        for count in sorted({1, max(1, self.limits.batch - 1), self.limits.batch}):
            await self.predict([blank] * count)


class Service:
    """What the routes do."""

    status: Literal["starting", "ready", "stopping"] = "ready"
    inside = 0  # requests for work
    unanswered = 0  # of them, when a server had to stop

    def __init__(self, models: Mapping[str, Explainer], limits: Limits) -> None:
        self.limits, self.metrics = limits, Metrics(__version__)
        self.models = {
            name: Served(name, model, limits, self.metrics) for name, model in models.items()
        }
        cores = torch.get_num_threads()  # that this process is to use
        self.decoding = Crew(max(2, cores), "decode")  # its threads take the memory

    async def warm(self) -> None:
        """Ready, if it was starting, once each model has been."""
        await asyncio.gather(*(model.warm() for model in self.models.values()))
        if self.status == "starting":
            self.status = "ready"
        self.told()

    def told(self) -> None:
        """Tell whether requests should be sent."""
        self.metrics.ready.set(self.status == "ready")

    def came(self, count: int) -> None:
        """More requests for work, or fewer."""
        self.inside += count
        self.metrics.inside.set(self.inside)

    def close(self) -> None:
        """End the models' threads."""
        for model in self.models.values():
            model.batcher.close(1)

    async def health(self) -> Response:
        """200 if requests should be sent here."""
        stuck = self.status == "ready" and self.decoding.stuck(self.limits.seconds)
        status = "stuck" if stuck else self.status
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    async def measured(self) -> Response:
        """What Prometheus asks for."""
        self.told()
        return Response(self.metrics.text(), media_type=KIND)

    async def about(self) -> About:
        """Checkpoints, methods, examples and limits."""
        return About(
            version=__version__,
            limits=self.limits,
            models=[one.about() for one in self.models.values()],
            methods=[Method(name=n, title=TITLES[n], about=about) for n, about in METHODS.items()],
            examples=[ExampleImage(name=n, credit=one.credit) for n, one in examples().items()],
        )

    async def example(self, name: str) -> Response:
        """An image to try."""
        if name not in examples():
            raise HTTPException(404, f"no example is called {shown(name)!r}")
        found = examples()[name]
        return Response(found.contents, media_type=found.media_type)

    async def predict(self, request: Request) -> Response:
        """The likeliest classes of one or several images."""
        asked = await question(request)
        one = self.model(next(iter(self.models)) if asked.model is None else asked.model)
        names = [position(i, len(asked.images)) for i in range(len(asked.images))]
        read = partial(self.prepared, one.model)
        both = zip(asked.images, names, strict=True)
        decoded = [asyncio.ensure_future(self.aside(read, *each)) for each in both]
        one.coming += len(names)
        try:
            pixels = await asyncio.gather(*decoded)
        finally:
            one.coming -= len(names)
            for each in decoded:  # of a request that one bad image ended
                each.cancel()
        asked.images.clear()  # they are large
        began = time.perf_counter()
        rows = await one.predict(pixels)
        likeliest = [one.model.classifier.guesses(row.probabilities, asked.top) for row in rows]
        found = {  # Predictions, not checked again: this is for every request
            "model": one.name,
            "images": [{"top": [guess._asdict() for guess in top]} for top in likeliest],
            "timing": {
                "waiting": round(1e3 * max(row.began - began for row in rows), 3),
                "model": round(1e3 * max(row.seconds for row in rows), 3),
                "batch": max(row.batch for row in rows),
            },
        }
        return Response(
            json.dumps(found, ensure_ascii=False, allow_nan=False), media_type="application/json"
        )

    async def explain(
        self, image: Upload, model: Called, method: Ways, classes: Numbers, top: Top = 5
    ) -> Answer:
        """The likeliest classes of an image, and where the model sees them by each method."""
        found = await self.explained(image, model, method, classes, top)
        return await self.aside(answer, model, found)

    async def figure(
        self, image: Upload, model: Called, method: Way, classes: Numbers, top: Top = 5
    ) -> Response:
        """The finished picture by one method, to keep."""
        if len(method) > 1:
            raise HTTPException(422, f"a figure is of one method, got {shown(', '.join(method))}")
        (found,) = (await self.explained(image, model, method, classes, top)).values()
        file = await self.aside(lambda: as_png(figure(found)))
        kept = {"Content-Disposition": 'attachment; filename="explanation.png"'}
        return Response(file, media_type="image/png", headers=kept)

    async def explained(
        self,
        image: UploadFile,
        name: str,
        methods: Sequence[str],
        classes: Sequence[int],
        top: int,
    ) -> dict[str, Explained]:
        """An explanation a method."""
        one = self.model(name)
        chosen = list(dict.fromkeys(methods or one.model.methods[:1]))
        check(one.model, name, chosen, classes)
        pixels = await self.aside(self.prepared, one.model, await image.read(), "this file")
        most = min(top, len(one.model.classes))
        return await one.explaining.do(run, one.model, pixels, chosen, classes, most)

    def model(self, name: str) -> Served:
        """A checkpoint by its name."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise HTTPException(404, f"no checkpoint is called {shown(name)!r}: there are {known}")
        return self.models[name]

    async def aside(self, work: Callable[..., Found], *words: object) -> Found:
        """Do something in one of the threads that decode."""
        with refusing():
            return await self.decoding.do(work, *words)

    def prepared(self, model: Explainer, file: bytes, name: str) -> Tensor:
        """What a model sees of a file, if its pixels are few enough."""
        return model.classifier.pixels(read_image(file, name, self.limits.pixels), name)


@contextmanager
def refusing() -> Iterator[None]:
    """Answer an image that cannot be taken."""
    try:
        yield
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    except BadImage as error:
        raise HTTPException(400, f"{error}; {KINDS}") from None


def check(model: Explainer, name: str, methods: Sequence[str], classes: Sequence[int]) -> None:
    """Methods and classes that the model does not have."""
    for method in methods:
        if method not in METHODS:
            known = ", ".join(METHODS)
            raise HTTPException(422, f"no method is called {shown(method)!r}: {known}")
        if method not in model.methods:
            raise HTTPException(422, f"{reason(model.model, method)}")
    for number in classes:
        if not 0 <= number < len(model.classes):
            most = len(model.classes) - 1
            raise HTTPException(422, f"{name} has classes 0 to {most}, got {number}")


def run(
    model: Explainer,
    pixels: Tensor,
    methods: Sequence[str],
    classes: Sequence[int],
    top: int,
) -> dict[str, Explained]:
    """All methods, one after the other."""
    return {method: model.seen(pixels, method, classes or None, top) for method in methods}
