"""One endpoint's limit in force: a number found or given, its bounds, and a pin.

Rules:
- In force is the pin, if set. Else the smallest of the number, the bound by refusals and late
  answers, and the objectives' bounds is in force; never below 1.
- The reason is that of the number in force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchclient._core.limits.base import FixedLimit, Limit, LimitChange, Sample, ServerLoad
from batchclient._core.limits.bounds import Bounds
from batchclient._core.limits.objective import Objective

__all__ = ["LimitControl"]


class LimitControl(Limit):
    """The limit in force on one endpoint: a number found or given, lowered by any objective."""

    __slots__ = ("_bounds", "_number", "_objectives", "_pinned")

    def __init__(self, number: Limit, objectives: Sequence[Objective] = ()) -> None:
        super().__init__(number.limit, number.reason)
        self._number = number
        self._objectives = tuple(objectives)
        given = type(number) is FixedLimit
        self._bounds = Bounds(lateness=not given)
        self._pinned: int | None = None

    def on_sample(self, sample: Sample) -> LimitChange | None:
        if self._bounds.on_sample(sample, self.limit):
            self._number.on_bound(sample.now)
        if self._pinned is None:
            # The load under a pin is not the number's doing.
            self._number.on_sample(sample)
        for objective in self._objectives:
            objective.on_sample(sample)
        return self._decide()

    def on_load(self, load: ServerLoad, in_flight: int, now: float, took_s: float = 0.0) -> LimitChange | None:
        if self._pinned is None:
            self._number.on_load(load, in_flight, now, took_s)
        return self._decide()

    def on_known(self, slots: int | None, now: float) -> LimitChange | None:
        self._number.on_known(slots, now)
        return self._decide()

    def on_resume(self, now: float) -> LimitChange | None:
        self._number.on_resume(now)
        return self._decide()

    def interrupt(self, now: float) -> LimitChange | None:
        self._number.interrupt(now)
        return self._decide()

    def on_restart(self, now: float, guess: int | None = None) -> LimitChange | None:
        # The number in force is the best guess, unless it is on trial. Who goes refuses any load.
        self._number.interrupt(now)
        self._bounds.forget_refusals()
        change = self._decide()
        self._number.on_restart(now, self.limit if self._pinned is None else None)
        self._bounds.forget()
        for objective in self._objectives:
            objective.forget()
        return self._decide() or change

    def pin(self, limit: int | None, now: float) -> LimitChange | None:
        if limit is not None and limit < 1:
            raise ValueError("a limit is at least 1")
        if limit is None and self._pinned is None:
            return None
        self._pinned = limit
        self._number.interrupt(now)
        changed = self._decide() is not None
        # A person decided: the reason from now on, even of the same number.
        self.reason = "pinned" if limit is not None else "unpinned"
        return LimitChange(self.limit, self.reason) if changed else None

    def _decide(self) -> LimitChange | None:
        return self._set(*self._in_force())

    def _in_force(self) -> tuple[int, str]:
        """Return the limit to hold, and why."""
        if self._pinned is not None:
            return self._pinned, "pinned"
        limit, reason = self._number.limit, self._number.reason
        for objective in self._objectives:
            if objective.load == math.inf:
                # The reason why a missed objective bounds nothing, if so.
                reason = objective.reason or reason
        if self._bounds.load < limit:
            # A floating-point product meant to be whole may fall just short.
            limit, reason = math.floor(round(self._bounds.load, 2)), self._bounds.reason
        for objective in self._objectives:
            if objective.load < limit:
                limit, reason = int(objective.load), objective.reason
        return max(1, limit), reason
