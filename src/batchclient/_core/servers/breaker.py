"""What a server did not take is left out for a while; then one batch tries it again.

    CLOSED ──refused──▶ OPEN ──pause over──▶ HALF-OPEN, one batch tries ──taken──▶ CLOSED
                          ▲─────────────refused again: twice the pause─────┘

Rules:
- While one batch tries, all others go without: a repeated refusal costs only one batch.
- The pause is five minutes at first and doubles up to an hour. A server which never takes the thing
  costs one batch an hour.
- A try that tells nothing (a broken connection, a caller that left) is followed by another.
- Where batches failed and nobody said why, the thing is *suspected*, unless it was ever taken. If
  their calls are then answered without the thing, one batch tries it.
"""

from __future__ import annotations

import math

from batchclient._core.servers.pause import Pause

__all__ = ["Breaker"]

_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0


class Breaker:
    """One thing (lists, streams, a model, …) at one endpoint.

    Args:
        first_s, longest_s: the first and the longest pause.
    """

    __slots__ = ("_is_suspected", "_pause", "is_closed", "is_proven", "trial", "until")

    def __init__(self, first_s: float = _FIRST_PAUSE_S, longest_s: float = _LONGEST_PAUSE_S) -> None:
        self._pause = Pause(first_s, longest_s)
        self._is_suspected = False
        self.is_proven = False
        """Whether the server ever took it."""
        self.is_closed = True
        """Whether any batch may use it."""
        self.until = -math.inf
        """When the thing is tried again, unless closed."""
        self.trial: int | None = None
        """The id of the batch that tries."""

    def __repr__(self) -> str:
        return "<Breaker: closed>" if self.is_closed else f"<Breaker: open until {self.until:.3f} s>"

    def allows(self, now: float) -> bool:
        """Whether the next batch may use the thing."""
        return self.is_closed or (now >= self.until and self.trial is None)

    def refuse(self, now: float) -> None:
        """Note a refusal. During the pause, refusals of older batches say nothing new."""
        if not self.is_closed and now < self.until:
            return
        self.is_closed, self.until, self.trial = False, now + self._pause.take(), None

    def begin(self, batch: int) -> None:
        """Note that a batch uses the thing."""
        if not self.is_closed:
            self.trial = batch

    def end(self, batch: int) -> bool:
        """Note a failed batch; return whether the batch tried."""
        if self.trial != batch:
            return False
        self.trial = None
        return True

    def take(self) -> None:
        """Note that the server took the thing."""
        self.is_proven, self._is_suspected = True, False
        if not self.is_closed:
            self.is_closed, self.trial = True, None
            self._pause.forget()

    def suspect(self) -> None:
        """Note a failure for which nobody gave a reason."""
        self._is_suspected = not self.is_proven

    def confirm(self) -> None:
        """Note answers without the thing: a suspected one is half-open from now on."""
        if self._is_suspected and self.is_closed:
            self.is_closed, self.until = False, -math.inf
        self._is_suspected = False
