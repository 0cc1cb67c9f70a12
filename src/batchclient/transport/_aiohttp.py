"""aiohttp below httpx, for ``Http(backend="aiohttp")``: the only module besides ``_library`` that
knows an HTTP library.

Rules:
- aiohttp parses each reply separately, so a second reply in the same read goes to no other call. A
  reply on an idle socket would be handed out: such a socket is not taken from its pool.
- aiohttp itself does not read the environment. Proxies are found in the same way for all backends
  (``_proxies``), and nobody's netrc is read.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from batchclient.transport._body import LONG_BODY_BYTES
from batchclient.transport._library import library
from batchclient.transport._proxies import proxy_headers
from batchclient.transport._sockets import is_readable
from batchclient.transport._under_way import AIOHTTP_EVENTS, UnderWay

__all__ = ["make_request", "make_transport", "ways"]

_LARGEST_PIECE_BYTES = 256 * 1024
"""A large body in one piece would hold up the event loop; aiohttp warns of such a piece."""


def make_request(
    method: str,
    url: httpx.URL,
    content: bytes | None,
    headers: httpx.Headers,
    extensions: dict[str, Any],
    under_way: UnderWay,
) -> httpx.Request:
    """Write a request; ``under_way`` is told whenever a part of a long request was sent."""
    if content is None or len(content) <= LONG_BODY_BYTES:
        return httpx.Request(method, url, content=content, headers=headers, extensions=extensions)
    headers = httpx.Headers(headers)
    headers["content-length"] = str(len(content))
    stream = library("aiohttp").Pieces(content, _LARGEST_PIECE_BYTES, under_way)
    return httpx.Request(method, url, stream=stream, headers=headers, extensions=extensions)


def ways() -> tuple[Any, ...]:
    """Return the functions that a request goes through now: mocks put theirs in their place."""
    return AiohttpTransport.handle_async_request, aiohttp.ClientSession._request


def make_transport(tls: ssl.SSLContext, limits: httpx.Limits, proxy: httpx.Proxy | None) -> httpx.AsyncBaseTransport:
    """Return a pool of connections."""
    if proxy is not None:
        # aiohttp warns of credentials given as such. It sends headers of a proxy with a CONNECT
        # only.
        proxy = httpx.Proxy(proxy.url, headers=proxy_headers(proxy))

    def session() -> aiohttp.ClientSession:
        connector = _Connector(limit=limits.max_connections or 0, keepalive_timeout=limits.keepalive_expiry, ssl=tls)
        traces = aiohttp.TraceConfig()
        for name, listener in AIOHTTP_EVENTS.items():
            getattr(traces, name).append(listener)
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[traces],
        )

    return AiohttpTransport(verify=tls, client=session, proxy=proxy)


class _Connector(aiohttp.TCPConnector):
    async def _get(self, *arguments: Any) -> Any:
        """Take an idle connection without bytes since its last reply; ``None``: there is none."""
        while (connection := await super()._get(*arguments)) is not None:
            wire, replies = connection.transport, connection.protocol
            if wire is None or replies is None or replies.should_close or _holds_bytes(wire):
                connection.close()
            else:
                return connection
        return None


def _holds_bytes(wire: asyncio.BaseTransport) -> bool:
    return is_readable(wire.get_extra_info("socket").fileno())
