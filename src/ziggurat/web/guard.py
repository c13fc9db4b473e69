"""What every request passes: a limit on what is sent, and headers on what is answered."""

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """Stops a request as soon as it is too large, whether or not it said so beforehand."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        said = Headers(scope=scope).get("content-length", "")
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            self.check(int(said) if said.isdecimal() else 0)
            message = await receive()
            taken += len(message.get("body", b""))
            self.check(taken)
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, counted, with_headers)

    def check(self, size: int) -> None:
        """Refuse what is too large."""
        if size > self.max_bytes:
            raise HTTPException(413, f"more than {self.max_bytes / 1e6:.3g} MB were sent")
