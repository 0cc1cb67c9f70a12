"""The signals that end a command."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from batchclient.jobs.statuses import of_signal

__all__ = ["on_signals"]


@contextmanager
def on_signals(stop: Callable[[int], None], before_exit: Callable[[], None] | None = None) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP stop a command, and the second one the process.

    Args:
        stop: called with the first signal's number, within the signal handler.
        before_exit: called before the second signal ends the process.
    """
    is_stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            if before_exit is not None:
                before_exit()
            os._exit(of_signal(number))
        is_stopping = True
        stop(number)

    previous = [(number, signal.signal(number, handle)) for number in _ending_signals()]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command. ``nohup`` has a hangup ignored, and so it is."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    return numbers
