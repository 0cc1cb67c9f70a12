"""The tasks of one runner, by a key of their own: a batch's id, or any object.

Rules:
- A task is listed from its start to its end. ``over`` waits until the list is empty.
- A task cancelled before its first step never takes the step, and never reports. ``cancel`` tells
  its caller, who reports instead. (A backend may start a cancelled task.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from typing import Any, Protocol

import anyio

from batchclient._shell.backend import Cancellable

__all__ = ["Tasks"]


class _Task:
    """A listed task."""

    __slots__ = ("handle", "has_begun", "is_cancelled", "on_stop")

    def __init__(self, on_stop: Callable[[], None] | None) -> None:
        self.handle: Cancellable
        self.has_begun = False
        self.is_cancelled = False
        self.on_stop = on_stop


class _Spawn(Protocol):
    def __call__(
        self, work: Callable[[Any], Awaitable[None]], argument: Any, context: Context | None = None
    ) -> Cancellable: ...


class Tasks:
    """The listed tasks. ``spawn`` is the backend's."""

    def __init__(self, spawn: _Spawn) -> None:
        self._spawn = spawn
        self._listed: dict[Hashable, _Task] = {}
        self._none_left: anyio.Event | None = None

    def start(
        self,
        key: Hashable,
        work: Callable[[Any], Awaitable[None]],
        argument: Any,
        on_stop: Callable[[], None] | None = None,
        context: Context | None = None,
    ) -> None:
        """Start a task; ``on_stop`` is called if the task is stopped before its end (``stop``)."""
        task = self._listed[key] = _Task(on_stop)
        task.handle = self._spawn(self._run, (key, task, work, argument), context)

    async def _run(self, started: tuple[Hashable, _Task, Callable[[Any], Awaitable[None]], Any]) -> None:
        key, task, work, argument = started
        if key not in self._listed:
            return
        task.has_begun = True
        try:
            await work(argument)
        finally:
            # Also if its end raises: ``over`` waits for the task.
            self._forget(key)

    def cancel(self, key: Hashable) -> bool:
        """Cancel a task; return whether it will never take its first step, and so never report."""
        task = self._listed.get(key)
        if task is None:
            return False
        task.is_cancelled = True
        task.handle.cancel()
        if not task.has_begun:
            self._forget(key)
        return not task.has_begun

    def stop(self) -> None:
        """Cancel the uncancelled tasks: a second cancellation would break into tidying up."""
        for key, task in list(self._listed.items()):
            if not task.is_cancelled:
                self.cancel(key)
            if task.on_stop is not None:
                task.on_stop()

    def _forget(self, key: Hashable) -> None:
        self._listed.pop(key, None)
        if not self._listed and self._none_left is not None:
            self._none_left.set()

    async def over(self) -> None:
        """Wait until all tasks are over."""
        if self._listed:
            if self._none_left is None:
                self._none_left = anyio.Event()
            await self._none_left.wait()
