"""What answers say about the load they were served under: samples gathered into points, and a line through the points.

Rules:
- An answer's time is spread over its tokens and over ``overhead`` more, so that short answers and long ones compare: the overhead is what
  the wait for the first token comes to, in tokens. Only the whole time is believed, point by point: events reach a client in bunches, and a
  first token that is read late makes the wait look longer and the tokens shorter by the same time.
- Time that somebody's request took and nobody had anything of (its caller left, its deadline passed) is added to the others'.
- Nothing is assumed to be steady: a point carries the mean load its own answers saw, so that answers begun before a change of the limit
  count like any others.
- The line is one of time against load, not of their logarithms: a server that batches continuously takes ``a + b N``, one that queues ``N / X``,
  and both are straight lines wherever they are looked at from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Cohort", "Line", "Point", "waiting"]

_SHORT_TOKENS = 8
"""Plain answers of up to this many tokens on average are made in a few steps: what they took is waiting."""
_HUBER = 1.5
"""Beyond so many standard deviations a point's pull no longer grows (Huber 1964 has 1.5 as the usual value)."""


class Point(NamedTuple):
    """Some answers that ended one after another.

    Args:
        at: when the last of them ended.
        answers: how many they were.
        load: the mean sequences in flight while they were served.
        queue: sequences in flight that they met.
        tokens: they made; 0 if the answers are too short to say.
        seconds: sequence-seconds they took, and what was wasted beside them.
        first_s: the sum of their times to first token; 0 if unknown.
    """

    at: float
    answers: int
    load: float
    queue: float
    tokens: int
    seconds: float
    first_s: float

    def cost_s(self, overhead: float) -> float:
        """Time per token, an answer's overhead counted as that many tokens more."""
        return self.seconds / (self.tokens + overhead * self.answers)

    def felt(self, wait_share: float) -> float:
        """The load that made their time what it was: as much of it as is waiting is a matter of the queue they met."""
        return float(self.queue**wait_share * self.load ** (1 - wait_share))


class Cohort:
    """Sums over some samples."""

    __slots__ = (
        "_area", "_first_s", "_late_queue", "_queue", "_served_s", "answered", "began", "late", "peak", "seconds", "sequences", "tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.began = math.inf
        """When the first of them ended."""
        self.sequences = 0
        self.late = 0
        """Those whose deadline passed meanwhile."""
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
        self._late_queue = 0

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
        elif sample.outcome is Outcome.LATE:
            self.late += sample.sequences
            self._late_queue += sample.sequences * sample.in_flight_at_sent

    @property
    def late_load(self) -> float:
        """Mean sequences in flight that the late ones met."""
        return self._late_queue / self.late

    def point(self, now: float) -> Point:
        """What they say; somebody must have got an answer."""
        # At most as much again as was served: a burst of callers who leave must not outweigh everything else.
        wasted_s = min(self.seconds - self._served_s, self._served_s)
        tokens = self.tokens if self._first_s or self.tokens > _SHORT_TOKENS * self.answered else 0
        load = max(1.0, self._area / self.seconds)
        queue = max(1.0, self._queue / self.sequences)
        return Point(now, self.answered, load, queue, tokens, self._served_s + wasted_s, self._first_s)


def waiting(points: Sequence[Point]) -> tuple[float, float]:
    """How much of an answer is the wait for its first token: in later tokens' time, that first one left out, and as a share of its time."""
    timed = [point for point in points if point.first_s]
    first_s = sum(point.first_s for point in timed)
    answers = sum(point.answers for point in timed)
    making_s = sum(point.seconds for point in timed) - first_s
    later_tokens = sum(point.tokens for point in timed) - answers
    if later_tokens <= 0 or making_s <= 0:
        return 1.0, 0.0 if any(point.tokens for point in points) else 1.0
    return max(1.0, first_s / answers * later_tokens / making_s - 1), first_s / (first_s + making_s)


class Line:
    """A straight line through points, robustly: weighted ridge regression of a value on a load and on time, twice.

    The slope is drawn to a prior where the loads hardly differ. A drift over time is allowed for, but only a small one, so that a ramp
    of the load is not taken for a drift of the server (ridge regression: Hoerl and Kennard 1970). The second time, points far off the first
    line count less (Huber 1964).

    Args:
        loads: relative to the present one: 0 there, 1 at twice as much.
        times: 0 now, -1 at the far end of what is looked at.
        values: one per point; their noise is taken to be in proportion to them.
        weights: one per point.
        prior: the slope expected, relative to the value at the present load.
        noise: of a point's value, relative.
        slope_spread, drift_spread: how far the slope may well be from the prior, and the drift from none: standard deviations.
    """

    __slots__ = ("noise", "residuals", "slope")

    def __init__(
        self,
        loads: Sequence[float],
        times: Sequence[float],
        values: Sequence[float],
        weights: Sequence[float],
        prior: float,
        noise: float,
        slope_spread: float,
        drift_spread: float,
    ) -> None:
        expected = [max(0.2, 1 + prior * x) for x in loads]
        total = sum(weights) or 1e-9
        # In units of what is expected the noise is the same everywhere.
        rows = [(1 / ex, x / ex, t / ex) for ex, x, t in zip(expected, loads, times, strict=True)]
        unit = sum(w * y / ex for w, y, ex in zip(weights, values, expected, strict=True)) / total
        ys = [y / ex / unit for y, ex in zip(values, expected, strict=True)]
        ridges = (noise / slope_spread) ** 2, (noise / drift_spread) ** 2
        level, slope, drift = _solve(rows, ys, weights, prior, *ridges)
        off = self._off(rows, ys, level, slope, drift)
        self.noise = sum(w * abs(r) for w, r in zip(weights, off, strict=True)) / total * 1.25
        """Relative standard deviation of a value, from the mean distance to the line."""
        far = _HUBER * max(noise, self.noise)
        pulls = [w * min(1.0, far / abs(r)) if r else w for w, r in zip(weights, off, strict=True)]
        level, slope, drift = _solve(rows, ys, pulls, prior, *ridges)
        self.slope = slope / max(level, 1e-9)
        """Its relative growth per relative growth of the load, there."""
        self.residuals = self._off(rows, ys, level, slope, drift)
        """How far above the line each point lies, relative."""

    @staticmethod
    def _off(
        rows: Sequence[tuple[float, float, float]], ys: Sequence[float], level: float, slope: float, drift: float
    ) -> list[float]:
        return [y - level * one - slope * x - drift * t for (one, x, t), y in zip(rows, ys, strict=True)]


def _solve(
    rows: Sequence[tuple[float, float, float]],
    ys: Sequence[float],
    weights: Sequence[float],
    prior: float,
    slope_ridge: float,
    drift_ridge: float,
) -> tuple[float, float, float]:
    """Level, slope and drift with the least weighted squares, ridges added."""
    a = b = c = p = q = r = s = 0.0
    d, f = slope_ridge, drift_ridge
    for (one, x, t), y, w in zip(rows, ys, weights, strict=True):
        rest = y - prior * x
        a += w * one * one
        b += w * one * x
        c += w * one * t
        d += w * x * x
        f += w * t * t
        p += w * x * t
        q += w * one * rest
        r += w * x * rest
        s += w * t * rest
    # Symmetric 3 by 3, by elimination; the ridges keep it regular.
    a = a or 1e-9
    d2, p2, f2 = d - b * b / a, p - b * c / a, f - c * c / a
    r2, s2 = r - b * q / a, s - c * q / a
    determinant = d2 * f2 - p2 * p2
    more = (r2 * f2 - s2 * p2) / determinant
    drift = (s2 * d2 - r2 * p2) / determinant
    return (q - b * more - c * drift) / a, prior + more, drift
