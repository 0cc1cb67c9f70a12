"""The core with spans: a front that says when the span of a call or of a request begins and ends.

A front for the scheduler with the same methods, present only where asked for: a client without
telemetry has none, and pays nothing.

Rules:
- A call has one span, from ``Submitted`` to its ``Resolve``, ``Reject`` or ``Cancelled``. The calls
  that share a generation have a span each.
- A request has one span, from ``SendBatch`` to its end, if any of its calls has a span that is
  seen. A request with one call is a child of the call's span. A request with several has a trace of
  its own. Either has a link to each of its calls; each call names the request's span.
- A map's rows are calls: their parent is the span that was current when the map began.
- Times are the scheduler's, as in its histograms. A span's begin is read from the wall clock; its
  end is the begin and the scheduler's time between.
- A fault here, or of a tracer, costs spans and nothing else. It is logged once, by its class.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import Context as Variables
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from opentelemetry.context import Context

from batchclient._common.log import log
from batchclient._core.messages import (
    Answered,
    Batch,
    Cancelled,
    Command,
    EndpointAdded,
    Event,
    Failed,
    Reject,
    Request,
    RequestState,
    Resolve,
    SendBatch,
    ServerKnown,
    Shape,
    Submitted,
)
from batchclient._core.statistics import EndpointStatistics, Statistics
from batchclient._telemetry import conventions as name
from batchclient._telemetry.attributes import Attributes, of_address, of_answer, of_batch, of_row, of_shape
from batchclient._telemetry.sending import enter
from batchclient._telemetry.spans import Spans, context_of, end, holding, links_to
from batchclient.errors import CallAborted

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from batchclient._shell.fronts import Core
    from batchclient.errors import BatchClientError

__all__ = ["TracedCore"]

_End = TypeVar("_End")
"""An answer, or an error."""

_CANCELLED = "cancelled"
_SHAPES_REMEMBERED = 1024
_GOES_ON = frozenset({RequestState.QUEUED, RequestState.BACKING_OFF, RequestState.IN_FLIGHT})


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way whose span is seen.

    Args:
        span: the call's.
        at: when the span began, nanoseconds.
        facts: attributes of the call's last request; ``None``: none was sent.
        queue_s: the time before the first request.
        failed: of a failed attempt: the calls that went on, the server, the class of the error.
    """

    span: Span
    at: int
    facts: Attributes | None = None
    queue_s: float = 0.0
    failed: tuple[int, int, str] | None = None

    def without_answer(self, error: str, attempts: int) -> Attributes:
        """Return the last attributes of a call that has no answer."""
        attributes = {**(self.facts or {}), name.ERROR: error}
        if attempts > 1:
            attributes[name.ATTEMPTS] = attempts
        if self.facts is not None:
            attributes[name.QUEUE_S] = self.queue_s
        return attributes


@dataclass(slots=True, eq=False)
class _Sent:
    """A request under way, some of whose calls have spans.

    Args:
        current: the span for the time of the sending.
        outgoing: the headers for the server.
        span: the request's; ``None``: no call's span is seen.
        at: when the span began, nanoseconds.
        facts: attributes of the request for its calls.
    """

    current: Span
    outgoing: Context
    span: Span | None = None
    at: int = 0
    facts: Attributes | None = None


class TracedCore:
    """A scheduler, perhaps behind a front of its own, whose calls and requests have spans.

    Args:
        core: has the same methods.
        spans: makes spans.
        names: the endpoints' base URLs as they may be shown.
        dialect: the name of the given dialect; ``None``: to be found out.
        client_name: a name for the client, in every span.
    """

    def __init__(
        self,
        core: Core,
        spans: Spans,
        names: Sequence[str],
        dialect: str | None,
        client_name: str | None,
    ) -> None:
        self._core = core
        self._handle = core.handle
        self._take = core.commands
        self._spans = spans
        self._start = spans.start
        self._provider = name.PROVIDERS.get(dialect or "", name.OPENAI)
        self._providers: dict[int, str] = {}
        """Of the servers that have been found out."""
        self._addresses = dict(enumerate(map(of_address, names)))
        self._of_client: Attributes = {} if client_name is None else {name.CLIENT: client_name}
        self._said: set[str] = set()
        self._shapes: dict[Shape, tuple[str, Attributes]] = {}
        self._calls: dict[Request, _Call | Span] = {}
        """A bare span is one that nobody sees; the server hears of it."""
        self._sent: dict[int, _Sent] = {}
        """By the batch's id."""
        self._caller: Callable[[], Variables | None] = lambda: None
        """Who has begun the map of the last row."""
        self._context = Context()
        self._now = 0.0
        self._answered: Batch | None = None
        """The batch of the present event, if answers came."""
        self._over: Batch | None = None
        """The batch that the present event has ended; its last calls are to be looked at."""
        self.next_deadline: Callable[[], float | None] = core.next_deadline
        self.statistics: Callable[[], Statistics] = core.statistics
        self.endpoint: Callable[[int], EndpointStatistics | None] = core.endpoint
        self.heeds_load: Callable[[int], bool] = core.heeds_load

    def __repr__(self) -> str:
        return repr(self._core)

    def __del__(self) -> None:
        # The event loop has ended over its calls, or the client was dropped.
        self._end_all()

    # The scheduler's contract ----------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in an event."""
        kind = type(event)
        self._now = now
        if kind is Submitted:
            if not event.request.carries:  # type: ignore[union-attr]
                self.begin(event, now)  # type: ignore[arg-type]
            self._handle(event, now)
            return
        self._answered = event.batch if kind is Answered else None  # type: ignore[union-attr]
        self._handle(event, now)
        watch = _WATCHED.get(kind)
        if watch is not None:
            self._guarded(watch, self, event)

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        commands = self._take()
        if commands and self._calls:
            self._guarded(self._watch, commands)
        if self._over is not None:
            batch, self._over = self._over, None
            self._guarded(self._end_request, batch, None)
        return commands

    @property
    def idle(self) -> bool:
        """Whether no call and no batch is left."""
        return self._core.idle

    @property
    def total_limit(self) -> int:
        """The scheduler's total limit."""
        return self._core.total_limit

    @property
    def no_guest(self) -> str:
        """As the core's."""
        return self._core.no_guest

    @property
    def held_back(self) -> int:
        """See ``Scheduler``."""
        return self._core.held_back

    # The shell's side ------------------------------------------------------------------------------------------

    def around(self, send: Callable[[Batch], Awaitable[None]]) -> Callable[[Batch], Awaitable[None]]:
        """Return the sending of a batch, in a task of its own, under the request's span."""

        async def send_traced(batch: Batch) -> None:
            sent = self._sent.get(batch.id)
            if sent is not None:
                self._guarded(enter, sent.current, sent.outgoing)
            await send(batch)

        return send_traced

    def begin(self, event: Submitted, now: float) -> None:
        """Begin the span of a call."""
        self._now = now
        if now >= self._spans.none_until:
            self._guarded(self._begin, event)

    def end_alone(self, request: Request, error: BatchClientError | None, now: float) -> None:
        """End the span of a call that ends before the generation which it shares."""
        self._now = now
        if error is None:
            self._guarded(self._leave, Cancelled(request))
        else:
            self._guarded(self._watch, [Reject([(request, error)])])

    async def aclose(self) -> None:
        """End what is left."""
        self._end_all()

    def _guarded(self, function: Callable[..., None], *arguments: Any, **more: Any) -> None:
        try:
            function(*arguments, **more)
        except (Exception, CancelledError) as error:  # spans are no reason for a call to fail
            kind = type(error).__name__
            if kind not in self._said:
                self._said.add(kind)
                log("telemetry_failed", "telemetry: spans were lost: %s", kind, error=kind)

    # Calls -----------------------------------------------------------------------------------------------------

    def _begin(self, event: Submitted) -> None:
        request = event.request
        title, attributes = self._shapes.get(request.shape) or self._describe(request.shape)
        context: Context | None = None
        if event.may_wait:
            row = request.waiter
            caller = row.caller
            if caller is not None and caller is not self._caller():
                self._caller, self._context = ref(caller), context_of(caller)
            context, attributes = self._context, {**attributes, **of_row(row.id)}
        at = time_ns()
        span = self._start(title, attributes, context, at, self._now)
        if span is not None:
            self._calls[request] = _Call(span, at) if span.is_recording() else span

    def _describe(self, shape: Shape) -> tuple[str, Attributes]:
        title, attributes = of_shape(shape)
        if len(self._shapes) >= _SHAPES_REMEMBERED:
            self._shapes.clear()
        self._shapes[shape] = described = title, {**attributes, name.PROVIDER: self._provider, **self._of_client}
        return described

    def _watch(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Resolve):
                self._resolve(command.answers)
            elif isinstance(command, SendBatch):
                self._guarded(self._send, command.batch)
            elif isinstance(command, Reject):
                for request, error in _each(command.errors):
                    self._end_call(request, type(error).__name__, error.attempt, failed=True)

    def _resolve(self, answers: Iterable[tuple[Request, Any]]) -> None:
        batch = self._answered
        assert batch is not None, "answers come with a batch"
        sent = self._sent.get(batch.id)
        facts = None if sent is None else sent.facts
        for request, answer in _each(answers):
            call = self._calls.pop(request, None)
            if type(call) is not _Call:
                continue
            if call.facts is None:
                # The call has joined a request that was under way, which may be in another's trace.
                call.facts = facts = facts or self._facts(batch)
                if sent is not None and sent.span is not None and sent.span.is_recording():
                    call.facts = {**facts, **_other_trace(sent.span, call.span)}
                call.queue_s = max(0.0, batch.sent_at - request.queued_at)
            attributes = {**call.facts, name.QUEUE_S: call.queue_s}
            of_answer(answer, attributes)
            self._guarded(end, call.span, attributes, self._end_of(call, request))

    def _leave(self, event: Cancelled) -> None:
        """End the span of a call whose caller has gone."""
        self._end_call(event.request, _CANCELLED, event.request.attempts)

    def _end_call(self, request: Request, error: str, attempts: int, *, failed: bool = False) -> None:
        """End the span of a call that has no answer, if it has a span."""
        call = self._calls.pop(request, None)
        if type(call) is _Call:
            attributes = call.without_answer(error, attempts)
            self._guarded(end, call.span, attributes, self._end_of(call, request), failed=failed)

    def _end_of(self, call: _Call, request: Request) -> int:
        return call.at + max(0, int((self._now - request.queued_at) * 1e9))

    # Requests --------------------------------------------------------------------------------------------------

    def _facts(self, batch: Batch) -> Attributes:
        """Return the attributes of a request for its calls."""
        facts = {**of_batch(batch), **self._addresses[batch.endpoint]}
        if self._providers:
            facts[name.PROVIDER] = self._providers.get(batch.endpoint, self._provider)
        return facts

    def _send(self, batch: Batch) -> None:
        calls = self._calls
        members: list[tuple[Request, _Call]] = []
        silent: Span | None = None
        several = len(batch.requests) > 1
        for request in batch.requests:
            callers = _callers_of(request)
            several = several or len(callers) > 1
            for caller in callers:
                call = calls.get(caller)
                if type(call) is _Call:
                    members.append((caller, call))
                elif call is not None:
                    silent = call  # type: ignore[assignment]
        if members:
            self._send_seen(batch, members, alone=not several)
        elif silent is not None and not several:
            # Nobody sees the call; the server hears so.
            self._sent[batch.id] = _Sent(silent, holding(silent))

    def _send_seen(self, batch: Batch, members: list[tuple[Request, _Call]], *, alone: bool) -> None:
        first = members[0][1].span
        parent = holding(first) if alone else Context()
        facts = self._facts(batch)
        span: Span | None = None
        if self._now >= self._spans.none_until:
            links = links_to(call.span for _, call in members)
            of_request = {key: value for key, value in facts.items() if key != name.PROVIDER}
            at = time_ns()
            span = self._start(name.REQUEST_SPAN, {**of_request, **self._of_client}, parent, at, self._now, links)
        if span is not None:
            self._sent[batch.id] = _Sent(span, parent if alone else holding(span), span, at, facts)
            if span.is_recording():
                ids = span.get_span_context()
                facts[name.SPAN_ID] = f"{ids.span_id:016x}"
                if not alone:
                    facts |= _other_trace(span, first)
        for request, call in members:
            if call.facts is None:
                call.queue_s = batch.sent_at - request.queued_at
            elif call.failed is not None:
                self._note_next(request, call, call.failed, batch)
                call.failed = None
            call.facts = facts

    def _note_next(self, request: Request, call: _Call, failed: tuple[int, int, str], batch: Batch) -> None:
        """Add what became of a call after a failed attempt."""
        together, endpoint, error = failed
        at, size = self._end_of(call, request), len(batch.requests)
        event = name.SPLIT if size < together else name.RETRY
        call.span.add_event(event, {name.ERROR: error, name.SIZE: size}, at)
        if batch.endpoint != endpoint:
            call.span.add_event(name.FAILOVER, self._addresses[batch.endpoint], at)

    def _on_answered(self, event: Answered) -> None:
        if event.ended:
            self._over = event.batch

    def _on_failed(self, event: Failed) -> None:
        batch, kind = event.batch, event.failure.error
        # An end of the client's own doing is no error.
        was_left = batch.ended_for is None and (batch.aborting or batch.moving or issubclass(kind, CallAborted))
        error = _CANCELLED if was_left else kind.__name__
        self._end_request(batch, error)
        if self._calls:
            going_on = [request for request in batch.requests if request.state in _GOES_ON]
            for request in going_on:
                for caller in _callers_of(request):
                    call = self._calls.get(caller)
                    if type(call) is _Call:
                        call.failed = (len(going_on), batch.endpoint, error)

    def _end_request(self, batch: Batch, error: str | None) -> None:
        sent = self._sent.pop(batch.id, None)
        if sent is not None and sent.span is not None:
            at = sent.at + max(0, int((self._now - batch.sent_at) * 1e9))
            attributes = {} if error is None else {name.ERROR: error}
            self._guarded(end, sent.span, attributes, at, failed=error not in (None, _CANCELLED))

    def _end_all(self) -> None:
        """End the spans of what will never end."""
        for request in list(self._calls):
            self._end_call(request, _CANCELLED, request.attempts)
        sent, self._sent = self._sent, {}
        for one in sent.values():
            if one.span is not None:
                self._guarded(end, one.span, {name.ERROR: _CANCELLED}, time_ns())

    # Servers ---------------------------------------------------------------------------------------------------

    def _on_endpoint_added(self, event: EndpointAdded) -> None:
        self._addresses[event.endpoint] = of_address(event.name)

    def _on_server_known(self, event: ServerKnown) -> None:
        known = (event.server or "").partition(" ")[0]
        self._providers[event.endpoint] = provider = name.PROVIDERS.get(known, name.OPENAI)
        if provider != self._provider and set(self._providers.values()) == {provider}:
            # All servers that are known are alike: spans begin with the name from now on.
            self._provider = provider
            self._shapes.clear()


def _other_trace(span: Span, call: Span) -> Attributes:
    """Return the attribute that names the trace of a request, if it is another than the call's."""
    traces = [each.get_span_context().trace_id for each in (span, call)]
    return {} if traces[0] == traces[1] else {name.TRACE_ID: f"{traces[0]:032x}"}


def _callers_of(request: Request) -> tuple[Request, ...]:
    """Return whom a request is made for: itself, or the callers who share its generation."""
    return tuple(request.waiter) if request.carries else (request,)


def _each(ends: Iterable[tuple[Request, _End]]) -> Iterator[tuple[Request, _End]]:
    """Put callers in the place of the requests made for them."""
    return ((caller, end) for request, end in ends for caller in _callers_of(request))


_WATCHED: dict[type, Callable[[TracedCore, Any], None]] = {
    Answered: TracedCore._on_answered,
    Failed: TracedCore._on_failed,
    Cancelled: TracedCore._leave,
    EndpointAdded: TracedCore._on_endpoint_added,
    ServerKnown: TracedCore._on_server_known,
}
