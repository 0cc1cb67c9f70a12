"""The scheduler: when a call is sent, with which others, and how it ends.

The scheduler has no clock and does no I/O; time is an argument. The contract is four methods:
``handle(event, now)``, ``commands()``, ``next_deadline()``, ``statistics()``. The same events give
the same commands. ``now`` never decreases: an earlier ``now`` than the last is replaced by the
last.

Rules:
 1. Only requests of one shape (coalescing key) share a batch. A shape may say that its calls go
    alone.
 2. A submitted call is looked at in the next step, so that the calls of one event-loop turn travel
    together. On an idle endpoint the call is then sent at once: nothing lingers and nothing is
    held. Exceptions: the first list waits for the server's word on which it is (see ``asking``); a
    moment's wait for a conversation whose next turn is about to come (see ``conversations``).
 3. On a busy endpoint a group waits until enough permits are free: as many as its next list needs,
    or a *quantum*, ``refill_ratio`` of the limit. The wait ends ``refill_s`` after the endpoint
    began to hold permits. Younger groups of the class wait behind.
 4. If more permits are free than a group on a busy endpoint can use, the group waits for more
    calls, until ``linger_s`` after its oldest.
 5. A batch is filled from the oldest call's length bucket, then from the nearest (see ``groups``).
 6. A batch is streamed unless its members finish together anyway or cannot be streamed.
 7. A list is as long as queue, permits and the endpoint's cap allow. Calls with long expected
    outputs go singly, so that closing a connection frees the server. A server that is not known to
    serve lists at once proves it first (see ``proof``).
 8. A list which a single prompt may have spoilt is split in two sealed halves, and so on, until the
    guilty are alone. Of a list which fails without a named culprit, one member goes first (see
    ``member_first``).
 9. Permits are counted in sequences. A call heavier than the limit runs alone once nothing is in
    flight. Before the starvation bound younger calls may pass a call too heavy for the free
    permits; after the bound none may.
10. Every request ends exactly once, with ``Resolve`` or ``Reject``, unless its caller cancelled it.
11. Which call goes first, and for whom permits are kept: see ``order``, ``lanes``,
    ``prefixes.families`` and ``granting``.
12. A caller who has gone leaves the permit taken until the choice finishes or the connection
    closes. The connection is closed when the last caller of a batch has gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from batchclient._core.adjustments import Adjustments
from batchclient._core.fleet import Fleet
from batchclient._core.granting import Granting
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.messages import (
    FREE,
    NO_RATES,
    AbortRequested,
    Answered,
    Asked,
    Batch,
    Cancelled,
    CloseRequested,
    Command,
    Drained,
    DrainRequested,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Failed,
    GuestChanged,
    LoadHidden,
    LoadReported,
    ModelWanted,
    Offer,
    Paused,
    RatesPerMinute,
    RatesReported,
    Request,
    RequestState,
    Resumed,
    Retuned,
    SendBatch,
    ServerKnown,
    Submitted,
    WaitOver,
    Woke,
)
from batchclient._core.outcomes.errors import CallErrors, copy_of
from batchclient._core.outcomes.outcomes import Outcomes
from batchclient._core.replies import Replies
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.settings import SchedulerSettings
from batchclient._core.spent import with_cause
from batchclient._core.stalls import Stalls
from batchclient._core.statistics import Counters, EndpointStatistics, LengthStatistics, Statistics
from batchclient._core.waiting.queue import Queue
from batchclient.errors import CallAborted, ClientClosed, ConfigError, DeadlineExceeded, NotFound, QueueFull

if TYPE_CHECKING:
    from batchclient._core.limits.control import Limit

__all__ = ["Scheduler"]


class Scheduler:
    """The state machine behind a client. See the rules at the top of this file.

    Args:
        limits: a limit algorithm per endpoint.
        names: the endpoints' base URLs as they may be shown; none, or one per endpoint.
        asks_first: whether servers may be asked which they are before their first list; called when
            the first call is queued, and when an endpoint comes or comes back. ``None``: they are
            not to be asked at all.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        limits: Sequence[Limit],
        names: Sequence[str] = (),
        asks_first: Callable[[], bool] | None = None,
        rates: Sequence[RatesPerMinute] = (),
        offers: Sequence[Offer] = (),
    ) -> None:
        if not limits:
            raise ValueError("a scheduler needs at least one endpoint")
        self._settings = settings = replace(settings)  # the caller's record is not changed
        self._commands: list[Command] = []
        command = self._commands.append
        self._counters = counters = Counters()
        self._adjustments = Adjustments(command, counters.observed.changes)
        endpoints = (
            Endpoint(
                number,
                limit,
                settings,
                names[number] if names else "",
                rates[number] if rates else NO_RATES,
                offers[number] if offers else FREE,
            )
            for number, limit in enumerate(limits)
        )
        self._lengths = lengths = Lengths()
        self._fleet = fleet = Fleet(endpoints, settings, lengths, command, counters, self._adjustments, asks_first)
        self._queue = queue = Queue(settings, self._lengths)
        self._deadlines = queue.deadlines
        self._stalls = Stalls(settings)
        self._granting = Granting(settings, fleet, queue, self._lengths, counters)
        self._errors = CallErrors(fleet, queue, counters, command)
        patience_s = settings.outage_patience_s if settings.waits_out_refusals else None
        self._outcomes = Outcomes(fleet, queue, self._errors, self._granting, counters, self._send, patience_s)
        self._replies = Replies(fleet, queue, self._lengths, counters, self._adjustments, self._outcomes, command)
        self._now = 0.0
        self._wake_at = math.inf
        """When to grant again though nothing else happens."""
        self._fresh_calls = False
        self._model_wanted = False
        self._or_usual = False
        self.no_guest: str = ""
        """Why a guest is none, where one goes as usual at a server that shows no load; else empty."""
        self._has_unfit = False
        """Whether a guest was refused at a server."""
        self._draining = False
        self._drained_said = False
        # A look-up instead of a chain of isinstance: ``handle`` runs once per call.
        self._handlers: dict[type, Callable[[Any, float], bool | None]] = {
            Submitted: self._submit,
            Cancelled: self._cancel,
            Answered: self._replies.answered,
            Failed: self._replies.failed,
            Woke: self._wake,
            Paused: self._pause,
            Resumed: self._resume,
            Retuned: self._retune,
            GuestChanged: self._be_guest,
            LoadHidden: self._hide_load,
            LoadReported: self._take_load,
            Asked: self._take_outcome,
            ModelWanted: self._want_model,
            RatesReported: fleet.hear_rates,
            ServerKnown: fleet.know,
            EndpointAdded: fleet.add,
            EndpointRemoved: fleet.remove,
            DrainRequested: self._drain,
            AbortRequested: self._abort,
            CloseRequested: self._close,
        }
        """What an event changes; ``False``: nothing has to be settled after it."""

    def __repr__(self) -> str:
        load = self._fleet.described(self._now)
        outside = self._queue.outside
        return f"<Scheduler: {self._queue.size - outside} queued, {outside} waiting, {load}>"

    # The contract ----------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in an event. Never raises for a fault of the network or the server."""
        # The clock may be behind a timer which fired early. ``max`` costs 60 ns, for each call.
        if now > self._now:  # noqa: PLR1730
            self._now = now
        if self._handlers[type(event)](event, self._now) is not False:
            self._settle()

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        commands = self._commands.copy()
        self._commands.clear()
        return commands

    def next_deadline(self) -> float | None:
        """When to call ``handle(Woke(), …)`` next; ``None``: not before another event."""
        if self._fresh_calls and not self._granting.is_paused:
            return self._now
        times = [self._fleet.asking.look_at, self._stalls.due_at, self._fleet.asking.wait_ends_at]
        if self._deadlines.is_used:
            times.append(self._deadlines.next())
        if self._queue.later.size:
            times += [self._outcomes.retries.next_due(), self._outcomes.member_first.next_due()]
        if self._fleet.outage.due is not None and self._queue.waiting:
            times.append(self._fleet.outage.due)
        for endpoint in self._fleet.serving:
            if endpoint.abilities.proof is not None:
                times.append(endpoint.abilities.proof.due_at)
        earliest = self._wake_at
        for time in times:
            if time is not None and time < earliest:
                earliest = time
        # Another event than ``Woke`` may have come since the time was due.
        return None if earliest == math.inf else max(earliest, self._now)

    def statistics(self) -> Statistics:
        """Return a snapshot."""
        outside = self._queue.outside
        return self._counters.snapshot(
            queued=self._queue.size - outside,
            waiting=outside,
            backing_off=self._queue.later.size,
            endpoints=tuple(endpoint.statistics(self._now) for endpoint in self._fleet),
            lanes=self._queue.lanes.all(),
            arrivals=self._queue.arrivals(),
            adjustments=self._adjustments.last,
            lengths=LengthStatistics(*self._lengths.foreseen),
        )

    def endpoint(self, number: int) -> EndpointStatistics | None:
        """Return a snapshot of one endpoint; ``None``: there is none, or it has gone."""
        endpoint = self._fleet.by_id.get(number)
        return None if endpoint is None else endpoint.statistics(self._now)

    def heeds_load(self, endpoint: int) -> bool:
        """Whether an endpoint's load could change anything now.

        No limit is below 1: one sequence matters only at an ailing endpoint, as a probe may wait in
        vain.
        """
        it = self._fleet.by_id.get(endpoint)
        if it is None or it.in_flight < 1:
            return False
        # A guest's limit may be 1 for want of room, and the page tells when there is some.
        return it.in_flight > 1 or it.health.ailing or it.limit.is_guest

    @property
    def idle(self) -> bool:
        """Whether no call and no batch is left."""
        return self._fleet.is_idle and not self._queue.waiting

    @property
    def total_limit(self) -> int:
        """Sequences that may be in flight at all endpoints together, by their present limits."""
        return self._fleet.total_limit

    def expected_tokens(self, request: Request) -> float:
        """Return the output tokens that are expected of a request, among others of its shape."""
        return self._lengths.guess(request)

    @property
    def held_back(self) -> int:
        """Calls that wait for a model, or a key, that all servers refuse, while others are answered."""
        if not any(endpoint.abilities.models.refused for endpoint in self._fleet.serving):
            return 0
        return sum(group.size for group in self._queue.groups() if self._fleet.refuses(group.shape))

    @property
    def counters(self) -> Counters:
        """The counts, for whoever makes a request for several callers, and counts those."""
        return self._counters

    def too_late(self, request: Request, since: float) -> DeadlineExceeded:
        """The error of a caller who has waited since ``since`` and whose deadline has passed."""
        return self._errors.too_late(request, self._now, paused=self._granting.is_paused, since=since)

    # Events ----------------------------------------------------------------------------------------------------

    def _submit(self, event: Submitted, now: float) -> bool:
        request, deadline = event.request, event.request.deadline
        request.seq = self._counters.submitted
        self._counters.submitted += 1
        request.queued_at = now
        request.patient = event.may_wait
        if self._draining:
            self._errors.end([request], lambda _: ClientClosed("the client takes no more calls"), now)
        elif self._has_unfit and self._is_unfit_for(request):
            self._errors.end([request], self._unfit, now)
        elif deadline is not None and deadline <= now:
            self._errors.end([request], lambda _: self._errors.too_late(request, now, paused=False), now)
        elif self._settings.raise_when_full and not event.may_wait and self._queue.is_full(request.shape):
            self._errors.end([request], lambda _: self._queue_full(request, now), now)
        else:
            if deadline is not None:
                self._deadlines.add(request)
            self._lengths.place(request)
            self._queue.add(request)
            self._fresh_calls = True
        return False

    def _queue_full(self, request: Request, now: float) -> QueueFull:
        queued = self._queue.lanes.lane(request.shape).queued
        message = f"{queued} calls are queued (max_calls={self._settings.max_queued})"
        outages = self._fleet.outage.all_after(now, request.shape)
        message += "".join(f"; {outage.sentence(now)}" for outage in outages)
        return with_cause(QueueFull(message), request, outages)

    def _cancel(self, event: Cancelled, now: float) -> bool:
        request = event.request
        if request.state in (RequestState.DONE, RequestState.ABANDONED):
            return False
        self._counters.call_left(request, now)
        self._errors.detach(request)
        return True

    def _wake(self, event: Woke, now: float) -> bool:
        if self._stalls.due_at is not None and self._stalls.woke(now):
            self._replies.trusts_from = now
        for endpoint in self._fleet.serving:
            if (endpoint.health.taken_on_at or math.inf) <= now:
                self._fleet.welcome(endpoint, 0, None, now)
        self._settle()
        if self._fleet.asking.look_at is not None:
            self._fleet.asking.look(now)
        return False

    def _take_outcome(self, event: Asked, now: float) -> None:
        self._fleet.take_outcome(event, now, busy=not self.idle)

    def _want_model(self, event: ModelWanted, now: float) -> None:
        self._model_wanted = event.wanted

    def _be_guest(self, event: GuestChanged, now: float) -> None:
        self._fleet.be_guest(event, now)
        self._or_usual = event.or_usual
        if event.on:
            self.no_guest = ""
        self._refuse_guest(now)

    def _hide_load(self, event: LoadHidden, now: float) -> bool:
        self._fleet.hide_load(event)
        return self._refuse_guest(now)

    def _take_load(self, event: LoadReported, now: float) -> bool:
        changed = self._fleet.take_load(event, now)
        return self._refuse_guest(now) or changed

    def _refuse_guest(self, now: float) -> bool:
        """Move or end a guest's calls at servers that show no load; return whether there are any."""
        unfit = self._fleet.unfit
        was_unfit = bool(unfit)
        if unfit and self._or_usual:
            self.no_guest = f"{unfit[0].shown_name} {unfit[0].hides_load}"
            self._fleet.be_guest(GuestChanged(on=False), now)
            unfit = self._fleet.unfit
        self._has_unfit = bool(unfit)
        self._fleet.move_from_unfit()
        batches = [batch for endpoint in unfit for batch in endpoint.open.values()]
        # Who has part of an answer cannot have it from another server.
        requests = [one for batch in batches for one in batch.requests if one.begun or not batch.moving]
        in_flight = [request for request in requests if request.state is RequestState.IN_FLIGHT]
        self._errors.end(in_flight, self._unfit, now)
        return was_unfit

    def _is_unfit_for(self, request: Request) -> bool:
        """Whether a guest cannot be at any server of a call's model."""
        of_model = [each.is_unfit for each in self._fleet.serving if each.serves(request.shape)]
        return bool(of_model) and all(of_model)

    def _unfit(self, request: Request) -> ConfigError:
        unfit = next(each for each in self._fleet.unfit if each.serves(request.shape))
        endpoint = unfit if request.batch is None else self._fleet.by_id[request.batch.endpoint]
        error = ConfigError(
            f"limit.guest: {endpoint.shown_name} {endpoint.hides_load}, and a guest has to see what others have there;"
            " give a number instead, such as limit=8",
            field="limit.guest",
        )
        # The call is well, and may be made without the guest.
        error.retryable = True
        return error

    def _pause(self, event: Paused, now: float) -> bool:
        self._granting.is_paused = True
        self._wake_at = math.inf
        return False

    def _resume(self, event: Resumed, now: float) -> None:
        self._granting.is_paused = False

    def _retune(self, event: Retuned, now: float) -> None:
        if event.settings is not None:
            self._settings.take_over(event.settings)
            self._queue.lanes.retune(event.settings.max_queued)
        self._fleet.retune(event, now)
        self._refuse_guest(now)

    def _drain(self, event: DrainRequested, now: float) -> None:
        self._draining = True

    def _abort(self, event: AbortRequested, now: float) -> None:
        self._errors.end_all(CallAborted("the call was ended by abort()"), now)

    def _close(self, event: CloseRequested, now: float) -> None:
        self._draining = True
        self._fleet.asking.close()
        self._errors.end_all(ClientClosed("the client was closed while the call was under way"), now)

    # After an event --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring everything up to ``now``: expire, requeue backed-off calls, grant."""
        now = self._now
        if self._deadlines.is_used:
            self._expire(now)
        for endpoint in self._fleet.serving:
            if endpoint.abilities.proof is not None:
                self._fleet.judge_lists(endpoint.abilities.proof, now)
        if self._has_unfit and (self._fleet.has_offers or len(self._fleet.unfit) == len(self._fleet.serving)):
            self._errors.end([one for one in self._errors.waiting() if self._is_unfit_for(one)], self._unfit, now)
        if self._queue.later.size:
            self._outcomes.member_first.let_go(now)
            self._outcomes.retries.requeue(now)
        if self._fleet.outage.due is not None:
            impatient = self._fleet.outage.impatient(self._errors.waiting, now)
            self._errors.end(impatient, lambda request: self._fleet.outage.error(request, now), now)
        if self._settings.wait_for_server_s:
            error = self._fleet.asking.look_at_wait(
                now, busy=self._model_wanted or not (self.idle or self._granting.is_paused)
            )
            if error is not None:
                self._errors.end(self._errors.waiting(), lambda _: copy_of(error), now)
                self._commands.append(WaitOver(error))
        if self._deadlines.is_used and self._fleet.is_idle and not self._granting.is_paused:
            self._errors.end_held(now)
        if self._fleet.has_lost_model:
            self._end_unserved(now)
        self._fresh_calls = False
        self._wake_at = math.inf
        if self._queue.size and not self._granting.is_paused:
            self._grant(now)
        if self.idle:
            self._stalls.due_at = None
            if self._fleet.asking.questions:
                self._fleet.asking.sleep()
            if self._draining and not self._drained_said:
                self._drained_said = True
                self._commands.append(Drained())

    def _end_unserved(self, now: float) -> None:
        """End the queued calls for a model whose servers were removed."""
        gone = [
            request
            for group in self._queue.groups()
            if not any(endpoint.serves(group.shape) for endpoint in self._fleet.serving)
            for request in group
        ]
        self._errors.end(gone, lambda one: NotFound(f"no server has the model {one.shape.model!r:.80} any more"), now)

    def _expire(self, now: float) -> None:
        """End the calls whose deadlines have passed."""
        expired = self._deadlines.expired(now)
        for request in expired:
            batch = request.batch
            if batch is not None and not batch.expired:
                batch.expired = True
                self._fleet.end_unanswered(batch, now)
        if expired:
            self._errors.expire(expired, now, paused=self._granting.is_paused)

    def _grant(self, now: float) -> None:
        if self._fleet.is_idle:
            self._fleet.resume(now)
        if self._fleet.asking.unasked:
            self._fleet.asking.ask_first(now)
        batches, hopeless, self._wake_at = self._granting.grant(now)
        for batch in batches:
            self._send(batch)
        if hopeless:
            self._errors.give_up(hopeless, now)
        while self._fleet.is_priced and (unpaid := self._granting.prices.unpaid()):
            self._errors.end_unpaid(unpaid, now)
            if self._queue.size:
                self._grant(now)

    def _send(self, batch: Batch) -> None:
        self._commands.append(SendBatch(batch))
        if self._fleet.asking.questions:
            self._fleet.asking.sent(self._now)
        self._stalls.sent(self._now)
