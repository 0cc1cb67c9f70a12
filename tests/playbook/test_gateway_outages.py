"""A server behind a gateway goes away: 502, 503 or 504 for everything. Calls wait, and none fails; a dead replica among others is no outage."""

import heapq
import math
from itertools import count
from random import Random

import pytest

from batchclient import Backoff
from tests.core import (
    Failed,
    Failure,
    FailureKind,
    Limit,
    Reject,
    Resolve,
    Search,
    SendBatch,
    Submitted,
    Woke,
)
from batchclient.dialects._status import failure_of
from batchclient.errors import DialectError, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

SINGLE = shape(alone_reason="long answers")
LOST = FailureKind.MAYBE_PROCESSED
PAGE = Failure(LOST, DialectError, "the reply is not JSON", once=True, is_page=True)
"""Of a gateway under maintenance, with status 200."""


def told(call, status=502, delay=0.5, **fields):
    """A gateway says so to this call, at once."""
    kind = FailureKind.REJECTED if status == 503 else LOST
    return failed(call, kind, status=status, error=ServerFault, delay=delay, **fields)


def served(limit=4, **settings):
    """A server that answered a call at 0.0."""
    play = Playbook(limit=limit, **settings)
    (first,) = calls("first", SINGLE)
    play.submit(first) >> Woke() << ["send first"]
    play >> answered(first) << ["resolve first"]
    return play


def gone(names="", status=502, at=20.0, **settings):
    """Such a server, at which a gateway has said so to seventeen calls in a row, each sent after the one before; these wait besides."""
    play, told_once = served(**settings), calls(17, SINGLE)
    for call in told_once:
        play.at(at).submit(call) >> Woke() << [f"send {call.waiter}"]
        play >> told(call, status, delay=100.0) << []
    waiting = calls(names, SINGLE)
    play.submit(*waiting) >> Woke()
    return play, told_once, waiting


class Gateway:
    """A gateway before one server, in virtual time, and a job that keeps a thousand rows submitted.

    Args:
        away: from when to when the gateway says ``status`` to what it is sent; what the server has it still answers.
        dead: the share of requests that meet a dead replica.
        service_s: how long an answer takes.
    """

    def __init__(
        self,
        rows,
        limit=16,
        *,
        away=(math.inf, math.inf),
        status=502,
        dead=0.0,
        service_s=0.1,
        may_wait=True,
        retry=None,
    ):
        self.play = Playbook(limit=limit)
        self.answered_at, self.errors, self.told = [], [], 0
        self._away, self._status, self._dead, self._service_s, self._may_wait = away, status, dead, service_s, may_wait
        self._rng, self._retry = Random(1), retry or Backoff()
        self._events, self._order = [], count()
        self._rows = iter(calls(rows, SINGLE))
        for _ in range(min(rows, 1000)):
            self._submit()
        while self._events or self.play.wakes_at is not None:
            at, wakes_at = self._events[0][0] if self._events else math.inf, self.play.wakes_at
            if wakes_at is not None and wakes_at < at:
                self._tell(Woke(), max(wakes_at, self.play.now))
            else:
                at, _, batch, status = heapq.heappop(self._events)
                self._end(batch, status, at)
        assert len(self.answered_at) + len(self.errors) == rows

    def rate(self, since, until):
        """Answers a second."""
        return sum(since <= at < until for at in self.answered_at) / (until - since)

    def _submit(self):
        row = next(self._rows, None)
        if row is not None:
            self._tell(Submitted(row, may_wait=self._may_wait), self.play.now)

    def _tell(self, event, now):
        self.play.now = now
        self.play.scheduler.handle(event, now)
        for command in self.play.scheduler.commands():
            match command:
                case SendBatch(batch):
                    is_away = self._away[0] <= now < self._away[1] or self._rng.random() < self._dead
                    took_s = (0.004 if is_away else self._service_s) * self._rng.uniform(0.7, 1.3)
                    event = (now + took_s, next(self._order), batch, self._status if is_away else 200)
                    heapq.heappush(self._events, event)
                case Resolve(answers):
                    for _ in answers:
                        self.answered_at.append(now)
                        self._submit()
                case Reject(errors):
                    for _, error in errors:
                        self.errors.append(error)
                        self._submit()

    def _end(self, batch, status, now):
        if status == 200:
            self._tell(answered(*batch.requests), now)
            return
        self.told += 1
        failure = (
            PAGE if status == "a page" else failure_of(status, "Bad Gateway", None, streamed=False, retry_after_s=None)
        )
        tries = batch.failures + 1
        delay = self._retry.decide(failure.to_error(tries), tries, now - batch.oldest_at, self._rng)
        self._tell(Failed(batch, failure, delay, self._rng.random()), now)


# A job in an outage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_wait", [True, False])
@pytest.mark.parametrize("status", [502, 503, 504, "a page"])
def test_forty_seconds_without_a_server_cost_no_row_and_no_time_but_their_own(status, may_wait):
    job = Gateway(800, away=(2.0, 42.0), status=status, may_wait=may_wait)
    assert not job.errors
    first = min(at for at in job.answered_at if at >= 42.0)
    assert first < 44.5
    # 480 rows are left, at 160 a second.
    assert max(job.answered_at) < first + 5.0
    assert job.told < 100, "a server that is away is asked with single calls"


def test_after_five_seconds_without_a_server_the_pace_is_the_old_one_within_five_seconds():
    job = Gateway(4000, away=(10.0, 15.0))
    before = job.rate(5.0, 10.0)
    first = min(at for at in job.answered_at if at >= 15.0)
    assert (job.errors, first < 17.5) == ([], True)
    assert job.rate(first, first + 5.0) >= 0.9 * before
    assert job.rate(first + 5.0, first + 10.0) >= 0.97 * before
    assert max(job.answered_at) < 4000 / before + 5.0 + 3.0


def test_after_503s_a_limit_that_is_found_is_what_it_was_before():
    job = Gateway(9000, Limit(Search()), away=(8.0, 48.0), status=503, service_s=0.5)
    first = min(at for at in job.answered_at if at >= 48.0)
    assert not job.errors
    assert job.rate(first + 5.0, first + 7.0) >= 0.9 * job.rate(6.0, 8.0)


def test_a_server_that_still_answers_what_it_has_while_it_goes_costs_no_row():
    # Sixteen answers of some 12 s each are under way when it goes: one comes each second.
    job = Gateway(200, away=(20.0, 60.0), service_s=12.0)
    assert not job.errors
    assert job.told < 60


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_with_few_calls_at_once_none_fails_either(at_once):
    job = Gateway(50 * at_once, at_once, away=(3.0, 43.0), service_s=0.3, may_wait=False)
    assert not job.errors


def test_a_dead_engine_that_says_500_for_five_seconds_leaves_no_line_of_retries_behind():
    job = Gateway(4000, away=(10.0, 15.0), status=500)
    before, first = job.rate(5.0, 10.0), min(at for at in job.answered_at if at >= 15.0)
    assert job.errors == []
    assert job.rate(first, first + 5.0) >= 0.9 * before
    # Those that failed meanwhile, a thousand, have their turn at the end.
    assert max(job.answered_at) < 4000 / before + 5.0 + 3.0


# A dead replica -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("service_s", [0.05, 1.0])
def test_where_a_replica_is_dead_no_call_is_lost_and_none_waits_for_the_retry_budget(dead, service_s):
    job = Gateway(2000, 64, dead=dead, service_s=service_s)
    assert not job.errors
    assert job.play.retries_delayed == 0
    assert job.play.endpoints[0].state == "healthy"
    alone = Gateway(2000, 64, service_s=service_s)
    # One call of 2,000 meets the dead one a dozen times, half a second apart.
    assert max(job.answered_at) < max(alone.answered_at) * 1.1 + 10.0


def test_a_dead_replica_is_no_outage_while_another_holds_a_call_that_was_sent_no_earlier():
    play = served(limit=40)
    first, held, *others = calls("a held " + " ".join(f"x{i}" for i in range(30)), SINGLE)
    play.at(20.0).submit(first) >> Woke() << ["send a"]
    play.at(20.1) >> told(first, delay=100.0) << []
    play.submit(held) >> Woke() << ["send held"]
    for call in others:
        play.at(20.2).submit(call) >> Woke()
        play >> told(call, delay=100.0) << []
    assert play.endpoints[0].state == "healthy"
    # Once nothing of the row is held, the next word is enough.
    play.at(20.3) >> told(held, delay=100.0)
    assert play.endpoints[0].state == "ejected"


def test_a_retry_where_others_are_answered_has_fifteen_seconds_and_five_attempts():
    play = served(limit=2)
    it, *others = calls("it " + " ".join(f"x{i}" for i in range(40)), SINGLE)
    tries = []
    play.submit(it) >> Woke() << ["send it"]
    for number, other in enumerate(others):
        play.at(number + 0.5)
        tries.append(it.batch.failures)
        play >> told(it, delay=None if it.batch.failures == 4 else 0.5)
        if play.failed:
            break
        play.submit(other) >> Woke()
        play >> answered(other) << [f"resolve {other.waiter}"]
        play.at(number + 1.0) >> Woke() << ["send it"]
    assert tries == [0, *[1] * 15, 2, 3, 4]
    assert play.now >= 15.0


def test_it_has_them_too_where_nothing_else_was_answered_lately():
    """The last calls of a job are alone: whom they meet is as much chance as it was before."""
    play = served(limit=2)
    (it,) = calls("it", SINGLE)
    play.at(20.0).submit(it) >> Woke() << ["send it"]
    for second in range(20, 30):
        assert it.batch.failures == (second > 20)
        play.at(second + 0.5) >> told(it) << []
        play.at(second + 1.0) >> Woke() << ["send it"]


def test_the_retry_policy_is_asked_all_the_same():
    job = Gateway(400, dead=0.5, retry=Backoff(max_attempts=1))
    assert 100 < len(job.errors) < 300
    assert job.told == len(job.errors)


# When it is away ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_is_away_when_a_gateway_says_so_to_seventeen_in_a_row(status):
    play, called, (w,) = gone("w", status)
    assert play.endpoints[0].state == "ejected"
    assert play.endpoints[0].outage == (
        "an outage of endpoint 0 has begun: 17 failures in a row, the last: a gateway that reaches no server"
    )
    # One call finds out, first one that has not failed there; none uses up an attempt, whatever the policy says.
    for at, probe, pause in ((20.5, w, 1.0), (21.5, called[16], 1.0), (22.5, called[16], 1.0)):
        play.at(at) >> Woke() << [f"send {probe.waiter}"]
        play >> told(probe, status, delay=None) << []
        assert play.wakes_at == at + pause
    play.at(23.5) >> Woke() << ["send c16"]
    assert play.last.failures == 0
    play >> answered(called[16]) << ["resolve c16", "send w"]
    assert (play.last.failures, play.endpoints[0].state) == (0, "recovering")


def test_before_its_first_answer_no_server_is_away_for_a_gateways_word():
    play = Playbook(limit=4)
    for call in calls(40, SINGLE):
        play.submit(call) >> Woke() << [f"send {call.waiter}"]
        play >> told(call, delay=None) << [f"reject {call.waiter}: ServerFault"]
    assert play.endpoints[0].state == "healthy"


def test_a_later_word_is_no_sign_that_nobody_served_the_call():
    play = served(limit=4)
    for call in calls(40, SINGLE):
        play.at(20.0).submit(call) >> Woke()
        play >> told(call, delay=None, silent_s=5.1) << [f"reject {call.waiter}: ServerFault"]
    assert play.endpoints[0].state == "healthy"


@pytest.mark.parametrize(("silent_s", "state"), [(5.0, "ejected"), (5.1, "healthy")])
def test_what_a_gateway_says_within_five_seconds_shows_that_it_reaches_no_server(silent_s, state):
    play = served(limit=4)
    for call in calls(17, SINGLE):
        play.at(20.0).submit(call) >> Woke()
        play >> told(call, delay=100.0, silent_s=silent_s) << []
    assert play.endpoints[0].state == state


def test_an_answer_to_a_request_from_before_ends_no_outage():
    play = served(limit=20)
    old, w = calls("old w", SINGLE)
    play.at(10.0).submit(old) >> Woke() << ["send old"]
    for call in calls(17, SINGLE):
        play.at(20.0).submit(call) >> Woke()
        play >> told(call, delay=100.0) << []
    play.submit(w) >> Woke() << []
    play.at(20.1) >> answered(old) << ["resolve old"]
    assert play.endpoints[0].state == "ejected"
    play.at(20.5) >> Woke() << ["send w"]


def test_a_probe_that_waits_in_the_servers_queue_ends_the_outage():
    play = served(limit=20)
    (w,) = calls("w", SINGLE)
    for number, call in enumerate(calls(17, SINGLE)):
        play.at(20.0 + 0.1 * number).submit(call) >> Woke()
        play.at(20.05 + 0.1 * number) >> told(call, delay=100.0) << []
    play.submit(w) >> Woke() << []
    # The gateway refused within 0.05 s.
    play.at(22.2) >> Woke() << ["send w"]
    play.at(22.65) >> Woke() << []
    assert play.endpoints[0].state == "probing"
    play.at(22.75) >> Woke() << ["send c16"]
    assert play.endpoints[0].state == "recovering"


def test_calls_wait_for_a_minute_and_are_told_the_gateways_words():
    play, _, (w,) = gone("w")
    while play.now < 80.0 and (wakes_at := play.wakes_at) is not None:
        play.at(wakes_at) >> Woke()
        if play.in_flight:
            play >> told(play.last.requests[0])
    assert play.now == 80.0
    error = play.errors["w"]
    assert (type(error), error.status) == (ServerFault, 502)
    assert str(error).startswith("no (no server came back within outage_patience_s: ")
    assert w.state.name == "DONE"


def test_while_a_server_is_away_a_503_of_the_probe_is_no_sign_of_life():
    play, _, _ = gone("w", at=1.0)
    play.at(1.5) >> Woke() << ["send w"]
    play >> told(play.last.requests[0], 503) << []
    assert play.endpoints[0].state == "ejected"


def test_an_answered_retry_is_paid_back():
    play = served(limit=200, max_size=1)
    everyone = calls(150, SINGLE)
    play.at(20.0).submit(*everyone) >> Woke()
    full = play.endpoints[0].retry_budget_tokens
    for call in everyone[:60]:
        play >> failed(call, LOST, status=500, error=ServerFault, delay=0.5)
    play.at(20.5) >> Woke()
    paid = play.endpoints[0].retry_budget_tokens
    assert paid < 0.8 * full
    for call in everyone[:60]:
        play >> answered(call)
    assert play.endpoints[0].retry_budget_tokens == full


def test_a_server_that_held_a_call_for_a_second_before_it_went_is_waited_for():
    play = Playbook(limit=2)
    a, b = calls("a b", SINGLE)
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play.at(1.0) >> failed(a, LOST, delay=0.1) << []
    play >> failed(b, FailureKind.NOT_SENT, delay=None) << []
    for at in (1.5, 2.5, 4.5, 6.5):
        play.at(at) >> Woke()
        play >> failed(play.last.requests[0], FailureKind.NOT_SENT, delay=None) << []
    assert play.failed == 0
