"""httpx, or its fork httpx2: equal names, other classes.

Rules:
- Only ``_aiohttp`` imports an HTTP library besides.
- A library is imported on demand: httpx2 may be missing, and needs no httpx.
- httpcore or httpcore2, the layer below, is imported at once. The library itself would import it
  with the first transport: 0.3 s inside somebody's first call.
- A library takes parts of a request only as its own classes, so batchclient's are made for each.
- A mock puts a function of its own in the place of a library's (respx, pytest-httpx, ``MockLLM``,
  aioresponses, VCR.py). Instrumentation that wraps a function shows the function's own module.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from batchclient.transport._body import Pieces

__all__ = ["Library", "is_mocked", "library"]


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
_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "httpx_aiohttp"})


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


def is_mocked(backend: str) -> bool:
    """Return whether a mock has taken the place of a backend's way to the network."""
    made = library(backend)
    ways = (made.http.AsyncHTTPTransport.handle_async_request, made.core.AsyncConnectionPool.handle_async_request)
    if backend == "aiohttp":
        from batchclient.transport import _aiohttp

        ways = _aiohttp.ways()
    homes = [getattr(way, "__globals__", {}).get("__name__", "").partition(".")[0] for way in ways]
    return not _LIBRARIES.issuperset(homes)


class _Headers:
    """Headers whose values are not shown; the libraries' own hide the values of two names only."""

    def __repr__(self) -> str:
        # A class of the library's makes it a mapping.
        return f"<headers {', '.join(self)}>"  # type: ignore[arg-type]
