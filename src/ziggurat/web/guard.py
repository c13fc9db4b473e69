"""What every request passes: limits on what is sent, on places and on time; headers on answers.

    request -> too large? full? -> the application, until it answers, time is up or the visitor goes

A refusal does not wait for the rest of an upload: it is sent at once, a little more is read so that
the visitor sees it, and the connection is closed.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ziggurat.web.service import AGAIN, Service

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
OWN = {name for name, _ in RAW}
LINGER, LEFT = 2.0, 20_000_000  # seconds and bytes that are still read after a refusal
GONE = 499  # what proxies write down for a visitor who did not wait


def said(code: int, words: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error, in the one form they all have."""
    return JSONResponse({"error": words}, code, {**HEADERS, **(headers or {})})


class Exchange:
    """One request and its answer: how much was read of one, and sent of the other."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service) -> None:
        self.source, self.target, self.service = receive, send, service
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        self.length = int(length) if length.isdecimal() else 0
        self.has_body = bool(self.length) or "transfer-encoding" in headers
        self.head = scope["method"] == "HEAD"
        self.taken = 0
        self.whole = asyncio.Event()  # all of the request has been read
        self.left = asyncio.Event()  # the visitor has gone
        self.status = 0  # of the answer, once it has begun
        self.finished = False
        self.place = 0  # taken, of those that the service has

    @property
    def unread(self) -> bool:
        """Whether there is more to come."""
        return self.has_body and not self.whole.is_set()

    async def receive(self) -> Message:
        """More of the request; raises what is answered if it is too much."""
        if self.whole.is_set():
            await self.left.wait()
            return {"type": "http.disconnect"}
        message = await self.source()
        if message["type"] == "http.disconnect":
            self.left.set()
            return message
        self.taken += len(message.get("body", b""))
        if self.taken > self.service.limits.bytes:
            raise HTTPException(413, self.too_much)
        if not message.get("more_body"):
            self.whole.set()
        return message

    @property
    def too_much(self) -> str:
        """What is said of a request that is too large."""
        return f"more than {self.service.limits.bytes / 1e6:.3g} MB were sent"

    async def gone(self) -> None:
        """Until the visitor is."""
        await self.whole.wait()
        while (await self.source())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def send(self, message: Message) -> None:
        """Part of the answer; its end is held back while some of the request is unread."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [pair for pair in message.get("headers", ()) if pair[0] not in OWN] + RAW
            if self.unread or self.service.status == "stopping":
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.finished = not message.get("more_body")
            if self.finished:  # who has all of it may ask again at once
                self.leave()
            body = b"" if self.head else message.get("body", b"")
            more = self.unread or not self.finished
            message = {**message, "body": body, "more_body": more}
        await self.target(message)

    def enter(self) -> None:
        """Take a place."""
        self.place = 1
        self.service.came(1)

    def leave(self) -> None:
        """Give it back, if it was not yet."""
        self.service.came(-self.place)
        self.place = 0

    async def linger(self) -> None:
        """End an answer whose request was not read: a socket closed at once could take it back."""
        if not (self.finished and self.unread):
            return
        read = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while read < LEFT:
                    message = await self.source()
                    read += len(message.get("body", b""))
                    if not message.get("more_body"):  # the end, or a visitor who has gone
                        break
        await self.target({"type": "http.response.body", "body": b""})


class Guard:
    """Lets in as many requests for work as the service's limits say, for as long as they say.

    What asks for work is a POST.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.perf_counter()
        exchange = Exchange(scope, receive, send, self.service)
        if exchange.head:
            scope = {**scope, "method": "GET"}
        status = 500
        try:
            await self.admit(scope, exchange)
            status = exchange.status or GONE
        finally:
            self.service.metrics.request(scope, status, time.perf_counter() - began)
        await exchange.linger()
        return None

    async def admit(self, scope: Scope, exchange: Exchange) -> None:
        """Refuse it unread, or take it in."""
        works = scope["method"] == "POST"
        refusal = None
        if exchange.length > self.service.limits.bytes:
            refusal = said(413, exchange.too_much)
        elif works and self.service.inside >= self.service.limits.queue:
            words = f"{self.service.inside} requests are at work or wait: try again"
            refusal = said(503, words, AGAIN)
        if refusal:
            return await refusal(scope, exchange.receive, exchange.send)
        if works:
            exchange.enter()
        try:
            await self.attend(scope, exchange)
        finally:
            exchange.leave()

    async def attend(self, scope: Scope, exchange: Exchange) -> None:
        """Let the application answer; stop it when time is up or nobody waits for the answer."""
        seconds = self.service.limits.seconds
        work = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        gone = asyncio.ensure_future(exchange.gone())
        refusal = 503, "the server stops"  # if this is cancelled
        try:
            await asyncio.wait({work, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if exchange.unread:
                refusal = 408, f"the request did not come within {seconds:.3g} s"
            else:
                refusal = 504, f"there was no answer within {seconds:.3g} s"
        except asyncio.CancelledError:
            if work.done():
                raise
            self.service.unanswered += 1
        finally:
            for task in (gone, work):
                task.cancel()
            await asyncio.wait({gone, work})
        if not work.cancelled():
            with suppress(ClientDisconnect):
                work.result()  # raises what it raised
        elif not exchange.left.is_set() and not exchange.status:
            await said(*refusal)(scope, exchange.receive, exchange.send)
