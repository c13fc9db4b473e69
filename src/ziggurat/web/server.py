"""uvicorn, as a service wants it: impatient with slow visitors, and patient when it is stopped.

    SIGTERM -> not ready, no new connections -> all that was asked is answered -> the end

A connection that rests is kept a moment longer: a request may be on its way.
"""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ziggurat.web.guard import HEADERS
from ziggurat.web.service import Service

HEAD = 10.0  # seconds for a request's headers to come
STALLED = 30_000  # milliseconds after which a visitor who takes nothing is cut off
KEPT = 75  # seconds that a connection at rest is kept: longer than proxies do (60), who close first
FAREWELL = 0.5  # seconds that a connection at rest is kept when the server stops


class Connection(H11Protocol):
    """One visitor's, closed if the headers of a request are too slow to come."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: nothing is taken from us for so long
            own = transport.get_extra_info("socket")
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED)
        self.hurry()

    def data_received(self, data: bytes) -> None:
        """More of a request; time runs while its headers are not whole."""
        super().data_received(data)
        self.hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        super().connection_lost(exc)
        self.relax()

    @property
    def resting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def hurry(self) -> None:
        """Start the clock if headers are missing, stop it if not."""
        if not self.resting:
            self.relax()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(HEAD, self.give_up)

    def relax(self) -> None:
        """Stop the clock."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def give_up(self) -> None:
        """Close, unless a request has come."""
        self.deadline = None
        if self.resting:
            self.transport.close()

    def shutdown(self) -> None:
        """The server stops."""
        self.loop.call_later(FAREWELL if self.resting else 0, self.leave)

    def leave(self) -> None:
        """Close, now or with the answer."""
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, told in the form of all errors."""
        body = json.dumps({"error": msg}).encode()
        said = {**HEADERS, "Content-Type": "application/json", "Connection": "close"}
        said["Content-Length"] = str(len(body))
        answer = h11.Response(status_code=400, headers=list(said.items()), reason=b"Bad Request")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Serves an application of ours until SIGINT or SIGTERM."""

    def __init__(self, app: FastAPI, grace: int, up: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            app, http=Connection, ws="none", log_level="warning", access_log=False,
            log_config=None,  # its own would close the handlers of others
            server_header=False, timeout_keep_alive=KEPT, timeout_graceful_shutdown=grace,
        )  # fmt: skip
        super().__init__(config)
        self.service: Service = app.state.service
        self.service.status = "starting"
        self.warming: asyncio.Task[None] | None = None
        self.up = up  # told once its models were tried

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it is asked to stop; raises what keeps a model from running."""
        super().run(sockets)
        if self.warming is not None and self.warming.done() and not self.warming.cancelled():
            self.warming.result()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Being asked to stop is no failure: uvicorn would raise the signal again at the end."""
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer from now on; models are tried meanwhile."""
        await super().startup(sockets)
        self.warming = asyncio.create_task(self.service.warm())
        self.warming.add_done_callback(self.warmed)

    def warmed(self, done: asyncio.Task[None]) -> None:
        """A model that cannot be run serves nobody."""
        if done.cancelled():
            return
        if done.exception() is not None:
            self.should_exit = True
        elif self.up is not None:
            self.up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked, and nothing else."""
        self.service.status = "stopping"
        self.service.told()
        await super().shutdown(sockets)
        if cut := list(self.server_state.tasks):  # those that there was no time for, to say so
            await asyncio.wait(cut, timeout=1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C or SIGTERM: not ready from now on."""
        self.service.status = "stopping"
        super().handle_exit(sig, frame)
