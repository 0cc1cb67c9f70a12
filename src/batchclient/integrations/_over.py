"""Shared requests over the HTTP transport that a user gave: ours are async and speak httpx, and that transport may block or speak httpx2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import httpx

__all__ = ["client_over", "client_over_threads"]

_MOST_THREADS = 64
"""Requests of one transport at once; each holds a list, so these are many calls."""


def client_over(transport: Any, library: Any) -> httpx.AsyncClient:
    """Return an httpx client that sends over a transport of ``library``."""
    return httpx.AsyncClient(transport=transport if library is httpx else _Translated(transport, library))


def client_over_threads(transport: Any, library: Any) -> httpx.AsyncClient:
    """Return an httpx client that sends over a blocking transport of ``library``, in threads."""
    return httpx.AsyncClient(transport=_Translated(_Threaded(transport, library), library))


class _Threaded:
    """A blocking transport, request by request in a thread. A reply is read whole before it is handed on."""

    def __init__(self, transport: Any, library: Any) -> None:
        self._transport = transport
        self._library = library
        self._threads = anyio.CapacityLimiter(_MOST_THREADS)

    async def handle_async_request(self, request: Any) -> Any:
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


class _Translated(httpx.AsyncBaseTransport):
    """A transport of a library with httpx's API, as one of httpx's."""

    def __init__(self, transport: Any, library: Any) -> None:
        self._transport = transport
        self._library = library

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        library = self._library
        extensions = {name: value for name, value in request.extensions.items() if name == "timeout"}
        theirs = library.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=request.content,
            extensions=extensions,
        )
        try:
            response = await self._transport.handle_async_request(theirs)
        except library.HTTPError as error:
            raise self._translate(error) from error
        return httpx.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=_Stream(response.stream, self._translate, library),
        )

    def _translate(self, error: Exception) -> Exception:
        """The exception of the same name."""
        kind: Any = getattr(httpx, type(error).__name__, httpx.ReadError)
        return kind(str(error))  # type: ignore[no-any-return]


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: Any, translate: Any, library: Any) -> None:
        self._stream = stream
        self._translate = translate
        self._library = library

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except self._library.HTTPError as error:
            raise self._translate(error) from error

    async def aclose(self) -> None:
        await self._stream.aclose()
