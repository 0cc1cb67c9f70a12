"""Noticing that the event loop stood still: a callback that blocked, a long garbage collection, a suspended machine.

Meanwhile answers lay unread, so that their servers look slower by as long. A timer that is far too late tells it before they are read:
timers that are due run before the tasks that a socket woke.
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient._backend import Backend, Cancellable

__all__ = ["StallWatch"]

_BEAT_S = 0.5
_STALL_S = 1.0
"""Shorter ones are within what latencies vary by."""


class StallWatch:
    """A timer that runs while somebody measures.

    Args:
        backend: the loop's clock and timer.
        on_stall: called once per stall.
    """

    __slots__ = ("_backend", "_due", "_on_stall", "_timer")

    def __init__(self, backend: Backend, on_stall: Callable[[], None]) -> None:
        self._backend = backend
        self._on_stall = on_stall
        self._timer: Cancellable | None = None
        self._due = 0.0

    @property
    def awake(self) -> bool:
        """Whether it watches."""
        return self._timer is not None

    def wake(self) -> None:
        """Watch."""
        if self._timer is None:
            self._due = self._backend.now() + _BEAT_S
            self._timer = self._backend.call_at(self._due, self._beat)

    def sleep(self) -> None:
        """Watch no more; no timer is left."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _beat(self) -> None:
        late_s = self._backend.now() - self._due
        self._timer = None
        self.wake()
        if late_s > _STALL_S:
            self._on_stall()
