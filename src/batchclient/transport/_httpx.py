"""The only module that imports httpx, and knows its fork httpx2.

Rules:
- Never more requests in a pool than it has connections: httpx's pool costs time in proportion to the requests in it (a
  request costs 2.0 ms with 32 in flight in one pool, 5.8 ms with 256, 1.0 to 1.3 ms in pools of 8). So there are many
  small pools, and the first with room is taken, which keeps the connections of the first ones warm.
- A pool is closed whole, whatever becomes of the request in whose time it is done: half closed, its other sockets would be nobody's.
- So a request never waits for a connection. A pool that lets one wait has lost places to requests that were cancelled
  while they connected (httpcore #1093, #830, #658): it takes no more and is closed when its last request has ended.
- A socket that was idle for 3 s is not used again: servers close theirs after 5 s (uvicorn's default, so vLLM's and SGLang's), and a
  request on a socket that is being closed is lost. Pools that were idle that long are closed when the next request is sent.
- No redirects, no cookies, no auth hooks, no proxies from the environment unless asked: our own pools are driven below
  ``httpx.AsyncClient``. A user's own client is used as it is, with redirects off and explicit timeouts.
- A socket that was used before and breaks before the answer's headers was most likely closed by the server while idle, just as the
  request was sent. Such a request is sent once more at once, on a socket of its own; this is no attempt and costs no retry.
- The size of the decoded body is capped as it arrives (``_compression``). What the libraries raise is ours when it leaves here (``_exceptions``).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import httpcore  # noqa: F401  # httpx imports it with its first transport, 0.3 s inside somebody's first call
import httpx

from batchclient.errors import ClientClosed, ConfigError, ConnectionLost, ResponseTooLarge
from batchclient.transport import Timeouts, WireRequest, root_of
from batchclient.transport._compression import decompressed
from batchclient.transport._exceptions import AIOHTTP_BREAKS, cause_of, is_aiohttps, is_of, translated

if TYPE_CHECKING:
    import httpx2

__all__ = ["HttpxTransport", "check_arguments"]

_CONNECTIONS_PER_POOL = 8
_KEEPALIVE_S = 3.0
_LARGEST_PIECE_BYTES = 256 * 1024
_RACE_S = 1.0
"""A socket that the server closed while it was idle fails within a round trip; one that breaks later broke over the request."""


def check_arguments(http_client: object, http_backend: str) -> None:
    """Refuse what cannot work.

    Raises:
        ConfigError: ``http_client`` is no open ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, or the extra for ``http_backend`` is missing.
    """
    if http_client is not None and not is_of(type(http_client), "AsyncClient"):
        kind = type(http_client).__name__
        raise ConfigError(
            f"http_client is an httpx.AsyncClient or httpx2.AsyncClient, not a {kind}", field="http_client"
        )
    if http_client is not None and getattr(http_client, "is_closed", False):
        raise ConfigError("the http_client is closed", field="http_client")
    if http_backend == "aiohttp":
        try:
            import httpx_aiohttp  # noqa: F401
        except ImportError as error:
            message = "http_backend='aiohttp' needs the extra: pip install 'batchclient[aiohttp]'"
            raise ConfigError(message, field="http_backend") from error


class HttpxTransport:
    """Sends requests to one base URL through httpx.

    Args:
        base_url: without a trailing slash; a query in it goes with every request.
        headers: sent with every request.
        max_response_bytes: cap on a decoded body.
        client: the user's own client, of httpx or of httpx2; never sharded, never closed.
        backend: ``"httpx"`` or ``"aiohttp"`` (the extra of that name).
        trust_env: whether proxies and certificates may come from the environment.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        max_response_bytes: int,
        client: httpx.AsyncClient | httpx2.AsyncClient | None = None,
        backend: str = "httpx",
        trust_env: bool = False,
    ) -> None:
        self._base_url, question, query = base_url.partition("?")
        self._query = question + query
        self._address = f" to {self._base_url}"
        self._headers = _Headers(
            {"content-type": "application/json", "accept-encoding": "identity", "accept": "*/*", **headers}
        )
        self._cap = max_response_bytes
        self._client = client
        self._backend = backend
        self._trust_env = trust_env
        self._tls: ssl.SSLContext | None = None
        self._pools: list[_Pool] = []
        self._retired: list[_Pool] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._urls: dict[tuple[str, bool], httpx.URL] = {}

    def __repr__(self) -> str:
        return f"<HttpxTransport to {self._base_url}>"

    async def send(self, request: WireRequest, timeouts: Timeouts) -> _Response:
        """Send a request; return once the headers of the response are there."""
        url = self._urls.get((request.path, request.from_root))
        if url is None:
            base = root_of(self._base_url) if request.from_root else self._base_url
            self._urls[request.path, request.from_root] = url = httpx.URL(base + request.path + self._query)
        headers = self._headers
        if request.headers:
            headers = _Headers(headers)
            headers.update(request.headers)
        content = request.body or None
        seconds = {
            "connect": timeouts.connect_s,
            "read": timeouts.read_s,
            "write": timeouts.write_s,
            "pool": timeouts.connect_s,
        }
        extensions: dict[str, Any] = {"timeout": seconds}
        if self._client is not None:
            # What the client adds to its own requests (headers, cookies, a query) it adds to ours.
            wire = self._client.build_request(
                request.method, str(url), content=content, headers=headers, extensions=extensions
            )
            return await self._send_by_user_client(wire)
        connected = _Connected()
        if self._backend == "aiohttp":
            wire = _aiohttp_request(request.method, url, content, headers, extensions)
        else:
            # For a connection: aiohttp counts the connecting, httpx only the wait for a place.
            seconds["pool"] = 0.0
            extensions["trace"] = connected.trace
            wire = httpx.Request(request.method, url, content=content, headers=headers, extensions=extensions)
        await self._close_idle()
        pool = self._pool()
        while True:
            pool.used += 1
            connected.watch()
            try:
                response = await pool.transport.handle_async_request(wire)
            except httpx.PoolTimeout as error:
                pool.used -= 1
                if pool.fresh:
                    raise translated(error, self._address) from error
                await self._retire(pool)
                pool = self._pool()
            except BaseException as error:
                pool.used -= 1
                pool.fresh = False
                if pool.retired:
                    await self._retire(pool)
                if not connected.fresh and connected.age_s < _RACE_S and _is_break(error):
                    # The others of this pool may have been closed as well. A new pool has fresh sockets only, so that this ends.
                    pool = self._new_pool()
                    continue
                if isinstance(error, httpx.TransportError) or is_aiohttps(error):
                    raise translated(error, self._address) from cause_of(error)
                raise
            else:
                pool.fresh = False
                return _Response(response, self._cap, pool, self._retire)

    async def _send_by_user_client(self, wire: Any) -> _Response:
        client: Any = self._client
        try:
            response = await client.send(wire, stream=True, follow_redirects=False)
        except RuntimeError as error:
            if client.is_closed:
                raise ClientClosed("the http_client given to BatchClient was closed") from error
            raise
        except Exception as error:
            if is_of(type(error), "HTTPError"):
                raise translated(error, self._address) from cause_of(error)
            raise
        return _Response(response, self._cap, None, self._retire)

    async def _retire(self, pool: _Pool) -> None:
        """Use a pool no more; close it once nothing is in it."""
        if not pool.retired:
            pool.retired = True
            self._pools.remove(pool)
            self._retired.append(pool)
        if not pool.used and pool in self._retired:
            self._retired.remove(pool)
            await self._close(pool)

    async def _close(self, pool: _Pool) -> None:
        if asyncio._get_running_loop() is None:
            with anyio.CancelScope(shield=True):
                await pool.transport.aclose()
            return
        # In a task of its own: the cancellation of an asyncio task goes through anyio's shields.
        closing = asyncio.ensure_future(pool.transport.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _close_idle(self) -> None:
        """Close the pools that a smaller load has no use for; httpcore drops idle sockets only of pools it uses."""
        now = time.monotonic()
        for pool in self._pools[1:]:
            if not pool.used and now - pool.used_at > _KEEPALIVE_S:
                await self._retire(pool)

    def _pool(self) -> _Pool:
        for pool in self._pools:
            if pool.used < _CONNECTIONS_PER_POOL:
                return pool
        return self._new_pool()

    def _new_pool(self) -> _Pool:
        pool = _Pool(self._make_transport())
        self._pools.append(pool)
        return pool

    def _make_transport(self) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(
            max_connections=_CONNECTIONS_PER_POOL,
            max_keepalive_connections=_CONNECTIONS_PER_POOL,
            keepalive_expiry=_KEEPALIVE_S,
        )
        if self._tls is None:
            self._tls = self._make_tls()
        if self._backend == "aiohttp":
            return _aiohttp_transport(self._tls, limits, trust_env=self._trust_env)
        proxy = _proxy_from_environment(self._base_url) if self._trust_env else None
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=self._trust_env, proxy=proxy)

    def _make_tls(self) -> ssl.SSLContext:
        if self._base_url.startswith("https:"):
            return httpx.create_ssl_context(trust_env=self._trust_env)
        # Reading the certificate store takes some 20 ms and plain HTTP needs none. This context trusts nobody.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def aclose(self) -> None:
        """Close every pool of our own."""
        pools, self._pools, self._retired = self._pools + self._retired, [], []
        for pool in pools:
            await self._close(pool)
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


class _Headers(httpx.Headers):
    """Headers that do not show their values; httpx's hide those of two names only."""

    def __repr__(self) -> str:
        return f"<headers {', '.join(self)}>"


class _Pool:
    __slots__ = ("fresh", "retired", "transport", "used", "used_at")

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self.transport = transport
        self.used = 0
        self.used_at = time.monotonic()
        self.fresh = True
        self.retired = False


class _Response:
    """A response whose body is still to be read."""

    __slots__ = ("_cap", "_pool", "_response", "_retire", "headers", "status")

    def __init__(
        self, response: httpx.Response, cap: int, pool: _Pool | None, retire: Callable[[_Pool], Awaitable[None]]
    ) -> None:
        self._retire = retire
        self._response = response
        self._cap = cap
        self._pool = pool
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the decoded body as it arrives."""
        left = self._cap
        response = self._response
        # ``response.stream`` spares each chunk a generator of httpx's.
        source: Any = response.stream
        if "content-encoding" in response.headers:
            source = decompressed(source, response.headers["content-encoding"])
        try:
            async for chunk in source:
                left -= len(chunk)
                if left < 0:
                    raise ResponseTooLarge(f"the response is over max_response_bytes={self._cap}")
                yield chunk
        except Exception as error:
            if is_of(type(error), "StreamError"):
                raise ConnectionLost("the response could not be read") from error
            if is_of(type(error), "HTTPError") or is_aiohttps(error):
                raise translated(error, received=self._cap - left) from cause_of(error)
            raise

    async def aclose(self) -> None:
        """Release the connection."""
        pool, self._pool = self._pool, None
        whole = False
        try:
            await self._response.aclose()
            whole = True
        finally:
            if pool is not None:
                pool.used -= 1
                pool.used_at = time.monotonic()
                # Broken off, it has left its place in httpx's pool taken for good.
                if pool.retired or not whole:
                    await self._retire(pool)


_opened: ContextVar[_Connected | None] = ContextVar("_opened", default=None)
"""Of the request that is being sent: aiohttp's traces know only the task they run in."""


class _Connected:
    """Whether a connection was made for a request, as the HTTP library's traces tell."""

    __slots__ = ("_since", "fresh")

    def watch(self) -> None:
        """A request is about to be sent."""
        self.fresh = False
        self._since = time.monotonic()
        _opened.set(self)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._since

    async def trace(self, event: str, info: object) -> None:
        """Httpcore's trace extension."""
        if event == "connection.connect_tcp.started":
            self.fresh = True

    @staticmethod
    async def trace_aiohttp(session: object, context: object, params: object) -> None:  # noqa: ARG004  # aiohttp's signature
        """Aiohttp's ``on_connection_create_start``."""
        connected = _opened.get()
        if connected is not None:
            connected.fresh = True


def _is_break(error: BaseException) -> bool:
    """Whether the connection ended before the answer's headers, and not because of anything in them."""
    if isinstance(error, httpx.RemoteProtocolError):
        return "without sending a response" in str(error)
    return isinstance(error, (httpx.ReadError, httpx.WriteError)) or type(error.__cause__).__name__ in AIOHTTP_BREAKS


def _proxy_from_environment(base_url: str) -> httpx.Proxy | None:
    from urllib.request import getproxies, proxy_bypass

    url = httpx.URL(base_url)
    if proxy_bypass(url.host):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return httpx.Proxy(found) if found else None


def _aiohttp_request(
    method: str, url: httpx.URL, content: bytes | None, headers: httpx.Headers, extensions: dict[str, Any]
) -> httpx.Request:
    if content is None or len(content) <= _LARGEST_PIECE_BYTES:
        return httpx.Request(method, url, content=content, headers=headers, extensions=extensions)
    # In one piece a large body would hold up the event loop; aiohttp warns of it.
    headers = httpx.Headers(headers)
    headers["content-length"] = str(len(content))
    return httpx.Request(method, url, stream=_Pieces(content), headers=headers, extensions=extensions)


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for start in range(0, len(self._content), _LARGEST_PIECE_BYTES):
            yield self._content[start : start + _LARGEST_PIECE_BYTES]


def _aiohttp_transport(tls: ssl.SSLContext, limits: httpx.Limits, *, trust_env: bool) -> httpx.AsyncBaseTransport:
    import aiohttp
    from httpx_aiohttp import AiohttpTransport

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=limits.max_connections or 0, keepalive_timeout=limits.keepalive_expiry, ssl=tls
        )
        jar = aiohttp.DummyCookieJar()
        traces = aiohttp.TraceConfig()
        traces.on_connection_create_start.append(_Connected.trace_aiohttp)
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=trust_env,
            auto_decompress=False,
            cookie_jar=jar,
            trace_configs=[traces],
        )

    return AiohttpTransport(verify=tls, client=session)
