"""The queue: calls waiting for a permit, in groups which may share a batch.

Rules:
- A request waits in the group of its shape, or of its mixed shape if it has one; ``groups`` has the
  order inside.
- Groups wait in their lane (tenant and priority class), ordered by rank (see ``order``); ``lanes``
  chooses the next lane.
- The order is a heap per lane, whose stale entries are dropped when seen. All steps are O(log
  groups) or amortised O(1); no cost grows with the number of queued requests.
"""

from __future__ import annotations

import heapq
from itertools import chain

from batchclient._core.lane import Lane
from batchclient._core.messages import Request, RequestState, Shape
from batchclient._core.prefixes.conversations import Conversations
from batchclient._core.prefixes.families import SHORTEST_PREFIX, Families
from batchclient._core.settings import SchedulerSettings
from batchclient._core.waiting.groups import FamilyGroup, Group, RankedGroup
from batchclient._core.waiting.lanes import Lanes
from batchclient._core.waiting.later import Later
from batchclient._core.waiting.order import Order

__all__ = ["FamilyGroup", "Group", "Queue"]

_QUEUED = RequestState.QUEUED
_SMALLEST_SWEEP = 64
_NONE_SO_LONG = 1 << 62


class _Heap:
    """A lane's groups by rank. When a group is pushed again, the older entry is stale."""

    __slots__ = ("entries", "sweep_at")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, int, Group]] = []
        """(rank, number of submission, ticket, group)."""
        self.sweep_at = _SMALLEST_SWEEP


class Queue:
    """All waiting groups, ranked by ``order``, by lane.

    ``longest_run_s`` is how long a prefix family may go before older calls, seconds; ``None``:
    prefixes are ignored.
    """

    __slots__ = (
        "_families",
        "_fresh",
        "_heaps",
        "_order",
        "_ranked",
        "_shortest",
        "_ticket",
        "conversations",
        "lanes",
        "later",
        "size",
    )

    def __init__(
        self,
        order: Order | None = None,
        lanes: Lanes | None = None,
        longest_run_s: float | None = None,
    ) -> None:
        self.lanes = lanes or Lanes()
        self._order = order or Order()
        self._ranked = not self._order.is_arrival
        self._families = Families()
        self.conversations = None if longest_run_s is None else Conversations(longest_run_s)
        # A short prompt pays a single comparison.
        self._shortest = SHORTEST_PREFIX if longest_run_s is not None else _NONE_SO_LONG
        self._fresh: dict[bytes, Group] = {}
        self._heaps: dict[Lane, _Heap] = {}
        """Of the lanes that are ready."""
        self._ticket = 0
        self.size = 0
        """Calls in the order."""
        self.later = Later()

    @classmethod
    def made_for(cls, settings: SchedulerSettings, order: Order, lanes: Lanes) -> Queue:
        """Make a queue by the settings."""
        families = settings.group_prefixes and settings.length_reach is None
        return cls(order, lanes, settings.starvation_s if families else None)

    def retune(self, settings: SchedulerSettings) -> None:
        """Go on with other numbers: whoever bounds the lengths in a batch has no batches of families."""
        if self.conversations is None:
            return
        self._shortest = SHORTEST_PREFIX if settings.length_reach is None else _NONE_SO_LONG
        if settings.length_reach is not None:
            for group in list(self._fresh.values()):
                if isinstance(group, FamilyGroup):
                    self.restore(self._regroup(group, Group(group.shape, self._order)))

    def lane_of(self, shape: Shape) -> Lane:
        """The lane in which calls of a shape wait."""
        return self.lanes.lane(shape.priority, shape.tenant)

    def add(self, request: Request) -> Group:
        """Queue a fresh request; return its group."""
        group = self._fresh.get(request.shape.key)
        if group is None:
            group = self._open(request)
        request.state = _QUEUED
        if len(request.prompt) >= self._shortest:
            group = self._add_to_family(request, group)
        else:
            request.group = group
            group.add(request)
        self.size += 1
        group.lane.size += 1  # type: ignore[union-attr]  # a group in the queue has one
        if not group.ticket or (self._ranked and group.rank() == (self._order.rank(request), request.seq)):
            # The group was empty, or the request goes before all others in it.
            self._push(group)
        return group

    def put_back(self, requests: list[Request], group: Group) -> None:
        """Queue requests which failed together, under the rank of the oldest."""
        for request in requests:
            request.group = group
            group.add(request)
        self._enter(group, requests)

    def come_back(self, group: Group) -> list[Request]:
        """A group of ``later`` waits no longer; return its requests."""
        requests = self.later.release(group)
        self._enter(group, requests)
        return requests

    def _enter(self, group: Group, requests: list[Request]) -> None:
        """Take requests which failed together, in their group, into the order."""
        self._enter_lane(group, requests[0].queued_at)
        for request in requests:
            request.state = _QUEUED
        self.size += len(requests)
        assert group.lane is not None
        group.lane.size += len(requests)
        self._push(group)

    def discard(self, request: Request) -> None:
        """A waiting request has ended; its state must already say so."""
        group = request.group
        assert isinstance(group, Group), "only a waiting request can be discarded"
        request.group = None
        group.discard()
        if group.lane is None:
            self.later.size -= 1
            return
        group.lane.size -= 1
        self._drop_if_empty(group)
        self.size -= 1

    def pop(self, above: int | None = None) -> tuple[Group, Request] | None:
        """Remove the first group from the order; return it with its oldest request.

        The caller must ``restore`` the group. ``above``: look only at higher priority classes.
        """
        ready = self.lanes.ready
        if above is None and len(ready) == 1:
            lane = next(iter(ready))
            if self._first(lane) is None:
                self._forget(lane)
                return None
        else:
            ranks = {}
            for lane in list(ready):
                if above is not None and lane.priority <= above:
                    continue
                first = self._first(lane)
                if first is None:
                    self._forget(lane)
                else:
                    ranks[lane] = first
            if not ranks:
                return None
            lane = self.lanes.choose(ranks)
        group = heapq.heappop(self._heaps[lane].entries)[3]
        group.ticket = 0
        oldest = group.oldest()
        assert oldest is not None, "a group in the order is not empty"
        return group, oldest

    def restore(self, group: Group) -> None:
        """Put a group back into the order, if any of its requests are left."""
        if group.size:
            self._push(group)
        else:
            self._drop_if_empty(group)

    def take(self, group: Group, count: int, reach: int | None, now: float, *, newest: bool = False) -> list[Request]:
        """Take requests for a batch (see ``Group.take``), under ``fcfs`` perhaps the ``newest``."""
        if newest and not (self._ranked or group.sealed):
            requests = group.take_newest(count)
        else:
            requests = group.take(count, reach, now)
        lane = group.lane
        assert lane is not None
        lane.size -= len(requests)
        self.size -= len(requests)
        return requests

    def has_any(self, most: int) -> bool:
        """Whether a call of at most so many sequences waits in the order."""
        entries = chain.from_iterable(heap.entries for heap in self._heaps.values())
        return any(group.size and group.shape.weight <= most for _, _, _, group in entries)

    @property
    def waiting(self) -> int:
        """How many calls wait, for a permit or to be tried again."""
        return self.size + self.later.size

    def requests(self) -> list[Request]:
        """Every waiting request: those to be tried again, then those in the order."""
        return self.later.requests() + self.queued()

    def queued(self) -> list[Request]:
        """Every request in the order, oldest first."""
        entries = chain.from_iterable(heap.entries for heap in self._heaps.values())
        groups = {id(group): group for _, _, _, group in entries}
        return sorted((request for group in groups.values() for request in group), key=lambda request: request.seq)

    def arrivals(self) -> dict[Lane, float]:
        """When the oldest queued call of each lane was made, for lanes that have one.

        Nothing is changed. Under ``fcfs`` the first entry usually tells; else each group is asked.
        """
        oldest: dict[Lane, float] = {}
        for lane, heap in self._heaps.items():
            if not heap.entries:
                continue
            _, seq, ticket, group = heap.entries[0]
            first = group.first() if group.ticket == ticket and not self._ranked else None
            if first is None or first.seq != seq:
                groups = {id(entry[3]): entry[3] for entry in heap.entries}
                firsts = [one for group in groups.values() if (one := group.first()) is not None]
                first = min(firsts, key=lambda one: one.seq, default=None)
            if first is not None:
                oldest[lane] = first.queued_at
        return oldest

    def _open(self, request: Request) -> Group:
        """Begin the group of a shape."""
        shape, order = request.shape, self._order
        group: Group
        if self._ranked:
            group = RankedGroup(shape, order)
        elif len(request.prompt) >= self._shortest:
            assert self.conversations is not None
            group = FamilyGroup(shape, order, self.conversations)
        else:
            group = Group(shape, order)
        self._fresh[shape.key] = group
        self._enter_lane(group, request.queued_at)
        return group

    def _enter_lane(self, group: Group, now: float) -> None:
        group.lane = lane = self.lane_of(group.shape)
        group.order = self._order
        self.lanes.see(lane.priority, now)
        if not lane.size:
            self.lanes.come_back(lane)

    def _add_to_family(self, request: Request, group: Group) -> Group:
        path = self._families.join(request)
        assert self.conversations is not None
        if request.family:
            self.conversations.came(request, request.queued_at)
        if not self._ranked and not isinstance(group, FamilyGroup):
            # Once in a group's life.
            group = self._regroup(group, FamilyGroup(group.shape, self._order, self.conversations))
        request.group = group
        if isinstance(group, FamilyGroup):
            group.add(request, path)
        else:
            group.add(request)
        return group

    def _regroup(self, old: Group, new: Group) -> Group:
        """Keep the calls of a fresh group in another sort of group."""
        new.lane = old.lane
        for request in old.give_up():
            request.group = new
            new.add(request)
        self._fresh[new.shape.key] = new
        return new

    def _drop_if_empty(self, group: Group) -> None:
        if not group.size and not group.sealed and self._fresh.get(group.shape.key) is group:
            del self._fresh[group.shape.key]

    def _first(self, lane: Lane) -> tuple[float, int] | None:
        """The rank of a lane's first group, stale entries dropped; ``None`` if no group waits."""
        heap = self._heaps[lane].entries
        while heap:
            rank, seq, ticket, group = heap[0]
            if group.ticket != ticket or not group.size:
                heapq.heappop(heap)
                continue
            place = group.rank()
            assert place is not None, "a group with requests has a first one"
            if place == (rank, seq):
                return place
            # The first request was cancelled or ranked anew, so its group is, too.
            heapq.heapreplace(heap, (*place, ticket, group))
        return None

    def _push(self, group: Group) -> None:
        place, lane = group.rank(), group.lane
        assert place is not None and lane is not None
        # The ticket marks the group's valid entry and breaks ties, since groups are not comparable.
        self._ticket += 1
        group.ticket = self._ticket
        heap = self._heaps.get(lane)
        if heap is None:
            self._heaps[lane] = heap = _Heap()
            self.lanes.ready[lane] = None
        heapq.heappush(heap.entries, (*place, self._ticket, group))
        if len(heap.entries) > heap.sweep_at:
            # A full or paused endpoint looks at nobody: groups without calls must not pile up.
            heap.entries = [entry for entry in heap.entries if entry[3].ticket == entry[2] and entry[3].size]
            heapq.heapify(heap.entries)
            heap.sweep_at = max(_SMALLEST_SWEEP, 2 * len(heap.entries))

    def _forget(self, lane: Lane) -> None:
        """No group waits in a lane."""
        del self.lanes.ready[lane]
        del self._heaps[lane]
