"""Retries beyond a fifth of the work wait; they never fail for it."""

import pytest

from tests.core import AbortRequested, Cancelled, FailureKind, Woke
from batchclient.errors import ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

LOST = FailureKind.MAYBE_PROCESSED
SIZE = 128
ALONE = shape(alone_reason="so that it is no part of a list")


def in_debt(*others):
    """A server of which a list of 64 was asked for twice again: of a budget of a hundred calls it owes 28, which is 2.8 s."""
    play = Playbook(limit=64 + len(others), max_size=64)
    crowd = calls(64)
    play.submit(*crowd, *others) >> Woke()
    for _ in range(2):
        play >> failed(crowd[0], FailureKind.REJECTED, delay=0.0, status=429)
        assert play.last.requests == crowd
    return play


def test_retries_beyond_the_budget_wait_until_they_are_paid_for():
    play = Playbook(limit=SIZE, max_size=1)
    everyone = calls(SIZE)
    play.submit(*everyone) >> Woke()
    for call in everyone[:38]:
        play >> failed(call, LOST, delay=0.0, status=502, error=ServerFault, silent_s=6.0) << [f"send {call.waiter}"]
    for call in everyone:
        play.at(1.0) >> failed(call, LOST, delay=1.0) << []
    play.at(2.0) >> Woke()
    # 128 - 38 + 20; the last retry may leave a debt.
    went = len(play.sent) - SIZE - 38
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
    # It holds no more than all that may be in flight, whatever time goes by.
    play.at(1000.0) >> Woke()
    assert play.endpoints[0].retry_budget_tokens == SIZE * 17


def test_fresh_calls_that_flow_pay_for_retries_at_once():
    play = Playbook(limit=8, max_size=8)
    first = calls(8)
    play.submit(*first) >> Woke()
    # Of a hundred calls' worth a list of eight takes 104.
    for _ in range(13):
        play >> failed(first[0], LOST, delay=0.0, status=502, error=ServerFault, silent_s=6.0)
        assert play.last.requests == first
    play >> failed(first[0], LOST, delay=0.0, status=502, error=ServerFault, silent_s=6.0) << []
    play.submit(*calls(" ".join(f"x{i}" for i in range(16)))) >> Woke()
    for _ in range(2):
        assert play.backing_off == 8
        play >> answered(*play.last.requests, tokens=16)
    # 16 fresh calls bring 3.2 calls' worth; what is left of the debt is less than a tenth of a second.
    assert play.backing_off == 8
    play.at(0.1) >> Woke() << ["send " + " ".join(call.waiter for call in first)]


def test_once_answers_show_how_short_they_are_retries_cost_less():
    play = Playbook(limit=100, max_size=1)
    everyone = calls(100, shape(max_output_tokens=100))
    play.submit(*everyone) >> Woke()
    for at in (0.0, 1.0):
        for call in everyone:
            play.at(at) >> failed(call, LOST, delay=1.0, status=500, error=ServerFault) << []
        play.at(at + 1.0) >> Woke()
    # All were paid for once; a second later ten a second flow in, and the last may leave a debt.
    assert (len(play.sent), play.backing_off) == (200 + 11, 100 - 11)
    for batch in play.sent[200:]:
        play >> answered(*batch.requests, tokens=1)
    # What came back for eleven at the price of 100 tokens pays for the others at the price of one.
    assert (len(play.sent), play.backing_off) == (200 + 100, 0)


def test_calls_of_a_gateway_that_has_reached_no_server_yet_wait_for_the_budget():
    play = Playbook(limit=100, max_size=1)
    everyone = calls(100)
    play.submit(*everyone) >> Woke()
    for at in (0.0, 1.0):
        for call in everyone:
            play.at(at) >> failed(call, LOST, delay=1.0, status=502, error=ServerFault) << []
        play.at(at + 1.0) >> Woke()
    # None fails for attempts that came to nothing at once, all within seconds.
    assert (len(play.sent), play.backing_off) == (200 + 11, 100 - 11)


def test_a_list_whose_answers_do_not_match_costs_nothing_as_its_calls_go_on_singly():
    play = Playbook(limit=128, max_size=64)
    first, crowd = calls(" ".join(f"x{i}" for i in range(64))), calls(128)
    play.submit(*first) >> Woke()
    play >> answered(*first, tokens=16)
    play.submit(*crowd) >> Woke()
    assert [len(batch.requests) for batch in play.sent[1:]] == [64, 64]
    for call in (crowd[0], crowd[64]):
        play >> failed(call, FailureKind.MISMATCH, delay=1.0)
    assert [len(batch.requests) for batch in play.sent[3:]] == [1] * 128
    for call in crowd[:100]:
        play >> failed(call, LOST, delay=0.0, status=500, error=ServerFault)
    assert play.backing_off == 0


def test_a_call_that_waits_for_the_budget_ends_at_its_deadline_and_may_be_cancelled():
    late, gone, kept = calls("late gone kept", ALONE)
    late.deadline = 1.0
    play = in_debt(late, gone, kept)
    for call in (late, gone, kept):
        play >> failed(call, LOST, delay=0.0) << []
    play >> Cancelled(gone) << []
    play.at(1.0) >> Woke() << ["reject late: DeadlineExceeded"]
    assert (play.backing_off, play.failed) == (1, 1)
    play.at(play.wakes_at) >> Woke() << ["send kept"]
    assert play.now == pytest.approx(2.8)


def test_every_call_that_waits_for_the_budget_is_found_when_all_end():
    a, b = calls("a b", ALONE)
    play = in_debt(a, b)
    for call in (a, b):
        play >> failed(call, LOST, delay=0.0) << []
    play >> AbortRequested()
    assert (play.ends["a"], play.ends["b"], play.backing_off) == (1, 1, 0)


def test_what_was_not_sent_and_what_is_sent_in_another_form_is_free():
    play = Playbook(limit=[16, 16])
    a, b = calls("a b", shape())
    play.submit(*calls(16)) >> Woke()
    crowd, others = (batch.requests for batch in play.sent)
    # A list of eight that is refused by one server goes to the other. The first time costs nothing;
    # then both pay for it 13 times, of a hundred calls' worth.
    for _ in range(27):
        play >> failed(crowd[0], FailureKind.REJECTED, delay=0.0, status=429, retry_after_s=0.0)
        assert play.last.requests == crowd
    assert max(endpoint.retry_budget_tokens for endpoint in play.endpoints) < 0
    play >> answered(*crowd)
    play >> answered(*others)
    owed = [endpoint.retry_budget_tokens for endpoint in play.endpoints]
    play.submit(a, b) >> Woke()
    play >> failed(a, FailureKind.NOT_SENT)
    play >> failed(a, FailureKind.BAD_CALL)
    assert [len(batch.requests) for batch in play.sent[-4:]] == [2, 2, 1, 1]
    # First sendings flow in, and nothing flows out.
    assert all(now >= before for now, before in zip([e.retry_budget_tokens for e in play.endpoints], owed, strict=True))
