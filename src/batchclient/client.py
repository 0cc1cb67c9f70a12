"""``BatchClient``: a client's settings and life. It keeps one runner per event loop.

Its calls are in ``_methods``, ``_map_methods`` and ``_pooling``; what can be changed while it runs is in ``_steering``, how it reaches its servers
in ``_connections``.

Rules:
- Bad input is refused here, before anything is queued, with an error that names the argument.
- A client may be made anywhere; it starts when the first call is made, in the event loop of that call.
- It serves one event loop at a time. If that loop has gone it starts afresh; if it is alive, a call from another is refused.
- After a fork the child starts afresh; the parent's sockets are left alone.
"""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any

from batchclient._calls.make import CallMaker
from batchclient._client.connections import Connections, shown
from batchclient._client.control import SteeringMethods
from batchclient._client.map_methods import MapMethods
from batchclient._client.scoring import PoolingMethods
from batchclient._core.limits import Turn
from batchclient._core.messages import Adjustment, Paused, Resumed
from batchclient._core.scheduler import Scheduler
from batchclient._core.single_flight import SingleFlight
from batchclient._core.statistics import Statistics
from batchclient._shell.backend import AsyncioBackend, Backend, TrioBackend
from batchclient._shell.callbacks import Callbacks, ends_unwrapped
from batchclient._shell.dialect_choice import DialectChoice
from batchclient._shell.runner import Runner
from batchclient.errors import ClientClosed, ConfigError
from batchclient.retry import Backoff, RetryPolicy
from batchclient.transport import Timeouts, Transport

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["BatchClient"]

_clients: weakref.WeakSet[BatchClient] = weakref.WeakSet()
_of_the_parent: list[object] = []


class BatchClient(MapMethods, PoolingMethods, SteeringMethods):
    """An async client that turns many small calls into few well-shaped requests.

    Calls made at the same time, with the same parameters, share requests; each caller gets its own answer, error,
    deadline and cancellation. One client per server and process: two clients do not know of each other's load.

        client = BatchClient("http://localhost:8000/v1", model="m")
        answer = await client.complete("Summarise: …", max_tokens=64)

    Args:
        base_url: the server's OpenAI-style root, with its ``/v1``; or a list of them, each with its own limit.
        model: the name the server knows the model by; a call may name another. By default the server is asked for it once, before
            the first call that names none: it must then serve one only.
        api_key: sent as a bearer token.
        preset: ``"latency"``, ``"balanced"`` or ``"throughput"``: what ``limit`` to ``starvation_s`` are unless given.
        dialect: the server's language: ``"vllm"``, ``"sglang"``, ``"tgi"``, ``"llamacpp"``, ``"trtllm"``, ``"tei"`` or ``"openai"``, which is any
            other with OpenAI's API. What each has is in ``docs/reference/servers.md``.
        http_client: your own ``httpx.AsyncClient`` or ``httpx2.AsyncClient``; it is used as it is and never closed.
        transport: your own way of sending: a function of a base URL and of the headers for every request that returns a
            ``batchclient.transport.Transport``; called once per server and event loop, and closed with the client.
        retry: when to try again; ``Backoff()`` by default, ``TenacityRetry(…)`` for tenacity's strategies.
        headers: sent with every request.
        limit: sequences (prompts × n) in flight per endpoint, at most: a number, or ``"auto"`` (the default) to have it found
            while running.
        initial_limit: where a limit that is found starts; by default that depends on what is known of the server.
        max_limit: how far it may go.
        p95_latency_s: lower the limit until 95 % of the answers take no longer than this, from sending to answer, seconds.
        time_to_first_token_s: the same for the time to first token, where replies are streamed.
        max_list: prompts per request, at most; 1 sends every call by itself.
        linger_s: how long a call may wait for company while permits are free and the server is busy, seconds.
        refill_s: how long freed permits may be held back to be granted together, seconds.
        refill_ratio: how large a share of the limit is granted together; 0 grants each permit as it comes free.
        starvation_s: after this long in the queue nothing younger passes a heavy call, seconds.
        requests_per_minute: per endpoint; a list is one request. At most a tenth of a minute's worth at once. None: any number.
        tokens_per_minute: prompt and output tokens per endpoint, by estimate until the server says; else the same.
        max_queued: calls in the queue, at most, per priority class and tenant; further ones wait their turn outside it.
        when_full: ``"wait"``, or ``"raise"`` to refuse calls over ``max_queued`` with ``QueueFull``.
        singles_above_tokens: calls expected to generate more tokens than this are sent by themselves; 256 by default. A list that
            cannot be streamed, as one of chats, answers everyone when its slowest ends. So its calls are sent by themselves above an
            eighth of this (32), or above half of it (128) where answers were seen to end together, at ``max_tokens``.
        order: which queued call goes first: ``"fcfs"`` (first come, first served), ``"shortest_first"`` (expected tokens, with aging),
            ``"deadline"`` (earliest ``timeout_s`` end).
        aging_s: the head start of one priority class over the next, seconds: what a call of a lower class waits longer, at most.
        group_prefixes: let calls whose prompts begin alike (256 bytes and more) go next to each other, so that the server's prefix
            cache serves them; with ``order="fcfs"``.
        send_priority: pass the calls' priorities on to the server; vLLM heeds them with ``--scheduling-policy priority``.
        tenant_weights: shares of tenants that are to get more or less than others, by name; 1 for the rest.
        batch_size: prompts per request for a queue depth, such as ``lambda queue_depth: min(queue_depth, 16)``, instead of ``max_list``;
            the server's own cap holds. Called for every look at the queue: it must be quick.
        length_reach: how many length buckets (powers of 2 of the estimated tokens) away from its oldest call a list may reach; by default
            the dialect's, which is any where the server batches continuously.
        timeout_s: a call's whole time, queue and retries included; none by default. A call may give its own.
        outage_patience_s: how long a call waits while every server that has ever answered is away, seconds; 30 by default. Calls of maps wait
            as long as their deadlines allow.
        connect_timeout_s: for a connection, seconds.
        read_timeout_s: the longest silence of the server within a request, seconds. A streamed answer is silent until its first token,
            and then for 256 tokens at most, so this bounds no generation that goes on.
        max_response_bytes: cap on one decoded response.
        max_model_len: the model's length in tokens, if known; learnt from the server's first complaint otherwise.
        single_flight: let equal calls under way share one generation: the same prompt, parameters and tenant, with ``temperature=0`` given.
        render_chat: the model's chat template: a callable of a conversation's messages that returns the prompt, a text with all special tokens or
            token ids. Chats with a given length are then sent as completions, in lists that stream; no reasoning or tool parser sees them.
        count_tokens: counts a text's tokens, to refuse over-long texts here; token-id prompts need none.
        on_adjustment: called with every ``Adjustment`` of a limit or list cap, in the event loop; it must not block.
        http_backend: the library that sends, and whose mocks see what is sent: ``"httpx"``; or, with
            the extra of the same name, ``"httpx2"``, its fork, or ``"aiohttp"``, a faster path.
        trust_env: whether proxies and certificates may come from environment variables.
        detect: whether to find out with at most three GETs beside the calls which server each endpoint is, and so its dialect, its limits and
            its model's length; on by default, except with an ``http_client``, a ``transport``, a ``dialect`` or ``server_metrics=False`` given.
        server_metrics: whether to ask servers for their ``/metrics`` page while calls are under way, to try a lower limit where calls
            queue there; on by default, except with an ``http_client``, a ``transport`` or a ``dialect`` given.

    Raises:
        ConfigError: an argument is wrong; the error names it.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        *,
        model: str | None = None,
        api_key: str | None = None,
        preset: str = "balanced",
        dialect: str | None = None,
        http_client: httpx.AsyncClient | httpx2.AsyncClient | None = None,
        transport: Callable[[str, Mapping[str, str]], Transport] | None = None,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int | str | None = None,
        initial_limit: int | None = None,
        max_limit: int | None = None,
        p95_latency_s: float | None = None,
        time_to_first_token_s: float | None = None,
        max_list: int | None = None,
        linger_s: float | None = None,
        refill_s: float | None = None,
        refill_ratio: float | None = None,
        starvation_s: float | None = None,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_queued: int | None = None,
        when_full: str | None = None,
        singles_above_tokens: int | None = None,
        order: str | None = None,
        aging_s: float | None = None,
        group_prefixes: bool | None = None,
        send_priority: bool | None = None,
        tenant_weights: Mapping[str, float] | None = None,
        batch_size: Callable[[int], int] | None = None,
        length_reach: int | None = None,
        timeout_s: float | None = None,
        outage_patience_s: float | None = None,
        connect_timeout_s: float | None = None,
        read_timeout_s: float | None = None,
        max_response_bytes: int | None = None,
        max_model_len: int | None = None,
        single_flight: bool | None = None,
        render_chat: Callable[[Any], Any] | None = None,
        count_tokens: Callable[[str], int] | None = None,
        on_adjustment: Callable[[Adjustment], object] | None = None,
        http_backend: str | None = None,
        trust_env: bool | None = None,
        server_metrics: bool | None = None,
        detect: bool | None = None,
    ) -> None:
        arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "api_key", "preset", "dialect", "http_client", "transport", "retry")
        }
        # Pydantic comes with it, which takes as long to import as all the rest of batchclient.
        from batchclient.config import make_settings

        self._settings = make_settings(preset, arguments)
        connections = Connections(self._settings, api_key, http_client, transport, dialect)
        self._make_transport = connections.for_calls
        self._page_transports = connections.pages
        self._secrets_for = connections.secrets_for
        self._dialects = DialectChoice(dialect, connections.secrets)
        if retry is not None and (isinstance(retry, type) or not callable(getattr(retry, "decide", None))):
            raise ConfigError("retry is a RetryPolicy, such as Backoff() or TenacityRetry(…)", field="retry")
        self._callbacks = Callbacks()
        self._retry = self._callbacks.guard_policy(retry or Backoff())
        self._endpoints: list[tuple[str, int]] = [(url, place) for place, url in enumerate(self._settings.base_url)]
        """(base URL, id in the present runner) of what is served."""
        self._leaving: list[tuple[str, int]] = []
        self._calls = CallMaker(self._settings)
        self._context = copy_context()
        self._runner: Runner | None = None
        self._keeper: AsyncGenerator[None] | None = None
        self._nursery: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._paused = False
        self._pinned: int | None = None
        self._turn = Turn()
        _clients.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._runner.core) if self._runner else "idle"
        urls = ", ".join(shown(url) for url, _ in self._endpoints)
        return f"<BatchClient for {urls}: {state}>"

    # The life of a client ------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of what the client is doing and has done."""
        if self._runner is not None:
            return self._runner.core.statistics()
        return self._make_core().statistics()

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        Cancellation: leaves the client draining; ``aclose()`` ends what is left.
        """
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            runner.tell(Resumed())
            try:
                await runner.drain()
            finally:
                await self._let_go(runner)

    async def aclose(self) -> None:
        """End every call now with ``ClientClosed`` and close every connection of our own."""
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            try:
                await runner.aclose()
            finally:
                await self._let_go(runner)

    async def __aenter__(self) -> BatchClient:
        if self._closed:
            raise ClientClosed("the client is closed; make a new one")
        if self._nursery is not None:
            raise ConfigError("the client is in use by another `async with`")
        if asyncio._get_running_loop() is None:
            import trio

            self._nursery = trio.open_nursery()
            self._trio_nursery = await self._nursery.__aenter__()
        try:
            self._start()
        except BaseException:
            nursery, self._nursery = self._nursery, None
            if nursery is not None:
                await nursery.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        finally:
            nursery, self._nursery = self._nursery, None
            if nursery is not None:
                with ends_unwrapped():
                    await nursery.__aexit__(None, None, None)

    def __del__(self, _warn: Any = warnings.warn) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None and not runner.core.idle and not getattr(self, "_closed", True):
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    # Starting ------------------------------------------------------------------------------------------------------

    def _start(self) -> Runner:
        """Return the runner of the running event loop, a fresh one if need be.

        Raises:
            ClientClosed: the client is closed.
            ConfigError: another live event loop uses the client, or trio runs and ``async with`` is missing.
        """
        if self._closed:
            raise ClientClosed("the client is closed; make a new one")
        loop = asyncio._get_running_loop()
        if self._runner is not None and not self._runner.ended:
            if self._runner.backend.is_current():
                return self._runner
            if self._runner.backend.is_running():
                message = "another running event loop uses this client; make one client per event loop"
                raise ConfigError(message)
        backend: Backend
        if loop is not None:
            backend = AsyncioBackend(self._context)
        elif self._nursery is None:
            raise ConfigError("without asyncio a client needs `async with BatchClient(…) as client:`")
        elif self._settings.http_backend == "aiohttp":
            raise ConfigError(
                "http_backend='aiohttp' needs asyncio; on trio it is 'httpx' or 'httpx2'", field="http_backend"
            )
        else:
            backend = TrioBackend(self._context, self._trio_nursery)
        self._loop = loop
        self._callbacks.backend = backend
        on_adjustment = self._settings.on_adjustment
        # Ids begin anew with each runner.
        self._endpoints = [(url, place) for place, (url, _) in enumerate(self._endpoints)]
        self._leaving = []
        self._runner = runner = Runner(
            backend,
            self._make_core(),
            self._dialects,
            [self._make_transport(url) for url, _ in self._endpoints],
            self._retry,
            Timeouts(connect_s=self._settings.connect_timeout_s, read_s=self._settings.read_timeout_s),
            self._calls.learn,
            None if on_adjustment is None else self._callbacks.guard("on_adjustment", on_adjustment),
            pages={page: [make(url) for url, _ in self._endpoints] for page, make in self._page_transports.items()},
            model=self._settings.model,
            on_server=self._calls.lengths.know,
            on_model=self._calls.found_model,
            on_own_fields=self._calls.mix,
        )
        self._calls.lengths.restart(len(self._endpoints))
        self._keeper = backend.at_end(runner.aclose)
        if self._paused:
            runner.tell(Paused())
        return runner

    def _make_core(self) -> Scheduler | SingleFlight:
        settings = self._settings.scheduler(self._dialects.at_first, self._callbacks)
        names = [shown(url) for url, _ in self._endpoints]
        core = Scheduler(settings, [self._make_limit() for _ in names], names, self._page_transports)
        return SingleFlight(core) if self._settings.single_flight else core

    async def _let_go(self, runner: Runner) -> None:
        # Where closing was cancelled, the end of the event loop goes on with it.
        if runner.over and self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            await keeper.aclose()

    def _forget_parent(self) -> None:
        """After a fork: the runner, its tasks and its sockets are the parent's."""
        # Kept, because collecting them would close or shut down what is shared with the parent.
        _of_the_parent.append((self._runner, self._keeper))
        self._runner = None
        self._keeper = None
        self._loop = None
        self._nursery = None


def _after_fork() -> None:
    for client in list(_clients):
        client._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
