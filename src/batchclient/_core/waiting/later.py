"""Retries: groups of calls that failed together and may not go yet.

Rules:
- A group waits until a time. Then it is due.
- A group that waits for more than its time, as for a retry budget or for the answer of a lone
  member, is only kept here: whoever lets it wait brings it back.
- A group that waits no longer is an ordinary group of the queue, in front of younger calls.
"""

from __future__ import annotations

import heapq

from batchclient._core.messages import Request, RequestState
from batchclient._core.waiting.groups import Group

__all__ = ["Later"]

_BACKING_OFF = RequestState.BACKING_OFF


class Later:
    """Groups that wait. ``size`` counts their calls."""

    def __init__(self) -> None:
        self._groups: dict[Group, None] = {}
        self._heap: list[tuple[float, int, Group]] = []
        """(``not_before``, ticket, group). The ticket breaks ties: groups are not comparable."""
        self._ticket = 0
        self.size = 0

    def keep(self, group: Group, requests: list[Request]) -> Group:
        """Let calls that failed together wait, until ``release``; return their group."""
        for request in requests:
            request.state = _BACKING_OFF
            group.add(request)
        self._groups[group] = None
        self.size += len(requests)
        return group

    def release(self, group: Group) -> list[Request]:
        """The calls of a group wait no longer: return them."""
        del self._groups[group]
        self.size -= group.size
        return list(group)

    def push(self, group: Group) -> None:
        """Let a group wait for its time (again)."""
        self._ticket += 1
        heapq.heappush(self._heap, (group.not_before, self._ticket, group))

    def peek(self) -> Group | None:
        """The group that is due next, of those that wait for their time."""
        heap = self._heap
        while heap and not heap[0][2].size:
            self.release(heapq.heappop(heap)[2])
        return heap[0][2] if heap else None

    def pop(self, now: float) -> Group | None:
        """Return the group that is due next, if its time has come; it is kept until ``release``."""
        first = self.peek()
        if first is None or first.not_before > now:
            return None
        heapq.heappop(self._heap)
        return first

    def requests(self) -> list[Request]:
        """Every call that waits, group by group."""
        return [request for group in self._groups for request in group]
