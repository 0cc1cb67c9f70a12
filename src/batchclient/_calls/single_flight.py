"""Single flight: equal calls under way share a generation.

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
 6. A call that joins takes no place in the queue and no permit. It is counted as any other call.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Request, RequestState, Submitted, Woke
from batchclient._core.outcomes.errors import copy_of
from batchclient._core.scheduler import Scheduler
from batchclient._shell.backend import Cancellable
from batchclient._shell.fronts import Tracing
from batchclient._shell.runner import Runner
from batchclient.errors import BatchClientError
from batchclient.types import Completion

__all__ = ["SharingRunner"]

_Key = tuple[bytes, bytes]


class _Callers(dict[Request, Cancellable | None]):
    """Who shares a generation, in the order of arrival, with their timers: the carrier's waiter."""

    def __init__(self, runner: SharingRunner, key: _Key) -> None:
        super().__init__()
        self._runner = runner
        self._key = key

    def done(self) -> bool:
        return not self

    def set_result(self, answer: Completion) -> None:
        self._runner.answer(self._key, answer)

    def set_exception(self, error: BatchClientError) -> None:
        self._runner.fail(self._key, list(self), error)


class SharingRunner(Runner):
    """Submits a single call for several equal calls. See the rules at the top of this file.

    ``scheduler`` is the runner's ``core``, without the front that makes spans.
    """

    def __init__(self, *arguments: Any, scheduler: Scheduler, tracing: Tracing | None, **more: Any) -> None:
        super().__init__(*arguments, tracing=tracing, **more)
        self._scheduler = scheduler
        self._counters = scheduler.counters
        self._spans = tracing
        self._takes_calls = True
        self._carriers: dict[_Key, Request] = {}
        self._key_of: dict[Request, _Key] = {}

    def submit(self, request: Request, *, may_wait: bool = False) -> None:
        """Make a call, or let it join an equal call under way."""
        now, shape = self._now(), request.shape
        # The core refuses calls after a drain, and calls which are too late.
        is_in_time = self._takes_calls and (request.deadline is None or request.deadline > now)
        if not is_in_time or not shape.greedy or shape.alone_reason is not None:
            super().submit(request, may_wait=may_wait)
            return
        key = shape.key, request.prompt
        carrier = self._carriers.get(key)
        is_first = carrier is None
        if carrier is None:
            self._carriers[key] = carrier = request.anew()
            carrier.waiter, carrier.carries = _Callers(self, key), True
        else:
            self.backend.note_work()
            self._counters.submitted += 1
            self._counters.shared += 1
            _extend(carrier, request, now)
        request.state, request.queued_at = RequestState.JOINED, now
        self._key_of[request] = key
        if self._spans is not None:
            self._spans.begin(Submitted(request, may_wait), now)
        self._look(carrier, request, now)
        if is_first:
            super().submit(carrier, may_wait=may_wait)

    def leave(self, request: Request) -> None:
        """Note that a caller waits no more."""
        key = self._key_of.get(request)
        if key is None:
            super().leave(request)
            return
        now = self._now()
        self._counters.call_left(request, now)
        if self._spans is not None:
            self._spans.end_alone(request, None, now)
        self._abandon(self._take(key, [request]))

    async def drain(self) -> None:
        """Take no more calls, wait for all to end, then stop."""
        self._takes_calls = False
        await super().drain()

    def answer(self, key: _Key, answer: Completion) -> None:
        """Give each caller an answer of its own: answers can be changed."""
        callers = list(self._carriers[key].waiter)
        carrier, counters = self._take(key, callers), self._counters
        counters.succeeded += len(callers) - 1
        if carrier.shape.kind in (Kind.COMPLETION, Kind.CHAT):
            counters.health[answer.health] += len(callers) - 1
        counters.observed.calls_ended(callers, "succeeded", self._now())
        answers = [answer, *(deepcopy(answer) for _ in callers[1:])]
        for caller, own in zip(callers, answers, strict=True):
            if own.queued_s is not None:
                # Who joined later has waited less, or not at all.
                own.queued_s = max(0.0, own.queued_s + carrier.queued_at - caller.queued_at)
            if not caller.waiter.done():
                caller.waiter.set_result(own)

    def fail(self, key: _Key, callers: list[Request], error: BatchClientError) -> Request:
        """Give some callers an error of their own each; return the carrier."""
        carrier = self._take(key, callers)
        errors = [(caller, error if caller is callers[0] else copy_of(error)) for caller in callers]
        self._counters.calls_failed(errors, self._now())
        for caller, own in errors:
            if not caller.waiter.done():
                caller.waiter.set_exception(own)
        return carrier

    def _look_again(self, carrier: Request, caller: Request, due: float) -> None:
        # A loop's timer may ring a little early.
        self._look(carrier, caller, max(self._now(), due))

    def _look(self, carrier: Request, caller: Request, now: float) -> None:
        """End a caller whose time is over; look at others again when theirs may be."""
        due = _due(carrier, caller, now)
        if due is None:
            carrier.waiter[caller] = None
            return
        if due > now:
            carrier.waiter[caller] = self.backend.call_at(due, partial(self._look_again, carrier, caller, due))
            return
        # The core ends what is overdue whole, and learns from it.
        self._step(Woke(), now)
        if caller in self._key_of:
            error = self._scheduler.too_late(carrier, caller.queued_at)
            if self._spans is not None:
                self._spans.end_alone(caller, error, now)
            self._abandon(self.fail(self._key_of[caller], [caller], error))

    def _take(self, key: _Key, callers: list[Request]) -> Request:
        """Take callers off their carrier; return the carrier."""
        carrier = self._carriers[key]
        for caller in callers:
            timer = carrier.waiter.pop(caller)
            if timer is not None:
                timer.cancel()
            del self._key_of[caller]
            caller.state = RequestState.DONE
        if not carrier.waiter:
            del self._carriers[key]
        return carrier

    def _abandon(self, carrier: Request) -> None:
        """End a generation, unless somebody waits for it."""
        if not carrier.waiter:
            super().leave(carrier)


def _extend(carrier: Request, request: Request, now: float) -> None:
    """Let a generation last as long as another caller may wait."""
    granted_at = _granted_at(carrier)
    if carrier.solo_fields != request.solo_fields:
        # As in a batch: a label of one caller's is not another's.
        carrier.solo_fields = b""
    if carrier.timeout_s is not None and request.timeout_s is not None:
        carrier.timeout_s = max(carrier.timeout_s, request.timeout_s)
        if granted_at is not None:
            carrier.deadline = max(carrier.deadline or 0.0, now + request.timeout_s)
            carrier.timeout_s = carrier.deadline - granted_at
    elif carrier.timeout_s is not None or request.timeout_s is not None:
        carrier.timeout_s = carrier.deadline = None
    elif carrier.deadline is not None and (request.deadline is None or request.deadline > carrier.deadline):
        carrier.deadline = request.deadline


def _due(carrier: Request, caller: Request, now: float) -> float | None:
    """When a caller's time is over, or when to look again; ``None``: it has time without end."""
    if caller.timeout_s is None:
        return caller.deadline
    granted_at = _granted_at(carrier)
    return (now if granted_at is None else max(granted_at, caller.queued_at)) + caller.timeout_s


def _granted_at(carrier: Request) -> float | None:
    """Since when the callers' time runs, if it does."""
    if carrier.timeout_s is None:
        return None if carrier.batch is None else carrier.batch.sent_at
    return None if carrier.deadline is None else carrier.deadline - carrier.timeout_s
