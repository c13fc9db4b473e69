"""What ``/api/predict`` is sent: image files in a form, or base64 in JSON."""

import asyncio
import base64
import binascii
import re
import string
from email.message import Message
from typing import Annotated, Any, NamedTuple

from fastapi import HTTPException, Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from starlette.datastructures import FormData, UploadFile

TOP = 10  # classes that one request may ask for
IMAGES = 16  # that one request may hold
FORM, JSON = "multipart/form-data", "application/json"
SHOWN = 80  # characters of what came, in an error
PARTS = 1000  # commas, quotes, brackets of a question in JSON: 16 images have some dozens

BLANKS = string.whitespace.encode()
DOT = (  # eight grey pixels a side, for who tries the API
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNsYIAAJgaKGAAmCACQtTEKkQAAAABJRU5E"
    "rkJggg=="
)
TEXT = {
    "type": "string", "examples": [DOT],
    "description": "an image's file in base64, or as a data URL",
}  # fmt: skip
TEXTS = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": IMAGES}
Encoded = Annotated[
    list[str],
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    Field(min_length=1, max_length=IMAGES),
    WithJsonSchema({"anyOf": [TEXT, TEXTS]}),
]


class Wishes(BaseModel):
    """What may be asked for beside an image."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="a checkpoint of `/api/about`; else the first")
    top: int = Field(5, ge=1, le=TOP, description="how many of the likeliest classes")


class Question(Wishes):
    """Predictions asked for in JSON."""

    image: Encoded


class Asked(NamedTuple):
    """A request for predictions."""

    images: list[bytes]  # files
    model: str | None
    top: int


def documented() -> dict[str, Any]:
    """Both kinds, for OpenAPI."""
    form = Wishes.model_json_schema()
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    many = {"type": "array", "items": file, "minItems": 1, "maxItems": IMAGES}
    form["properties"]["image"] = {**many, "description": "one or several image files"}
    form["properties"]["model"] = {
        "type": "string", "description": form["properties"]["model"]["description"],
    }  # fmt: skip
    form |= {"required": ["image"], "title": "Files"}
    content = {FORM: {"schema": form}, JSON: {"schema": Question.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def question(request: Request) -> Asked:
    """The images and wishes of a request."""
    kind = Message()
    kind["content-type"] = request.headers.get("content-type", "none/none")
    match kind.get_content_type():
        case "multipart/form-data":
            async with request.form(max_files=IMAGES, max_fields=TOP) as form:
                return await of_form(form)
        case "application/json":
            body = b"".join([part async for part in request.stream()])  # .body() would be kept
            return await asyncio.to_thread(of_json, body)  # it may be long
    raise HTTPException(415, f"send image files as {FORM}, or base64 in {JSON}")


async def of_form(form: FormData) -> Asked:
    """Files under ``image``, wishes under their names."""
    files, words = [], {}
    for name, value in form.multi_items():
        if name != "image":
            words[name] = value
        elif isinstance(value, UploadFile):
            files.append(value)
        else:
            raise HTTPException(422, "image: a file is expected, got text (curl: -F image=@FILE)")
    try:
        wishes = Wishes.model_validate(words)
    except ValidationError as error:
        raise HTTPException(422, first(error.errors()[0])) from None
    if not files:
        raise HTTPException(422, "image: Field required")
    return Asked([await file.read() for file in files], wishes.model, wishes.top)


def of_json(body: bytes) -> Asked:
    """``{"image": "…"}``, or a list of them.

    What has more parts than a question can have is not parsed: of 20 MB it would make millions of
    objects, and an error for each of them.
    """
    if any(body.count(mark) > PARTS for mark in (b",", b'"', b"[", b"{")):
        raise HTTPException(422, f"at most {IMAGES} images and what they are asked are expected")
    try:
        found = Question.model_validate_json(body)
    except ValidationError as error:
        wrong = error.errors()[0]
        code = 400 if wrong["type"] == "json_invalid" else 422
        raise HTTPException(code, first(wrong)) from None
    count = len(found.image)
    images = [from_base64(text, position(i, count)) for i, text in enumerate(found.image)]
    return Asked(images, found.model, found.top)


def from_base64(text: str, name: str) -> bytes:
    """A file's bytes; line breaks are passed over."""
    try:
        plain = re.sub(r"^data:[^,]*,", "", text).encode("ascii")
        return base64.b64decode(plain.translate(None, BLANKS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, f"{name}: no base64 ({error})") from None


def position(index: int, count: int) -> str:
    """An image's name in an error."""
    return "this file" if count == 1 else f"image {index + 1} of {count}"


def first(wrong: Any, skip: int = 0) -> str:
    """What is wrong with a field, in one line."""
    place = ".".join(map(str, wrong["loc"][skip:]))
    return f"{shown(place)}: {wrong['msg']}" if place else f"{wrong['msg']}"


def shown(text: str) -> str:
    """What came, as much as fits into a line."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
