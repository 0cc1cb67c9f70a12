"""Trials of another limit: its yield against the yield of the limit before; and who may try.

Rules:
- Less: a descent by lower limits, then the limit before again, to see any drift. Each is compared
  with the first and the best limit: ten steps of a twentieth are not small.
- A lower limit that loses more than a twentieth ends the descent at the limit above.
- If less yields clearly more, or if the wait is the harm (``trusted``), the return is left out.
- More: a higher limit with a higher yield is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchclient._core.limits.evidence import Window

__all__ = ["GAIN", "LOSS", "SHARED", "Trial", "Turn"]

LOSS = 0.05
_CLEARLY = 0.1
_BEFORE_A_PEAK = 0.2
"""With shared prefixes throughput may fall so far between overfilling and fitting the cache."""
SHARED = 0.2
"""Calls share prefixes if a larger share of their prompts' tokens was sent before."""
GAIN = 0.03
"""The gain due from 1.4 times the load: an elasticity of throughput to load of about a tenth."""


@dataclass(slots=True)
class Trial:
    """The trial of another limit. Yields are useful tokens per second.

    Args:
        first, before: the limit before, and its window.
        reason: the key of the reason.
        other: the limit under trial.
        trusted: whether the limit before need not be measured again.
    """

    first: int
    before: Window
    reason: str
    other: int
    trusted: bool
    left: float
    """The share left, after descents since the last raise, of the yield at the raise."""
    kept: int
    """The lowest limit that held so far; at first the limit before."""
    gain: float = 1.0
    """The yield of ``kept`` relative to that of the limit before."""
    best: float = 1.0
    """The highest relative yield of any limit of this trial."""
    until: float = math.inf
    """When the trial ends without a verdict."""
    again: bool = False
    """Whether the limit before is measured again."""
    lost: float = 0.0
    """The relative loss of the last limit that did not hold."""

    def judge(self, window: Window) -> bool:
        """Take in a window at the other limit; return whether that holds."""
        gain = self._against(window)
        least = 1 + GAIN if self.other > self.first else max((1 - LOSS) * self.best, (1 - LOSS) / self.left)
        if gain < least:
            self.lost = 1 - gain
            return False
        self.kept, self.gain, self.best = self.other, gain, max(self.best, gain)
        return True

    def may_be_before_a_peak(self, window: Window) -> bool:
        """Whether a limit that loses may hold at half, where a cache fits fewer calls."""
        shares = self.other < self.first and window.shared > SHARED
        return shares and 1 - self.lost >= (1 - _BEFORE_A_PEAK) * self.best

    def shows(self, window: Window) -> bool:
        """Whether the load is of the limit's making: a heavy call may keep the old."""
        if self.again:
            return True
        lower = self.other < self.first
        return window.load < (1 - LOSS) * self.before.load if lower else window.load > (1 + LOSS) * self.before.load

    def is_clear(self, window: Window, error: float) -> bool:
        """Whether the verdict on a window is beyond doubt, however noisy."""
        return not self.again and abs(1 - self._against(window)) > 3 * (error + GAIN)

    @property
    def certain(self) -> bool:
        """Whether the kept limit needs no new measure of the limit before."""
        return self.kept >= self.first or self.trusted or self.gain > 1 + _CLEARLY

    def confirms(self, window: Window) -> bool:
        """Take in a window at the limit before; return whether the kept limit still holds."""
        self.gain /= math.sqrt(self._against(window))
        return self.gain >= max(1 - LOSS, (1 - LOSS) / self.left)

    def _against(self, window: Window) -> float:
        tokens = self.before.tokens
        return window.per_s(tokens) / self.before.per_s(tokens)


class Turn:
    """One server is tried at a time: answers depend on how calls are shared between servers."""

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
        """End the owner's turn."""
        if self._owner is owner:
            self._owner, self._until = None, -math.inf
