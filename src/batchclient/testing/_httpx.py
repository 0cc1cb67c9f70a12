"""A scripted server behind httpx and behind its fork httpx2, by the same code.

Rules:
- Classes are made per library, because each library insists on its own base classes.
- While a ``MockLLM`` is open, the libraries' own transports ask here first about each request. A
  request to the ``MockLLM``'s host is answered by the ``MockLLM``, and all others go their old way.
  So every client built upon either library reaches the ``MockLLM`` by URL, through the
  client's real code.
- Errors are the library's own, as the library's users see them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from batchclient.errors import ConfigError
from batchclient.testing._speech import Reply
from batchclient.testing._transport import Scripted, is_silent_after

__all__ = ["Library", "intercept", "let_go", "library"]

_NAMES = ("httpx", "httpx2")


@cache
def library(name: str) -> Library:
    """Return the shell around a library.

    Raises:
        ConfigError: the name is neither ``httpx`` nor ``httpx2``.
        ImportError: the library is missing.
    """
    if name not in _NAMES:
        raise ConfigError(f"requests of httpx and httpx2 are answered, not of {name}", field="request")
    return Library(import_module(name))


class Library:
    """Requests and responses of a library.

    Args:
        http: the module.
    """

    def __init__(self, http: Any) -> None:
        self._http = http
        self._body_class = _make_body_class(http)
        self._transport_class = _make_transport_class(http, self)
        self._originals: tuple[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<Library {self._http.__name__}>"

    def transport(self, mock: Scripted) -> Any:
        """A transport, both sync and async."""
        return self._transport_class(mock)

    def respond(self, mock: Scripted, request: Any) -> Any:
        """A response; in an event loop an awaitable, where the response takes time."""
        reply = self.receive(mock, request)
        if reply.delay_s and _in_event_loop():
            return self.respond_later(request, reply)
        return self.respond_now(request, reply)

    def receive(self, mock: Scripted, request: Any) -> Reply:
        """Hand a request over."""
        return mock.receive(request.method, request.url.path, dict(request.headers), request.content)

    def respond_now(self, request: Any, reply: Reply) -> Any:
        """A response for a caller who blocks."""
        read_s = _read_timeout_s(request)
        wait_s = reply.delay_s if read_s is None else min(reply.delay_s, read_s)
        if wait_s == float("inf"):
            raise ConfigError("hang() with a blocking client that has no read timeout would never end", field="timeout")
        time.sleep(wait_s)
        return self._response(request, reply, silent=wait_s < reply.delay_s or reply.fault == "time_out")

    async def respond_later(self, request: Any, reply: Reply) -> Any:
        """A response for a caller in an event loop."""
        silent = await is_silent_after(reply, _read_timeout_s(request))
        return self._response(request, reply, silent=silent)

    def _response(self, request: Any, reply: Reply, *, silent: bool) -> Any:
        http = self._http
        if silent:
            raise http.ReadTimeout("the server was silent", request=request)
        if reply.fault == "refuse":
            raise http.ConnectError("the connection was refused", request=request)
        if reply.fault == "disconnect":
            message = "Server disconnected without sending a response."
            raise http.RemoteProtocolError(message, request=request)
        return http.Response(
            reply.status, headers=reply.headers, stream=self._body_class(reply, request), request=request
        )

    # Interception ----------------------------------------------------------------------------------------------------

    def patch(self) -> None:
        """Have the library's transports ask here first."""
        sync_class, async_class = self._http.HTTPTransport, self._http.AsyncHTTPTransport
        sync_send, async_send = sync_class.handle_request, async_class.handle_async_request
        self._originals = sync_send, async_send

        def handle_request(transport: Any, request: Any) -> Any:
            mock = _open.get(request.url.host)
            return sync_send(transport, request) if mock is None else self.transport(mock).handle_request(request)

        async def handle_async_request(transport: Any, request: Any) -> Any:
            mock = _open.get(request.url.host)
            if mock is None:
                return await async_send(transport, request)
            trace = request.extensions.get("trace")
            if trace is not None:
                # Without the event a client might take the connection for a used connection, broken
                # while idle.
                await trace("connection.connect_tcp.started", {})
            return await self.transport(mock).handle_async_request(request)

        sync_class.handle_request = handle_request
        async_class.handle_async_request = handle_async_request

    def unpatch(self) -> None:
        """Leave the library as before."""
        if self._originals is not None:
            self._http.HTTPTransport.handle_request, self._http.AsyncHTTPTransport.handle_async_request = (
                self._originals
            )
            self._originals = None


_open: dict[str, Scripted] = {}
"""By host; each server has a host of its own."""
_lock = threading.Lock()


def intercept(mock: Scripted) -> None:
    """Hand a server all requests to its host."""
    with _lock:
        if not _open:
            for name in _NAMES:
                if find_spec(name) is not None:
                    library(name).patch()
        _open[mock.host] = mock


def let_go(mock: Scripted) -> None:
    """Undo ``intercept``."""
    with _lock:
        if _open.pop(mock.host, None) is not None and not _open:
            for name in _NAMES:
                if name in sys.modules:
                    library(name).unpatch()


# Parts of both libraries -----------------------------------------------------------------------------------------


def _make_body_class(http: Any) -> Callable[[Reply, Any], Any]:
    class Body(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc]  # known while running only
        def __init__(self, reply: Reply, request: Any) -> None:
            self._reply = reply
            self._request = request

        def __iter__(self) -> Iterator[bytes]:
            yield from self._reply.pieces
            if self._reply.fault == "cut":
                message = "peer closed connection without sending complete message body (incomplete chunked read)"
                raise http.RemoteProtocolError(message, request=self._request)

        async def __aiter__(self) -> AsyncGenerator[bytes]:
            for piece in self:
                yield piece

    return Body


def _make_transport_class(http: Any, own: Library) -> Callable[[Scripted], Any]:
    class MockTransport(http.BaseTransport, http.AsyncBaseTransport):  # type: ignore[misc]
        def __init__(self, mock: Scripted) -> None:
            self._mock = mock

        def handle_request(self, request: Any) -> Any:
            request.read()
            return own.respond_now(request, own.receive(self._mock, request))

        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            return await own.respond_later(request, own.receive(self._mock, request))

    return MockTransport


def _read_timeout_s(request: Any) -> float | None:
    seconds: float | None = (request.extensions.get("timeout") or {}).get("read")
    return seconds


def _in_event_loop() -> bool:
    if asyncio._get_running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()
