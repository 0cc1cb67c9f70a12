"""``BatchClient``: a client's settings and life; the calls are in ``_methods``. It keeps one runner per event loop.

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
from urllib.parse import parse_qsl, quote

from batchclient._backend import AsyncioBackend, Backend, TrioBackend
from batchclient._calls import CallMaker
from batchclient._control import make_limit
from batchclient._core.limits import LimitControl
from batchclient._core.messages import UNPIN, AbortRequested, Paused, Resumed, Retuned
from batchclient._core.scheduler import Scheduler
from batchclient._core.single_flight import SingleFlight
from batchclient._core.statistics import Adjustment, Statistics
from batchclient._dialect_choice import DialectChoice
from batchclient._feedback import LARGEST_PAGE_BYTES
from batchclient._pooling import PoolingMethods
from batchclient._runner import Runner
from batchclient.errors import CallAborted, ClientClosed, ConfigError
from batchclient.retry import Backoff, RetryPolicy
from batchclient.transport import Timeouts, Transport, root_of

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["BatchClient"]

_clients: weakref.WeakSet[BatchClient] = weakref.WeakSet()
_of_the_parent: list[object] = []
_LIMIT_SETTINGS = frozenset(
    ("limit", "initial_limit", "max_limit", "objective", "p95_latency_s", "time_to_first_token_s")
)
_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie", "password")


class BatchClient(PoolingMethods):
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
        limit: sequences (prompts × n) in flight per endpoint, at most: a number, or ``"knee"`` (the default) or ``"aimd"`` to have
            it found while running.
        initial_limit: where a limit that is found starts.
        max_limit: how far it may go.
        objective: what ``"knee"`` aims at: ``"throughput"``, ``"balanced"`` or ``"latency"``; the preset's by default.
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
        singles_above_tokens: calls expected to generate more tokens than this are sent by themselves.
        chat_lists_up_to_tokens: chats expected to generate more tokens than this are sent by themselves, since a list of chats answers
            everyone when its slowest ends; four times as many where answers were seen to end together, at ``max_tokens``. 0 sends every chat by
            itself.
        order: which queued call goes first: ``"fcfs"`` (first come, first served), ``"shortest_first"`` (expected tokens, with aging),
            ``"deadline"`` (earliest ``timeout_s`` end).
        aging_s: the head start of one priority class over the next, seconds: what a call of a lower class waits longer, at most.
        group_prefixes: let calls whose prompts begin alike (256 bytes and more) go next to each other, so that the server's prefix
            cache serves them; with ``order="fcfs"``.
        warm_prefixes: let one of those calls go ahead, and the others wait for its answer, a second at most: for bulk work on servers that
            keep a prefix only once it has been computed. Of no use on vLLM.
        send_priority: pass the calls' priorities on to the server; vLLM heeds them with ``--scheduling-policy priority``.
        tenant_weights: shares of tenants that are to get more or less than others, by name; 1 for the rest.
        batch_size: prompts per request for a queue depth, such as ``lambda queue_depth: min(queue_depth, 16)``, instead of ``max_list``
            and of what plain lists are found to cost; the server's own cap holds. Called for every look at the queue: it must be quick.
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
        http_backend: ``"httpx"``, or ``"aiohttp"`` for the faster path of the extra by that name.
        trust_env: whether proxies and certificates may come from environment variables.
        detect: whether to find out with at most three GETs beside the calls which server each endpoint is, and so its dialect, its limits and
            its model's length; on by default, except with an ``http_client``, a ``transport``, a ``dialect`` or ``server_metrics=False`` given.
        server_metrics: whether to ask servers for their ``/metrics`` page while calls are under way, to lower the limit where they queue
            or their KV cache fills; on by default, except with an ``http_client``, a ``transport`` or a ``dialect`` given.

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
        objective: str | None = None,
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
        chat_lists_up_to_tokens: int | None = None,
        order: str | None = None,
        aging_s: float | None = None,
        group_prefixes: bool | None = None,
        warm_prefixes: bool | None = None,
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
        self._headers = _with_key(self._settings.headers, api_key)
        self._dialects = DialectChoice(dialect, _secrets(self._headers, self._settings.base_url))
        if retry is not None and (isinstance(retry, type) or not callable(getattr(retry, "decide", None))):
            raise ConfigError("retry is a RetryPolicy, such as Backoff() or TenacityRetry(…)", field="retry")
        self._retry = retry or Backoff()
        self._http_client = http_client
        self._own_transport = _check_transport(transport, http_client)
        given = "transport" if transport is not None else "http_client" if http_client is not None else None
        self._asks_for_load = self._settings.server_metrics
        if self._asks_for_load is None:
            self._asks_for_load = given is None and dialect is None
        elif self._asks_for_load and given is not None:
            message = f"server_metrics needs connections of our own; the {given} is used for the calls alone"
            raise ConfigError(message, field="server_metrics")
        self._detects = self._settings.detect
        if self._detects is None:
            self._detects = given is None and dialect is None and self._settings.server_metrics is not False
        elif self._detects and (given is not None or dialect is not None):
            field = given or "dialect"
            raise ConfigError(
                f"detect finds out what {field} says, on connections of our own: give one", field="detect"
            )
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
        if transport is None:
            _check_http_library(http_client, self._settings.http_backend)
        _clients.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._runner.core) if self._runner else "idle"
        urls = ", ".join(_shown(url) for url, _ in self._endpoints)
        return f"<BatchClient for {urls}: {state}>"

    # The life of a client ------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a frozen snapshot of what the client is doing and has done."""
        if self._runner is not None:
            return self._runner.core.statistics()
        return self._make_core().statistics()

    def retune(self, **settings: Any) -> None:
        """Change settings while running: ``limit`` (a number or an algorithm's name), ``initial_limit``, ``max_limit``, ``objective``,
        ``p95_latency_s``, ``time_to_first_token_s``, ``max_list``, ``linger_s``, ``refill_s``, ``refill_ratio``, ``starvation_s``,
        ``max_queued``, ``singles_above_tokens``, ``chat_lists_up_to_tokens``, ``batch_size``, ``length_reach``.

        Calls under way go on. A limit given anew starts its search anew.

        Raises:
            ConfigError: a setting is wrong, or cannot be changed while running; nothing was changed.
        """
        from batchclient.config import changed

        self._settings = changed(self._settings, settings)
        if self._runner is not None and not self._runner.ended:
            limits = [self._make_limit() for _ in self._endpoints] if _LIMIT_SETTINGS & settings.keys() else None
            core = self._settings.scheduler(self._dialects.at_first)
            self._runner.watches_stalls = self._settings.heeds_time
            self._runner.tell(Retuned(core, limits, self._pinned))

    def pin(self, limit: int) -> None:
        """Hold the limit of every endpoint at a number, whatever is learnt, until ``unpin()``.

        Raises:
            ConfigError: it is no whole number of at least 1.
        """
        if type(limit) is not int or limit < 1:
            raise ConfigError("a limit is a whole number of at least 1", field="limit")
        self._pinned = limit
        if self._runner is not None:
            self._runner.tell(Retuned(pin=limit))

    def unpin(self) -> None:
        """Let the limit be found again; what was learnt meanwhile counts."""
        self._pinned = None
        if self._runner is not None:
            self._runner.tell(Retuned(pin=UNPIN))

    def pause(self) -> None:
        """Send nothing more until ``resume()``; what is in flight goes on, calls may still be made."""
        self._paused = True
        if self._runner is not None:
            self._runner.tell(Paused())

    def resume(self) -> None:
        """Send again."""
        self._paused = False
        if self._runner is not None:
            self._runner.tell(Resumed())

    def add_endpoint(self, base_url: str) -> None:
        """Send calls to another server, too. It has a limit of its own, like the others.

        Args:
            base_url: as for the client.

        Raises:
            ConfigError: the URL is wrong, or one of the client's already; or another running event loop uses the client.
            ClientClosed: the client is closed.
        """
        if self._closed:
            raise ClientClosed("the client is closed; make a new one")
        from batchclient.config import check_base_url

        url = check_base_url(base_url)
        if any(url == served for served, _ in self._endpoints):
            raise ConfigError(f"{_shown(url)} is one of the client's servers already", field="base_url")
        runner = self._present_runner()
        secrets = _secrets({}, [url])
        self._dialects.secrets += secrets
        number = 0
        if runner is not None:
            runner.hide(secrets)
            metrics = self._make_metrics_transport(url) if self._asks_for_load else None
            number = runner.add_endpoint(
                self._make_transport(url),
                metrics,
                self._make_limit(),
                _shown(url),
                self._make_detection_transport(url) if self._detects else None,
            )
            self._calls.lengths.endpoints.add(number)
        self._endpoints.append((url, number))

    async def remove_endpoint(self, base_url: str, *, drain: bool = True) -> None:
        """Send nothing more to a server, and wait until nothing is left there.

        Args:
            base_url: as it was given.
            drain: let the server finish what it has; else its connections are closed now and the calls go to the others,
                which costs them no retry. Of a server that is leaving already, what is left may be ended like this.

        Raises:
            ConfigError: the client has no such server, or no other; or another running event loop uses the client.

        Cancellation: the server leaves all the same.
        """
        from batchclient.config import check_base_url

        url = check_base_url(base_url)
        runner = self._present_runner()
        entry = next((one for one in self._endpoints if one[0] == url), None)
        if entry is not None:
            if len(self._endpoints) == 1:
                raise ConfigError(f"{_shown(url)} is the client's last server", field="base_url")
            self._endpoints.remove(entry)
            if runner is not None:
                self._leaving.append(entry)
                self._calls.lengths.endpoints.discard(entry[1])
        else:
            entry = next((one for one in self._leaving if one[0] == url), None)
            if entry is None:
                raise ConfigError(f"{_shown(url)} is none of the client's servers", field="base_url")
        if runner is not None:
            await runner.remove_endpoint(entry[1], drain=drain)
            if entry in self._leaving:
                self._leaving.remove(entry)

    def abort(self) -> None:
        """End every call now with ``CallAborted`` and close their connections; the client stays open."""
        if self._runner is not None:
            self._runner.model_question.fail(CallAborted("the call was ended by abort()"))
            self._runner.tell(AbortRequested())

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then close. A paused client is resumed first.

        Cancellation: leaves the client draining; ``aclose()`` ends what is left.
        """
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            runner.tell(Resumed())
            await runner.drain()
            await self._let_go()

    async def aclose(self) -> None:
        """End every call now with ``ClientClosed`` and close every connection of our own."""
        self._closed = True
        runner = self._runner
        if runner is not None and runner.backend.is_current():
            await runner.aclose()
            await self._let_go()

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
            raise ConfigError("http_backend='aiohttp' needs asyncio; on trio it is 'httpx'", field="http_backend")
        else:
            backend = TrioBackend(self._context, self._trio_nursery)
        self._loop = loop
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
            self._settings.on_adjustment,
            [self._make_metrics_transport(url) for url, _ in self._endpoints] if self._asks_for_load else (),
            self._settings.model,
            detection_transports=[self._make_detection_transport(url) for url, _ in self._endpoints if self._detects],
            on_server=self._calls.lengths.know,
            on_model=self._calls.found_model,
            on_own_fields=self._calls.mix,
        )
        self._calls.lengths.restart(len(self._endpoints))
        runner.watches_stalls = self._settings.heeds_time
        self._keeper = backend.at_end(runner.aclose)
        if self._paused:
            runner.tell(Paused())
        return runner

    def _present_runner(self) -> Runner | None:
        """The runner of the running event loop, if it is at work.

        Raises:
            ConfigError: another live event loop uses the client.
        """
        runner = self._runner
        if runner is None or runner.ended:
            return None
        if runner.backend.is_current():
            return runner
        if runner.backend.is_running():
            raise ConfigError("another running event loop uses this client; make one client per event loop")
        return None

    def _make_core(self) -> Scheduler | SingleFlight:
        settings = self._settings.scheduler(self._dialects.at_first)
        names = [_shown(url) for url, _ in self._endpoints]
        core = Scheduler(settings, [self._make_limit() for _ in names], names)
        return SingleFlight(core) if self._settings.single_flight else core

    def _make_limit(self) -> LimitControl:
        limit = make_limit(self._settings, hears_load=bool(self._asks_for_load))
        # Also where a server joins later, or a runner starts anew.
        limit.pin(self._pinned, 0.0)
        return limit

    def _make_metrics_transport(self, base_url: str) -> Transport:
        from batchclient.transport._httpx import HttpxTransport

        return HttpxTransport(
            root_of(base_url),
            self._headers,
            max_response_bytes=LARGEST_PAGE_BYTES,
            backend=self._settings.http_backend,
            trust_env=self._settings.trust_env,
        )

    def _make_detection_transport(self, base_url: str) -> Transport:
        from batchclient.transport._httpx import HttpxTransport

        return HttpxTransport(
            base_url,
            self._headers,
            max_response_bytes=LARGEST_PAGE_BYTES,
            backend=self._settings.http_backend,
            trust_env=self._settings.trust_env,
        )

    def _make_transport(self, base_url: str) -> Transport:
        if self._own_transport is not None:
            own: Transport = self._own_transport(base_url, self._headers)
            return own
        from batchclient.transport._httpx import HttpxTransport

        return HttpxTransport(
            base_url,
            self._headers,
            max_response_bytes=self._settings.max_response_bytes,
            client=self._http_client,
            backend=self._settings.http_backend,
            trust_env=self._settings.trust_env,
        )

    async def _let_go(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.aclose()

    def _forget_parent(self) -> None:
        """After a fork: the runner, its tasks and its sockets are the parent's."""
        # Kept, because collecting them would close or shut down what is shared with the parent.
        _of_the_parent.append((self._runner, self._keeper))
        self._runner = None
        self._keeper = None
        self._loop = None
        self._nursery = None


def _shown(base_url: str) -> str:
    # A query may hold a key.
    return base_url.partition("?")[0]


def _with_key(headers: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return dict(headers)
    if not isinstance(api_key, str) or not api_key or any(not 32 < ord(character) < 127 for character in api_key):
        raise ConfigError("api_key is a string of printable ASCII characters", field="api_key")
    return {**headers, "authorization": f"Bearer {api_key}"}


def _secrets(headers: Mapping[str, str], base_urls: Sequence[str]) -> tuple[str, ...]:
    """The keys among the headers, and what URLs have after their ``?``: what a server may say back to us and nobody may see."""
    values = [value for name, value in headers.items() if any(word in name for word in _SECRET_HEADERS)]
    queries = [url.partition("?")[2] for url in base_urls]
    values += [form for query in queries for _, value in parse_qsl(query) for form in (value, quote(value, safe=""))]
    return tuple({part for value in values for part in (value, value.rpartition(" ")[2])})


def _check_transport(transport: Any, http_client: object) -> Any:
    if transport is not None and not callable(transport):
        message = "transport is a function of a base URL and headers that returns a batchclient.transport.Transport"
        raise ConfigError(f"{message}; not {type(transport).__name__}", field="transport")
    if transport is not None and http_client is not None:
        raise ConfigError("an http_client and a transport are two ways of sending: give one", field="transport")
    return transport


def _check_http_library(http_client: object, http_backend: str) -> None:
    # httpx takes 0.1 s to import: not with batchclient, and not within the first call either.
    import batchclient._server_model  # noqa: F401  # the runner's, for the same reason
    from batchclient.transport._httpx import check_arguments

    check_arguments(http_client, http_backend)


def _after_fork() -> None:
    for client in list(_clients):
        client._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
