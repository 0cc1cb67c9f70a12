"""Noticing that the event loop stood still: a callback that blocked, a long garbage collection, a suspended machine.

Meanwhile answers lay unread, so that their servers look slower by as long. While calls are under way and somebody measures, a time is due
twice a second. A timer that is far too late tells of the stall before those answers are read: timers that are due run before the tasks that
a socket woke.
"""

from __future__ import annotations

__all__ = ["Stalls"]

_EVERY_S = 0.5
_STALL_S = 1.0
"""Shorter ones are within what latencies vary by."""


class Stalls:
    """Those of one event loop.

    Args:
        watched: whether a limit rests on how long answers take.
    """

    __slots__ = ("due_at", "watched")

    def __init__(self, *, watched: bool) -> None:
        self.watched = watched
        self.due_at: float | None = None
        """When a timer is to come; ``None``: nothing is under way, or nobody measures."""

    def sent(self, now: float) -> None:
        """Batches are sent."""
        if self.watched and self.due_at is None:
            self.due_at = now + _EVERY_S

    def woke(self, now: float) -> bool:
        """A timer has come; return whether the event loop stood still."""
        due_at = self.due_at
        if due_at is None or now < due_at:
            return False
        self.due_at = now + _EVERY_S
        return now - due_at > _STALL_S

    def sleep(self) -> None:
        """Nothing is under way."""
        self.due_at = None
