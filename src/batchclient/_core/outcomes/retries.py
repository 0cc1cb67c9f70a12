"""Calls of a failed batch go again: in which company, in which form, and when.

Rules:
- Calls which failed together are tried again together, sealed: none mixes with fresh calls.
- A list perhaps spoilt by one prompt is split in halves, again and again, until the guilty prompts
  are alone. If only refusals come, the rest go singly. If every prompt is good alone, the list was
  refused as such.
- Calls that wait for a time then wait for the retry budget of the failed endpoint. Refused calls
  that wait only to let others pass are paid for by the others' answers.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from batchclient._core.messages import Batch, Isolation, Request
from batchclient._core.outcomes.table import FailedBatch
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.spent import note_pause
from batchclient._core.statistics import Counters
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["Retries", "failed_of"]

_HASTENED = 2


class Retries:
    """Sends calls again."""

    def __init__(self, queue: Queue, counters: Counters) -> None:
        self._queue = queue
        self._later = queue.later
        self._counters = counters
        self._unpaid: dict[Endpoint, deque[Group]] = {}
        """Calls past their pause, in the line for the retry budget of their endpoint."""
        self._unpaid_until = math.inf

    # At once ----------------------------------------------------------------------------------------------------

    def again(self, requests: list[Request], batch: Batch, **other: Any) -> None:
        """Send some calls of a batch again together; ``other``: how their group is not like the batch."""
        self._queue.put_back(requests, _group(requests, batch, **other))

    def move(self, requests: list[Request], batch: Batch) -> None:
        """Send the calls of a batch again to another endpoint."""
        if requests:
            self._counters.retries += 1
            self.again(requests, batch)

    def singly(self, requests: list[Request], batch: Batch, **other: Any) -> None:
        """Send the prompts of a list again one by one."""
        for request in requests:
            self.again([request], batch, bare=False, **other)

    def halves(self, requests: list[Request], batch: Batch, isolation: Isolation | None = None) -> None:
        """Send a list again in two halves."""
        self._counters.splits += 1
        for half in _halves(requests):
            self.again(half, batch, isolation=isolation, whole=True)

    def search(self, requests: list[Request], batch: Batch) -> None:
        """Split a list refused for one of its prompts, or for all."""
        if not requests:
            return
        isolation = batch.isolation or Isolation(size=len(requests))
        isolation.refused += 1
        if isolation.good or isolation.refused <= isolation.size.bit_length():
            self.halves(requests, batch, isolation)
            return
        # More refusals than one guilty prompt can cause, and no prompt is good: most are bad, and
        # halving would ask for each twice.
        self._counters.splits += 1
        self.singly(requests, batch, isolation=isolation)

    def found(self, batch: Batch, endpoint: Endpoint, now: float, *, good: int = 0, bad: int = 0) -> None:
        """Take in good or bad prompts of a split list; conclude once every prompt has ended."""
        isolation = batch.isolation
        if isolation is None:
            return
        isolation.good += good
        isolation.bad += bad
        isolation.listed = isolation.listed or (good > 0 and len(batch.requests) > 1)
        if isolation.good + isolation.bad < isolation.size:
            return
        abilities = endpoint.abilities.of(batch.shape.kind)
        if isolation.bad:
            abilities.halves_answered(0, now)
        elif isolation.blind and isolation.refused == 1:
            abilities.halves_answered(isolation.size, now)
        elif not isolation.listed and (isolation.blind or not abilities.lists.is_proven):
            abilities.lists.refuse(now)

    # Later ------------------------------------------------------------------------------------------------------

    def aside(self, failed: FailedBatch, failures: int, until: float) -> None:
        """Let refused calls wait by themselves, lists in halves."""
        for half in _halves(failed.alive):
            self.later(half, failed, until, failures=failures)

    def later(self, requests: list[Request], failed: FailedBatch, until: float, **other: Any) -> None:
        """Send calls again together after a time, once their retry is paid for."""
        if requests:
            self._later.push(self.keep(requests, failed, until, **other))

    def keep(self, requests: list[Request], failed: FailedBatch, until: float, **other: Any) -> Group:
        """Let calls wait, and return their group: until a time, or longer, as its keeper decides."""
        group = self._later.keep(_group(requests, failed.batch, retry=failed, **other), requests)
        group.not_before = until
        return group

    def free(self, group: Group, now: float) -> FailedBatch:
        """Return the failed batch of a kept group, without requests whose callers have gone."""
        failed = failed_of(group)
        failed.now, failed.alive = now, self._later.release(group)
        for request in failed.alive:
            request.group = None
        note_pause(failed.alive, now)
        return failed

    def next_due(self) -> float:
        """Return the time when the first call is due."""
        first = self._later.peek()
        return self._unpaid_until if first is None else min(first.not_before, self._unpaid_until)

    def requeue(self, now: float) -> None:
        """Queue the calls whose pause is over and whose retry is paid for."""
        self._unpaid_until = math.inf
        for endpoint, line in list(self._unpaid.items()):
            while line and self._pay(line[0], now):
                line.popleft()
            if not line:
                del self._unpaid[endpoint]
        while (due := self._later.pop(now)) is not None:
            endpoint = failed_of(due).endpoint
            if endpoint in self._unpaid or not self._pay(due, now):
                self._unpaid.setdefault(endpoint, deque()).append(due)
                self._counters.retries_delayed += 1

    def hasten(self, now: float) -> None:
        """A call was answered, and none is queued: two that stepped aside need wait no longer."""
        hastened = list[Group]()
        while len(hastened) < _HASTENED and (group := self._later.peek()) is not None:
            failed = failed_of(group)
            rests = failed.failure.retry_after_s is not None
            if not failed.batch.refusal.is_free or (rests and not failed.batch.pace.lets_go(now)):
                break
            self._later.pop(group.not_before)
            hastened.append(group)
        for group in hastened:
            group.not_before = min(group.not_before, now)
            self._later.push(group)

    def _pay(self, group: Group, now: float) -> bool:
        """Queue some calls again; return false if their endpoint's retry budget is in debt."""
        if not group.size:
            self._later.release(group)
            return True
        failed = failed_of(group)
        endpoint, limit, refusal_s = failed.endpoint, failed.endpoint.limit.limit, failed.batch.refusal.seconds
        has_price = failed.has_price
        free = not has_price or (refusal_s is not None and endpoint.takes_work(refusal_s, now))
        if not free and not endpoint.budget.take(failed.tokens_of(group.size), limit, now):
            self._unpaid_until = min(endpoint.budget.when(limit, now), self._unpaid_until)
            return False
        if free and has_price and group.failures == 1:
            endpoint.budget.sent(-failed.batch.tokens_at_risk * group.size / len(failed.batch.requests), -group.size)
        group.failures -= free and has_price
        note_pause(self._queue.come_back(group), now)
        return True


def _group(requests: list[Request], batch: Batch, **other: Any) -> Group:
    """Return an empty sealed group for some calls, like their batch but for what is said."""
    like_it = {"failures": batch.failures, "isolation": batch.isolation, "bare": batch.bare}
    # A list may be a single member, which has gone ahead.
    shape = requests[0].shape if requests else batch.shape
    return Group(shape, sealed=True, **like_it | other)


def failed_of(group: Group) -> FailedBatch:
    """The failed batch of a group that waits."""
    assert isinstance(group.retry, FailedBatch), "a group that waits is of a failed batch"
    return group.retry


def _halves(requests: list[Request]) -> list[list[Request]]:
    middle = (len(requests) + 1) // 2
    return [half for half in (requests[:middle], requests[middle:]) if half]
