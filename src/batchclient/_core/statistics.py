"""Counters of the scheduler and the frozen snapshots of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from batchclient._core.lane import Lane
from batchclient._core.messages import Adjustment

__all__ = [
    "Counters",
    "EndpointStatistics",
    "LaneStatistics",
    "Statistics",
    "by_priority",
    "by_tenant",
]


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """One endpoint, now.

    Args:
        limit: sequences that may be in flight.
        limit_reason: why it is what it is.
        in_flight: sequences the server still works on.
        abandoned: those of them nobody waits for any more.
        batch_size_cap: the most completions sent to it in one request, unless ``size_for`` says how long lists are.
        lists_refused: whether it refused lists lately.
        streams_refused: whether it refused to stream lately.
        blocked_until: the scheduler's time until which calls are held back whatever permits are free.
        blocked_by: by what: ``"requests_per_minute"`` or ``"tokens_per_minute"``, the client's own settings; ``"the server's Retry-After"``; or
            ``"the gateway's rate limit"``, once it says that nothing is left. Empty while nothing is held back.
        id: a number that no other endpoint of the client ever has.
        base_url: without its query, which may hold a key.
        state: ``"healthy"``; ``"ejected"``: it failed and is left alone; ``"probing"``: one call finds out whether it is back;
            ``"recovering"``: it is back, and gets a growing share; ``"leaving"``: it was removed, and finishes what it has.
        reason: why it is in that state; empty while nothing happened.
        retry_budget_tokens: prompt and output tokens that may be sent again now; below 0 retries wait.
        server: which server it is, such as ``"vllm 0.32.0"``; ``None``: not known (yet).
        outage: the sentence about the outage that its calls wait for, in the words of the log. Empty
            while it is in use.
    """

    limit: int
    limit_reason: str
    in_flight: int
    abandoned: int
    batch_size_cap: int
    lists_refused: bool
    streams_refused: bool
    blocked_until: float | None
    id: int
    base_url: str
    state: str
    reason: str
    retry_budget_tokens: int = 0
    server: str | None = None
    blocked_by: str = ""
    outage: str = ""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """The calls of one priority class, or of one tenant.

    Args:
        queued: calls that wait for a permit.
        waiting: calls that wait for a place in the queue (``max_queued``).
        in_flight: sequences the servers still work on.
        prompt_tokens, completion_tokens: served, as the servers counted them.
    """

    queued: int = 0
    waiting: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def by_priority(lanes: Iterable[Lane]) -> dict[int, LaneStatistics]:
    """Sum lanes by class, the highest first."""
    groups: dict[int, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(lane.priority, []).append(lane)
    return {priority: _sum(groups[priority]) for priority in sorted(groups, reverse=True)}


def by_tenant(lanes: Iterable[Lane]) -> dict[str, LaneStatistics]:
    """Sum lanes by tenant; calls without one are left out."""
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        if lane.account.tenant is not None:
            groups.setdefault(lane.account.tenant, []).append(lane)
    return {tenant: _sum(group) for tenant, group in groups.items()}


def _sum(lanes: list[Lane]) -> LaneStatistics:
    return LaneStatistics(
        queued=sum(lane.size for lane in lanes),
        waiting=sum(lane.waiting for lane in lanes),
        in_flight=sum(lane.in_flight for lane in lanes),
        prompt_tokens=sum(lane.prompt_tokens for lane in lanes),
        completion_tokens=sum(lane.completion_tokens for lane in lanes),
    )


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a client is doing and has done. Counts are since the first call in this event loop
    and process: with a new loop or a fork a client starts afresh.

    Args:
        queued: calls that wait for a permit.
        waiting: calls that wait for a place in the queue (``max_queued``).
        backing_off: calls that wait to be tried again.
        in_flight: sequences the servers still work on.
        abandoned: those of them nobody waits for any more.
        submitted, succeeded, failed, cancelled: calls, each counted once at its end.
        batches: requests sent.
        retries: requests sent again after a failure (isolation not counted).
        retries_delayed: those of them that waited for the retry budget.
        splits: lists split to find a bad prompt.
        list_sizes: how many requests carried how many prompts.
        alone: why calls went alone, by reason.
        prompt_tokens, completion_tokens: as the servers counted them.
        endpoints: one entry per base URL, those that are leaving included.
        priorities: the same by priority class, the highest first.
        tenants: the same by tenant; those idle for long are forgotten once there are thousands.
        adjustments: the last changes of limits and list caps, oldest first.
        shared: calls that joined an equal one under way (``single_flight``); they are among ``submitted``, too.
    """

    queued: int
    waiting: int
    backing_off: int
    in_flight: int
    abandoned: int
    submitted: int
    succeeded: int
    failed: int
    cancelled: int
    batches: int
    retries: int
    splits: int
    list_sizes: Mapping[int, int]
    alone: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    endpoints: tuple[EndpointStatistics, ...]
    priorities: Mapping[int, LaneStatistics]
    tenants: Mapping[str, LaneStatistics]
    adjustments: tuple[Adjustment, ...] = ()
    retries_delayed: int = 0
    shared: int = 0


@dataclass(slots=True)
class Counters:
    """What the scheduler counts as it goes."""

    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    batches: int = 0
    retries: int = 0
    retries_delayed: int = 0
    splits: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    list_sizes: Counter[int] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)

    def send(self, size: int, alone: str, change: int = 1) -> None:
        """Count a request with so many prompts; ``alone``: why it has one, if it has."""
        self.batches += change
        self.list_sizes[size] += change
        if alone:
            self.alone[alone] += change

    def batch_failed(self, size: int, alone: str, *, was_sent: bool) -> None:
        """A batch that was counted has failed: take it back if it was not sent after all."""
        if not was_sent:
            self.send(size, alone, -1)

    def snapshot(
        self,
        *,
        queued: int,
        waiting: int,
        backing_off: int,
        endpoints: tuple[EndpointStatistics, ...],
        lanes: Iterable[Lane],
        adjustments: Iterable[Adjustment],
    ) -> Statistics:
        """Freeze them, with what is not counted but is."""
        lanes = list(lanes)
        return Statistics(
            queued=queued,
            waiting=waiting,
            backing_off=backing_off,
            in_flight=sum(endpoint.in_flight for endpoint in endpoints),
            abandoned=sum(endpoint.abandoned for endpoint in endpoints),
            submitted=self.submitted,
            succeeded=self.succeeded,
            failed=self.failed,
            cancelled=self.cancelled,
            batches=self.batches,
            retries=self.retries,
            retries_delayed=self.retries_delayed,
            splits=self.splits,
            list_sizes=dict(sorted((+self.list_sizes).items())),
            alone=dict(+self.alone),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            endpoints=endpoints,
            adjustments=tuple(adjustments),
            priorities=by_priority(lanes),
            tenants=by_tenant(lanes),
        )
