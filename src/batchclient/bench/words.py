"""Figures as people write them: numbers of three digits, shares, durations in a unit, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from batchclient.bench.intervals import Interval

__all__ = ["UNKNOWN", "Unit", "in_brackets", "number", "share", "unit_of"]

UNKNOWN = "–"
"""A figure that nothing tells."""
_IN_SECONDS_FROM = 10.0
"""From this duration on a column is in seconds."""


def number(value: float) -> str:
    """Return a number as people write it: three digits, at most three decimals, thousands apart."""
    value = round(float(f"{value:.3g}"), 3) if abs(value) < 100 else value
    if not value or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{min(3, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def share(value: float) -> str:
    """Return a share as a percentage; 100 % and 0 % are said of all and none alone."""
    percent = f"{value * 100:.1f}"
    if percent == "100.0":
        return "100 %" if value >= 1 else "99.9 %"
    if percent == "0.0":
        return "0 %" if value <= 0 else "0.1 %"
    return f"{percent} %"


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a column of durations.

    Args:
        name: ``ms`` or ``s``.
        per_s: how many make a second.
    """

    name: str
    per_s: float

    def shown(self, seconds: float) -> str:
        """Return a duration without its unit."""
        return number(seconds * self.per_s) if math.isfinite(seconds) else UNKNOWN


def unit_of(durations: Iterable[float]) -> Unit:
    """Return the unit for some durations, seconds."""
    return Unit("s", 1) if max(durations, default=0.0) >= _IN_SECONDS_FROM else Unit("ms", 1000)


def in_brackets(interval: Interval | None, write: Callable[[float], str] = number) -> str:
    """Return an interval in brackets; nothing where there is none.

    Args:
        interval: of a figure that is never below 0.
        write: writes an end of the interval.
    """
    if interval is None:
        return ""
    return f"[{', '.join(write(max(0.0, end)) if math.isfinite(end) else UNKNOWN for end in interval)}]"
