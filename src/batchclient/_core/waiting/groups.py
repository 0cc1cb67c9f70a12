"""Groups: requests of one shape which may share a batch, and the order among them.

Rules:
- A group has its requests in the order of arrival. Without an index they go in that order.
- An *index* says which go next in another order: by length (``Buckets``), by rank, for orders other
  than ``fcfs`` (``Ranks``), or by shared prefix (``prefix_tree``).
- A *sealed* group holds requests which failed together and never mix with fresh requests. A *whole*
  group is one half of a list under isolation; only a lack of permits cuts it further.
- A request names the group in which it waits. Whoever was cancelled or taken names none, and is
  passed over. Once most of a group or of its index has gone, it is swept.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import NamedTuple

from batchclient._core.lane import Lane
from batchclient._core.messages import Isolation, Request, Shape
from batchclient._core.waiting.order import Order

__all__ = ["Buckets", "Group", "Index", "Overflow", "Ranks"]

_SMALLEST_SWEEP = 64
_LOOKED_AT = 64
"""How many calls out of reach a ranked batch passes over before the search stops."""


class Index(ABC):
    """A group's requests in the order in which they go, also those which have gone meanwhile."""

    __slots__ = ()
    is_of_families = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def clear(self) -> None:
        """Hold no request any more."""

    @abstractmethod
    def add(self, request: Request, path: Sequence[int] | None = None) -> None:
        """Put a request in its place; ``path`` is its rungs, if they are known."""

    @abstractmethod
    def take(self, group: Group, count: int, reach: int | None, now: float) -> list[Request]:
        """Remove and return up to ``count`` requests (see ``Group.take``), which then name no group."""


class Overflow(NamedTuple):
    """Why calls wait for no cheaper server, and the ids of the dearer endpoints that take them."""

    why: str
    to: frozenset[int]


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """Requests of one shape which may travel together.

    Args:
        overflow: set where calls may go to dearer servers (see ``prices``).
        retry: what whoever lets the group wait keeps for its return; opaque here.
    """

    shape: Shape
    _: KW_ONLY
    sealed: bool = False
    whole: bool = False
    failures: int = 0
    isolation: Isolation | None = None
    bare: bool = False
    retry: object = None
    index: Index | None = None
    overflow: Overflow | None = None
    has_families: bool = field(init=False, default=False)
    """Whether the calls go by their prefixes."""
    not_before: float = field(init=False, default=0.0)
    """Until when the group waits, outside the order (see ``later``)."""
    lane: Lane | None = field(init=False, default=None)
    """The queue's own: the lane in which the group waits."""
    ticket: int = field(init=False, default=0)
    """The queue's own: the number of the group's valid entry in the order."""
    size: int = field(init=False, default=0)
    bucket: int | None = field(init=False, default=None)
    """The length bucket of all requests, while they have no index."""
    _arrivals: deque[Request] = field(init=False, default_factory=deque)

    def __repr__(self) -> str:
        kind = "sealed " if self.sealed else ""
        return f"<{kind}Group of {self.size}, failures {self.failures}>"

    def add(self, request: Request, path: Sequence[int] | None = None) -> None:
        """Put a request behind the others; ``path`` is its rungs, if they are known."""
        request.group = self
        self._arrivals.append(request)
        self.size += 1
        if self.index is not None:
            self.index.add(request, path)
        elif request.bucket != self.bucket:
            if self.bucket is not None and not self.whole:
                self.sort_by(Buckets())
            self.bucket = request.bucket

    def sort_by(self, index: Index) -> None:
        """Let the requests go in another order from now on."""
        self.index, self.has_families = index, index.is_of_families
        index.clear()
        for request in self:
            index.add(request)

    def discard(self) -> None:
        """A request of the group has ended."""
        self.size -= 1
        self._sweep()

    def oldest(self) -> Request | None:
        """The request which came first."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].group is not self:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def rank(self, order: Order) -> tuple[float, int] | None:
        """The group's place: rank and number of its first request; ``None`` if it is empty."""
        if type(self.index) is Ranks:
            return self.index.first(self)
        oldest = self.oldest()
        return None if oldest is None else (order.rank(oldest), oldest.seq)

    def take(self, count: int, reach: int | None, now: float) -> list[Request]:
        """Remove and return up to ``count`` requests.

        ``count``: at least 1. ``reach``: how many buckets away a companion of the first may lie;
        ``None``: any.
        """
        if self.index is not None:
            taken = self.index.take(self, count, reach, now)
            self.size -= len(taken)
            self._sweep()
            return taken
        arrivals, taken = self._arrivals, []
        some_have_gone = len(arrivals) > self.size
        while arrivals and len(taken) < count:
            # All that fit at once: a look at the room for each call costs more than the taking.
            come = [arrivals.popleft() for _ in range(min(count - len(taken), len(arrivals)))]
            taken += [request for request in come if request.group is self] if some_have_gone else come
        self.size -= len(taken)
        return taken

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

    def take_back(self, requests: Sequence[Request]) -> None:
        """Take back requests that were taken, into their places."""
        waiting = sorted([*self, *requests], key=attrgetter("seq"))
        for request in requests:
            request.group = self
        self._arrivals, self.size = deque(waiting), len(waiting)
        if self.index is None and not self.whole and any(request.bucket != self.bucket for request in requests):
            self.index = Buckets()
        if self.index is not None:
            self.sort_by(self.index)

    def __iter__(self) -> Iterator[Request]:
        """The requests, oldest first."""
        return (request for request in self._arrivals if request.group is self)

    def _sweep(self) -> None:
        most = 2 * self.size + _SMALLEST_SWEEP
        if len(self._arrivals) > most:
            self._arrivals = deque(self)
        if self.index is not None and len(self.index) > most:
            self.sort_by(self.index)


class Buckets(Index):
    """Requests by length: first the bucket of the oldest, then the nearest, as far as ``reach``."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: defaultdict[int, deque[Request]] = defaultdict(deque)

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def clear(self) -> None:
        self._buckets.clear()

    def add(self, request: Request, path: Sequence[int] | None = None) -> None:
        self._buckets[request.bucket].append(request)

    def take(self, group: Group, count: int, reach: int | None, now: float) -> list[Request]:
        oldest = group.oldest()
        if oldest is None:
            return []
        home, taken = oldest.bucket, list[Request]()
        order = sorted(self._buckets, key=lambda index: (abs(index - home), index))
        if reach is not None:
            order = [index for index in order if abs(index - home) <= reach]
        for index in order:
            bucket = self._buckets[index]
            while bucket and len(taken) < count:
                come = [bucket.popleft() for _ in range(min(count - len(taken), len(bucket)))]
                taken += [request for request in come if request.group is group]
            if not bucket:
                del self._buckets[index]
        for request in taken:
            request.group = None
        if len(self._buckets) == 1:
            # As if no other length had come.
            group.bucket, group.index = next(iter(self._buckets)), None
        return taken


class Ranks(Index):
    """Requests by rank, the lowest first, in reach of the first. Adding and taking are O(log size)."""

    __slots__ = ("_heap", "_order")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._heap: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    def add(self, request: Request, path: Sequence[int] | None = None) -> None:
        heapq.heappush(self._heap, (self._order.rank(request), request.seq, request))

    def first(self, group: Group) -> tuple[float, int] | None:
        """The first request's rank and number; ``None`` if the group is empty."""
        heap = self._heap
        while heap and heap[0][2].group is not group:
            heapq.heappop(heap)
        return heap[0][:2] if heap else None

    def take(self, group: Group, count: int, reach: int | None, now: float) -> list[Request]:
        taken: list[Request] = []
        far: list[tuple[float, int, Request]] = []
        while self._heap and len(taken) < count and len(far) < _LOOKED_AT:
            entry = heapq.heappop(self._heap)
            request = entry[2]
            if request.group is not group:
                continue
            if taken and reach is not None and abs(request.bucket - taken[0].bucket) > reach:
                far.append(entry)
            else:
                request.group = None
                taken.append(request)
        for entry in far:
            heapq.heappush(self._heap, entry)
        return taken
