"""A command that a signal ends: the first asks the work to stop, the second ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from batchclient.jobs.statuses import of_signal

__all__ = ["on_signals", "until_signal"]


@contextmanager
def on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Catch Ctrl-C, SIGTERM and, but under ``nohup``, a hangup.

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

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = [(number, signal.signal(number, handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def until_signal(work: Coroutine[Any, Any, object]) -> int:
    """Run a coroutine until its end, or until a signal cancels it.

    Returns:
        The number of the signal; 0: none came.
    """
    return asyncio.run(_until_signal(work))


async def _until_signal(work: Coroutine[Any, Any, object]) -> int:
    loop, task, ended_by = asyncio.get_running_loop(), asyncio.ensure_future(work), 0

    def stop(number: int) -> None:
        nonlocal ended_by
        ended_by = number
        loop.call_soon_threadsafe(task.cancel)

    with on_signals(stop), suppress(asyncio.CancelledError):
        await task
    return ended_by
