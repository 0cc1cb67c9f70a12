"""What a pilot's rows tell of the other rows: 90 % intervals for time, tokens and health.

Rules:
- Pure: rows and times are arguments.
- The rows of a pilot are a simple random sample of the job's. What is forecast is the sum or the
  share over the *other* rows, so that a job of few other rows has no narrower interval than its
  rows allow.
- Tokens: the regression estimator on the prompts' sizes, which are known of all rows (Cochran,
  *Sampling Techniques*, 3rd edition, 1977, chapter 7), moved for skew (Johnson, JASA 73, 1978): few
  long answers make many of the tokens.
- Health: Wilson's interval (JASA 22, 1927), with the rows that a prediction of a share is worth.
- Time: a row holds its place in flight for some seconds. The seconds of all rows, divided by the
  places that are in use together, are the time (Little's law). With more in flight a server does
  not answer fewer rows a second, and answers no row sooner: the time is between that at the
  pilot's mean load and that at the job's with no row slowed down (asymptotic bounds; Lazowska et
  al., *Quantitative System Performance*, 1984, chapter 5). The end of a job, when nothing is queued
  any more, is the pilot's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Interval", "Load", "Sampled", "seconds", "share", "total"]

_Z = 1.6449
"""Of the normal distribution: 90 % lie within so many standard deviations."""
_ENOUGH = 30
"""Rows for a regression."""
_STEADY = 0.25
"""This share of a pilot's work tells how much is in flight while rows are queued."""
_STEADINESS = 0.02
"""How far the rates of two parts of one job differ, relative; of servers in simulation."""


class Interval(NamedTuple):
    """Holds the truth in nine of ten jobs."""

    low: float
    high: float


class Sampled(NamedTuple):
    """A row of a pilot: the size of its prompt in bytes, and a number of its answer's."""

    size: float
    number: float


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Of a mean over the other rows: its place and its standard error, the spread of a prediction."""

    mean: float
    error: float


def _mean_of_others(rows: Sequence[Sampled], others: int, mean_size: float) -> _Estimate:
    """Estimate the mean of a number over the other rows, whose prompts have this mean size."""
    count = len(rows)
    mean_x, mean_y = (sum(column) / count for column in zip(*rows, strict=True))
    squares = sum((row.size - mean_x) ** 2 for row in rows)
    slope, away = 0.0, 0.0
    if count >= _ENOUGH and squares > 0:
        slope = sum((row.size - mean_x) * (row.number - mean_y) for row in rows) / squares
        away = (mean_size - mean_x) ** 2 / squares
    residuals = [row.number - mean_y - slope * (row.size - mean_x) for row in rows]
    variance = sum(each**2 for each in residuals) / max(count - 1 - (slope != 0), 1)
    skew = sum(each**3 for each in residuals) / count / (6 * variance * count) if variance else 0.0
    return _Estimate(
        mean_y + slope * (mean_size - mean_x) + skew, math.sqrt(variance * (1 / count + 1 / others + away))
    )


def total(rows: Sequence[Sampled], others: int, mean_size: float) -> Interval:
    """Forecast the sum of a number over the other rows.

    Args:
        rows: of the pilot.
        others: the rows to come.
        mean_size: of their prompts.
    """
    if not others or not rows:
        return Interval(0.0, 0.0)
    estimate = _mean_of_others(rows, others, mean_size)
    reach = _t(len(rows)) * estimate.error
    return Interval(others * max(estimate.mean - reach, 0.0), others * max(estimate.mean + reach, 0.0))


def share(count: int, rows: int, others: int) -> Interval:
    """Forecast the share of a kind among the other rows.

    Args:
        count, rows: of the pilot, of the kind and in all.
        others: the rows to come.
    """
    worth = 1 / (1 / rows + 1 / others) if others else math.inf
    found, spread = count / rows, _Z * _Z / worth
    middle = (found + spread / 2) / (1 + spread)
    reach = math.sqrt(spread * found * (1 - found) + spread**2 / 4) / (1 + spread)
    return Interval(max(middle - reach, 0.0), min(middle + reach, 1.0))


class Load:
    """What was in flight while a pilot ran, as areas below its curve.

    Args:
        now: seconds, when the pilot began.

    Attributes:
        ends_at: when something was last in flight.
    """

    def __init__(self, now: float) -> None:
        self.ends_at: float = now
        self._at = now
        self._in_flight = 0
        self._is_queued = False
        self._area = self._square = self._queued_area = self._queued_s = 0.0
        self._dry: tuple[float, float, int] = now, 0.0, 0
        """When the queue ran dry, with the area by then and what was in flight."""

    def look(self, now: float, in_flight: int, queued: int) -> None:
        """Take in the sequences in flight and the calls that wait for a place."""
        seconds, before = now - self._at, self._in_flight
        area = before * seconds
        self._area += area
        self._square += before * area
        if self._is_queued and before:
            self._queued_area += area
            self._queued_s += seconds
        if self._is_queued or in_flight > before:
            self._dry = now, self._area, in_flight
        self._at, self._in_flight, self._is_queued = now, in_flight, queued > 0
        if before:
            self.ends_at = now

    @property
    def area(self) -> float:
        """Seconds in flight, of all sequences together."""
        return self._area

    @property
    def mean(self) -> float:
        """What was in flight where a sequence was."""
        return self._square / self._area if self._area else 0.0

    def steady(self, limit: float) -> float:
        """What is in flight while calls are queued; of a pilot that was too short, the limit."""
        is_known = self._queued_area >= _STEADY * self._area > 0
        return self._queued_area / self._queued_s if is_known else max(limit, self.mean)

    @property
    def end_s(self) -> float:
        """How much longer a job takes for its end, where ever fewer sequences are in flight."""
        dry_at, area, in_flight = self._dry
        return max(self.ends_at - dry_at - (self._area - area) / max(in_flight, 1), 0.0)


def seconds(load: Load, limit: float, sent: Sequence[Sampled], others: int, mean_size: float) -> Interval:
    """Forecast how long the other rows take.

    Args:
        load: of the pilot.
        limit: sequences that may be in flight now.
        sent: the rows of the pilot that were sent, with the tokens of their answers.
        others: the rows to send.
        mean_size: of their prompts.
    """
    if not (others and sent and load.area):
        return Interval(0.0, 0.0)
    sampled_size = sum(row.size for row in sent) / len(sent)
    sampled_tokens = sum(row.number for row in sent) / len(sent)
    # Work goes with the prompts or with the answers; which, is not known.
    of_prompts = mean_size / sampled_size if sampled_size else 1.0
    of_answers, spread = of_prompts, 0.0
    if sampled_tokens:
        estimate = _mean_of_others(sent, others, mean_size)
        of_answers, spread = estimate.mean / sampled_tokens, estimate.error / sampled_tokens
    work = load.area / len(sent) * others
    fast, slow = sorted((work / load.steady(limit), work / load.mean))
    middle = (fast + slow) / 2
    centre = middle * (of_prompts + of_answers) / 2
    # A place between two bounds, each as likely as another: a twelfth of the square.
    doubts = ((slow - fast) ** 2 + (middle * (of_prompts - of_answers)) ** 2) / 12
    reach = _t(len(sent)) * math.sqrt(middle**2 * (spread**2 + _STEADINESS**2) + doubts)
    return Interval(max(centre - reach, 0.0) + load.end_s, centre + reach + load.end_s)


def _t(count: int) -> float:
    """Return Student's quantile for a sample of so many, by its first term beside the normal one."""
    return _Z + (_Z**3 + _Z) / (4 * max(count - 1, 1))
