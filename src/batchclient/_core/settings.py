"""The numbers of the batching rule: one record, which all parts of a scheduler read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from batchclient._core.kinds import Kind

__all__ = ["BatchingNumbers", "SchedulerSettings"]


class BatchingNumbers(NamedTuple):
    """The numbers that a preset sets. Times in seconds.

    Args:
        max_size, linger_s: of ``Batching``.
        refill_s: how long freed permits may be held back to be granted together.
        refill_ratio: the share of the limit that is granted together; 0 grants each permit as it
            comes free.
        starvation_s: after this long in the queue nothing younger passes a heavy call.
    """

    max_size: int
    linger_s: float
    refill_s: float
    refill_ratio: float
    starvation_s: float


@dataclass(slots=True, eq=False)
class SchedulerSettings:
    """The numbers of the batching rule.

    A scheduler changes its own record (``take_over``); so whoever keeps the record, and no copy of
    a number, goes on with the new numbers.

    Args:
        linger_s: how long a call may wait for company on a busy endpoint while permits are free.
        refill_s: how long freed permits may be held back to be granted together.
        refill_ratio: the quantum as a share of the limit; 0 grants each permit as it comes free.
        starvation_s: after this time in the queue nothing younger passes a heavy call.
        max_size: prompts per request, at most.
        max_queued: calls in the queue per class and tenant, at most; more wait outside, in order.
        raise_when_full: reject calls over ``max_queued`` instead.
        list_tokens: calls expected to generate more tokens go singly.
        chat_list_tokens: the same for lists which cannot be streamed; four times as many, if the
            answers were seen to end together, at ``max_tokens``. Measurements:
            ``benchmarks/notes/chats.md``.
        watches_first_tokens: whether an objective needs times of first tokens, which plain lists
            lack.
        heeds_time: whether a limit rests on how long answers take.
        length_reach: length buckets which a batch may span around its oldest call; ``None``: any.
        order: ``"fcfs"``, ``"shortest_first"`` or ``"deadline"`` (see ``order``).
        aging_s: the head start of a priority class over the next lower.
        group_prefixes: let calls with a common long prefix go next to each other.
        max_wait_s: how long a call without a deadline may wait for a cheaper server (see
            ``prices``); ``None``: 30 s, a call of a map as long as it takes.
        tenant_weights: shares of tenants which get more or less than others; 1 for the rest.
        size_for: prompts per request for a number of queued calls of a shape; where it gives
            ``None``, ``max_size`` holds.
        known_caps: prompts per request, by kind of call, which an unidentified server takes.
        outage_patience_s: how long a call waits for a server that has vanished.
        waits_out_refusals: whether calls of maps wait as long for a refused model that was served.
        wait_for_server_s: how long calls wait for a first answer of any server; 0: they do not.
        streams_lists: whether lists may be streamed; a measurement compares.
        trusts_lists: whether a server that does not say which it is gets lists without a proof (see
            ``proof``); called for each endpoint with the first list that may go there.
    """

    linger_s: float = 0.0
    refill_s: float = 0.0
    refill_ratio: float = 0.0
    starvation_s: float = 5.0
    max_size: int = 64
    max_queued: int = 16_384
    raise_when_full: bool = False
    list_tokens: int = 256
    chat_list_tokens: int = 32
    watches_first_tokens: bool = False
    heeds_time: bool = False
    length_reach: int | None = None
    order: str = "fcfs"
    aging_s: float = 300.0
    group_prefixes: bool = True
    max_wait_s: float | None = None
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    size_for: Callable[[int], int | None] | None = None
    known_caps: Mapping[Kind, int] = field(default_factory=dict)
    outage_patience_s: float = 60.0
    waits_out_refusals: bool = False
    wait_for_server_s: float = 0.0
    streams_lists: bool = True
    trusts_lists: Callable[[], bool] = bool

    def take_over(self, other: SchedulerSettings) -> None:
        """Go on with the numbers of another record."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))
