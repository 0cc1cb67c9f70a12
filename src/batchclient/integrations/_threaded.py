"""A blocking transport of a user's, as an async one: an event loop sends the shared requests."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread

__all__ = ["Threaded"]

_MOST_THREADS = 64
"""Requests of one transport at once; each holds a list, so these are many calls."""


class Threaded:
    """A blocking transport, request by request in a thread. Replies are read whole.

    Args:
        transport: one of ``library``'s.
        library: ``httpx`` or ``httpx2``.
    """

    def __init__(self, transport: Any, library: Any) -> None:
        self._transport = transport
        self._library = library
        self._threads = anyio.CapacityLimiter(_MOST_THREADS)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request."""
        # Not our trace: it is a coroutine's, and this transport would call it without awaiting it.
        request.extensions = {name: value for name, value in request.extensions.items() if name == "timeout"}
        # A thread cannot be cancelled; who gives up does not wait for it.
        return await anyio.to_thread.run_sync(self._send, request, abandon_on_cancel=True, limiter=self._threads)

    def _send(self, request: Any) -> Any:
        response = self._transport.handle_request(request)
        try:
            content = b"".join(response.stream)
        finally:
            response.close()
        # As a stream: these bytes may still be compressed.
        stream = self._library.ByteStream(content)
        return self._library.Response(response.status_code, headers=response.headers.raw, stream=stream)
