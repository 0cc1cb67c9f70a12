"""The embedded server as an ASGI application.

Rules:
- The app is a thin driver of ``SimulatedServer``: bytes in, parts out, and a single timer.
- The app is plain ASGI. The routes are the server's, and a framework would outweigh the reply.
- A client that leaves ends its request at once, at any stage.
- There is one event loop in one thread; the only way in is HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from batchclient.simulator.open_request import Part
from batchclient.simulator.server import SimulatedServer

__all__ = ["SimulatorApp"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _Mailbox:
    """A request's parts on their way to the connection."""

    __slots__ = ("parts", "wake")

    def __init__(self) -> None:
        self.parts: deque[Part] = deque()
        self.wake: asyncio.Future[None] | None = None

    def put(self, part: Part) -> None:
        self.parts.append(part)
        self.ring()

    def ring(self) -> None:
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class SimulatorApp:
    """An ASGI application around a server.

    Args:
        server: its clock begins when the app is made; give it ``epoch_s=time.time()``.
    """

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        self._started_at = time.perf_counter()
        self._mailboxes: dict[int, _Mailbox] = {}
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"<SimulatorApp {self.server!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            raise NotImplementedError(f"the simulator speaks HTTP only, not {scope['type']}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive, self.server.max_body_bytes)
        if body is None:
            return
        self._requests += 1
        request_id = self._requests
        mailbox = self._mailboxes[request_id] = _Mailbox()
        try:
            self.server.receive(request_id, scope["method"], scope["path"], body, self._now(), scope["headers"])
            self._pump()
            if not mailbox.parts or not mailbox.parts[-1].last:
                await self._send_waiting(request_id, mailbox, receive, send)
            else:
                for part in mailbox.parts:
                    await _send_part(part, receive, send)
        finally:
            del self._mailboxes[request_id]

    async def _send_waiting(self, request_id: int, mailbox: _Mailbox, receive: Receive, send: Send) -> None:
        """Send parts as they come; stop the work when the client leaves."""
        gone = asyncio.ensure_future(_left(receive))
        gone.add_done_callback(lambda _: mailbox.ring())
        try:
            while True:
                while mailbox.parts:
                    part = mailbox.parts.popleft()
                    await _send_part(part, receive, send)
                    if part.last:
                        return
                if gone.done():
                    return
                mailbox.wake = asyncio.get_running_loop().create_future()
                await mailbox.wake
        finally:
            gone.cancel()
            self.server.disconnect(request_id, self._now())
            self._set_timer()

    # --- the server's time ---

    def _now(self) -> float:
        return time.perf_counter() - self._started_at

    def _pump(self) -> None:
        """Hand out the due parts, then set the timer for the next."""
        for part in self.server.poll(self._now()):
            mailbox = self._mailboxes.get(part.request_id)
            if mailbox is not None:
                mailbox.put(part)
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self.server.next_deadline()
        if self._timer is not None:
            if deadline == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer_at = deadline
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, deadline - self._now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()


async def _left(receive: Receive) -> None:
    """Return once the client has left. The rest of a body that is too long is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(receive: Receive, most_bytes: int) -> bytes | None:
    """Return the whole body, or more than ``most_bytes``; ``None``: the client left before."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    if not message.get("more_body"):
        return bytes(message["body"])
    pieces = [message["body"]]
    size = len(pieces[0])
    while message.get("more_body") and size <= most_bytes:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message["body"])
        size += len(message["body"])
    return b"".join(pieces)


async def _send_part(part: Part, receive: Receive, send: Send) -> None:
    if part.broken:
        _break_connection(receive)
        return
    if part.status:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in part.headers]
        if part.last:
            headers.append((b"content-length", str(len(part.body)).encode()))
        await send({"type": "http.response.start", "status": part.status, "headers": headers})
        if not part.body and not part.last:
            return
    await send({"type": "http.response.body", "body": part.body, "more_body": not part.last})


def _break_connection(receive: Receive) -> None:
    """Close the connection without a proper end.

    ASGI has no word for such an end. ``receive`` is a method of uvicorn's request, which holds the
    transport.
    """
    cycle = getattr(receive, "__self__", None)
    transport = getattr(cycle, "transport", None)
    if transport is None:
        raise RuntimeError("this ASGI server gives no way to break a connection; run the simulator under uvicorn")
    transport.close()
    # Else uvicorn would report an app that returned without a reply.
    cycle.disconnected = True  # type: ignore[union-attr]


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
