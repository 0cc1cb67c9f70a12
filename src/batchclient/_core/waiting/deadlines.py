"""Deadlines of calls, earliest first, without growing dear or large.

Rules:
- Calls with equal timeouts have their deadlines in the order of their arrival: those lie in a run, O(1) in and out. Only a
  call whose deadline comes before the last of the run goes into a heap, O(log n).
- A deadline may be put off by changing the request's: its entry is looked at when its old time comes, and put back.
- Deletion is lazy: a request that ended stays until it reaches the front, or until as many have ended as are left, when
  all are swept. A million finished calls with a deadline of ten minutes must not pile up. ``ended`` is told of each that had
  a deadline when it ended, of those that ``expired`` has returned as well.
"""

from __future__ import annotations

import heapq
from collections import deque

from batchclient._core.messages import Request, RequestState

__all__ = ["Deadlines"]

_SMALLEST_SWEEP = 1024
_GONE = (RequestState.DONE, RequestState.ABANDONED)


class Deadlines:
    """Requests by deadline."""

    __slots__ = ("_ended", "_heap", "_run")

    def __init__(self) -> None:
        self._run: deque[tuple[float, int, Request]] = deque()
        self._heap: list[tuple[float, int, Request]] = []
        self._ended = 0
        """How many of the entries are of calls that have ended, as far as that was told."""

    def __len__(self) -> int:
        return len(self._run) + len(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request that has a deadline."""
        assert request.deadline is not None
        entry = (request.deadline, request.seq, request)
        if not self._run or self._run[-1][0] <= request.deadline:
            self._run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def ended(self, count: int) -> None:
        """Some watched requests have ended by themselves."""
        self._ended += count
        if self._ended > _SMALLEST_SWEEP and self._ended * 2 > len(self):
            self._run = deque(entry for entry in self._run if entry[2].state not in _GONE)
            self._heap = [entry for entry in self._heap if entry[2].state not in _GONE]
            heapq.heapify(self._heap)
            self._ended = 0

    def next(self) -> float | None:
        """The earliest deadline of a live request."""
        run, heap = self._run, self._heap
        while run:
            at, _, request = run[0]
            if request.state in _GONE:
                self._drop(run.popleft()[2])
            elif at != request.deadline:
                self._put_back(run.popleft()[2])
            else:
                break
        while heap and (heap[0][2].state in _GONE or heap[0][0] != heap[0][2].deadline):
            self._put_back(heapq.heappop(heap)[2])
        if run and heap:
            return min(run[0][0], heap[0][0])
        return run[0][0] if run else heap[0][0] if heap else None

    def _put_back(self, request: Request) -> None:
        if request.state in _GONE:
            self._drop(request)
        elif request.deadline is not None:
            self.add(request)

    def _drop(self, request: Request) -> None:
        # Else the sweep would come again and again for those that the front has dropped. Who lost its deadline was not counted.
        if request.deadline is not None:
            self._ended -= 1

    def expired(self, now: float) -> list[Request]:
        """Remove and return the live requests whose deadline is not after ``now``, earliest first."""
        due: list[Request] = []
        while (first := self.next()) is not None and first <= now:
            run = self._run
            from_run = bool(run) and run[0][0] == first
            due.append((run.popleft() if from_run else heapq.heappop(self._heap))[2])
        self._ended -= len(due)  # they end now, and will be told like all others
        return due
