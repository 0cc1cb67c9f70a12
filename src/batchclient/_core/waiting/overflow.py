"""Calls waiting for a place in the queue, since their lane has ``max_queued`` calls there.

Rules:
- The queue is bounded per lane (tenant and priority class): a million background calls keep neither
  an interactive call nor another tenant's outside.
- Calls of a lane enter in the order of arrival.
- A call which has gone stays in its line until it reaches the front, or until most of the line has
  gone.
"""

from __future__ import annotations

from collections import deque

from batchclient._core.lane import Lane
from batchclient._core.messages import Request, RequestState
from batchclient._core.waiting.queue import Queue

__all__ = ["Overflow"]

_WAITING = RequestState.WAITING
_SMALLEST_SWEEP = 1024


class Overflow:
    """Calls waiting for the queue, by lane; ``max_queued`` bounds a lane's calls in the queue."""

    __slots__ = ("_lines", "_queue", "max_queued", "size")

    def __init__(self, queue: Queue, max_queued: int) -> None:
        self._queue = queue
        self.max_queued = max_queued
        self._lines: dict[Lane, deque[Request]] = {}
        self.size = 0

    @property
    def held(self) -> int:
        """Requests in the lines, gone requests too."""
        return sum(map(len, self._lines.values()))

    def is_full(self, request: Request) -> bool:
        """Whether the queue has no place for the request's lane."""
        return self._queue.lane_of(request.shape).size >= self.max_queued

    def add(self, request: Request) -> None:
        """Let a request wait."""
        request.state = _WAITING
        lane = self._queue.lane_of(request.shape)
        line = self._lines.get(lane)
        if line is None:
            self._lines[lane] = line = deque()
        line.append(request)
        lane.waiting += 1
        self.size += 1

    def discard(self, request: Request) -> None:
        """A waiting request has ended; its state must already say so."""
        lane = self._queue.lane_of(request.shape)
        lane.waiting -= 1
        self.size -= 1
        line = self._lines[lane]
        if len(line) > 2 * lane.waiting + _SMALLEST_SWEEP:
            # While the queue stands still nobody is let in: calls which gave up must not pile up.
            self._lines[lane] = deque(one for one in line if one.state is _WAITING)

    def admit(self) -> list[Request]:
        """Remove and return the requests for which there are places now."""
        admitted: list[Request] = []
        for lane, line in list(self._lines.items()):
            places = self.max_queued - lane.size
            while line and places > 0:
                request = line.popleft()
                if request.state is _WAITING:
                    admitted.append(request)
                    lane.waiting -= 1
                    places -= 1
            if not line:
                del self._lines[lane]
        self.size -= len(admitted)
        return admitted

    def requests(self) -> list[Request]:
        """Every waiting request, lane by lane."""
        return [request for line in self._lines.values() for request in line if request.state is _WAITING]
