"""What a pilot's rows tell of the job's other rows: 90 % intervals for time, tokens and health.

- The pilot is a simple random sample. Forecast is the sum or the share over the *other* rows.
- Tokens: the regression estimator on the prompts' sizes, which are known of all rows (Cochran,
  *Sampling Techniques*, 1977, chapter 7), moved for skew (Johnson, JASA 73, 1978).
- Health: Wilson's interval (JASA 22, 1927), with the rows that a prediction of a share is worth.
- Time: a row is in flight for some seconds. Those of all rows, divided by what is in flight at
  once, are the time (Little's law). With more in flight a server answers no fewer rows a second,
  and no row sooner: the time is between that at the pilot's load and that at the job's with no row
  slowed down (Lazowska et al., *Quantitative System Performance*, 1984, chapter 5). The end of the
  job, when nothing is queued any more, is the pilot's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Interval", "Look", "seconds", "share", "total"]

_Z = 1.6449
"""90 % of the normal distribution lie within so many standard deviations."""
_ENOUGH = 30
"""Rows for a regression."""
_STEADY = 0.25
"""This share of a pilot's work tells how much is in flight while rows are queued."""
_UNSTEADY = 0.02
"""The standard deviation between the rates of two parts of one job, relative."""

Rows = Sequence[tuple[float, float]]
"""Of a pilot: the size of each prompt, and a number of its answer's."""


class Interval(NamedTuple):
    """Holds the truth in nine of ten jobs."""

    low: float
    high: float


class Look(NamedTuple):
    """What a client had in flight and in its queue at a time, seconds."""

    at: float
    in_flight: int
    queued: int


def share(count: int, rows: int, others: int) -> Interval:
    """Forecast the share of a kind, of which the pilot's rows had so many, among the others."""
    found, spread = count / rows, _Z * _Z * (1 / rows + 1 / others)
    middle = (found + spread / 2) / (1 + spread)
    reach = math.sqrt(spread * found * (1 - found) + spread**2 / 4) / (1 + spread)
    return Interval(middle - reach if count else 0.0, middle + reach if count < rows else 1.0)


def total(rows: Rows, others: int, mean_size: float) -> Interval:
    """Forecast the sum of the number over the other rows, whose prompts have this mean size."""
    mean, error = _mean(rows, others, mean_size)
    return _around(others * mean, others * error, len(rows))


def seconds(
    looks: Sequence[Look], limit: int, rows: Rows, others: int, mean_size: float, done: float | None = None
) -> Interval:
    """Forecast how long the other rows take.

    Args:
        looks: while the pilot ran.
        limit: sequences that may be in flight now.
        rows: of the pilot that were sent, with their output tokens.
        others, mean_size: as for ``total``.
        done: rows, of the mean length of ``rows``, that the looks have seen; ``None``: all of them.
    """
    spans = [(after.at - each.at, each) for each, after in pairwise(looks) if each.in_flight]
    area = sum(span * each.in_flight for span, each in spans)
    if not area:
        return Interval(0.0, 0.0)
    load = sum(span * each.in_flight**2 for span, each in spans) / area
    steady = float(max(limit, load))
    queued = [place for place, (_, each) in enumerate(spans) if each.queued]
    queued_area = sum(spans[place][0] * spans[place][1].in_flight for place in queued)
    if queued_area >= _STEADY * area:
        steady = queued_area / sum(spans[place][0] for place in queued)
    # Work goes with the prompts or with the answers; which, is not known.
    by_size = mean_size * len(rows) / (sum(size for size, _ in rows) or math.inf)
    mean, error = _mean(rows, others, mean_size)
    tokens = sum(number for _, number in rows) / len(rows)
    by_tokens, error = (mean / tokens, error / tokens) if tokens else (by_size, 0.0)
    work = area / (done or len(rows)) * others
    fast, slow = sorted((work / steady, work / load))
    middle = (fast + slow) / 2
    # A place between two bounds, each as likely as another: a twelfth of the square.
    doubts = ((slow - fast) ** 2 + (middle * (by_size - by_tokens)) ** 2) / 12
    reach = math.sqrt(middle**2 * (error**2 + _UNSTEADY**2) + doubts)
    last = queued[-1] if queued else max(range(len(spans)), key=lambda place: spans[place][1].in_flight)
    end = spans[last + 1 :] or spans[-1:]
    end_s = sum(span * (1 - each.in_flight / end[0][1].in_flight) for span, each in end)
    low, high = _around(middle * (by_size + by_tokens) / 2, reach, len(rows))
    return Interval(low + end_s, high + end_s)


def _mean(rows: Rows, others: int, mean_size: float) -> tuple[float, float]:
    """Estimate the mean of the number over the other rows; return it with its standard error."""
    count = len(rows)
    mean_x, mean_y = (sum(column) / count for column in zip(*rows, strict=True))
    squares = sum((x - mean_x) ** 2 for x, _ in rows)
    slope, away = 0.0, 0.0
    if count >= _ENOUGH and squares:
        slope = sum((x - mean_x) * (y - mean_y) for x, y in rows) / squares
        away = (mean_size - mean_x) ** 2 / squares
    residuals = [y - mean_y - slope * (x - mean_x) for x, y in rows]
    variance = sum(each**2 for each in residuals) / max(count - 2, 1)
    skew = sum(each**3 for each in residuals) / (6 * variance * count**2) if variance else 0.0
    error = math.sqrt(variance * (1 / count + 1 / others + away))
    return mean_y + slope * (mean_size - mean_x) + skew, error


def _around(middle: float, error: float, count: int) -> Interval:
    # Student's quantile, by its first term beside the normal one.
    reach = (_Z + (_Z**3 + _Z) / (4 * max(count - 1, 1))) * error
    return Interval(max(middle - reach, 0.0), max(middle + reach, 0.0))
