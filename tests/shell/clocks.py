"""Virtual time for asyncio: an event loop that jumps to its next timer when nothing else is left to do.

trio brings its own (``trio.testing.MockClock``). A test that would wait for ever fails at once: ``Stuck``.
"""

import asyncio
import selectors

__all__ = ["Stuck", "VirtualLoop", "run"]


class Stuck(RuntimeError):
    """Every task waits and no timer is set: nothing will ever happen."""


class _JumpingSelector(selectors.SelectSelector):
    loop: "VirtualLoop"

    def select(self, timeout=None):
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise Stuck("every task waits for another and no timer is set")
        self.loop.clock += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when it has nothing to do."""

    def __init__(self):
        selector = _JumpingSelector()
        selector.loop = self
        self.clock = 1000.0
        super().__init__(selector)

    def time(self):
        return self.clock


def run(function, *arguments):
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(function(*arguments))
