"""The numbers of the batching rule."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerSettings"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The numbers of the batching rule.

    Args:
        linger_s: how long a call may wait for company on a busy endpoint while permits are free.
        refill_s: how long freed permits may be held back to be granted together.
        refill_ratio: the quantum as a share of the limit; 0 grants each permit as it comes free.
        starvation_s: after this long in the queue nothing younger passes a heavy call.
        max_list: prompts per request, at most.
        max_queued: calls in the queue, at most; more of them wait outside, in order.
        raise_when_full: reject calls over ``max_queued`` instead.
        plain_up_to_tokens: a batch whose calls generate at most this many tokens is sent plain.
        singles_above_tokens: calls expected to generate more than this go singly.
        requests_per_minute: per endpoint; ``None``: any number.
        tokens_per_minute: prompt and output tokens, per endpoint; ``None``: any number.
        length_reach: how many length buckets a batch may span around its oldest call; ``None``: any.
    """

    linger_s: float = 0.0
    refill_s: float = 0.0
    refill_ratio: float = 0.0
    starvation_s: float = 5.0
    max_list: int = 64
    max_queued: int = 16_384
    raise_when_full: bool = False
    plain_up_to_tokens: int = 4
    singles_above_tokens: int = 256
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    length_reach: int | None = None
