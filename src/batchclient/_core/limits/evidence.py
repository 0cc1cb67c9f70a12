"""What answers say about the load they were served under: samples gathered into points, and lines through the points.

Rules:
- An answer's time has two parts. The time to its first token is waiting and prefill: the same for short answers and long ones, and a
  matter of the queue its request met. The rest is in proportion to its tokens, and a matter of the load while they were made. Taken
  apart, neither depends on how many short answers happen to be among those that ended just now.
- Time that somebody's request took and nobody had anything of (its caller left, its deadline passed) is added to the waiting of the others.
- Nothing is assumed to be steady: a point carries the mean loads its own answers saw, so that answers begun before a change of the
  limit count like any others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Cohort", "Line", "Point"]

_SHORT_TOKENS = 8
"""Plain answers of up to this many tokens on average are made in a few steps: what they took is waiting."""


class Point(NamedTuple):
    """Some answers that ended one after another.

    Args:
        at: when the last of them ended.
        weight: how many they were.
        log_load: ln of the mean sequences in flight while they were served.
        log_queue: ln of the sequences in flight that they met.
        wait_s: mean time to first token, and what was wasted beside each answer.
        token_s: time per token after the first; 0 if the answers are too short to say.
    """

    at: float
    weight: float
    log_load: float
    log_queue: float
    wait_s: float
    token_s: float


class Cohort:
    """Sums over some samples."""

    __slots__ = (
        "_area", "_first_s", "_queue", "_served_s", "answered", "began", "peak", "seconds", "sequences", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.began = math.inf
        """When the first of them ended."""
        self.sequences = 0
        self.answered = 0
        """Those somebody got the answer of."""
        self.tokens = 0
        self.seconds = 0.0
        """Sequence-seconds, wasted ones too."""
        self.peak = 0
        """Most in flight when one of them ended."""
        self._served_s = 0.0
        self._first_s = 0.0
        self._area = 0.0
        self._queue = 0

    def add(self, sample: Sample) -> None:
        """Take in a sample that took some time."""
        seconds = sample.sequences * (sample.now - sample.sent_at)
        self.began = min(self.began, sample.now)
        self.sequences += sample.sequences
        self.seconds += seconds
        self.peak = max(self.peak, sample.in_flight)
        self._area += seconds * sample.mean_in_flight
        self._queue += sample.sequences * sample.in_flight_at_sent
        if sample.outcome is Outcome.SUCCESS:
            self.answered += sample.sequences
            self.tokens += sample.completion_tokens
            self._served_s += seconds
            self._first_s += sample.first_tokens_s

    def point(self, now: float) -> Point:
        """What they say; somebody must have got an answer."""
        wasted_s = (self.seconds - self._served_s) / self.answered
        more_tokens = self.tokens - self.answered
        if self._first_s and more_tokens > 0:
            wait_s = self._first_s / self.answered
            token_s = (self._served_s - self._first_s) / more_tokens
        elif self.tokens > _SHORT_TOKENS * self.answered:
            wait_s, token_s = 0.0, self._served_s / self.tokens
        else:
            wait_s, token_s = self._served_s / self.answered, 0.0
        load = max(1.0, self._area / self.seconds)
        queue = max(1.0, self._queue / self.sequences)
        return Point(now, float(self.sequences), math.log(load), math.log(queue), wait_s + wasted_s, token_s)


class Line:
    """Weighted ridge regression of a value on a load's logarithm and on time.

    The slope is drawn to a prior where the loads hardly differ. A drift over time is allowed for, but only a small one, so that a ramp
    of the limit is not taken for a drift of the server (ridge regression: Hoerl and Kennard 1970).

    Args:
        loads, times, values, weights: one of each per point.
        prior: the slope expected.
        slope_ridge, drift_ridge: how strongly slope and drift are drawn to the prior and to nothing, in units of one point's weight.
    """

    __slots__ = ("residuals", "slope")

    def __init__(
        self,
        loads: Sequence[float],
        times: Sequence[float],
        values: Sequence[float],
        weights: Sequence[float],
        prior: float,
        slope_ridge: float,
        drift_ridge: float,
    ) -> None:
        total = sum(weights) or 1e-9
        mean_x = sum(map(mul, weights, loads)) / total
        mean_t = sum(map(mul, weights, times)) / total
        mean_y = sum(map(mul, weights, values)) / total
        xs = [x - mean_x for x in loads]
        ts = [t - mean_t for t in times]
        ys = [y - mean_y - prior * x for y, x in zip(values, xs, strict=True)]
        xx, tt = slope_ridge, drift_ridge
        xy = xt = ty = 0.0
        for weight, x, t, y in zip(weights, xs, ts, ys, strict=True):
            xx += weight * x * x
            tt += weight * t * t
            xt += weight * x * t
            xy += weight * x * y
            ty += weight * t * y
        determinant = xx * tt - xt * xt
        more = (xy * tt - ty * xt) / determinant
        drift = (ty * xx - xy * xt) / determinant
        self.slope = prior + more
        self.residuals = [y - more * x - drift * t for y, x, t in zip(ys, xs, ts, strict=True)]
        """How far above the line each point lies."""
