"""The queue: calls that wait, in groups which may share a batch.

Rules:
- A request waits in the group of its shape; the group has the order inside (see ``groups``).
- Groups wait in their lane (tenant and priority class), ordered by rank (see ``order``); ``lanes``
  chooses the next lane.
- The order is a heap per lane, whose stale entries are dropped when seen. All steps are O(log
  groups) or amortised O(1); no cost grows with the number of queued requests.
- ``max_queued`` bounds a lane's calls that have a place. Those beyond it wait all the same, behind
  the others, and are only counted apart: a million background calls keep neither an interactive
  call nor another tenant's outside.
- Calls to be tried again wait in ``later``, until their group comes back as an ordinary group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchclient._core.lane import Lane
from batchclient._core.learnt.lengths import Lengths
from batchclient._core.messages import Request, RequestState, Shape
from batchclient._core.prefixes.conversations import Conversations
from batchclient._core.prefixes.families import SHORTEST_PREFIX, Families
from batchclient._core.settings import SchedulerSettings
from batchclient._core.waiting.deadlines import Deadlines
from batchclient._core.waiting.groups import Group, Overflow, Ranks
from batchclient._core.waiting.lanes import Lanes
from batchclient._core.waiting.later import Later
from batchclient._core.waiting.order import Order
from batchclient._core.waiting.prefix_tree import PrefixTree

__all__ = ["Group", "Queue"]

_QUEUED = RequestState.QUEUED
_SMALLEST_SWEEP = 64
_NONE_SO_LONG = 1 << 62


class Queue:
    """All waiting groups, ranked by their order, by lane; and the deadlines of all calls."""

    def __init__(self, settings: SchedulerSettings, lengths: Lengths) -> None:
        self.lanes = Lanes(settings.tenant_weights, settings.max_queued)
        self.deadlines = Deadlines()
        self._order = Order(settings.order, settings.aging_s, lengths)
        self._ranked = not self._order.is_arrival
        self._families = Families()
        families = settings.group_prefixes and settings.length_reach is None
        self.conversations = Conversations(settings.starvation_s) if families else None
        # A short prompt pays a single comparison.
        self._shortest = SHORTEST_PREFIX if families else _NONE_SO_LONG
        self._fresh: dict[bytes, Group] = {}
        self._overflows: dict[tuple[bytes, Overflow], Group] = {}
        self._ticket = 0
        self.size = 0
        """Calls in the order."""
        self.later = Later()

    def is_full(self, shape: Shape) -> bool:
        """Whether no call of a shape finds a place."""
        lane = self.lanes.lane(shape)
        return lane.size >= lane.max_queued

    def add(self, request: Request) -> None:
        """Queue a fresh request."""
        shape = request.shape
        group = self._fresh.get(shape.key)
        if group is None:
            group = self._fresh[shape.key] = Group(shape, index=Ranks(self._order) if self._ranked else None)
            group.lane = self.lanes.enter(shape, request.queued_at)
        request.state = _QUEUED
        if len(request.prompt) >= self._shortest:
            group.add(request, self._join_family(request, group))
        else:
            group.add(request)
        self.size += 1
        group.lane.size += 1  # type: ignore[union-attr]  # a group in the queue has one
        if not group.ticket or (self._ranked and group.rank(self._order) == (self._order.rank(request), request.seq)):
            # The group was empty, or the request goes before all others in it.
            self._push(group)

    def overflow(self, request: Request, overflow: Overflow) -> None:
        """A waiting call may go to dearer servers from now on."""
        group = request.group
        assert isinstance(group, Group), "only a waiting request overflows"
        if group.overflow == overflow or group.sealed:
            group.overflow = overflow
            return
        key = request.shape.key, overflow
        other = self._overflows.get(key)
        if other is None:
            index = Ranks(self._order) if self._ranked else None
            other = self._overflows[key] = Group(request.shape, index=index, overflow=overflow)
            other.lane = group.lane
        request.group = None
        group.discard()
        other.add(request)
        if not other.ticket or self._ranked:
            self._push(other)
        if not group.size:
            self.restore(group)

    def put_back(self, requests: list[Request], group: Group) -> None:
        """Queue requests which failed together, under the rank of the oldest."""
        for request in requests:
            group.add(request)
        self._enter(group)

    def come_back(self, group: Group) -> list[Request]:
        """A group of ``later`` waits no longer; return its requests."""
        requests = self.later.release(group)
        self._enter(group)
        return requests

    def _enter(self, group: Group) -> None:
        """Take a group of requests which failed together into the order."""
        oldest = group.oldest()
        assert oldest is not None, "a group that comes back is not empty"
        group.lane = lane = self.lanes.enter(group.shape, oldest.queued_at)
        for request in group:
            request.state = _QUEUED
        self.size += group.size
        lane.size += group.size
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
        self.size -= 1
        if not group.size:
            self.restore(group)

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
            ranks: dict[Lane, tuple[Any, ...]] = {}
            for lane in list(ready):
                # Between classes each rank counts; most lanes of one are not the least served.
                if not lane.size or (self.lanes.has_classes and self._first(lane) is None):
                    self._forget(lane)
                elif lane.groups and (above is None or lane.priority > above):
                    ranks[lane] = lane.groups[0]
            while ranks:
                lane = self.lanes.choose(ranks)
                if self._first(lane) is None:
                    del ranks[lane]
                elif ranks[lane] is lane.groups[0]:
                    break
                else:
                    ranks[lane] = lane.groups[0]
            else:
                return None
        group: Group = heapq.heappop(lane.groups)[3]
        group.ticket = 0
        oldest = group.oldest()
        assert oldest is not None, "a group in the order is not empty"
        return group, oldest

    def pop_any(self, above: int | None, fits: Callable[[Group], bool]) -> tuple[Group, Request] | None:
        """As ``pop``, of the groups that fit alone: at the cost of a look at each."""
        firsts: dict[Lane, tuple[tuple[float, int], Group]] = {}
        for lane in self.lanes.ready:
            if above is not None and lane.priority <= above:
                continue
            for group in self._groups(lane):
                place = group.rank(self._order) if group.size and fits(group) else None
                if place is not None and (lane not in firsts or place < firsts[lane][0]):
                    firsts[lane] = place, group
        if not firsts:
            return None
        group = firsts[self.lanes.choose({lane: place for lane, (place, _) in firsts.items()})][1]
        # Its entry in the order is stale from now on.
        group.ticket = 0
        oldest = group.oldest()
        assert oldest is not None, "a group in the order is not empty"
        return group, oldest

    def restore(self, group: Group) -> None:
        """Put a group back into the order, if any of its requests are left."""
        if group.size:
            self._push(group)
        elif self._fresh.get(group.shape.key) is group:
            del self._fresh[group.shape.key]
        elif group.overflow is not None:
            self._overflows.pop((group.shape.key, group.overflow), None)

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

    def take_back(self, group: Group, requests: Sequence[Request]) -> None:
        """Take back calls that were taken from a group."""
        group.take_back(requests)
        assert group.lane is not None
        group.lane.size += len(requests)
        self.size += len(requests)

    def has_any(self, most: int) -> bool:
        """Whether a call of at most so many sequences waits in the order."""
        return any(group.size and group.shape.weight <= most for group in self._groups(*self.lanes.ready))

    @property
    def waiting(self) -> int:
        """How many calls wait, for a permit or to be tried again."""
        return self.size + self.later.size

    def groups(self) -> Iterator[Group]:
        """The groups in the order."""
        return self._groups(*self.lanes.ready)

    def requests(self) -> list[Request]:
        """Every waiting request: those to be tried again, then those in the order."""
        return self.later.requests() + self.queued()

    def queued(self) -> list[Request]:
        """Every request in the order, oldest first."""
        waiting = (request for group in self.groups() for request in group)
        return sorted(waiting, key=lambda request: request.seq)

    @property
    def outside(self) -> int:
        """How many calls have no place, since their lane has ``max_queued`` calls before them."""
        return sum(lane.waiting for lane in self.lanes.all())

    def arrivals(self) -> dict[Lane, float]:
        """When the oldest queued call of each lane was made, for lanes that have one."""
        oldest: dict[Lane, float] = {}
        for lane in self.lanes.ready:
            if self._first(lane) is not None:
                # Under ``fcfs`` the first group has it; else each group is asked.
                groups = self._groups(lane) if self._ranked else (lane.groups[0][3],)
                firsts = (one for group in groups if (one := group.oldest()) is not None)
                oldest[lane] = min(firsts, key=lambda one: one.seq).queued_at
        return oldest

    @staticmethod
    def _groups(*lanes: Lane) -> Iterator[Group]:
        """The groups in some lanes' order, each once."""
        return (entry[3] for lane in lanes for entry in lane.groups if entry[3].ticket == entry[2])

    def _join_family(self, request: Request, group: Group) -> Sequence[int]:
        path = self._families.join(request)
        assert self.conversations is not None
        if request.family:
            self.conversations.came(request, request.queued_at)
        if not self._ranked and not group.has_families:
            # Once in a group's life.
            group.sort_by(PrefixTree(self.conversations))
        return path

    def _first(self, lane: Lane) -> tuple[float, int] | None:
        """The rank of a lane's first group, stale entries dropped; ``None`` if no group waits."""
        heap = lane.groups
        while heap:
            rank, seq, ticket, group = heap[0]
            if group.ticket != ticket or not group.size:
                heapq.heappop(heap)
                continue
            place: tuple[float, int] | None = group.rank(self._order)
            assert place is not None, "a group with requests has a first one"
            if place == (rank, seq):
                return place
            # The first request was cancelled or ranked anew, so its group is, too.
            heapq.heapreplace(heap, (*place, ticket, group))
        return None

    def _push(self, group: Group) -> None:
        place, lane = group.rank(self._order), group.lane
        assert place is not None and lane is not None
        # The ticket marks the group's valid entry and breaks ties, since groups are not comparable.
        self._ticket += 1
        group.ticket = self._ticket
        self.lanes.ready[lane] = None
        heapq.heappush(lane.groups, (*place, self._ticket, group))
        if len(lane.groups) > max(_SMALLEST_SWEEP, lane.sweep_at):
            # A full or paused endpoint looks at nobody: groups without calls must not pile up.
            lane.groups = [entry for entry in lane.groups if entry[3].ticket == entry[2] and entry[3].size]
            heapq.heapify(lane.groups)
            lane.sweep_at = 2 * len(lane.groups)

    def _forget(self, lane: Lane) -> None:
        """No group waits in a lane."""
        del self.lanes.ready[lane]
        lane.sweep_at = 0
