"""The shell: the only place where the core meets a clock, tasks and a timer.

Rules:
- Every event takes the same step: tell the core the event and the time, carry out the core's
  commands, set the only timer to the core's next deadline. What is told within a step, as by a
  user's hook, is taken in when its commands are carried out.
- A call is queued at once. The core decides in the event loop's next turn, so that all calls of one
  turn are decided together. Later decisions wait for the timer.
- Every ``SendBatch`` is one task (``tasks``), an attempt (``attempts``), which ends with exactly
  one ``Answered(ended=True)`` or ``Failed``.
- ``aclose`` waits for all tasks of the runner, also for readers of a map's documents.
- The runner belongs to one event loop. Its client replaces the runner when the loop is gone.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import anyio
import anyio.lowlevel

from batchclient._core.limits import ServerLoad
from batchclient._core.messages import (
    AbortBatch,
    Adjusted,
    Ask,
    Batch,
    Cancelled,
    CloseRequested,
    Command,
    Drained,
    DrainRequested,
    EndpointAdded,
    EndpointGone,
    EndpointRemoved,
    Event,
    GuestChanged,
    HealthChanged,
    Offer,
    RatesPerMinute,
    Reject,
    Request,
    RequestState,
    Resolve,
    SendBatch,
    ServerKnown,
    Submitted,
    WaitOver,
    Woke,
)
from batchclient._shell.attempts import CANCELLED, Attempts
from batchclient._shell.backend import Backend, Cancellable
from batchclient._shell.exchange import BodyTimeouts, Exchanges
from batchclient._shell.fronts import Core, Tracing
from batchclient._shell.log import Decision, EndpointLog
from batchclient._shell.pages import Page, PageTimes
from batchclient._shell.servers import DialectChoice, ServerInfo, Servers, info_of
from batchclient._shell.tasks import Tasks
from batchclient._shell.thinking import ThinkingWatch
from batchclient.errors import BatchClientError, ClientClosed
from batchclient.retry import RetryPolicy
from batchclient.transport import Timeouts, Transport

if TYPE_CHECKING:
    from batchclient._core.limits.control import Limit
    from batchclient._shell.model_question import ModelQuestion
    from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
    from batchclient.health import Health

__all__ = ["Runner"]

_BODY_TIMEOUTS = BodyTimeouts()
_MOST_TOLD = 512
_SOONEST_RESTART_S = 1.0
_PAGE_TIMES = PageTimes()
_A_STEP_S, _LONGEST_STEP_S = 0.0001, 1.0
_T = TypeVar("_T")


class Runner:
    """Drives a scheduler in an event loop.

    Args:
        backend: the loop's clock, tasks and timer.
        core: the scheduler, or a front of it.
        dialects: makes an endpoint's dialect.
        transports: one per endpoint, in the order of their ids.
        policy: when to try again; guarded.
        timeouts: of each request.
        bounds_connect: whether a connection gets half of its calls' time; see ``Exchanges``.
        on_failure: told of each failed batch and its error, for the client to learn from.
        pages: for each page that may be asked for beside the calls, one transport per endpoint.
        model: the model of the calls, if all are for one.
        on_server: told of each server found out, for the client's own conclusions.
        on_model: told of the model's name, if the servers were asked.
        body_timeouts: for the rest of a known reply.
        page_times: when servers are asked for pages beside the calls.
        tracing: makes spans, if any are made.
        think: takes on a call with a budget for thinking.
    """

    def __init__(
        self,
        backend: Backend,
        core: Core,
        dialects: DialectChoice,
        transports: Sequence[Transport],
        policy: RetryPolicy,
        timeouts: Timeouts,
        on_failure: Callable[[Batch, BatchClientError], None],
        *,
        pages: Mapping[Page, Sequence[Transport]],
        model: str | None = None,
        on_server: Callable[[int, ServerFacts, float], None] | None = None,
        on_model: Callable[[str], None] | None = None,
        body_timeouts: BodyTimeouts = _BODY_TIMEOUTS,
        page_times: PageTimes = _PAGE_TIMES,
        bounds_connect: bool = False,
        tracing: Tracing | None = None,
        think: Callable[[Runner, Request, bool], None] | None = None,
    ) -> None:
        self.backend = backend
        self.core: Core = core
        self.ended: bool = False
        self._process = os.getpid()
        self._now = backend.now
        self._log = EndpointLog(backend.now, self._url_of)
        self._tasks = Tasks(backend.spawn)
        self._began_at = backend.now()
        self.story: deque[Decision] = deque(maxlen=_MOST_TOLD)
        """The last decisions of the core's own, oldest first."""
        self._events: list[tuple[Event, float]] = []
        """Of the present step: each has a turn."""
        self._steps = 0
        """How many steps have begun."""
        self._thread = threading.get_ident()
        self._due_now = False
        self._timer: Cancellable | None = None
        self._timer_at = 0.0
        self.waited_for: list[object] = []
        """Maps with a waiting caller: perhaps nothing else holds them and their waiting tasks."""
        self.maps: WeakSet[Any] = WeakSet()
        """Those that have begun; each tells whether it ``is_under_way``."""
        self.reused = 0
        """Rows of maps that were taken from a journal."""
        self.wasted_tokens = 0
        """Of answers that came to maps and are none: they did not fit, or were asked for anew."""
        self.regained_tokens = 0
        """Output tokens of answers that were cut off, and gone on with."""
        self.invalid = 0
        """Answers that do not fit ``response_model``, and have no other fault."""
        self.parts: Counter[Health] = Counter()
        """Parts of answers whose thinking was stopped: the core has counted each as an answer."""
        self.budgets_refused = 0
        """Requests whose budget for thinking was refused: their calls went another way."""
        self._think = think
        self.thinking: dict[Request, Callable[[], None]] = {}
        """Of calls with a budget for thinking that are under way: what ends them."""
        self.thinking_over: anyio.Event = anyio.Event()
        """Set whenever one of them has ended."""
        self._wishes: dict[object, bool] = {}
        """Of maps that have to end in time: whether they may be guests."""
        self._drained = anyio.Event()
        self.over: bool = False
        """Whether all is closed."""
        # Imported when the client is made: within ``import batchclient`` both would take a tenth of
        # the time.
        from batchclient._shell.model_question import ModelQuestion
        from batchclient._shell.watcher import Watcher, Watching

        self._on_server = on_server
        self._on_model = on_model
        shared = Watching(
            backend, self.start_reader, self._hear, self._report_server, core.heeds_load, self._log, model, page_times
        )
        self.servers: Servers = Servers(dialects, partial(Watcher, shared=shared), self._url_of, self._log)
        for place, transport in enumerate(transports):
            self.servers.add(transport, {page: of_page[place] for page, of_page in pages.items()})
        self._watches_load = Page.LOAD in pages
        self._watched = shared.under_way
        self.thinking_watch: ThinkingWatch = ThinkingWatch(
            self._log, lambda endpoint, what, why: self._decided(self._url_of(endpoint), what, why)
        )
        exchanges = Exchanges(
            backend,
            self.servers,
            timeouts,
            self.tell,
            body_timeouts,
            self._log,
            self.thinking_watch,
            bounds_connect=bounds_connect,
        )
        self._attempts = Attempts(exchanges, self.servers, policy, backend.now, on_failure, self.tell, self._log)
        self._tracing = tracing
        self._send = self._attempts.send if tracing is None else tracing.around(self._attempts.send)
        self.model_question: ModelQuestion = ModelQuestion(
            backend.now,
            lambda: [(number, server.transport) for number, server in self.servers.items() if server.model is None],
            self.start_reader,
            policy,
            timeouts,
            dialects,
            self._hear_model,
            self._url_of,
            self._hear,
            lambda number: (now := core.endpoint(number)) is not None and now.state == "awaited",
        )

    async def find_out_servers(self) -> None:
        """Wait until every server that may be asked, and answers, is known."""
        async with anyio.create_task_group() as group:
            for server in self.servers.values():
                group.start_soon(server.watcher.find_out)

    async def look_at_servers(self, model: str | None) -> list[ServerInfo]:
        """Ask every server that may be asked what it is and how busy it is; ``model``: the client's."""
        found: dict[int, tuple[ServerFacts | None, ServerLoad | None, bool | None]] = {}

        async def look_at(number: int) -> None:
            found[number] = await self.servers[number].watcher.look()

        async with anyio.create_task_group() as group:
            for number in self.servers:
                group.start_soon(look_at, number)
        return [
            info_of(each.base_url, found[each.id], model)
            for each in self.core.statistics().endpoints
            if each.id in found
        ]

    def submit(self, request: Request, *, may_wait: bool = False) -> None:
        """Make a call; the waiter is set at the end."""
        if request.shape.thinking_tokens is not None and self._think is not None:
            self._think(self, request, may_wait)
            return
        if not self._due_now:
            self.backend.note_work()
        self._step(Submitted(request, may_wait), self._now())

    def check_process(self) -> None:
        """Raise ``ClientClosed`` in a forked child: what the parent has begun is the parent's."""
        if self._process != os.getpid():
            raise ClientClosed("what was begun before a fork belongs to the parent process")

    def leave(self, request: Request) -> None:
        """Note that the caller waits no more; without effect on a request never submitted."""
        if (end := self.thinking.pop(request, None)) is not None:
            end()
            self.thinking_over.set()
        if request.state not in (RequestState.NEW, RequestState.DONE):
            self.tell(Cancelled(request))

    def tell(self, event: Event) -> None:
        """Take a step for an event."""
        if self.backend.is_gone():
            # The loop was closed over its tasks, which end as garbage: nobody is left to be told.
            self.ended = True
            return
        self._step(event, self._now())

    def _url_of(self, endpoint: int) -> str:
        """Return an endpoint's base URL as it may be shown; an empty text once the endpoint is gone."""
        now = self.core.endpoint(endpoint)
        return "" if now is None else now.base_url

    def _hear(self, event: Event) -> None:
        """Take in the outcome of a question."""
        if not self.ended:
            self.tell(event)

    def _report_server(self, endpoint: int, facts: ServerFacts) -> None:
        """Take in which server an endpoint is; batches under way go on as encoded."""
        if self.ended or endpoint not in self.servers:
            return
        caps = self.servers.learn(endpoint, facts)
        # Perhaps it was started anew.
        self.servers[endpoint].dialect.forget_refusals(self._now(), _SOONEST_RESTART_S)
        if self._on_server is not None:
            self._on_server(endpoint, facts, self._now())
        self.tell(ServerKnown(endpoint, caps, facts.takes, facts.server, facts.event_per_token))

    def _hear_model(self, name: str, endpoint: int, fingerprint: Fingerprint) -> None:
        """Take in the model named by a server."""
        if self._on_model is not None:
            self._on_model(name)
        if endpoint in self.servers:
            self.servers[endpoint].watcher.adopt(fingerprint)

    def add_endpoint(
        self,
        transport: Transport,
        pages: Mapping[Page, Transport],
        limit: Limit,
        name: str,
        rates: RatesPerMinute,
        offer: Offer,
    ) -> int:
        """Serve another endpoint; return its id."""
        number = self.servers.add(transport, pages)
        self.tell(EndpointAdded(number, limit, name, rates, offer))
        return number

    async def remove_endpoint(self, number: int, *, drain: bool) -> None:
        """Serve an endpoint no more; wait until its calls and connections have ended.

        A cancelled endpoint leaves all the same; its idle connections are closed with the runner.
        """
        server = self.servers[number]
        self.tell(EndpointRemoved(number, drain))
        await server.gone.wait()
        if self.servers.pop(number, None) is not None:
            with anyio.CancelScope(shield=True):
                async with AsyncExitStack() as closing:
                    closing.push_async_callback(server.transport.aclose)
                    closing.push_async_callback(server.watcher.aclose)

    def wish(self, who: object, is_guest: bool | None) -> None:  # noqa: FBT001
        """Be a guest while all that have a wish may be guests; ``None``: this one has none any more."""
        was = bool(self._wishes) and all(self._wishes.values())
        self._wishes.pop(who, None)
        if is_guest is not None:
            self._wishes[who] = is_guest
        is_now = bool(self._wishes) and all(self._wishes.values())
        if is_now is not was and self._watches_load and not self.ended:
            self.tell(GuestChanged(is_now, or_usual=True))

    @property
    def no_guest(self) -> str:
        """Why no guest can be at the servers, if so."""
        return self.core.no_guest if self._watches_load else "the servers are not asked for their metrics pages"

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then stop."""
        await self.model_question.settled()
        for rows in tuple(self.maps):
            rows.hasten()
        while self.thinking:
            # Such a call may have further requests to come.
            self.thinking_over = anyio.Event()
            await self.thinking_over.wait()
        self.tell(DrainRequested())
        await self._drained.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """End every call, wait for closed connections, stop. A cancelled close can be resumed.

        Raises:
            Exception: a user's transport failed to close; everything else is closed.
        """
        if self.over:
            return
        if not self.ended:
            self.ended = True
            self.tell(CloseRequested())
            self._stop_watching()
            # Readers, and answered batches whose bodies have not ended.
            self._tasks.stop()
        with anyio.CancelScope(shield=True):
            await self._tasks.over()
            try:
                await self._close_connections()
            except Exception:
                # Everything is closed as far as possible: there is nothing to go on with.
                self.over = True
                raise
        self.over = True

    async def _close_connections(self) -> None:
        # An error of one must not keep the rest open.
        async with AsyncExitStack() as closing:
            if self._tracing is not None:
                closing.push_async_callback(self._tracing.aclose)
            # A task cancelled before its first step is over in the next turn.
            closing.push_async_callback(anyio.lowlevel.checkpoint)
            for server in self.servers.values():
                closing.push_async_callback(server.transport.aclose)
                closing.push_async_callback(server.watcher.aclose)

    def start_reader(
        self, read: Callable[[], Awaitable[None]], on_stop: Callable[[], None], context: Context | None = None
    ) -> Callable[[], bool]:
        """Start a task that reads a map's documents, or a server's page; return the cancellation.

        ``on_stop`` is called if the runner is closed before the work is done. The cancellation says
        whether the task will never take its first step.
        """
        key = object()
        self._tasks.start(key, self._read, read, on_stop, context)
        return partial(self._tasks.cancel, key)

    async def _read(self, read: Callable[[], Awaitable[None]]) -> None:
        # A method: whoever holds the reading task holds the runner, and so every call's waiter.
        await read()

    # The step ------------------------------------------------------------------------------------------------------

    def between_steps(self, read: Callable[[], _T]) -> _T:
        """Return what a function reads of the state, as it is between two steps; from any thread.

        A thread that steps meanwhile is read anew. Where a user's function holds up a step for a
        second, its state is read as it is.
        """
        until = time.monotonic() + _LONGEST_STEP_S
        while True:
            steps, is_between = self._steps, not self._events or self._thread == threading.get_ident()
            is_late = time.monotonic() > until
            try:
                found = read()
            except RuntimeError:
                # A container has changed while it was read.
                if is_late:
                    raise
            else:
                if (is_between and steps == self._steps) or is_late:
                    return found
            time.sleep(_A_STEP_S)

    def _step(self, event: Event, now: float) -> None:
        events = self._events
        events.append((event, now))
        if len(events) > 1:
            return  # within the step of another event
        core = self.core
        self._steps += 1
        try:
            for each, at in events:
                core.handle(each, at)
                self._execute(core.commands())
        finally:
            events.clear()
        self._set_timer(at)

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Resolve(answers):
                    for request, completion in answers:
                        waiter = request.waiter
                        if not waiter.done():
                            waiter.set_result(completion)
                case SendBatch(batch):
                    self._tasks.start(batch.id, self._send, batch)
                    if self._watches_load and batch.endpoint not in self._watched:
                        self.servers[batch.endpoint].watcher.watch()
                case Reject(errors):
                    for request, error in errors:
                        waiter = request.waiter
                        if not waiter.done():
                            waiter.set_exception(error)
                case AbortBatch(batch):
                    self._abort(batch)
                case Ask():
                    self.servers[command.endpoint].watcher.ask(command)
                case WaitOver(error):
                    self.model_question.fail(error)
                case Drained():
                    self._drained.set()
                case Adjusted():
                    self._tell_adjusted(command)
                case EndpointGone(endpoint):
                    self.servers[endpoint].gone.set()
                case HealthChanged():
                    self._tell_health(command)

    def _abort(self, batch: Batch) -> None:
        if self._tasks.cancel(batch.id):
            self._attempts.end(batch, batch.ended_for or CANCELLED, begun=False)

    def _tell_adjusted(self, change: Adjusted) -> None:
        """Tell the log and the story of a new limit or list cap."""
        it = change.adjustment
        self._decided(change.name, f"{it.setting} {it.old} → {it.new}", it.reason)
        facts = {"setting": it.setting, "old": it.old, "new": it.new, "reason": it.reason}
        self._log("adjusted", it.endpoint, "endpoint %d: %s %d -> %d: %s", it.endpoint, *facts.values(), **facts)

    def _tell_health(self, change: HealthChanged) -> None:
        """Tell the log and the story of a server that goes, returns, or is sent less."""
        at, name, state, reason = change.endpoint, change.name, change.state, change.reason
        self._decided(name, state, reason)
        if state == "held":
            for rows in tuple(self.maps):
                rows._wake()  # they may read further
            message = "endpoint %d (%s) is sent less, and calls wait: %s"
            self._log("calls_held", at, message, at, name, reason, reason=reason)
            return
        self._log(
            "endpoint_state", at, "endpoint %d (%s) is %s: %s", at, name, state, reason, state=state, reason=reason
        )
        if change.notice is not None:
            self._log(change.notice, at, "%s", change.outage, reason=reason)

    def _decided(self, server: str, what: str, why: str) -> None:
        self.story.append(Decision(self._now() - self._began_at, server, what, why))

    def _stop_watching(self) -> None:
        for watcher in list(self._watched.values()):
            watcher.rest()

    def _set_timer(self, now: float) -> None:
        if self._watched and self.core.idle:
            self._stop_watching()
        deadline = self.core.next_deadline()
        if deadline == math.inf:
            # Patience without a bound; not every event loop takes such a time.
            deadline = None
        if deadline is not None and deadline <= now:
            if not self._due_now:
                self._due_now = True
                self.backend.call_soon(self._on_due)
            return
        timer = self._timer
        if timer is not None:
            # A timer that fires early does no harm; a timer per event would cost more.
            if deadline is not None and self._timer_at <= deadline:
                return
            timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer_at = deadline
            self._timer = self.backend.call_at(deadline, self._on_timer)

    def _on_due(self) -> None:
        self._due_now = False
        self.tell(Woke())

    def _on_timer(self) -> None:
        self._timer = None
        # A clock that wakes the runner a little early must not let it spin at the same instant.
        self._step(Woke(), max(self._now(), self._timer_at))
