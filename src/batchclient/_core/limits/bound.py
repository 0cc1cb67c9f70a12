"""For a while, no limit above a load that was too much.

Rules:
- The bound lies just below the load that was refused, or that came too late, and holds for half a minute.
- An episode is a cooldown: what fails in it was sent before the bound. But what is refused of a smaller load lowers the bound to below that: else
  whatever is above the server's own bound is refused as fast as it can be sent, thousands of times until the episode is over. Two cuts down that
  ends, since refusals may be about something else.
"""

from __future__ import annotations

import math

__all__ = ["Bound"]

_BELOW_RATIO = 0.95
_LASTS_S = 30.0
_LEAST_RATIO = 0.64
"""Two cuts' worth."""


class Bound:
    """The most that a limit may be, while it lasts."""

    __slots__ = ("_cooldown_until", "_least", "_until", "load")

    def __init__(self) -> None:
        self.load = math.inf
        """Sequences in flight; infinite: there is no bound."""
        self._least = 0.0
        self._until = -math.inf
        self._cooldown_until = -math.inf

    def set_below(self, load: float, floor: float, cooldown_s: float, now: float) -> None:
        """Stay below a load, but not below the floor."""
        self.load = max(floor, _BELOW_RATIO * load)
        self._least = _LEAST_RATIO * self.load
        self._until = now + _LASTS_S
        self._cooldown_until = now + cooldown_s

    def is_cooling(self, now: float) -> bool:
        """Whether the episode that it was set for is not over."""
        return now < self._cooldown_until

    def tightened(self, load: float) -> float:
        """What it would be, were so much refused again; no lower than it may get in this episode."""
        return max(self._least, load - 1)

    def let_go(self) -> None:
        """There is none any more. An episode goes on."""
        self.load = math.inf

    def expire(self, now: float) -> None:
        """Let go if its time is over."""
        if now >= self._until:
            self.let_go()
