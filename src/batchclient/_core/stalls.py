"""Noticing that the event loop stood still.

Causes are a blocking callback, a long garbage collection, a suspended machine. Answers then lie
unread, and their servers look slower. While calls are under way and a limit measures times, a timer
is due twice a second. A timer which is far too late shows the stall before those answers are read:
due timers run before tasks woken by a socket.
"""

from __future__ import annotations

from batchclient._core.settings import SchedulerSettings

__all__ = ["Stalls"]

_EVERY_S = 0.5
_STALL_S = 1.0
"""Shorter stalls are within the usual variation of latencies."""


class Stalls:
    """The stalls of an event loop."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.due_at: float | None = None
        """When a timer is due; ``None``: no call is under way, or no limit measures times."""

    def sent(self, now: float) -> None:
        """Batches are sent."""
        if self._settings.heeds_time and self.due_at is None:
            self.due_at = now + _EVERY_S

    def woke(self, now: float) -> bool:
        """A timer has come; return whether the event loop stood still."""
        due_at = self.due_at
        if due_at is None or now < due_at:
            return False
        self.due_at = now + _EVERY_S
        return now - due_at > _STALL_S
