"""The scheduler under any order of events: what the simulation's watch checks of every core, and beside it:

- a batch holds one cohort (fresh calls, or calls that failed together), and is no longer than allowed;
- no call waits past ``linger_s + refill_s`` while permits for it are free;
- counts by class and by tenant are those of the calls;
- no more requests go to an endpoint in any span than its rate and its burst allow;
- the scheduler wants to be woken only where something may happen, and never in the past;
- nothing is left after a drain;
- the same events give the same commands.

The model sees what a caller sees: commands, ``next_deadline()``, ``statistics()`` and the states of its requests.
"""

from collections import Counter, defaultdict
from contextlib import nullcontext

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.core import (
    AbortBatch,
    AbortRequested,
    Answered,
    Cancelled,
    DrainRequested,
    Drained,
    EndpointAdded,
    RatesPerMinute,
    EndpointRemoved,
    Failed,
    Failure,
    FailureKind,
    Limit,
    LoadReported,
    Outcome,
    Paused,
    Reject,
    Request,
    RequestState,
    Resumed,
    Scheduler,
    SchedulerSettings,
    Search,
    ServerLoad,
    Shape,
    Submitted,
    Woke,
)
from batchclient.errors import BadRequest
from batchclient.types import Choice, Completion, Usage
from tests.simulation.watch import WatchedCore

SHAPES = [
    Shape(b"short", b"{}", max_output_tokens=1),
    Shape(b"common", b"{}", max_output_tokens=16),
    Shape(b"pair", b"{}", weight=2, max_output_tokens=16),
    Shape(b"heavy", b"{}", weight=9, max_output_tokens=16),
    Shape(b"alone", b"{}", max_output_tokens=16, alone_reason="so it is"),
    Shape(b"long", b"{}", max_output_tokens=4000, plain_only=True),
    Shape(b"urgent", b"{}", max_output_tokens=16, priority=1, answer_key=b"common"),
    Shape(b"most urgent", b"{}", max_output_tokens=1, priority=2),
    Shape(b"tenant a", b"{}", max_output_tokens=16, tenant="a", answer_key=b"common"),
    Shape(b"tenant b", b"{}", weight=2, max_output_tokens=16, tenant="b"),
    Shape(b"urgent a", b"{}", max_output_tokens=16, tenant="a", priority=1),
]
PREFIXES = [b"", b"x" * 300, b"x" * 600, b"x" * 300 + b"y" * 300, b"z" * 300]
OPEN = (RequestState.QUEUED, RequestState.BACKING_OFF, RequestState.IN_FLIGHT)
NEVER_STARVES = 1e9
LIST_OF_A_STRANGER = 8
"""Strangers are servers that prove first that they serve a list's prompts at once, by a list of so many at most."""


class SeeSaw(Search):
    """A limit that falls when work is refused or waits in the server, and rises when it is done."""

    def on_sample(self, sample):
        if sample.outcome is Outcome.DROPPED:
            self.limit = max(1, self.limit // 2)
        elif sample.outcome is Outcome.SUCCESS:
            self.limit = min(12, self.limit + 1)

    def on_load(self, load, in_flight, now, took_s=0.0):
        if load.waiting:
            self.limit = max(1, self.limit // 2)


LIMITS = {"fixed": int, "see-saw": SeeSaw, "found": lambda limit: Search(limit, 2 * limit, 12)}


class World(WatchedCore):
    """A scheduler that is watched, and its own world. Events are plain tuples, so that a story can be told twice."""

    def __init__(self, setting, limits, found, rates):
        self.make_limit = lambda limit: Limit(LIMITS[found](limit))
        core = Scheduler(setting, [self.make_limit(limit) for limit in limits], rates=[rates] * len(limits))
        super().__init__(core, world=self)
        self.setting = setting
        self.rates = rates
        self.strangers = not setting.trusts_lists()
        self.usable = list(range(len(limits)))
        self.endpoints_made = len(limits)
        self.sent_at = defaultdict(list)
        self.cohorts = {}
        self.drained = 0
        self.long_lists = {}
        """The last list that was longer than its endpoint's cap."""
        self.lists_answered = Counter()
        """Answers that came of lists, by endpoint."""
        self.lacking = set()
        """(endpoint, shape) that a call was refused for."""

    def tell(self, name, *arguments):
        self.handle(getattr(self, f"make_{name}")(*arguments), self.now)
        self.commands()

    # What the watch asks of a world ----------------------------------------------------------------------------

    guarded = nullcontext

    def submitted(self, request):
        pass

    def granted(self, batch):
        pass

    def count(self, fault, states):
        pass

    def sequences_at(self, endpoint):
        return 0

    def moved(self, requests):
        pass

    def not_sent(self, requests):
        pass

    def check_answer(self, request, completion):
        assert completion.text == request.waiter, "nobody gets another's answer"
        assert request.state is RequestState.DONE

    # Events ----------------------------------------------------------------------------------------------------

    def make_submit(self, shape, tokens, patience, may_wait, prefix=0):
        name = str(len(self.calls))
        # Every other call that may wait has its time from its grant, as the rows of maps.
        from_grant = may_wait and patience != 0.0 and len(self.calls) % 2
        deadline = None if patience is None or from_grant else self.now + patience
        times = {"deadline": deadline, "timeout_s": patience if from_grant else None}
        prompt = PREFIXES[prefix] + name.encode()
        self.cohorts[name] = "fresh"
        return Submitted(Request(SHAPES[shape], prompt, prompt_tokens=tokens, waiter=name, **times), may_wait)

    def make_cancel(self, number):
        return Cancelled(self.calls[number])

    def make_answer(self, number, positions, ended, tokens):
        batch, _ = self.open[number]
        self.lists_answered[batch.endpoint] += bool(positions) and len(batch.requests) > 1
        answers = []
        for position in positions:
            request = batch.requests[position]
            completion = Completion((Choice(0, request.waiter, "stop"),), Usage(1, tokens), request.attempts)
            answers.append((position, completion))
        return Answered(batch, answers, ended)

    def make_fail(self, number, kind, delay, status, cap, retry_after):
        batch, unanswered = self.open[number]
        for position in unanswered:
            self.cohorts[batch.requests[position].waiter] = f"failed with {number}"
        if kind in ("NOT_SENT", "UNSUPPORTED") and self.rates.requests is not None:
            self.sent_at[batch.endpoint].remove(batch.sent_at)
        failure = Failure(
            FailureKind[kind], BadRequest, "no", status, retry_after, None, cap, begun=kind != "UNSUPPORTED"
        )
        if kind == "UNSUPPORTED":
            self.lacking.add((batch.endpoint, batch.shape.answer_key))
        return Failed(batch, failure, delay)

    def make_report(self, endpoint, running, waiting, made):
        return LoadReported(endpoint, ServerLoad(running, waiting, generation_tokens=made))

    def make_add(self, limit):
        self.usable.append(self.endpoints_made)
        self.endpoints_made += 1
        return EndpointAdded(self.usable[-1], self.make_limit(limit), "added", self.rates)

    def make_remove(self, endpoint, drain):
        if endpoint in self.usable:
            self.usable.remove(endpoint)
        return EndpointRemoved(endpoint, drain)

    def make_plain(self, kind):
        return kind()

    # Beside what the watch checks ------------------------------------------------------------------------------

    def obey(self, command):
        super().obey(command)
        match command:
            case AbortBatch(batch):
                proves = self.strangers and 1 < len(batch.requests) <= LIST_OF_A_STRANGER
                assert not batch.moving or batch.endpoint in self.leaving or proves
            case Reject(errors):
                for request, _ in errors:
                    assert request.deadline is None or request.deadline > self.now or request.state not in OPEN
            case Drained():
                self.say("drained")
                self.drained += 1

    def check_grant(self, batch):
        super().check_grant(batch)
        endpoint, requests = self.endpoints[batch.endpoint], batch.requests
        assert len({self.cohorts[request.waiter] for request in requests}) == 1, "fresh and failed calls never mix"
        assert len(requests) <= self.setting.max_size
        if self.strangers and len(requests) > LIST_OF_A_STRANGER:
            assert self.lists_answered[batch.endpoint], "a stranger proves its lists by a short one"
        if len(requests) > endpoint.batch_size_cap:
            assert self.long_lists.get(batch.endpoint) not in self.open, (
                "while one list tries what was refused, none may"
            )
            self.long_lists[batch.endpoint] = batch.id
        assert len(requests) == 1 or batch.shape.alone_reason is None
        assert not (batch.streamed and (batch.shape.plain_only or batch.shape.max_output_tokens <= 4))
        self.check_rate(batch)

    def check_rate(self, batch):
        per_minute = self.rates.requests
        if per_minute is None:
            return
        times = self.sent_at[batch.endpoint]
        times.append(self.now)
        for number, earlier in enumerate(times):
            allowed = max(1.0, per_minute / 10) + (self.now - earlier) * per_minute / 60
            assert len(times) - number <= allowed + 0.001, "more requests than the rate and its burst allow"

    def free_on(self, endpoint):
        """Permits that are free on an endpoint, at least."""
        allowed = endpoint.limit
        if endpoint.id in self.growth:
            allowed = min(allowed, self.growth[endpoint.id][1])
        return allowed - endpoint.in_flight


times = st.sampled_from([0.001, 0.01, 0.1, 0.25, 0.25, 1.0, 7.0, 61.0, 301.0])
WAITS = st.sampled_from([0.0, 0.05, 0.15, 0.3, 0.8, 2.0])
ONE_IN_FOUR = st.sampled_from([False, False, False, True])


class Machine(RuleBasedStateMachine):
    """Calls come and are answered, time passes, and what must hold is checked."""

    def __init__(self):
        super().__init__()
        self.log = []
        self.waiting_since = {}

    def open_world(self, limits, found, *, strangers, requests=None, tokens=None, **numbers):
        setting = SchedulerSettings(trusts_lists=lambda: not strangers, **numbers)
        self.beginning = (setting, limits, found, RatesPerMinute(requests, tokens))
        self.world = World(*self.beginning)

    def tell(self, *event):
        self.log.append((self.world.now, event))
        self.world.tell(*event)
        self.check()
        self.look_who_waits()

    def pick(self, choices, number):
        return choices[number % len(choices)]

    # Events ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 20), shape=st.sampled_from([1, 1, 2]), then=WAITS)
    def submit_many(self, count, shape, then):
        for _ in range(count):
            self.tell("submit", shape, 1, None, True)
        self.tell("plain", Woke)
        self.advance_by(then)

    @rule()
    def turn(self):
        self.tell("plain", Woke)

    @rule(number=st.integers(0, 10_000))
    @precondition(lambda self: self.world.calls)
    def cancel(self, number):
        live = [index for index, request in enumerate(self.world.calls) if request.state in OPEN]
        self.tell("cancel", self.pick(live or [0], number))

    @rule(
        number=st.integers(0, 10_000),
        which=st.integers(0, 10_000),
        count=st.integers(1, 4),
        tokens=st.sampled_from([1, 1, 1, 900]),
        then=WAITS,
    )
    @precondition(lambda self: self.world.open)
    def answer_some(self, number, which, count, tokens, then):
        identity = self.pick(sorted(self.world.open), number)
        left = self.world.open[identity][1]
        start = which % max(1, len(left))
        positions = left[start : start + count]
        self.tell("answer", identity, positions, len(positions) == len(left), tokens)
        self.advance_by(then)

    @rule(seconds=times)
    def advance(self, seconds):
        self.advance_by(seconds)

    def advance_by(self, seconds):
        until = self.world.now + seconds
        woken = 0
        while (deadline := self.world.core.next_deadline()) is not None and deadline <= until:
            self.go_to(max(self.world.now, deadline))
            self.tell("plain", Woke)
            woken += 1
            assert woken < 300, "it asks to be woken again and again"
        self.go_to(until)
        self.tell("plain", Woke)

    def go_to(self, now):
        longest = self.world.setting.linger_s + self.world.setting.refill_s
        for (_, name), since in self.waiting_since.items():
            assert now <= since + longest + 1e-9, f"call {name} waits too long for permits that are free"
        self.world.now = now

    # What holds ----------------------------------------------------------------------------------------------------

    def check(self):
        world = self.world
        core, statistics = world.core, world.core.statistics()
        for endpoint in statistics.endpoints:
            if endpoint.state == "probing" and not world.is_wrong_address(endpoint.id):
                assert world.probes[endpoint.id] in world.open, "its probe is over"
        open_on = {batch.endpoint for batch, _ in world.open.values()}
        leaving = {*world.leaving} - world.gone
        assert leaving <= open_on, "nothing is left there, and it is not gone"
        assert {endpoint.id for endpoint in statistics.endpoints} == {*world.usable, *leaving}
        assert statistics.submitted == len(world.calls)
        self.check_lanes(statistics)
        ended = statistics.succeeded + statistics.failed + statistics.cancelled
        assert ended == world.ended.total() == sum(request.state not in OPEN for request in world.calls)
        self.check_deadline(core.next_deadline())

    def check_lanes(self, statistics):
        world = self.world
        of_class = Counter(request.shape.priority for request in world.calls if request.state is RequestState.QUEUED)
        of_tenant = Counter(request.shape.tenant for request in world.calls if request.state is RequestState.QUEUED)
        in_flight = Counter()
        for batch, left in world.open.values():
            in_flight[batch.shape.priority] += len(left) * batch.shape.weight
        for priority, lane in statistics.priorities.items():
            assert (lane.queued + lane.waiting, lane.in_flight) == (of_class[priority], in_flight[priority])
        assert sum(lane.queued for lane in statistics.priorities.values()) == statistics.queued
        assert sum(lane.waiting for lane in statistics.priorities.values()) == statistics.waiting
        for tenant, lane in statistics.tenants.items():
            assert lane.queued + lane.waiting == of_tenant[tenant]

    def check_deadline(self, deadline):
        world = self.world
        live = [request for request in world.calls if request.state in OPEN]
        dated = [request.deadline for request in live if request.deadline is not None]
        if deadline is None:
            assert not dated
            assert not any(request.state is RequestState.BACKING_OFF for request in live)
        else:
            assert deadline >= world.now, "it asks for the past"
            assert not dated or deadline <= min(dated), "a deadline would be missed"
            states = {request.state for request in live}
            waits = states & {RequestState.QUEUED, RequestState.BACKING_OFF}
            proves = world.strangers and any(len(batch.requests) > 1 for batch, _ in world.open.values())
            assert dated or waits or proves, "there is nothing to wake for"

    def look_who_waits(self):
        """Note since when each call has waited though permits for it are free."""
        world, setting = self.world, self.world.setting
        queued = [request for request in world.calls if request.state is RequestState.QUEUED]
        if world.core.next_deadline() == world.now or world.rates != RatesPerMinute():
            return
        if any(world.now >= request.queued_at + setting.starvation_s for request in queued):
            self.waiting_since.clear()
            return
        still = {}
        cohorts = Counter(world.cohorts[request.waiter] for request in queued)
        for endpoint in world.serving:
            if world.paused or endpoint.state not in ("healthy", "recovering") or endpoint.blocked_by:
                continue
            for request in queued:
                if (endpoint.id, request.shape.answer_key) in world.lacking:
                    continue
                # What failed together may be half of a list that goes whole.
                failed = request.attempts > 0
                together = min(cohorts[world.cohorts[request.waiter]], endpoint.batch_size_cap) if failed else 1
                # The list by which a stranger proves its lists waits for half of the limit at most, and others behind.
                needed = max(together * request.shape.weight, endpoint.limit // 2 if world.strangers else 0)
                if world.free_on(endpoint) >= needed or not endpoint.in_flight:
                    place = (endpoint.id, request.waiter)
                    still[place] = since = self.waiting_since.get(place, world.now)
                    # Settings that hold on an idle endpoint would show here at once.
                    # Of several, a slow one may leave calls to a fast one that holds them for a moment.
                    assert endpoint.in_flight or len(world.serving) > 1, "an idle endpoint sends"
                    assert world.now < since + setting.linger_s + setting.refill_s + 1e-9, f"{request!r} waits too long"
        self.waiting_since = still

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        self.tell("plain", Resumed)
        self.tell("plain", DrainRequested)
        for _ in range(2000):
            if world.drained:
                break
            if world.open:
                identity = min(world.open)
                self.tell("answer", identity, list(world.open[identity][1]), True, 5)
            else:
                deadline = world.core.next_deadline()
                assert deadline is not None, "calls are left, and nothing will ever happen to them"
                world.now = max(world.now, deadline)
                self.tell("plain", Woke)
        assert world.drained == 1, "drained is said exactly once"
        assert all(world.ended[request.seq] == 1 for request in world.calls), "every call ends"
        assert all(request.state is RequestState.DONE for request in world.calls)
        statistics = world.core.statistics()
        assert statistics.in_flight == statistics.abandoned == statistics.queued == statistics.waiting == 0
        assert world.core.next_deadline() is None
        self.replay()

    def replay(self):
        again = World(*self.beginning)
        for now, event in self.log:
            again.now = now
            again.tell(*event)
        assert again.transcript == self.world.transcript, "the same events give the same commands"


class AnyOrder(Machine):
    """Everything that can happen, in any order."""

    @initialize(
        linger_s=st.sampled_from([0.0, 0.1, 0.5]),
        refill_s=st.sampled_from([0.2, 1.0, 0.0]),
        refill_ratio=st.sampled_from([1.0, 0.5, 0.5, 0.0]),
        starvation_s=st.sampled_from([NEVER_STARVES, NEVER_STARVES, NEVER_STARVES, 1.0, 0.0]),
        max_size=st.sampled_from([64, 3, 1]),
        max_queued=st.sampled_from([1, 3, 16_384, 16_384]),
        raise_when_full=st.booleans(),
        length_reach=st.sampled_from([None, None, 0, 1]),
        limits=st.sampled_from([[8], [4], [1], [6, 3], [4, 4]]),
        found=st.sampled_from(sorted(LIMITS)),
        order=st.sampled_from(["fcfs", "fcfs", "shortest_first", "deadline"]),
        aging_s=st.sampled_from([300.0, 5.0]),
        requests=st.sampled_from([None, None, None, 6.0, 300.0]),
        tokens=st.sampled_from([None, None, None, 20_000.0]),
        strangers=st.booleans(),
    )
    def begin(self, **beginning):
        self.open_world(**beginning)

    @rule(
        shape=st.sampled_from([0, 1, 1, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10]),
        count=st.sampled_from([1, 1, 2, 5, 9]),
        tokens=st.sampled_from([1, 30, 5000]),
        patience=st.sampled_from([None, None, None, 0.05, 0.3, 5.0, 0.0]),
        may_wait=st.booleans(),
        prefix=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    )
    def submit(self, shape, count, tokens, patience, may_wait, prefix):
        for _ in range(count):
            self.tell("submit", shape, tokens, patience, may_wait, prefix)

    @rule(number=st.integers(0, 10_000), ended=st.booleans())
    @precondition(lambda self: self.world.open)
    def answer_all(self, number, ended):
        identity = self.pick(sorted(self.world.open), number)
        self.tell("answer", identity, list(self.world.open[identity][1]), ended, 5)

    @rule(
        number=st.integers(0, 10_000),
        kind=st.sampled_from(sorted(FailureKind.__members__)),
        delay=st.sampled_from([None, 0.0, 0.3, 4.0]),
        status=st.sampled_from([None, 400, 429, 503, 503]),
        cap=st.sampled_from([None, 2, 50]),
        retry_after=st.sampled_from([None, None, 2.0]),
    )
    @precondition(lambda self: self.world.open)
    def fail(self, number, kind, delay, status, cap, retry_after):
        identity = self.pick(sorted(self.world.open), number)
        self.tell("fail", identity, kind, delay, status, cap, retry_after)

    @rule(really=ONE_IN_FOUR, limit=st.sampled_from([1, 4, 8]))
    @precondition(lambda self: len(self.world.usable) < 4)
    def add_an_endpoint(self, really, limit):
        if really:
            self.tell("add", limit)

    @rule(really=ONE_IN_FOUR, which=st.integers(0, 5), drain=st.booleans())
    @precondition(lambda self: len(self.world.usable) > 1)
    def remove_an_endpoint(self, really, which, drain):
        if really:
            self.tell(
                "remove", self.pick(self.world.usable + sorted({*self.world.leaving} - self.world.gone), which), drain
            )

    @rule(which=st.integers(0, 3), kind=st.sampled_from(["NOT_SENT", "MAYBE_PROCESSED"]), then=WAITS)
    @precondition(lambda self: self.world.open)
    def lose_an_endpoint(self, which, kind, then):
        """All that is in flight on one endpoint fails, and what is sent there after it, for a while."""
        place = self.pick(sorted({batch.endpoint for batch, _ in self.world.open.values()}), which)
        for _ in range(6):
            failing = [number for number, (batch, _) in self.world.open.items() if batch.endpoint == place]
            if failing:
                self.tell("fail", min(failing), kind, 0.3, None, None, None)
        self.advance_by(then)

    @rule(
        endpoint=st.sampled_from([0, 0, 1]),
        running=st.sampled_from([None, 0, 4, 8]),
        waiting=st.sampled_from([None, 0, 3, 8, 8]),
        made=st.sampled_from([None, 1, 1, 2]),
        times=st.sampled_from([1, 1, 7]),
    )
    def report(self, endpoint, running, waiting, made, times):
        if endpoint < len(self.world.endpoints):
            for _ in range(times):
                self.tell("report", endpoint, running, waiting, made)
                if times > 1:
                    self.advance_by(0.5)

    @rule(really=ONE_IN_FOUR)
    @precondition(lambda self: not self.world.paused)
    def pause(self, really):
        if really:
            self.tell("plain", Paused)

    @rule()
    @precondition(lambda self: self.world.paused)
    def resume(self):
        self.tell("plain", Resumed)

    @rule(really=ONE_IN_FOUR, draining=ONE_IN_FOUR)
    @precondition(lambda self: len(self.log) > 100)
    def end(self, really, draining):
        if really:
            self.tell("plain", DrainRequested if draining else AbortRequested)
            assert draining or not any(request.state in OPEN for request in self.world.calls), "abort ends every call"


class Busy(Machine):
    """One busy server that answers: who waits for company, and who for a quantum of permits."""

    @initialize(
        linger_s=st.sampled_from([0.0, 0.1, 0.5]),
        refill_s=st.sampled_from([0.0, 0.2, 1.0]),
        refill_ratio=st.sampled_from([1.0, 0.5]),
        limits=st.sampled_from([[8], [5], [6, 3]]),
        max_size=st.sampled_from([64, 3]),
        strangers=ONE_IN_FOUR,
    )
    def begin(self, **beginning):
        self.open_world(found="fixed", starvation_s=NEVER_STARVES, **beginning)


def lasting(machine, examples):
    """As many examples as the profile asks for where it asks for many, else a few that take seconds."""
    asked = settings().max_examples
    machine.TestCase.settings = settings(max_examples=asked if asked > 1000 else examples, stateful_step_count=60)
    return machine.TestCase


TestAnyOrder = lasting(AnyOrder, 50)
TestBusy = lasting(Busy, 20)
