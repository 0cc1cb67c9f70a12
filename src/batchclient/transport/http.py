"""The way of a request to a server: directly, or over httpx where somebody is to see it.

A request goes directly (``direct``) on asyncio, if nobody looks on: no mock or instrumentation of
httpx or httpx2, no debug log of httpcore, no proxy, and no ``Http(backend=…)``. This is decided for
each request. Everything else goes over the library that is seen (``_httpx``), else over httpx, at
about five times the CPU.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchclient.errors import ConfigError
from batchclient.transport import Timeouts, WireRequest, WireResponse, root_of
from batchclient.transport._exceptions import is_of
from batchclient.transport._httpx import HttpxTransport
from batchclient.transport._ids import ID_HEADER, RequestIds
from batchclient.transport._library import library
from batchclient.transport._observers import Observers
from batchclient.transport._proxies import proxy_for
from batchclient.transport._rules import default_headers

if TYPE_CHECKING:
    import httpx
    import httpx2

    from batchclient.transport.direct import DirectTransport

__all__ = ["HttpTransport", "check_arguments"]

_DIRECT = "directly"


def check_arguments(http_client: object, backend: str | None) -> str | None:
    """Refuse unusable arguments, and import what sends; return why no request goes directly, if so.

    Raises:
        ConfigError: ``http_client`` is no open ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, or
            the library of ``backend`` is missing.
    """
    if http_client is not None and not is_of(type(http_client), "AsyncClient"):
        kind = type(http_client).__name__
        raise ConfigError(
            f"http_client is an httpx.AsyncClient or httpx2.AsyncClient, not a {kind}", field="http_client"
        )
    if http_client is not None and getattr(http_client, "is_closed", False):
        raise ConfigError("the http_client is closed", field="http_client")
    try:
        library(backend)
        # A call imports nothing: after a fork the lock of a module may stay closed for ever.
        found = _direct_transport()
    except ImportError as error:
        message = f"http.backend: {backend!r} needs the extra batchclient[{backend}]"
        raise ConfigError(message, field="http.backend") from error
    return found if isinstance(found, str) else None


class HttpTransport:
    """Sends requests to one base URL.

    Args:
        base_url: without a trailing slash; a query is sent with every request.
        headers: sent with every request.
        max_response_bytes: cap on a decoded body.
        client: the user's own client, of httpx or of httpx2; it carries all requests.
        backend: ``"httpx"`` or ``"httpx2"`` (the extra of that name) carries all requests;
            ``None``: it carries those that somebody is to see.
        trust_env: whether proxies and certificates may come from the environment.

    Raises:
        ConfigError: the environment names an unusable proxy, or a header has a line break in it.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        max_response_bytes: int,
        client: httpx.AsyncClient | httpx2.AsyncClient | None = None,
        backend: str | None = None,
        trust_env: bool = False,
    ) -> None:
        self._base_url, question, query = base_url.partition("?")
        self._query = question + query
        self._backend = backend
        self._client = client
        self._trust_env = trust_env
        self._proxy = proxy_for(base_url, backend) if trust_env and client is None else None
        self._headers = default_headers(headers)
        is_given = ID_HEADER in self._headers or (client is not None and ID_HEADER in client.headers)
        self._both: dict[str, Any] = {
            "ids": None if is_given else RequestIds(),
            "most_bytes": max_response_bytes,
            "address": f" to {self._base_url}",
        }
        self._ways: dict[str, DirectTransport | HttpxTransport] = {}
        is_free = client is None and self._proxy is None and backend is None
        found = _direct_transport() if is_free else ""
        self._make_direct = None if isinstance(found, str) else found
        self._observers = Observers()

    def __repr__(self) -> str:
        return f"<HttpTransport to {self._base_url}>"

    @property
    def under_way(self) -> int:
        """Requests that have no whole reply yet."""
        return sum(way.under_way for way in self._ways.values())

    async def send(self, request: WireRequest, timeouts: Timeouts) -> WireResponse:
        """Send a request; return once the headers of the response are there."""
        name = self._backend
        if name is None:
            name = self._observers.library_seen()
        if name is None:
            may_go_directly = self._make_direct is not None and asyncio._get_running_loop() is not None
            name = _DIRECT if may_go_directly else "httpx"
        way = self._ways.get(name)
        if way is None:
            way = self._ways[name] = self._make(name)
        return await way.send(request, timeouts)

    def _make(self, name: str) -> DirectTransport | HttpxTransport:
        if name == _DIRECT and self._make_direct is not None:
            return self._make_direct(self._url, self._headers, tls=self._tls, **self._both)
        http, _ = library(name)
        return HttpxTransport(
            http, self._url, self._headers,
            tls=self._tls, proxy=self._proxy, trust_env=self._trust_env, client=self._client, **self._both,
        )  # fmt: skip

    def _url(self, path: str, from_root: bool) -> str:  # noqa: FBT001  # given by place
        return (root_of(self._base_url) if from_root else self._base_url) + path + self._query

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        """What the server's certificate is judged by; ``None``: the server speaks plain HTTP."""
        # Reading the certificate store takes some 20 ms.
        if not self._base_url.startswith("https:"):
            return None
        certificates, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        try:
            if self._trust_env and folder and not certificates:
                next(Path(folder).iterdir(), None)
            http, _ = library(self._backend)
            made: ssl.SSLContext = http.create_ssl_context(trust_env=self._trust_env)
        except OSError as error:
            variable = "SSL_CERT_FILE" if certificates else "SSL_CERT_DIR"
            why = f"trust_env: {variable} of the environment leads to no certificates"
            raise ConfigError(why, field="trust_env") from error
        return made

    async def aclose(self) -> None:
        """Close every connection that is not the user's."""
        for way in self._ways.values():
            await way.aclose()


@cache
def _direct_transport() -> type[DirectTransport] | str:
    """Return the direct way's class, or why there is none: httptools cannot be imported."""
    try:
        from batchclient.transport.direct import DirectTransport
    except ImportError as error:
        return str(error)
    return DirectTransport
