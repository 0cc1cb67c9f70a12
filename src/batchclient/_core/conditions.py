"""The conditions of granting: why the group at the queue's front may not go to an endpoint now.

Each is a function of an endpoint's turn, the group and its oldest call. It returns ``None``, or why
the group is passed over and until when. For example a model that the endpoint refused a moment ago:
its calls are passed over until its next probe is due.

A call may find out whether something holds: an ejected endpoint, a refused model, a spell of
refusals. Calls that failed for it before are spared while fresh ones can find out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from batchclient._core.fleet import Fleet
from batchclient._core.messages import Batch, Request
from batchclient._core.servers.card import Card
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState
from batchclient._core.waiting.lanes import Reserve
from batchclient._core.waiting.queue import Group, Queue

__all__ = ["CONDITIONS", "HEAVY", "PROOF", "RATE", "REFILL", "TRIED", "Turn", "Wait"]

HEAVY, PROOF = "for as many permits as a call takes", "for the proof of lists"
REFILL, RATE = "for more free permits", "for its tokens per minute"
TRIED = "its calls failed so before"
_FEW = 4
"""So many calls of a refused list find out as fresh ones do; of more the guilty may come first."""


class Wait(NamedTuple):
    """Why a group is passed over, and until when.

    Args:
        why: in words; those above are looked at.
        until: when to look again though nothing else happens; ``inf``: not before an event.
        blocks: whether younger groups of its class wait behind it.
    """

    why: str
    until: float = math.inf
    blocks: bool = False


class Turn:
    """An endpoint's turn at the queue.

    Args:
        most: the longest fresh list; ``None``: any.
    """

    __slots__ = (
        "endpoint", "fleet", "has_spared", "is_troubled", "left_to_others", "most", "now", "probes", "queue", "reserve",
        "spares", "wake_at",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, fleet: Fleet, queue: Queue, now: float, most: int | None) -> None:
        self.endpoint = endpoint
        self.fleet = fleet
        self.queue = queue
        self.now = now
        self.most = most
        health, abilities = endpoint.health, endpoint.abilities
        self.probes = health.state is HealthState.EJECTED and not endpoint.is_hopeless
        """Whether a single call is to find out whether the endpoint is back."""
        self.is_troubled = self.probes or bool(abilities.models.refused or abilities.shapes)
        """Whether a call may have to find out about the endpoint, or go elsewhere."""
        self.spares = True
        """Whether calls that failed before are spared: fresh ones may find out."""
        self.has_spared = False
        self.left_to_others = 0
        """Groups that wait for the endpoints of their sessions."""
        self.wake_at = math.inf
        """When to look again though nothing else happens."""
        self.reserve: Reserve | None = None
        """The permits which the lowest class leaves to the others."""
        if queue.lanes.has_classes:
            self.look_at_reserve()

    def look_at_reserve(self) -> None:
        """Look at the reserve anew: permits were taken."""
        # A recovering endpoint may have fewer sequences in flight than its limit.
        most = self.endpoint.in_flight + self.endpoint.free
        self.reserve = self.queue.lanes.reserve(most, len(self.fleet.serving), self.now)

    def look_at_models(self, card: Card) -> None:
        """Look which model's turn it is, at an endpoint that holds one at a time."""
        queued = []
        for group in self.queue.groups():
            oldest = group.oldest() if self.endpoint.serves(group.shape) else None
            is_open = not self.is_troubled and self.endpoint.pace(group.shape).is_open
            if oldest is not None and (is_open or self.held_back(group, oldest) is None):
                queued.append((group.shape, oldest))
        card.look(queued, self.now)

    def held_back(self, group: Group, oldest: Request) -> Wait | None:
        """Why a group waits at an endpoint that is in trouble, or refuses such calls."""
        for condition in CONDITIONS:
            if (wait := condition(self, group, oldest)) is not None:
                return wait
        return None

    def is_urgent(self, group: Group) -> bool:
        """Whether a group's class is above the lowest in use."""
        return self.reserve is not None and group.shape.priority > self.reserve.lowest

    def room(self, group: Group) -> int | Wait:
        """Return the permits that are free to a group's class, at least 1; or why there are none."""
        room, reserve = self.endpoint.free, self.reserve
        if self.is_urgent(group):
            return room
        if reserve is not None:
            room -= reserve.unused
            if room <= 0:
                # To the lowest class the endpoint is full.
                return Wait("for more than the reserve", blocks=True)
        if group.has_families:
            assert self.queue.conversations is not None, "a group of families comes from a queue that looks at them"
            # One that has come back is no longer awaited: the permit kept for it is free.
            awaited, awaited_until = self.queue.conversations.awaited(self.endpoint.id, self.now)
            room -= awaited
            if room <= 0:
                return Wait("for a conversation that is about to come back", awaited_until)
        return room

    def lets_pass(self, group: Group, wait: Wait) -> bool:
        """Whether higher classes may pass a group of the lowest which holds back its own.

        They may, up to their reserve, if the group's calls can run beside it.
        """
        reserve = self.reserve
        if reserve is None or self.is_urgent(group) or wait.why == RATE:
            return False
        runs_beside = group.shape.weight <= self.endpoint.limit.limit - reserve.permits and reserve.unused > 0
        return runs_beside or wait.why not in (HEAVY, PROOF)

    def finds_out(self, group: Group) -> bool:
        """Whether a single call of a group is to find out about the endpoint, or about its model."""
        return self.probes or self._doubts_model(group)

    def begin_probes(self, batch: Batch, group: Group) -> None:
        """A batch of a group is sent, perhaps to find out."""
        if self.probes:
            self.wake_at = min(self.wake_at, self.endpoint.health.begin_probe(batch.id, self.now))
        if self._doubts_model(group):
            self.endpoint.abilities.models.begin(batch)

    def _doubts_model(self, group: Group) -> bool:
        models = self.endpoint.abilities.models
        return bool(models.refused) and models.is_doubted(group.shape.subject, self.endpoint.pace(group.shape))


def failed_here(turn: Turn, _group: Group, oldest: Request) -> Wait | None:
    """A call which failed here is no probe: an outage must not use up its attempts."""
    if not (turn.probes and turn.spares) or oldest.failed_on != turn.endpoint.id:
        return None
    if turn.fleet.others_in_use(turn.endpoint, oldest):
        return Wait("another endpoint takes it")
    return None if turn.endpoint.health.refuses else Wait(TRIED)


def left_to_others(turn: Turn, group: Group, oldest: Request) -> Wait | None:
    """The endpoint refused calls of the shape, and another may take them."""
    until = turn.endpoint.abilities.lacks(group.shape, turn.now)
    if until is None or not turn.fleet.others_take(oldest, turn.endpoint, turn.now):
        return None
    return Wait("another endpoint takes it", until)


def model_in_doubt(turn: Turn, group: Group, oldest: Request) -> Wait | None:
    """The endpoint refused the model, or the key."""
    endpoint, shape, now = turn.endpoint, group.shape, turn.now
    if not endpoint.abilities.models.refused:
        return None
    elsewhere = turn.fleet.others_take(oldest, endpoint, now)
    at = endpoint.abilities.models.ready_at(
        shape.subject, endpoint.pace(shape), now, elsewhere=elsewhere, patient=oldest.patient
    )
    if at is None:
        return None
    if at > now:
        return Wait("its model was refused", at)
    # Of a refused list nobody knows yet who is to blame.
    untried = oldest.denied_at == math.inf and (group.isolation is None or group.size <= _FEW)
    return None if untried or not turn.spares else Wait(TRIED)


def held_by_refusals(turn: Turn, group: Group, oldest: Request) -> Wait | None:
    """The server refuses such calls, or has asked for a rest."""
    pace = turn.endpoint.pace(group.shape)
    if pace.is_open:
        return None
    hold = pace.sendable(turn.now)
    if hold is not None:
        return Wait("the server refuses such calls", hold.next_at)
    # A refused call may be to blame itself: it would find out again and again.
    finds_out = turn.spares and not pace.under_way and not turn.endpoint.abilities.models.refused
    was_refused = oldest.endured is not None and oldest.endured.refusals > 0
    return Wait(TRIED) if finds_out and was_refused else None


CONDITIONS = (failed_here, left_to_others, model_in_doubt, held_by_refusals)
"""In the order in which they are asked."""
