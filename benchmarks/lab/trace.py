"""The record of one client's run."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = ["Trace"]


@dataclass(slots=True)
class Trace:
    """Figures of one run.

    ``ends``, ``tokens`` and ``latencies_s`` have one entry per answered call, in order of time.
    Latency counts from when a call was sent. Where no workload fills the client's queue on purpose
    (``Running.latency_from_asked``) latency counts from when the call was asked.
    """

    duration_s: float
    ends: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    limits: list[tuple[float, int]] = field(default_factory=list)
    """(when, limit), from the start on."""
    changes: list[tuple[float, int, str]] = field(default_factory=list)
    """(when, limit, reason)."""
    in_flight: list[int] = field(default_factory=list)
    """One sample a second, from 0 on."""
    useful: list[float] = field(default_factory=list)
    """Useful tokens generated until then, one sample a second."""
    urgent: list[tuple[float, float]] = field(default_factory=list)
    """(when answered, seconds since it was asked), of calls of a higher class; not in ``ends``."""
    urgent_queued_s: list[float] = field(default_factory=list)
    """Of those calls: seconds until they were sent last."""
    submitted: int = 0
    resolved: int = 0
    failed: int = 0
    left: int = 0
    """Calls that had not ended when the run did."""
    requests: int = 0
    prompts: int = 0
    refused: int = 0
    """Requests that were answered with 429."""
    cut: int = 0
    """Requests that ended with a 504 or a closed connection."""
    over_limit: int = 0
    """Batches that were granted above the limit in force though something else was in flight."""
    rejected: int = 0
    generated_tokens: int = 0

    def throughput(self, begin_s: float, end_s: float) -> float:
        """Return useful tokens generated per second.

        Tokens of answers that came are useful, and tokens so far of answers that a caller waits
        for. The tokens delivered in a time say less: an algorithm that lowers its limit delivers
        tokens that were generated before.
        """
        return (self._useful(end_s) - self._useful(begin_s)) / (end_s - begin_s)

    def _useful(self, at_s: float) -> float:
        place = min(at_s, len(self.useful) - 1)
        before = int(place)
        after = min(before + 1, len(self.useful) - 1)
        return self.useful[before] + (place - before) * (self.useful[after] - self.useful[before])

    def latency_s(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Mean and 95th percentile of the calls that ended in between."""
        first, last = bisect_left(self.ends, begin_s), bisect_left(self.ends, end_s)
        window = sorted(self.latencies_s[first:last])
        if not window:
            return math.nan, math.nan
        return sum(window) / len(window), window[min(len(window) - 1, int(0.95 * len(window)))]

    def urgent_wait_s(self, begin_s: float, end_s: float) -> float:
        """Mean wait of the calls of a higher class answered in between; NaN if none was."""
        waits = [waited_s for at, waited_s in self.urgent if begin_s <= at < end_s]
        return sum(waits) / len(waits) if waits else math.nan

    def mean_limit(self, begin_s: float, end_s: float) -> float:
        """Its average over time."""
        area, (at, limit) = 0.0, self.limits[0]
        for next_at, next_limit in [*self.limits[1:], (end_s, 0)]:
            area += max(0.0, min(next_at, end_s) - max(at, begin_s)) * limit
            at, limit = next_at, next_limit
        return area / (end_s - begin_s)
