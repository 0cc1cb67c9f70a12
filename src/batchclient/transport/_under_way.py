"""A request's progress by the HTTP library's word: whether it connected, when all was written."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

from batchclient.transport._deadline import deadline, restart

__all__ = ["AIOHTTP_EVENTS", "UnderWay"]

_current: ContextVar[UnderWay | None] = ContextVar("_current", default=None)
"""The request being sent: aiohttp's traces know only the task they run in."""


class UnderWay:
    """The progress of one request."""

    __slots__ = ("_sent_at", "_since", "bound", "fresh", "silence_s")

    def __init__(self, silence_s: float | None) -> None:
        self.silence_s = silence_s
        self.bound: Any = None
        """A deadline for the reply's headers, where the sockets are not batchclient's."""

    def watch(self) -> None:
        """Begin the watch, before the request is sent."""
        self.fresh = False
        self._sent_at: float | None = None
        self._since = time.monotonic()
        _current.set(self)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._since

    def was_sent_for(self, seconds: float) -> bool:
        """Whether the whole request was written so many seconds ago."""
        return self._sent_at is not None and time.monotonic() - self._sent_at >= seconds

    def sent(self) -> None:
        """Note that the last part was written."""
        self._sent_at = time.monotonic()

    def wrote(self) -> None:
        """Note that a part was written: silence begins."""
        if self.bound is not None and self.silence_s is not None:
            restart(self.bound, self.silence_s)

    async def within_silence(self, sending: Awaitable[Any]) -> Any:
        """Wait for the reply's headers; ``TimeoutError`` at ``silence_s`` after the last write."""
        try:
            async with deadline(None) as self.bound:
                return await sending
        finally:
            # A part may still be written, though the reply has come.
            self.bound = None

    async def trace(self, event: str, info: object) -> None:
        """Httpcore's trace extension."""
        # (``connection.…``, or ``socks.…`` behind a SOCKS proxy.)
        if event.endswith(".connect_tcp.started"):
            self.fresh = True
        elif event.endswith(("send_request_headers.complete", "send_request_body.complete")):
            if event.endswith("body.complete"):
                self.sent()
            self.wrote()


async def _on_connecting(session: object, context: object, params: object) -> None:  # noqa: ARG001  # aiohttp's signature
    current = _current.get()
    if current is not None:
        current.fresh = True


async def _on_written(session: object, context: object, params: object) -> None:  # noqa: ARG001  # aiohttp's signature
    current = _current.get()
    if current is not None:
        current.wrote()


AIOHTTP_EVENTS = {
    "on_connection_create_start": _on_connecting,
    "on_request_headers_sent": _on_written,
}
