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

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from batchclient._core.limits import Limit, ServerLoad
from batchclient._core.messages import (
    AbortBatch,
    Adjusted,
    Adjustment,
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
    HealthChanged,
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
from batchclient._core.statistics import EndpointStatistics
from batchclient._shell.announcer import Announcer, Decision
from batchclient._shell.attempts import CANCELLED, Attempts
from batchclient._shell.backend import Backend, Cancellable
from batchclient._shell.dialect_choice import DialectChoice
from batchclient._shell.exchange import BodyTimeouts, Exchanges
from batchclient._shell.fronts import Core, Tracing
from batchclient._shell.load_watch import LoadTimes, LoadWatch
from batchclient._shell.log import EndpointLog
from batchclient._shell.pages import Page
from batchclient._shell.servers import ServerInfo, Servers, info_of
from batchclient._shell.tasks import Tasks
from batchclient.errors import BatchClientError, ClientClosed
from batchclient.retry import RetryPolicy
from batchclient.transport import Timeouts, Transport

if TYPE_CHECKING:
    from batchclient._shell.asking import Questions
    from batchclient._shell.model_question import ModelQuestion
    from batchclient.dialects._fingerprints import Fingerprint, ServerFacts

__all__ = ["Runner"]

_BODY_TIMEOUTS = BodyTimeouts()
_LOAD_TIMES = LoadTimes()
_PAGE_TIMEOUT_S = 2.0


class Runner:
    """Drives a scheduler in an event loop.

    Args:
        backend: the loop's clock, tasks and timer.
        core: the scheduler, or a front of it.
        dialects: makes an endpoint's dialect.
        transports: one per endpoint, in the order of their ids.
        policy: when to try again.
        timeouts: of each request.
        bounds_connect: whether a connection gets half of its calls' time; see ``Exchanges``.
        on_failure: told of each failed batch and its error, for the client to learn from.
        on_adjustment: the user's; told of each change of a limit or list cap.
        pages: for each page that may be asked for beside the calls, one transport per endpoint.
        model: the model of the calls, if all are for one.
        on_server: told of each server found out, for the client's own conclusions.
        on_model: told of the model's name, if the servers were asked.
        body_timeouts: for the rest of a known reply.
        page_timeout_s: the most time for a page asked for beside the calls, seconds.
        load_times: when servers are asked for their load.
        tracing: makes spans, if any are made.
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
        on_adjustment: Callable[[Adjustment], object] | None = None,
        *,
        pages: Mapping[Page, Sequence[Transport]],
        model: str | None = None,
        on_server: Callable[[int, ServerFacts, float], None] | None = None,
        on_model: Callable[[str], None] | None = None,
        body_timeouts: BodyTimeouts = _BODY_TIMEOUTS,
        page_timeout_s: float = _PAGE_TIMEOUT_S,
        load_times: LoadTimes = _LOAD_TIMES,
        bounds_connect: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self.backend = backend
        self.core: Core = core
        self.ended: bool = False
        self._process = os.getpid()
        self._now = backend.now
        self._servers = Servers(dialects, len(transports), self._url_of)
        self._dialects = self._servers.dialects
        self._transports = dict(enumerate(transports))
        self._endpoints_made = len(transports)
        self._gone: dict[int, anyio.Event] = {}
        """Set when nothing is left at a removed endpoint."""
        self._tasks = Tasks(backend.spawn)
        logs = EndpointLog(backend.now, self._url_of)
        exchanges = Exchanges(
            backend,
            self._transports,
            self._dialects,
            timeouts,
            self.tell,
            body_timeouts,
            logs,
            bounds_connect=bounds_connect,
        )
        self._attempts = Attempts(
            self._tasks, exchanges, self._servers, policy, backend.now, on_failure, self.tell, logs
        )
        self._tracing = tracing
        self._send = self._attempts.send if tracing is None else tracing.around(self._attempts.send)
        self._announcer = Announcer(on_adjustment, logs, backend.now)
        self._events: list[tuple[Event, float]] = []
        """Of the present step: each has a turn."""
        self._due_now = False
        self._timer: Cancellable | None = None
        self._timer_at = 0.0
        self._readers: dict[int, Callable[[], None]] = {}
        self._readers_started = 0
        self.waited_for: list[object] = []
        """Maps with a waiting caller: perhaps nothing else holds them and their waiting tasks."""
        self.reused = 0
        """Rows of maps that were taken from a journal."""
        self.wasted_tokens = 0
        """Of answers that came to maps and are none: they did not fit, or were asked for anew."""
        self.regained_tokens = 0
        """Output tokens of answers that were cut off, and gone on with."""
        self.invalid = 0
        """Answers that do not fit ``response_model``, and have no other fault."""
        self._drained = anyio.Event()
        self.over: bool = False
        """Whether all is closed."""
        # Imported when the client is made: within ``import batchclient`` both would take a tenth of
        # the time.
        from batchclient._shell.asking import Questions
        from batchclient._shell.model_question import ModelQuestion

        self._on_server = on_server
        self._on_model = on_model
        self._questions: Questions = Questions(
            pages, self.start_reader, self._hear, self._report_server, model, page_timeout_s, logs
        )
        self._watches_load = Page.LOAD in pages
        self._load_watch = LoadWatch(
            backend, self.start_reader, self._questions.fetch_load, core.heeds_load, self._hear, load_times
        )
        self.model_question: ModelQuestion = ModelQuestion(
            backend,
            lambda: list(self._transports.items()),
            self.start_reader,
            policy,
            timeouts,
            dialects,
            self._hear_model,
            self._url_of,
            self._hear,
            lambda number: any(each.id == number and each.state == "awaited" for each in self._endpoints()),
        )

    @property
    def mixes_queries(self) -> bool:
        """Whether, as far as known, every server scores pairs of several queries in a request."""
        return self._servers.mixes_queries

    @property
    def continues_chats(self) -> bool:
        """Whether every server is known to go on with a conversation's last message."""
        return self._servers.continues_chats

    async def find_out_servers(self) -> None:
        """Wait until every server that may be asked, and answers, is known."""
        async with anyio.create_task_group() as group:
            for number in list(self._transports):
                group.start_soon(self._questions.find_out, number)

    @property
    def story(self) -> list[Decision]:
        """The last decisions of the core's own, oldest first."""
        return list(self._announcer.story)

    async def look_at_servers(self, model: str | None) -> list[ServerInfo]:
        """Ask every server that may be asked what it is and how busy it is; ``model``: the client's."""
        found: dict[int, tuple[ServerFacts | None, ServerLoad | None]] = {}

        async def look_at(number: int) -> None:
            facts = await self._questions.find_out(number, anew=True)
            found[number] = facts, (await self._questions.fetch_load(number))[0]

        async with anyio.create_task_group() as group:
            for number in list(self._transports):
                group.start_soon(look_at, number)
        return [info_of(each.base_url, *found[each.id], model) for each in self._endpoints() if each.id in found]

    def submit(self, request: Request, *, may_wait: bool = False) -> None:
        """Make a call; the waiter is set at the end."""
        if not self._due_now:
            self.backend.note_work()
        self._step(Submitted(request, may_wait), self._now())

    def check_process(self) -> None:
        """Raise ``ClientClosed`` in a forked child: what the parent has begun is the parent's."""
        if self._process != os.getpid():
            raise ClientClosed("what was begun before a fork belongs to the parent process")

    def leave(self, request: Request) -> None:
        """Note that the caller waits no more; without effect on a request never submitted."""
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
        return next((each.base_url for each in self._endpoints() if each.id == endpoint), "")

    def _endpoints(self) -> Sequence[EndpointStatistics]:
        return self.core.statistics().endpoints

    def _hear(self, event: Event) -> None:
        """Take in the outcome of a question."""
        if not self.ended:
            self.tell(event)

    def _report_server(self, endpoint: int, facts: ServerFacts) -> None:
        """Take in which server an endpoint is; batches under way go on as encoded."""
        if self.ended or endpoint not in self._dialects:
            return
        caps = self._servers.learn(endpoint, facts)
        if self._on_server is not None:
            self._on_server(endpoint, facts, self._now())
        self.tell(ServerKnown(endpoint, caps, facts.takes, facts.server, facts.event_per_token))

    def _hear_model(self, name: str, endpoint: int, fingerprint: Fingerprint) -> None:
        """Take in the model named by a server."""
        if self._on_model is not None:
            self._on_model(name)
        self._questions.adopt(endpoint, fingerprint)

    def add_endpoint(self, transport: Transport, pages: Mapping[Page, Transport], limit: Limit, name: str) -> int:
        """Serve another endpoint; return its id."""
        number = self._endpoints_made
        self._endpoints_made += 1
        self._transports[number] = transport
        self._servers.add(number)
        self._questions.add(number, pages)
        self.tell(EndpointAdded(number, limit, name))
        return number

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut further secrets out of every server's messages."""
        self._servers.hide(secrets)

    def has_endpoint(self, number: int) -> bool:
        """Whether an endpoint is served, or leaves and is not yet closed."""
        return number in self._transports

    async def remove_endpoint(self, number: int, *, drain: bool) -> None:
        """Serve an endpoint no more; wait until its calls and connections have ended.

        A cancelled endpoint leaves all the same; its idle connections are closed with the runner.
        """
        gone = self._gone.setdefault(number, anyio.Event())
        self.tell(EndpointRemoved(number, drain))
        await gone.wait()
        self._servers.remove(number)
        self._gone.pop(number, None)
        transport = self._transports.pop(number, None)
        if transport is not None:
            with anyio.CancelScope(shield=True):
                async with AsyncExitStack() as closing:
                    closing.push_async_callback(transport.aclose)
                    closing.push_async_callback(self._questions.remove, number)
                    closing.callback(self._load_watch.forget, number)

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then stop."""
        await self.model_question.settled()
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
            self._load_watch.stop()
            for number, on_stop in list(self._readers.items()):
                self._stop_reader(number)
                on_stop()
            # Answered batches whose bodies have not ended.
            self._tasks.cancel_the_rest()
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
            holders: list[Transport | Questions] = [*self._transports.values(), self._questions]
            for holder in holders:
                closing.push_async_callback(holder.aclose)

    def start_reader(self, read: Callable[[], Awaitable[None]], on_stop: Callable[[], None]) -> Callable[[], object]:
        """Start a task that reads a map's documents, or a server's page; return the cancellation.

        ``on_stop`` is called if the runner is closed before the work is done.
        """
        self._readers_started += 1
        number = -self._readers_started
        self._readers[number] = on_stop
        self._tasks.start(number, self._read, (number, read))
        return partial(self._stop_reader, number)

    async def _read(self, number_and_work: tuple[int, Callable[[], Awaitable[None]]]) -> None:
        number, read = number_and_work
        if not self._tasks.begins(number):
            return
        try:
            await read()
        finally:
            self._readers.pop(number, None)
            self._tasks.forget(number)

    def _stop_reader(self, number: int) -> None:
        if self._tasks.cancel(number):
            self._readers.pop(number, None)

    # The step ------------------------------------------------------------------------------------------------------

    def _step(self, event: Event, now: float) -> None:
        events = self._events
        events.append((event, now))
        if len(events) > 1:
            return  # within the step of another event
        core = self.core
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
                    if self._watches_load and batch.endpoint not in self._load_watch.watched:
                        self._load_watch.begin(batch.endpoint)
                case Reject(errors):
                    for request, error in errors:
                        waiter = request.waiter
                        if not waiter.done():
                            waiter.set_exception(error)
                case AbortBatch(batch):
                    self._abort(batch)
                case Ask():
                    self._questions.ask(command)
                case WaitOver(error):
                    self.model_question.fail(error)
                case Drained():
                    self._drained.set()
                case Adjusted():
                    self._announcer.adjusted(command)
                case EndpointGone(endpoint):
                    self._gone[endpoint].set()
                case HealthChanged():
                    self._announcer.health_changed(command)

    def _abort(self, batch: Batch) -> None:
        if self._tasks.cancel(batch.id):
            self._attempts.end(batch, batch.ended_for or CANCELLED, begun=False)

    def _set_timer(self, now: float) -> None:
        if self._load_watch.watched and self.core.idle:
            self._load_watch.stop()
        deadline = self.core.next_deadline()
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
