"""httpx, or its fork httpx2: equal names, other classes.

Rules:
- Only ``_aiohttp`` imports an HTTP library besides.
- A library is imported on demand: httpx2 may be missing, and needs no httpx.
- httpcore or httpcore2, the layer below, is imported at once. The library itself would import it
  with the first transport: 0.3 s inside somebody's first call.
- A library takes parts of a request only as its own classes, so batchclient's are made for each.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from batchclient.transport._body import Pieces

__all__ = ["Library", "library"]


class Library:
    """One of the two libraries.

    Args:
        http: the module ``httpx`` or ``httpx2``.
        core: the module ``httpcore`` or ``httpcore2``, whose exceptions ``http`` understands.
    """

    def __init__(self, http: Any, core: Any) -> None:
        self.http = http
        self.core = core
        self.Headers: Any = type("Headers", (_Headers, http.Headers), {})
        self.Pieces: Any = type("Pieces", (Pieces, http.AsyncByteStream), {})

    def __repr__(self) -> str:
        return f"<Library {self.http.__name__}>"


_made = cache(Library)


def library(backend: str) -> Library:
    """Return the library by which a backend sends; for aiohttp, the httpx above it.

    Raises:
        ImportError: the library is missing, or aiohttp is.
    """
    if backend == "httpx2":
        import httpcore2
        import httpx2

        return _made(httpx2, httpcore2)
    import httpcore
    import httpx

    if backend == "aiohttp":
        import httpx_aiohttp  # noqa: F401  # for ``_aiohttp``, which is imported later
    return _made(httpx, httpcore)


class _Headers:
    """Headers whose values are not shown; the libraries' own hide the values of two names only."""

    def __repr__(self) -> str:
        # A class of the library's makes it a mapping.
        return f"<headers {', '.join(self)}>"  # type: ignore[arg-type]
