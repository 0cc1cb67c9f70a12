"""Requests over httpx or its fork httpx2, where somebody is to see them, and over a user's client.

``http`` says when a request goes this way. Rules:
- Each request under way has an ``AsyncHTTPTransport`` of its own with one socket. httpx's pool
  costs time in proportion to its requests, and has lost places to requests that were cancelled
  while they connected (httpcore #1093, #830, #658). After a failure the transport is closed.
- The transports are the library's own, below ``httpx.AsyncClient``: its mocks and instrumentation
  look for requests there, or in the layer below. So there are no redirects, cookies or auth hooks.
- A user's own client is used as it is, with redirects off and explicit timeouts, and never closed.
- A socket that was closed while idle is treated as in ``direct``. A mock has no socket: what it
  raises is an attempt's failure.
- A byte beyond a reply's end closes the connection: httpcore would take it for the beginning of the
  next reply. So does a refused long request, of which the server may have read a part.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any

from batchclient.errors import BatchClientError, ClientClosed, ConnectFailed, ConnectionLost
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport._body import Response
from batchclient.transport._deadline import deadline, restart
from batchclient.transport._exceptions import cause_of, is_of, misdelivered, translated
from batchclient.transport._ids import ID_HEADER, Mark, RequestIds
from batchclient.transport._library import body_of
from batchclient.transport._rules import (
    CLOSED_WHILE_IDLE_S,
    IDLE_S,
    LONG_BODY_BYTES,
    REFUSED_WITHIN_S,
    SOCKET_OPTIONS,
    checked_headers,
)

__all__ = ["HttpxTransport"]


class HttpxTransport:
    """Sends requests to one base URL.

    Args:
        http: the module ``httpx`` or ``httpx2``.
        urls: gives the URL of a path, and of whether it is from the root.
        headers: sent with every request, by lower-case name.
        ids: of the requests; ``None``: the caller gives each an id, or wants none.
        tls: for ``https://``.
        proxy: the environment's, as a ``Proxy`` of the library's.
        trust_env: whether the library may read the environment.
        most_bytes: cap on a decoded body.
        address: of the server, behind "no connection", in errors.
        client: the user's own.
    """

    def __init__(
        self,
        http: Any,
        urls: Callable[[str, bool], str],
        headers: Mapping[str, str],
        *,
        ids: RequestIds | None,
        tls: ssl.SSLContext | None,
        proxy: Any,
        trust_env: bool,
        most_bytes: int,
        address: str,
        client: Any = None,
    ) -> None:
        self._http = http
        self._urls = cache(lambda path, from_root: http.URL(urls(path, from_root)))
        self._headers = headers
        self._ids = ids
        # Any context spares httpx its reading of certificates; this one trusts nobody.
        self._tls = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._proxy = proxy
        self._trust_env = trust_env
        self._most_bytes = most_bytes
        self._address = address
        self._client = client
        self._idle: list[tuple[Any, float]] = []
        """Transports whose sockets may be used again, and since when they are idle."""
        self.under_way = 0
        """Requests that have no whole reply yet."""

    async def send(self, request: WireRequest, timeouts: Timeouts) -> Response:
        """Send a request; return once the headers of the response are there."""
        if self._client is not None:
            return await self._send_by(self._client, request, timeouts, _Progress())
        transport, progress = await self._take_idle(), _Progress()
        try:
            return await self._send_by(transport or self._make(), request, timeouts, progress)
        except ConnectionLost:
            if transport is None or not progress.was_closed_while_idle():
                raise
        return await self._send_by(self._make(), request, timeouts, _Progress())

    async def _send_by(self, carrier: Any, request: WireRequest, timeouts: Timeouts, progress: _Progress) -> Response:
        """Send a request by a transport of the library's, or by the user's client."""
        is_long = len(request.body) > LONG_BODY_BYTES
        wire, mark = self._written(request, timeouts, progress)
        self.under_way += 1
        try:
            if self._client is not None:
                response = await carrier.send(wire, stream=True, follow_redirects=False)
            elif self._proxy is None:
                response = await carrier.handle_async_request(wire)
            else:
                # A tunnel is part of the connecting, for which httpcore takes the time of reading.
                async with deadline(timeouts.connect_s) as progress.connecting:
                    response = await carrier.handle_async_request(wire)
        except BaseException as error:
            self.under_way -= 1
            if self._client is None:
                await carrier.aclose()
            if isinstance(error, BatchClientError) or not self._is_networks(error):
                raise
            if self._client is not None and isinstance(error, RuntimeError) and self._client.is_closed:
                raise ClientClosed("the http_client given to BatchClient was closed") from error
            if isinstance(error, TimeoutError) and self._proxy is not None:
                raise ConnectFailed(f"no connection{self._address} within the connect timeout") from error
            ours = translated(error, self._address)
            if isinstance(ours, ConnectionLost):
                ours.while_sending = is_long and not progress.was_sent_for(REFUSED_WITHIN_S)
            raise ours from cause_of(error)
        is_refused = is_long and response.status_code >= 400
        release = partial(self._release, carrier, response, is_refused)
        next_piece = self._reader_of(response.stream)
        made = Response(response.status_code, response.headers, next_piece, release, mark, self._most_bytes)
        if mark is not None and mark.is_anothers_header(response.headers.get(ID_HEADER)):
            await release(False)
            raise misdelivered()
        return made

    def _is_networks(self, error: BaseException) -> bool:
        """Whether an error is the network's: all that a user's client raises, no mock's complaint."""
        if self._client is not None:
            return isinstance(error, Exception)
        return isinstance(error, OSError) or is_of(type(error), "HTTPError", "InvalidURL", "StreamError")

    def _written(self, request: WireRequest, timeouts: Timeouts, progress: _Progress) -> tuple[Any, Mark | None]:
        headers = {**self._headers, **checked_headers(dict(request.headers))}
        mark = None
        if self._ids is not None and request.body and (not request.headers or ID_HEADER not in headers):
            mark = self._ids.mark(request.body)
            headers[ID_HEADER] = mark.id
        seconds = {"connect": timeouts.connect_s, "read": timeouts.read_s, "write": timeouts.write_s}
        build, url = self._http.Request, self._urls(request.path, request.from_root)
        if self._client is not None:
            # It adds its own headers, cookies and query, as to every request; it may be httpx2's.
            build, url = self._client.build_request, str(url)
        wire = build(
            request.method,
            url,
            content=request.body or None,
            headers=headers,
            extensions={"timeout": {**seconds, "pool": timeouts.connect_s}, "trace": progress.trace},
        )
        if len(request.body) > LONG_BODY_BYTES and self._client is None:
            wire.stream = body_of(self._http)(request.body)
        return wire, mark

    async def _take_idle(self) -> Any:
        """Return the transport used last; close those that have been idle for too long."""
        now = time.monotonic()
        while self._idle and now - self._idle[0][1] > IDLE_S:
            await self._idle.pop(0)[0].aclose()
        return self._idle.pop()[0] if self._idle else None

    def _make(self) -> Any:
        limits = self._http.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_S)
        return self._http.AsyncHTTPTransport(
            verify=self._tls,
            limits=limits,
            trust_env=self._trust_env,
            proxy=self._proxy,
            socket_options=SOCKET_OPTIONS,
        )

    def _reader_of(self, stream: Any) -> Callable[[], Awaitable[bytes]]:
        # The stream itself spares each piece a generator of httpx's.
        pieces, received = aiter(stream), 0

        async def next_piece() -> bytes:
            nonlocal received
            try:
                async for piece in pieces:
                    if piece:
                        received += len(piece)
                        return bytes(piece)
            except BaseException as error:
                if isinstance(error, BatchClientError) or not self._is_networks(error):
                    raise
                if is_of(type(error), "StreamError"):
                    raise ConnectionLost("the response could not be read") from error
                raise translated(error, received=received) from cause_of(error)
            return b""

        return next_piece

    async def _release(self, carrier: Any, response: Any, is_refused: bool, is_good: bool) -> None:  # noqa: FBT001
        """Take a transport back whose exchange has ended; httpcore closes a half-read connection."""
        self.under_way -= 1
        spoilt = _close_if_spoilt(response.stream, is_refused)
        try:
            await response.aclose()
        except BaseException:
            is_good = False
            raise
        finally:
            if self._client is None and is_good and not spoilt:
                self._idle.append((carrier, time.monotonic()))
            elif self._client is None:
                await carrier.aclose()

    async def aclose(self) -> None:
        """Close every connection that is not the user's."""
        while self._idle:
            await self._idle.pop()[0].aclose()


class _Progress:
    """A request's progress by httpcore's word (its extension ``trace``)."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._has_connected = self._is_used = False
        self._sent_at: float | None = None
        self.connecting: Any = None
        """The deadline of a connection through a proxy."""

    async def trace(self, event: str, info: Any) -> None:
        """Note an event of httpcore's, such as ``http11.send_request_body.complete``."""
        if event.endswith("connect_tcp.started"):
            self._has_connected = True
        elif event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            self._is_used, self._began = not self._has_connected, time.monotonic()
            if self.connecting is not None:
                restart(self.connecting, None)
        elif event.endswith("send_request_body.complete"):
            self._sent_at = time.monotonic()
        elif event.endswith("receive_response_headers.complete"):
            self._is_used = False

    def was_closed_while_idle(self) -> bool:
        return self._is_used and time.monotonic() - self._began <= CLOSED_WHILE_IDLE_S

    def was_sent_for(self, seconds: float) -> bool:
        """Whether the whole request was written so many seconds ago."""
        return self._sent_at is not None and time.monotonic() - self._sent_at >= seconds


def _close_if_spoilt(source: Any, is_refused: bool) -> bool:  # noqa: FBT001
    """Have httpcore close a connection with a refused request, or with bytes beyond the reply.

    httpcore's connection is found behind the response's stream, a user's own client's, too.
    """
    while source is not None:
        connection = getattr(source, "_connection", None)
        if connection is not None:
            http: Any = getattr(connection, "_h11_state", None)
            spoilt = http is not None and (is_refused or bool(http.trailing_data[0]))
            if spoilt:
                # httpcore does not use a connection again that failed to send.
                http.send_failed()
            return spoilt
        source = getattr(source, "_httpcore_stream", None) or getattr(source, "_stream", None)
    return is_refused
