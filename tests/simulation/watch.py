"""What must hold at every step of the core, checked from outside: its events, commands and statistics, and a book kept of them.

- Every batch that is sent ends once. Every call ends once: with its own answer, with an error, or by its caller's leaving.
- A grant takes in flight to the larger of the limit and one call's weight at most, goes to an endpoint in use, never while
  the client is paused or the endpoint asked for rest, and holds no call whose deadline has passed or that backs off.
- Permits: what is in flight, and what is abandoned, is what the open batches hold; no server works on more than that.
- The counts of the statistics are those of the calls.
- The core is woken in time for every deadline; time never goes back.

The simulation puts it between a client and its core; ``tests/property`` gives a core's events by itself.
"""

import math
from collections import Counter
from random import Random

from tests.core import (
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
    FailureKind,
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
    RequestState.QUEUED: State.QUEUED,
    RequestState.BACKING_OFF: State.BACKING_OFF,
    RequestState.IN_FLIGHT: State.IN_FLIGHT,
}
_STATES = {
    "healthy": State.HEALTHY,
    "ejected": State.EJECTED,
    "probing": State.PROBING,
    "recovering": State.RECOVERING,
    "leaving": State.LEAVING,
}
_REFUSALS_OF_A_STRANGER = 3
"""A lone endpoint that never answered anything is not waited for after so many refused connections."""
_STARTS_WITH_ONE_OF = 8
"""Slow start: the part of its limit that an endpoint that recovers has first."""
_DOUBLES_AFTER_S = 1.5
"""Slow start: how long until an endpoint that recovers is given twice as much, though nothing is answered."""
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
        seed: of the retries' jitter.
    """

    def __init__(self, core, world, seed=0):
        self.core = core
        self.world = world
        self.jitter = Random(seed)
        self.now = 0.0
        self.calls = []
        self.live = {}
        """Calls that have not ended, by number."""
        self.open = {}
        """By id: a batch and the positions that are not answered yet."""
        self.ended = Counter()
        self.aborted = set()
        self.not_before = {}
        """By a call's number: the batch it failed in, and when it may be sent again in that form at the earliest."""
        self.paused = False
        self.draining = False
        self.statistics_now = core.statistics()
        self.endpoints = {endpoint.id: endpoint for endpoint in self.statistics_now.endpoints}
        """By id, what the core says of the endpoints that it has."""
        self.leaving = []
        """Ids of endpoints that were removed, in that order."""
        self.gone = set()
        self.subjects = set()
        """Models and kinds of the calls: each has rests of its own."""
        self.trials = {}
        """By endpoint, the last batch that was sent there in a rest."""
        self.probes = {}
        """By endpoint, the last batch that probed it."""
        self.answered = set()
        self.answered_at = self.answered_from = -1.0
        self.refused = Counter()
        """Refused connections of endpoints, by id."""
        self.growth = {}
        """Of endpoints that recover: since when, and what they began with and have answered since, in sequences."""
        self.transcript = []
        self.first_sent = {}
        """By a call's number: when it was first granted, less when it was made."""
        self.first_tokens = 0
        """Answers whose time to first token is known."""

    def __getattr__(self, name):
        return getattr(self.core, name)

    @property
    def serving(self):
        """What the core says of the endpoints that it may send to."""
        return [endpoint for endpoint in self.endpoints.values() if endpoint.state != "leaving"]

    # The contract ----------------------------------------------------------------------------------------------

    def handle(self, event, now):
        with self.world.guarded():
            assert now > self.now - _CLOCK_S, "time goes back"
            # A timer may fire a moment early, and is then told its own time.
            self.now = max(self.now, now)
            if type(event) is Failed:
                # The shell's jitter is no part of a seed.
                event.jitter = self.jitter.random()
            self.note(event)
            self.core.handle(event, now)
            self.statistics_now = self.core.statistics()
            self.endpoints = {endpoint.id: endpoint for endpoint in self.statistics_now.endpoints}
            self.growth = {
                number: self.growth.get(number, (self.now, max(1, endpoint.limit // _STARTS_WITH_ONE_OF)))
                for number, endpoint in self.endpoints.items()
                if endpoint.state == "recovering"
            }
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
                self.subjects.add(request.shape.subject)
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
                if answers:
                    self.answered.add(batch.endpoint)
                    self.answered_at = self.now
                    self.answered_from = max(self.answered_from, batch.sent_at)
                if batch.endpoint in self.growth:
                    since, sequences = self.growth[batch.endpoint]
                    self.growth[batch.endpoint] = (since, sequences + len(answers) * batch.shape.weight)
                self.first_tokens += sum(answer.time_to_first_token_s is not None for _, answer in answers)
                if ended:
                    del self.open[batch.id]
                self.say("answered", batch.id, [position for position, _ in answers], ended)
            case Failed(batch, failure, delay_s):
                self.say("failed", batch.id, failure.kind.value, failure.status, delay_s)
                _, left = self.open.pop(batch.id)
                self.refused[batch.endpoint] += failure.kind is FailureKind.NOT_SENT
                if failure.status is not None:
                    # An error that the server sent is an answer, too.
                    self.answered.add(batch.endpoint)
                self.forget_failed(batch, [batch.requests[position] for position in left], failure, delay_s)
            case EndpointRemoved(number, drain):
                endpoint = self.endpoints[number]
                self.leaving.append(number)
                states = {self.state_of(endpoint)}
                states.update(state for request in self.live.values() for state in self.states_of(request, endpoint))
                self.hit(Fault.REMOVE if drain else Fault.REMOVE_NOW, states)
                self.say("removed", number, drain)
            case _ if type(event) in _OF_THE_CLIENT:
                states = {self.state_of(endpoint) for endpoint in self.endpoints.values()}
                states.update(state for request in self.live.values() for state in self.states_of(request))
                self.hit(_OF_THE_CLIENT[type(event)], states)
                self.paused = {Paused: True, Resumed: False}.get(type(event), self.paused)
                self.draining = self.draining or type(event) in (DrainRequested, CloseRequested)
                self.say(type(event).__name__)

    def forget_failed(self, batch, requests, failure, delay_s):
        for request in requests:
            self.not_before.pop(request.seq, None)
        if not failure.begun:
            self.world.not_sent(requests)
        if batch.moving:
            self.world.moved(requests)

    def look_back(self, event):
        """After the core has heard of it."""
        if type(event) is Failed and event.retry_delay_s is not None:
            # A refused call that steps aside waits for no pause of the policy's, but for the server's wish.
            is_free = event.batch.refusal.is_free
            pause_s = (event.failure.retry_after_s or 0.0) if is_free else event.retry_delay_s
            for request in event.batch.requests:
                if request.state is RequestState.BACKING_OFF and request.batch is None:
                    self.not_before.setdefault(request.seq, (event.batch, self.now + pause_s, self.now))

    # Commands --------------------------------------------------------------------------------------------------

    def obey(self, command):
        match command:
            case SendBatch(batch):
                self.say("send", batch.id, batch.endpoint, batch.streamed, [each.seq for each in batch.requests])
                self.check_grant(batch)
                for request in batch.requests:
                    self.first_sent.setdefault(request.seq, self.now - request.queued_at)
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
                assert number in self.leaving and number not in self.gone, "only what was removed goes, and only once"
                assert not any(batch.endpoint == number for batch, _ in self.open.values()), "something is left there"
                self.gone.add(number)

    def end(self, request, how):
        self.ended[request.seq] += 1
        assert self.ended[request.seq] == 1, f"call {request.seq} ended twice, now {how}"
        del self.live[request.seq]

    def check_grant(self, batch):
        endpoint = self.endpoints[batch.endpoint]
        weight = batch.shape.weight
        assert batch.id not in self.open, "a batch is sent once"
        assert not self.paused, "a paused client sends nothing"
        assert endpoint.state != "leaving", "a removed endpoint gets nothing more"
        # A member of a list that named no culprit goes bare, whatever holds.
        in_rest = endpoint.blocked_by == "the server's Retry-After" and not batch.bare
        if in_rest and len(self.subjects) == 1:
            assert self.trials.get(endpoint.id) not in self.open, "one call finds out in a rest whether it holds"
            self.trials[endpoint.id] = batch.id
        assert len({id(request.shape) for request in batch.requests}) == 1, "one shape per batch"
        in_flight = {
            request.seq for other, left in self.open.values() for request in other.requests if request.batch is other
        }
        for request in batch.requests:
            assert request.deadline is None or request.deadline > self.now, "nothing starts after its deadline"
            self.check_pause(request, batch)
            assert request.seq not in in_flight, "a call is in one request at a time"
            assert not self.ended[request.seq], "it has ended already"
        held = sum(
            len(left) * other.shape.weight for other, left in self.open.values() if other.endpoint == endpoint.id
        )
        asked, limit = len(batch.requests) * weight, endpoint.limit
        assert held + asked <= max(limit, weight), f"{held + asked} in flight, more than the limit of {limit}"
        assert asked <= limit or held == 0, "a heavy call runs alone"
        stranger = self.is_wrong_address(endpoint.id)
        assert endpoint.state != "ejected" or stranger, "an ejected endpoint gets a probe, nothing else"
        if endpoint.state == "probing":
            if not stranger:
                assert len(batch.requests) == 1, "a probe is one call"
                assert self.probes.get(endpoint.id) not in self.open, "one probe at a time"
            self.probes[endpoint.id] = batch.id
        if endpoint.state == "recovering":
            since, sequences = self.growth[endpoint.id]
            allowed = sequences * 2 ** int((self.now - since) / _DOUBLES_AFTER_S + 1e-9)
            assert held + asked <= max(allowed, weight), "slow start"

    def is_wrong_address(self, number):
        """Whether a lone endpoint refused every connection and never answered: it is not waited for, its calls find out at once."""
        unknown = len(self.serving) == 1 and number not in self.answered
        return unknown and self.refused[number] >= _REFUSALS_OF_A_STRANGER

    def check_pause(self, request, batch):
        """A call that backs off is not sent too early, unless in another form or since its endpoint has gone."""
        failed, not_before, failed_at = self.not_before.pop(request.seq, (None, 0.0, 0.0))
        if self.now >= not_before:
            return
        # A list of which one member went first goes on bare or in parts as soon as that member was answered.
        other_form = len(batch.requests) < len(failed.requests) or (batch.bare and not failed.bare)
        # A call that was refused alone may find out, at an answer, whether the server's wish holds. For the others a
        # request does that which is sent meanwhile.
        answered_at = self.answered_at if failed.refusal.is_alone else self.answered_from
        finds_out = failed.refusal.is_free and answered_at >= failed_at
        assert other_form or finds_out or failed.endpoint in self.leaving, "it backs off still"

    # After every step ------------------------------------------------------------------------------------------

    def check(self):
        world, statistics = self.world, self.statistics_now
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
        for endpoint in statistics.endpoints:
            if endpoint.blocked_by != "the server's Retry-After":
                # The next rest has a trial of its own.
                self.trials.pop(endpoint.id, None)
            if endpoint.state != "probing":
                # So has the next pause its own probe: a server may take one on and go away again.
                self.probes.pop(endpoint.id, None)
            assert endpoint.in_flight == held[endpoint.id], "permits are not what is in flight"
            assert endpoint.abandoned == gone[endpoint.id], "what is abandoned is not what nobody waits for"
            working = world.sequences_at(endpoint.id)
            assert working <= endpoint.in_flight, (
                f"the server works on {working}, the client knows of {endpoint.in_flight}"
            )
        # Spelt out: a dictionary of states would be the dearest part of a run.
        queued = backing_off = in_flight = 0
        earliest = math.inf
        for request in self.live.values():
            state = request.state
            if state is RequestState.IN_FLIGHT:
                in_flight += 1
            elif state is RequestState.QUEUED:
                queued += 1
            elif state is RequestState.BACKING_OFF:
                backing_off += 1
            if request.deadline is not None and request.deadline < earliest:
                earliest = request.deadline
        counted = (statistics.waiting + statistics.queued, statistics.backing_off)
        assert counted == (queued, backing_off), "the counts are not those of the calls"
        assert len(self.live) == queued + backing_off + in_flight, "a call that has not ended is somewhere"
        assert self.core.idle == (not self.open and not self.live)
        if earliest < math.inf:
            wake_at = self.core.next_deadline()
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
        endpoint = self.endpoints.get(batch.endpoint)
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

    def state_of(self, endpoint, batch=None):
        """An endpoint's state; to a batch that is not the probe, an endpoint that is probed is an ejected one."""
        state = _STATES[endpoint.state]
        if state is State.PROBING and batch is not None and self.probes.get(endpoint.id) != batch.id:
            return State.EJECTED
        return state

    def states_of_client(self):
        return ({State.PAUSED} if self.paused else set()) | ({State.DRAINING} if self.draining else set())

    def hit(self, fault, states):
        self.world.count(fault, states | self.states_of_client())
        self.say("hit", fault.value)

    def say(self, *line):
        self.transcript.append((round(self.now, 9), *line))
