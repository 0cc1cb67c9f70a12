"""A cap that keeps a promise about latency: the 95th percentile of what answers take, or of their time to first token.

Rules:
- Time counts from when the request was sent: queueing on our side is not the server's, and sending less would only lengthen it.
- Answers are looked at in windows: at least 100 of them, and as long as the objective (5 s at least) unless there are 1,000. The 95th percentile of
  fewer says little.
- A window is judged if the last change (or the start) was 1.5 times as long before it as the percentile it shows. Sooner, some of its answers
  were still sent before the change; and those alone that were sent after it and have ended are the short ones: any objective would seem to be kept.
- A window over the objective cuts the cap by as much as it is over (at most to a half), the first time from what was in flight. Time grows no
  faster than load, as a rule: that is rarely too much.
- A window well under it (0.9) raises the cap likewise, by a fifth at most; between the two it stays.
- Where half of the load takes nearly as long (0.95), load is not what takes it: long answers, a slow server, somebody else's calls. The cap goes
  back to where it was, and not below that for five minutes.

Windows, cuts and slow growth are Clipper's (Crankshaw et al., NSDI 2017); the constants were chosen in the laboratory (``benchmarks/lab``).
"""

from __future__ import annotations

import math

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["LatencyCap"]

_LEAST_ANSWERS = 100
_MOST_ANSWERS = 1000
_SHORTEST_WINDOW_S = 5.0
_SETTLED_RATIO = 1.5
_AIM_RATIO = 0.95
_LARGEST_CUT_RATIO = 0.5
_GROWTH_RATIO = 1.2
_COMFORT_RATIO = 0.9
_LESS_LOAD_RATIO = 0.5
_NO_LESS_TIME_RATIO = 0.95
_FLOOR_LASTS_S = 300.0
_TOOK_PART = (Outcome.SUCCESS, Outcome.WASTED, Outcome.LATE)
"""What somebody waited for, if not to the end."""


class LatencyCap:
    """Lowers the limit until the 95th percentile keeps to an objective.

    Args:
        p95_s: the objective, seconds.
        first_token: whether it is about the time to first token; plain replies, which have none, then say nothing.
    """

    __slots__ = (
        "_cap", "_changed_at", "_first_token", "_floor", "_floor_until", "_objective_s", "_over", "_reason", "_window",
    )  # fmt: skip

    def __init__(self, p95_s: float, *, first_token: bool = False) -> None:
        if not p95_s > 0:
            raise ValueError("a latency objective is above 0 seconds")
        self._objective_s = p95_s
        self._first_token = first_token
        self._forget()

    def __repr__(self) -> str:
        return f"<LatencyCap {self._cap}>"

    def _forget(self) -> None:
        self._cap: float | None = None
        self._reason = ""
        self._changed_at: float | None = None
        self._window = _Window()
        self._over: list[tuple[float, float, float]] = []
        """(mean in flight, its 95th percentile, what was cut) of the windows over the objective since it was last kept well."""
        self._floor = 1.0
        self._floor_until = -math.inf

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        if sample.outcome not in _TOOK_PART:
            return
        if not self._first_token:
            seconds = sample.now - sample.sent_at
        elif sample.first_tokens_s:
            seconds = sample.first_tokens_s / sample.sequences
        else:
            return
        if self._changed_at is None:
            self._changed_at = sample.sent_at
        window = self._window
        window.add(sample, seconds)
        if window.answers < _LEAST_ANSWERS:
            return
        if window.answers < _MOST_ANSWERS and sample.now - window.began < max(_SHORTEST_WINDOW_S, self._objective_s):
            return
        self._window = _Window()
        p95_s = window.p95_s()
        if window.began - self._changed_at >= _SETTLED_RATIO * p95_s:
            self._judge(window, p95_s, sample.now)

    def cap(self, now: float) -> tuple[int, str] | None:
        """The most sequences in flight that keep the promise; ``None`` until it was broken."""
        return None if self._cap is None else (max(1, int(self._cap)), self._reason)

    def on_restart(self, now: float) -> None:
        """The server was started anew."""
        self._forget()

    def _judge(self, window: _Window, p95_s: float, now: float) -> None:
        ratio = _AIM_RATIO * self._objective_s / p95_s if p95_s else math.inf
        what = "time to first token" if self._first_token else "latency"
        if p95_s > self._objective_s:
            self._reason = f"p95 {what} {p95_s:.3g} s, {self._objective_s:g} s asked for"
            self._lower(window, p95_s, ratio, now)
        elif self._cap is not None and ratio > _AIM_RATIO / _COMFORT_RATIO:
            self._over.clear()
            self._reason = f"p95 {what} within {self._objective_s:g} s"
            self._cap *= min(_GROWTH_RATIO, ratio)
            if self._cap > 2 * window.peak:
                # It has not held anything back for a while.
                self._cap = None
        else:
            return
        self._changed_at = now

    def _lower(self, window: _Window, p95_s: float, ratio: float, now: float) -> None:
        load, cut = window.mean_in_flight, min(self._cap or math.inf, max(1, window.peak))
        for before, then_s, cap in self._over:
            if load <= _LESS_LOAD_RATIO * before and p95_s > _NO_LESS_TIME_RATIO * then_s:
                self._over.clear()
                self._reason += "; less load hardly lowers it"
                self._cap = self._floor = cap
                self._floor_until = now + _FLOOR_LASTS_S
                return
        self._over.append((load, p95_s, cut))
        self._cap = cut * max(_LARGEST_CUT_RATIO, ratio)
        if now < self._floor_until:
            self._cap = max(self._cap, self._floor)


class _Window:
    """Answers that ended one after another."""

    __slots__ = ("_area", "_times", "answers", "began", "peak")

    def __init__(self) -> None:
        self._times: list[tuple[float, int]] = []
        self._area = 0.0
        self.answers = 0
        self.began = math.inf
        """When the first of them ended."""
        self.peak = 0
        """Most in flight when one of them ended."""

    def add(self, sample: Sample, seconds: float) -> None:
        self._times.append((seconds, sample.sequences))
        self._area += sample.sequences * sample.mean_in_flight
        self.answers += sample.sequences
        self.began = min(self.began, sample.now)
        self.peak = max(self.peak, sample.in_flight)

    @property
    def mean_in_flight(self) -> float:
        """The load that they were served under."""
        return self._area / self.answers

    def p95_s(self) -> float:
        """The time that 95 % of them did not exceed."""
        left = 0.05 * self.answers
        for seconds, count in sorted(self._times, reverse=True):
            left -= count
            if left < 0:
                return seconds
        return 0.0
