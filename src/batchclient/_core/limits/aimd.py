"""Additive increase, multiplicative decrease, fed by refusals alone.

Rules (those of inspect_ai's adaptive connections, and of TCP before it):
- Until the first refusal the limit doubles once per round of answers sent after the last change (slow start).
- After it, the limit grows by 5 % (at least 1) per round.
- A refusal that is about load (``refused``) cuts it to 0.8, or to what was served where that is less, but not below a half; once per
  episode: only work that was admitted at no more than the present limit counts, and for a cooldown after a cut nothing does.
- It grows only while the limit is used: most in flight in the round at least 0.8 of it.
- A number that a person has set is the same with that number for its ceiling: it holds until the server refuses, and comes back.

A server that queues without bound and never refuses (vLLM by default) drives it to its ceiling: use ``knee`` there.
"""

from __future__ import annotations

from batchclient._core.limits.base import LimitChange, Outcome, Sample
from batchclient._core.limits.refused import Refusals

__all__ = ["AimdLimit", "FixedLimit"]

_GROWTH_RATIO = 0.05
_CUT_RATIO = 0.8
_DEEPEST_CUT_RATIO = 0.5
_USED_RATIO = 0.8
_SHORTEST_COOLDOWN_S = 1.0


class AimdLimit:
    """AIMD on refusals.

    Args:
        start: the first limit.
        floor: never below this.
        ceiling: never above this.
    """

    __slots__ = (
        "_ceiling",
        "_changed_at",
        "_cooldown_until",
        "_count",
        "_floor",
        "_latency_s",
        "_peak",
        "_refusals",
        "_slow_start",
        "limit",
    )

    def __init__(self, start: int = 32, floor: int = 1, ceiling: int = 1024) -> None:
        if not 1 <= floor <= start <= ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, got {floor}, {start}, {ceiling}")
        self.limit = start
        self._floor = floor
        self._ceiling = ceiling
        self._slow_start = True
        self._changed_at = float("-inf")
        self._cooldown_until = float("-inf")
        self._count = 0
        self._peak = 0
        self._latency_s = 0.0
        self._refusals = Refusals()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.limit})"

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        self._refusals.on_sample(sample)
        if sample.outcome is Outcome.DROPPED:
            return self._cut(sample)
        if sample.outcome is not Outcome.SUCCESS or sample.sent_at < self._changed_at:
            return None
        seconds = sample.now - sample.sent_at
        self._latency_s += 0.1 * (seconds - self._latency_s) if self._latency_s else seconds
        self._count += sample.sequences
        self._peak = max(self._peak, sample.in_flight)
        if self._count < max(self.limit, 4) or sample.now < self._cooldown_until:
            return None
        used = self._peak >= _USED_RATIO * self.limit
        self._count = self._peak = 0
        if not used or self.limit >= self._ceiling:
            return None
        grown = 2 * self.limit if self._slow_start else self.limit + max(1, int(_GROWTH_RATIO * self.limit))
        reason = "slow start: a round without refusal" if self._slow_start else "a round without refusal"
        return self._set(min(grown, self._ceiling), sample.now, reason)

    def on_restart(self, now: float) -> LimitChange | None:
        """The server was started anew: what was learnt of it is void."""
        self._slow_start = True
        self._count = self._peak = 0
        self._refusals = Refusals()
        return None

    def _cut(self, sample: Sample) -> LimitChange | None:
        if sample.now < self._cooldown_until or sample.admitted_at > self.limit:
            return None
        if not self._refusals.about_load(sample.in_flight_at_sent):
            return None
        self._slow_start = False
        self._cooldown_until = sample.now + max(self._latency_s, _SHORTEST_COOLDOWN_S)
        self._count = self._peak = 0
        served = self._refusals.served_load()
        ratio = min(_CUT_RATIO, max(_DEEPEST_CUT_RATIO, served / self.limit)) if served else _CUT_RATIO
        return self._set(max(self._floor, int(self.limit * ratio)), sample.now, "the server refused work")

    def _set(self, limit: int, now: float, reason: str) -> LimitChange | None:
        if limit == self.limit:
            return None
        self.limit = limit
        self._changed_at = now
        return LimitChange(limit, reason)


class FixedLimit(AimdLimit):
    """A number that a person has set.

    Args:
        limit: the number, at least 1.
    """

    __slots__ = ()

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit is at least 1")
        super().__init__(limit, ceiling=limit)
