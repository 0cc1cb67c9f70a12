"""Requests over connections of batchclient's own: asyncio and httptools, no HTTP library between.

A request takes the connection that was used last, or a new one.

Rules:
- A request never waits for a connection, and a connection carries one request at a time.
- A connection idle for 3 s is used no more, and is closed within a second. Servers close idle
  connections after 5 s (uvicorn's default, so vLLM's and SGLang's), and a request on a closing
  connection is lost.
- A used connection that breaks before a byte of the reply, within 50 ms of the request or twice the
  time that its connecting took, was closed while idle: the request is sent again at once, once, on
  a new connection. That is no attempt, and costs no retry. A later break may have been over the
  request, which is the caller's to repeat.
- A request with a body has an id (``_ids``), unless it brings one. A reply to another request of
  the transport is refused.
- One timer watches silence, writing and idleness on all connections.
- A head is written once for each path. What goes into a head was checked: no line break leaves.
- No redirect is followed, and there are no cookies.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from batchclient.errors import ConnectionLost
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport._body import Response
from batchclient.transport._exceptions import misdelivered, not_connected
from batchclient.transport._ids import ID_HEADER, Mark, RequestIds
from batchclient.transport._library import library
from batchclient.transport._rules import (
    CLOSED_WHILE_IDLE_S,
    IDLE_S,
    LONG_BODY_BYTES,
    REFUSED_WITHIN_S,
    SOCKET_OPTIONS,
    checked_headers,
)
from batchclient.transport.connection import Connection

__all__ = ["DirectTransport"]

_TICK_S = 1.0
"""The longest time between two looks at the connections; an eighth of a shorter timeout."""
_NEXT_ADDRESS_S = 0.25
"""RFC 8305, "Connection Attempt Delay"."""
_CLOSED = "the client was closed"
_Requested = tuple[str, str, bool]


class DirectTransport:
    """Sends requests to one base URL; on asyncio only.

    Args:
        urls: gives the URL of a path, and of whether it is from the root.
        headers: sent with every request, by lower-case name.
        ids: of the requests; ``None``: the caller gives each an id, or wants none.
        tls: for ``https://``.
        most_bytes: cap on a decoded body.
        address: of the server, behind "no connection", in errors.
    """

    def __init__(
        self,
        urls: Callable[[str, bool], str],
        headers: Mapping[str, str],
        *,
        ids: RequestIds | None,
        tls: ssl.SSLContext | None,
        most_bytes: int,
        address: str,
    ) -> None:
        self._urls = urls
        self._headers = headers
        self._ids = ids
        self._most_bytes = most_bytes
        self._address = address
        url = library(None)[0].URL(urls("", False))
        self._host = unquote(url.raw_host.decode("ascii"))
        self._port = url.port or (80 if tls is None else 443)
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        # A zone (``fe80::1%eth0``) means something on this machine only.
        self._authority = re.sub("%[^]]*", "", url.netloc.decode("ascii"))
        self._heads: dict[_Requested, bytes] = {}
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._timeouts: Timeouts | None = None
        self._tick_s = _TICK_S
        self._timer: asyncio.TimerHandle | None = None
        self._timers_loop: asyncio.AbstractEventLoop | None = None
        self._closings = 0

    @property
    def under_way(self) -> int:
        """Requests that have no whole reply yet."""
        return len(self._busy)

    async def send(self, request: WireRequest, timeouts: Timeouts) -> Response:
        """Send a request; return once the head of the reply is there."""
        loop, closings = asyncio.get_running_loop(), self._closings
        connection = self._take_idle(loop)
        if connection is not None:
            try:
                return await self._send_on(connection, request, timeouts)
            except ConnectionLost:
                bound_s = max(CLOSED_WHILE_IDLE_S, 2 * connection.connect_s)
                if connection.was_heard or loop.time() - connection.wrote_at > bound_s or closings != self._closings:
                    raise
        connection = await self._connect(loop, timeouts.connect_s)
        if closings != self._closings:
            connection.close()
            raise ConnectionLost(_CLOSED)
        return await self._send_on(connection, request, timeouts)

    async def _send_on(self, connection: Connection, request: WireRequest, timeouts: Timeouts) -> Response:
        is_long = len(request.body) > LONG_BODY_BYTES
        self._busy.add(connection)
        self._watch(connection.loop, timeouts)
        try:
            # No frame that may fail has the written head, with its key, in a variable.
            mark = self._start(connection, request, timeouts)
            headers = await connection.wait_for_head()
            if mark is not None and mark.is_anothers_header(headers.get(ID_HEADER)):
                raise misdelivered()
        except BaseException as error:
            await self._release(connection, is_good=False)
            if isinstance(error, ConnectionLost) and is_long and not connection.was_heard:
                sent_at = connection.sent_at
                error.while_sending = sent_at is None or connection.loop.time() - sent_at < REFUSED_WITHIN_S
            raise
        # The server may have refused a long request before it had read the whole.
        release = partial(self._release, connection, is_long and connection.status >= 400)
        return Response(connection.status, headers, connection.next_piece, release, mark, self._most_bytes)

    def _start(self, connection: Connection, request: WireRequest, timeouts: Timeouts) -> Mark | None:
        """Write a request; return the mark of the id in it."""
        body, mark = request.body, None
        if request.headers:
            head = self._head(request, {**self._headers, **checked_headers(dict(request.headers))})
        else:
            key = (request.method, request.path, request.from_root)
            known = self._heads.get(key)
            head = known if known is not None else self._heads.setdefault(key, self._head(request, self._headers))
        if body and self._ids is not None and not (request.headers and b"\r\nx-request-id:" in head):
            mark = self._ids.mark(body)
            head = b"%bx-request-id: %b\r\n" % (head, mark.id.encode())
        length = b"content-length: %d\r\n" % len(body) if body or request.method != "GET" else b""
        connection.start(b"%b%b\r\n" % (head, length), body, timeouts.read_s, timeouts.write_s)
        return mark

    def _head(self, request: WireRequest, headers: Mapping[str, str]) -> bytes:
        url = library(None)[0].URL(self._urls(request.path, request.from_root))
        lines = [f"{request.method} {url.raw_path.decode('ascii')} HTTP/1.1"]
        if "host" not in headers:
            lines.append(f"host: {self._authority}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"

    async def _release(self, connection: Connection, is_refused: bool = False, is_good: bool = True) -> None:  # noqa: FBT001, FBT002
        """Take a connection back whose exchange has ended, or break the exchange off."""
        self._busy.discard(connection)
        if connection.finish(reuse=is_good and not is_refused):
            self._idle.append(connection)

    def _take_idle(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.loop is not loop:
                # That loop has ended, and its connections with it.
                continue
            if loop.time() - connection.idle_since <= IDLE_S and connection.is_still_idle():
                return connection
            connection.close()
        return None

    def _watch(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts) -> None:
        """Look at the connections from time to time, while there are any."""
        if timeouts is not self._timeouts:
            self._timeouts = timeouts
            tick_s = min(bound_s / 8 for bound_s in (timeouts.read_s, timeouts.write_s, 8 * _TICK_S) if bound_s)
            if tick_s < self._tick_s:
                self._tick_s = tick_s
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
        if self._timer is None or self._timers_loop is not loop:
            self._timer, self._timers_loop = loop.call_later(self._tick_s, self._look, loop), loop

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._timers_loop:
            return
        now = loop.time()
        for connection in list(self._busy):
            if connection.loop is loop:
                connection.check(now)
        while self._idle and (self._idle[0].loop is not loop or now - self._idle[0].idle_since > IDLE_S):
            connection = self._idle.popleft()
            if connection.loop is loop:
                connection.close()
        self._timer = loop.call_later(self._tick_s, self._look, loop) if self._busy or self._idle else None

    async def _connect(self, loop: asyncio.AbstractEventLoop, connect_s: float | None) -> Connection:
        began = loop.time()
        make = partial(Connection, loop, is_tls=self._tls is not None, address=self._address)
        name = None if self._tls is None else self._host
        try:
            async with asyncio.timeout(connect_s):
                transport, connection = await loop.create_connection(
                    make, self._host, self._port, ssl=self._tls, server_hostname=name, **_racing(loop, self._host)
                )
        except OSError as error:
            raise not_connected(error, self._address) from error
        with suppress(OSError):
            for option in SOCKET_OPTIONS:
                transport.get_extra_info("socket").setsockopt(*option)
        connection.connect_s = loop.time() - began
        return connection

    async def aclose(self) -> None:
        """Close every connection."""
        self._closings += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in [*self._idle, *self._busy]:
            if not connection.loop.is_closed():
                connection.fail(ConnectionLost(_CLOSED))
        self._idle.clear()
        # asyncio closes the sockets in the loop's next turn.
        await asyncio.sleep(0)


def _racing(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return arguments to try a name's next address before the first failed, if the loop can."""
    # uvloop cannot. Before 3.13.1 asyncio cannot with a task factory of the user's (gh-124309).
    if not isinstance(loop, asyncio.BaseEventLoop) or loop.get_task_factory() is not None:
        return {}
    try:
        ip_address(host)
    except ValueError:
        return {"happy_eyeballs_delay": _NEXT_ADDRESS_S}
    return {}
