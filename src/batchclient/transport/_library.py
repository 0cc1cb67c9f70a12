"""httpx, or its fork httpx2: equal names, other classes. The only module that imports them."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

__all__ = ["body_of", "library"]


@cache
def library(backend: str | None) -> tuple[Any, Any]:
    """Return the library by which a backend sends, and the one below it (httpcore or httpcore2).

    The library itself would import that one with the first transport: 0.3 s inside somebody's first
    call.

    Raises:
        ImportError: the library is missing.
    """
    if backend == "httpx2":
        import httpcore2
        import httpx2

        return httpx2, httpcore2
    import httpcore
    import httpx

    return httpx, httpcore


@cache
def body_of(http: Any) -> type[Any]:
    """Return the class of a request's body of one piece.

    No generator, as the libraries' own is: trio complains of a generator that was begun and not
    ended, as when the server refuses the rest.
    """
    return type("Body", (_Body, http.AsyncByteStream), {})


class _Body:
    def __init__(self, content: bytes) -> None:
        self._left = self._content = content

    def __aiter__(self) -> Self:
        self._left = self._content
        return self

    async def __anext__(self) -> bytes:
        piece, self._left = self._left, b""
        if not piece:
            raise StopAsyncIteration
        return piece
