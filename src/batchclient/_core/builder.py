"""From requests of a group to a batch, whose permits count as used before it is sent.

A call which cannot make its deadline is sorted out, and fails without being sent.
"""

from __future__ import annotations

import math

from batchclient._core.batching import BatchingRule, Terms
from batchclient._core.learnt.lengths import OutputLengths
from batchclient._core.learnt.proof import Proof
from batchclient._core.learnt.times import ServiceTimes, is_fresh
from batchclient._core.messages import Batch, Request, RequestState
from batchclient._core.requests import LoadAtSend
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.statistics import Counters
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.waiting.queue import FamilyGroup, Group, Queue

__all__ = ["BatchBuilder"]

_IN_FLIGHT = RequestState.IN_FLIGHT


class BatchBuilder:
    """Makes a scheduler's batches. ``rule`` decides whether a batch is streamed."""

    __slots__ = ("_counters", "_lengths", "_queue", "_rule", "_sent", "_times", "deadlines")

    def __init__(
        self,
        queue: Queue,
        rule: BatchingRule,
        lengths: OutputLengths,
        counters: Counters,
        times: ServiceTimes,
        deadlines: Deadlines,
    ) -> None:
        self._queue = queue
        self._rule = rule
        self._lengths = lengths
        self._counters = counters
        self._times = times
        self.deadlines = deadlines
        self._sent = 0

    def is_too_old(self, oldest: Request, now: float) -> bool:
        """Whether the oldest call is probably, not surely, too late; if surely, it is refused."""
        if oldest.deadline is None or not self._times.known:
            return False
        key, left_s = oldest.shape.answer_key, oldest.deadline - now
        return self._times.shortest(key, now) <= left_s < self._times.likely(key, now)

    def sort_out(self, requests: list[Request], now: float) -> tuple[list[Request], list[Request]]:
        """Return the calls that may be in time, and those too late for their deadlines."""
        if not self._times.known:
            return requests, []
        key = requests[0].shape.answer_key
        shortest_s, likely_s = self._times.shortest(key, now), self._times.likely(key, now)
        # As a rule all calls have time enough, as the earliest of all deadlines shows.
        earliest = self.deadlines.next()
        if not likely_s or earliest is None or earliest >= now + max(likely_s, shortest_s):
            return requests, []
        crowded = self._queue.size > 0 and self.deadlines.last() > now + likely_s
        in_time, late = [], []
        for request in requests:
            left_s = math.inf if request.deadline is None else request.deadline - now
            # While others with more time wait, no permit is spent on a call which is probably late.
            # A fresh call is tried: the limit must learn if even a fresh call is late.
            if left_s < (likely_s if crowded and not is_fresh(request, now) else shortest_s):
                request.group = None
                late.append(request)
            else:
                in_time.append(request)
        return in_time, late

    def build(self, terms: Terms, group: Group, requests: list[Request], endpoint: Endpoint, now: float) -> Batch:
        """Make a batch of some requests of a group, and take the permits."""
        shape, lane, abilities = group.shape, group.lane, terms.abilities
        assert lane is not None, "a group in the queue has a lane"
        size = len(requests)
        sequences = size * shape.weight
        company = "lists are not proved yet" if terms.is_stranger else "no company"
        streamed = self._rule.wants_stream(terms, shape, size, endpoint, now)
        bare = group.bare or not abilities.form(streamed=streamed).allows(now)
        self._sent += 1
        batch = Batch(
            id=self._sent,
            endpoint=endpoint.id,
            shape=shape,
            requests=requests,
            # A caller who takes the pieces always has them: a bare batch lacks only fields we add.
            streamed=streamed and (shape.to_caller or not bare),
            failures=group.failures,
            sent_at=now,
            oldest_at=requests[0].queued_at,
            alone=(terms.alone or company) if size == 1 else "",
            isolation=group.isolation,
            packed=shape.packable and not bare and abilities.packing.allows(now),
            bare=bare,
            unanswered=size,
            callers=size,
            answered=bytearray(size),
            load=LoadAtSend(endpoint.area(now), endpoint.limit.limit),
            lane=lane,
        )
        prompt_tokens, is_timed = 0, False
        for request in requests:
            request.state = _IN_FLIGHT
            request.attempts += 1
            request.group = None
            request.batch = batch
            if request.timeout_s is not None:
                is_timed = True
            prompt_tokens += request.prompt_tokens
            if request.queued_at < batch.oldest_at:  # noqa: PLR1730  # as in ``handle``
                batch.oldest_at = request.queued_at
        if is_timed:
            self.deadlines.begin(requests, now)
        if terms.is_stranger and size > 1 and not group.sealed and endpoint.proof is None:
            endpoint.proof = Proof(batch, endpoint.open)
        if type(group) is FamilyGroup:
            assert self._queue.conversations is not None
            self._queue.conversations.granted(requests, endpoint.id, now)
            batch.has_families = True
        expected = shape.weight * self._lengths.expected(shape.answer_key, shape.max_output_tokens)
        batch.tokens_at_risk = prompt_tokens + size * expected
        abilities.sent(batch)
        self._take_permits(batch, endpoint, sequences, now)
        self._queue.lanes.take(lane, sequences, now)
        self._queue.lanes.charge(batch, expected)
        self._counters.observed.sent(batch)
        return batch

    def _take_permits(self, batch: Batch, endpoint: Endpoint, sequences: int, now: float) -> None:
        """The endpoint works on the batch from now on."""
        endpoint.open[batch.id] = batch
        if endpoint.rates is not None:
            batch.charged_tokens = sum(map(self.tokens, batch.requests))
            endpoint.rates.charge(batch.charged_tokens, now)
        endpoint.take(sequences, now)
        batch.load.in_flight = endpoint.in_flight
        batch.pace = endpoint.pace(batch.shape)
        batch.pace.sent(batch.id, sequences)
        if not batch.failures:
            endpoint.budget.sent(batch.tokens_at_risk, len(batch.requests))

    def tokens(self, request: Request) -> int:
        """Tokens which a call is expected to cost, at least 1."""
        shape = request.shape
        output = shape.weight * self._lengths.expected(shape.answer_key, shape.max_output_tokens)
        return max(1, request.prompt_tokens + output)
