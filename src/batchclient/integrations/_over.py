"""Shared requests over the HTTP transport that a user gave: ours speak httpx, and that transport may speak httpx2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx

__all__ = ["client_over"]


def client_over(transport: Any, library: Any) -> httpx.AsyncClient:
    """Return an httpx client that sends over a transport of ``library``."""
    return httpx.AsyncClient(transport=transport if library is httpx else _Translated(transport, library))


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
