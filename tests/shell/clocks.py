"""Virtual time for asyncio, as it is published, and a way to run in it; trio brings its own (``trio.testing.MockClock``)."""

import asyncio
import weakref

import anyio

from batchclient.testing import Stuck, VirtualLoop

__all__ = ["Stuck", "VirtualLoop", "WatchedLoop", "count_alive", "run"]


def run(function, *arguments):
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(function(*arguments))


FAR_OFF_S = 1e5
"""The timer that bounds every test lies further off."""


class WatchedLoop(VirtualLoop):
    """Remembers its timers, and keeps none alive."""

    def __init__(self):
        self._made = []
        super().__init__()

    def call_at(self, when, callback, *args, context=None):
        timer = super().call_at(when, callback, *args, context=context)
        if len(self._made) > 10_000:
            self._made = list(map(weakref.ref, self._live_timers()))
        self._made.append(weakref.ref(timer))
        return timer

    @property
    def timers(self):
        """Those that somebody still holds."""
        return [timer for each in self._made if (timer := each()) is not None]

    def _live_timers(self):
        # The loop calls a timer that is due within the clock's resolution.
        soon = self.time() + self._clock_resolution
        return [each for each in self.timers if not each.cancelled() and each.when() >= soon]

    def alive(self):
        """Timers that will still fire, and tasks other than the one that asks."""
        timers = [each for each in self._live_timers() if each.when() < self.time() + FAR_OFF_S]
        return timers + [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]


def count_alive():
    """How many tasks and timers there are, also on trio, where a timer of ours is a task."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return len(anyio.get_running_tasks())
    return len(loop.alive())
