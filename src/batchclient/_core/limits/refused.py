"""Refusals: whether load is the cause.

A refusal is about load, unless as much load is mostly served: of the last answers under as much
load, eight times as many were served as refused. That less load was refused as well says nothing:
far above a server's own bound all is refused, and less of it, too.
"""

from __future__ import annotations

from collections import deque

from batchclient._core.limits.base import Outcome, Sample

__all__ = ["Refusals"]

_KEPT = 1024
_SERVED_RATIO = 8


class Refusals:
    """Recently served and refused sequences, by the load at their sending."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        self._met: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        """(load met, sequences served; refused ones are negative)."""

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        if sample.outcome is Outcome.SUCCESS:
            self._met.append((sample.in_flight_at_sent, sample.sequences))
        elif sample.outcome is Outcome.DROPPED:
            self._met.append((sample.in_flight_at_sent, -sample.sequences))

    def about_load(self, load: int) -> bool:
        """Whether load caused a refusal that met ``load`` (taken in already)."""
        sizes = [size for met, size in self._met if met >= load]
        refused = -sum(size for size in sizes if size < 0)
        return sum(sizes) + refused < _SERVED_RATIO * refused
