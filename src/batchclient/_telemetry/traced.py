"""The core with spans: a front that says when the span of a call or of a request begins and ends.

A front for the scheduler with the same methods, present only where asked for: a client without
telemetry has none, and pays nothing.

Rules:
- A call has one span, from ``Submitted`` to its ``Resolve``, ``Reject`` or ``Cancelled``. The calls
  that share a generation have a span each.
- A request has one span, from ``SendBatch`` to its end, if any of its calls has a span that is
  seen. A request with one call is a child of the call's span. A request with several has a trace of
  its own. Either has a link to each of its calls; each call names the request's span.
- Of a map's rows a share has spans, chosen by the row's number; all rows, under a parent that
  records.
- Times are the scheduler's, as in its histograms. A span's begin is read from the wall clock; its
  end is the begin and the scheduler's time between.
- A fault here, or of a tracer, costs spans and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context as Variables
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from opentelemetry.context import Context

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
from batchclient._core.single_flight import callers_of
from batchclient._core.statistics import Statistics
from batchclient._telemetry import conventions as name
from batchclient._telemetry.attributes import Attributes, of_address, of_answer, of_batch, of_shape
from batchclient._telemetry.sending import enter
from batchclient._telemetry.spans import Spans, Started, holding
from batchclient.errors import CallAborted

if TYPE_CHECKING:
    from batchclient._shell.fronts import Core
    from batchclient._telemetry.ending import End
    from batchclient.errors import BatchClientError

__all__ = ["TracedCore"]

_CANCELLED = "cancelled"
_SHAPES_REMEMBERED = 1024
_CLOSING_S = 1.0
"""How long the end of a client waits for its spans to end, seconds."""
_GOES_ON = frozenset({RequestState.QUEUED, RequestState.BACKING_OFF, RequestState.IN_FLIGHT})
_GOLDEN, _WHOLE = 0x9E3779B97F4A7C15, 2**64
"""Multiples of the golden ratio, without their whole parts, lie evenly, whatever the first is."""


class _Row(Protocol):
    """A map's row, the waiter of its call."""

    @property
    def index(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def caller(self) -> Variables | None: ...


class _Call(Started):
    """The span of a call under way.

    Attributes:
        provider: the name of the server that the span began with.
        batch: the call's last batch.
        request: the span of the call's last request.
        queue_s: the time before the first request; ``None``: none was sent.
        failed: of a failed attempt: the calls that went on, the server, the class of the error.
    """

    __slots__ = ("batch", "failed", "provider", "queue_s", "request")

    def __init__(self, started: Started, provider: str) -> None:
        super().__init__(started.span, started.context, started.at, recording=started.recording)
        self.provider: str = provider
        self.batch: Batch | None = None
        self.request: Started | None = None
        self.queue_s: float | None = None
        self.failed: tuple[int, int, str] | None = None


class _Sent:
    """A request under way, some of whose calls have spans.

    Attributes:
        started: the request's span; ``None``: no call's span is seen.
        current: the span for the time of the sending.
        outgoing: what the server is told.
        since: when the request was sent, on the scheduler's clock.
    """

    __slots__ = ("current", "outgoing", "since", "started")

    def __init__(self, started: Started | None, current: Started, outgoing: Context, since: float) -> None:
        self.started: Started | None = started
        self.current: Started = current
        self.outgoing: Context = outgoing
        self.since: float = since


class TracedCore:
    """A scheduler, perhaps behind a front of its own, whose calls and requests have spans.

    Args:
        core: has the same methods.
        spans: makes spans.
        names: the endpoints' base URLs as they may be shown.
        dialect: the name of the given dialect; ``None``: to be found out.
        trace_rows: the share of a map's rows that have spans, 0 to 1.
        client_name: a name for the client, in every span.
        wake_up: makes a function that may be called from any thread of one for the event loop.
    """

    def __init__(
        self,
        core: Core,
        spans: Spans,
        names: Sequence[str],
        dialect: str | None,
        trace_rows: float,
        client_name: str | None,
        wake_up: Callable[[Callable[[], None]], None],
    ) -> None:
        self._core = core
        self._handle = core.handle
        self._spans = spans
        self._provider = name.PROVIDERS.get(dialect or "", name.OPENAI)
        self._addresses = dict(enumerate(map(of_address, names)))
        self._providers = dict.fromkeys(self._addresses, self._provider)
        self._of_client: Attributes = {} if client_name is None else {name.CLIENT: client_name}
        self._trace_below = int(trace_rows * _WHOLE)
        self._wake_up = wake_up
        self._shapes: dict[Shape, tuple[str, Attributes]] = {}
        self._calls: dict[Request, _Call] = {}
        self._requests: dict[int, _Sent] = {}
        self._now = 0.0
        self._answered: Batch | None = None
        """The batch of the present event, if answers came."""
        self._over: Batch | None = None
        """The batch that the present event has ended; its last calls are to be looked at."""
        self.next_deadline: Callable[[], float | None] = core.next_deadline
        self.statistics: Callable[[], Statistics] = core.statistics

    def __repr__(self) -> str:
        return repr(self._core)

    def __del__(self) -> None:
        # The event loop has ended over its calls, or the client was dropped.
        self._guarded(self._end_all)
        self._spans.ending.stop()

    # The scheduler's contract ----------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in an event."""
        kind = type(event)
        self._now = now
        if kind is Submitted:
            if now >= self._spans.rests_until:
                self._guarded(self._begin, event)
            self._handle(event, now)
            return
        self._answered = event.batch if kind is Answered else None  # type: ignore[union-attr]
        self._handle(event, now)
        watch = _WATCHED.get(kind)
        if watch is not None:
            self._guarded(watch, self, event)

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        commands = self._core.commands()
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

    # The shell's side ------------------------------------------------------------------------------------------

    def around(self, send: Callable[[Batch], Awaitable[None]]) -> Callable[[Batch], Awaitable[None]]:
        """Return the sending of a batch, in a task of its own, under the request's span."""

        async def send_traced(batch: Batch) -> None:
            sent = self._requests.get(batch.id)
            if sent is not None:
                self._guarded(enter, sent.current.span, sent.outgoing)
            await send(batch)

        return send_traced

    async def aclose(self) -> None:
        """End what is left, and wait for the ends, a second at most."""
        self._end_all()
        ended = anyio.Event()
        if self._spans.finish(partial(self._wake_up, ended.set)):
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await ended.wait()
            if not ended.is_set():
                self._spans.say("a span processor is too slow, and is left with spans to end", "")
        self._spans.ending.stop()

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # spans are no reason for a call to fail
            self._spans.say("a fault of batchclient, which costs spans", type(error).__name__)

    # Calls -----------------------------------------------------------------------------------------------------

    def _begin(self, event: Submitted) -> None:
        request = event.request
        context: Context | None = None
        more: Attributes | None = None
        if event.may_wait:
            row: _Row = request.waiter
            caller = row.caller
            if caller is None:
                return
            context, recording = self._spans.parent_of(caller)
            if not recording and row.index * _GOLDEN % _WHOLE >= self._trace_below:
                return
            more = {name.ROW_ID: row.id}
        title, attributes = self._shapes.get(request.shape) or self._describe(request.shape)
        started = self._spans.start(
            title, attributes if more is None else {**attributes, **more}, context, self._now
        )
        if started is not None:
            self._calls[request] = _Call(started, self._provider)

    def _describe(self, shape: Shape) -> tuple[str, Attributes]:
        title, attributes = of_shape(shape)
        if len(self._shapes) >= _SHAPES_REMEMBERED:
            self._shapes.clear()
        self._shapes[shape] = described = title, {**attributes, name.PROVIDER: self._provider, **self._of_client}
        return described

    def _watch(self, commands: list[Command]) -> None:
        ends: list[End] = []
        for command in commands:
            kind = type(command)
            if kind is Resolve:
                self._resolve(command.answers, ends)  # type: ignore[union-attr]
            elif kind is SendBatch:
                self._send(command.batch)  # type: ignore[union-attr]
            elif kind is Reject:
                self._reject(command.errors, ends)  # type: ignore[union-attr]
        if ends:
            self._spans.end(ends)

    def _resolve(self, answers: Iterable[tuple[Request, Any]], ends: list[End]) -> None:
        batch = self._answered
        facts = None if batch is None else self._facts(batch)
        for request, answer in answers:
            call = self._calls.pop(request, None)
            if call is None or not call.recording:
                continue
            attributes = self._last(call, request, batch, facts)
            of_answer(answer, attributes)
            ends.append((call.span, attributes, False, self._end_of(call, request)))

    def _reject(self, errors: Iterable[tuple[Request, BatchClientError]], ends: list[End]) -> None:
        for request, error in errors:
            call = self._calls.pop(request, None)
            if call is not None and call.recording:
                attributes = self._last(call, request, call.batch)
                attributes[name.ERROR] = type(error).__name__
                attributes[name.ATTEMPTS] = error.attempt
                ends.append((call.span, attributes, True, self._end_of(call, request)))

    def _leave(self, event: Cancelled) -> None:
        """End the span of a call whose caller has gone."""
        request = event.request
        call = self._calls.pop(request, None)
        if call is not None and call.recording:
            attributes = self._last(call, request, call.batch)
            attributes[name.ERROR] = _CANCELLED
            self._spans.end([(call.span, attributes, False, self._end_of(call, request))])

    def _end_of(self, call: _Call, request: Request) -> int:
        return call.at + max(0, round((self._now - request.queued_at) * 1e9))

    def _last(
        self, call: _Call, request: Request, batch: Batch | None, facts: Attributes | None = None
    ) -> Attributes:
        """Return the attributes of a call's end, without those of its answer or error."""
        if batch is None:
            return {}
        attributes = dict(facts or self._facts(batch))
        request_span = call.request
        if batch is not call.batch:
            # The call has joined a request that was under way.
            sent = self._requests.get(batch.id)
            request_span = None if sent is None else sent.started
        if request_span is not None and request_span.recording:
            ids = request_span.context
            attributes[name.SPAN_ID] = f"{ids.span_id:016x}"
            if ids.trace_id != call.context.trace_id:
                attributes[name.TRACE_ID] = f"{ids.trace_id:032x}"
        queue_s = call.queue_s
        attributes[name.QUEUE_S] = max(0.0, batch.sent_at - request.queued_at) if queue_s is None else queue_s
        provider = self._providers[batch.endpoint]
        if provider != call.provider:
            attributes[name.PROVIDER] = provider
        return attributes

    def _facts(self, batch: Batch) -> Attributes:
        return {**of_batch(batch), **self._addresses[batch.endpoint]}

    # Requests --------------------------------------------------------------------------------------------------

    def _members(self, batch: Batch) -> list[tuple[Request, _Call]]:
        calls, members = self._calls, []
        for request in batch.requests:
            for caller in callers_of(request) if request.carries else (request,):
                call = calls.get(caller)
                if call is not None:
                    members.append((caller, call))
        return members

    def _send(self, batch: Batch) -> None:
        members = self._members(batch)
        if not members:
            return
        for request, call in members:
            call.batch, call.request = batch, None
            if call.queue_s is None:
                call.queue_s = batch.sent_at - request.queued_at
            if call.failed is not None:
                self._note_next(request, call, call.failed, batch)
                call.failed = None
        calls = [call for _, call in members]
        of_one = holding(calls[0].span) if len(batch.requests) == len(calls) == 1 else None
        links = self._spans.link(calls)
        if links:
            attributes = {**self._facts(batch), **self._of_client}
            started = self._spans.start(name.REQUEST_SPAN, attributes, of_one or Context(), self._now, links)
            if started is not None:
                for call in calls:
                    call.request = started
                outgoing = of_one or holding(started.span)
                self._requests[batch.id] = _Sent(started, started, outgoing, batch.sent_at)
        elif of_one is not None:
            # Nobody sees the call; the server is told so.
            self._requests[batch.id] = _Sent(None, calls[0], of_one, batch.sent_at)

    def _note_next(self, request: Request, call: _Call, failed: tuple[int, int, str], batch: Batch) -> None:
        """Add what became of a call after a failed attempt."""
        if not call.recording:
            return
        together, endpoint, error = failed
        at, size = self._end_of(call, request), len(batch.requests)
        event = name.SPLIT if size < together else name.RETRY
        self._spans.event(call.span, event, {name.ERROR: error, name.SIZE: size}, at)
        if batch.endpoint != endpoint:
            self._spans.event(call.span, name.FAILOVER, self._addresses[batch.endpoint], at)

    def _on_answered(self, event: Answered) -> None:
        if event.ended:
            self._over = event.batch

    def _on_failed(self, event: Failed) -> None:
        batch, error = event.batch, event.failure.error.__name__
        was_left = batch.verdict is None and (batch.aborting or batch.moving)
        # The client's own doing, as when it is closed while it waits for the end of a body.
        was_left = was_left or issubclass(event.failure.error, CallAborted)
        self._end_request(batch, _CANCELLED if was_left else error)
        if self._calls:
            going_on = [request for request in batch.requests if request.state in _GOES_ON]
            for request in going_on:
                for caller in callers_of(request):
                    call = self._calls.get(caller)
                    if call is not None:
                        call.failed = (len(going_on), batch.endpoint, error)

    def _end_request(self, batch: Batch, error: str | None) -> None:
        sent = self._requests.pop(batch.id, None)
        if sent is None:
            return
        if sent.started is not None and sent.started.recording:
            attributes = {} if error is None else {name.ERROR: error}
            at = sent.started.at + max(0, round((self._now - sent.since) * 1e9))
            failed = error is not None and error != _CANCELLED
            self._spans.end([(sent.started.span, attributes, failed, at)])

    def _end_all(self) -> None:
        """End the spans of what will never end."""
        ends: list[End] = []
        calls, self._calls = self._calls, {}
        requests, self._requests = self._requests, {}
        for request, call in calls.items():
            if call.recording:
                ends.append((call.span, {name.ERROR: _CANCELLED}, False, self._end_of(call, request)))
        for sent in requests.values():
            started = sent.started
            if started is not None and started.recording:
                at = started.at + max(0, round((self._now - sent.since) * 1e9))
                ends.append((started.span, {name.ERROR: _CANCELLED}, False, at))
        if ends:
            self._spans.end(ends)

    # Servers ---------------------------------------------------------------------------------------------------

    def _on_endpoint_added(self, event: EndpointAdded) -> None:
        self._addresses[event.endpoint] = of_address(event.name)
        self._providers[event.endpoint] = self._provider

    def _on_server_known(self, event: ServerKnown) -> None:
        known = (event.server or "").partition(" ")[0]
        self._providers[event.endpoint] = provider = name.PROVIDERS.get(known, name.OPENAI)
        if provider != self._provider and len(set(self._providers.values())) == 1:
            # All servers are alike: spans begin with the name from now on.
            self._provider = provider
            self._shapes.clear()


_WATCHED: dict[type, Callable[[TracedCore, Any], None]] = {
    Answered: TracedCore._on_answered,
    Failed: TracedCore._on_failed,
    Cancelled: TracedCore._leave,
    EndpointAdded: TracedCore._on_endpoint_added,
    ServerKnown: TracedCore._on_server_known,
}
