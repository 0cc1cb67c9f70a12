"""Granting: which groups get the free permits, in which order, as which batches. Rules 3, 5 and 9 of the scheduler.

Rules:
- The endpoint with most free permits is served first; a call is bound to an endpoint here, not when it is queued.
- Groups are looked at in the queue's order. One that waits for company or for more permits is passed over, unless the batching
  rule says that nothing younger may be granted before it.
- Permits are taken in the very step that makes the batch.
- Once two priority classes are in use, the lowest leaves a reserve of permits to the others, which neither linger nor are held. A group of
  the lowest class that keeps younger ones waiting does not keep higher classes waiting.
- A call that cannot make its deadline is taken out here, before it costs anything.
"""

from __future__ import annotations

from batchclient._core.batching import BatchingRule
from batchclient._core.endpoint import Endpoint
from batchclient._core.lanes import Reserve
from batchclient._core.lengths import OutputLengths
from batchclient._core.messages import Batch, Request, RequestState
from batchclient._core.queue import Group, Queue
from batchclient._core.service import ServiceTimes
from batchclient._core.statistics import Counters

__all__ = ["Granting"]

_GROUPS_LOOKED_AT = 16
"""How many groups one step passes over for want of permits or company before it stops looking."""


class Granting:
    """Turns queued requests into batches.

    Args:
        endpoints: whose permits are granted.
        queue: what waits.
        rule: how many of a group to send.
        length_reach: how many length buckets a batch may span.
        counters: what is counted.
        lengths: expected output lengths.
        times: how long calls take.
    """

    __slots__ = (
        "_counters",
        "_endpoints",
        "_length_reach",
        "_lengths",
        "_queue",
        "_rule",
        "_sent",
        "_times",
        "hopeless",
        "wake_at",
    )

    def __init__(
        self,
        endpoints: list[Endpoint],
        queue: Queue,
        rule: BatchingRule,
        length_reach: int | None,
        counters: Counters,
        lengths: OutputLengths | None = None,
        times: ServiceTimes | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._rule = rule
        self._length_reach = length_reach
        self._counters = counters
        self._lengths = lengths or OutputLengths()
        self._times = times or ServiceTimes()
        self._sent = 0
        self.wake_at: float | None = None
        """When to grant again though nothing else happens."""
        self.hopeless: list[Request] = []
        """Calls that were taken out because they cannot make their deadlines; the scheduler ends and removes them."""

    def grant(self, now: float) -> list[Batch]:
        """Take permits for whatever may be sent now; set ``wake_at`` for what waits for time rather than for permits."""
        self.wake_at = None
        batches: list[Batch] = []
        if not self._queue.size:
            return batches
        lone = len(self._endpoints) == 1
        for endpoint in sorted(self._endpoints, key=lambda endpoint: -endpoint.free):
            # A lone endpoint that is a wrong address is not waited for: its calls find out at once, and fail.
            if endpoint.is_blocked(now) and not (lone and endpoint.is_wrong_address):
                assert endpoint.blocked_until is not None
                self._wake(endpoint.blocked_until)
            else:
                self._grant_on(endpoint, now, batches)
        if not self._queue.size:
            # What one endpoint would have kept waiting, another took.
            self.wake_at = None
        return batches

    def _grant_on(self, endpoint: Endpoint, now: float, batches: list[Batch]) -> None:
        passed_over: list[Group] = []
        # One clock for all that is held here in one stretch: who comes to the front of it waits no longer for that.
        held_since, held = endpoint.held_since, False
        reserve = self._reserve(endpoint, now)
        above: int | None = None
        while (room := endpoint.free) > 0 and len(passed_over) < _GROUPS_LOOKED_AT:
            found = self._queue.pop(above)
            if found is None:
                break
            group, oldest = found
            self._queue.lanes.see(group.shape.priority, now)
            urgent = reserve is not None and group.shape.priority > reserve.lowest
            if reserve is not None and not urgent:
                room -= reserve.unused
                if room <= 0:
                    # Only the reserve is left: to this class the endpoint is full.
                    passed_over.append(group)
                    above = reserve.lowest
                    continue
            count, wait_until, blocks = self._rule.decide(
                group, oldest, endpoint, now, held_since, room=room, urgent=urgent
            )
            if count:
                requests = self._queue.take(group, count, self._length_reach, now)
                requests = self._sort_out(requests, now)
                if requests:
                    batches.append(self._make_batch(group, requests, endpoint, now))
                self._queue.restore(group)
                if reserve is not None:
                    reserve = self._reserve(endpoint, now)
                continue
            passed_over.append(group)
            if wait_until is not None:
                self._wake(wait_until)
            if blocks:
                held = held or wait_until is not None
                if reserve is None or urgent or (wait_until is None and not _may_pass(group, reserve, endpoint)):
                    break
                above = reserve.lowest
        endpoint.held_since = (now if held_since is None else held_since) if held else None
        for group in passed_over:
            self._queue.restore(group)

    def _reserve(self, endpoint: Endpoint, now: float) -> Reserve | None:
        return self._queue.lanes.reserve(endpoint.limit.limit, len(self._endpoints), now)

    def _sort_out(self, requests: list[Request], now: float) -> list[Request]:
        """Take out the calls that cannot be served before their deadlines; return the others."""
        shortest_s = self._times.shortest(requests[0].shape.answer_key, now) if self._times.known else 0.0
        if not shortest_s:
            return requests
        earliest = now + shortest_s
        late = [request for request in requests if request.deadline is not None and request.deadline < earliest]
        if not late:
            return requests
        for request in late:
            request.group = None
        self.hopeless += late
        return [request for request in requests if request.deadline is None or request.deadline >= earliest]

    def _make_batch(self, group: Group, requests: list[Request], endpoint: Endpoint, now: float) -> Batch:
        shape, lane = group.shape, group.lane
        assert lane is not None, "a group in the queue has a lane"
        size = len(requests)
        if size == 1:
            self._counters.alone[self._rule.alone(shape, endpoint, now) or "no company"] += 1
        for request in requests:
            request.state = RequestState.IN_FLIGHT
            request.attempts += 1
            request.group = None
        self._sent += 1
        batch = Batch(
            id=self._sent,
            endpoint=endpoint.index,
            shape=shape,
            requests=requests,
            streamed=self._rule.streamed(shape, endpoint, now),
            failures=group.failures,
            sent_at=now,
            oldest_at=min(request.queued_at for request in requests),
            isolation=group.isolation,
            unanswered=size,
            callers=size,
            answered=bytearray(size),
            area_at_sent=endpoint.area(now),
            admitted_at=endpoint.limit.limit,
            lane=lane,
        )
        for request in requests:
            request.batch = batch
        endpoint.take(size * shape.weight, now)
        self._queue.lanes.take(lane, size * shape.weight)
        expected = self._lengths.expected(shape.answer_key, shape.max_output_tokens)
        self._queue.lanes.charge(batch, shape.weight * expected)
        self._counters.batches += 1
        self._counters.list_sizes[size] += 1
        return batch

    def _wake(self, time: float) -> None:
        if self.wake_at is None or time < self.wake_at:
            self.wake_at = time


def _may_pass(starving: Group, reserve: Reserve, endpoint: Endpoint) -> bool:
    """Whether higher classes may pass a call of the lowest that waits for permits: up to their reserve, where it can run beside it."""
    return starving.shape.weight <= endpoint.limit.limit - reserve.permits and reserve.unused > 0
