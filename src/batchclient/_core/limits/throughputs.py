"""What throughput each load has brought lately, and whether one is a peak.

Why. Where throughput has a peak (as many conversations as a prefix cache holds), its slope changes within one swing from well above 0 to well below: a limit
that follows it circles about the peak, and a tenth and more of the throughput is lost on its flanks.

Rules:
- Loads are gathered in steps of a fifth (of the logarithm); one that was seen three times counts, for 20 paces of work: a pause does not age it.
- A peak is the load that brought most, if both a smaller and a larger one brought 15 % less: on a plateau or a slope noise alone hardly makes one.
  While it is stayed at, its sides are forgotten, and then it is looked for anew.

Source: the constants were chosen in the laboratory (``prefix``, ``one-token``, ``one-token-unsteady``). With 0.08 for what is clearly less one run of twenty of
``prefix`` settled on a plateau, at 0.67 of the throughput; with 0.12 an unsteady machine made peaks of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Throughputs"]

_STEP = 0.2
_LEAST_TIMES = 3
_NEWEST_SHARE = 0.1
_PACES = 20.0
_CLEARLY = 0.16
"""In logarithms."""


class _Seen(NamedTuple):
    times: int
    load: float
    """A mean of logarithms, as is the throughput."""
    throughput: float
    at: float


class Throughputs:
    """By load, while the server is the same."""

    __slots__ = ("_newest", "_now", "_seen")

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._newest = 0
        self._now = 0.0
        """In paces of work: what no call was made in does not age what is known."""

    def __repr__(self) -> str:
        return f"<Throughputs at {len(self._seen)} loads>"

    def forget_all(self) -> None:
        """Start anew."""
        self._seen.clear()

    def take_in(self, load: float, throughput: float, paces: float) -> None:
        """Take in what one more load brought.

        Args:
            load: sequences in flight.
            throughput: answers per second.
            paces: of work, since the last one.
        """
        self._now += paces
        oldest = self._now - _PACES
        for step in [step for step, seen in self._seen.items() if seen.at < oldest]:
            del self._seen[step]
        self._newest = round(math.log(load) / _STEP)
        before = self._seen.get(self._newest, _Seen(0, 0.0, 0.0, 0.0))
        share = max(_NEWEST_SHARE, 1 / (before.times + 1))
        self._seen[self._newest] = _Seen(
            before.times + 1,
            before.load + share * (math.log(load) - before.load),
            before.throughput + share * (math.log(throughput) - before.throughput),
            self._now,
        )

    def peak(self, elasticity: float) -> float | None:
        """The load that brought most, if both a smaller and a larger one brought clearly less; ``None``: not known.

        Args:
            elasticity: of throughput to load, that makes a larger load worth as much as a smaller one: so steep its lower side must be.
        """
        seen = {step: each for step, each in self._seen.items() if each.times >= _LEAST_TIMES}
        if len(seen) < 3:
            return None
        at = max(seen, key=lambda step: seen[step].throughput)
        peak = seen[at]
        clearly = [each for each in seen.values() if peak.throughput - each.throughput > _CLEARLY]
        below = any(
            each.load < peak.load and peak.throughput - each.throughput >= elasticity * (peak.load - each.load)
            for each in clearly
        )
        above = any(each.load > peak.load for each in clearly)
        return math.exp(peak.load) if below and above else None
