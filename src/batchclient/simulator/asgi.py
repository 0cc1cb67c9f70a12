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
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from batchclient.simulator.mailboxes import Mailbox, Mailboxes
from batchclient.simulator.open_request import Part
from batchclient.simulator.server import SimulatedServer

__all__ = ["SimulatorApp"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class SimulatorApp:
    """An ASGI application around a server.

    Args:
        server: its clock begins when the app is made; give it ``epoch_s=time.time()``.
    """

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        started_at = time.perf_counter()
        self._mailboxes = Mailboxes(server, lambda: time.perf_counter() - started_at)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"<SimulatorApp {self.server!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"the simulator speaks HTTP only, not {scope['type']}")
        body = await _read_body(receive, self.server.max_body_bytes)
        if body is None:
            return
        mailbox = self._mailboxes.receive(scope["method"], scope["path"], body, scope["headers"])
        try:
            self._deliver()
            if mailbox.parts and mailbox.parts[-1].last:
                for part in mailbox.parts:
                    await _send_part(part, receive, send)
            else:
                await self._send_waiting(mailbox, receive, send)
        finally:
            self._mailboxes.close(mailbox)
            self._set_timer()

    async def _send_waiting(self, mailbox: Mailbox, receive: Receive, send: Send) -> None:
        """Send parts as they come; stop when the client leaves."""
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
                sleep = asyncio.get_running_loop().create_future()
                mailbox.wake = lambda sleep=sleep: sleep.done() or sleep.set_result(None)
                await sleep
                mailbox.wake = None
        finally:
            gone.cancel()

    def _deliver(self) -> None:
        """Hand out the due parts, then set the timer for the next."""
        self._mailboxes.deliver()
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
            delay_s = max(0.0, deadline - self._mailboxes.clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._deliver()


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
