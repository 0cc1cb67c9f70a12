"""Groups: requests of one shape which may share a batch, and the order among them.

Rules:
- ``Group``: length buckets, first come first served in each. A batch is filled from the bucket of
  the group's oldest request, then from the nearest buckets, as far as ``reach``.
- ``RankedGroup``: by rank, for orders other than ``fcfs``.
- ``FamilyGroup``: by shared prefix, for long prompts. Calls of warm families go first (see
  ``conversations``), then the oldest call and its family (see ``prefixes.families``).
- A *sealed* group holds requests which failed together and never mix with fresh requests. A *whole*
  group is one half of a list under isolation; only a lack of permits cuts it further.
- A cancelled or taken request stays in place until it reaches the front: both are O(1). When more
  than half of a group is dead, the group is swept.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

from batchclient._core.lane import Lane
from batchclient._core.messages import Isolation, Request, Shape
from batchclient._core.prefixes.conversations import Conversations
from batchclient._core.prefixes.families import PrefixTree
from batchclient._core.waiting.order import Order

__all__ = ["FamilyGroup", "Group", "RankedGroup"]

_SMALLEST_SWEEP = 64
_LOOKED_AT = 64
"""How many calls out of reach a ranked batch passes over before the search stops."""
_FCFS = Order()


class Group:
    """Requests of one shape which may travel together, first come first served."""

    __slots__ = (
        "_buckets",
        "_dead",
        "bare",
        "failures",
        "isolation",
        "lane",
        "not_before",
        "order",
        "retry",
        "sealed",
        "shape",
        "size",
        "ticket",
        "whole",
    )

    def __init__(
        self,
        shape: Shape,
        order: Order = _FCFS,
        *,
        sealed: bool = False,
        whole: bool = False,
        failures: int = 0,
        isolation: Isolation | None = None,
        bare: bool = False,
        retry: object = None,
    ) -> None:
        self.shape = shape
        self.bare = bare
        self.sealed = sealed
        self.whole = whole
        self.failures = failures
        self.isolation = isolation
        self.retry = retry
        """What whoever lets the group wait keeps for its return; opaque here."""
        self.not_before = 0.0
        """Until when the group waits, outside the order (see ``later``)."""
        self.lane: Lane | None = None
        """The queue's own: the lane in which the group waits."""
        self.ticket = 0
        """The queue's own: the number of the group's valid entry in the order."""
        self.size = 0
        self.order = order
        self._dead = 0
        self._buckets: dict[int, deque[Request]] = {}

    def __repr__(self) -> str:
        kind = "sealed " if self.sealed else ""
        return f"<{kind}Group of {self.size}, failures {self.failures}>"

    def add(self, request: Request) -> None:
        """Put a request behind the others of its bucket."""
        bucket = self._buckets.get(request.bucket)
        if bucket is None:
            self._buckets[request.bucket] = bucket = deque()
        bucket.append(request)
        self.size += 1

    def discard(self) -> None:
        """A queued request of the group has ended."""
        self.size -= 1
        self._dead += 1
        if self._dead > _SMALLEST_SWEEP and self._dead > self.size:
            for index in list(self._buckets):
                live = deque(request for request in self._buckets[index] if request.group is self)
                if live:
                    self._buckets[index] = live
                else:
                    del self._buckets[index]
            self._dead = 0

    def oldest(self) -> Request | None:
        """The live request which came first."""
        first: Request | None = None
        for bucket in self._buckets.values():
            while bucket and bucket[0].group is not self:
                bucket.popleft()
                self._dead -= 1
            if bucket and (first is None or bucket[0].seq < first.seq):
                first = bucket[0]
        return first

    def first(self) -> Request | None:
        """The same request; nothing is changed, so dead requests before it are passed each time."""
        firsts = [next((one for one in bucket if one.group is self), None) for bucket in self._buckets.values()]
        return min((one for one in firsts if one is not None), key=lambda one: one.seq, default=None)

    def rank(self) -> tuple[float, int] | None:
        """The group's place: rank and number of its first request; ``None`` if it is empty."""
        first = self.oldest()
        return None if first is None else (self.order.rank(first), first.seq)

    def take(self, count: int, reach: int | None, now: float) -> list[Request]:
        """Remove and return up to ``count`` requests: the oldest's bucket first, then the nearest.

        ``count``: at least 1. ``reach``: how many buckets away a companion may lie; ``None``: any.
        """
        first = self.oldest()
        if first is None:
            return []
        if self.whole or len(self._buckets) == 1:
            order = list(self._buckets)
        else:
            home = first.bucket
            order = sorted(self._buckets, key=lambda index: (abs(index - home), index))
            if reach is not None:
                order = [index for index in order if abs(index - home) <= reach]
        taken: list[Request] = []
        for index in order:
            bucket = self._buckets[index]
            while bucket and len(taken) < count:
                # All that fit at once: a look at the room for each call costs more than the taking.
                come = [bucket.popleft() for _ in range(min(count - len(taken), len(bucket)))]
                if self._dead:
                    live = [request for request in come if request.group is self]
                    self._dead -= len(come) - len(live)
                    taken += live
                else:
                    taken += come
            if not bucket:
                del self._buckets[index]
            if len(taken) == count:
                break
        self.size -= len(taken)
        return taken

    def take_newest(self, count: int) -> list[Request]:
        """Remove and return up to ``count`` requests, the last come first."""
        taken: list[Request] = []
        while len(taken) < count:
            newest = max((bucket for bucket in self._buckets.values() if bucket), key=_last, default=None)
            if newest is None:
                break
            request = newest.pop()
            if request.group is self:
                taken.append(request)
            else:
                self._dead -= 1
        self.size -= len(taken)
        return taken

    def give_up(self) -> list[Request]:
        """Empty the group; return its requests, oldest first."""
        requests = sorted(self, key=lambda request: request.seq)
        self._buckets.clear()
        self.size = self.ticket = self._dead = 0
        return requests

    def __iter__(self) -> Iterator[Request]:
        """The live requests, in no particular order."""
        for bucket in self._buckets.values():
            for request in bucket:
                if request.group is self:
                    yield request


class _AgedGroup(Group):
    """A group not ordered by arrival, which is kept beside. Live requests name it as ``group``."""

    __slots__ = ("_arrivals",)

    def __init__(self, shape: Shape, order: Order = _FCFS) -> None:
        super().__init__(shape, order)
        self._arrivals: deque[Request] = deque()

    def discard(self) -> None:
        """A queued request of the group has ended."""
        self.size -= 1
        self._sweep()

    def oldest(self) -> Request | None:
        """The live request which came first."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].group is not self:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def first(self) -> Request | None:
        """The same request; nothing is changed."""
        return next(iter(self), None)

    def take_newest(self, count: int) -> list[Request]:
        """Remove and return up to ``count`` requests, the last come first."""
        taken: list[Request] = []
        while self._arrivals and len(taken) < count:
            request = self._arrivals.pop()
            if request.group is self:
                request.group = None
                taken.append(request)
        self.size -= len(taken)
        self._sweep()
        return taken

    def __iter__(self) -> Iterator[Request]:
        """The live requests, oldest first."""
        return (request for request in self._arrivals if request.group is self)

    def _sweep(self) -> None:
        if len(self._arrivals) > 2 * self.size + _SMALLEST_SWEEP:
            self._arrivals = deque(self)


def _last(bucket: deque[Request]) -> int:
    return bucket[-1].seq


class RankedGroup(_AgedGroup):
    """Requests of one shape, lowest rank first. Adding and taking are O(log size)."""

    __slots__ = ("_heap",)

    def __init__(self, shape: Shape, order: Order) -> None:
        super().__init__(shape, order)
        self._heap: list[tuple[float, int, Request]] = []

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        request.group = self
        heapq.heappush(self._heap, (self.order.rank(request), request.seq, request))
        self._arrivals.append(request)
        self.size += 1

    def rank(self) -> tuple[float, int] | None:
        """The first request's rank and number; ``None`` if the group is empty."""
        heap = self._heap
        while heap and heap[0][2].group is not self:
            heapq.heappop(heap)
        return heap[0][:2] if heap else None

    def take(self, count: int, reach: int | None, now: float) -> list[Request]:
        """Remove and return up to ``count`` requests in reach of the first, lowest rank first."""
        taken: list[Request] = []
        far: list[tuple[float, int, Request]] = []
        while self._heap and len(taken) < count and len(far) < _LOOKED_AT:
            entry = heapq.heappop(self._heap)
            request = entry[2]
            if request.group is not self:
                continue
            if taken and reach is not None and abs(request.bucket - taken[0].bucket) > reach:
                far.append(entry)
                continue
            request.group = None
            taken.append(request)
        for entry in far:
            heapq.heappush(self._heap, entry)
        self.size -= len(taken)
        self._sweep()
        return taken

    def _sweep(self) -> None:
        super()._sweep()
        if len(self._heap) > 2 * self.size + _SMALLEST_SWEEP:
            self._heap = [entry for entry in self._heap if entry[2].group is self]
            heapq.heapify(self._heap)


class FamilyGroup(_AgedGroup):
    """Requests of one shape whose prompts may share long prefixes: the oldest, then its family."""

    __slots__ = ("_conversations", "_tree", "_warm")

    def __init__(self, shape: Shape, order: Order, conversations: Conversations) -> None:
        super().__init__(shape, order)
        self._conversations = conversations
        self._tree = PrefixTree(conversations.longest_run_s)
        self._warm: list[Request] = []
        """Calls whose families were warm on arrival; all are in the tree, too."""

    def add(self, request: Request, path: Sequence[int] = ()) -> None:
        """Put a request among its family; ``path`` is its rungs, empty for a short prompt."""
        request.group = self
        self._tree.add(request, path)
        if request.family and self._conversations.is_warm(request.family, request.queued_at):
            self._warm.append(request)
        self._arrivals.append(request)
        self.size += 1

    def take(self, count: int, reach: int | None, now: float) -> list[Request]:
        """Take up to ``count`` requests: warm calls, then by the prefix shared with the last."""
        taken: list[Request] = []
        while len(taken) < count and (oldest := self.oldest()) is not None:
            request = self._next_warm(now) or self._tree.next(oldest, now)
            request.group = None
            self.size -= 1
            taken.append(request)
        self._sweep()
        return taken

    def _next_warm(self, now: float) -> Request | None:
        while self._warm:
            # The last come first: its family was answered last, so is likely still in the cache.
            request = self._warm.pop()
            if request.group is self and self._conversations.is_warm(request.family, now):
                return request
        return None

    def _sweep(self) -> None:
        super()._sweep()
        if len(self._warm) > 2 * self.size + _SMALLEST_SWEEP:
            self._warm = [request for request in self._warm if request.group is self]
        if self._tree.held > 2 * self.size + _SMALLEST_SWEEP:
            self._tree.sweep(self)
