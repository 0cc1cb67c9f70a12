"""Deadlines of calls: a heap with lazy deletion that never holds more than twice the live ones."""

from __future__ import annotations

import heapq

from batchclient._core.messages import Request, RequestState

__all__ = ["Deadlines"]

_SMALLEST_SWEEP = 1024
_GONE = (RequestState.DONE, RequestState.ABANDONED)


class Deadlines:
    """Requests by deadline. O(log n) in, amortised O(log n) out.

    Requests that ended stay in the heap until they reach its top or until as many have ended as are left, when the
    heap is rebuilt: a million finished calls with a deadline of ten minutes must not pile up.
    """

    __slots__ = ("_ended", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._ended = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request that has a deadline."""
        assert request.deadline is not None
        heapq.heappush(self._heap, (request.deadline, request.seq, request))

    def ended(self, count: int) -> None:
        """Some watched requests have ended by themselves."""
        self._ended += count
        if self._ended > _SMALLEST_SWEEP and self._ended * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].state not in _GONE]
            heapq.heapify(self._heap)
            self._ended = 0

    def next(self) -> float | None:
        """The earliest deadline of a live request."""
        heap = self._heap
        while heap and heap[0][2].state in _GONE:
            heapq.heappop(heap)
            self._ended = max(0, self._ended - 1)
        return heap[0][0] if heap else None

    def expired(self, now: float) -> list[Request]:
        """Remove and return the live requests whose deadline is not after ``now``."""
        due: list[Request] = []
        while (first := self.next()) is not None and first <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
