"""Who stands between a request of httpx's and its socket: a mock, or somebody who looks on.

A mock answers in the server's place (respx, pytest-httpx, ``MockLLM``, VCR.py). Instrumentation
looks on and passes the request along (OpenTelemetry). Both put a function of theirs in the place of
a library's, at any time: before batchclient is imported, or between two calls. So the question is
asked anew for each request, which takes 0.3 µs.
"""

from __future__ import annotations

import logging
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from batchclient.transport._exceptions import is_of
from batchclient.transport._library import library

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["Observers", "is_mock", "is_mocked"]

_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2"})
_HOMES = ("httpx._transports.default", "httpcore._async.connection_pool", "httpcore._async.connection")


class Observers:
    """Whether anybody looks on at the requests of httpx in this process."""

    def __init__(self) -> None:
        self._http, self._core = library(None)
        self._log = logging.getLogger("httpcore")
        self._known: tuple[Any, ...] = ()
        """Functions that were found to be the libraries' own."""

    def are_there(self) -> bool:
        """Whether a request over httpx would be seen by anybody but the server."""
        ways = (
            self._http.AsyncHTTPTransport.handle_async_request,
            self._core.AsyncConnectionPool.handle_async_request,
            self._core.AsyncHTTPConnection.handle_async_request,
        )
        if ways != self._known:
            if not all(map(_is_own, ways, _HOMES)):
                return True
            self._known = ways
        return self._log.isEnabledFor(logging.DEBUG)


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
    """Return whether a mock answers a backend's requests.

    A wrapper shows the module of the function that it wraps, so instrumentation is no mock.
    """
    http, core = library(backend)
    ways = (http.AsyncHTTPTransport.handle_async_request, core.AsyncConnectionPool.handle_async_request)
    homes = [getattr(way, "__globals__", {}).get("__name__", "").partition(".")[0] for way in ways]
    return not _LIBRARIES.issuperset(homes)


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
