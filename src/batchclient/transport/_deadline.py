"""A bound on a wait, on asyncio and trio; anyio's costs asyncio twenty times as much."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Self

__all__ = ["deadline", "restart"]


def deadline(seconds: float | None) -> Any:
    """Raise ``TimeoutError`` after a longer ``async with``; ``None``: none before ``restart``."""
    if asyncio._get_running_loop() is not None:
        return asyncio.timeout(seconds)
    return _TrioDeadline(seconds)


def restart(bound: Any, seconds: float | None) -> None:
    """Let a deadline end so many seconds from now; ``None``: never."""
    bound.reschedule(None if seconds is None else _now() + seconds)


def _now() -> float:
    loop = asyncio._get_running_loop()
    if loop is not None:
        return loop.time()
    import trio

    return trio.current_time()


class _TrioDeadline:
    def __init__(self, seconds: float | None) -> None:
        import trio

        self._scope = trio.CancelScope()
        if seconds is not None:
            self._scope.deadline = _now() + seconds

    def reschedule(self, when: float | None) -> None:
        self._scope.deadline = math.inf if when is None else when

    async def __aenter__(self) -> Self:
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        handled = bool(self._scope.__exit__(kind, error, traceback))
        if self._scope.cancelled_caught:
            raise TimeoutError
        return handled
