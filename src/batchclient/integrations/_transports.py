"""The common part of all HTTP libraries' transports: through a ``BatchClient``, or around it.

Rules:
- A request that may be shared (``_requests``) goes through a ``BatchClient`` (``_batcher``). All
  other requests, and requests that the client refuses, go to the inner transport untouched, streams
  included.
- A given transport carries all requests, the shared too, in a client of its library. The given
  transport is closed with the batching transport. A blocking one cannot carry what an event loop
  sends, and is refused.
- Without a given transport, shared requests have pools of ours, of the library's own transports.
  The rest goes over a further transport of the library, made on first use, afresh in each event
  loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import copy_context
from typing import Any, ClassVar, Unpack

from batchclient import BatchClient
from batchclient._common.forks import ForkLock
from batchclient._shell.backend import AsyncioBackend
from batchclient._threads.bridge import Bridge
from batchclient.errors import ClientClosed, ConfigError
from batchclient.integrations._batcher import Batcher
from batchclient.integrations._requests import Job
from batchclient.options import Server, SharingArguments

__all__ = ["AsyncBatching", "SyncBatching"]

_MOST_CONNECTIONS, _MOST_IDLE = 1000, 100
"""For the transport beside the pools: openai's own bounds (openai-python, _constants.py).

httpx's 100 would let streams wait for each other.
"""


class TransportArguments(SharingArguments, total=False):
    """Those of ``BatchClient``'s arguments that a transport takes."""

    timeout_s: float


class Batching:
    """The common part of the async and the sync transports.

    Args:
        transport, base_url, max_attempts, ignored_headers, settings: as ``AsyncBatching``'s.
    """

    _library: ClassVar[Any]

    def __init__(
        self,
        transport: Any = None,
        *,
        base_url: str | Server | None = None,
        max_attempts: int | None = 1,
        ignored_headers: Collection[str] = (),
        **settings: Unpack[TransportArguments],
    ) -> None:
        library = self._library
        self._given = transport
        over = None if transport is None else self._client_over(transport)
        self._batcher = Batcher(
            library,
            over,
            base_url=base_url,
            max_attempts=max_attempts,
            ignored_headers=ignored_headers,
            settings=dict(settings),
        )
        self._own_arguments = {
            "limits": library.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_IDLE),
            "trust_env": self._batcher.trust_env,
        }
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self._closed else self._batcher}>"

    @property
    def clients(self) -> tuple[BatchClient, ...]:
        """The ``BatchClient`` of each server and set of headers, for ``statistics()``."""
        return self._batcher.clients

    @property
    def shared(self) -> int:
        """Requests that a ``BatchClient`` answered."""
        return self._batcher.shared

    @property
    def passed_on(self) -> int:
        """Requests that went past."""
        return self._batcher.passed_on

    def _client_over(self, transport: Any) -> Any:
        raise ConfigError("a blocking transport cannot carry shared requests; give http=Http(…)", field="transport")

    def _read(self, request: Any) -> Job | None:
        if self._closed:
            raise RuntimeError("the transport is closed")
        if not isinstance(request, self._library.Request):
            mine, theirs = self._library.__name__, type(request).__module__.partition(".")[0]
            raise ConfigError(
                f"this transport is for {mine}; a client of {theirs} takes batchclient.integrations.{theirs}'s"
            )
        return self._batcher.read(request)


class AsyncBatching(Batching):
    """An HTTP transport that lets completions, chats and embeddings share requests.

    All other requests are passed on. For example::

        client = AsyncOpenAI(base_url=…, http_client=httpx2.AsyncClient(transport=BatchTransport()))

    The server is learnt from the requests' own URLs. A POST to ``…/completions``,
    ``…/chat/completions`` or ``…/embeddings`` is batched, for each server and each set of headers
    separately. A request with ``stream`` goes alone. The transport is for asyncio.

    Args:
        transport: carries every request, and is closed with the batching transport. By default
            shared requests go over pools of ours, the rest over the library's own transport.
        base_url: batch only requests to one server; by default to any.
        max_attempts: the most requests for a call. 1 by default, since libraries retry by
            themselves and the attempts would multiply. ``None``: by ``retry``, as ``BatchClient``
            does; turn the library's own retries off then.
        ignored_headers: names of further headers that leave the question as it is, such as a job's
            number. Requests that differ in such headers share, and the headers are not sent.
        settings: ``BatchClient``'s: ``preset``, ``limit``, ``batching``, ``retry``, …
            By default the library of ``http`` is the transport's.

    Raises:
        ConfigError: an argument is wrong; the error names the argument.
    """

    _own: Any = None
    _own_loop: object = None
    _keeper: Any = None

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request."""
        if asyncio._get_running_loop() is None:
            raise ConfigError("the transport is for asyncio; on trio use BatchClient itself")
        job = self._read(request)
        if job is not None:
            response = await self._batcher.respond(job, request)
            if response is not None:
                return response
        self._batcher.pass_on()
        inner = self._own_of_this_loop() if self._given is None else self._given
        return await inner.handle_async_request(request)

    async def aclose(self) -> None:
        """End all calls, close every connection, and the given transport."""
        self._closed = True
        try:
            await self._batcher.aclose()
        finally:
            if self._given is not None:
                await self._given.aclose()
            elif self._own is not None and self._own_loop is asyncio._get_running_loop():
                await self._own.aclose()

    def _client_over(self, transport: Any) -> Any:
        if not isinstance(transport, self._library.AsyncBaseTransport):
            hint = "; a server is given as base_url=…" if isinstance(transport, str) else ""
            message = f"an async transport of {self._library.__name__}'s, not a {type(transport).__name__}{hint}"
            raise ConfigError(f"transport is {message}", field="transport")
        return self._library.AsyncClient(transport=transport)

    def _own_of_this_loop(self) -> Any:
        """The library's own transport, whose sockets belong to an event loop."""
        loop = asyncio.get_running_loop()
        if self._own is None or self._own_loop is not loop:
            self._own = own = self._library.AsyncHTTPTransport(**self._own_arguments)
            self._own_loop = loop
            self._keeper = AsyncioBackend(copy_context()).at_end(own.aclose)
        return self._own


class SyncBatching(Batching):
    """The transport for clients that block: calls of several threads at nearly the same time share.

    For example::

        client = OpenAI(base_url=…, http_client=httpx2.Client(transport=SyncBatchTransport()))

    One event loop in a thread of its own serves all threads. Requests that go past use the
    library's own transport in the caller's thread.

    Args:
        base_url, max_attempts, ignored_headers, settings: as for ``BatchTransport``. A
            ``transport`` is refused: proxies and certificates are ``http=Http(…)``'s.

    Raises:
        ConfigError: an argument is wrong; the error names the argument.
    """

    def __init__(self, transport: Any = None, **settings: Any) -> None:
        super().__init__(transport, **settings)
        self._bridge = Bridge(self._batcher.aclose)
        self._own: Any = None
        self._making = ForkLock()

    def handle_request(self, request: Any) -> Any:
        """Answer a request."""
        job = self._read(request)
        if job is not None:
            try:
                response = self._bridge.call(self._batcher.respond, job, request)
            except ClientClosed as error:
                raise self._library.ReadError(error.message, request=request) from error
            if response is not None:
                return response
        self._batcher.pass_on()
        return self._own_of_all_threads().handle_request(request)

    def close(self) -> None:
        """End all calls and close every connection."""
        self._closed = True
        try:
            self._bridge.close()
        finally:
            if self._own is not None:
                self._own.close()

    def _own_of_all_threads(self) -> Any:
        with self._making:
            if self._own is None:
                self._own = self._library.HTTPTransport(**self._own_arguments)
            return self._own
