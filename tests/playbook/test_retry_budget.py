"""Retries beyond a fifth of the work wait; they never fail for it."""

import pytest

from batchclient._core.messages import Cancelled, FailureKind, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed

LOST = FailureKind.MAYBE_PROCESSED
SIZE = 128
TOKENS = 17.0
"""Of one call: one of prompt, 16 of output."""


def budget_of(play, number=0):
    return play.scheduler._endpoints.by_id[number].budget


def test_retries_beyond_the_budget_wait_until_they_are_paid_for():
    play = Playbook(limit=SIZE, max_list=1)
    everyone = calls(SIZE)
    play.submit(*everyone) >> Woke()
    budget_of(play).charge(28 * TOKENS, SIZE, 1.0)
    for call in everyone:
        play.at(1.0) >> failed(call, LOST, delay=1.0) << []
    play.at(2.0) >> Woke()
    # 128 - 28 + 10; the last retry may leave a debt.
    went = len(play.sent) - SIZE
    assert went == 111
    assert (play.backing_off, play.failed) == (SIZE - went, 0)
    assert play.endpoints[0].retry_budget_tokens <= 0
    assert play.retries_delayed == SIZE - went
    while play.backing_off:
        before, wakes_at = len(play.sent), play.wakes_at
        assert play.now < wakes_at <= play.now + 0.2
        play.at(wakes_at) >> Woke()
        assert len(play.sent) >= before
    # Ten a second.
    assert play.now == pytest.approx(2.0 + (SIZE - went) / 10, abs=0.3)
    assert play.failed == 0


def test_fresh_calls_that_flow_pay_for_retries_at_once():
    play = Playbook(limit=8, max_list=8)
    play.submit(*calls(8)) >> Woke()
    budget_of(play).charge(100 * TOKENS + 10 * TOKENS, 8, 0.0)
    first = play.last.requests
    play >> failed(first[0], LOST, delay=0.0) << []
    fresh = calls(" ".join(f"x{i}" for i in range(48)))
    play.submit(*fresh) >> Woke()
    for _ in range(5):
        assert play.backing_off == 8
        play >> answered(*play.last.requests, tokens=16)
    # 48 fresh calls bring 9.6 calls' worth; a tenth of a debt is a hundredth of a second.
    play >> answered(*play.last.requests, tokens=16)
    play.at(0.2) >> Woke() << ["send " + " ".join(call.waiter for call in first)]


def test_a_call_that_waits_for_the_budget_ends_at_its_deadline_and_may_be_cancelled():
    play = Playbook(limit=4, max_list=1)
    late, gone, kept = calls("late gone kept")
    late.deadline = 3.0
    play.submit(late, gone, kept) >> Woke()
    budget_of(play).charge(100 * TOKENS + 100 * TOKENS, 4, 0.0)
    for call in (late, gone, kept):
        play >> failed(call, LOST, delay=0.0) << []
    play >> Cancelled(gone) << []
    play.at(3.0) >> Woke() << ["reject late: DeadlineExceeded"]
    assert (play.backing_off, play.failed) == (1, 1)
    play.at(play.wakes_at) >> Woke() << ["send kept"]
    assert play.now == pytest.approx(10.0)


def test_every_call_that_waits_for_the_budget_is_found_when_all_end():
    play = Playbook(limit=4, max_list=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke()
    budget_of(play).charge(1e6, 4, 0.0)
    for call in (a, b):
        play >> failed(call, LOST, delay=0.0) << []
    assert sorted(request.waiter for request in play.scheduler._recovery.requests()) == ["a", "b"]


def test_what_was_not_sent_and_what_is_sent_in_another_form_is_free():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b @0"]
    for number in (0, 1):
        budget_of(play, number).charge(1e6, 4, 0.0)
    play >> failed(a, FailureKind.NOT_SENT) << ["send a b @1"]
    play >> failed(a, FailureKind.BAD_CALL) << ["send a @1", "send b @1"]
    assert play.endpoints[1].retry_budget_tokens == pytest.approx(-1e6 + 100, abs=100)
