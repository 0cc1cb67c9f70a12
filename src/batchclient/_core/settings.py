"""The numbers of the batching rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from batchclient._core.kinds import Kind

__all__ = ["SchedulerSettings"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The numbers of the batching rule.

    Args:
        linger_s: how long a call may wait for company on a busy endpoint while permits are free.
        refill_s: how long freed permits may be held back to be granted together.
        refill_ratio: the quantum as a share of the limit; 0 grants each permit as it comes free.
        starvation_s: after this long in the queue nothing younger passes a heavy call.
        max_size: prompts per request, at most.
        max_queued: calls in the queue, at most, per priority class and tenant; more of them wait outside, in order.
        raise_when_full: reject calls over ``max_queued`` instead.
        alone_above_tokens: calls expected to generate more than this go singly. Where a list cannot be streamed, calls go singly that
            are expected to generate more than an eighth of it, or than half of it if their answers were seen to end together, at
            ``max_tokens``. ``docs/explanation/chat.md`` has what was measured.
        watches_first_tokens: whether an objective needs the times of first tokens, which plain lists do not tell.
        heeds_time: whether a limit rests on how long answers take.
        requests_per_minute: per endpoint; ``None``: any number.
        tokens_per_minute: prompt and output tokens, per endpoint; ``None``: any number.
        length_reach: how many length buckets a batch may span around its oldest call; ``None``: any.
        order: ``"fcfs"``, ``"shortest_first"`` or ``"deadline"`` (see ``order``).
        aging_s: the head start of one priority class over the next.
        group_prefixes: let calls that share a long prefix go next to each other.
        tenant_weights: of tenants that are to get more or less than others; 1 for the rest.
        size_for: prompts per request for so many queued calls of one shape, instead of ``max_size``; where it answers ``None``, that holds.
        known_caps: prompts per request that a server takes before it is known which it is, by kind of call.
        is_known_server: whether the servers are of a sort that is known by name before any is found out: their lists are served at once.
        outage_patience_s: how long a call waits for a server that has vanished.
    """

    linger_s: float = 0.0
    refill_s: float = 0.0
    refill_ratio: float = 0.0
    starvation_s: float = 5.0
    max_size: int = 64
    max_queued: int = 16_384
    raise_when_full: bool = False
    alone_above_tokens: int = 256
    watches_first_tokens: bool = False
    heeds_time: bool = False
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    length_reach: int | None = None
    order: str = "fcfs"
    aging_s: float = 300.0
    group_prefixes: bool = True
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    size_for: Callable[[int], int | None] | None = None
    known_caps: Mapping[Kind, int] = field(default_factory=dict)
    is_known_server: bool = False
    outage_patience_s: float = 30.0
