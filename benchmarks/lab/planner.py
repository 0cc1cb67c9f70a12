"""A planner that knows how long every call takes: what a client without that knowledge is measured by.

Earliest deadline first, cheapest feasible: of the calls that have come, the one whose deadline is
earliest is given the first place at the cheap server. If the call cannot end there in time, it goes
to the dear one, which has room for all. If it cannot end there in time either, nobody works at it.
The planner knows no call before it comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Plan", "Waiting", "plan"]

T = TypeVar("T")


class Waiting(NamedTuple, Generic[T]):
    """A call that waits.

    Args:
        deadline: when its answer is of no use any more.
        cheap_s, dear_s: how long it takes at the cheap and at the dear server.
        call: whose it is.
    """

    deadline: float
    cheap_s: float
    dear_s: float
    call: T


class Plan(NamedTuple, Generic[T]):
    """Which calls go where now, and which can end in time nowhere; the others wait."""

    cheap: list[T]
    dear: list[T]
    lost: list[T]


def plan(now: float, free_at: Iterable[float], waiting: Sequence[Waiting[T]]) -> Plan[T]:
    """Plan for the calls that wait.

    Args:
        now: the time.
        free_at: of each place at the cheap server, when it is free.
        waiting: the calls.
    """
    places = [max(now, at) for at in free_at]
    heapq.heapify(places)
    made: Plan[T] = Plan([], [], [])
    for each in sorted(waiting, key=lambda one: one.deadline):
        begins = places[0]
        if begins + each.cheap_s <= each.deadline:
            heapq.heapreplace(places, begins + each.cheap_s)
            if begins <= now:
                made.cheap.append(each.call)
        elif now + each.dear_s <= each.deadline:
            made.dear.append(each.call)
        else:
            made.lost.append(each.call)
    return made
