"""Something that a server has refused: it is withheld for a while, then one batch tries it again.

    SENT ──refused──▶ WITHHELD ──pause over, one batch goes with it──▶ TRIED ──answered──▶ SENT
                         ▲──────────────refused again: twice the pause──────┘

Rules:
- While one batch tries, all others go without: what is still refused costs one batch, not all that are queued.
- The pause is five minutes at first and doubles up to an hour: a server that will never take it costs one batch an hour.
- A trial that says nothing of it (a broken connection, a caller that left) is followed by another.
"""

from __future__ import annotations

__all__ = ["Withheld"]

_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0


class Withheld:
    """One such thing (lists, streams, …) at one endpoint, for one kind of call."""

    __slots__ = ("_pause_s", "_trial", "_until")

    def __init__(self) -> None:
        self._until: float | None = None
        """When it is tried again; ``None``: it is not withheld."""
        self._pause_s = 0.0
        self._trial: int | None = None
        """The batch that tries it."""

    def __repr__(self) -> str:
        return "<Withheld: nothing>" if self._until is None else f"<Withheld until {self._until:.3f} s>"

    def allows(self, now: float) -> bool:
        """Whether the next batch may go with it."""
        return self._until is None or (now >= self._until and self._trial is None)

    @property
    def in_doubt(self) -> bool:
        """Whether it was refused, and has not been seen to be taken since."""
        return self._until is not None

    def refuse(self, now: float) -> None:
        """The server has refused it. What was under way when it did says nothing new."""
        if self._until is not None and now < self._until:
            return
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) if self._pause_s else _FIRST_PAUSE_S
        self._until = now + self._pause_s
        self._trial = None

    def begin(self, batch: int) -> None:
        """A batch goes with it."""
        if self._until is not None:
            self._trial = batch

    def end(self, batch: int) -> bool:
        """A batch has failed; return whether it tried what had been refused before."""
        if self._trial != batch or self._until is None:
            return False
        self._trial = None
        return True

    def forget(self) -> None:
        """The server was seen to take it."""
        if self._until is not None:
            self._until = self._trial = None
            self._pause_s = 0.0
