"""What the API answers: these models are its documentation, too."""

import base64
import io
from collections.abc import Mapping
from typing import Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, Field

from ziggurat.engine.explain import Explained


class Error(BaseModel):
    """Why a request was not answered."""

    error: str = Field(description="one line for a person")


class Health(BaseModel):
    """Whether requests should be sent here; that there is an answer says that it lives."""

    status: Literal["starting", "ready", "stuck", "stopping"] = Field(
        description="stuck: images take all threads that decode longer than a request may"
    )


class Limits(BaseModel):
    """What is taken."""

    bytes: int = Field(description="of a whole request")
    pixels: int = Field(description="of an image, before it is scaled down")
    top: int = Field(description="classes that one request may ask for")
    images: int = Field(description="that one request for predictions may hold")
    batch: int = Field(description="images that a model is given at once")
    queue: int = Field(description="requests that are at work or wait; others are sent away")
    seconds: float = Field(description="from a request's first byte to its answer")


class Model(BaseModel):
    """A checkpoint the server was started with."""

    name: str
    classes: list[str] = Field(description="by their numbers, from 0")
    methods: list[str] = Field(description="that explain this model, the best first")
    backend: str = Field(description="that runs its predictions")


class Method(BaseModel):
    """A way to explain."""

    name: str = Field(description="what is asked for")
    title: str = Field(description="for a person")
    about: str


class ExampleImage(BaseModel):
    """An image to try, at ``/api/examples/NAME``."""

    name: str
    credit: str


class About(BaseModel):
    """All that can be asked for."""

    version: str
    limits: Limits
    models: list[Model]
    methods: list[Method]
    examples: list[ExampleImage]


class Guess(BaseModel):
    """A class and how likely it is."""

    name: str
    probability: float


class Prediction(BaseModel):
    """What one image shows."""

    top: list[Guess] = Field(description="the likeliest classes, the likeliest first")


class Timing(BaseModel):
    """Where the time went, in milliseconds; of several images the longest."""

    waiting: float = Field(description="for the model, after the image was decoded")
    model: float = Field(description="for the whole batch that the image was in")
    batch: int = Field(description="images in it, also of other requests")


class Predictions(BaseModel):
    """What a model says of images."""

    model: str
    images: list[Prediction] = Field(description="one an image, in the order sent")
    timing: Timing


class Step(BaseModel):
    """One step of GradCAT's way from the root of the tree to a leaf."""

    level: int = Field(description="1: the root's four children")
    box: tuple[float, float, float, float] = Field(
        description="x0, y0, x1, y1 of the child taken, as fractions of the image"
    )
    values: tuple[float, float, float, float] = Field(
        description="of the children: top left, top right, bottom left, bottom right"
    )
    child: int = Field(description="which of the four was taken, 0 to 3")


class ClassMap(BaseModel):
    """Where a method sees one class."""

    number: int = Field(description="of the class")
    name: str
    probability: float
    heat: str = Field(
        description="a grey PNG of the image's size as a data URL: black is 0, white 1"
    )
    path: list[Step] = Field(description="of GradCAT; empty for other methods")


class ByMethod(BaseModel):
    """The explained classes by one method."""

    method: str
    classes: list[ClassMap]


class Answer(BaseModel):
    """What a model sees in an image."""

    model: str
    width: int
    height: int
    image: str = Field(description="what the model saw of it, scaled and cut: a PNG as a data URL")
    top: list[Guess] = Field(description="the likeliest classes, the likeliest first")
    explanations: list[ByMethod] = Field(description="one a method, in the order asked for")


def answer(model: str, explained: Mapping[str, Explained]) -> Answer:
    """All that was found in one image, as sent."""
    first = next(iter(explained.values()))
    return Answer(
        model=model,
        width=first.image.width,
        height=first.image.height,
        image=as_url(first.image),
        top=[Guess(name=name, probability=share) for name, share in first.top],
        explanations=[
            ByMethod(method=method, classes=maps(one)) for method, one in explained.items()
        ],
    )


def maps(explained: Explained) -> list[ClassMap]:
    """One a class."""
    names, found = explained.names, explained.found
    heats = np.rint(found.maps.cpu().numpy() * 255).astype(np.uint8)  # (classes, H, W)
    paths = found.paths or ((),) * len(names)
    return [
        ClassMap(
            number=number,
            name=name,
            probability=share,
            heat=as_url(Image.fromarray(heat)),
            path=[Step(**node._asdict()) for node in path],
        )
        for number, name, share, heat, path in zip(
            found.classes, names, explained.probabilities, heats, paths, strict=True
        )
    ]


def as_url(image: Image.Image) -> str:
    """A picture as part of an answer."""
    return f"data:image/png;base64,{base64.b64encode(as_png(image)).decode()}"


def as_png(image: Image.Image) -> bytes:
    """A picture as a file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
