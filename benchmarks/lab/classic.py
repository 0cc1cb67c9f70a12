"""Limit algorithms of others, written anew from their rules, for comparison only.

Sources (``control-and-faults.md`` §A1 names the commits that were read): Netflix concurrency-limits' ``VegasLimit`` and ``Gradient2Limit``; Vector's
adaptive request concurrency; failsafe-go's adaptive limiter. Constants are theirs. Two things are not: every ceiling is 1,024, since theirs (200 to
1,000) would decide the comparison, and what they call a request is here a sample, some sequences of one batch that ended together.

All are fed the round-trip time: of a sample, from the batch's sending to its answer. ``per_token`` feeds the time per generated token instead.
"""

from __future__ import annotations

import math
import random
from collections import deque

from batchclient._core.limits import LimitChange, Outcome, Sample

CEILING = 1024


class _Classic:
    """A number, and the change of it."""

    def __init__(self, start: float) -> None:
        self._exact = start
        self.limit = round(start)

    def _set(self, exact: float, floor: float, reason: str) -> LimitChange | None:
        self._exact = max(floor, min(float(CEILING), exact))
        if int(self._exact) == self.limit:
            return None
        self.limit = max(1, int(self._exact))
        return LimitChange(self.limit, reason)


class VegasLimit(_Classic):
    """Netflix's Vegas: queue = L (1 - noload / rtt), kept between 3 and 6 log10 L.

    The smallest round trip ever seen stands for an empty server; it is measured anew every 30 L U(0.5, 1) samples.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(20)
        self._rng = random.Random(seed)
        self._noload_s = 0.0
        self._probe_in = self._next_probe()

    def _next_probe(self) -> float:
        return 30 * self._exact * self._rng.uniform(0.5, 1.0)

    def on_sample(self, sample: Sample) -> LimitChange | None:
        rtt_s = sample.now - sample.sent_at
        if rtt_s <= 0 or sample.outcome is Outcome.IGNORED:
            return None
        limit = self._exact
        step = max(1.0, math.log10(limit))
        if sample.outcome is Outcome.DROPPED:
            return self._set(limit - step, 1, "dropped")
        self._probe_in -= 1
        if self._probe_in <= 0:
            self._probe_in = self._next_probe()
            self._noload_s = rtt_s
            return None
        if not self._noload_s or rtt_s < self._noload_s:
            self._noload_s = rtt_s
            return None
        if sample.in_flight * 2 < limit:
            return None
        queue = math.ceil(limit * (1 - self._noload_s / rtt_s))
        if queue <= step:
            limit += 6 * step
        elif queue < 3 * step:
            limit += step
        elif queue > 6 * step:
            limit -= step
        return self._set(limit, 1, f"queue {queue}")


class Gradient2Limit(_Classic):
    """Netflix's Gradient2: L g + 4, smoothed by 0.2, with g = 1.5 long / short between 0.5 and 1.

    ``short`` is the mean of a window of 1 s and at least 10 samples, ``long`` an average over 600 of them. It takes no notice of drops.
    """

    def __init__(self, *, per_token: bool = False) -> None:
        super().__init__(20)
        self._per_token = per_token
        self._long_s = 0.0
        self._windows = 0
        self._began: float | None = None
        self._seconds = self._units = 0.0
        self._count = 0
        self._peak = 0

    def on_sample(self, sample: Sample) -> LimitChange | None:
        if sample.outcome not in (Outcome.SUCCESS, Outcome.WASTED):
            return None
        if self._began is None:
            self._began = sample.now
        self._seconds += (sample.now - sample.sent_at) * sample.sequences
        self._units += sample.completion_tokens if self._per_token else sample.sequences
        self._count += 1
        self._peak = max(self._peak, sample.in_flight)
        if self._count < 10 or sample.now - self._began < 1.0 or not self._units:
            return None
        short_s, peak = self._seconds / self._units, self._peak
        self._began, self._seconds, self._units, self._count, self._peak = None, 0.0, 0.0, 0, 0
        return self._update(short_s, peak)

    def _update(self, short_s: float, peak: int) -> LimitChange | None:
        self._windows += 1
        if self._windows <= 10:
            self._long_s += (short_s - self._long_s) / self._windows
        else:
            self._long_s += 2 / 601 * (short_s - self._long_s)
        if self._long_s > 2 * short_s:
            self._long_s *= 0.95
        limit = self._exact
        if peak * 2 < limit:
            return None
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / short_s))
        return self._set(0.8 * limit + 0.2 * (limit * gradient + 4), 20, f"gradient {gradient:.2f}")


class VectorLimit(_Classic):
    """Vector's adaptive request concurrency: one decision per mean round trip.

    +1 if the limit was reached and the round trips were no longer than their moving mean (weight 0.4); x 0.9 on a drop or when they were more than 2.5
    deviations longer.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._mean_s = 0.0
        self._variance = 0.0
        self._decide_at = -math.inf
        self._seconds = 0.0
        self._count = 0
        self._reached = self._dropped = False

    def on_sample(self, sample: Sample) -> LimitChange | None:
        if sample.outcome is Outcome.IGNORED:
            return None
        self._reached |= sample.in_flight >= self.limit
        if sample.outcome is Outcome.DROPPED:
            self._dropped = True
        else:
            self._seconds += (sample.now - sample.sent_at) * sample.sequences
            self._count += sample.sequences
        if sample.now < self._decide_at or not self._count:
            return None
        now_s = self._seconds / self._count
        change = self._decide(now_s)
        if not self._mean_s:
            self._mean_s = now_s
        else:
            off = now_s - self._mean_s
            self._mean_s += 0.4 * off
            self._variance = 0.6 * (self._variance + 0.4 * off * off)
        self._decide_at = sample.now + self._mean_s
        self._seconds, self._count = 0.0, 0
        self._reached = self._dropped = False
        return change

    def _decide(self, now_s: float) -> LimitChange | None:
        if not self._mean_s:
            return None
        deviation = 2.5 * math.sqrt(self._variance)
        if self._dropped or now_s >= self._mean_s + max(deviation, 1e-9):
            return self._set(self._exact * 0.9, 1, "slower than usual")
        if self._reached and now_s <= self._mean_s:
            return self._set(self._exact + 1, 1, "no slower than usual")
        return None


class FailsafeLimit(_Classic):
    """failsafe-go's adaptive limiter: Vegas on the 90th percentile, with correlations to tell overload from noise.

    A window is at least 50 samples and 1 s. Its 90th percentile, smoothed by a median of 5 and an average over 5, is compared with an average over 10
    windows. Over the last 50 windows the limit's load is correlated with throughput and with the round trip; load that brings no throughput, or
    round trips that grow with load at a steady throughput, are overload. The limit is never above 5 times what is in flight.
    """

    def __init__(self) -> None:
        super().__init__(20)
        self._began: float | None = None
        self._rtts: list[float] = []
        self._peak = 0
        self._medians: deque[float] = deque(maxlen=5)
        self._short_s = self._long_s = 0.0
        self._history: deque[tuple[float, float, float]] = deque(maxlen=50)

    def on_sample(self, sample: Sample) -> LimitChange | None:
        if sample.outcome is Outcome.DROPPED:
            return self._set(self._exact - max(1.0, math.log10(self._exact)), 1, "dropped")
        if sample.outcome is Outcome.IGNORED:
            return None
        if self._began is None:
            self._began = sample.now
        self._rtts.append(sample.now - sample.sent_at)
        self._peak = max(self._peak, sample.in_flight)
        if len(self._rtts) < 50 or sample.now - self._began < 1.0:
            return None
        p90_s, peak = sorted(self._rtts)[int(0.9 * len(self._rtts))], self._peak
        self._began, self._rtts, self._peak = None, [], 0
        return self._update(p90_s, peak)

    def _update(self, p90_s: float, peak: int) -> LimitChange | None:
        self._medians.append(p90_s)
        middle_s = sorted(self._medians)[len(self._medians) // 2]
        self._short_s += (2 / 6 if self._short_s else 1.0) * (middle_s - self._short_s)
        self._long_s += (2 / 11 if self._long_s else 1.0) * (self._short_s - self._long_s)
        throughput = peak / self._short_s
        self._history.append((float(peak), throughput, self._short_s))
        limit = self._exact
        step = max(1.0, math.log10(limit))
        queue = limit * (1 - self._long_s / self._short_s)
        if self._overloaded() or queue > 6 * step:
            limit -= step
        elif queue < 3 * step:
            limit += step
        return self._set(min(limit, 5.0 * peak), 1, f"queue {queue:.1f}")

    def _overloaded(self) -> bool:
        if len(self._history) < 10:
            return False
        loads, throughputs, rtts = zip(*self._history, strict=True)
        by_throughput = _correlation(loads, throughputs)
        by_rtt = _correlation(loads, rtts)
        mean = sum(throughputs) / len(throughputs)
        spread = math.sqrt(sum((each - mean) ** 2 for each in throughputs) / len(throughputs)) / mean
        return by_throughput < 0 or (by_rtt > 0.5 and (by_throughput < 0.3 or spread < 0.2))


def _correlation(xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    xx = sum((x - mean_x) ** 2 for x in xs)
    yy = sum((y - mean_y) ** 2 for y in ys)
    return xy / math.sqrt(xx * yy) if xx and yy else 0.0
