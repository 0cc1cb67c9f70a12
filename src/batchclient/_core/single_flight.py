"""Single flight: identical calls under way together share a generation.

A front for the scheduler with the same four methods, present only where asked for.

Rules:
 1. Calls share only where the answer depends on the call alone: explicit ``temperature=0``, an
    equal coalescing key (tenant and priority included) and an equal prompt. Calls which go alone
    share nothing.
 2. The generation belongs to an extra request, the *carrier*, which no caller holds. The first
    caller may leave, and the others still get the answer. When the last has left, the carrier is
    cancelled.
 3. Deadline, cancellation, and the answer or error object are each caller's own. Where a caller's
    time runs from its grant, the carrier's grant counts, or the joining if that is later.
 4. The carrier's deadline is the latest of its callers', past callers included; none if any caller
    has none, or if only some have their time from the grant.
 5. Nothing is kept: a call made after the answer came is generated anew.
 6. A call that joins takes no place in the queue and no permit.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

from batchclient._core.kinds import Kind
from batchclient._core.messages import (
    Batch,
    Cancelled,
    CloseRequested,
    Command,
    DrainRequested,
    Event,
    Failed,
    Reject,
    Request,
    RequestState,
    Resolve,
    SendBatch,
    Submitted,
)
from batchclient._core.outcomes.errors import copy_of
from batchclient._core.scheduler import Scheduler
from batchclient._core.statistics import EndpointStatistics, Statistics
from batchclient._core.waiting.deadlines import Deadlines
from batchclient.errors import BatchClientError
from batchclient.health import no_answers
from batchclient.types import Completion

__all__ = ["SingleFlight", "callers_of"]

_Key = tuple[bytes, bytes]


class _Flight:
    """A generation and its waiting callers; the carrier's waiter."""

    __slots__ = ("callers", "carrier", "key")

    def __init__(self, key: _Key, first: Request) -> None:
        self.key = key
        self.callers: dict[Request, None] = {}
        """In the order in which they came."""
        self.carrier = Request(
            first.shape,
            first.prompt,
            prompt_tokens=first.prompt_tokens,
            deadline=first.deadline,
            timeout_s=first.timeout_s,
            solo_fields=first.solo_fields,
            waiter=self,
        )
        self.carrier.carries = True


def callers_of(request: Request) -> tuple[Request, ...]:
    """Return the callers of a request: itself, or those who share its generation."""
    flight = request.waiter
    if type(flight) is _Flight:
        return tuple(flight.callers)
    return () if request.carries else (request,)


def _all_callers(batch: Batch) -> list[Request]:
    return [caller for request in batch.requests for caller in callers_of(request)]


class SingleFlight:
    """Submits a single call to ``scheduler`` for several equal calls. See the rules at the top."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._observed = scheduler.observed
        self._flights: dict[_Key, _Flight] = {}
        self._flight_of: dict[Request, _Flight] = {}
        self._deadlines = Deadlines()
        self._commands: list[Command] = []
        self._taking = True
        self._came = 0
        # Corrections to the scheduler's counts, which are of carriers.
        self._shared = 0
        self._succeeded = 0
        self._failed = 0
        self._cancelled = 0
        self._health = no_answers()

    def __repr__(self) -> str:
        return f"<SingleFlight: {len(self._flight_of)} calls in {len(self._flights)} flights, {self._scheduler!r}>"

    # The scheduler's contract ----------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in an event."""
        kind = type(event)
        if kind is Submitted and self._may_share(event.request, now):  # type: ignore[union-attr]
            self._board(event, now)  # type: ignore[arg-type]
            return
        if kind is Cancelled and event.request in self._flight_of:  # type: ignore[union-attr]
            self._cancelled += 1
            self._observed.calls_ended((event.request,), "cancelled", now)  # type: ignore[union-attr]
            if self._leave(event.request, now):  # type: ignore[union-attr]
                # The scheduler has counted the carrier's.
                self._cancelled -= 1
            return
        if isinstance(event, Failed) and not event.failure.taken_on:
            self._deadlines.take_back(_all_callers(event.batch), event.batch.sent_at)
        if kind is DrainRequested or kind is CloseRequested:
            self._taking = False
        self._tell(event, now)
        # After the scheduler, which ends overdue flights whole, and learns from them.
        self._expire(now)

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """When to call ``handle(Woke(), …)`` next; ``None``: not before another event."""
        times = (self._scheduler.next_deadline(), self._deadlines.next())
        return min((time for time in times if time is not None), default=None)

    def statistics(self) -> Statistics:
        """Return a snapshot which counts callers, not carriers."""
        seen = self._scheduler.statistics()
        return replace(
            seen,
            submitted=seen.submitted + self._shared,
            succeeded=seen.succeeded + self._succeeded,
            failed=seen.failed + self._failed,
            cancelled=seen.cancelled + self._cancelled,
            shared=self._shared,
            health={health: count + self._health[health] for health, count in seen.health.items()},
        )

    @property
    def idle(self) -> bool:
        """Whether no call and no batch is left."""
        return self._scheduler.idle

    @property
    def total_limit(self) -> int:
        """The scheduler's total limit."""
        return self._scheduler.total_limit

    @property
    def endpoint(self) -> Callable[[int], EndpointStatistics | None]:
        """Return a snapshot of one endpoint."""
        return self._scheduler.endpoint

    @property
    def heeds_load(self) -> Callable[[int], bool]:
        """Whether an endpoint's load could change anything now."""
        return self._scheduler.heeds_load

    # Callers come and go ---------------------------------------------------------------------------------------

    def _may_share(self, request: Request, now: float) -> bool:
        shape = request.shape
        if not shape.greedy or shape.alone_reason is not None:
            return False
        # The scheduler refuses calls after a drain and calls which are too late.
        return self._taking and (request.deadline is None or request.deadline > now)

    def _board(self, event: Submitted, now: float) -> None:
        """Let a call join the flight of equal calls, or begin a flight."""
        request = event.request
        key = (request.shape.key, request.prompt)
        flight = self._flights.get(key)
        is_first = flight is None
        if flight is None:
            self._flights[key] = flight = _Flight(key, request)
        request.seq = self._came
        self._came += 1
        request.state, request.queued_at = RequestState.JOINED, now
        flight.callers[request] = None
        self._flight_of[request] = flight
        carrier = flight.carrier
        if carrier.batch is not None:
            self._deadlines.begin((request,), now)
        if request.deadline is not None:
            self._deadlines.add(request)
        if is_first:
            self._tell(Submitted(carrier, event.may_wait), now)
            return
        self._shared += 1
        if carrier.timeout_s is not None and request.timeout_s is not None:
            carrier.timeout_s = max(carrier.timeout_s, request.timeout_s)
            carrier.deadline = None if carrier.batch is None else now + carrier.timeout_s
        elif carrier.timeout_s is not None or request.timeout_s is not None:
            carrier.timeout_s = carrier.deadline = None
        elif carrier.deadline is not None and (request.deadline is None or request.deadline > carrier.deadline):
            carrier.deadline = request.deadline
        if carrier.solo_fields != request.solo_fields:
            # As in a batch: a label of one caller's is not another's.
            carrier.solo_fields = b""

    def _leave(self, caller: Request, now: float) -> bool:
        """Take an early caller off its flight; return whether it was the last: the flight ends."""
        flight = self._flight_of.pop(caller)
        del flight.callers[caller]
        caller.state = RequestState.DONE
        if caller.watched:
            self._deadlines.ended(1)
        if flight.callers:
            return False
        del self._flights[flight.key]
        flight.carrier.waiter = None
        self._tell(Cancelled(flight.carrier), now)
        return True

    def _expire(self, now: float) -> None:
        errors: list[tuple[Request, BatchClientError]] = []
        for caller in self._deadlines.expired(now):
            flight = self._flight_of.get(caller)
            if flight is None:
                # The flight ended when the caller before in this list left.
                continue
            error = self._scheduler.too_late(flight.carrier, caller.queued_at)
            errors.append((caller, error))
            self._failed += 1
            if self._leave(caller, now):
                # To the scheduler the carrier was cancelled.
                self._cancelled -= 1
        if errors:
            self._observed.calls_failed(errors, now)
            self._commands.append(Reject(errors))

    # Flights end -----------------------------------------------------------------------------------------------

    def _tell(self, event: Event, now: float) -> None:
        """Tell the scheduler; in its commands, put callers in the place of carriers."""
        self._scheduler.handle(event, now)
        for command in self._scheduler.commands():
            if type(command) is Resolve:
                command.answers = [
                    each for request, answer in command.answers for each in self._answer(request, answer, now)
                ]
            elif type(command) is Reject:
                command.errors = [
                    each for request, error in command.errors for each in self._reject(request, error, now)
                ]
            elif type(command) is SendBatch:
                self._deadlines.begin(_all_callers(command.batch), command.batch.sent_at)
            self._commands.append(command)

    def _answer(self, request: Request, answer: Completion, now: float) -> list[tuple[Request, Completion]]:
        flight = request.waiter
        if type(flight) is not _Flight:
            return [(request, answer)]
        callers = _, *others = self._land(flight)
        self._succeeded += len(others)
        if request.shape.kind in (Kind.COMPLETION, Kind.CHAT):
            self._health[answer.health] += len(others)
        self._observed.calls_ended(callers, "succeeded", now)
        # Answers can be changed, so callers share none.
        answers = [answer, *(deepcopy(answer) for _ in others)]
        for caller, own in zip(callers, answers, strict=True):
            if own.queued_s is not None:
                # Who joined later has waited less, or not at all.
                own.queued_s = max(0.0, own.queued_s + request.queued_at - caller.queued_at)
        return list(zip(callers, answers, strict=True))

    def _reject(self, request: Request, error: BatchClientError, now: float) -> list[tuple[Request, BatchClientError]]:
        flight = request.waiter
        if type(flight) is not _Flight:
            return [(request, error)]
        first, *others = self._land(flight)
        self._failed += len(others)
        errors = [(first, error), *((caller, copy_of(error)) for caller in others)]
        self._observed.calls_failed(errors, now)
        return errors

    def _land(self, flight: _Flight) -> list[Request]:
        """End a flight; return its callers."""
        del self._flights[flight.key]
        callers = list(flight.callers)
        for caller in callers:
            del self._flight_of[caller]
            caller.state = RequestState.DONE
        self._deadlines.ended(sum(caller.watched for caller in callers))
        # Flight and carrier hold each other: a circle would wait for the garbage collector.
        flight.carrier.waiter = None
        return callers
