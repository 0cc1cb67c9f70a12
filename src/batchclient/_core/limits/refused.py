"""Refusals (429, 503): whether load is the cause.

Rules:
- A refusal is about load unless as much load was served, or less was refused as well.
- *Served*: of the last answers under as much load, eight times as many were served as refused.
- *Refused as well*: by chance, the share refused well below would bring as many refusals here. Less
  load would then not help.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["CHANCE", "Refusals", "poisson_tail"]

_KEPT = 1024
_SERVED_RATIO = 8
_NEAR_RATIO = 0.8
CHANCE = 0.05
"""Rarer results are no chance: the usual level of a one-sided test."""


class Refusals:
    """Recently served and refused sequences, by the load at their sending."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        self._met: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        """(load met, sequences served; refused ones are negative), the newest first."""

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        if sample.outcome is Outcome.SUCCESS:
            self._met.appendleft((sample.in_flight_at_sent, sample.sequences))
        elif sample.outcome is Outcome.DROPPED:
            self._met.appendleft((sample.in_flight_at_sent, -sample.sequences))

    def about_load(self, load: int) -> bool:
        """Whether load caused a refusal that met ``load`` (taken in already)."""
        served, refused, _ = _count(size for met, size in self._met if met >= load)
        if served >= _SERVED_RATIO * refused:
            return False
        border = _NEAR_RATIO * load
        served, refused, times = _count(size for met, size in self._met if met >= border)
        served_below, refused_below, _ = _count(size for met, size in self._met if met < border)
        if not refused_below:
            return True
        share_below = refused_below / (served_below + refused_below)
        # Lists are refused whole: lists are counted, not their sequences.
        requests = times * (served + refused) / refused
        return poisson_tail(times, requests * share_below) < CHANCE


def _count(sizes: Iterable[int]) -> tuple[int, int, int]:
    """Return sequences served, sequences refused, and the number of refusals."""
    served = refused = times = 0
    for size in sizes:
        if size > 0:
            served += size
        else:
            refused -= size
            times += 1
    return served, refused, times


def poisson_tail(times: int, expected: float) -> float:
    """The chance of at least so many."""
    term = below = math.exp(-expected)
    for count in range(1, times):
        term *= expected / count
        below += term
    return 1 - below
