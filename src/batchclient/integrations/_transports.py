"""What the transports of all HTTP libraries share: one ``BatchClient`` per server and set of headers, and a way around them.

Rules:
- What may share a request (``_requests``) goes through a ``BatchClient``; everything else, and what that client refuses, goes to the inner transport as it came,
  streams included.
- One client per (base URL, headers that count), so that credentials never mix; each has a limit of its own. There are at most 32: then the one that was idle
  longest makes room, and where all are busy the request goes around them.
- A read timeout bounds the whole call: a reply that is not streamed is silent until it is there. The connect timeout is the client's own.
- The library retries by itself, so a call here is one attempt, unless ``max_attempts`` says otherwise: attempts would multiply.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio.lowlevel

from batchclient._backend import AsyncioBackend
from batchclient._bridge import Bridge
from batchclient._openai_form import make_calls
from batchclient.client import BatchClient
from batchclient.config import check_base_url
from batchclient.errors import BatchClientError, ClientClosed, ConfigError
from batchclient.integrations._over import client_over, client_over_threads
from batchclient.integrations._requests import Job, RequestReader
from batchclient.integrations._responses import ResponseWriter

__all__ = ["AsyncBatching", "SyncBatching"]

_MOST_CLIENTS = 32
"""Each has connections and a learnt limit of its own; programs have one or two."""
_NOT_HERE = {
    "model": "each request names its own",
    "api_key": "each request brings its own",
    "headers": "each request brings its own",
    "http_client": "give the transport that is to be used: transport=…",
    "render_chat": "it is for BatchClient.chat",
    "count_tokens": "it is for BatchClient's own calls",
}
_MOST_CONNECTIONS, _MOST_IDLE = 1000, 100
"""Of the transport for all else: openai's own (openai-python, _constants.py). httpx's 100 would let streams wait for each other."""


class Batcher:
    """The clients of one transport, and what they are for.

    Args:
        library: ``httpx`` or ``httpx2``.
        http_client: sends the shared requests, if they are to go over a user's own transport.
        base_url, max_attempts, labels, settings: the transport's.
    """

    def __init__(
        self,
        library: Any,
        http_client: Any,
        *,
        base_url: str | None,
        max_attempts: int | None,
        labels: Collection[str],
        settings: dict[str, Any],
    ) -> None:
        for name in settings:
            if name in _NOT_HERE:
                raise ConfigError(f"{name} is not a setting of a transport: {_NOT_HERE[name]}", field=name)
        if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
            raise ConfigError("max_attempts is a whole number of at least 1, or None", field="max_attempts")
        if isinstance(labels, str) or not all(isinstance(name, str) and name.isascii() for name in labels):
            raise ConfigError("labels is a collection of names of headers", field="labels")
        if base_url is not None:
            url = library.URL(check_base_url(base_url))
            base_url = f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}"
        self._settings = settings
        # Wrong settings are refused here, not with the first request.
        BatchClient("http://localhost/v1", **settings)
        self._http_client = http_client
        self._max_attempts = max_attempts
        self._reader = RequestReader(base_url, labels)
        self.read = self._reader.read
        self._writer = ResponseWriter(library)
        self._desks: OrderedDict[_Key, _Desk] = OrderedDict()
        self.shared = 0
        self.passed_on = 0
        self._counting = threading.Lock()

    def __repr__(self) -> str:
        return f"{self.shared} shared, {self.passed_on} passed on, {self.clients}"

    def pass_on(self) -> None:
        """A request goes past. Of a sync transport's, in any thread."""
        with self._counting:
            self.passed_on += 1

    @property
    def clients(self) -> tuple[BatchClient, ...]:
        """Those at work."""
        return tuple(desk.client for desk in self._desks.values() if desk.client is not None)

    async def respond(self, job: Job, request: Any) -> Any:
        """Return the response to a request; ``None``: it is to go alone."""
        key = (job.base_url, job.headers)
        desk = self._desks.get(key)
        if desk is None:
            desk = await self._make_desk(key)
        else:
            self._desks.move_to_end(key)
        if desk is None or desk.client is None:
            return None
        desk.busy += 1
        try:
            reply = await make_calls(desk.client, job.calls, job.timeout_s, self._max_attempts)
        except BatchClientError as error:
            return self._writer.failure(error, request)
        finally:
            desk.busy -= 1
        if reply is None:
            return None
        self.shared += 1
        return self._writer.answer(reply)

    async def _make_desk(self, key: _Key) -> _Desk | None:
        """Return a new client's; ``None`` if there may be none more."""
        gone = None
        if len(self._desks) >= _MOST_CLIENTS:
            idle = next((each for each, desk in self._desks.items() if not desk.busy), None)
            if idle is None:
                return None
            gone = self._desks.pop(idle).client
        self._desks[key] = desk = _Desk(self._make_client(*key))
        if gone is not None:
            # Meanwhile nobody is to take it for idle.
            desk.busy += 1
            try:
                await gone.aclose()
            finally:
                desk.busy -= 1
        return desk

    def _make_client(self, base_url: str, headers: tuple[tuple[bytes, bytes], ...]) -> BatchClient | None:
        """``None``: the server may well take such a URL or header, and we do not."""
        try:
            named = {name.decode("ascii"): value.decode("ascii") for name, value in headers}
            if len(named) < len(headers):
                return None
            return BatchClient(base_url, headers=named, http_client=self._http_client, **self._settings)
        except (ConfigError, UnicodeDecodeError):
            return None

    async def aclose(self) -> None:
        """End all calls and close the clients' connections."""
        clients = self.clients
        self._desks.clear()
        for client in clients:
            await client.aclose()


_Key = tuple[str, tuple[tuple[bytes, bytes], ...]]
"""(base URL, headers that count)."""


@dataclass(slots=True)
class _Desk:
    """A client, or that there is none for its key, and how many requests are with it."""

    client: BatchClient | None
    busy: int = 0


class Batching:
    """What the async and the sync transports have in common.

    Args:
        transport, base_url, max_attempts, labels, settings: as ``AsyncBatching``'s.
    """

    _library: ClassVar[Any]

    def __init__(
        self,
        transport: Any = None,
        *,
        base_url: str | None = None,
        max_attempts: int | None = 1,
        labels: Collection[str] = (),
        **settings: Any,
    ) -> None:
        library = self._library
        self._given = transport
        over = None if transport is None else self._client_over(transport)
        self._batcher = Batcher(
            library, over, base_url=base_url, max_attempts=max_attempts, labels=labels, settings=settings
        )
        self._own_arguments = {
            "limits": library.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_IDLE),
            "trust_env": bool(settings.get("trust_env")),
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
        raise NotImplementedError

    def _read(self, request: Any) -> Job | None:
        if self._closed:
            raise RuntimeError("the transport is closed")
        return self._batcher.read(request)

    def _refuse(self, transport: Any, kind: str) -> ConfigError:
        name = type(transport).__name__
        return ConfigError(f"transport is {kind} of {self._library.__name__}'s, not a {name}", field="transport")


class AsyncBatching(Batching):
    """An HTTP transport that lets completions, chats and embeddings share requests; all else it passes on.

        client = AsyncOpenAI(base_url=…, http_client=httpx2.AsyncClient(transport=BatchTransport()))

    The server is learnt from the requests' own URLs: what is posted to ``…/completions``, ``…/chat/completions`` or ``…/embeddings`` is batched, for each server
    and each set of headers by itself. A request with ``stream`` goes alone.

    Args:
        transport: what everything is sent over; by default shared requests go over pools of ours, the rest over the library's own transport.
            It is closed with this one.
        base_url: batch only what goes to this server; by default any.
        max_attempts: requests that may be sent for one call. 1 by default, since libraries retry by themselves and the attempts would multiply;
            ``None``: as ``BatchClient`` does, by ``retry``. Turn the library's own retries off then.
        labels: names of further headers that say who asks, not what is asked: requests that differ in them share, and they are not sent.
        settings: ``BatchClient``'s: ``preset``, ``limit``, ``max_list``, ``retry``, …

    Raises:
        ConfigError: an argument is wrong; the error names it.
    """

    _own: Any = None
    _own_token: object = None
    _keeper: Any = None

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request."""
        job = self._read(request)
        if job is not None:
            response = await self._batcher.respond(job, request)
            if response is not None:
                return response
        self._batcher.pass_on()
        inner = self._own_of_this_loop() if self._given is None else self._given
        return await inner.handle_async_request(request)

    async def aclose(self) -> None:
        """End all calls, close every connection, and the transport that was given."""
        self._closed = True
        try:
            await self._batcher.aclose()
        finally:
            if self._given is not None:
                await self._given.aclose()
            elif self._own is not None and self._own_token is anyio.lowlevel.current_token():
                await self._own.aclose()

    def _client_over(self, transport: Any) -> Any:
        if not isinstance(transport, self._library.AsyncBaseTransport):
            raise self._refuse(transport, "an async transport")
        return client_over(transport, self._library)

    def _own_of_this_loop(self) -> Any:
        """The library's own transport. Its sockets belong to an event loop."""
        token = anyio.lowlevel.current_token()
        if self._own is None or self._own_token is not token:
            self._own = own = self._library.AsyncHTTPTransport(**self._own_arguments)
            self._own_token = token
            if asyncio._get_running_loop() is not None:
                self._keeper = AsyncioBackend(copy_context()).at_end(own.aclose)
        return self._own


class SyncBatching(Batching):
    """The same for clients that block: calls that threads make at nearly the same time share requests.

        client = OpenAI(base_url=…, http_client=httpx2.Client(transport=SyncBatchTransport()))

    One event loop in a thread of its own serves all threads. What passes goes over the library's own transport in the caller's thread.

    Args:
        transport: what everything is sent over, as for ``BatchTransport``; shared requests then occupy a thread each, and are read whole.
        base_url, max_attempts, labels, settings: as for ``BatchTransport``.

    Raises:
        ConfigError: an argument is wrong; the error names it.
    """

    def __init__(self, transport: Any = None, **settings: Any) -> None:
        super().__init__(transport, **settings)
        self._bridge = Bridge(self._batcher.aclose)
        self._own: Any = None
        self._making = threading.Lock()

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
        return (self._own_of_all_threads() if self._given is None else self._given).handle_request(request)

    def close(self) -> None:
        """End all calls, close every connection, and the transport that was given."""
        self._closed = True
        try:
            self._bridge.close()
        finally:
            for inner in (self._given, self._own):
                if inner is not None:
                    inner.close()

    def _client_over(self, transport: Any) -> Any:
        if not isinstance(transport, self._library.BaseTransport):
            raise self._refuse(transport, "a sync transport")
        return client_over_threads(transport, self._library)

    def _own_of_all_threads(self) -> Any:
        with self._making:
            if self._own is None:
                self._own = self._library.HTTPTransport(**self._own_arguments)
            return self._own
