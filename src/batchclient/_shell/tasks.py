"""The tasks of one runner, by number: batches have positive numbers, readers negative ones.

Rules:
- A task is listed from its start until it is forgotten. ``over`` waits until the list is empty.
- A task cancelled before its first step never takes the step, and never reports. ``cancel`` tells
  its caller, who reports instead.
- At its first step a task asks whether it is still listed (``begins``): a backend may start a
  cancelled task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from batchclient._shell.backend import Cancellable

__all__ = ["Tasks"]


class _Starting:
    """Stands for a task being started."""

    def cancel(self) -> None:
        """Do nothing: the task finds out at its first step."""


_STARTING = _Starting()


class Tasks(dict[int, Cancellable]):
    """The listed tasks. ``spawn`` is the backend's."""

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
        """Note a task's first step; return whether the task may go on."""
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
        """Cancel the uncancelled tasks: a second cancellation would break into tidying up."""
        for number in [number for number in self if number not in self._cancelled]:
            self.cancel(number)

    def forget(self, number: int) -> None:
        """Take a finished task off the list."""
        self.pop(number, None)
        self._started.discard(number)
        self._cancelled.discard(number)
        if not self and self._none_left is not None:
            self._none_left.set()

    async def over(self) -> None:
        """Wait until all tasks are over."""
        if self:
            if self._none_left is None:
                self._none_left = anyio.Event()
            await self._none_left.wait()
