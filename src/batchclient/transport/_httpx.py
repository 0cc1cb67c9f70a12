"""Requests over httpx or its fork httpx2, where somebody is to see them, and over a user's client.

``http`` says when a request goes this way. Rules:
- Each request under way has an ``AsyncHTTPTransport`` of its own with one socket: httpx's pool costs
  time in proportion to its requests, and has lost places to requests that were cancelled while they
  connected (httpcore #1093, #830, #658). After a failure the transport is closed.
- The transports are the library's own, below ``httpx.AsyncClient``: its mocks and instrumentation
  look for requests there, or in the layer below. So there are no redirects, cookies or auth hooks.
- A user's own client is used as it is, with redirects off and explicit timeouts; it is never closed.
- A socket that was closed while idle is treated as in ``direct``. A mock has no socket: what it
  raises is an attempt's failure.
- Any byte beyond a reply's end closes the connection: httpcore would take the byte for the beginning
  of the next reply. So does a refused long request, of which the server may have read a part.
- The libraries' exceptions leave as batchclient's errors (``_exceptions``).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from batchclient.errors import BatchClientError, ClientClosed, ConnectFailed, ConnectionLost
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport._deadline import deadline, restart
from batchclient.transport._exceptions import cause_of, is_of, misdelivered, translated
from batchclient.transport._ids import ID_HEADER, Mark, RequestIds
from batchclient.transport._library import Library
from batchclient.transport._response import read_body
from batchclient.transport._rules import CLOSED_WHILE_IDLE_S, IDLE_S, LONG_BODY_BYTES, REFUSED_WITHIN_S, SOCKET_OPTIONS

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpxTransport"]


class HttpxTransport:
    """Sends requests to one base URL.

    Args:
        urls: reads a path, and whether it is from the root, as a URL of the library's.
        headers: sent with every request, by lower-case name.
        lib: httpx or httpx2.
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
        urls: Callable[[str, bool], Any],
        headers: Mapping[str, str],
        lib: Library,
        *,
        ids: RequestIds | None,
        tls: ssl.SSLContext | None,
        proxy: Any,
        trust_env: bool,
        most_bytes: int,
        address: str,
        client: Any = None,
    ) -> None:
        self._urls = urls
        self._headers = lib.Headers(headers)
        self._library = lib
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
        self._closing: set[asyncio.Future[None]] = set()
        self.under_way = 0
        """Requests that have no whole reply yet."""

    async def send(self, request: WireRequest, timeouts: Timeouts) -> HttpxResponse:
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

    async def _send_by(
        self, carrier: Any, request: WireRequest, timeouts: Timeouts, progress: _Progress
    ) -> HttpxResponse:
        """Send a request by a transport of the library's, or by the user's client."""
        is_long = len(request.body) > LONG_BODY_BYTES
        wire, mark = self._written(request, timeouts, progress)
        response = None
        self.under_way += 1
        try:
            if self._client is not None:
                response = await carrier.send(wire, stream=True, follow_redirects=False)
            elif self._proxy is None:
                response = await carrier.handle_async_request(wire)
            else:
                # A tunnel through a proxy is part of the connecting, to which httpcore gives the time for reading.
                async with deadline(timeouts.connect_s) as progress.connecting:
                    response = await carrier.handle_async_request(wire)
            made = HttpxResponse(response, mark, self._most_bytes, self, carrier, is_long=is_long)
            if mark is not None and mark.is_anothers_header(response.headers.get(ID_HEADER)):
                raise misdelivered()
        except BaseException as error:
            self.under_way -= 1
            if response is not None:
                await made.aclose(reuse=False)
            elif self._client is None:
                await self._close(carrier)
            if isinstance(error, BatchClientError) or not self.is_networks(error):
                raise
            if self._client is not None and isinstance(error, RuntimeError) and self._client.is_closed:
                raise ClientClosed("the http_client given to BatchClient was closed") from error
            if isinstance(error, TimeoutError) and self._proxy is not None:
                raise ConnectFailed(f"no connection{self._address} within the connect timeout") from error
            ours = translated(error, self._address)
            if isinstance(ours, ConnectionLost):
                ours.while_sending = is_long and not progress.was_sent_for(REFUSED_WITHIN_S)
            raise ours from cause_of(error)
        return made

    def is_networks(self, error: BaseException) -> bool:
        """Whether an error is a failure of the network: whatever a user's client raises, not what a mock complains of."""
        if self._client is not None:
            return isinstance(error, Exception)
        return isinstance(error, OSError) or is_of(type(error), "HTTPError", "InvalidURL")

    def _written(self, request: WireRequest, timeouts: Timeouts, progress: _Progress) -> tuple[Any, Mark | None]:
        headers = self._headers
        if request.headers:
            headers = self._library.Headers(headers)
            headers.update(request.headers)
        seconds = {"connect": timeouts.connect_s, "read": timeouts.read_s, "write": timeouts.write_s}
        seconds["pool"] = timeouts.connect_s
        build, url = self._library.http.Request, self._urls(request.path, request.from_root)
        if self._client is not None:
            # It adds its own headers, cookies and query, as to every request of its own; it may be httpx2's.
            build, url = self._client.build_request, str(url)
        wire = build(
            request.method,
            url,
            content=request.body or None,
            headers=headers,
            extensions={"timeout": seconds, "trace": progress.trace},
        )
        if len(request.body) > LONG_BODY_BYTES:
            wire.stream = self._library.Body(request.body)
        if self._ids is None or not request.body or any(name.lower() == ID_HEADER for name, _ in request.headers):
            return wire, None
        mark = self._ids.mark(request.body)
        wire.headers[ID_HEADER] = mark.id
        return wire, mark

    async def _take_idle(self) -> Any:
        """Return the transport used last; close those that have been idle for too long."""
        now = time.monotonic()
        while self._idle and now - self._idle[0][1] > IDLE_S:
            await self._close(self._idle.pop(0)[0])
        return self._idle.pop()[0] if self._idle else None

    def _make(self) -> Any:
        http = self._library.http
        limits = http.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_S)
        return http.AsyncHTTPTransport(
            verify=self._tls,
            limits=limits,
            trust_env=self._trust_env,
            proxy=self._proxy,
            socket_options=SOCKET_OPTIONS,
        )

    async def release(self, carrier: Any, *, reuse: bool) -> None:
        """Take a transport back whose exchange has ended."""
        self.under_way -= 1
        if self._client is not None:
            return
        if reuse:
            self._idle.append((carrier, time.monotonic()))
        else:
            await self._close(carrier)

    async def _close(self, transport: Any) -> None:
        if asyncio._get_running_loop() is None:
            with anyio.CancelScope(shield=True):
                await transport.aclose()
            return
        # In a task of its own: an asyncio task's cancellation goes through anyio's shields.
        closing = asyncio.ensure_future(transport.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def aclose(self) -> None:
        """Close every connection that is not the user's."""
        idle, self._idle = self._idle, []
        for transport, _ in idle:
            await self._close(transport)
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


class HttpxResponse:
    """A reply whose body has not been read yet; see ``WireResponse``."""

    def __init__(
        self,
        response: httpx.Response,
        mark: Mark | None,
        most_bytes: int,
        owner: HttpxTransport,
        carrier: Any,
        *,
        is_long: bool,
    ) -> None:
        self._response = response
        self._mark = mark
        self._most_bytes = most_bytes
        self._owner: HttpxTransport | None = owner
        self._carrier = carrier
        self._is_refused = is_long and response.status_code >= 400
        self._reuse = True
        # ``response.stream`` spares each piece a generator of httpx's.
        self._pieces: AsyncIterator[bytes] = aiter(response.stream)  # type: ignore[arg-type]
        self._received = 0
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the decoded body as it arrives."""
        return read_body(
            self._next_piece, self.headers, most_bytes=self._most_bytes, mark=self._mark, refuse=self._refuse
        )

    async def _next_piece(self) -> bytes:
        try:
            async for piece in self._pieces:
                if piece:
                    self._received += len(piece)
                    return piece
        except BatchClientError:
            raise
        except Exception as error:  # a client's transport is the user's code
            if is_of(type(error), "StreamError"):
                raise ConnectionLost("the response could not be read") from error
            if self._owner is not None and not self._owner.is_networks(error):
                raise
            raise translated(error, received=self._received) from cause_of(error)
        return b""

    def _refuse(self) -> None:
        self._reuse = False

    async def aclose(self, *, reuse: bool = True) -> None:
        """Release the connection; close it if the body was not read to its end, or if more came."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        good = not _is_spoilt(self._response.stream, refused=self._is_refused)
        good = good and reuse and self._reuse
        try:
            await self._response.aclose()
        except BaseException:
            good = False
            raise
        finally:
            await owner.release(self._carrier, reuse=good)


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
        elif event.endswith("receive_response_headers.complete"):
            self._is_used = False
        elif event.endswith("send_request_body.complete"):
            self._sent_at = time.monotonic()

    def was_closed_while_idle(self) -> bool:
        return self._is_used and time.monotonic() - self._began <= CLOSED_WHILE_IDLE_S

    def was_sent_for(self, seconds: float) -> bool:
        """Whether the whole request was written so many seconds ago."""
        return self._sent_at is not None and time.monotonic() - self._sent_at >= seconds


def _is_spoilt(source: Any, *, refused: bool) -> bool:
    """Whether the request was refused, or bytes came beyond the reply: then httpcore closes the connection.

    httpcore's connection is found behind the response's stream, a user's own client's, too.
    """
    while source is not None:
        connection = getattr(source, "_connection", None)
        if connection is not None:
            http = getattr(connection, "_h11_state", None)
            if http is None or not (refused or http.trailing_data[0]):
                return refused
            # httpcore does not use a connection again that failed to send.
            http.send_failed()
            return True
        source = getattr(source, "_httpcore_stream", None) or getattr(source, "_stream", None)
    return refused
