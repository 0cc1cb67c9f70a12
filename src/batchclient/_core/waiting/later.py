"""Retries: groups of calls that failed together and may not go yet.

Rules:
- A group waits until a time. Then it is due.
- A due group may have to wait for more, as for its endpoint's retry budget or for the answer of a
  lone member. It stands in a line of those that wait for the same thing, and passes none of them.
- A group that waits no longer is an ordinary group of the queue, in front of younger calls.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from itertools import chain

from batchclient._core.messages import Request, RequestState
from batchclient._core.waiting.groups import Group

__all__ = ["Later"]

_BACKING_OFF = RequestState.BACKING_OFF


class Later:
    """Groups that wait for their time, or in a line. ``size`` counts their calls."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Group]] = []
        """(``not_before``, ticket, group). The ticket breaks ties: groups are not comparable."""
        self._lines: dict[Hashable, deque[Group]] = {}
        self._ticket = 0
        self.size = 0

    def add(self, group: Group, requests: list[Request], not_before: float, line: Hashable | None = None) -> None:
        """Let calls that failed together wait until a time, or at the end of a line."""
        for request in requests:
            request.state = _BACKING_OFF
            group.add(request)
        group.not_before = not_before
        self.size += len(requests)
        if line is None:
            self.push(group)
        else:
            self.hold(group, line)

    def hold(self, group: Group, line: Hashable) -> None:
        """Let a due group wait for more, at the end of a line."""
        self._lines.setdefault(line, deque()).append(group)

    def next(self) -> float | None:
        """When the first group is due that stands in no line."""
        first = self.peek()
        return None if first is None else first.not_before

    def peek(self) -> Group | None:
        """The group that is due next, of those in no line."""
        heap = self._heap
        while heap and not heap[0][2].size:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self, now: float) -> Group | None:
        """Remove and return the group that is due next, if its time has come."""
        first = self.peek()
        if first is None or first.not_before > now:
            return None
        heapq.heappop(self._heap)
        return first

    def push(self, group: Group) -> None:
        """Let a group wait for its time (again)."""
        self._ticket += 1
        heapq.heappush(self._heap, (group.not_before, self._ticket, group))

    def first(self, line: Hashable) -> Group | None:
        """The first group of a line; its callers may all have gone."""
        groups = self._lines.get(line)
        return groups[0] if groups else None

    def leave(self, line: Hashable) -> Group:
        """Remove and return the first group of a line, which has one."""
        groups = self._lines[line]
        group = groups.popleft()
        if not groups:
            del self._lines[line]
        return group

    def dissolve(self, line: Hashable) -> list[Group]:
        """Remove and return all groups of a line."""
        return list(self._lines.pop(line, ()))

    def release(self, group: Group) -> list[Request]:
        """The calls of a removed group wait no longer: return them."""
        self.size -= group.size
        return list(group)

    def requests(self) -> list[Request]:
        """Every call that waits, group by group."""
        groups = chain((entry[2] for entry in self._heap), *self._lines.values())
        return [request for group in groups for request in group]
