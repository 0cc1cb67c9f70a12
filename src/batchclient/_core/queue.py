"""What waits for a permit: groups of requests that may share a batch, oldest group first.

Rules:
- Within a group, requests lie in length buckets, first come first served in each.
- A batch is filled from the bucket of the group's oldest request, then from the nearest buckets, as far as ``reach``.
- A *sealed* group holds requests that failed together: they never mix with fresh ones. A *whole* group is one half of
  a list under isolation and is not cut further than permits force.
- A cancelled request stays in its deque until it reaches the front (its state says so): cancelling is O(1). When more
  than half of a group is dead weight, the group is swept.
- Groups are ordered by their oldest request in a heap whose stale entries are dropped when seen. All steps are O(log
  groups) or amortised O(1); nothing grows with the number of requests queued.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from batchclient._core.messages import Isolation, Request, RequestState, Shape

__all__ = ["Group", "Queue"]

_QUEUED = RequestState.QUEUED
_SMALLEST_SWEEP = 64


class Group:
    """Requests of one shape that may travel together."""

    __slots__ = ("_buckets", "_dead", "failures", "isolation", "sealed", "shape", "size", "whole")

    def __init__(
        self,
        shape: Shape,
        *,
        sealed: bool = False,
        whole: bool = False,
        failures: int = 0,
        isolation: Isolation | None = None,
    ) -> None:
        self.shape = shape
        self.sealed = sealed
        self.whole = whole
        self.failures = failures
        self.isolation = isolation
        self.size = 0
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
        """One of the group's requests has ended while queued."""
        self.size -= 1
        self._dead += 1
        if self._dead > 64 and self._dead > self.size:
            for index in list(self._buckets):
                live = deque(request for request in self._buckets[index] if request.state is _QUEUED)
                if live:
                    self._buckets[index] = live
                else:
                    del self._buckets[index]
            self._dead = 0

    def oldest(self) -> Request | None:
        """The live request that came first."""
        first: Request | None = None
        for bucket in self._buckets.values():
            while bucket and bucket[0].state is not _QUEUED:
                bucket.popleft()
                self._dead -= 1
            if bucket and (first is None or bucket[0].seq < first.seq):
                first = bucket[0]
        return first

    def take(self, count: int, reach: int | None) -> list[Request]:
        """Remove and return up to ``count`` requests: the oldest's bucket first, then the nearest.

        Args:
            count: at least 1.
            reach: how many buckets away a companion may lie; ``None``: any.
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
                request = bucket.popleft()
                if request.state is _QUEUED:
                    taken.append(request)
                else:
                    self._dead -= 1
            if not bucket:
                del self._buckets[index]
            if len(taken) == count:
                break
        self.size -= len(taken)
        return taken

    def __iter__(self) -> Iterator[Request]:
        """The live requests, in no particular order."""
        for bucket in self._buckets.values():
            for request in bucket:
                if request.state is _QUEUED:
                    yield request


class Queue:
    """All groups that wait, oldest first."""

    __slots__ = ("_fresh", "_heap", "_sweep_at", "_ticket", "size")

    def __init__(self) -> None:
        self._fresh: dict[bytes, Group] = {}
        self._heap: list[tuple[int, int, Group]] = []
        self._ticket = 0
        self._sweep_at = _SMALLEST_SWEEP
        self.size = 0

    def add(self, request: Request) -> Group:
        """Queue a fresh request; return its group."""
        key = request.shape.key
        group = self._fresh.get(key)
        if group is None:
            self._fresh[key] = group = Group(request.shape)
        request.state = _QUEUED
        request.group = group
        was_empty = group.size == 0
        group.add(request)
        self.size += 1
        if was_empty:
            self._push(request.seq, group)
        return group

    def add_sealed(self, requests: list[Request], group: Group) -> None:
        """Queue requests that failed together, under the age of the oldest of them."""
        for request in requests:
            request.state = _QUEUED
            request.group = group
            group.add(request)
        self.size += len(requests)
        self._push(min(request.seq for request in requests), group)

    def discard(self, request: Request) -> None:
        """A queued request has ended; its state must already say so."""
        group = request.group
        assert isinstance(group, Group), "only a queued request can be discarded"
        request.group = None
        group.discard()
        self._drop_if_empty(group)
        self.size -= 1

    def pop(self) -> tuple[Group, Request] | None:
        """Remove the oldest group from the order; return it with its oldest request.

        The caller puts it back with ``restore`` once it has looked at it.
        """
        heap = self._heap
        while heap:
            seq, _, group = heapq.heappop(heap)
            first = group.oldest() if group.size else None
            if first is None:
                self._drop_if_empty(group)
                continue
            if first.seq == seq:
                return group, first
            if seq < first.seq:
                # Its oldest request was cancelled: it is younger than it looked.
                self._push(first.seq, group)
        return None

    def restore(self, group: Group) -> None:
        """Put a group back into the order, if anything of it is left."""
        first = group.oldest() if group.size else None
        if first is not None:
            self._push(first.seq, group)
        else:
            self._drop_if_empty(group)

    def take(self, group: Group, count: int, reach: int | None) -> list[Request]:
        """Take up to ``count`` requests of a group for a batch (see ``Group.take``)."""
        requests = group.take(count, reach)
        self.size -= len(requests)
        return requests

    def requests(self) -> list[Request]:
        """Every queued request, oldest first."""
        groups = {id(group): group for _, _, group in self._heap}
        return sorted((request for group in groups.values() for request in group), key=lambda request: request.seq)

    def _drop_if_empty(self, group: Group) -> None:
        if not group.size and not group.sealed and self._fresh.get(group.shape.key) is group:
            del self._fresh[group.shape.key]

    def _push(self, seq: int, group: Group) -> None:
        # The ticket breaks ties between a group's own stale entries: groups are not comparable.
        self._ticket += 1
        heapq.heappush(self._heap, (seq, self._ticket, group))
        if len(self._heap) > self._sweep_at:
            # A full or paused endpoint looks at nobody; groups whose calls have all gone must not pile up meanwhile.
            self._heap = [entry for entry in self._heap if entry[2].size]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SMALLEST_SWEEP, 2 * len(self._heap))
