"""Lanes: a call's tenant and priority class; fairness and reserves.

Rules:
- A lane is a tenant's calls of a priority class. Calls of two lanes never share a request.
- Between classes the lane with the lowest rank goes first (see ``order``): a class is a head start
  in time.
- Between tenants of a class the least served goes first: the Virtual Token Counter of Sheng et al.,
  "Fairness in Serving Large Language Models" (OSDI 2024). A counter holds weighted tokens (input ×
  1, output × 2), divided by the tenant's weight. Grants charge an estimate, corrected by the
  server's own count.
- A tenant who comes back is lifted to the least served active tenant: idling saves nothing up. The
  paper takes the minimum over all; here the counter of the tenant served last is used, which was
  the smallest then and costs nothing to know.
- A class above the lowest has a reserve of permits for 60 s after its last call was seen; none
  below a limit of 16.

A choice looks at each waiting lane once: the cost grows with waiting tenants, not with calls. A
single lane costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchclient._core.lane import Account, Lane
from batchclient._core.learnt.lengths import weighted_tokens
from batchclient._core.messages import Batch, Request, Shape
from batchclient.types import Completion

__all__ = ["Lanes", "Reserve"]

RESERVE_RATIO = 1 / 16
_SEEN_FOR_S = 60.0
"""How long a class is in use after its last call. Both numbers are choices, not measured."""
_REMEMBERED_LANES = 4096


@dataclass(frozen=True, slots=True)
class Reserve:
    """Permits kept on an endpoint for classes above the lowest.

    Args:
        lowest: the lowest class in use.
        permits: the limit less so many is the most for the lowest class.
        unused: permits of the reserve not used by a higher class now.
    """

    lowest: int
    permits: int
    unused: int


class Lanes:
    """All lanes, and the choice between them; tenants without a weight have 1."""

    def __init__(self, weights: Mapping[str, float] | None = None, max_queued: int = 0) -> None:
        self._weights = dict(weights or {})
        self._max_queued = max_queued
        self._accounts: dict[str | None, Account] = {}
        self._lanes: dict[tuple[int, str | None], Lane] = {}
        self._floor = 0.0
        """The counter of the account served last, when it was chosen."""
        self._seen: dict[int, float] = {}
        """When a call of each class was last seen."""
        self._in_flight: dict[int, int] = {}
        """Sequences of each class, on all endpoints."""
        self.has_classes = False
        """Whether calls of two classes were ever seen."""
        self.has_tenants = False
        """Whether any call ever named a tenant."""
        self.ready: dict[Lane, None] = {}
        """Lanes in which groups may wait, in a fixed order. The queue's own."""

    def lane(self, shape: Shape) -> Lane:
        """Return the lane in which calls of a shape wait."""
        priority, tenant = shape.priority, shape.tenant
        lane = self._lanes.get((priority, tenant))
        if lane is None:
            if len(self._lanes) >= _REMEMBERED_LANES:
                self._forget_idle()
            account = self._accounts.get(tenant)
            if account is None:
                weight = 1.0 if tenant is None else self._weights.get(tenant, 1.0)
                self._accounts[tenant] = account = Account(tenant, weight)
            self._lanes[priority, tenant] = lane = Lane(priority, account, self._max_queued)
            self.has_tenants = self.has_tenants or tenant is not None
        return lane

    def retune(self, max_queued: int) -> None:
        """Give each lane another bound."""
        self._max_queued = max_queued
        for lane in self._lanes.values():
            lane.max_queued = max_queued

    def all(self) -> list[Lane]:
        """Every remembered lane: idle tenants' lanes are forgotten once there are thousands."""
        return list(self._lanes.values())

    # Classes ---------------------------------------------------------------------------------------------------

    def enter(self, shape: Shape, now: float) -> Lane:
        """A group of a shape begins to wait in its lane, which is returned."""
        lane, seen, priority = self.lane(shape), self._seen, shape.priority
        seen[priority] = max(now, seen.get(priority, now))
        self.has_classes = len(seen) > 1
        if not lane.size:
            lane.account.counter = max(lane.account.counter, self._floor)
        return lane

    def take(self, lane: Lane, sequences: int, now: float) -> None:
        """Some sequences of a lane are in flight from now on."""
        self._seen[lane.priority] = now
        lane.in_flight += sequences
        self._in_flight[lane.priority] = self._in_flight.get(lane.priority, 0) + sequences

    def give_back(self, lane: Lane, sequences: int) -> None:
        """Some sequences of a lane are no longer in flight."""
        lane.in_flight -= sequences
        self._in_flight[lane.priority] -= sequences

    def reserve(self, limit: int, endpoints: int, now: float) -> Reserve | None:
        """An endpoint's reserve for higher classes; ``None`` while only one class is in use.

        Higher classes' sequences in flight count against the reserve, as if spread evenly over the
        endpoints: permits in use need not be kept.
        """
        if len(self._seen) < 2:
            return None
        # The class of a waiting call is in use, however long nobody could look at the call.
        used = {lane.priority for lane in self.ready if lane.size}
        used.update(priority for priority, seen_at in self._seen.items() if now < seen_at + _SEEN_FOR_S)
        if len(used) < 2 or limit < 2:
            return None
        lowest = min(used)
        above = sum(sequences for priority, sequences in self._in_flight.items() if priority > lowest)
        # One permit of a few would be too much: a higher class is next when any comes free.
        permits = int(limit * RESERVE_RATIO)
        return Reserve(lowest, permits, max(0, permits - above // endpoints))

    # Tenants ---------------------------------------------------------------------------------------------------

    def charge(self, batch: Batch, expected_tokens: int) -> None:
        """Charge a granted batch's tenant, with ``expected_tokens`` of output per request."""
        account = batch.lane.account
        self._floor = max(self._floor, account.counter)
        # At least 1, because 0 stands for a batch without a charge.
        batch.expected_tokens = max(1, expected_tokens)
        account.counter += _expected(batch, batch.requests) / account.weight

    def settle(self, batch: Batch, answers: Sequence[tuple[int, Completion]]) -> None:
        """Some requests of a batch were answered: charge the actual use instead of the expected."""
        account = batch.lane.account
        for position, completion in answers:
            usage, request = completion.usage, batch.requests[position]
            if usage is not None:
                used = weighted_tokens(usage.prompt_tokens, usage.completion_tokens)
            elif completion.counted_tokens is not None:
                used = weighted_tokens(request.prompt_tokens, completion.counted_tokens)
            else:
                continue
            account.counter += (used - _expected(batch, [request])) / account.weight

    def refund(self, batch: Batch, requests: Sequence[Request]) -> None:
        """These requests of a batch were not served."""
        account = batch.lane.account
        account.counter -= _expected(batch, requests) / account.weight

    def choose(self, ranks: Mapping[Lane, tuple[Any, ...]]) -> Lane:
        """Choose the class of the lowest rank, then its least served tenant.

        ``ranks`` holds the lanes with the ranks of their first calls.
        """
        within = list(ranks)
        if self.has_classes:
            priority = min(ranks, key=ranks.__getitem__).priority
            within = [lane for lane in ranks if lane.priority == priority]
        least = min([lane.account.counter for lane in within])
        return min([lane for lane in within if lane.account.counter == least], key=ranks.__getitem__)

    def _forget_idle(self) -> None:
        """Forget idle tenants whose counters, on return, would be lifted to the floor anyway."""
        self._lanes = {place: lane for place, lane in self._lanes.items() if not lane.is_idle}
        kept = {lane.account.tenant for lane in self._lanes.values()}
        self._accounts = {
            tenant: account
            for tenant, account in self._accounts.items()
            if tenant in kept or (account.counter > self._floor and len(kept) < _REMEMBERED_LANES)
        }


def _expected(batch: Batch, requests: Sequence[Request]) -> float:
    """Weighted tokens charged for some requests of a batch."""
    return weighted_tokens(sum(request.prompt_tokens for request in requests), len(requests) * batch.expected_tokens)
