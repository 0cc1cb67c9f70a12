"""The tasks of one runner, by number: batches have positive numbers, readers negative ones.

Rules:
- A task is listed from when it is started until it is forgotten. ``over`` waits until none is listed.
- One that was cancelled before its first step never takes it, and never reports: who cancelled it is told so, and reports in its place.
- A task asks at its first step whether it is still listed (``begins``): a backend may start it after it was cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from batchclient._shell.backend import Cancellable

__all__ = ["Tasks"]


class _Starting:
    """Stands for a task that is being started."""

    def cancel(self) -> None:
        """It sees for itself that it is no longer listed."""


_STARTING = _Starting()


class Tasks(dict[int, Cancellable]):
    """Those that are listed.

    Args:
        spawn: the backend's.
    """

    def __init__(self, spawn: Callable[[Callable[[Any], Awaitable[None]], Any], Cancellable]) -> None:
        super().__init__()
        self._spawn = spawn
        self._started: set[int] = set()
        self._cancelled: set[int] = set()
        self._none_left: anyio.Event | None = None

    def start(self, number: int, work: Callable[[Any], Awaitable[None]], argument: Any) -> None:
        """Start a task."""
        self[number] = _STARTING
        task = self._spawn(work, argument)
        # An eager task may be over already.
        if number in self:
            self[number] = task

    def begins(self, number: int) -> bool:
        """A task's first step; return whether it is to take another."""
        if number not in self:
            return False
        self._started.add(number)
        return True

    def cancel(self, number: int) -> bool:
        """Cancel a task; return whether it will never take its first step, and so never report."""
        task = self.get(number)
        if task is None:
            return False
        self._cancelled.add(number)
        task.cancel()
        if number in self._started:
            return False
        self.forget(number)
        return True

    def cancel_the_rest(self) -> None:
        """Cancel those that nobody has: a second time would break into what they tidy up."""
        for number in [number for number in self if number not in self._cancelled]:
            self.cancel(number)

    def forget(self, number: int) -> None:
        """It is over."""
        self.pop(number, None)
        self._started.discard(number)
        self._cancelled.discard(number)
        if not self and self._none_left is not None:
            self._none_left.set()

    async def over(self) -> None:
        """Wait until all are."""
        if self:
            if self._none_left is None:
                self._none_left = anyio.Event()
            await self._none_left.wait()
