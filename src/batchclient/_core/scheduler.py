"""The scheduler: when a call is sent, with which others, and how it ends.

The scheduler has no clock and does no I/O; time is an argument. The contract is four methods:
``handle(event, now)``, ``commands()``, ``next_deadline()``, ``statistics()``. The same events give
the same commands. ``now`` never decreases: an earlier ``now`` than the last is replaced by the
last.

Rules (numbered as in ``docs/explanation/batching.md``):
 1. Only requests of one shape (coalescing key) share a batch, or of one mixed shape where all
    servers take parameters per prompt. A shape may say that its calls go alone.
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
from typing import Any

from batchclient._core.arrivals import Arrivals
from batchclient._core.asking import Asking
from batchclient._core.batching import BatchingRule
from batchclient._core.feeding import Feeding
from batchclient._core.fleet import Fleet
from batchclient._core.granting import Granting
from batchclient._core.histograms import Observations
from batchclient._core.learnt.lengths import OutputLengths, PromptLengths
from batchclient._core.learnt.times import ServiceTimes
from batchclient._core.limits import Limit
from batchclient._core.messages import (
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
    LoadReported,
    ModelWanted,
    Paused,
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
from batchclient._core.outcomes.ends import Ends, copy_of
from batchclient._core.outcomes.recovery import Recovery
from batchclient._core.outcomes.resending import Resending
from batchclient._core.replies import Replies
from batchclient._core.servers.dead_engine import STILL
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.outage import Outage
from batchclient._core.settings import SchedulerSettings
from batchclient._core.spent import with_cause
from batchclient._core.stalls import Stalls
from batchclient._core.statistics import Counters, Statistics
from batchclient._core.taking import Taking
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.waiting.lanes import Lanes
from batchclient._core.waiting.order import Order
from batchclient._core.waiting.overflow import Overflow
from batchclient._core.waiting.queue import Queue
from batchclient.errors import CallAborted, ClientClosed, DeadlineExceeded, QueueFull

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
    ) -> None:
        if not limits:
            raise ValueError("a scheduler needs at least one endpoint")
        self._settings = settings
        self._endpoints = Endpoints(
            Endpoint.made_for(settings, number, limit, names[number] if names else "")
            for number, limit in enumerate(limits)
        )
        self._by_id = self._endpoints.by_id
        self._lengths = OutputLengths()
        self._prompts = PromptLengths(self._lengths)
        self._times = ServiceTimes()
        self._lanes = Lanes(settings.tenant_weights)
        order = Order(settings.order, settings.aging_s, self._lengths)
        self._queue = Queue.made_for(settings, order, self._lanes)
        self._overflow = Overflow(self._queue, settings.max_queued)
        self._deadlines = Deadlines()
        self._batches: dict[int, Batch] = {}
        self._commands: list[Command] = []
        self._counters = Counters()
        self._feeding = Feeding(self._endpoints, self._lengths, self._say)
        self._stalls = Stalls(watched=settings.heeds_time)
        self._arrivals = Arrivals(self._endpoints, settings.wait_for_server_s, self._say)
        self._asking = Asking(self._by_id, self._say, asks_first)
        self._fleet = Fleet(self._endpoints, self._batches, self._say, self._feeding, self._asking)
        rule = BatchingRule(settings, self._lengths)
        self._taking = Taking(self._queue, rule, self._lengths, self._counters, self._times, self._deadlines)
        self._granting = Granting(
            self._endpoints, self._queue, rule, settings.length_reach, self._lengths, self._taking
        )
        self._recovery = Recovery(self._queue, self._counters)
        self._ends = Ends(
            self._endpoints,
            self._queue,
            self._overflow,
            self._recovery,
            self._batches,
            self._deadlines,
            self._counters,
            self._say,
        )
        patience_s = settings.outage_patience_s if settings.waits_out_refusals else 0.0
        self._resending = Resending(self._endpoints, self._recovery, self._ends, self._granting, self._send, patience_s)
        self._outage = Outage(self._endpoints, self._batches, settings.outage_patience_s)
        self._replies = Replies(
            endpoints=self._endpoints,
            queue=self._queue,
            batches=self._batches,
            counters=self._counters,
            outputs=self._lengths,
            prompts=self._prompts,
            times=self._times,
            deadlines=self._deadlines,
            feeding=self._feeding,
            fleet=self._fleet,
            outage=self._outage,
            ends=self._ends,
            resending=self._resending,
            command=self._say,
        )
        self._now = 0.0
        self._fresh_calls = False
        self._paused = False
        self._model_wanted = False
        self._draining = False
        self._drained_said = False
        # A dictionary look-up instead of a chain of isinstance: ``handle`` runs once per call.
        self._handlers: dict[type, Callable[[Any], None]] = {
            Submitted: self._on_submitted,
            Cancelled: self._on_cancelled,
            Answered: self._on_answered,
            Failed: self._on_failed,
            Woke: self._on_woke,
            Paused: self._on_paused,
            Resumed: self._on_resumed,
            Retuned: self._on_retuned,
            LoadReported: self._on_load,
            Asked: self._on_asked,
            ModelWanted: self._on_model_wanted,
            RatesReported: self._on_rates,
            ServerKnown: self._on_server_known,
            EndpointAdded: self._on_endpoint_added,
            EndpointRemoved: self._on_endpoint_removed,
            DrainRequested: self._on_drain,
            AbortRequested: self._on_abort,
            CloseRequested: self._on_close,
        }

    def __repr__(self) -> str:
        load = self._endpoints.described(self._now)
        return f"<Scheduler: {self._queue.size} queued, {self._overflow.size} waiting, {load}>"

    # The contract ----------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take in an event. Never raises for a fault of the network or the server."""
        # The clock may be behind a timer which fired early. ``max`` costs 60 ns, for each call.
        if now > self._now:  # noqa: PLR1730
            self._now = now
        self._handlers[type(event)](event)

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """When to call ``handle(Woke(), …)`` next; ``None``: not before another event."""
        if self._fresh_calls and not self._paused:
            return self._now
        patience_ends = self._outage.next(
            self._queue.size + self._overflow.size + self._recovery.backing_off, self._now
        )
        due, parked_until = self._recovery.next_due(), self._recovery.parked_until(self._endpoints)
        earliest = math.inf
        for time in (self._deadlines.next(), self._granting.wake_at, due, patience_ends, parked_until):
            if time is not None and time < earliest:
                earliest = time
        dues = (proof.due_at for proof in self._endpoints.proofs)
        for time in (self._asking.look_at, self._stalls.due_at, self._arrivals.due, *dues):
            # Another event than ``Woke`` may have come since the time was due.
            if time is not None and time < earliest:
                earliest = max(time, self._now)
        return None if earliest == math.inf else earliest

    def statistics(self) -> Statistics:
        """Return a snapshot."""
        return self._counters.snapshot(
            queued=self._queue.size,
            waiting=self._overflow.size,
            backing_off=self._recovery.backing_off,
            endpoints=tuple(endpoint.statistics(self._now) for endpoint in self._endpoints),
            lanes=self._lanes.all(),
            arrivals=self._queue.arrivals(),
            adjustments=self._feeding.adjustments,
            changes=self._feeding.changes,
        )

    def heeds_load(self, endpoint: int) -> bool:
        """Whether an endpoint's load could change anything now.

        No limit is below 1: one sequence matters only at an ailing endpoint, as a probe may wait in
        vain.
        """
        it = self._by_id.get(endpoint)
        return it is not None and (it.in_flight > 1 or (it.in_flight == 1 and it.health.ailing))

    @property
    def idle(self) -> bool:
        """Whether no call and no batch is left."""
        return not (self._queue.size or self._overflow.size or self._recovery.backing_off or self._batches)

    @property
    def total_limit(self) -> int:
        """Sequences that may be in flight at all endpoints together, by their present limits."""
        return self._endpoints.total_limit

    @property
    def observed(self) -> Observations:
        """The histograms, for a front that counts the callers of shared requests."""
        return self._counters.observed

    def too_late(self, request: Request, since: float) -> DeadlineExceeded:
        """The error of a caller who has waited since ``since`` and whose deadline has passed."""
        return self._ends.too_late(
            request, self._now, self._ends.held_by(request, self._now, paused=self._paused), since
        )

    # Calls come and go -----------------------------------------------------------------------------------------

    def _on_submitted(self, event: Submitted) -> None:
        request = event.request
        request.seq = self._counters.submitted
        self._counters.submitted += 1
        now, deadline = self._now, request.deadline
        request.queued_at = now
        if self._draining:
            self._ends.reject([request], ClientClosed("the client takes no more calls"), now)
            return
        request.patient = event.may_wait
        if deadline is not None and deadline <= now:
            self._ends.reject([request], self._ends.too_late(request, now), now)
            return
        # In a shallow queue a call pays a single comparison for the bound.
        full = self._queue.size >= self._settings.max_queued and self._overflow.is_full(request)
        if full and self._settings.raise_when_full and not event.may_wait:
            queued = self._queue.lane_of(request.shape).size
            message = f"{queued} calls are queued (max_queued={self._settings.max_queued})"
            outages = self._endpoints.outages_after(now)
            message += "".join(f"; {outage.sentence(now)}" for outage in outages)
            self._ends.reject([request], with_cause(QueueFull(message), request, outages), now)
            return
        if deadline is not None:
            self._deadlines.add(request)
        if full:
            self._overflow.add(request)
            return
        self._prompts.place(request)
        self._queue.add(request)
        self._fresh_calls = True

    def _on_cancelled(self, event: Cancelled) -> None:
        request = event.request
        if request.state in (RequestState.DONE, RequestState.ABANDONED):
            return
        self._counters.cancelled += 1
        self._counters.observed.calls_ended((request,), "cancelled", self._now)
        self._ends.detach(request)
        self._settle()

    # Answers and failures ------------------------------------------------------------------------------------------

    def _on_answered(self, event: Answered) -> None:
        self._replies.answered(event, self._now, paused=self._paused)
        self._settle()

    def _on_failed(self, event: Failed) -> None:
        self._replies.failed(event, self._now, paused=self._paused)
        self._settle()

    def _on_load(self, event: LoadReported) -> None:
        changed = self._feeding.on_load(event, self._now)
        if self._fleet.look_for_life(event, self._now):
            self._outage.watch(self._now, STILL)
            changed = True
        if changed:
            self._settle()

    def _send(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        self._commands.append(SendBatch(batch))
        self._asking.sent(self._now)
        self._stalls.sent(self._now)

    def _say(self, command: Command) -> None:
        # ``commands()`` replaces the list, so the list's ``append`` cannot be handed out.
        self._commands.append(command)

    # Time and the ends -----------------------------------------------------------------------------------------

    def _on_woke(self, event: Woke) -> None:
        if self._stalls.woke(self._now):
            self._feeding.trusts_from = self._now
        if self._fleet.look_for_returns(self._now):
            self._outage.watch(self._now)
        self._settle()
        if self._asking.look_at is not None:
            self._asking.look(self._now)

    def _on_asked(self, event: Asked) -> None:
        if self._arrivals.asked(event, self._now):
            self._outage.watch(self._now)
        self._asking.asked(event, self._now, busy=not self.idle)
        # Lists wait no longer, nor does any call for a server that was awaited.
        self._settle()

    def _on_model_wanted(self, event: ModelWanted) -> None:
        self._model_wanted = event.wanted
        self._settle()

    def _on_paused(self, event: Paused) -> None:
        self._paused = True
        self._granting.wake_at = None

    def _on_resumed(self, event: Resumed) -> None:
        self._paused = False
        self._settle()

    def _on_retuned(self, event: Retuned) -> None:
        before = self._settings
        if event.settings is not None:
            self._settings = event.settings
            self._granting.retune(event.settings)
            self._queue.retune(event.settings)
            self._overflow.max_queued = event.settings.max_queued
            self._stalls.watched = event.settings.heeds_time
        self._fleet.retune(event, before, self._now)
        self._settle()

    def _on_rates(self, event: RatesReported) -> None:
        # The event grants nothing; calls it holds back are looked at with the reply it came with.
        self._fleet.hear_rates(event, self._now)

    def _on_server_known(self, event: ServerKnown) -> None:
        self._fleet.know(event, self._now)
        self._settle()

    def _on_endpoint_added(self, event: EndpointAdded) -> None:
        self._fleet.add(event, self._settings)
        self._arrivals.add(self._by_id[event.endpoint])
        self._outage.watch(self._now)
        self._settle()

    def _on_endpoint_removed(self, event: EndpointRemoved) -> None:
        self._fleet.remove(event, self._now)
        self._outage.watch(self._now)
        self._settle()

    def _on_drain(self, event: DrainRequested) -> None:
        self._draining = True
        self._settle()

    def _on_abort(self, event: AbortRequested) -> None:
        self._ends.end_all(CallAborted("the call was ended by abort()"), self._now)
        self._settle()

    def _on_close(self, event: CloseRequested) -> None:
        self._draining = True
        self._asking.close()
        self._arrivals.due = None
        self._ends.end_all(ClientClosed("the client was closed while the call was under way"), self._now)
        self._settle()

    def _settle(self) -> None:
        """Bring everything up to ``now``: expire, requeue backed-off calls, admit, grant."""
        now = self._now
        if expired := self._deadlines.expired(now):
            for request in expired:
                batch = request.batch
                if batch is not None and not batch.expired:
                    batch.expired = True
                    self._fleet.end_unanswered(batch, now)
            self._ends.expire(expired, now, paused=self._paused)
        for proof in self._endpoints.proofs:
            self._fleet.judge_lists(proof, now)
        if self._recovery.parks:
            self._resending.member_first.let_go(self._endpoints, now)
        self._recovery.requeue(now)
        if self._outage.began_at is not None:
            impatient = self._outage.impatient(self._ends.waiting, now)
            self._ends.end(impatient, lambda request: self._outage.error(request, now), now)
        if self._settings.wait_for_server_s:
            error = self._arrivals.look(now, busy=self._model_wanted or not (self.idle or self._paused))
            if error is not None:
                self._ends.end(self._ends.waiting(), lambda _: copy_of(error), now)
                self._say(WaitOver(error))
        if not self._batches:
            self._ends.end_held(now, paused=self._paused)
        self._admit()
        self._fresh_calls = False
        if not self._paused:
            if not self._batches and self._queue.size:
                self._feeding.resumed(now)
            if self._asking.unasked and self._queue.size:
                self._asking.ask_first(now)
            for batch in self._granting.grant(now):
                self._send(batch)
            if hopeless := self._taking.hopeless:
                self._taking.hopeless = []
                self._ends.give_up(hopeless, now)
        self._admit()
        if not self._batches and self.idle:
            self._asking.sleep()
            self._stalls.sleep()
            if self._draining and not self._drained_said:
                self._drained_said = True
                self._commands.append(Drained())

    def _admit(self) -> None:
        """Let calls waiting outside into the queue, in order, while there is room."""
        if self._overflow.size:
            for request in self._overflow.admit():
                self._prompts.place(request)
                self._queue.add(request)
                self._fresh_calls = True
