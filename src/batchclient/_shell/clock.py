"""A clock for the client's own threads, which runs on while a test has frozen time.

A loop whose clock stands still fires no timer, and a blocking call would never return. freezegun
replaces ``time.monotonic`` and ``time.perf_counter`` in every module that holds them, the event
loop's included. freezegun replaces neither ``time.clock_gettime`` nor the function inside a
partial. time-machine leaves monotonic clocks alone. A program's own event loop is its own business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

__all__ = ["make_loop", "now"]

now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_MONOTONIC) if hasattr(time, "clock_gettime") else partial(time.monotonic)
)
"""Monotonic seconds."""


def make_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop with this clock."""
    loop = asyncio.new_event_loop()
    # Other loops, such as uvloop's, have a clock of their own.
    if isinstance(loop, asyncio.BaseEventLoop):
        loop.time = now  # type: ignore[method-assign]
    return loop
