"""The knee of a server that batches continuously, found from what its answers took.

What is measured. Every answered sequence was served under some mean load ``N`` (the time-average of sequences in flight between its
sending and its end, ``Sample.mean_in_flight``) and took some time per token of work, ``tau``. By Little's law the throughput under that
load is ``X = N / tau``, so that the elasticity of throughput to load is::

    e = d ln X / d ln N = 1 - d ln tau / d ln N

``e`` is 1 while more load costs nobody any time, 0 on the plateau, negative where the server thrashes. It is estimated as one minus
the slope of a straight line through the recent points (ln N, ln tau). Because each point carries the load *it* was served under, there
are no levels to settle and nothing to discard after a change: answers begun before it count, with the mixture of loads they saw.

What is done with it.
- The limit follows ``d ln L / dt = gain · (e - target) / latency``: up while throughput grows with load, down where it does not.
  The same law is the slow start (``e`` near 1), the approach (``e`` falling) and the retreat (``e`` below the target).
- So that there is a slope to see, the limit swings a little above and below its base, in turn, about once per latency.
- Work counts when somebody got it: time spent on answers nobody waited for any more adds to ``tau``, with no token.
- A refusal (429, 503) cuts the base, once per episode, and bounds it for a while just below where it happened.
- If the newest points all lie far off the line, the server has changed: older points are dropped.
- Where the limit is not used (less than 0.8 of it in flight) it does not grow.

Sources: Little 1961; the target and the work of a prompt token are those of the design's controller study, the other constants were chosen in
the laboratory (``benchmarks/lab``) over all its profiles.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from batchclient._core.limits.base import LimitChange, Outcome, Sample

__all__ = ["OBJECTIVES", "KneeLimit"]

OBJECTIVES = {"throughput": 0.05, "balanced": 0.1, "latency": 0.5}
"""The elasticity aimed at. At 0.1 one per cent more load still brings a tenth of a per cent more throughput."""

_PROMPT_TOKEN_WORK = 0.05
"""The work of one prompt token, in output tokens (``control-and-faults.md`` §A4.1): it matters only where their mixture changes."""
_GAIN = 0.7
_SWING_RATIO = 0.12
_HORIZON_LATENCIES = 6.0
_LEAST_POINTS = 4
_MOST_POINTS = 64
_POINTS_PER_LATENCY = 4
_PRIOR_VARIANCE = 0.25
_POINT_NOISE = 0.05
_FAR = 0.3
_FAR_POINTS = 3
_USED_RATIO = 0.8
_CUT_RATIO = 0.8
_BOUND_RATIO = 0.95
_BOUND_LASTS_S = 30.0
_FUTILE_CUT_RATIO = 0.7


class _Point(NamedTuple):
    """Some answers that ended one after another."""

    at: float
    log_load: float
    log_tau: float
    weight: float


class KneeLimit:
    """Token-throughput elasticity, aimed just past the knee.

    Args:
        start: the first limit.
        floor: never below this.
        ceiling: never above this.
        target: the elasticity aimed at (``OBJECTIVES``).
    """

    __slots__ = (
        "_base",
        "_bound",
        "_bound_until",
        "_ceiling",
        "_cohort",
        "_cooldown_until",
        "_elasticity",
        "_floor",
        "_latency_s",
        "_points",
        "_started_at",
        "_steered_at",
        "_swing",
        "_swung_at",
        "_target",
        "limit",
    )

    def __init__(self, start: int = 32, floor: int = 1, ceiling: int = 1024, target: float = 0.1) -> None:
        if not 1 <= floor <= start <= ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, got {floor}, {start}, {ceiling}")
        if not 0 < target < 1:
            raise ValueError(f"the target elasticity lies between 0 and 1, got {target}")
        self.limit = start
        self._base = float(start)
        self._floor = floor
        self._ceiling = ceiling
        self._target = target
        self._elasticity = 1.0
        self._latency_s = 0.0
        self._points: deque[_Point] = deque(maxlen=_MOST_POINTS)
        self._cohort = _Cohort()
        self._started_at: float | None = None
        self._steered_at: float | None = None
        self._swing = 1.0
        self._swung_at = 0.0
        self._cooldown_until = -math.inf
        self._bound = math.inf
        self._bound_until = -math.inf

    def __repr__(self) -> str:
        return f"<KneeLimit {self.limit}: elasticity {self._elasticity:.2f}>"

    @property
    def elasticity(self) -> float:
        """The last estimate."""
        return self._elasticity

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        if sample.outcome is Outcome.DROPPED:
            return self._cut(sample)
        if sample.outcome is Outcome.IGNORED:
            return None
        cohort = self._cohort
        cohort.add(sample)
        if (
            cohort.sequences < max(4, self.limit // 8)
            or sample.now - cohort.began < self._latency_s / _POINTS_PER_LATENCY
        ):
            return None
        self._cohort = _Cohort()
        return self._steer(cohort, sample.now)

    def on_restart(self, now: float) -> LimitChange | None:
        """The server was started anew: what was learnt of it is void."""
        self._points.clear()
        self._elasticity = 1.0
        self._bound = math.inf
        return None

    # One step of the loop ------------------------------------------------------------------------------------------

    def _steer(self, cohort: _Cohort, now: float) -> LimitChange | None:
        latency_s = cohort.seconds / cohort.sequences
        self._latency_s += 0.3 * (latency_s - self._latency_s) if self._latency_s else latency_s
        elapsed = (
            min(now - self._steered_at, self._latency_s)
            if self._steered_at is not None
            else self._latency_s / _POINTS_PER_LATENCY
        )
        self._steered_at = now
        if not cohort.work:
            # Nobody got anything: everything timed out.
            self._base *= _FUTILE_CUT_RATIO ** (elapsed / self._latency_s)
            return self._set(now, "no answer came in time")
        self._points.append(
            _Point(now, math.log(cohort.load), math.log(cohort.seconds / cohort.work), float(cohort.sequences))
        )
        self._forget(now)
        self._estimate()
        push = max(-1.0, min(1.0, self._elasticity - self._target))
        if push > 0 and cohort.peak < _USED_RATIO * self.limit:
            push = 0.0
        self._base *= math.exp(_GAIN * push * elapsed / self._latency_s)
        if now >= self._bound_until:
            self._bound = math.inf
        self._base = max(float(self._floor), min(self._base, float(self._ceiling), self._bound))
        if now - self._swung_at >= self._latency_s:
            self._swing = -self._swing
            self._swung_at = now
        return self._set(now, f"elasticity {self._elasticity:.2f}, aiming at {self._target}")

    def _forget(self, now: float) -> None:
        points = self._points
        oldest = now - _HORIZON_LATENCIES * self._latency_s
        while len(points) > _LEAST_POINTS and points[0].at < oldest:
            points.popleft()

    def _estimate(self) -> None:
        """Fit the line; if the newest points all lie off it on one side, fit it to them alone."""
        points = list(self._points)
        if len(points) < 2:
            return
        slope, _ = _line(points, 1 - self._elasticity)
        newest = points[-_FAR_POINTS:]
        if len(points) > 2 * _FAR_POINTS:
            earlier = points[:-_FAR_POINTS]
            old_slope, old_intercept = _line(earlier, 1 - self._elasticity)
            off = [point.log_tau - old_intercept - old_slope * point.log_load for point in newest]
            if min(off) > _FAR or max(off) < -_FAR:
                self._points = deque(newest, maxlen=_MOST_POINTS)
                slope, _ = _line(newest, 1 - self._elasticity)
        self._elasticity = max(-1.5, min(1.5, 1 - slope))

    # Refusals ------------------------------------------------------------------------------------------------------

    def _cut(self, sample: Sample) -> LimitChange | None:
        if sample.now < self._cooldown_until or sample.admitted_at > self.limit:
            return None
        self._cooldown_until = sample.now + max(self._latency_s, 1.0)
        self._bound = max(float(self._floor), _BOUND_RATIO * min(self._base, sample.in_flight))
        self._bound_until = sample.now + _BOUND_LASTS_S
        self._base = max(float(self._floor), min(self._base * _CUT_RATIO, self._bound))
        return self._set(sample.now, "the server refused work")

    def _set(self, now: float, reason: str) -> LimitChange | None:
        swing = max(1.0, _SWING_RATIO * self._base) * self._swing
        limit = round(min(self._base + swing, self._bound, self._ceiling))
        limit = max(self._floor, limit)
        if limit == self.limit:
            return None
        self.limit = limit
        return LimitChange(limit, reason)


class _Cohort:
    """Sums over some samples."""

    __slots__ = ("_area", "began", "peak", "seconds", "sequences", "work")

    def __init__(self) -> None:
        self.began = math.inf
        self.sequences = 0
        self.seconds = 0.0
        self.work = 0.0
        self.peak = 0
        self._area = 0.0

    def add(self, sample: Sample) -> None:
        seconds = sample.sequences * (sample.now - sample.sent_at)
        self.began = min(self.began, sample.now)
        self.sequences += sample.sequences
        self.seconds += seconds
        self.work += sample.completion_tokens + (
            _PROMPT_TOKEN_WORK * sample.prompt_tokens if sample.outcome is Outcome.SUCCESS else 0.0
        )
        self._area += seconds * sample.mean_in_flight
        self.peak = max(self.peak, sample.in_flight)

    @property
    def load(self) -> float:
        """The mean load, weighted by time."""
        return max(1.0, self._area / self.seconds)


def _line(points: list[_Point], prior_slope: float) -> tuple[float, float]:
    """Weighted least squares of ln tau on ln N, the slope drawn to a prior where the points say little.

    Returns:
        Slope and intercept.
    """
    total = sum(point.weight for point in points)
    mean_x = sum(point.weight * point.log_load for point in points) / total
    mean_y = sum(point.weight * point.log_tau for point in points) / total
    count = len(points)
    # In units of points: weights say how they compare, not how many there are.
    xx = sum(point.weight * (point.log_load - mean_x) ** 2 for point in points) * count / total
    xy = sum(point.weight * (point.log_load - mean_x) * (point.log_tau - mean_y) for point in points) * count / total
    ridge = _POINT_NOISE**2 / _PRIOR_VARIANCE
    slope = (xy + ridge * prior_slope) / (xx + ridge)
    return slope, mean_y - slope * mean_x
