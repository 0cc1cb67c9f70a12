"""Single flight at literal times: one generation, and each caller's own end."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import (
    AbortRequested,
    Answered,
    Cancelled,
    CloseRequested,
    Failed,
    Failure,
    FailureKind,
    FixedLimit,
    Request,
    RequestState,
    Scheduler,
    SchedulerSettings,
    Shape,
    Submitted,
    Woke,
)
from batchclient._calls.single_flight import SharingRunner
from batchclient._shell.servers import DialectChoice
from batchclient.errors import (
    BadRequest,
    CallAborted,
    ClientClosed,
    DeadlineExceeded,
    QueueFull,
    RateLimited,
)
from batchclient.retry import Backoff
from batchclient.transport import Timeouts
from batchclient.types import Choice, Completion, Usage

URL = "http://a:8000/v1"

SAME = Shape(b"k", b"{}", max_output_tokens=16, greedy=True)


def call(name, prompt="p", *, of=SAME, deadline=None, timeout_s=None, solo=b""):
    prompt = f'"{prompt}"'.encode()
    return Request(of, prompt, deadline=deadline, timeout_s=timeout_s, solo_fields=solo, waiter=End(name))


class Loop:
    """An event loop at literal times, in the place of a client's: it sends nothing."""

    def __init__(self):
        self.time = 0.0
        self.passing = 0.0
        """What passes between two looks at the clock."""
        self.timers = []
        self.soon = []
        self.tasks = []

    def now(self):
        self.time += self.passing
        return self.time

    def call_at(self, time, function):
        self.timers.append(Timer(time, function))
        return self.timers[-1]

    def call_soon(self, function):
        self.soon.append(function)

    def spawn(self, work, started, context=None):
        self.tasks.append(Task(started[-1]))
        return self.tasks[-1]

    def note_work(self):
        pass

    def is_gone(self):
        return False

    def turn(self):
        while self.soon:
            self.soon.pop(0)()

    def run_until(self, time):
        while due := [timer for timer in self.timers if not timer.cancelled and timer.time <= time]:
            timer = min(due, key=lambda one: one.time)
            self.timers.remove(timer)
            self.time = max(self.time, timer.time)
            timer.function()
            self.turn()
        self.time = time


@dataclass(eq=False)
class Timer:
    time: float
    function: object
    cancelled: bool = False

    def cancel(self):
        self.cancelled = True


@dataclass(eq=False)
class Task:
    batch: object
    cancelled: bool = False

    def cancel(self):
        self.cancelled = True


@dataclass(eq=False)
class End:
    """A caller's waiter."""

    name: object
    ends: dict | None = None

    def done(self):
        return False

    def set_result(self, answer):
        assert self.name not in self.ends, "every call ends once"
        self.ends[self.name] = answer

    set_exception = set_result


class Play:
    """A client's runner with a memory of what it sent and of how each call ended."""

    def __init__(self, limit=4, **settings):
        self.core = Scheduler(SchedulerSettings(trusts_lists=lambda: True, **settings), [FixedLimit(limit)], [URL])
        self.loop = Loop()
        self.runner = SharingRunner(
            self.loop,
            self.core,
            DialectChoice("openai", ()),
            [None],
            Backoff(),
            Timeouts(),
            lambda *_: None,
            scheduler=self.core,
            tracing=None,
            pages={},
        )
        self.ends = {}

    @property
    def sent(self):
        return [task.batch for task in self.loop.tasks]

    @property
    def aborted(self):
        return [task.batch for task in self.loop.tasks if task.cancelled]

    def at(self, now, *events):
        self.loop.run_until(now)
        for event in events:
            match event:
                case Submitted(request):
                    request.waiter.ends = self.ends
                    self.runner.submit(request)
                case Cancelled(request):
                    self.runner.leave(request)
                case _:
                    self.runner.tell(event)
        self.loop.turn()
        return self

    def submit(self, now, *requests):
        return self.at(now, *[Submitted(request) for request in requests])

    def answer(self, now, batch=None, text="text"):
        batch = batch or self.sent[-1]
        answers = [
            (position, Completion((Choice(0, text, "stop", {"tokens": ["a"]}),), Usage(3, 2), request.attempts))
            for position, request in enumerate(batch.requests)
        ]
        return self.at(now, Answered(batch, answers, ended=True))

    def fail(self, now, kind, *, delay=None, batch=None, **fields):
        batch = batch or self.sent[-1]
        error = RateLimited if kind is FailureKind.REJECTED else BadRequest
        return self.at(now, Failed(batch, Failure(kind, error, "no", **fields), delay))

    def next(self):
        """When something is to be done, if nothing comes."""
        return min((timer.time for timer in self.loop.timers if not timer.cancelled), default=None)

    @property
    def counts(self):
        seen = self.core.statistics()
        return {name: getattr(seen, name) for name in ("submitted", "succeeded", "failed", "cancelled", "shared")}


def counts(submitted, succeeded=0, failed=0, cancelled=0, shared=0):
    return dict(submitted=submitted, succeeded=succeeded, failed=failed, cancelled=cancelled, shared=shared)


def test_equal_calls_are_generated_once():
    play = Play().submit(0.0, call("a"), call("b"), call("c"))
    assert [len(batch.requests) for batch in play.sent] == [1]
    play.answer(1.0)
    assert sorted(play.ends) == ["a", "b", "c"]
    assert play.counts == counts(3, succeeded=3, shared=2)
    assert play.core.statistics().completion_tokens == 2
    assert play.core.idle


def test_a_call_joins_what_is_in_flight():
    play = Play().submit(0.0, call("a")).submit(0.5, call("b"))
    assert len(play.sent) == 1
    assert sorted(play.answer(1.0).ends) == ["a", "b"]


def test_a_call_joins_what_is_queued():
    play = Play(limit=1).submit(0.0, call("other", "q")).submit(0.1, call("a"), call("b"))
    assert play.core.statistics().queued == 1
    play.answer(1.0).answer(2.0)
    assert sorted(play.ends) == ["a", "b", "other"]
    assert len(play.sent) == 2


def test_time_that_is_over_while_the_call_is_made_ends_it_alone():
    play = Play()
    play.loop.passing = 0.01
    play.submit(0.0, call("a", deadline=0.015))
    play.loop.passing = 0.0
    assert isinstance(play.at(1.0).ends["a"], DeadlineExceeded)
    assert list(play.submit(1.0, call("b", deadline=9.0)).answer(2.0).ends) == ["a", "b"]
    assert play.counts == counts(2, succeeded=1, failed=1)


def test_other_calls_share_nothing():
    for other in [
        call("b", "q"),
        call("b", of=Shape(b"k2", b"{}", greedy=True)),
        call("b", of=Shape(b"tenant k", b"{}", greedy=True, tenant="t", answer_key=b"k")),
        call("b", of=Shape(b"k", b"{}")),
        call("b", of=Shape(b"k", b"{}", greedy=True, alone_reason="kv_transfer_params")),
    ]:
        play = Play().submit(0.0, call("a"), other)
        assert sum(len(batch.requests) for batch in play.sent) == 2
        assert play.counts == counts(2)


def test_calls_that_are_not_greedy_share_nothing_with_each_other():
    sampled = Shape(b"k", b"{}")
    play = Play().submit(0.0, call("a", of=sampled), call("b", of=sampled))
    assert len(play.sent[0].requests) == 2


def test_the_first_may_leave_and_the_others_are_answered():
    a, b = call("a"), call("b")
    play = Play().submit(0.0, a, b).at(0.5, Cancelled(a))
    assert not play.aborted
    play.answer(1.0)
    assert list(play.ends) == ["b"]
    assert a.state is RequestState.DONE
    assert play.counts == counts(2, succeeded=1, cancelled=1, shared=1)


def test_when_the_last_has_left_the_server_is_let_off():
    a, b = call("a"), call("b")
    play = Play().submit(0.0, a, b).at(0.5, Cancelled(b), Cancelled(a), Cancelled(a))
    assert play.aborted == play.sent
    assert play.counts == counts(2, cancelled=2, shared=1)
    # What is being ended is not joined.
    play.submit(0.6, call("c"))
    assert len(play.sent) == 2
    play.answer(1.0, play.sent[1])
    assert list(play.ends) == ["c"]
    assert play.core.idle


def test_each_has_its_own_deadline_and_the_latest_counts():
    a, b, c = call("a", deadline=1.0), call("b", deadline=3.0), call("c", deadline=2.0)
    play = Play().submit(0.0, a).submit(0.1, b, c)
    assert play.next() == 1.0
    play.at(1.0)
    assert list(play.ends) == ["a"]
    assert isinstance(play.ends["a"], DeadlineExceeded)
    assert "while the server worked" in str(play.ends["a"])
    assert play.ends["a"].attempt == 1
    assert not play.aborted
    assert play.next() == 2.0
    play.at(2.0)
    assert list(play.ends) == ["a", "c"]
    assert play.next() == 3.0
    play.at(3.0)
    assert list(play.ends) == ["a", "c", "b"]
    assert play.aborted == play.sent
    assert play.counts == counts(3, failed=3, shared=2)


def test_a_caller_without_a_deadline_keeps_it_going():
    play = Play().submit(0.0, call("a", deadline=1.0)).submit(0.5, call("b"))
    play.at(1.0).at(100.0)
    assert list(play.ends) == ["a"]
    assert play.next() is None
    assert sorted(play.answer(200.0).ends) == ["a", "b"]
    assert play.counts == counts(2, succeeded=1, failed=1, shared=1)


def test_rows_who_share_a_call_have_their_time_from_its_grant():
    play = Play(limit=1).submit(0.0, call("other", "q"))
    play.submit(0.1, call("a", timeout_s=1.0), call("b", timeout_s=2.0)).at(50.0)
    play.answer(100.0)
    # Who joins what the server works on has its time from then.
    play.submit(100.5, call("c", timeout_s=1.0)).at(101.0)
    assert set(play.ends) == {"other", "a"}
    assert isinstance(play.ends["a"], DeadlineExceeded)
    assert set(play.at(101.5).ends) == {"other", "a", "c"}
    # A refusal for load takes back the time; a failure does not.
    play.fail(101.9, FailureKind.REJECTED, delay=8.0).submit(103.0, call("d", timeout_s=1.5)).at(109.8)
    assert set(play.ends) == {"other", "a", "c"}
    play.at(109.9).fail(110.0, FailureKind.MAYBE_PROCESSED, delay=0.1).at(110.1, Woke()).at(111.4)
    assert set(play.ends) == {"other", "a", "c", "d"}
    play.at(111.9)
    assert set(play.ends) == {"other", "a", "b", "c", "d"}
    assert play.aborted == play.sent[-1:]
    assert play.next() is None or play.next() > 1000.0


@pytest.mark.parametrize("more", [{}, {"deadline": 7.0}])
def test_a_row_and_a_call_of_another_kind_each_end_at_their_own_time(more):
    for first, second in (({"timeout_s": 3.0}, more), (more, {"timeout_s": 3.0})):
        play = Play().submit(0.0, call("a", **first)).submit(0.0, call("b", **second))
        row = "a" if "timeout_s" in first else "b"
        assert set(play.at(2.9).ends) == set()
        assert set(play.at(3.0).at(6.9).ends) == {row}
        if more:
            assert set(play.at(7.0).ends) == {"a", "b"}
        else:
            play.answer(50.0)
            assert set(play.ends) == {"a", "b"}


def test_a_deadline_that_has_passed_is_refused_not_joined():
    play = Play().submit(0.0, call("a")).submit(5.0, call("b", deadline=5.0))
    assert isinstance(play.ends["b"], DeadlineExceeded)
    assert play.counts == counts(2, failed=1)


def test_each_has_an_answer_of_its_own():
    play = Play().submit(0.0, call("a"), call("b")).answer(1.0)
    a, b = play.ends["a"], play.ends["b"]
    assert a == b
    assert a is not b
    assert a.choices[0] is not b.choices[0]
    a.choices[0].logprobs["tokens"].append("changed")
    a.usage.completion_tokens = 99
    assert b.choices[0].logprobs == {"tokens": ["a"]}
    assert b.usage.completion_tokens == 2


def test_each_has_an_error_of_its_own():
    cause = ValueError("why")
    play = Play().submit(0.0, call("a"), call("b"))
    play.fail(1.0, FailureKind.REJECTED, status=429, retry_after_s=7.0, code="busy", cause=cause)
    a, b = play.ends["a"], play.ends["b"]
    assert a is not b
    for error in (a, b):
        assert (type(error), error.message, error.attempt) == (RateLimited, "no", 1)
        assert (error.status, error.retry_after_s, error.code, error.__cause__) == (429, 7.0, "busy", cause)
    assert play.counts == counts(2, failed=2, shared=1)


def test_a_retry_is_shared_too():
    play = Play().submit(0.0, call("a")).fail(1.0, FailureKind.MAYBE_PROCESSED, delay=0.5).submit(1.2, call("b"))
    play.at(1.5).answer(2.0)
    assert {name: end.attempts for name, end in play.ends.items()} == {"a": 2, "b": 2}
    assert len(play.sent) == 2


def test_a_full_queue_refuses_all_of_a_flight():
    play = Play(limit=1, max_queued=1, raise_when_full=True).submit(0.0, call("x", "x")).submit(0.1, call("y", "y"))
    play.submit(0.2, call("a"))
    assert isinstance(play.ends["a"], QueueFull)
    # Joining takes no place.
    play.submit(0.3, call("y2", "y"))
    assert "y2" not in play.ends
    assert play.counts == counts(4, failed=1, shared=1)


def test_abort_ends_all():
    play = Play().submit(0.0, call("a"), call("b")).at(0.5, AbortRequested())
    assert [type(end) for end in play.ends.values()] == [CallAborted, CallAborted]
    assert play.counts == counts(2, failed=2, shared=1)


def test_nobody_joins_once_it_ends():
    play = Play().submit(0.0, call("a")).at(0.5, CloseRequested()).submit(0.6, call("b"))
    assert isinstance(play.ends["b"], ClientClosed)


def test_labels_of_one_caller_are_not_sent_for_another():
    play = Play(limit=1).submit(0.0, call("x", "x"))
    play.submit(0.1, call("a", solo=b'"user":"a"'), call("b", solo=b'"user":"b"')).answer(1.0)
    assert play.sent[-1].requests[0].solo_fields == b""
    play.answer(2.0).submit(3.0, call("c", solo=b'"user":"c"'))
    assert play.sent[-1].requests[0].solo_fields == b'"user":"c"'


def test_nothing_of_a_prompt_is_shown():
    play = Play().submit(0.0, call("a", "canary"))
    assert "canary" not in f"{play.core!r} {play.runner!r} {play.sent} {play.sent[0].requests}"


def test_a_caller_that_joined_is_told_its_own_time():
    play = Play(limit=1).submit(0.0, call("first")).submit(4.0, call("joined", deadline=5.0)).at(5.0)
    assert str(play.ends["joined"]) == (
        "the call's timeout_s passed while the server worked on it: 0 s in the queue, 1 s in 1 attempt"
    )


@pytest.mark.parametrize(
    ("leaves", "answered"),
    [(("c", 2.5), [4.0, 3.0]), (("a", 2.5), [3.0, 2.0])],
    ids=["a later one leaves", "the first leaves"],
)
def test_callers_of_a_shared_request_each_have_their_time(leaves, answered):
    calls = {name: call(name) for name in "abc"}
    play = Play().submit(0.0, calls["a"]).submit(1.0, calls["b"]).submit(2.0, calls["c"])
    play.at(leaves[1], Cancelled(calls[leaves[0]])).answer(4.0)
    statistics = play.core.statistics()
    ends = {
        outcome: (each.count, each.sum) for (_, outcome), each in statistics.histograms["call_duration_seconds"].items()
    }
    left = leaves[1] - calls[leaves[0]].queued_at
    assert ends == {"succeeded": (2, sum(answered)), "cancelled": (1, left)}
    assert (statistics.succeeded, statistics.cancelled) == (2, 1)
    # One of them was queued and sent.
    assert statistics.histograms["queue_duration_seconds"]["completion",].count == 1


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["submit", "row"]), st.sampled_from("pq"), st.sampled_from([None, 0.5, 1.0, 4.0])),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
        st.tuples(st.just("answer"), st.integers(0, 30), st.none()),
        st.tuples(st.sampled_from(["fail", "refuse"]), st.integers(0, 30), st.sampled_from([None, 0.2])),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.5, 2.0]), st.none()),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 3))
def test_every_call_ends_once_whatever_happens(steps, limit):
    play, now, made, gone = Play(limit=limit), 0.0, [], set()
    over = set()

    def open_batches():
        return [batch for batch in play.sent if batch.id not in over and batch not in play.aborted]

    for kind, value, more in steps:
        if kind in ("submit", "row"):
            time = {"timeout_s": more} if kind == "row" else {"deadline": None if more is None else now + more}
            made.append(call(len(made), value, **time))
            play.submit(now, made[-1])
        elif kind == "cancel" and made:
            one = made[value % len(made)]
            if one.state is not RequestState.DONE:
                gone.add(one.waiter.name)
                play.at(now, Cancelled(one))
        elif kind in ("answer", "fail", "refuse") and open_batches():
            batch = open_batches()[value % len(open_batches())]
            over.add(batch.id)
            if kind == "answer" and not batch.aborting:
                play.answer(now, batch, text=batch.requests[0].prompt.decode())
            else:
                kinds = FailureKind.REJECTED if kind == "refuse" else FailureKind.MAYBE_PROCESSED
                play.fail(now, kinds, delay=more, batch=batch)
        elif kind == "wait":
            now += value
            play.at(now)
        for one in made:
            late = one.deadline is not None and one.deadline <= now
            assert not late or one.waiter.name in play.ends or one.waiter.name in gone, "a deadline is kept"
    play.at(now, CloseRequested())
    assert gone.isdisjoint(play.ends)
    assert gone | set(play.ends) == {one.waiter.name for one in made}
    assert play.core.idle
    seen = play.counts
    assert seen["submitted"] == len(made) == seen["succeeded"] + seen["failed"] + seen["cancelled"]
    assert seen["cancelled"] == len(gone)
    statistics = play.core.statistics()
    observed = dict.fromkeys(("succeeded", "failed", "cancelled"), 0)
    for (_, outcome), histogram in statistics.histograms["call_duration_seconds"].items():
        observed[outcome] += histogram.count
    assert observed == {outcome: seen[outcome] for outcome in observed}
    assert sum(statistics.errors.values()) == seen["failed"]
