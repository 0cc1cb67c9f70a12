"""Who stands between a request of httpx's (or httpx2's) and its socket: a mock, an observer.

A mock answers in the server's place (respx, pytest-httpx, ``MockLLM``, VCR.py). Instrumentation
looks on and passes the request along (OpenTelemetry). Both put a function of theirs in the place of
a library's, at any time: before batchclient is imported, or between two calls. So the question is
asked anew for each request, which takes about a microsecond.
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


class Observers:
    """Whether anybody looks on at the requests of httpx, or of httpx2 where the process has it."""

    def __init__(self) -> None:
        self._looks = {name: _Look(name) for name in ("httpx", "httpx2")}

    def library_seen(self) -> str | None:
        """Return the library whose requests are seen by somebody but the server; ``None``: neither."""
        for name, look in self._looks.items():
            if name in sys.modules and look.sees():
                return name
        return None


class _Look:
    """A look at one library."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._log = logging.getLogger(name.replace("httpx", "httpcore"))
        self._known: tuple[Any, ...] = ()
        """Functions that were found to be the libraries' own."""

    def sees(self) -> bool:
        http, core = library(self._name)
        ways = (
            http.AsyncHTTPTransport.handle_async_request,
            core.AsyncConnectionPool.handle_async_request,
            core.AsyncHTTPConnection.handle_async_request,
        )
        if ways != self._known:
            homes = (f"{http.__name__}._transports.default", *_homes_below(core))
            if not all(map(_is_own, ways, homes)):
                return True
            self._known = ways
        return self._log.isEnabledFor(logging.DEBUG)


def _homes_below(core: Any) -> tuple[str, str]:
    return f"{core.__name__}._async.connection_pool", f"{core.__name__}._async.connection"


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
    for name in ("httpx", "httpx2") if backend is None else (backend,):
        if name in sys.modules or backend is not None:
            http, core = library(name)
            ways = (http.AsyncHTTPTransport.handle_async_request, core.AsyncConnectionPool.handle_async_request)
            homes = [getattr(way, "__globals__", {}).get("__name__", "").partition(".")[0] for way in ways]
            if not _LIBRARIES.issuperset(homes):
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
