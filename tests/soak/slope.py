"""Does a series grow? A line through samples that a few outliers do not move, and what growth is too much."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST_BYTES", "LEAK_BYTES_PER_CALL", "LEAK_CONNECTIONS", "Verdict", "judge", "slope"]

LEAK_BYTES_PER_CALL = 100.0
"""More is a leak. The smallest thing that can be forgotten per call, a ``Request`` with its prompt, has over 200 bytes."""
LEAST_BYTES = 4 * 1024 * 1024
"""Growth of the whole run below which memory is not judged: what the allocator and the caches still move after the warm-up."""
LEAK_CONNECTIONS = 8.0
"""Growth of the whole run, in sockets that the server closed and the client has not yet. Hundreds of connections are cut and thousands
of calls cancelled meanwhile, so a leak of one in a hundred is far more."""
_MOST_POINTS = 300
"""Pairs grow with the square; more points than this are thinned."""


@dataclass(frozen=True)
class Verdict:
    """One series' growth over the time that was judged.

    Args:
        name: of the series.
        per_s: the fitted slope.
        growth: slope times time.
        allowed: the growth that passes.
        first, last: medians of the first and last tenth.
    """

    name: str
    per_s: float
    growth: float
    allowed: float
    first: float
    last: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Theil and Sen's: the median of the slopes of all pairs. A third of the samples may lie anywhere."""
    step = -(-len(values) // _MOST_POINTS)
    points = list(zip(times_s[::step], values[::step], strict=True))
    slopes = [(y - v) / (x - u) for i, (u, v) in enumerate(points) for x, y in points[i + 1 :] if x > u]
    if not slopes:
        raise ValueError("a slope needs two samples")
    return statistics.median(slopes)


def judge(name: str, times_s: Sequence[float], values: Sequence[float], allowed: float) -> Verdict:
    per_s = slope(times_s, values)
    tenth = max(1, len(values) // 10)
    first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
    return Verdict(name, per_s, per_s * (times_s[-1] - times_s[0]), allowed, first, last)
