"""Virtual time for asyncio, as it is published, and a way to run in it; trio brings its own (``trio.testing.MockClock``)."""

import asyncio

from batchclient.testing import Stuck, VirtualLoop

__all__ = ["Stuck", "VirtualLoop", "run"]


def run(function, *arguments):
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(function(*arguments))
