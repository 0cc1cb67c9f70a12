"""A user's blocking transport as an async transport: an event loop sends the shared requests."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

__all__ = ["Threaded"]

_MOST_THREADS = 64
"""Requests of a transport at once. Each request holds a list, so 64 requests are many calls."""


class Threaded:
    """A blocking transport, request by request in a thread. Replies are read whole.

    Args:
        transport: a transport of ``library``.
        library: ``httpx`` or ``httpx2``.
    """

    def __init__(self, transport: Any, library: Any) -> None:
        self._transport = transport
        self._library = library
        self._threads = anyio.CapacityLimiter(_MOST_THREADS)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request."""
        # Without our trace: the trace is a coroutine's, and a blocking transport would call it
        # without an await.
        request.extensions = {name: value for name, value in request.extensions.items() if name == "timeout"}
        # A thread cannot be cancelled; a caller who gives up does not wait for the thread.
        return await anyio.to_thread.run_sync(self._send, request, abandon_on_cancel=True, limiter=self._threads)

    def _send(self, request: Any) -> Any:
        response = self._transport.handle_request(request)
        try:
            content = b"".join(response.stream)
        finally:
            response.close()
        # As a stream: the bytes may still be compressed.
        stream = self._library.ByteStream(content)
        return self._library.Response(response.status_code, headers=response.headers.raw, stream=stream)
