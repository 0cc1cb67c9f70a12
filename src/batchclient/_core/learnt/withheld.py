"""A refused thing is withheld for a while; then one batch tries it again.

    SENT ──refused──▶ WITHHELD ──pause over, one batch goes with it──▶ TRIED ──answered──▶ SENT
                         ▲──────────────refused again: twice the pause──────┘

Rules:
- While one batch tries, all others go without: a repeated refusal costs only one batch.
- The pause is five minutes at first and doubles up to an hour. A server which never takes the thing
  costs one batch an hour.
- A trial that tells nothing (a broken connection, a caller that left) is followed by another.
"""

from __future__ import annotations

__all__ = ["Withheld"]

_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0


class Withheld:
    """One thing (lists, streams, …) at one endpoint, for one kind of call."""

    __slots__ = ("_pause_s", "_trial", "_until")

    def __init__(self) -> None:
        self._until: float | None = None
        """When the thing is tried again; ``None``: not withheld."""
        self._pause_s = 0.0
        self._trial: int | None = None
        """The id of the batch on trial."""

    def __repr__(self) -> str:
        return "<Withheld: nothing>" if self._until is None else f"<Withheld until {self._until:.3f} s>"

    def allows(self, now: float) -> bool:
        """Whether the next batch may use the thing."""
        return self._until is None or (now >= self._until and self._trial is None)

    @property
    def in_doubt(self) -> bool:
        """Whether the thing was refused, and not answered since."""
        return self._until is not None

    def refuse(self, now: float) -> None:
        """Note a refusal. During the pause, refusals of older batches say nothing new."""
        if self._until is not None and now < self._until:
            return
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) if self._pause_s else _FIRST_PAUSE_S
        self._until = now + self._pause_s
        self._trial = None

    def begin(self, batch: int) -> None:
        """Note that a batch uses the thing."""
        if self._until is not None:
            self._trial = batch

    def end(self, batch: int) -> bool:
        """Note a failed batch; return whether the batch was on trial."""
        if self._trial != batch or self._until is None:
            return False
        self._trial = None
        return True

    def forget(self) -> None:
        """Note that the server took the thing."""
        if self._until is not None:
            self._until = self._trial = None
            self._pause_s = 0.0
