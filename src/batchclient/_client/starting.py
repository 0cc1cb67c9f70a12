"""A client's runners: one per event loop, made when the first call needs a runner.

Rules:
- A client serves one event loop at a time. After the loop has ended, the client starts afresh.
  While the loop is alive, a call from another loop is refused.
- After a fork the child starts afresh. The parent's sockets are left alone.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from batchclient._calls.single_flight import SharingRunner
from batchclient._client.calling import Calling
from batchclient._client.connections import Connections, shown
from batchclient._core.messages import Paused
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import SchedulerSettings
from batchclient._shell.backend import AsyncioBackend, Backend, TrioBackend
from batchclient._shell.callbacks import ends_unwrapped
from batchclient._shell.forks import forget_in_child
from batchclient._shell.fronts import Core
from batchclient._shell.pages import Page
from batchclient._shell.runner import Runner
from batchclient._shell.servers import DialectChoice
from batchclient.errors import ClientClosed, ConfigError
from batchclient.retry import RetryPolicy
from batchclient.types import NOT_GIVEN

if TYPE_CHECKING:
    from batchclient._core.limits.control import Limit
    from batchclient._core.limits.trial import Turn
    from batchclient._telemetry.traced import TracedCore

__all__ = ["Starting"]


class Starting(Calling):
    """A client's runner and its makings."""

    _dialects: DialectChoice
    _retry: RetryPolicy
    _endpoints: list[tuple[str, int]]
    """(base URL, id in the present runner) of every server in use."""
    _leaving: list[tuple[str, int]]
    _connections: Connections
    _context: Context
    _keeper: AsyncGenerator[None] | None
    _nursery: Any
    _trio_nursery: Any
    _closed: bool
    _paused: bool
    _turn: Turn

    def __init__(self) -> None:
        self._runner = None
        self._keeper = None
        self._nursery = None
        self._loop = None
        self._leaving = []
        self._attached: list[Callable[[], None]] = []
        """Ends what lives as long as the client, such as a page of its metrics."""
        self._job_numbers: Callable[[], Any] | None = None
        """The way to what a job adds to the pages about the client; see ``_metrics.job``."""
        self._worker_counts: Any = None
        """What its workers have done; see ``_metrics.worker``."""
        forget_in_child(self)

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
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

    def _start(self) -> Runner:
        """Return the runner of the running event loop, a fresh one if need be.

        Raises:
            ClientClosed: the client is closed.
            ConfigError: another live event loop uses the client, or trio runs and ``async with`` is
                missing.
        """
        if self._closed:
            raise ClientClosed("the client is closed; make a new one")
        loop = asyncio._get_running_loop()
        present = self._present_runner()
        if present is not None and present.backend.is_current():
            return present
        backend: Backend
        if loop is not None:
            backend = AsyncioBackend(self._context)
        elif self._nursery is None:
            raise ConfigError("without asyncio a client needs `async with BatchClient(…) as client:`")
        else:
            backend = TrioBackend(self._context, self._trio_nursery)
        self._loop = loop
        self._callbacks.backend = backend
        # Ids begin anew with each runner.
        self._endpoints = [(url, place) for place, (url, _) in enumerate(self._endpoints)]
        self._leaving = []
        core = self._make_core()
        tracing = None if self._settings.telemetry is None else self._make_tracing(core)
        make_runner: Callable[..., Runner] = Runner
        if self._settings.batching.single_flight:
            make_runner = partial(SharingRunner, scheduler=core)
        self._runner = runner = make_runner(
            backend,
            tracing or core,
            self._dialects,
            [self._connections.for_calls(url) for url, _ in self._endpoints],
            self._retry,
            self._settings.http.timeouts,
            self._calls.learn,
            pages={page: [make(url) for url, _ in self._endpoints] for page, make in self._connections.pages.items()},
            model=self._settings.model,
            on_server=self._calls.lengths.know,
            on_model=self._calls.found_model,
            bounds_connect=self._settings.http.connect_timeout_s is NOT_GIVEN,
            tracing=tracing,
        )
        self._calls.lengths.restart(len(self._endpoints))
        self._keeper = backend.at_end(runner.aclose)
        if self._paused:
            runner.tell(Paused())
        return runner

    def _make_core(self) -> Scheduler:
        names = [shown(url) for url, _ in self._endpoints]
        return Scheduler(
            self._settings_of_core(),
            [self._make_limit() for _ in names],
            names,
            self._connections.asks_first if Page.SERVER in self._connections.pages else None,
            [self._connections.rates[url] for url, _ in self._endpoints],
        )

    def _settings_of_core(self) -> SchedulerSettings:
        settings = self._settings.scheduler(self._dialects.at_first, self._callbacks, self._connections.trusts_lists)
        settings.waits_out_refusals = self._connections.waits_out_refusals()
        return settings

    def _make_tracing(self, core: Core) -> TracedCore:
        from batchclient._telemetry.spans import Spans
        from batchclient._telemetry.traced import TracedCore

        telemetry = self._settings.telemetry
        assert telemetry is not None, "a client without telemetry has no spans"
        return TracedCore(
            core,
            Spans(telemetry.tracer_provider),
            [shown(url) for url, _ in self._endpoints],
            self._dialects.given,
            telemetry.client_name,
        )

    async def _let_go(self, runner: Runner) -> None:
        # Where closing was cancelled, the end of the event loop goes on with it.
        if runner.over and self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            await keeper.aclose()

    def _end_attached(self) -> None:
        """End what was attached to the client; nothing here may block the event loop."""
        while self._attached:
            self._attached.pop()()

    def _forget_parent(self) -> object:
        """After a fork: the runner, its tasks and its sockets are the parent's."""
        theirs = self._runner, self._keeper
        if self._runner is not None:
            # Streams and maps that are dropped here take no step in it.
            self._runner.ended = True
        self._runner = None
        self._keeper = None
        self._loop = None
        self._nursery = None
        return theirs

    def _present_runner(self) -> Runner | None:
        """Return the runner of the running event loop, if the runner is at work.

        Raises:
            ConfigError: another live event loop uses the client.
        """
        runner = self._runner
        if runner is None or runner.ended:
            return None
        if runner.backend.is_current():
            return runner
        if runner.backend.is_running():
            raise ConfigError("another running event loop uses this client: one for each, or call_soon_threadsafe")
        # A loop that stands still may go on.
        return None if asyncio._get_running_loop() is not None or runner.backend.is_gone() else runner

    def _make_limit(self) -> Limit:
        # Imported with the first client, as the rest of the limit is.
        from batchclient._client.make_limit import make_limit

        return make_limit(self._settings, turn=self._turn)
