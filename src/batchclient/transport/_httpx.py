"""The calls' way through httpx or its fork httpx2 (``_library``).

Rules for pools:
- A pool never has more requests than connections: httpx's pool costs time in proportion to its
  requests. A request costs 2.0 ms with 32 in flight in one pool, 5.8 ms with 256, and 1.0 to 1.3 ms
  in pools of 8. So there are many small pools. The first pool with room is taken, which keeps the
  first pools' connections warm.
- A pool is closed whole, even if the request that closes it is cancelled: nobody would own the
  other sockets of a half-closed pool.
- A request never waits for a connection. A pool that makes a request wait has lost places to
  requests cancelled while connecting (httpcore #1093, #830, #658). Such a pool takes no more, and
  is closed when its last request has ended.
- A socket idle for 3 s is not used again. Servers close idle sockets after 5 s (uvicorn's default,
  so vLLM's and SGLang's), and a request on a closing socket is lost. Pools idle for 3 s are closed
  with the next request.
- No redirects, no cookies, no auth hooks, and no proxies from the environment unless asked: the
  pools are driven below ``httpx.AsyncClient``. A user's own client is used as it is, with redirects
  off and explicit timeouts.
- The pools are the library's own ``AsyncHTTPTransport``: its mocks and instrumentation look for
  requests there, or in the layer below.

Rules for requests:
- A used socket that breaks before the answer's headers was most likely closed by the server while
  idle, just as the request was sent. The request is sent again at once, on a new pool's socket. The
  repetition is no attempt and costs no retry. It happens once: a mock tells of no connecting, so a
  mock's sockets always look used.
- Each request has an id (``_ids``), unless the caller gave one. A reply to another request of the
  transport is refused, and the connection is closed.
- ``read_s`` is silence by the clock, even while single bytes come. batchclient's own sockets judge
  the silence (``_sockets``); deadlines do on other sockets.
- The libraries' exceptions leave as batchclient's errors (``_exceptions``). ``_response`` reads a
  reply's body.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from batchclient.errors import BatchClientError, ClientClosed, ConfigError, ConnectionLost, ReadTimedOut
from batchclient.transport import Timeouts, WireRequest, root_of
from batchclient.transport._body import LONG_BODY_BYTES
from batchclient.transport._exceptions import AIOHTTP_BREAKS, SILENT, cause_of, is_aiohttps, is_of, translated
from batchclient.transport._ids import Mark, RequestIds
from batchclient.transport._library import library
from batchclient.transport._proxies import proxy_for, proxy_headers
from batchclient.transport._response import Response
from batchclient.transport._sockets import Sockets
from batchclient.transport._under_way import UnderWay

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["HttpxTransport", "check_arguments", "is_mock", "is_mocked"]

_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "httpx_aiohttp", "aiohttp"})
_CONNECTIONS_PER_POOL = 8
_KEEPALIVE_S = 3.0
_ID = "x-request-id"
_REFUSED_WITHIN_S = 1.0
"""The last bytes may still be on their way: a server that refuses a request for its length breaks
the connection no later.
"""
_RACE_S = 1.0
"""A socket closed while idle fails within a round trip; a later break was over the request."""


def check_arguments(http_client: object, backend: str) -> None:
    """Refuse unusable arguments, and import the backend's library.

    Raises:
        ConfigError: ``http_client`` is no open ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, or
            the extra for ``backend`` is missing.
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
        if backend == "aiohttp":
            import batchclient.transport._aiohttp  # noqa: F401
    except ImportError as error:
        message = f"http.backend: {backend!r} needs the extra batchclient[{backend}]"
        raise ConfigError(message, field="http.backend") from error


def is_mocked(backend: str) -> bool:
    """Return whether a mock stands on a backend's way to the network.

    A mock puts a function of its own in the place of a library's (respx, pytest-httpx, ``MockLLM``,
    aioresponses, VCR.py). Instrumentation that wraps a function shows the function's own module.
    """
    lib = library(backend)
    ways = (lib.http.AsyncHTTPTransport.handle_async_request, lib.core.AsyncConnectionPool.handle_async_request)
    if backend == "aiohttp":
        from batchclient.transport import _aiohttp

        ways = _aiohttp.ways()
    homes = [getattr(way, "__globals__", {}).get("__name__", "").partition(".")[0] for way in ways]
    return not _LIBRARIES.issuperset(homes)


def is_mock(client: httpx.AsyncClient | httpx2.AsyncClient) -> bool:
    """Return whether a user's client sends to a mock or to an application in this process."""
    if is_mocked("httpx2" if _is_of_httpx2(client) else "httpx"):
        return True
    carriers = [getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values()]
    # A wrapper as ours for threads, or one that tries again, has what it wraps.
    carriers += [getattr(carrier, "_transport", None) for carrier in carriers]
    return any(
        is_of(type(carrier), "MockTransport", "ASGITransport", "WSGITransport")
        or type(carrier).__module__.startswith("batchclient.testing.")
        for carrier in carriers
    )


def _is_of_httpx2(client: object) -> bool:
    return any(base.__module__.partition(".")[0] == "httpx2" for base in type(client).__mro__)


class HttpxTransport:
    """Sends requests to one base URL.

    Args:
        base_url: without a trailing slash; a query is sent with every request.
        headers: sent with every request.
        max_response_bytes: cap on a decoded body.
        client: the user's own client, of httpx or of httpx2; never split into pools, never closed.
        backend: ``"httpx"``, or ``"httpx2"`` or ``"aiohttp"`` (the extras of those names).
        trust_env: whether proxies and certificates may come from the environment.
        race_s: a used socket that breaks within so many seconds was closed while idle.

    Raises:
        ConfigError: the environment names an unusable proxy.
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
        race_s: float = _RACE_S,
    ) -> None:
        self._race_s = race_s
        self._base_url, question, query = base_url.partition("?")
        self._query = question + query
        self._address = f" to {self._base_url}"
        self._library = library(backend)
        self._proxy = proxy_for(base_url, backend) if trust_env and client is None else None
        self._headers = self._library.Headers(
            {"content-type": "application/json", "accept-encoding": "identity", "accept": "*/*", **headers}
        )
        if self._proxy is not None and backend == "aiohttp" and base_url.startswith("http:"):
            self._headers.update(proxy_headers(self._proxy))
        self._cap = max_response_bytes
        self._client = client
        self._backend = backend
        self._trust_env = trust_env
        self._tls: ssl.SSLContext | None = None
        self._pools: list[_Pool] = []
        self._retired: list[_Pool] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._urls: dict[tuple[str, bool], Any] = {}
        given = _ID in self._headers or (client is not None and _ID in client.headers)
        self._ids = None if given else RequestIds()

    def __repr__(self) -> str:
        return f"<HttpxTransport to {self._base_url}>"

    @property
    def in_pools(self) -> list[int]:
        """Requests in each pool: first the pools that take more, in order, then the ending ones."""
        return [pool.used for pool in self._pools + self._retired]

    async def send(self, request: WireRequest, timeouts: Timeouts) -> Response:
        """Send a request; return once the headers of the response are there."""
        url = self._urls.get((request.path, request.from_root))
        if url is None:
            base = root_of(self._base_url) if request.from_root else self._base_url
            url = self._library.http.URL(base + request.path + self._query)
            self._urls[request.path, request.from_root] = url
        headers = self._headers
        if request.headers:
            headers = self._library.Headers(headers)
            headers.update(request.headers)
        content = request.body or None
        seconds = {
            "connect": timeouts.connect_s,
            "read": timeouts.read_s,
            "write": timeouts.write_s,
            "pool": timeouts.connect_s,
        }
        under_way = UnderWay(timeouts.read_s)
        extensions: dict[str, Any] = {"timeout": seconds, "trace": under_way.trace}
        if self._client is not None:
            # The client adds its own headers, cookies and query, as to every request of its own.
            wire = self._client.build_request(
                request.method, str(url), content=content, headers=headers, extensions=extensions
            )
            return await self._send_by_user_client(wire, request, under_way, timeouts.read_s)
        if self._backend == "aiohttp":
            from batchclient.transport._aiohttp import make_request

            wire = make_request(request.method, url, content, headers, extensions, under_way)
        else:
            # aiohttp's time for a connection includes the connecting, httpx's only the wait for a
            # place.
            seconds["pool"] = 0.0
            wire = self._library.http.Request(
                request.method, url, content=content, headers=headers, extensions=extensions
            )
            if _is_long(request):
                wire.stream = self._library.Pieces(request.body, len(request.body), under_way)
        return await self._send_in_pools(wire, request, under_way, timeouts.read_s)

    async def _send_in_pools(
        self, wire: Any, request: WireRequest, under_way: UnderWay, silence_s: float | None
    ) -> Response:
        await self._close_idle()
        pool = self._pool()
        again = False
        while True:
            pool.used += 1
            under_way.watch()
            mark = self._mark(wire, request)
            try:
                sending = pool.transport.handle_async_request(wire)
                response = await (under_way.within_silence(sending) if self._backend == "aiohttp" else sending)
            except self._library.http.PoolTimeout as error:
                pool.used -= 1
                if pool.fresh:
                    raise translated(error, self._address) from error
                await self._retire(pool)
                pool = self._pool()
                continue
            except BaseException as error:
                pool.used -= 1
                pool.fresh = False
                if pool.retired:
                    await self._retire(pool)
                if not again and not under_way.fresh and under_way.age_s < self._race_s and _is_break(error):
                    # The pool's other sockets may be closed as well. A new pool has only fresh
                    # sockets.
                    again = True
                    pool = self._new_pool()
                    continue
                if isinstance(error, TimeoutError):
                    raise ReadTimedOut(SILENT) from error
                if isinstance(error, OSError) or is_of(type(error), "TransportError") or is_aiohttps(error):
                    raise self._translated(error, request, under_way) from cause_of(error)
                raise
            pool.fresh = False
            release = partial(self._release, pool)
            made = Response(response, self._cap, silence_s, mark, release, long=_is_long(request))
            await made.check()
            return made

    async def _send_by_user_client(
        self, wire: Any, request: WireRequest, under_way: UnderWay, silence_s: float | None
    ) -> Response:
        client: Any = self._client
        mark = self._mark(wire, request)
        try:
            response = await under_way.within_silence(client.send(wire, stream=True, follow_redirects=False))
        except TimeoutError as error:
            raise ReadTimedOut(SILENT) from error
        except BatchClientError:
            raise
        except Exception as error:  # its transport, its hooks and its authentication are the user's code
            if isinstance(error, RuntimeError) and client.is_closed:
                raise ClientClosed("the http_client given to BatchClient was closed") from error
            raise self._translated(error, request, under_way) from cause_of(error)
        made = Response(response, self._cap, silence_s, mark, None, long=_is_long(request))
        await made.check()
        return made

    def _mark(self, wire: Any, request: WireRequest) -> Mark | None:
        """Give the request a new id, unless its caller gave one; return the mark of the id."""
        if self._ids is None or not request.body or any(name.lower() == _ID for name, _ in request.headers):
            return None
        mark = self._ids.mark(request.body)
        wire.headers[_ID] = mark.id
        return mark

    def _translated(self, error: BaseException, request: WireRequest, under_way: UnderWay) -> BatchClientError:
        """Return batchclient's error, with whether the request's length may be to blame."""
        ours = translated(error, self._address)
        if isinstance(ours, ConnectionLost):
            ours.while_sending = _is_long(request) and not under_way.was_sent_for(_REFUSED_WITHIN_S)
        return ours

    async def _release(self, pool: _Pool, *, good: bool) -> None:
        """Note the end of a response."""
        pool.used -= 1
        pool.used_at = time.monotonic()
        if pool.retired or not good:
            await self._retire(pool)

    async def _retire(self, pool: _Pool) -> None:
        """Use a pool no more; close the pool once no request is in it."""
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
        # In a task of its own: an asyncio task's cancellation goes through anyio's shields.
        closing = asyncio.ensure_future(pool.transport.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _close_idle(self) -> None:
        """Close pools left idle by a smaller load; httpcore drops idle sockets of pools in use."""
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

    def _make_transport(self) -> Any:
        http = self._library.http
        limits = http.Limits(
            max_connections=_CONNECTIONS_PER_POOL,
            max_keepalive_connections=_CONNECTIONS_PER_POOL,
            keepalive_expiry=_KEEPALIVE_S,
        )
        if self._tls is None:
            self._tls = self._make_tls()
        if self._backend == "aiohttp":
            from batchclient.transport._aiohttp import make_transport

            return make_transport(self._tls, limits, self._proxy)
        made = http.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=self._trust_env, proxy=self._proxy)
        # There is no argument for the backend.
        made._pool._network_backend = Sockets(self._library.core)
        return made

    def _make_tls(self) -> ssl.SSLContext:
        if self._base_url.startswith("https:"):
            certificates, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
            try:
                if self._trust_env and folder and not certificates:
                    next(Path(folder).iterdir(), None)
                made: ssl.SSLContext = self._library.http.create_ssl_context(trust_env=self._trust_env)
            except OSError as error:
                variable = "SSL_CERT_FILE" if certificates else "SSL_CERT_DIR"
                why = f"trust_env: {variable} of the environment leads to no certificates"
                raise ConfigError(why, field="trust_env") from error
            return made
        # Reading the certificate store takes some 20 ms and plain HTTP needs none. The context
        # trusts nobody.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def aclose(self) -> None:
        """Close every pool that is not the user's."""
        pools, self._pools, self._retired = self._pools + self._retired, [], []
        for pool in pools:
            await self._close(pool)
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


class _Pool:
    __slots__ = ("fresh", "retired", "transport", "used", "used_at")

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.used = 0
        self.used_at = time.monotonic()
        self.fresh = True
        self.retired = False


def _is_long(request: WireRequest) -> bool:
    return len(request.body) > LONG_BODY_BYTES


def _is_break(error: BaseException) -> bool:
    """Whether the connection ended before the answer's headers, and not by their contents."""
    if is_of(type(error), "RemoteProtocolError"):
        return "without sending a response" in str(error)
    return is_of(type(error), "ReadError", "WriteError") or type(error.__cause__).__name__ in AIOHTTP_BREAKS
