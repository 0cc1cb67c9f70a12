"""A cap that keeps a promise about latency: the 95th percentile of what answers take, or of their time to first token.

Rules:
- Time counts from when the request was sent: queueing on our side is not the server's, and sending less would only lengthen it.
- Answers are looked at in windows of at least 20, all sent after the last cut: those sent before it say nothing about it.
- A window whose 95th percentile is over the objective cuts the cap to 0.9 (Clipper's step; Crankshaw et al., NSDI 2017), the first time from
  what is in flight.
- A window well under it (0.8) raises the cap by 5 %; between the two it stays.
"""

from __future__ import annotations

import math

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["LatencyCap"]

_LEAST_ANSWERS = 20
_CUT_RATIO = 0.9
_GROWTH_RATIO = 1.05
_COMFORT_RATIO = 0.8


class LatencyCap:
    """Lowers the limit until the 95th percentile keeps to an objective.

    Args:
        p95_s: the objective, seconds.
        first_token: whether it is about the time to first token; plain replies, which have none, then say nothing.
    """

    __slots__ = ("_cap", "_changed_at", "_first_token", "_p95_s", "_window")

    def __init__(self, p95_s: float, *, first_token: bool = False) -> None:
        if not p95_s > 0:
            raise ValueError("a latency objective is above 0 seconds")
        self._p95_s = p95_s
        self._first_token = first_token
        self._cap: float | None = None
        self._changed_at = -math.inf
        self._window: list[tuple[float, int]] = []

    def __repr__(self) -> str:
        return f"<LatencyCap {self._cap}>"

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        if sample.outcome not in (Outcome.SUCCESS, Outcome.WASTED) or sample.sent_at < self._changed_at:
            return
        if not self._first_token:
            seconds = sample.now - sample.sent_at
        elif sample.first_tokens_s:
            seconds = sample.first_tokens_s / sample.sequences
        else:
            return
        self._window.append((seconds, sample.sequences))
        answers = sum(count for _, count in self._window)
        if answers >= _LEAST_ANSWERS:
            self._judge(_p95(self._window, answers), sample)

    def cap(self, now: float) -> tuple[int, str] | None:
        """The most sequences in flight that keep the promise; ``None`` until it was broken."""
        if self._cap is None:
            return None
        what = "time to first token" if self._first_token else "latency"
        return max(1, int(self._cap)), f"p95 {what} over {self._p95_s:g} s"

    def on_restart(self, now: float) -> None:
        """The server was started anew."""
        self._cap = None
        self._window.clear()

    def _judge(self, p95_s: float, sample: Sample) -> None:
        self._window.clear()
        if p95_s > self._p95_s:
            self._cap = _CUT_RATIO * min(self._cap or math.inf, max(1, sample.in_flight))
        elif self._cap is not None and p95_s < _COMFORT_RATIO * self._p95_s:
            self._cap *= _GROWTH_RATIO
            if self._cap > 2 * sample.in_flight:
                # It has not held anything back for a while.
                self._cap = None
        else:
            return
        self._changed_at = sample.now


def _p95(window: list[tuple[float, int]], answers: int) -> float:
    left = 0.05 * answers
    for seconds, count in sorted(window, reverse=True):
        left -= count
        if left < 0:
            return seconds
    return window[0][0]
