"""Percentiles, shares and means of few measurements, each with how far it can be trusted.

All intervals have a confidence of 95 %.

Rules:
- A percentile's interval is that of order statistics: it assumes nothing about the distribution
  (David and Nagaraja, *Order Statistics*, 2003, section 7.1).
- A share's interval is Wilson's score interval (Wilson, 1927), which holds near 0 and 1, too.
- A mean's interval over repetitions is Student's. One repetition has none, and two have none: it
  would be 6 times as long as their distance on either side, and say nothing.
- Several repetitions: a server's speed drifts, so that all calls together would promise too much.
  A percentile's interval then spans those of the repetitions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "mean_interval", "quantile", "quantile_interval", "ratio", "spanning", "t_95", "wilson"]

_Z = 1.959964
"""The normal distribution's 97.5th percentile."""
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's 97.5th percentiles for 1 to 15 degrees of freedom."""
_LEAST_REPETITIONS = 3
"""Fewer have no interval."""
_MOST_EXACT = 2000
"""Above so many values the binomial distribution is taken as normal."""


class Interval(NamedTuple):
    """Bounds within which a figure lies, with a confidence of 95 %.

    Args:
        low, high: the bounds; infinite where the values are too few to tell.
    """

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether a value lies in both."""
        return self.low <= other.high and other.low <= self.high

    def has(self, value: float) -> bool:
        """Whether the value lies within."""
        return self.low <= value <= self.high


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that a share of the values does not exceed.

    Args:
        ordered: at least one value, ascending.
        share: between 0 and 1.
    """
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered) - 1e-9) - 1))]


def quantile_interval(ordered: Sequence[float], share: float) -> Interval:
    """Return the interval of a percentile.

    Args:
        ordered: the values, ascending.
        share: the percentile / 100.
    """
    low, high = _ranks(len(ordered), share)
    # The values below the lowest and above the highest are unknown.
    return Interval(
        ordered[low - 1] if low >= 1 else -math.inf, ordered[high - 1] if high <= len(ordered) else math.inf
    )


def _ranks(count: int, share: float) -> tuple[int, int]:
    """Return the ranks, from 1, between which the percentile lies; 0 or ``count + 1``: outside."""
    if count > _MOST_EXACT:
        spread = _Z * math.sqrt(count * share * (1 - share))
        return max(0, math.floor(count * share - spread)), min(count + 1, math.ceil(count * share + spread) + 1)
    below, low, high = 0.0, 0, count + 1
    for rank in range(count + 1):
        # The number of values below the percentile is binomial.
        below += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(rank + 1)
            - math.lgamma(count - rank + 1)
            + rank * math.log(share)
            + (count - rank) * math.log1p(-share)
        )
        if below <= 0.025:
            low = rank + 1
        if below >= 0.975:
            high = rank + 1
            break
    return low, high


def wilson(hits: int, count: int) -> Interval:
    """Return the interval of a share: ``hits`` of ``count``."""
    if not count:
        return Interval(0.0, 1.0)
    share, square = hits / count, _Z * _Z
    centre = share + square / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    divisor = 1 + square / count
    low, high = (centre - spread) / divisor, (centre + spread) / divisor
    # The share itself lies within, whatever the rounding: all of 24 is 1.
    return Interval(max(0.0, min(share, low)), min(1.0, max(share, high)))


def t_95(freedom: int) -> float:
    """Return Student's 97.5th percentile.

    Args:
        freedom: degrees of freedom, 1 or more.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Within 0.001 of the tables (Abramowitz and Stegun, 26.7.5).
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean of some repetitions; ``None``: there are fewer than three."""
    if len(values) < _LEAST_REPETITIONS:
        return None
    mean = statistics.fmean(values)
    spread = t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - spread, mean + spread)


def spanning(intervals: Sequence[Interval]) -> Interval:
    """Return the interval that has all of these; there is one at least."""
    return Interval(min(each.low for each in intervals), max(each.high for each in intervals))


def ratio(ours: Sequence[float], theirs: Sequence[float], *, paired: bool) -> tuple[float, Interval | None]:
    """Return the ratio of two figures over repetitions, and its interval.

    Args:
        ours, theirs: positive figures, one for each repetition.
        paired: whether figures at the same place were measured next to each other: what slowed both
            is then left out.
    """
    logs, other = [math.log(each) for each in ours], [math.log(each) for each in theirs]
    if paired:
        between = [a - b for a, b in zip(logs, other, strict=True)]
        interval, middle = mean_interval(between), statistics.fmean(between)
    else:
        interval, middle = _difference(logs, other), statistics.fmean(logs) - statistics.fmean(other)
    return math.exp(middle), None if interval is None else Interval(*map(math.exp, interval))


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """Return the interval of a difference of means (Welch, 1947)."""
    if min(len(ours), len(theirs)) < _LEAST_REPETITIONS:
        return None
    a, b = statistics.variance(ours) / len(ours), statistics.variance(theirs) / len(theirs)
    middle = statistics.fmean(ours) - statistics.fmean(theirs)
    if not a + b:
        return Interval(middle, middle)
    freedom = (a + b) ** 2 / (a * a / (len(ours) - 1) + b * b / (len(theirs) - 1))
    spread = t_95(max(1, math.floor(freedom))) * math.sqrt(a + b)
    return Interval(middle - spread, middle + spread)
