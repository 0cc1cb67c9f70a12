"""The engine of a client: its runner, one per event loop, and the way of every call.

Rules:
- A client serves one event loop at a time. After the loop has ended, the client starts afresh.
  While the loop is alive, a call from another loop is refused.
- After a fork the child starts afresh. The parent's sockets are left alone.
- Every call goes the same way (``call``), whatever its kind: bad input is refused before anything
  is queued, with an error that names the argument. Kinds differ in how the input is written and the
  answer is read (``inputs``, ``dialects``).
- The server is asked for its model before the first call that names none is written.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import anyio

from batchclient._calls import labels as labelled
from batchclient._calls.call import Call
from batchclient._calls.make import CallMaker
from batchclient._calls.single_flight import SharingRunner
from batchclient._client.connections import Connections, shown
from batchclient._common.forks import forget_in_child
from batchclient._core.kinds import Kind
from batchclient._core.messages import AbortRequested, Paused, Request, Resumed
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import SchedulerSettings
from batchclient._core.statistics import Statistics
from batchclient._shell.backend import AsyncioBackend, Backend, TrioBackend
from batchclient._shell.callbacks import Callbacks, ends_unwrapped
from batchclient._shell.fronts import Core
from batchclient._shell.pages import Page
from batchclient._shell.pieces import Pieces
from batchclient._shell.runner import Runner
from batchclient._shell.servers import DialectChoice
from batchclient.errors import CallAborted, ClientClosed, ConfigError
from batchclient.maps import Finish, Row
from batchclient.retry import RetryPolicy
from batchclient.stream import Stream
from batchclient.types import NOT_GIVEN, Ranking

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._client.probabilities import Ways
    from batchclient._core.limits.control import Limit
    from batchclient._settings import Settings
    from batchclient._telemetry.traced import TracedCore

__all__ = ["Engine", "structured"]

_FOR_CALLS = (
    "anyio._backends._asyncio",
    "batchclient._calls.structured",
    "batchclient._client.make_limit",
    "batchclient._shell.model_question",
    "batchclient._shell.watcher",
    "concurrent.futures.thread",
    "batchclient.dialects._dialect",
)
"""What a call needs is imported with the client.

A module that a thread imports during a fork stays locked in the child for ever.
"""
_RERANK = Kind.RERANK
_WORD_S = 0.25
"""So long the first text to be tokenized waits, at most, for the server's word on which it is."""
_MAY_HAVE_LABELS = frozenset({"labels", "extra_body"})
"""Parameters of calls that may have labels."""
_READERS_REMEMBERED = 256


class Engine:
    """What is behind the methods of one ``BatchClient``.

    Args:
        settings: the client's.
        retry: its retry policy.
        key_given, reads_environment: whether the client was given a key, and may have one from the
            environment; they decide the words of a 401.

    Attributes:
        settings: of now.
        connections: the ways to the servers.
        calls: makes requests of calls.
        callbacks: guards the user's functions.
        dialects: which server speaks which.
        runner: of the present event loop; ``None`` before the first call.
        endpoints: (base URL, id in the present runner) of every server in use.
        leaving: likewise, of servers that are left.
        closed: whether no more calls are taken.
        nursery, trio_nursery: of ``async with`` on trio: the manager, and what it gives.
        attached: ends what lives as long as the client, such as a page of its metrics.
        job_numbers: the way to what a job adds to the pages about the client; see ``_metrics.job``.
        least_output_tokens: the length that ``log_likelihood`` asks for: 1 once a server refused 0.
        worker_counts: what its workers have done; see ``_metrics.worker``.
    """

    def __init__(self, settings: Settings, retry: RetryPolicy, *, key_given: bool, reads_environment: bool) -> None:
        from batchclient._core.limits.trial import Turn

        for name in _FOR_CALLS:
            import_module(name)
        self.settings = settings
        self.connections = connections = Connections(settings)
        self.calls = CallMaker(settings, connections.offers)
        self.callbacks = Callbacks()
        key_hint = connections.key_hint(key_given=key_given, reads_environment=reads_environment)
        self.dialects = DialectChoice(settings.dialect, connections.secrets, key_hint)
        self.runner: Runner | None = None
        self.endpoints = [(server.url, place) for place, server in enumerate(settings.base_url)]
        self.calls.endpoints = self.endpoints
        self.leaving: list[tuple[str, int]] = []
        self.closed = False
        self.least_output_tokens = 0
        self.attached: list[Callable[[], None]] = []
        self.job_numbers: Callable[[], Any] | None = None
        self.worker_counts: Any = None
        self._retry = self.callbacks.guard_policy(retry)
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: AsyncGenerator[None] | None = None
        self.nursery: Any = None
        self.trio_nursery: Any = None
        self._paused = False
        self._thinking: set[str | None] = set()
        """Models that have thought before they said a label, as their calls name them."""
        self._ways: Ways | None = None
        self._readers_of_labels: dict[tuple[str | None, bool, str, str], Finish] = {}
        self._turn = Turn()
        forget_in_child(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else repr(self.runner.core) if self.runner else "idle"
        return f"<BatchClient for {', '.join(shown(url) for url, _ in self.endpoints)}: {state}>"

    def __del__(self, _warn: Any = warnings.warn) -> None:
        runner = getattr(self, "runner", None)
        if runner is not None and not runner.core.idle and not self.closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    # Calls ---------------------------------------------------------------------------------------------------------

    async def call(self, call: Call, *, is_read: bool = True) -> Any:
        """Make one call and wait for its answer; ``is_read``: as the call's form says.

        Raises:
            BatchClientError: see ``batchclient.errors``; of a wrong argument nothing was sent.
        """
        if is_read and (call.response_model is not None or not _MAY_HAVE_LABELS.isdisjoint(call.params)):
            call, finish = self.in_form(call)
            if self.asks_for_probabilities(call):
                from batchclient._client.probabilities import ask  # few programs want them

                return await ask(self, call)
            if finish is not None:
                if labelled.field_of(call.params, "labels") is not None:
                    await self.know_servers(self.start())
                return finish(await self.call(call, is_read=False))
        if call.kind is _RERANK:
            return await self._rank(call)
        runner, calls = self.runner, self.calls
        # The test for "same loop as last time" is all that a call pays for loops, forks and trio.
        if runner is None or runner.ended or asyncio._get_running_loop() is not self._loop:
            runner = self.start()
        backend = runner.backend
        now = backend.now()
        if call.model is None and calls.asks_model:
            # What is wrong is refused at once all the same.
            checked = calls.make(call._replace(model=calls.some_model), None, now)
            await self.find_model(runner, checked.deadline)
        waiter = backend.waiter()
        request = calls.make(call, waiter, now)
        # Thousands may wait here, and the garbage collector would look at what each was asked by.
        del call
        runner.submit(request)
        try:
            return await backend.wait(waiter)
        except BaseException:
            runner.leave(request)
            # Else the error would hold this frame, and the frame, by its waiter, the error: a
            # circle, which keeps the prompt until the garbage collector comes.
            del request, waiter
            raise

    async def tokenize(self, call: Call) -> list[int]:
        """Return the token ids of a text, or of a conversation, which some write as a text first."""
        self.calls.check(call)
        runner = self.start()
        if any(server.is_unheard for server in runner.servers.values()):
            # Servers' tokenizers have the same path, and other fields.
            now = runner.backend.now()
            deadline = self.calls.deadline(call.timeout_s, now)
            with anyio.move_on_after(_WORD_S if deadline is None else min(_WORD_S, (deadline - now) / 2)):
                await self.know_servers(runner)
        answer = await self.call(call)
        if not answer.ids and "prompt" in answer.extra:
            answer = await self.call(call._replace(item=answer.extra["prompt"], params={}))
        return answer.ids  # type: ignore[no-any-return]

    async def _rank(self, call: Call) -> Any:
        """Make a call for each document, and wait for all; the first error ends the others."""
        from batchclient._maps.ranking import requests_of  # few programs rank

        runner = self.start()
        now = runner.backend.now()
        self.calls.check(call._replace(kind=Kind.SCORE))
        if not call.item[1]:
            return Ranking((), ())
        if call.model is None:
            await self.find_model(runner, self.calls.deadline(call.timeout_s, now))
        waiter = runner.backend.waiter()
        requests = requests_of(call, waiter, runner, partial(self.calls.make, now=now))
        try:
            for request in requests:
                runner.submit(request)
            return await runner.backend.wait(waiter)
        except BaseException:
            for request in requests:
                runner.leave(request)
            del request, requests, waiter  # as in ``call``
            raise

    def stream(self, call: Call) -> Stream:
        """Return the pieces of a call's answer; nothing is sent before the first is asked for.

        Raises:
            ConfigError: an argument is wrong.
        """
        call, finish = self.in_form(call)
        calls, runner, sink = self.calls, self.runner, Pieces()
        now = 0.0 if runner is None or runner.ended else runner.backend.now()
        is_known = call.model is not None or not calls.asks_model
        # Until it is sent, servers may come and go: which one is a session's is found out then.
        is_final = is_known and call.session is None
        # What is wrong is refused now, though the request may be written anew when it is sent.
        checked = call if is_known else call._replace(model=calls.some_model)
        sink.request = request = calls.make(checked, sink, now)

        async def make_anew(runner: Runner, deadline: float | None) -> Request:
            if call.model is None:
                await self.find_model(runner, deadline)
            return calls.make(call, sink, runner.backend.now())

        deadline = partial(calls.deadline, call.timeout_s)
        return Stream(self.start, request, deadline, None if is_final else make_anew, finish)

    def in_form(self, call: Call) -> tuple[Call, Finish | None]:
        """Return a call that demands its form, and what reads the answer; ``None``: it has any form.

        Raises:
            ConfigError: the ``response_model`` is none, or another form is demanded, too.
        """
        model = call.response_model
        if model is None:
            return call, self.reader_of_labels(call)
        params = structured().demand(model, call.params)
        return call._replace(params=params, response_model=None), self.reader_of(model)

    def reader_of_labels(self, call: Call) -> Finish | None:
        """Return what finds the label in an answer; ``None``: the call has no labels.

        Raises:
            ConfigError: the labels are none, or the model is known to think before it answers.
        """
        if _MAY_HAVE_LABELS.isdisjoint(call.params) or call.manner.verbatim:
            return None
        labels = labelled.field_of(call.params, "labels")
        if labels is None or call.kind not in (Kind.COMPLETION, Kind.CHAT):
            return None
        model, may_reason = call.model, labelled.field_of(call.params, "thinking_tokens") == 0
        if model in self._thinking and not may_reason:
            raise labelled.thinks(model)
        given = {name: labelled.field_of(call.params, name) for name in ("max_tokens", "max_completion_tokens")}
        bound = next((f"{name}={value}" for name, value in given.items() if value is not None), "")
        key = model, may_reason, bound, repr(labels)
        known = self._readers_of_labels.get(key)
        if known is None:
            self.calls.check(call)
            if len(self._readers_of_labels) >= _READERS_REMEMBERED:
                self._readers_of_labels.clear()
            known = labelled.reader(
                tuple(labels), bound, None if may_reason else partial(self._thinks, model), self._note_invalid
            )
            self._readers_of_labels[key] = known
        return known

    def _thinks(self, model: str | None) -> ConfigError:
        self._thinking.add(model)
        return labelled.thinks(model)

    @staticmethod
    def asks_for_probabilities(call: Call) -> bool:
        """Whether a call wants the probabilities of its labels."""
        wants = labelled.field_of(call.params, "probabilities") is True and not call.manner.verbatim
        return wants and call.kind in (Kind.COMPLETION, Kind.CHAT)

    def way_of_row(self, call: Call) -> Callable[[Row, Runner], object] | None:
        """Return what sends a row whose call cannot go as it is; ``None``: it can."""
        if _MAY_HAVE_LABELS.isdisjoint(call.params) or not self.asks_for_probabilities(call):
            return None
        from batchclient._client.probabilities import asker_of

        return asker_of(self, call)

    @property
    def ways(self) -> Ways:
        """How sets of labels are asked about, as far as it was found out."""
        if self._ways is None:
            from batchclient._client.probabilities import Ways

            self._ways = Ways()
        return self._ways

    async def know_servers(self, runner: Runner) -> None:
        """Wait until the servers that may be asked which they are have answered."""
        if self.connections.asks_first():
            await runner.find_out_servers()

    def reader_of(self, response_model: type[BaseModel]) -> Finish:
        """Return what makes an instance of the model of an answer; what does not fit is counted."""
        return structured().parse(response_model, self._note_invalid)  # type: ignore[no-any-return]

    def _note_invalid(self) -> None:
        if self.runner is not None:
            self.runner.invalid += 1

    async def find_model(self, runner: Runner, deadline: float | None = None) -> None:
        """Ask the server for its model, where calls that name none need the name."""
        if self.calls.asks_model:
            await runner.model_question.wait(deadline)

    # The runner ----------------------------------------------------------------------------------------------------

    def start(self) -> Runner:
        """Return the runner of the running event loop, a fresh one if need be.

        Raises:
            ClientClosed: the client is closed.
            ConfigError: another live event loop uses the client, or trio runs and ``async with`` is
                missing.
        """
        if self.closed:
            raise ClientClosed("the client is closed; make a new one")
        loop = asyncio._get_running_loop()
        present = self.present_runner()
        if present is not None and present.backend.is_current():
            return present
        backend: Backend
        if loop is not None:
            backend = AsyncioBackend(self._context)
        elif self.nursery is None:
            raise ConfigError("without asyncio a client needs `async with BatchClient(…) as client:`")
        else:
            backend = TrioBackend(self._context, self.trio_nursery)
        self._loop = loop
        self.callbacks.backend = backend
        # Ids begin anew with each runner.
        self.endpoints = [(url, place) for place, (url, _) in enumerate(self.endpoints)]
        self.leaving = []
        core = self.make_core()
        tracing = None if self.settings.telemetry is None else self._make_tracing(core)
        make_runner: Callable[..., Runner] = Runner
        if self.settings.batching.single_flight:
            make_runner = partial(SharingRunner, scheduler=core)
        self.runner = runner = make_runner(
            backend,
            tracing or core,
            self.dialects,
            [self.connections.for_calls(url) for url, _ in self.endpoints],
            self._retry,
            self.settings.http.timeouts,
            self.calls.learn,
            pages={page: [make(url) for url, _ in self.endpoints] for page, make in self.connections.pages.items()},
            # A page is read for the one model of all calls.
            model=None if self.calls.has_own_models else self.settings.model,
            on_server=self.calls.lengths.know,
            on_model=self.calls.found_model,
            bounds_connect=self.settings.http.connect_timeout_s is NOT_GIVEN,
            tracing=tracing,
            think=self._think,
        )
        self.calls.lengths.restart(len(self.endpoints))
        self.calls.endpoints = self.endpoints
        for url, number in self.endpoints:
            runner.servers[number].session_header = self.connections.session_headers[url]
            runner.servers[number].model = self.connections.offers[url].model
        self._keeper = backend.at_end(runner.aclose)
        if self._paused:
            runner.tell(Paused())
        return runner

    def _think(self, runner: Runner, request: Request, may_wait: bool) -> None:  # noqa: FBT001
        """Take on a call with a budget for thinking."""
        from batchclient._calls.thinking import Thinking  # few calls have one

        asks = self.connections.asks_first()
        Thinking(runner, request, self.calls, asks=asks, may_wait=may_wait).begin()

    def make_core(self) -> Scheduler:
        """Return a fresh core for the servers of now."""
        names = [shown(url) for url, _ in self.endpoints]
        return Scheduler(
            self.settings_of_core(),
            [self.make_limit() for _ in names],
            names,
            self.connections.asks_first if Page.SERVER in self.connections.pages else None,
            [self.connections.rates[url] for url, _ in self.endpoints],
            [self.connections.offers[url] for url, _ in self.endpoints],
        )

    def settings_of_core(self) -> SchedulerSettings:
        """Return the settings of the core."""
        settings = self.settings.scheduler(self.dialects.at_first, self.callbacks, self.connections.trusts_lists)
        settings.waits_out_refusals = self.connections.waits_out_refusals()
        return settings

    def _make_tracing(self, core: Core) -> TracedCore:
        from batchclient._telemetry.spans import Spans
        from batchclient._telemetry.traced import TracedCore

        telemetry = self.settings.telemetry
        assert telemetry is not None, "a client without telemetry has no spans"
        return TracedCore(
            core,
            Spans(telemetry.tracer_provider),
            [shown(url) for url, _ in self.endpoints],
            self.dialects.given,
            telemetry.client_name,
        )

    def _forget_parent(self) -> object:
        """After a fork: the runner, its tasks and its sockets are the parent's."""
        theirs = self.runner, self._keeper
        if self.runner is not None:
            # Streams and maps that are dropped here take no step in it.
            self.runner.ended = True
        self.runner = None
        self._keeper = None
        self._loop = None
        self.nursery = None
        return theirs

    def present_runner(self) -> Runner | None:
        """Return the runner of the running event loop, if the runner is at work.

        Raises:
            ConfigError: another live event loop uses the client.
        """
        runner = self.runner
        if runner is None or runner.ended:
            return None
        if runner.backend.is_current():
            return runner
        if runner.backend.is_running():
            raise ConfigError("another running event loop uses this client: one for each, or call_soon_threadsafe")
        # A loop that stands still may go on.
        return None if asyncio._get_running_loop() is not None or runner.backend.is_gone() else runner

    def make_limit(self) -> Limit:
        """Return a fresh limit for a server."""
        # Imported with the first client, as the rest of the limit is.
        from batchclient._client.make_limit import make_limit

        return make_limit(self.settings, turn=self._turn)

    def pause(self, *, paused: bool) -> None:
        """Send nothing more, or send again.

        Raises:
            ConfigError: another running event loop uses the client.
        """
        runner = self.present_runner()
        self._paused = paused
        if runner is not None:
            runner.tell(Paused() if paused else Resumed())

    def abort(self) -> None:
        """End every call now with ``CallAborted`` and close the connections."""
        runner = self.present_runner()
        if runner is not None:
            runner.model_question.fail(CallAborted("the call was ended by abort()"))
            runner.tell(AbortRequested())

    def statistics(self) -> Statistics:
        """Return a snapshot of one moment."""
        runner = self.runner
        if runner is None:
            return self.make_core().statistics()

        def read() -> Statistics:
            statistics = runner.core.statistics()
            health, refused = statistics.health, runner.budgets_refused
            errors, parts = statistics.errors, sum(runner.parts.values())
            if refused:
                left = {**errors, "BadRequest": errors["BadRequest"] - refused}
                errors = {name: count for name, count in left.items() if count}
            return replace(
                statistics,
                submitted=statistics.submitted - refused - parts,
                succeeded=statistics.succeeded - parts,
                failed=statistics.failed - refused,
                errors=errors,
                reused=runner.reused,
                wasted_tokens=statistics.wasted_tokens + runner.wasted_tokens,
                regained_tokens=runner.regained_tokens,
                reasoning_tokens=runner.thinking_watch.tokens,
                over_thinking_budget=runner.thinking_watch.over,
                health={
                    **{kind: count - runner.parts[kind] for kind, count in health.items()},
                    "ok": health["ok"] - runner.invalid - runner.parts["ok"],
                    "invalid": runner.invalid,
                },
            )

        return runner.between_steps(read)

    # Its life ------------------------------------------------------------------------------------------------------

    @property
    def is_at_work(self) -> bool:
        """Whether a call is under way, in an event loop that may go on."""
        runner = self.runner
        return runner is not None and not runner.core.idle and not runner.backend.is_gone()

    async def enter(self) -> None:
        """Begin ``async with``.

        Raises:
            ClientClosed: the client is closed.
            ConfigError: it is in use by another ``async with``.
        """
        if self.closed:
            raise ClientClosed("the client is closed; make a new one")
        if self.nursery is not None:
            raise ConfigError("the client is in use by another `async with`")
        if asyncio._get_running_loop() is None:
            import trio

            self.nursery = trio.open_nursery()
            self.trio_nursery = await self.nursery.__aenter__()
        try:
            self.start()
        except BaseException:
            nursery, self.nursery = self.nursery, None
            if nursery is not None:
                await nursery.__aexit__(None, None, None)
            raise

    async def leave(self) -> None:
        """End ``async with``."""
        nursery, self.nursery = self.nursery, None
        if nursery is not None:
            with ends_unwrapped():
                await nursery.__aexit__(None, None, None)

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then close."""
        self.closed = True
        runner = self.runner
        if runner is not None and runner.backend.is_current():
            runner.tell(Resumed())
            try:
                await runner.drain()
            finally:
                await self._let_go(runner)
        self.end_attached()

    async def aclose(self) -> None:
        """End every call now, and close every connection of our own."""
        self.closed = True
        runner = self.runner
        try:
            if runner is not None and runner.backend.is_current():
                try:
                    await runner.aclose()
                finally:
                    await self._let_go(runner)
        finally:
            self.end_attached()

    async def _let_go(self, runner: Runner) -> None:
        # Where closing was cancelled, the end of the event loop goes on with it.
        if runner.over and self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            await keeper.aclose()

    def end_attached(self) -> None:
        """End what was attached to the client; nothing here may block the event loop."""
        while self.attached:
            self.attached.pop()()


def structured() -> ModuleType:
    """Return the module of answers in the form of a pydantic model."""
    # Pydantic takes half as long to import as all the rest, and so comes with the first client.
    from batchclient._calls import structured as module

    return module
