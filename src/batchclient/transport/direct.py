"""The direct way to a server: connections of batchclient's own, by asyncio and httptools.

A head is written once for each path.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from batchclient.transport import WireRequest
from batchclient.transport._exceptions import not_connected
from batchclient.transport._ids import Mark
from batchclient.transport._libraries import library
from batchclient.transport._rules import SOCKET_OPTIONS, Place
from batchclient.transport.connection import Connection

__all__ = ["DirectWay"]

_NEXT_ADDRESS_S = 0.25
"""RFC 8305, "Connection Attempt Delay"."""


class DirectWay:
    """Makes connections to one server; on asyncio only.

    Attributes:
        idle: connections that may be used again, the one used last at the end.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.idle: deque[Any] = deque()
        url = library(None)[0].URL(place.url_of("", False))
        self._host = unquote(url.raw_host.decode("ascii"))
        self._port = url.port or (80 if place.tls is None else 443)
        if place.tls is not None:
            place.tls.set_alpn_protocols(["http/1.1"])
        # A zone (``fe80::1%eth0``) means something on this machine only.
        self._authority = re.sub("%[^]]*", "", url.netloc.decode("ascii"))
        self._heads: dict[tuple[str, str, bool], bytes] = {}

    def written(self, request: WireRequest, own: Mapping[str, str], mark: Mark | None) -> Any:
        """Return a request up to its body, with headers of its own, and with the id of a mark."""
        if own:
            head = self._head(request, {**self._place.headers, **own})
        else:
            key = (request.method, request.path, request.from_root)
            known = self._heads.get(key)
            head = known if known is not None else self._heads.setdefault(key, self._head(request, self._place.headers))
        number = b"" if mark is None else b"x-request-id: %b\r\n" % mark.id
        has_body = request.body or request.method != "GET"
        length = b"content-length: %d\r\n" % len(request.body) if has_body else b""
        return b"%b%b%b\r\n" % (head, number, length)

    def _head(self, request: WireRequest, headers: Mapping[str, str]) -> bytes:
        url = library(None)[0].URL(self._place.url_of(request.path, request.from_root))
        lines = [f"{request.method} {url.raw_path.decode('ascii')} HTTP/1.1"]
        if "host" not in headers:
            lines.append(f"host: {self._authority}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"

    async def connect(self, connect_s: float | None) -> Connection:
        """Return a new connection."""
        loop, tls, address = asyncio.get_running_loop(), self._place.tls, self._place.address
        began = loop.time()
        make = partial(Connection, loop, is_tls=tls is not None, address=address)
        name = None if tls is None else self._host
        try:
            async with asyncio.timeout(connect_s):
                transport, connection = await loop.create_connection(
                    make, self._host, self._port, ssl=tls, server_hostname=name, **_racing(loop, self._host)
                )
        except OSError as error:
            raise not_connected(error, address) from error
        with suppress(OSError):
            for option in SOCKET_OPTIONS:
                transport.get_extra_info("socket").setsockopt(*option)
        connection.connect_s = loop.time() - began
        return connection


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
