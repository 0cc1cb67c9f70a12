"""Refusals and cuts before a server: a bound on calls per window, a gateway's read timeout."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.lab.exchange import Reply
from tests.core import Batch, Failure, FailureKind

from batchclient.dialects._status import failure_of
from batchclient.errors import ConnectionLost

if TYPE_CHECKING:
    from benchmarks.lab.profiles import RateLimit
    from benchmarks.lab.server import LabServer

__all__ = ["CallWindow", "Gateway"]

_CUT = Failure(FailureKind.MAYBE_PROCESSED, ConnectionLost, "the gateway closed the connection")


class CallWindow:
    """Counts calls in windows of equal length, the first from 0 on.

    Gateways do so that limit calls per minute.
    """

    def __init__(self, rate: RateLimit) -> None:
        self._rate = rate
        self._window = 0
        self._taken = 0

    def refuses(self, calls: int, now: float) -> float | None:
        """The whole seconds for which the calls are to wait; ``None``: the calls may pass."""
        window_s = self._rate.window_s
        window = int(now / window_s)
        if window != self._window:
            self._window, self._taken = window, 0
        if self._taken + calls > self._rate.calls_per_window:
            # The header has whole seconds; a window's end in a moment is no time to come back.
            return float(max(1, math.ceil((window + 1) * window_s - now)))
        self._taken += calls
        return None


class Gateway:
    """Ends a request on which no byte came for ``patience_s``.

    The request ends with a 504, or with a closed connection if some bytes had come. nginx does the
    same after its ``proxy_read_timeout``. The gateway closes the connection to the server too,
    which forgets the request.

    Args:
        server: the server behind the gateway.
        patience_s: the longest wait for a byte.
    """

    def __init__(self, server: LabServer, patience_s: float) -> None:
        self._server = server
        self._patience_s = patience_s
        self._looks: list[tuple[float, int, Batch]] = []
        self._open: set[Batch] = set()
        self._sent = 0

    def send(self, batch: Batch, now: float) -> None:
        """Take a batch."""
        self._open.add(batch)
        self._look_at(now + self._patience_s, batch)
        self._server.send(batch, now)

    def abort(self, batch: Batch, now: float) -> None:
        """The client has closed the connection."""
        self._open.discard(batch)
        self._server.abort(batch, now)

    def advance(self, until: float) -> list[Reply]:
        """As ``LabServer.advance``."""
        looks = self._looks
        while True:
            look_at = looks[0][0] if looks else math.inf
            replies = self._server.advance(min(until, look_at))
            if replies:
                self._open.difference_update(reply.batch for reply in replies if reply.ended)
                return replies
            if look_at > until:
                return []
            _, _, batch = heapq.heappop(looks)
            if batch in self._open:
                heard_at, begun = self._server.heard_at(batch, look_at)
                if heard_at + self._patience_s <= look_at:
                    return [self._cut(batch, begun=begun, silent_s=look_at - heard_at, now=look_at)]
                self._look_at(heard_at + self._patience_s, batch)

    def _look_at(self, at: float, batch: Batch) -> None:
        self._sent += 1
        heapq.heappush(self._looks, (at, self._sent, batch))

    def _cut(self, batch: Batch, *, begun: bool, silent_s: float, now: float) -> Reply:
        self.abort(batch, now)
        if not begun:
            failure = failure_of(504, "Gateway Time-out", None, streamed=batch.streamed, retry_after_s=None)
        else:
            batch.wire.heard = True
            failure = _CUT
        return Reply(now, batch, [], True, replace(failure, silent_s=silent_s))
