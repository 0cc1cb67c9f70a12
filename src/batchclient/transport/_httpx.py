"""The way over httpx or httpx2, where somebody is to see the requests, and by a user's client.

Rules:
- Each request under way has an ``AsyncHTTPTransport`` of its own with one socket. httpx's pool
  costs time in proportion to its requests, and has lost places to requests that were cancelled
  while they connected (httpcore #1093, #830, #658). After a failure the transport is closed.
- The transports are the library's own, below ``httpx.AsyncClient``: its mocks and instrumentation
  look for requests there, or in the layer below. So there are no redirects, cookies or auth hooks.
- A user's own client is used as it is, with redirects off and explicit timeouts, and never closed.
- A mock has no socket: what it raises is an attempt's failure.
- A byte beyond a reply's end closes the connection: httpcore would take it for the beginning of the
  next reply.
"""

from __future__ import annotations

import math
import ssl
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn, Self

import anyio

from batchclient.errors import BatchClientError, ClientClosed, ConnectFailed
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport._exceptions import cause_of, translated
from batchclient.transport._ids import ID_HEADER, Mark
from batchclient.transport._libraries import is_of
from batchclient.transport._rules import IDLE_S, LONG_BODY_BYTES, SOCKET_OPTIONS, Place, Timed

__all__ = ["HttpxConnection", "HttpxWay"]


class HttpxWay:
    """Makes connections to one server, as ``DirectWay`` does.

    Args:
        http: the module ``httpx`` or ``httpx2``.
        place: the server.
        proxy: the environment's, as a ``Proxy`` of the library's.
        trust_env: whether the library may read the environment.
        client: the user's own.
    """

    def __init__(self, http: Any, place: Place, *, proxy: Any, trust_env: bool, client: Any) -> None:
        self.http = http
        self.place = place
        self.proxy = proxy
        self.client = client
        self.idle: deque[Any] = deque()
        self._url_of = cache(lambda path, from_root: http.URL(place.url_of(path, from_root)))
        # Any context spares httpx its reading of certificates; this one trusts nobody.
        self._tls = place.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._trust_env = trust_env

    def written(self, request: WireRequest, own: Mapping[str, str], mark: Mark | None) -> Any:
        """Return a request's method, URL and headers."""
        number = {} if mark is None else {ID_HEADER: mark.id.decode()}
        return request.method, self._url_of(request.path, request.from_root), {**self.place.headers, **own, **number}

    async def connect(self, connect_s: float | None) -> HttpxConnection:
        """Return a new connection, whose socket is opened with the first request."""
        if self.client is not None:
            return HttpxConnection(self, self.client)
        limits = self.http.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_S)
        carrier = self.http.AsyncHTTPTransport(
            verify=self._tls,
            limits=limits,
            trust_env=self._trust_env,
            proxy=self.proxy,
            socket_options=SOCKET_OPTIONS,
        )
        return HttpxConnection(self, carrier)


class HttpxConnection(Timed):
    """A transport of the library's, or the user's client, with what a ``connection.Connection`` does.

    Its progress is told by httpcore.
    """

    def __init__(self, way: HttpxWay, carrier: Any) -> None:
        self._way = way
        self._carrier = carrier
        self._response: Any = None
        self.status: int = 0

    def start(self, head: tuple[str, Any, dict[str, str]], body: bytes, timeouts: Timeouts) -> None:
        method, url, headers = head
        self._connect_s = timeouts.connect_s
        seconds = {"connect": timeouts.connect_s, "read": timeouts.read_s, "write": timeouts.write_s}
        build = self._way.http.Request
        if self._way.client is not None:
            # It adds its own headers, cookies and query, as to every request; it may be httpx2's.
            build, url = self._way.client.build_request, str(url)
        self._request = build(
            method,
            url,
            content=body or None,
            headers=headers,
            extensions={"timeout": {**seconds, "pool": timeouts.connect_s}, "trace": self._trace},
        )
        if len(body) > LONG_BODY_BYTES and self._way.client is None:
            self._request.stream = _body_of(self._way.http)(body)
        self.status = 0
        self._pieces: Any = None
        self._received = 0
        self.wrote_at = self.now()
        self._is_used = True
        self.sent_at, self.was_heard = None, False
        self._tunnelling: anyio.CancelScope | None = None

    async def wait_for_head(self) -> Mapping[str, str]:
        way, request = self._way, self._request
        del self._request
        try:
            if way.client is not None:
                response = await self._carrier.send(request, stream=True, follow_redirects=False)
            elif way.proxy is None:
                response = await self._carrier.handle_async_request(request)
            else:
                # A tunnel is part of the connecting, for which httpcore takes the time of reading.
                with anyio.fail_after(self._connect_s) as self._tunnelling:
                    response = await self._carrier.handle_async_request(request)
        except BaseException as error:
            self._raise_ours(error)
        self._response, self.status = response, response.status_code
        # The stream itself spares each piece a generator of httpx's.
        self._pieces = aiter(response.stream)
        headers: Mapping[str, str] = response.headers
        return headers

    async def next_piece(self) -> bytes:
        try:
            async for piece in self._pieces:
                if piece:
                    self._received += len(piece)
                    return bytes(piece)
        except BaseException as error:
            self._raise_ours(error)
        return b""

    def _raise_ours(self, error: BaseException) -> NoReturn:
        """Raise what an error means, unless it is no failure of the network: a mock's complaint."""
        client = self._way.client
        if client is None:
            is_networks = isinstance(error, OSError) or is_of(type(error), "HTTPError", "InvalidURL", "StreamError")
        else:
            is_networks = isinstance(error, Exception)
        if isinstance(error, BatchClientError) or not is_networks:
            raise error
        if client is not None and isinstance(error, RuntimeError) and client.is_closed:
            raise ClientClosed("the HTTP client given to BatchClient was closed") from error
        if isinstance(error, TimeoutError) and self._way.proxy is not None:
            raise ConnectFailed(f"no connection{self._way.place.address} within the connect timeout") from error
        raise translated(error, self._way.place.address, self._received) from cause_of(error)

    async def _trace(self, event: str, info: Any) -> None:
        """Note an event of httpcore's, such as ``http11.send_request_body.complete``."""
        if event.endswith("connect_tcp.started"):
            self._is_used = False
        elif event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            self.wrote_at = self.now()
            if self._tunnelling is not None:
                self._tunnelling.deadline = math.inf
        elif event.endswith("send_request_body.complete"):
            self.sent_at = self.now()
        elif event.endswith("receive_response_headers.complete"):
            self.was_heard = True

    async def finish(self, *, reuse: bool) -> bool:
        # httpcore closes a half-read connection.
        # They hold the request.
        response, self._response, self._pieces = self._response, None, None
        is_good = False
        try:
            if response is not None:
                is_spoilt = _close_if_spoilt(response.stream, is_refused=not reuse)
                await response.aclose()
                is_good = reuse and not is_spoilt and self._way.client is None
        finally:
            self.idle_since = self.now()
            if not is_good:
                await self.aclose()
        return is_good

    def now(self) -> float:
        return time.monotonic()

    def is_fit(self) -> bool:
        # httpcore itself looks into the kernel.
        return not self.is_late()

    def was_closed_while_idle(self) -> bool:
        return self._is_used and super().was_closed_while_idle()

    async def aclose(self) -> None:
        """Close the socket, unless it is the user's."""
        if self._way.client is None:
            await self._carrier.aclose()


def _close_if_spoilt(source: Any, *, is_refused: bool) -> bool:
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


@cache
def _body_of(http: Any) -> type[Any]:
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
