"""The checks of granting: may the group at the queue's front go to an endpoint now?

``Checks.judge`` asks the checks in order. Each returns ``NOT_HERE`` (the group cannot go here now),
``SKIP`` (the group, which waits for company or leaves permits to others), ``STOP`` (looking for
this endpoint), or ``None``: no objection. A check which holds a group until a time calls ``wake``
with the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from batchclient._core.batching import BatchingRule
from batchclient._core.messages import Request
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.taking import Taking
from batchclient._core.waiting.lanes import Reserve
from batchclient._core.waiting.queue import FamilyGroup, Group, Queue

__all__ = ["Checks", "Look", "Verdict"]

_FEW = 4
"""So many calls of a refused list find out as fresh ones do; of more the guilty may come first."""
_UNKNOWN_LIMIT = 64
"""Calls in flight at a server that has not said yet which it is, and how many it takes at once."""


class Verdict(Enum):
    """How a look at the group at the front of the queue ends."""

    TAKE = "take"
    NOT_HERE = "not here"
    SKIP = "skip"
    STOP = "stop"


class Look:
    """A look at the queue for one endpoint.

    Args:
        most: the longest fresh list.
        reserve: the permits which the lowest class leaves to the others.
        lone: there is no other endpoint.
    """

    __slots__ = (
        "above",
        "count",
        "doubtful",
        "endpoint",
        "group",
        "held",
        "held_since",
        "left_out",
        "lone",
        "most",
        "now",
        "oldest",
        "others",
        "probe",
        "reserve",
        "room",
        "sheltered",
        "untried",
        "urgent",
    )

    group: Group
    oldest: Request
    room: int
    """Permits free to the group's priority class."""
    count: int
    """How many calls of the group to send."""

    def __init__(
        self, endpoint: Endpoint, now: float, most: int | None, reserve: Reserve | None, *, lone: bool
    ) -> None:
        self.endpoint = endpoint
        self.now = now
        self.most = most
        self.reserve = reserve
        self.lone = lone
        self.others = True
        """Whether another endpoint is in use."""
        self.probe = False
        """Whether a single call is to find out whether the endpoint is back."""
        self.sheltered = False
        """Whether calls which failed here may not be the probe."""
        self.untried = True
        """Whether no call may find out, of its model or of a load, that was refused before."""
        self.left_out = False
        """Whether such a call was passed over."""
        self.doubtful = False
        """Whether the group's model or its key was refused here."""
        self.urgent = False
        """Whether the group's class is above the lowest in use."""
        self.above: int | None = None
        """Look only at groups of classes above this number; ``None``: at all groups."""
        # All groups held here in one stretch share a clock: a latecomer waits for no longer.
        self.held_since = endpoint.held_since
        self.held = False
        """Whether free permits are held for a while."""


class Checks:
    """The checks of a scheduler; ``wake`` takes a time at which to grant again."""

    __slots__ = ("_endpoints", "_in_order", "_queue", "_rule", "_taking", "_wake")

    def __init__(
        self,
        endpoints: Endpoints,
        queue: Queue,
        rule: BatchingRule,
        taking: Taking,
        wake: Callable[[float], None],
    ) -> None:
        self._endpoints = endpoints
        self._queue = queue
        self._rule = rule
        self._taking = taking
        self._wake = wake
        self._in_order = (
            self._failed_here,
            self._left_to_others,
            self._in_doubt,
            self._held_by_refusals,
            self._reserved,
            self._kept_for_conversations,
            self._waits_by_rule,
            self._costs_too_much,
            self._is_unknown,
        )

    def judge(self, look: Look) -> Verdict:
        """Whether to take calls of the group at the front; ``look.count`` then says how many."""
        look.room = look.endpoint.free
        for check in self._in_order:
            verdict = check(look)
            if verdict is not None:
                return verdict
        return Verdict.TAKE

    def _failed_here(self, look: Look) -> Verdict | None:
        return Verdict.NOT_HERE if look.sheltered and look.oldest.failed_on == look.endpoint.id else None

    def _left_to_others(self, look: Look) -> Verdict | None:
        lacking = look.endpoint.denials.shapes
        if not lacking or look.lone or not self._endpoints.leaves(look.group.shape, look.endpoint, look.now):
            return None
        self._wake(lacking[look.group.shape.answer_key])
        return Verdict.NOT_HERE

    def _in_doubt(self, look: Look) -> Verdict | None:
        shape, denials, look.doubtful = look.group.shape, look.endpoint.denials, False
        if not denials.models:
            return None
        elsewhere = not look.lone and self._endpoints.others_take(shape, look.endpoint, look.now)
        pace = look.endpoint.pace(shape)
        at = denials.probes_at(shape.subject, pace, look.now, elsewhere=elsewhere, patient=look.oldest.patient)
        look.doubtful = at is not None
        # Of a refused list nobody knows yet who is to blame.
        untried = look.oldest.denied_at == math.inf and (look.group.isolation is None or look.group.size <= _FEW)
        if at is None or (at <= look.now and (untried or not look.untried)):
            return None
        look.left_out = look.left_out or at <= look.now
        if look.now < at < math.inf:
            self._wake(at)
        return Verdict.NOT_HERE

    def _held_by_refusals(self, look: Look) -> Verdict | None:
        hold = look.endpoint.sendable(look.now, look.group.shape)
        if hold is not None:
            self._wake(hold.next_at)
            return Verdict.NOT_HERE
        pace = look.endpoint.pace(look.group.shape)
        if pace.is_open:
            return None
        # A refused call may be to blame itself: it would find out again and again.
        past = look.oldest.endured
        finds_out = not pace.under_way and look.untried and not look.endpoint.denials.models
        if not finds_out or past is None or not past.refusals:
            return None
        look.left_out = True
        return Verdict.NOT_HERE

    def _reserved(self, look: Look) -> Verdict | None:
        priority, reserve = look.group.shape.priority, look.reserve
        self._queue.lanes.see(priority, look.now)
        look.urgent = reserve is not None and priority > reserve.lowest
        if reserve is None or look.urgent:
            return None
        look.room -= reserve.unused
        if look.room > 0:
            return None
        # Only the reserve is left: to the lowest class the endpoint is full.
        look.above = reserve.lowest
        return Verdict.SKIP

    def _kept_for_conversations(self, look: Look) -> Verdict | None:
        if type(look.group) is not FamilyGroup or look.urgent:
            return None
        assert self._queue.conversations is not None, "a group of families comes from a queue that looks at them"
        # A conversation which has come back is no longer awaited: the permit kept for it is free.
        awaited, awaited_until = self._queue.conversations.awaited(look.endpoint.id, look.now)
        look.room -= awaited
        if look.room > 0:
            return None
        self._wake(awaited_until)
        return Verdict.SKIP

    def _waits_by_rule(self, look: Look) -> Verdict | None:
        look.count, wait_until, blocks = self._rule.decide(
            look.group, look.oldest, look.endpoint, look.now, look.held_since, room=look.room, urgent=look.urgent
        )
        if look.count:
            return None
        if wait_until is not None:
            self._wake(wait_until)
        if not blocks:
            return Verdict.NOT_HERE if wait_until is None else Verdict.SKIP
        look.held = look.held or wait_until is not None
        reserve = look.reserve
        if reserve is None or look.urgent:
            return Verdict.STOP
        if wait_until is None and not _may_pass(look.group, reserve, look.endpoint):
            return Verdict.STOP
        look.above = reserve.lowest
        return Verdict.SKIP

    def _costs_too_much(self, look: Look) -> Verdict | None:
        if look.probe or look.doubtful:
            look.count = 1
        elif look.most is not None and look.count > look.most and not look.group.whole:
            look.count = look.most
        rates = look.endpoint.rates
        if rates is None:
            return None
        look.count, until = rates.affordable(look.count, self._taking.tokens(look.oldest), look.now)
        if look.count:
            return None
        # No younger, cheaper call goes before it.
        self._wake(until)
        return Verdict.STOP

    def _is_unknown(self, look: Look) -> Verdict | None:
        if look.count == 1 and look.endpoint.in_flight < _UNKNOWN_LIMIT:
            return None
        until = look.endpoint.lists_held_until(look.now)
        if until is None:
            return None
        self._wake(until)
        return Verdict.NOT_HERE


def _may_pass(starving: Group, reserve: Reserve, endpoint: Endpoint) -> bool:
    """Whether higher classes may pass a waiting call of the lowest, up to their reserve.

    They may if the call can run beside the reserve.
    """
    return starving.shape.weight <= endpoint.limit.limit - reserve.permits and reserve.unused > 0
