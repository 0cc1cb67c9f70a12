"""Virtual time for asyncio, as it is published, and a way to run in it; trio brings its own (``trio.testing.MockClock``)."""

import asyncio

from batchclient.testing import Stuck, VirtualLoop

__all__ = ["Stuck", "VirtualLoop", "WatchedLoop", "run"]


def run(function, *arguments):
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(function(*arguments))


class WatchedLoop(VirtualLoop):
    """Remembers its timers."""

    def __init__(self):
        self.timers = []
        super().__init__()

    def call_at(self, when, callback, *args, context=None):
        timer = super().call_at(when, callback, *args, context=context)
        self.timers.append(timer)
        return timer

    def alive(self):
        """Timers that will still fire, and tasks other than the one that asks."""
        timers = [each for each in self.timers if not each.cancelled() and each.when() > self.time()]
        return timers + [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
