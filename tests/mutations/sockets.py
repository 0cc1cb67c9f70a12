"""Sockets in virtual time: every connection of the loop is a pair of sockets in this process, and a server holds the other end.

What one end writes can be read at the other at once. So time may jump whenever nothing is ready, and no run depends on a machine's speed.
The direct way and httpx, their parsers and pools are the real ones.
"""

import socket
import time
from contextlib import contextmanager

from batchclient.testing import Stuck, VirtualLoop
from batchclient.testing._clock import _JumpingSelector

__all__ = ["PairLoop", "on_the_loops_clock"]


class _PairSelector(_JumpingSelector):
    """Jumps although sockets are open: their other ends are in this loop, too."""

    def select(self, timeout=None):
        ready = self.real.select(0)
        if not ready and timeout is None:
            raise Stuck("every task waits for another and no timer is set")
        if not ready:
            self._hands.now += max(0.0, timeout)
        return ready


class PairLoop(VirtualLoop):
    """A virtual loop that connects to ``serve``, whatever the address.

    Args:
        serve: given the server's end of each connection.
    """

    def __init__(self):
        super().__init__()
        self._selector = _PairSelector(self._selector.real, self._hands)
        self.serve = None

    async def create_connection(self, protocol_factory, host=None, port=None, **others):
        ours, theirs = socket.socketpair()
        ours = _NoTcp(fileno=ours.detach())
        ours.setblocking(False)
        theirs.setblocking(False)
        self.serve(theirs)
        return await super().create_connection(protocol_factory, sock=ours)


class _NoTcp(socket.socket):
    """No pair has TCP's options."""

    def setsockopt(self, *option):
        pass


@contextmanager
def on_the_loops_clock(loop):
    """Have ``time.monotonic``, by which pools tell how long a socket was idle, show the loop's time."""
    real, time.monotonic = time.monotonic, loop.time
    try:
        yield
    finally:
        time.monotonic = real
