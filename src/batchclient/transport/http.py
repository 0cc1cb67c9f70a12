"""Requests to one base URL: the way that each takes, and its exchange, whichever way.

A request goes directly (``direct``) on asyncio, if nobody looks on: no mock or instrumentation of
httpx or httpx2, no debug log of httpcore, no proxy, and no ``Http(backend=…)``. This is decided for
each request. Everything else goes over the library that is seen (``_httpx``), else over httpx, at
about five times the CPU.

Rules:
- A request takes the connection that was used last, or a new one. It never waits for a connection,
  and a connection carries one request at a time.
- A used connection that breaks before a byte of the reply, within 50 ms of the request or twice the
  time that its connecting took, was closed while idle: the request is sent again at once, once, on
  a new connection. That is no attempt, and costs no retry. A later break may have been over the
  request, which is the caller's to repeat.
- A request with a body has an id (``_ids``), unless it brings one. A reply to another request of
  the transport is refused, and ends its connection. So does a refused long request, of which the
  server may have read a part.
- What goes into a head was checked: no line break leaves.
- No redirect is followed, and there are no cookies.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.lowlevel

from batchclient._version import __version__
from batchclient.errors import ConfigError, ConnectionLost
from batchclient.transport import Timeouts, WireRequest, root_of
from batchclient.transport._addresses import check_headers
from batchclient.transport._body import Response
from batchclient.transport._exceptions import misdelivered
from batchclient.transport._httpx import HttpxConnection, HttpxWay
from batchclient.transport._ids import ID_HEADER, Mark, RequestIds
from batchclient.transport._libraries import library, library_seen
from batchclient.transport._proxies import proxy_for
from batchclient.transport._rules import LONG_BODY_BYTES, Place

if TYPE_CHECKING:
    import httpx
    import httpx2

    from batchclient.transport.connection import Connection
    from batchclient.transport.direct import DirectWay

    _Connection = Connection | HttpxConnection
    _Way = DirectWay | HttpxWay

__all__ = ["HttpTransport", "check_arguments"]

_DIRECT = "directly"
_NO_HEADERS: Mapping[str, str] = {}


def check_arguments(http_client: object, backend: str | None) -> str | None:
    """Refuse unusable arguments, and import what sends; return why no request goes directly, if so.

    Raises:
        ConfigError: ``http_client`` is closed, or the library of ``backend`` is missing.
    """
    if http_client is not None and getattr(http_client, "is_closed", False):
        raise ConfigError("http: the client is closed", field="http")
    try:
        library(backend)
        # A call imports nothing: after a fork the lock of a module may stay closed for ever.
        found = _direct_way()
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
        self._most_bytes = max_response_bytes
        self._backend = backend
        self._client = client
        self._trust_env = trust_env
        self._proxy = proxy_for(base_url, backend) if trust_env and client is None else None
        ours = {"content-type": "application/json", "accept": "*/*", "accept-encoding": "identity"}
        self._headers = {**ours, "user-agent": f"batchclient/{__version__}", **_checked(headers)}
        is_given = ID_HEADER in self._headers or (client is not None and ID_HEADER in client.headers)
        self._ids = None if is_given else RequestIds()
        self._may_go_directly = client is None and self._proxy is None and not isinstance(_direct_way(), str)
        self._ways: dict[str, _Way] = {}
        self._busy: set[_Connection] = set()
        self._closings = 0

    def __repr__(self) -> str:
        return f"<HttpTransport to {self._base_url}>"

    @property
    def under_way(self) -> int:
        """Requests that have no whole reply yet."""
        return len(self._busy)

    async def send(self, request: WireRequest, timeouts: Timeouts) -> Response:
        """Send a request; return once the headers of the response are there."""
        way, closings = self._way(), self._closings
        while way.idle:
            connection = way.idle.pop()
            if not connection.is_fit():
                await connection.aclose()
                continue
            try:
                return await self._send_on(way, connection, request, timeouts)
            except ConnectionLost:
                if not connection.was_closed_while_idle() or closings != self._closings:
                    raise
            break
        connection = await way.connect(timeouts.connect_s)
        if closings != self._closings:
            await connection.aclose()
            raise ConnectionLost("the client was closed")
        return await self._send_on(way, connection, request, timeouts)

    def _way(self) -> _Way:
        """Return the way of a request that is sent now."""
        name = self._backend or library_seen()
        if name is None:
            name = _DIRECT if self._may_go_directly and asyncio._get_running_loop() is not None else "httpx"
        way = self._ways.get(name)
        if way is None:
            way = self._ways[name] = self._make(name)
        return way

    def _make(self, name: str) -> _Way:
        place = Place(self._url, self._headers, self._tls, f" to {self._base_url}")
        direct = _direct_way()
        if name == _DIRECT and not isinstance(direct, str):
            return direct(place)
        http, _ = library(name)
        return HttpxWay(http, place, proxy=self._proxy, trust_env=self._trust_env, client=self._client)

    async def _send_on(self, way: _Way, connection: _Connection, request: WireRequest, timeouts: Timeouts) -> Response:
        is_long = len(request.body) > LONG_BODY_BYTES
        self._busy.add(connection)
        try:
            # No frame that may fail has the written head, with its key, in a variable.
            mark = self._start(way, connection, request, timeouts)
            headers = await connection.wait_for_head()
            told = headers.get(ID_HEADER)
            if mark is not None and told is not None and mark.is_anothers(told.encode()):
                raise misdelivered()
        except BaseException as error:
            if isinstance(error, ConnectionLost):
                error.while_sending = is_long and connection.was_writing()
            await self._release(way, connection, False)
            raise
        may_go_on = not (is_long and connection.status >= 400)
        release = partial(self._release, way, connection)
        return Response(connection, headers, release, mark, self._most_bytes, may_go_on=may_go_on)

    def _start(self, way: _Way, connection: _Connection, request: WireRequest, timeouts: Timeouts) -> Mark | None:
        """Write a request; return the mark of the id in it."""
        own = _checked(dict(request.headers)) if request.headers else _NO_HEADERS
        mark = None
        if request.body and self._ids is not None and ID_HEADER not in own:
            mark = self._ids.mark(request.body)
        connection.start(way.written(request, own, mark), request.body, timeouts)
        return mark

    async def _release(self, way: _Way, connection: _Connection, reuse: bool) -> None:  # noqa: FBT001
        """Take a connection back whose exchange has ended, or was broken off."""
        self._busy.discard(connection)
        if await connection.finish(reuse=reuse):
            way.idle.append(connection)
            while way.idle[0].is_late():
                await way.idle.popleft().aclose()

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
        self._closings += 1
        idle = [connection for way in self._ways.values() for connection in way.idle]
        for way in self._ways.values():
            way.idle.clear()
        for connection in [*idle, *self._busy]:
            await connection.aclose()
        # asyncio closes the sockets in the loop's next turn.
        await anyio.lowlevel.checkpoint()


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers by lower-case name.

    Raises:
        ConfigError: a line break in one would start another header, or it is not the caller's.
    """
    try:
        return check_headers(headers)
    except ValueError as error:
        raise ConfigError(f"headers: {error}", field="headers") from None


@cache
def _direct_way() -> type[DirectWay] | str:
    """Return the direct way's class, or why there is none: httptools cannot be imported."""
    try:
        from batchclient.transport.direct import DirectWay
    except ImportError as error:
        return str(error)
    return DirectWay
