"""What must hold at every step of the core, checked from outside: its events and commands, and a book kept of them.

- Every batch that is sent ends once. Every call ends once: with its own answer, with an error, or by its caller's leaving.
- A grant takes in flight to the larger of the limit and one call's weight at most, goes to an endpoint in use, never while
  the client is paused or the endpoint asked for rest, and holds no call whose deadline has passed or that backs off.
- Permits: what is in flight, and what is abandoned, is what the open batches hold; no server works on more than that.
- The counts of the statistics are those of the calls.
- The core is woken in time for every deadline; time never goes back.
"""

import math
from collections import Counter

from batchclient._core.health import HealthState
from batchclient._core.messages import (
    AbortBatch,
    AbortRequested,
    Answered,
    Cancelled,
    CloseRequested,
    DrainRequested,
    EndpointAdded,
    EndpointGone,
    EndpointRemoved,
    Failed,
    Paused,
    Reject,
    RequestState,
    Resolve,
    Resumed,
    Retuned,
    SendBatch,
    Submitted,
)
from batchclient.errors import BatchClientError
from tests.simulation.pairs import Fault, State

__all__ = ["WatchedCore"]

_CLOCK_S = 1e-6
"""More than the resolution of the event loop's clock."""
_OPEN = {
    RequestState.WAITING: State.WAITING,
    RequestState.QUEUED: State.QUEUED,
    RequestState.BACKING_OFF: State.BACKING_OFF,
    RequestState.IN_FLIGHT: State.IN_FLIGHT,
}
_HEALTH = {
    HealthState.HEALTHY: State.HEALTHY,
    HealthState.EJECTED: State.EJECTED,
    HealthState.PROBING: State.PROBING,
    HealthState.RECOVERING: State.RECOVERING,
}
_OF_THE_CLIENT = {
    Paused: Fault.PAUSE,
    Resumed: Fault.RESUME,
    Retuned: Fault.RETUNE,
    EndpointAdded: Fault.ADD,
    AbortRequested: Fault.ABORT,
    DrainRequested: Fault.DRAIN,
    CloseRequested: Fault.CLOSE,
}


class WatchedCore:
    """Stands before a scheduler, and looks at everything that goes in and comes out.

    Args:
        core: the scheduler.
        world: the run; told of hits, and of what is wrong.
    """

    def __init__(self, core, world):
        self.core = core
        self.world = world
        self.now = 0.0
        self.calls = []
        self.live = {}
        """Calls that have not ended, by number."""
        self.open = {}
        """By id: a batch and the positions that are not answered yet."""
        self.ended = Counter()
        self.aborted = set()
        self.not_before = {}
        """When a call may be sent again at the earliest, by its number."""
        self.paused = False
        self.transcript = []

    def __getattr__(self, name):
        return getattr(self.core, name)

    # The contract ----------------------------------------------------------------------------------------------

    def handle(self, event, now):
        with self.world.guarded():
            assert now > self.now - _CLOCK_S, "time goes back"
            # A timer may fire a moment early, and is then told its own time.
            self.now = max(self.now, now)
            self.note(event)
            self.core.handle(event, now)
            assert self.core._now == self.now, "the core's time goes back"
            self.look_back(event)

    def commands(self):
        with self.world.guarded():
            commands = self.core.commands()
            for command in commands:
                self.obey(command)
            self.check()
        return commands

    # Events ----------------------------------------------------------------------------------------------------

    def note(self, event):
        """Before the core hears of it."""
        for request in self.live.values():
            if request.deadline is not None and request.deadline <= self.now:
                self.hit(Fault.DEADLINE, self.states_of(request))
        match event:
            case Submitted(request):
                self.live[len(self.calls)] = request
                self.calls.append(request)
                self.world.submitted(request)
                self.say("submitted", len(self.calls) - 1)
            case Cancelled(request):
                if request.state in _OPEN:
                    self.hit(Fault.CANCEL, self.states_of(request))
                    self.end(request, "cancelled")
                self.say("cancelled", request.seq)
            case Answered(batch, answers, ended):
                left = self.open[batch.id][1]
                for position, _ in answers:
                    left.remove(position)
                if ended:
                    del self.open[batch.id]
                self.say("answered", batch.id, [position for position, _ in answers], ended)
            case Failed(batch, failure, delay_s):
                self.say("failed", batch.id, failure.kind.value, failure.status, delay_s)
                _, left = self.open.pop(batch.id)
                self.forget_failed(batch, [batch.requests[position] for position in left], failure, delay_s)
            case EndpointRemoved(number, drain):
                endpoint = self.core._by_id[number]
                states = {self.state_of(endpoint)}
                states.update(state for request in self.live.values() for state in self.states_of(request, endpoint))
                self.hit(Fault.REMOVE if drain else Fault.REMOVE_NOW, states)
                self.say("removed", number, drain)
            case _ if type(event) in _OF_THE_CLIENT:
                states = {self.state_of(endpoint) for endpoint in self.core._endpoints}
                states.update(state for request in self.live.values() for state in self.states_of(request))
                self.hit(_OF_THE_CLIENT[type(event)], states)
                self.paused = {Paused: True, Resumed: False}.get(type(event), self.paused)
                self.say(type(event).__name__)

    def forget_failed(self, batch, requests, failure, delay_s):
        for request in requests:
            self.not_before.pop(request.seq, None)
        if batch.moving:
            self.world.moved(requests)

    def look_back(self, event):
        """After the core has heard of it."""
        if type(event) is Failed and event.retry_delay_s is not None:
            # Lists that wait for one member's answer go in another form when it has come, which is no retry.
            parked = {
                each.seq for lists in self.core._recovery._parked.values() for one in lists for each in one.requests
            }
            for request in event.batch.requests:
                if request.state is RequestState.BACKING_OFF and request.batch is None and request.seq not in parked:
                    self.not_before.setdefault(request.seq, self.now + event.retry_delay_s)

    # Commands --------------------------------------------------------------------------------------------------

    def obey(self, command):
        match command:
            case SendBatch(batch):
                self.say("send", batch.id, batch.endpoint, batch.streamed, [each.seq for each in batch.requests])
                self.check_grant(batch)
                self.open[batch.id] = (batch, list(range(len(batch.requests))))
                self.world.granted(batch)
            case AbortBatch(batch):
                self.say("abort", batch.id)
                assert batch.id in self.open, "only an open batch is aborted"
                assert batch.id not in self.aborted, "a batch is aborted once"
                self.aborted.add(batch.id)
                left = [batch.requests[position] for position in self.open[batch.id][1]]
                assert batch.moving or all(request.state is RequestState.ABANDONED for request in left), (
                    "somebody still waits for it"
                )
            case Resolve(answers):
                self.say("resolve", [request.seq for request, _ in answers])
                for request, completion in answers:
                    self.world.check_answer(request, completion)
                    self.end(request, "resolved")
            case Reject(errors):
                self.say("reject", [(request.seq, type(error).__name__) for request, error in errors])
                for request, error in errors:
                    assert isinstance(error, BatchClientError)
                    assert error.attempt == request.attempts
                    assert "internal error" not in error.message, error.message
                    self.end(request, "rejected")
            case EndpointGone(number):
                self.say("gone", number)
                assert not any(batch.endpoint == number for batch, _ in self.open.values()), "something is left there"

    def end(self, request, how):
        self.ended[request.seq] += 1
        assert self.ended[request.seq] == 1, f"call {request.seq} ended twice, now {how}"
        del self.live[request.seq]

    def check_grant(self, batch):
        core = self.core
        endpoint = core._by_id[batch.endpoint]
        weight = batch.shape.weight
        assert batch.id not in self.open, "a batch is sent once"
        assert not self.paused, "a paused client sends nothing"
        assert not endpoint.leaving, "a removed endpoint gets nothing more"
        assert endpoint.blocked_until is None or self.now >= endpoint.blocked_until, "the endpoint asked for rest"
        assert len({id(request.shape) for request in batch.requests}) == 1, "one shape per batch"
        in_flight = {
            request.seq for other, left in self.open.values() for request in other.requests if request.batch is other
        }
        for request in batch.requests:
            assert request.deadline is None or request.deadline > self.now, "nothing starts after its deadline"
            assert self.now >= self.not_before.pop(request.seq, 0.0), "it backs off still"
            assert request.seq not in in_flight, "a call is in one request at a time"
            assert not self.ended[request.seq], "it has ended already"
        held = sum(
            len(left) * other.shape.weight for other, left in self.open.values() if other.endpoint == endpoint.id
        )
        asked, limit = len(batch.requests) * weight, endpoint.limit.limit
        assert held + asked <= max(limit, weight), f"{held + asked} in flight, more than the limit of {limit}"
        health = endpoint.health
        # A lone endpoint that never answered is not waited for: its calls find out at once.
        stranger = len(core._endpoints.serving) == 1 and health.is_wrong_address
        if health.state is HealthState.PROBING and not stranger:
            assert len(batch.requests) == 1 and health.probe == batch.id, "a probe is one call"
        assert health.state is not HealthState.EJECTED or stranger, "an ejected endpoint gets a probe, nothing else"

    # After every step ------------------------------------------------------------------------------------------

    def check(self):
        core, world = self.core, self.world
        held, gone = Counter(), Counter()
        for batch, left in self.open.values():
            weight, requests = batch.shape.weight, batch.requests
            abandoned = 0
            for position in left:
                if requests[position].state is RequestState.ABANDONED:
                    abandoned += 1
            held[batch.endpoint] += len(left) * weight
            gone[batch.endpoint] += abandoned * weight
            assert abandoned < len(left) or not left or batch.id in self.aborted, "nobody waits for it any more"
        for endpoint in core._endpoints:
            assert endpoint.in_flight == held[endpoint.id], "permits are not what is in flight"
            assert endpoint.abandoned == gone[endpoint.id], "what is abandoned is not what nobody waits for"
            working = world.sequences_at(endpoint.id)
            assert working <= endpoint.in_flight, (
                f"the server works on {working}, the client knows of {endpoint.in_flight}"
            )
        # Spelt out: a dictionary of states would be the dearest part of a run.
        waiting = queued = backing_off = in_flight = 0
        earliest = math.inf
        for request in self.live.values():
            state = request.state
            if state is RequestState.IN_FLIGHT:
                in_flight += 1
            elif state is RequestState.QUEUED:
                queued += 1
            elif state is RequestState.WAITING:
                waiting += 1
            elif state is RequestState.BACKING_OFF:
                backing_off += 1
            if request.deadline is not None and request.deadline < earliest:
                earliest = request.deadline
        counted = (core._outside.size, core._queue.size, core._recovery.backing_off)
        assert counted == (waiting, queued, backing_off), "the counts are not those of the calls"
        assert len(self.live) == waiting + queued + backing_off + in_flight, "a call that has not ended is somewhere"
        assert core.idle == (not self.open and not self.live)
        if earliest < math.inf:
            wake_at = core.next_deadline()
            assert wake_at is not None and wake_at <= earliest, "a deadline would be missed"

    # States ----------------------------------------------------------------------------------------------------

    def states_of(self, request, at=None):
        """The states of an open call and of what it is in; those at another endpoint than ``at`` have none."""
        if request.state not in _OPEN:
            return set()
        if request.state is RequestState.IN_FLIGHT:
            batch = request.batch
            return self.states_of_batch(batch) if at is None or batch.endpoint == at.id else set()
        states = {_OPEN[request.state], State.AGAIN if request.attempts else State.FIRST}
        if request.state is RequestState.QUEUED and getattr(request.group, "isolation", None) is not None:
            states.add(State.HALF)
        return states

    def states_of_batch(self, batch):
        endpoint = self.core._by_id.get(batch.endpoint)
        if endpoint is None:
            # All was answered before the reply had ended, and then the endpoint was removed.
            return set()
        states = {
            State.IN_FLIGHT,
            State.IN_LIST if len(batch.requests) > 1 else State.ALONE,
            State.AGAIN if any(request.attempts > 1 for request in batch.requests) else State.FIRST,
            self.state_of(endpoint, batch),
        }
        if batch.isolation is not None:
            states.add(State.HALF)
        if any(request.state is RequestState.ABANDONED for request in batch.requests):
            states.add(State.MATE_GONE)
        return states

    @staticmethod
    def state_of(endpoint, batch=None):
        """An endpoint's state; to a batch that is not the probe, an endpoint that is probed is an ejected one."""
        health = endpoint.health
        if endpoint.leaving:
            return State.LEAVING
        if health.state is HealthState.PROBING and batch is not None and health.probe != batch.id:
            return State.EJECTED
        return _HEALTH[health.state]

    def states_of_client(self):
        return ({State.PAUSED} if self.paused else set()) | ({State.DRAINING} if self.core._draining else set())

    def hit(self, fault, states):
        self.world.count(fault, states | self.states_of_client())
        self.say("hit", fault.value)

    def say(self, *line):
        self.transcript.append((round(self.now, 9), *line))
