"""One endpoint's limit in force: a number found or given, and its bounds.

Rules:
- In force is the smallest of the number, the bound by refusals and late answers, the objectives'
  bounds, and a guest's; never below 1. The reason is that of the number in force.
- While a guest's bound is in force, the search rests, and its number stays: what it found above the
  bound may be right again once others have gone.
- A new bound, a pause of the calls and a server that goes away interrupt a trial of the number: the
  load is not of its making.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchclient._core.limits.base import PAUSE_S, Answers, Sample, ServerLoad
from batchclient._core.limits.bounds import Bounds
from batchclient._core.limits.guest import Guest
from batchclient._core.limits.objective import Objective
from batchclient._core.limits.reports import Report

if TYPE_CHECKING:
    from batchclient._core.limits.search import Search

__all__ = ["Limit"]


class Limit:
    """The number of sequences allowed in flight at one endpoint. Pure: no clock, no randomness.

    Args:
        number: what a person has set, or the search for a number.
        objectives: promises that may lower it.
        guest: whether it leaves places to others (see ``be_guest``).
    """

    def __init__(self, number: int | Search, objectives: Sequence[Objective] = (), *, guest: bool = False) -> None:
        self._search = None if isinstance(number, int) else number
        self._given = number if isinstance(number, int) else 0
        if isinstance(number, int) and number < 1:
            raise ValueError("a limit is at least 1")
        self._answers = Answers() if self._search is None else self._search.answers
        self._of_load = Bounds(self._answers, lateness=self._search is not None)
        self._guest: Guest | None = None
        self._is_guest = False
        self._is_always_guest = guest
        self._bounds: tuple[Bounds | Objective | Guest, ...] = (self._of_load, *objectives)
        self.limit: int
        """Sequences that may be in flight, at least 1."""
        self.reason: str
        """The reason of the number."""
        self.limit, self.reason = self._in_force()
        self.be_guest(guest)

    @property
    def is_guest(self) -> bool:
        """Whether places are left to others."""
        return self._is_guest

    def be_guest(self, on: bool) -> None:  # noqa: FBT001
        """Leave places to others by the server's page from now on, or no longer.

        Who began with few as a guest then has what the server runs and a tenth, or else the start.
        """
        if on == self.is_guest:
            return
        others = tuple(bound for bound in self._bounds if bound is not self._guest)
        # What it has seen holds the next time, too.
        self._guest, self._is_guest = self._guest or Guest(self._answers), on
        self._bounds = (*others, self._guest) if on else others
        if self._search is not None:
            self._search.be_guest(on, self._guest.capacity)
        self._decide()

    def heed_wish(self, on: bool) -> None:  # noqa: FBT001
        """Be a guest by the wish of others, or only if it was made as one."""
        self.be_guest(on or self._is_always_guest)

    def on_sample(self, sample: Sample) -> None:
        """Take in one observation."""
        interrupts = self._answers.add(sample)
        for bound in self._bounds:
            interrupts = bound.on_sample(sample, self.limit) or interrupts
        if self._search is not None:
            if interrupts:
                self._search.interrupt(sample.now)
            self._search.on_sample(sample)
        self._decide()

    def on_load(self, load: ServerLoad, in_flight: int, now: float, took_s: float = 0.0) -> None:
        """Take in a metrics page's report, asked for ``took_s`` ago.

        ``in_flight`` of its sequences are this client's.
        """
        if self._guest is not None:
            self._guest.on_report(Report(now, load, in_flight), took_s)
        if self._search is not None:
            if self._is_guest and self._guest is not None and self._guest.load < self._search.limit:
                self._search.rest(now)
            else:
                self._search.on_load(load, in_flight, now, took_s)
        self._decide()

    def on_known(self, slots: int | None, now: float) -> None:
        """Take in that a server was found, and its sequences at once (``slots``) if stated."""
        if self._search is not None:
            self._search.on_known(slots, now)
        self._decide()

    def on_resume(self, now: float) -> None:
        """Calls are about to be sent, and nothing was in flight."""
        if now - self._answers.ended_at > PAUSE_S:
            self.interrupt(now)

    def on_restart(self, now: float) -> None:
        """The server was restarted: forget all but a guess of the load."""
        # Who goes refuses any load.
        self._of_load.forget_refusals()
        if self._search is not None:
            # The number in force is the best guess, unless it is on trial.
            self._search.interrupt(now)
            self._search.on_restart(self._in_force()[0])
        for bound in self._bounds:
            bound.forget()
        if self._guest is not None:
            self._guest.forget()
        self._decide()

    def interrupt(self, now: float) -> None:
        """End a trial without a verdict: what it would measure is not of its making."""
        if self._search is not None:
            self._search.interrupt(now)
        self._decide()

    def _decide(self) -> None:
        limit, reason = self._in_force()
        if limit != self.limit:
            self.limit, self.reason = limit, reason

    def _in_force(self) -> tuple[int, str]:
        """Return the limit to hold, and why."""
        limit, reason = self._given, "fixed"
        if self._search is not None:
            limit, reason = self._search.limit, self._search.reason
        for bound in self._bounds:
            if bound.load == math.inf:
                # The reason why a missed objective bounds nothing, if so.
                reason = bound.reason or reason
        for bound in self._bounds:
            if bound.load < limit:
                # A floating-point product meant to be whole may fall just short.
                limit, reason = math.floor(round(bound.load, 2)), bound.reason
        return max(1, limit), reason
