"""A clock for the client's own threads, which runs on while a test has frozen time.

A loop whose clock stands still fires no timer, and a blocking call would never return. freezegun
replaces ``time.monotonic`` and ``time.perf_counter`` in every module that holds them, the event
loop's included. freezegun replaces neither ``time.clock_gettime`` nor the function inside a
partial. time-machine leaves monotonic clocks alone. A program's own event loop is its own business.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["make_loop", "now"]

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime") else partial(time.monotonic)
)
"""Monotonic seconds."""
_turn = threading.Lock()
"""Of the green loops that are at work; a green loop that waits for sockets leaves it to others."""


def make_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop with this clock."""
    gevent = sys.modules.get("gevent.monkey")
    green = gevent is not None and gevent.is_module_patched("threading")
    loop = _GreenLoop() if green else asyncio.new_event_loop()
    # Other loops, such as uvloop's, have a clock of their own.
    if isinstance(loop, asyncio.BaseEventLoop):
        loop.time = now  # type: ignore[method-assign]
    return loop


class _GreenLoop(asyncio.SelectorEventLoop):
    """A loop in one of gevent's threads, which share asyncio's running loop: one works at a time."""

    _outside: tuple[Any, Any] = None, (None, None)
    """The running loop, and the hooks of async generators, of whoever else is in the thread."""

    def __init__(self) -> None:
        selector: Any = selectors.DefaultSelector()
        super().__init__(selector)
        selector.select = partial(self._wait, selector.select)

    def run_forever(self) -> None:
        _turn.acquire()
        self._swap()
        try:
            super().run_forever()
        finally:
            self._swap()
            _turn.release()

    def _wait(self, select: Callable[[float | None], Any], timeout_s: float | None) -> Any:
        self._swap()
        _turn.release()
        try:
            return select(timeout_s)
        finally:
            _turn.acquire()
            self._swap()

    def _swap(self) -> None:
        loop, hooks = self._outside
        self._outside = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(loop)
        sys.set_asyncgen_hooks(*hooks)
