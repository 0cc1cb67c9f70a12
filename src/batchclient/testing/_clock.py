"""Virtual time: an event loop's clock that jumps to the next timer when nothing else is left to do.

Rules:
- ``VirtualLoop`` is such a loop. ``VirtualClock`` gives virtual time to any asyncio loop of its
  thread, whoever makes the loop: ``asyncio.run``, pytest-asyncio, anyio's plugin. For trio
  ``VirtualClock`` brings trio's own ``MockClock``.
- Time moves only in the selector, when no callback is ready. Timers fire in order, and none late.
- With ``jumps=False`` time moves no further than ``advance`` says.
- Sockets and threads live in real time. A loop with an open socket is ``Stuck``, since a jump could
  pass the socket's replies. Nothing tells whether a thread is about to wake the loop. Where no
  timer is set the loop waits a second of real time before ``Stuck``.
- Loops in other threads are left alone.

The way of taking a loop over: every loop of the standard library asks ``BaseEventLoop.time`` for
the time, also to decide how long to sleep. The first question wraps the loop's selector. At the end
both the method and the selector are as before.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

from batchclient.errors import ConfigError

__all__ = ["Stuck", "VirtualClock", "VirtualLoop"]

_STARTS_AT_S = 1000.0
"""Not 0, so that a time never set does not look like the start."""
_FOR_THREADS_S = 10.0


class Stuck(RuntimeError):
    """Virtual time cannot go on: nothing will wake any task, or a real socket is open."""


class _Hands:
    """The time of a clock, and the bound of its movement.

    Attributes:
        now: seconds.
        until: the latest time for the clock to show; infinity where the clock jumps.
        idlers: futures of tasks that wait until nothing is left to do.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.until = math.inf
        self.idlers: list[asyncio.Future[None]] = []


class _JumpingSelector:
    """A selector that never waits: where nothing is ready, virtual time passes instead."""

    def __init__(self, selector: selectors.BaseSelector, hands: _Hands) -> None:
        self.real = selector
        self._hands = hands
        self._has_given_up = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = self.real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._has_given_up:
            # The loop is ending: its sockets may need real time to close.
            began_s = time.monotonic()
            ready = self.real.select(timeout)
            self._hands.now += time.monotonic() - began_s
            return ready
        hands = self._hands
        if hands.idlers:
            idlers, hands.idlers = hands.idlers, []
            for each in idlers:
                if not each.done():
                    each.set_result(None)
            return ready
        # The loop itself owns one, by which other threads wake the loop.
        if len(self.real.get_map()) > 1:
            self._give_up(
                "a real socket is open, and virtual time would run past what it brings; use mock_llm, which has none"
            )
        ends_at = hands.until if timeout is None else min(hands.now + timeout, hands.until)
        if ends_at <= hands.now or ends_at == math.inf:
            # A thread that has ended since the first look may have woken the loop, too.
            if ready := self.real.select(_FOR_THREADS_S if threading.active_count() > 1 else 0):
                return ready
            if hands.until == math.inf:
                self._give_up("every task waits for another and no timer is set")
            self._give_up("every task waits and time stands still: move it with `await virtual_clock.advance(…)`")
        hands.now = ends_at
        return ready

    def _give_up(self, why: str) -> None:
        self._has_given_up = True
        raise Stuck(why)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when the loop has nothing to do.

    For example::

        asyncio.Runner(loop_factory=VirtualLoop)

    A wait without an end fails at once, with ``Stuck``.
    """

    def __init__(self) -> None:
        self._hands = _Hands(_STARTS_AT_S)
        selector: Any = _JumpingSelector(selectors.DefaultSelector(), self._hands)
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self._hands.now

    @property
    def clock(self) -> float:
        """The loop's time, which may be set: within a callback, as if the loop had stood still."""
        return self._hands.now

    @clock.setter
    def clock(self, seconds: float) -> None:
        self._hands.now = seconds


class VirtualClock:
    """Virtual time for the event loops of this thread, as a context manager.

    The fixture is ``virtual_clock``. For example::

        with VirtualClock() as clock:
            asyncio.run(main())         # an hour of backoff takes no time
            assert clock.elapsed_s == 3600

    On trio: ``trio.run(main, clock=clock.trio_clock)``.

    Args:
        jumps: whether time jumps to the next timer when every task waits; else time moves by
            ``advance`` only.
    """

    def __init__(self, *, jumps: bool = True) -> None:
        self._hands = _Hands(0.0)
        self._started_at = 0.0
        self._thread = 0
        self._loops: dict[asyncio.BaseEventLoop, Any] = {}
        self._trio_clock: Any = None
        self.jumps = jumps

    def __repr__(self) -> str:
        return f"<VirtualClock {self.elapsed_s:g} s {'jumps' if self.jumps else 'moved by hand'}>"

    @property
    def jumps(self) -> bool:
        """Whether time jumps to the next timer when every task waits; may be set at any time."""
        return self._jumps

    @jumps.setter
    def jumps(self, value: bool) -> None:
        if type(value) is not bool:
            raise ConfigError("jumps is True or False", field="jumps")
        self._jumps = value
        self._hands.until = math.inf if value else self._hands.now
        if self._trio_clock is not None:
            self._trio_clock.autojump_threshold = 0 if value else math.inf

    @property
    def elapsed_s(self) -> float:
        """Virtual seconds since the clock was started."""
        on_trio: float = 0.0 if self._trio_clock is None else self._trio_clock.current_time()
        # The clock counts on from the real clock. A float of seconds since the machine's start has
        # few places left after the point.
        return round(self._hands.now - self._started_at + on_trio, 9)

    @property
    def trio_clock(self) -> Any:
        """The clock for trio.

        Pass the clock to ``trio.run(main, clock=…)``, or return ``("trio", {"clock": …})`` from
        the fixture ``anyio_backend``.

        Raises:
            ImportError: trio is missing.
        """
        if self._trio_clock is None:
            import trio.testing

            self._trio_clock = trio.testing.MockClock(autojump_threshold=0 if self._jumps else math.inf)
        return self._trio_clock

    async def advance(self, seconds: float) -> None:
        """Let time pass, and let everything due on the way happen.

        Args:
            seconds: of virtual time, 0 or more.

        Raises:
            ConfigError: no number of seconds, or the running event loop has another clock.
        """
        if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
            raise ConfigError("seconds is a number of seconds, 0 or more", field="seconds")
        if asyncio._get_running_loop() is None:
            import trio.testing

            self._check_trio()
            target = self._trio_clock.current_time() + seconds
            # Timer by timer: each timer's callback must see the timer's own time.
            while self._trio_clock.current_time() < target:
                await trio.testing.wait_all_tasks_blocked()
                next_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
                self._trio_clock.jump(min(max(next_s, 0.0), target - self._trio_clock.current_time()))
            await trio.testing.wait_all_tasks_blocked()
            return
        self._own_loop()
        await self.settle()
        self._hands.until = max(self._hands.until, self._hands.now + seconds)
        await asyncio.sleep(seconds)
        await self.settle()

    async def settle(self) -> None:
        """Wait until everything has happened that can happen at this moment.

        Raises:
            ConfigError: the running event loop has another clock.
        """
        if asyncio._get_running_loop() is None:
            import trio.testing

            self._check_trio()
            await trio.testing.wait_all_tasks_blocked()
            return
        idle = self._own_loop().create_future()
        self._hands.idlers.append(idle)
        await idle

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        loop.time()  # takes it over, if nobody asked for the time yet
        if loop not in self._loops:
            raise ConfigError(
                "the running event loop has another clock: it is in another thread, or none of the standard library's"
            )
        return loop

    def _check_trio(self) -> None:
        if self._trio_clock is None or sys.modules["trio"].lowlevel.current_clock() is not self._trio_clock:
            raise ConfigError("trio runs by another clock: trio.run(…, clock=virtual_clock.trio_clock)")

    # Taking loops over -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        global _governing
        if _governing is not None:
            raise ConfigError("there is a virtual clock already; one is enough")
        self._thread = threading.get_ident()
        self._started_at = self._hands.now = time.monotonic()
        self.jumps = self._jumps
        _governing = self
        asyncio.BaseEventLoop.time = _time  # type: ignore[method-assign, assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _governing
        _governing = None
        asyncio.BaseEventLoop.time = _real_time  # type: ignore[method-assign]
        for loop, selector in self._loops.items():
            if not loop.is_closed():
                loop._selector = selector  # type: ignore[attr-defined]
        self._loops.clear()

    def _time(self, loop: asyncio.BaseEventLoop) -> float:
        if loop not in self._loops:
            selector = loop._selector  # type: ignore[attr-defined]
            self._loops[loop] = selector
            loop._selector = _JumpingSelector(selector, self._hands)  # type: ignore[attr-defined]
        return self._hands.now


_real_time = asyncio.BaseEventLoop.time
_governing: VirtualClock | None = None


def _time(loop: asyncio.BaseEventLoop) -> float:
    """The method ``BaseEventLoop.time`` while a clock governs."""
    clock = _governing
    # A client keeps the method: after the clock's end the method shows real time again.
    if clock is None or threading.get_ident() != clock._thread or not hasattr(loop, "_selector"):
        return _real_time(loop)
    return clock._time(loop)
