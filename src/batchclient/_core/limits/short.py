"""What is done beside the elasticity where answers have a few tokens and come in one piece: their time says little, but there are many of them.

Rules:
- What each load brought is remembered (``throughputs``). Where one brought clearly more than smaller and larger ones, the limit stays there.
- A plateau is come down by halves (``descent``). While a load is looked at nothing else moves the limit, and no change of the server is
  told: the load goes by halves, and no straight line fits what they bring.
- The aim is lower: where more load brings a few per cent, a real vLLM's steps (one token each) take twice as many for little more, and a third of the load
  gives a tenth of the throughput away. Below 0.05 the noise of a plateau is taken for growth.
"""

from __future__ import annotations

from typing import NamedTuple

from batchclient._core.limits.descent import Descent
from batchclient._core.limits.elasticity import Elasticity
from batchclient._core.limits.evidence import Point, waiting
from batchclient._core.limits.throughputs import Throughputs

__all__ = ["ShortAnswers", "Step", "Wanted", "short_aim"]

_AIM_RATIO = 0.7
_LEAST_AIM = 0.05
"""In the laboratory, ten seeds: with a ratio of 1 ``one-token`` had 0.96 of the best throughput instead of 0.98, ``api`` 0.96 instead of 0.98; with 0.5
``prefix`` stayed on its plateau in one run of ten, and so it did with an aim of 0.035."""


def short_aim(target: float) -> float:
    """The elasticity to aim at, where longer answers have ``target``."""
    return min(target, max(_LEAST_AIM, _AIM_RATIO * target))


class Step(NamedTuple):
    """One step of a limit.

    Args:
        newest: what the last answers say; its time is that of the step.
        in_flight: sequences, at most, when one of them ended.
        empty: of the limit, what calls of several sequences may leave unused.
        base: the load that the limit is about.
        paces: how many have passed since the last step.
        pace_s: a mean latency.
    """

    newest: Point
    in_flight: int
    empty: int
    base: float
    paces: float
    pace_s: float


class Wanted(NamedTuple):
    """Where the base shall be.

    Args:
        load: there.
        looked_at: whether that is for the sake of what it brings: at once and exactly.
        reason: why.
    """

    load: float
    looked_at: bool
    reason: str


class ShortAnswers:
    """What answers of a few tokens have brought."""

    __slots__ = ("_throughputs", "descent", "settled")

    def __init__(self) -> None:
        self._throughputs = Throughputs()
        self.descent = Descent()
        """The search by halves."""
        self.settled = False
        """Whether the limit stays where it is wanted, without a swing."""

    def __repr__(self) -> str:
        return f"<ShortAnswers {self._throughputs}, {self.descent}>"

    def forget(self) -> None:
        """The server may be another one."""
        self._throughputs.forget_all()
        self.descent.forget()
        self.settled = False

    def give_up(self) -> None:
        """Something else than throughput has bounded or cut the limit."""
        self._throughputs.forget_all()
        self.descent.give_up()

    def take_in(self, step: Step, elasticity: Elasticity, aim: float, bounds: tuple[float, float]) -> Wanted | None:
        """Take in answers; return where the base shall be, or ``None``: where the elasticity has it go.

        Args:
            step: what is known, and where the limit is.
            elasticity: with its points, the newest among them.
            aim: that makes a larger load worth as much as a smaller one.
            bounds: no load below the first or above the second is looked at.
        """
        self.settled = False
        if not elasticity.short:
            # What longer answers cost is a matter of how long they are as well, and a few lucky ones at a small load would be believed.
            self.give_up()
            return None
        load = step.newest.felt(waiting(elasticity.points).share)
        # As they have a few tokens, it is answers that are counted.
        self._throughputs.take_in(load, load / step.newest.cost_s(1.0), step.paces)
        wanted = self._looked_at(step, elasticity, bounds) or self._peak(aim)
        self.settled = wanted is not None
        return wanted

    def _looked_at(self, step: Step, elasticity: Elasticity, bounds: tuple[float, float]) -> Wanted | None:
        descent = self.descent
        descent.begin(step.base, elasticity.value, len(elasticity.points))
        if not descent.under_way:
            return None
        base = descent.take_in(step.newest.answers, step.in_flight, step.empty, step.pace_s, bounds, step.newest.at)
        why = "looking at what" if descent.under_way else "enough is what"
        return Wanted(base, looked_at=True, reason=f"{why} {base:.0f} in flight bring")

    def _peak(self, aim: float) -> Wanted | None:
        peak = self._throughputs.peak(aim)
        return None if peak is None else Wanted(peak, looked_at=False, reason=f"{peak:.0f} in flight brought most")
