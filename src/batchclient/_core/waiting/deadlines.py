"""Deadlines of calls, earliest first, at a low cost in time and memory.

Rules:
- Calls with equal timeouts have their deadlines in the order of arrival and lie in a run, O(1) in
  and out. Only a call whose deadline comes before the run's last goes into a heap, O(log n).
- A request has one entry. Its deadline may be put off or taken back: the entry is looked at when
  the old time comes, and put back.
- A call whose time runs from its grant (``timeout_s``) has no deadline before, and none again if
  the server did not take that grant on.
- Deletion is lazy: an ended request stays until it reaches the front, or until as many have ended
  as are left and all are swept. A million finished calls with a deadline of ten minutes must not
  pile up. Whoever ends a ``watched`` request tells ``ended``, also after ``expired`` has returned
  it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from batchclient._core.messages import Request, RequestState

__all__ = ["Deadlines"]

_SMALLEST_SWEEP = 1024
_GONE = (RequestState.DONE, RequestState.ABANDONED)


class Deadlines:
    """Requests by deadline."""

    def __init__(self) -> None:
        self._run: deque[tuple[float, int, Request]] = deque()
        self._heap: list[tuple[float, int, Request]] = []
        self.is_used = False
        """Whether any call ever had a deadline."""
        self._ended = 0
        """How many entries are of calls reported as ended."""

    def __len__(self) -> int:
        return len(self._run) + len(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request which has a deadline."""
        assert request.deadline is not None
        if request.watched:
            return
        request.watched = self.is_used = True
        entry = (request.deadline, request.seq, request)
        if not self._run or self._run[-1][0] <= request.deadline:
            self._run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def begin(self, requests: Iterable[Request], now: float) -> None:
        """Some calls were granted: those whose time runs from here have deadlines from now on."""
        for request in requests:
            if request.timeout_s is not None and request.deadline is None:
                request.deadline = now + request.timeout_s
                self.add(request)

    @staticmethod
    def take_back(requests: Iterable[Request], granted_at: float) -> None:
        """A grant was not taken on: those whose time ran from there have no deadline again."""
        for request in requests:
            deadline, timeout_s = request.deadline, request.timeout_s
            if deadline is not None and timeout_s is not None and deadline >= granted_at + timeout_s:
                request.deadline = None

    def ended(self, count: int) -> None:
        """Some watched requests have ended."""
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
            if request.state in _GONE or at != request.deadline:
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
            # Else entries dropped at the front would cause sweep after sweep.
            self._ended -= 1
            return
        request.watched = False
        if request.deadline is not None:
            self.add(request)

    def before(self, time: float) -> list[Request]:
        """Return live requests with a deadline not after ``time``, earliest first."""
        first = self.next()
        if first is None or first > time:
            return []
        due = [entry for entry in (*self._run, *self._heap) if entry[0] <= time and entry[0] == entry[2].deadline]
        return [request for _, _, request in sorted(due, key=lambda entry: entry[:2]) if request.state not in _GONE]

    def expired(self, now: float) -> list[Request]:
        """Remove and return live requests with a deadline not after ``now``, earliest first."""
        due: list[Request] = []
        while (first := self.next()) is not None and first <= now:
            run = self._run
            from_run = bool(run) and run[0][0] == first
            due.append((run.popleft() if from_run else heapq.heappop(self._heap))[2])
        self._ended -= len(due)  # they end now, and will be told like all others
        return due
