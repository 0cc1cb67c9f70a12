"""Trials of another limit: what it brings, against what the limit before brings; and who may try.

Rules:
- Less: a descent. The limit before, a lower one, perhaps lower ones still, and at its end the limit before once more, so that whatever drifts
  meanwhile is seen. Every lower limit is compared with the limit before the first cut, and with the best since: ten steps of a twentieth are not small.
- A lower limit that loses more than a twentieth ends the descent at the one above it.
- Where the lower limit brings clearly more, or where the wait itself is the harm (``trusted``), the limit before is not looked at once more.
- More: one that brings more is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from batchclient._core.limits.evidence import Window

__all__ = ["GAIN", "LOSS", "SHARED", "Silence", "Trial", "Turn", "Verdict"]

LOSS = 0.05
_CLEARLY = 0.1
_BEFORE_A_PEAK = 0.2
"""Where calls share prefixes, throughput may fall so much between what overfills the cache and what fits it."""
SHARED = 0.2
"""Calls share prefixes where more of their prompts' tokens were sent before."""
GAIN = 0.03
"""What 1.4 times the load must bring: an elasticity of throughput to load of about a tenth. And what less load may lose where no wait is seen."""


_FIRST_S = 60.0
_LONGEST_S = 900.0
"""How long nothing is tried for a reason that did not pay: at first, and at most."""


class Verdict(Enum):
    """What a window of a trial says of the limit that is looked at."""

    HOLDS = "holds"
    """It is kept, until something lower is."""
    PERHAPS = "perhaps"
    """It loses, but something still lower may not."""
    LOSES = "loses"
    """The trial is over."""


@dataclass(slots=True)
class Trial:
    """Of another limit.

    Args:
        first: the limit before.
        before: what it brings.
        reason: what the other is tried for, as a key.
        other: the limit that is looked at.
        trusted: whether the limit before need not be looked at once more.
    """

    first: int
    before: Window
    reason: str
    other: int
    trusted: bool
    kept: int
    """The lowest limit that held so far; at first the limit before."""
    left: float = 1.0
    """What is left, by the descents since the limit was raised last, of what the limit brought then."""
    loss: float = LOSS
    """What a lower limit may lose."""
    gain: float = 1.0
    """What it brings, of what the limit before does."""
    best: float = 1.0
    """The most that any limit of this trial brings, likewise."""
    until: float = math.inf
    """When it ends without a verdict."""
    again: bool = False
    """Whether the limit before is looked at once more."""
    lost: float = 0.0
    """What the last one that did not hold brings less."""

    def judge(self, window: Window) -> Verdict:
        """Take in a window at the other limit."""
        gain = self._against(window)
        least = 1 + GAIN if self.other > self.first else max((1 - self.loss) * self.best, (1 - LOSS) / self.left)
        if gain < least:
            self.lost = 1 - gain
            bottom = self.other > self.first or window.shared <= SHARED or gain < (1 - _BEFORE_A_PEAK) * self.best
            return Verdict.LOSES if bottom else Verdict.PERHAPS
        self.kept, self.gain, self.best = self.other, gain, max(self.best, gain)
        return Verdict.HOLDS

    def shows(self, window: Window) -> bool:
        """Whether what was in flight is what the limit makes it: a heavy call or a pin may keep it where it was."""
        if self.again:
            return True
        lower = self.other < self.first
        return window.load < (1 - LOSS) * self.before.load if lower else window.load > (1 + LOSS) * self.before.load

    def is_clear(self, window: Window, error: float) -> bool:
        """Whether the verdict on a window is beyond doubt, however noisy it is."""
        return not self.again and abs(1 - self._against(window)) > 3 * (error + GAIN)

    @property
    def certain(self) -> bool:
        """Whether what was kept needs no look at the limit before once more."""
        return self.kept >= self.first or self.trusted or self.gain > 1 + _CLEARLY

    def confirms(self, window: Window) -> bool:
        """Take in a window at the limit before; return whether what was kept still holds against both looks at it."""
        self.gain /= math.sqrt(self._against(window))
        return self.gain >= max(1 - self.loss, (1 - LOSS) / self.left)

    def _against(self, window: Window) -> float:
        tokens = self.before.tokens
        return window.per_s(tokens) / self.before.per_s(tokens)


class Silence:
    """Of one reason."""

    __slots__ = ("_next_s", "_until")

    def __init__(self) -> None:
        self._until = -math.inf
        self._next_s = _FIRST_S

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


class Turn:
    """Of several servers, one is tried at a time: their answers depend on how calls are shared between them."""

    __slots__ = ("_owner", "_until")

    def __init__(self) -> None:
        self._owner: object = None
        self._until = -math.inf

    def take(self, owner: object, until: float, now: float) -> bool:
        """Take the turn if nobody has it; return whether the owner has it now."""
        if self._owner is not owner and now < self._until:
            return False
        self._owner, self._until = owner, until
        return True

    def give_back(self, owner: object) -> None:
        """The trial is over."""
        if self._owner is owner:
            self._owner, self._until = None, -math.inf
