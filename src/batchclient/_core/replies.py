"""How a reply changes the state: answers, learnt facts, returned permits, failed batches.

Rules:
- An answer frees permits at once, at the endpoint and in the lane. A failed batch frees the rest.
- Limits, health and abilities are told of a failure before any call is queued again.
- A caller who has gone is told nothing. When a batch's last caller has gone, the batch is aborted.
- Each ended sequence is told once to its endpoint's limit, with the load during its service. With
  several endpoints an answer is told to the endpoint's speed, too.
- Wasted time is told apart from refused work, and lateness from a caller who left. Only a call
  which was sent fresh can be *late*: the others spent their time in our queue, which is not the
  server's load. A request cut off by a gateway is late, too.
- Batches under way while our own event loop stood still are told as ignored, refusals excepted:
  their times are not the server's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from batchclient._core.adjustments import Adjustments
from batchclient._core.fleet import Fleet
from batchclient._core.kinds import Kind
from batchclient._core.learnt.answers import Tally, tick_off
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.learnt.times import is_fresh
from batchclient._core.limits import REFUSALS, Outcome, Sample
from batchclient._core.messages import (
    AbortBatch,
    Answered,
    Batch,
    Command,
    Failed,
    Failure,
    HealthChanged,
    Request,
    RequestState,
    Resolve,
)
from batchclient._core.outcomes.outcomes import Outcomes
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.speed import work
from batchclient._core.spent import note_attempt
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Queue

__all__ = ["Replies"]

_TOLD_EVERY_S = 60.0


class Replies:
    """The replies of a scheduler."""

    def __init__(
        self,
        fleet: Fleet,
        queue: Queue,
        lengths: Lengths,
        counters: Counters,
        adjustments: Adjustments,
        outcomes: Outcomes,
        command: Callable[[Command], None],
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._lanes = queue.lanes
        self._deadlines = queue.deadlines
        self._lengths = lengths
        self._counters = counters
        self._adjustments = adjustments
        self._outcomes = outcomes
        self._command = command
        self.trusts_from = -math.inf
        """Times of batches sent before are not the server's: the event loop stood still."""

    def answered(self, event: Answered, now: float) -> None:
        """Some calls of a batch have their answers."""
        batch = event.batch
        endpoint = self._fleet.by_id[batch.endpoint]
        weight = batch.shape.weight
        in_flight = endpoint.in_flight
        observed = self._counters.observed
        kind = batch.shape.kind
        health = self._counters.health if kind is Kind.COMPLETION or kind is Kind.CHAT else None
        tally = tick_off(batch, event.answers, observed.of_answers(kind._value_), health, now)
        lone_member = False
        if tally.count:
            lone_member = batch.bare and self._outcomes.member_first.is_trial(batch)
            self._credit(batch, endpoint, tally.count * weight, now, lone_member=lone_member)
            batch.pace.served(batch, tally.count * weight, now)
            if endpoint.card is not None and endpoint.card.answered(batch, now):
                reason, notice, words = endpoint.card.told(endpoint.shown_name)
                self._fleet.tell(endpoint, reason, notice, words)
        endpoint.abandoned -= (tally.count - len(tally.resolved)) * weight
        batch.unanswered -= tally.count
        batch.callers -= len(tally.resolved)
        endpoint.give_back(tally.count * weight, now)
        self._lanes.give_back(batch.lane, tally.count * weight)
        if tally.count and self._fleet.is_priced:
            endpoint.service.learn(batch.shape.answer_key, now - batch.sent_at, now)
        if tally.watched:
            self._deadlines.ended(tally.watched)
            self._lengths.times.learn(batch.shape.answer_key, now - batch.sent_at, now, tally.watched)
        if batch.has_families and self._queue.conversations is not None:
            self._queue.conversations.answered(
                [request for request, _ in tally.resolved], endpoint.id, batch.sent_at, now
            )
        if tally.resolved:
            self._counters.succeeded += len(tally.resolved)
            self._command(Resolve(tally.resolved))
        if tally.count:
            self._learn(event, endpoint, in_flight, tally, now)
            if lone_member:
                self._outcomes.member_first.answered(batch, now)
        if event.ended:
            if batch.failures:
                endpoint.budget.charge(-batch.tokens_at_risk, endpoint.limit.limit, now)
            batch.pace.answered(batch, endpoint.limit.limit, now)
            abilities = endpoint.abilities.of(kind)
            abilities.ended(batch)
            if abilities.told_cap is not None:
                reason = "some time has passed: longer lists are tried again"
                self._adjustments.note_list_cap(endpoint, kind, abilities.told_cap, reason, now)
            if self._queue.later.size and not self._queue.size:
                self._outcomes.retries.hasten(now)
            if endpoint.abilities.proof is not None:
                endpoint.abilities.proof.answered(batch, now)
            self._counters.observed.request_ended(batch, endpoint.shown_name, now)
            assert not batch.unanswered, "a batch ends when all its requests are answered"
            del endpoint.open[batch.id]
            if endpoint.leaving:
                self._fleet.see_off(endpoint)
        elif batch.unanswered and not batch.callers and not batch.aborting:
            batch.aborting = True
            self._command(AbortBatch(batch))

    def _credit(self, batch: Batch, endpoint: Endpoint, sequences: int, now: float, *, lone_member: bool) -> None:
        """Note in an endpoint's health, refusals and abilities that it answers."""
        if endpoint.health.ailing:
            self._fleet.welcome(endpoint, sequences, batch.sent_at, now)
        endpoint.answer(now)
        if endpoint.outage is not None and endpoint.health.in_use:
            self._fleet.end_refusals(endpoint, now)
        if endpoint.life.silent_since is not None:
            self._fleet.hear(endpoint, now, now)
        abilities = endpoint.abilities
        if abilities.models.refused:
            abilities.models.answered(batch)
        if batch.requests[0].deadline is not None:
            abilities.late_lists.ended(batch, now, answered=True)
        abilities.of(batch.shape.kind).answered(batch, endpoint.open.values(), now, lone_member=lone_member)

    def _learn(self, event: Answered, endpoint: Endpoint, in_flight: int, tally: Tally, now: float) -> None:
        """Learn from answers about outputs, lists, loads and rates."""
        batch = event.batch
        self._counters.prompt_tokens += tally.prompt_tokens
        self._counters.completion_tokens += tally.made_tokens
        self._counters.wasted_tokens += tally.wasted_tokens
        observed, server, offer = self._counters.observed, endpoint.shown_name, endpoint.offer
        observed.served(server, offer.model or batch.shape.model, tally.prompt_tokens, tally.made_tokens)
        if self._fleet.is_priced and offer.is_priced:
            cost = offer.cost(tally.prompt_tokens, tally.made_tokens)
            observed.costs[(server,)] += cost
            if batch.shape.budget is not None:
                # What nobody tells may have cost all that was charged.
                untold = sum(answer.usage is None for _, answer in event.answers) * batch.charged_cost
                batch.shape.budget.settle(tally.count, batch.charged_cost, max(cost, untold))
        if tally.has_first_tokens:
            observed.streamed(batch, server, event.answers, now)
        batch.lane.prompt_tokens += tally.prompt_tokens
        batch.lane.completion_tokens += tally.made_tokens
        if batch.expected_tokens:
            self._lanes.settle(batch, event.answers)
        self._lengths.learn(batch, event.answers, tally.made_tokens)
        self._sample_answers(event, in_flight, tally, now)
        if batch.isolation is not None:
            kind = batch.shape.kind
            list_cap = endpoint.abilities.list_cap(now, kind)
            self._outcomes.retries.found(batch, endpoint, now, good=tally.count)
            self._adjustments.note_list_cap(
                endpoint, kind, list_cap, "every prompt of a refused list was well alone", now
            )
        if endpoint.rates is not None:
            usages = [completion.usage for _, completion in event.answers if completion.usage is not None]
            charged = batch.charged_tokens * len(usages) / len(batch.requests)
            endpoint.rates.correct(sum(usage.total_tokens for usage in usages) - charged, now)

    def failed(self, event: Failed, now: float) -> None:
        """A batch has failed."""
        batch, failure = event.batch, event.failure
        endpoint = self._fleet.by_id[batch.endpoint]
        in_flight = endpoint.in_flight
        left, alive = self._take_back(batch, endpoint, now)
        for request in left:
            request.attempts -= not failure.begun
        if failure.was_sent:
            self._counters.observed.request_ended(batch, endpoint.shown_name, now, failure)
        note_attempt(alive, batch, failure, now)
        if not failure.taken_on or failure.refuses_model:
            self._deadlines.take_back(alive, batch.sent_at)
        endpoint.failed(event, left, alive, now)
        if batch.expired and self._fleet.is_priced:
            # It would have taken longer still.
            endpoint.service.learn(batch.shape.answer_key, now - batch.sent_at, now)
        if batch.expired:
            self._lengths.times.learn_at_least(batch.shape.answer_key, now - batch.sent_at, now)
            endpoint.abilities.late_lists.ended(batch, now, answered=False)
        elif endpoint.abilities.late_lists.shapes:
            endpoint.abilities.late_lists.failed(batch)
        if not batch.streamed and failure.silent:
            endpoint.abilities.of(batch.shape.kind).plain_cut = True
        self._fleet.judge(batch, failure, now)
        if endpoint.abilities.models.end(batch, failure):
            self._fleet.tell_refusals(batch, failure, now)
        self._sample_failure(batch, failure, in_flight, left, len(alive), now)
        if failure.is_of_the_endpoint:
            for request in alive:
                request.failed_on = endpoint.id
        list_cap = endpoint.abilities.list_cap(now, batch.shape.kind)
        self._outcomes.failed(event, alive, endpoint, now)
        if batch.wire.lost_tokens and any(request.state is not RequestState.DONE for request in alive):
            self._counters.lost_tokens += batch.wire.lost_tokens
        self._adjustments.note_list_cap(endpoint, batch.shape.kind, list_cap, failure.kind.value, now)
        if endpoint.leaving:
            self._fleet.see_off(endpoint)
        elif failure.refuses_load and self._queue.size and now >= endpoint.tell_hold_at:
            self._tell_hold(batch, endpoint, now)

    def _tell_hold(self, batch: Batch, endpoint: Endpoint, now: float) -> None:
        hold = batch.pace.hold(now)
        if hold is not None:
            endpoint.tell_hold_at = now + _TOLD_EVERY_S
            self._command(HealthChanged(endpoint.id, endpoint.name, "held", hold.why))

    def _take_back(self, batch: Batch, endpoint: Endpoint, now: float) -> tuple[list[Request], list[Request]]:
        """Take back a failed batch's permits; return its open requests, and those with a caller."""
        weight = batch.shape.weight
        del endpoint.open[batch.id]
        left = [request for request, done in zip(batch.requests, batch.answered, strict=True) if not done]
        alive = []
        for request in left:
            request.batch = None
            if request.state is RequestState.IN_FLIGHT:
                alive.append(request)
            else:
                request.state = RequestState.DONE
                endpoint.abandoned -= weight
        endpoint.give_back(len(left) * weight, now)
        self._lanes.give_back(batch.lane, len(left) * weight)
        if batch.expected_tokens:
            self._lanes.refund(batch, left)
        if batch.shape.budget is not None and endpoint.offer.is_priced:
            batch.shape.budget.settle(len(left), batch.charged_cost, 0.0)
        return left, alive

    # What the limit is told ------------------------------------------------------------------------------------------

    def _sample_answers(self, event: Answered, in_flight: int, tally: Tally, now: float) -> None:
        """Tell the limit of some answers; ``in_flight`` is the load before."""
        batch = event.batch
        batch.made_tokens += tally.made_tokens
        outcome = Outcome.SUCCESS
        if not tally.resolved:
            # An answer without a waiting caller took its time and brought nothing.
            late = all(_is_late(batch.requests[position], batch, now) for position, _ in event.answers)
            outcome = Outcome.LATE if late else Outcome.WASTED
        shared_tokens = 0.0
        if batch.has_families and tally.prompt_tokens:
            requests = [batch.requests[position] for position, _ in event.answers]
            size = sum(len(request.prompt) for request in requests)
            shared_tokens = tally.prompt_tokens * sum(request.shared for request in requests) / size
        self._observe(batch, in_flight, tally.count, outcome, now, tally, shared_tokens)

    def _sample_failure(
        self, batch: Batch, failure: Failure, in_flight: int, left: list[Request], alive: int, now: float
    ) -> None:
        """Tell the limit of the unanswered requests of a batch which have failed.

        Args:
            batch: the failed batch.
            failure: why it failed.
            in_flight: sequences in flight before.
            left: all unanswered requests; those without a caller are done already.
            alive: how many callers still wait.
        """
        outcome = failure.load if batch.refusal.is_of_load else Outcome.IGNORED
        if failure.is_full and alive > 1 and in_flight == len(left) * batch.shape.weight:
            # With nothing else in flight the list is too long, and not the limit too high.
            outcome = Outcome.IGNORED
        if alive:
            self._observe(batch, in_flight, alive, outcome, now, failure=failure)
        if alive < len(left):
            gone = [request for request in left if request.state is RequestState.DONE]
            late = sum(_is_late(request, batch, now) for request in gone)
            if late:
                self._observe(batch, in_flight, late, Outcome.LATE, now)
            if late < len(gone):
                self._observe(batch, in_flight, len(gone) - late, Outcome.WASTED, now)

    def _observe(
        self,
        batch: Batch,
        in_flight: int,
        requests: int,
        outcome: Outcome,
        now: float,
        tally: Tally | None = None,
        shared_tokens: float = 0.0,
        failure: Failure | None = None,
    ) -> None:
        endpoint = self._fleet.by_id[batch.endpoint]
        if batch.sent_at < self.trusts_from and outcome not in REFUSALS:
            outcome = Outcome.IGNORED
        seconds = now - batch.sent_at
        mean = (endpoint.area(now) - batch.load.area) / seconds if seconds > 0 else float(in_flight)
        if outcome is Outcome.SUCCESS and len(self._fleet.serving) > 1:
            units = work(self._lengths.expected(batch.shape))
            endpoint.speed.measure(seconds, units, mean / endpoint.limit.limit, requests, now)
        endpoint.limit.on_sample(
            Sample(
                now,
                batch.sent_at,
                in_flight,
                mean,
                batch.load.in_flight,
                requests * batch.shape.weight,
                0 if tally is None else tally.prompt_tokens,
                0 if tally is None else tally.used_tokens,
                0.0 if tally is None else tally.first_tokens_s * batch.shape.weight,
                outcome,
                batch.load.admitted_at,
                shared_tokens,
                batch.shape.weight,
                batch.shape.priority,
                failure.retry_after_s or 0.0 if failure is not None and batch.pace.is_at_rest(now) else 0.0,
            )
        )
        if endpoint.limit.limit != endpoint.told_limit:
            self._adjustments.note_limit(endpoint, now)


def _is_late(request: Request, batch: Batch, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now and is_fresh(request, batch.sent_at)
