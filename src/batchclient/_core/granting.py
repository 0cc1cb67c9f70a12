"""Granting: which groups get the free permits, in which order, as which batches. Rules 3, 5 and 9 of the scheduler.

Rules:
- The endpoint with most free permits is served first; a call is bound to an endpoint here, not when it is queued.
- Groups are looked at oldest first. One that waits for company or for more permits is passed over, unless the batching
  rule says that nothing younger may be granted before it.
- Permits are taken in the very step that makes the batch.
"""

from __future__ import annotations

from batchclient._core.batching import BatchingRule
from batchclient._core.endpoint import Endpoint
from batchclient._core.messages import Batch, RequestState
from batchclient._core.queue import Group, Queue
from batchclient._core.settings import SchedulerSettings
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
    """

    __slots__ = ("_counters", "_endpoints", "_length_reach", "_queue", "_rule", "_sent", "wake_at")

    def __init__(
        self,
        endpoints: list[Endpoint],
        queue: Queue,
        rule: BatchingRule,
        length_reach: int | None,
        counters: Counters,
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._rule = rule
        self._length_reach = length_reach
        self._counters = counters
        self._sent = 0
        self.wake_at: float | None = None
        """When to grant again though nothing else happens."""

    def retune(self, settings: SchedulerSettings) -> None:
        """Go on with other numbers."""
        self._rule.retune(settings)
        self._length_reach = settings.length_reach

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
        while endpoint.free > 0 and len(passed_over) < _GROUPS_LOOKED_AT:
            found = self._queue.pop()
            if found is None:
                break
            group, oldest = found
            count, wait_until, blocks = self._rule.decide(group, oldest, endpoint, now, held_since)
            if count:
                batches.append(self._make_batch(group, count, endpoint, now))
                self._queue.restore(group)
                continue
            passed_over.append(group)
            if wait_until is not None:
                self._wake(wait_until)
            if blocks:
                held = wait_until is not None
                break
        endpoint.held_since = (now if held_since is None else held_since) if held else None
        for group in passed_over:
            self._queue.restore(group)

    def _make_batch(self, group: Group, count: int, endpoint: Endpoint, now: float) -> Batch:
        shape = group.shape
        if count == 1:
            self._counters.alone[self._rule.alone(shape, endpoint, now) or "no company"] += 1
        requests = self._queue.take(group, count, self._length_reach)
        for request in requests:
            request.state = RequestState.IN_FLIGHT
            request.attempts += 1
            request.group = None
        size = len(requests)
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
        )
        for request in requests:
            request.batch = batch
        endpoint.take(size * shape.weight, now)
        batch.in_flight_at_sent = endpoint.in_flight
        self._counters.batches += 1
        self._counters.list_sizes[size] += 1
        return batch

    def _wake(self, time: float) -> None:
        if self.wake_at is None or time < self.wake_at:
            self.wake_at = time
