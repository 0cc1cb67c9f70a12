"""How long nothing is tried for a reason that did not pay: a minute, then two, up to fifteen."""

from __future__ import annotations

import math

__all__ = ["Silence"]

_FIRST_S = 60.0
_LONGEST_S = 900.0


class Silence:
    """Of one reason."""

    __slots__ = ("_next_s", "_until")

    def __init__(self) -> None:
        self._until = -math.inf
        self._next_s = _FIRST_S

    def __repr__(self) -> str:
        return f"<Silence until {self._until:g}>"

    def lasts(self, now: float) -> bool:
        """Whether the reason is silent."""
        return now < self._until

    def begin(self, now: float) -> None:
        """It did not pay: be silent, longer each time."""
        self._until = now + self._next_s
        self._next_s = min(_LONGEST_S, 2 * self._next_s)

    def rest(self, now: float) -> None:
        """Be silent for the shortest time; what was learnt of how long is kept."""
        self._until = max(self._until, now + _FIRST_S)

    def end(self) -> None:
        """The work or the server is another: the reason may speak again."""
        self._until, self._next_s = -math.inf, _FIRST_S
