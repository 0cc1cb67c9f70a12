"""httpx, and its fork httpx2: equal names, other classes. The only module that imports them.

Somebody may stand between a request of theirs and its socket. A mock answers in the server's place
(respx, pytest-httpx, ``MockLLM``, VCR.py); instrumentation looks on and passes the request along
(OpenTelemetry). Both put a function of theirs in the place of a library's, at any time: before
batchclient is imported, or between two calls. So ``library_seen`` is asked for each request, which
takes about a microsecond.
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from operator import is_
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["is_mock", "is_mocked", "is_of", "library", "library_seen"]

_BELOW = {"httpx": "httpcore", "httpx2": "httpcore2"}
_LOGS = {name: logging.getLogger(core) for name, core in _BELOW.items()}
_own: dict[str, tuple[Any, ...]] = {}
"""By library: the functions that carry its requests, once they were found to be its own."""


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


def is_of(kind: type, *names: str) -> bool:
    """Whether a class, or a base of the class, is one of the named classes of httpx or httpx2."""
    return any(base.__name__ in names and base.__module__.partition(".")[0] in _BELOW for base in kind.__mro__)


def library_seen() -> str | None:
    """Return the library whose requests are seen by somebody but the server; ``None``: neither."""
    for name, log in _LOGS.items():
        if name in sys.modules:
            ways = _ways(name)
            known = _own.get(name)
            # By identity: wrapt's wrappers say that they are equal to what they wrap.
            if known is None or not all(map(is_, ways, known)):
                if not all(map(_is_own, ways, _homes(name))):
                    return name
                _own[name] = ways
            if log.isEnabledFor(logging.DEBUG):
                return name
    return None


def _ways(name: str) -> tuple[Any, Any, Any]:
    """Return the functions by which a library's requests go, from the top."""
    http, core = library(name)
    return (
        http.AsyncHTTPTransport.handle_async_request,
        core.AsyncConnectionPool.handle_async_request,
        core.AsyncHTTPConnection.handle_async_request,
    )


def _homes(name: str) -> tuple[str, str, str]:
    core = _BELOW[name]
    return f"{name}._transports.default", f"{core}._async.connection_pool", f"{core}._async.connection"


def _is_own(way: Any, home: str) -> bool:
    """Whether a function is a plain one of its library's module, and wraps none."""
    module = sys.modules.get(home)
    return (
        type(way) is FunctionType
        and module is not None
        and way.__globals__ is vars(module)
        and not hasattr(way, "__wrapped__")
    )


def is_mocked(backend: str | None) -> bool:
    """Return whether a mock answers a backend's requests; ``None``: those of httpx or of httpx2.

    A wrapper shows the module of the function that it wraps, so instrumentation is no mock.
    """
    for name in [name for name in _BELOW if name in sys.modules] if backend is None else [backend]:
        for way in _ways(name)[:2]:
            home = getattr(way, "__globals__", {}).get("__name__", "").partition(".")[0]
            if home not in {*_BELOW, *_BELOW.values()}:
                return True
    return False


def is_mock(client: httpx.AsyncClient | httpx2.AsyncClient) -> bool:
    """Return whether a user's client sends to a mock or to an application in this process."""
    is_of_httpx2 = any(base.__module__.partition(".")[0] == "httpx2" for base in type(client).__mro__)
    if is_mocked("httpx2" if is_of_httpx2 else "httpx"):
        return True
    carriers = [getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values()]
    # A wrapper as ours for threads, or one that tries again, has what it wraps.
    carriers += [getattr(carrier, "_transport", None) for carrier in carriers]
    return any(
        is_of(type(carrier), "MockTransport", "ASGITransport", "WSGITransport")
        or type(carrier).__module__.startswith("batchclient.testing.")
        for carrier in carriers
    )
