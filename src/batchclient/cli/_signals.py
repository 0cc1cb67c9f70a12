"""A command that a signal ends: the first stops its work, the second ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from batchclient.jobs.statuses import of_signal

__all__ = ["Stopped", "ending_signals", "on_signals", "stopped_by_signals"]


class Stopped:
    """Work that a signal ends.

    Attributes:
        signal: the signal that came; 0: none.
    """

    def __init__(self) -> None:
        self.signal: int = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, until its end or a signal."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(work)
        with suppress(asyncio.CancelledError):
            await self._task

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            os._exit(of_signal(number))
        self.signal = number
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)


@contextmanager
def stopped_by_signals() -> Iterator[Stopped]:
    """Catch the signals that end a command, while its work runs."""
    stopped = Stopped()
    previous = [(number, signal.signal(number, stopped._on_signal)) for number in ending_signals()]
    try:
        yield stopped
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


@contextmanager
def on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Let the first signal ask a command to stop in its own time, and the second end the process.

    Args:
        stop: called with the first signal's number, within the signal handler.
    """
    is_stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(of_signal(number))
        is_stopping = True
        stop(number)

    previous = [(number, signal.signal(number, handle)) for number in ending_signals()]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command. ``nohup`` has a hangup ignored, and so it is."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    return numbers
