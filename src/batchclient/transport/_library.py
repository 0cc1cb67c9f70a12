"""httpx, or its fork httpx2: equal names, other classes.

Rules:
- A library is imported on demand: httpx2 may be missing, and needs no httpx.
- A library takes parts of a request only as its own classes, so they are made for each.
- httpcore or httpcore2, the layer below, is imported at once. The library itself would import it
  with the first transport: 0.3 s inside somebody's first call.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

__all__ = ["Library", "library"]


class Library:
    """One of the two libraries.

    Args:
        http: the module ``httpx`` or ``httpx2``.
        core: the module ``httpcore`` or ``httpcore2``.
    """

    def __init__(self, http: Any, core: Any) -> None:
        self.http = http
        self.core = core
        self.Headers: Any = type("Headers", (_Headers, http.Headers), {})
        self.Body: Any = type("Body", (_Body, http.AsyncByteStream), {})

    def __repr__(self) -> str:
        return f"<Library {self.http.__name__}>"


@cache
def library(backend: str | None) -> Library:
    """Return the library by which a backend sends.

    Raises:
        ImportError: the library is missing.
    """
    if backend == "httpx2":
        import httpcore2
        import httpx2

        return Library(httpx2, httpcore2)
    import httpcore
    import httpx

    return Library(httpx, httpcore)


class _Body:
    """A body as one piece.

    No generator, as the libraries' own is: trio complains of a generator that was begun and not
    ended, as when the server refuses the rest.
    """

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


class _Headers:
    """Headers whose values are not shown; the libraries' own hide the values of two names only."""

    def __repr__(self) -> str:
        # A class of the library's makes it a mapping.
        return f"<headers {', '.join(self)}>"  # type: ignore[arg-type]
