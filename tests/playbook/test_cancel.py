"""Cancelling in every state a call can be in. Its batch-mates are left alone. Rule 11."""

import pytest

from tests.core import Cancelled, FailureKind, Request, RequestState, Submitted, Woke
from tests.inspection import held
from tests.playbook.playbook import Playbook, answered, calls, counted, failed, shape


def test_a_queued_call_that_is_cancelled_is_not_sent():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Cancelled(a) << ["send b"]
    assert (play.cancelled, play.queued) == (1, 0)


def test_cancelling_the_only_queued_call_leaves_nothing_to_wake_for():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Cancelled(a) << []
    assert play.wakes_at is None
    assert play.scheduler.idle


def test_a_call_that_waits_outside_gives_up_its_turn():
    play = Playbook(limit=1, max_queued=1)
    a, b, c, d = calls("a b c d")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c, d)
    play >> Cancelled(c) << []
    assert play.waiting == 1
    play >> answered(a) << ["resolve a", "send b"]
    play >> Woke() << []
    play >> answered(b) << ["resolve b", "send d"]
    assert c.state is RequestState.DONE


def test_cancelling_in_flight_leaves_the_batch_mates_alone():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    assert (play.in_flight, play.abandoned) == (2, 1)
    # Its permit is still taken: the server works on it.
    play >> Woke() << []
    play >> answered(a) << ["send c"]
    assert play.abandoned == 0
    play >> answered(b) << ["resolve b"]


def test_the_tokens_of_an_answer_that_nobody_gets_are_wasted():
    play = Playbook(limit=4)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> Cancelled(a) << []
    play >> Cancelled(c) << []
    play >> answered(b, tokens=7) << ["resolve b"]
    assert play.wasted_tokens == 0
    play >> answered(a, tokens=5) << []
    assert play.wasted_tokens == 1 + 5
    # A server that counts no prompts says how many it has made.
    play >> counted(c, tokens=3) << []
    assert play.wasted_tokens == 1 + 5 + 3
    play >> answered(d, tokens=2) << ["resolve d"]
    assert play.completion_tokens == 7 + 5 + 3 + 2


def test_the_last_caller_who_goes_takes_the_connection_along():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> Cancelled(b) << ["abort a b"]
    # The permits come back when the connection has closed, not before.
    assert (play.in_flight, play.abandoned) == (2, 2)
    play >> failed(a, FailureKind.REFUSED) << ["send c"]
    assert (play.in_flight, play.abandoned) == (1, 0)


def test_a_batch_is_aborted_when_only_abandoned_calls_are_left_in_it():
    play = Playbook(limit=2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> answered(b, ended=False) << ["resolve b", "abort a b"]
    play >> failed(a, FailureKind.REFUSED) << []
    assert play.scheduler.idle


def test_a_batch_is_aborted_once():
    play = Playbook(limit=2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> Cancelled(b) << ["abort a b"]
    # An answer that was under way when the connection was told to close.
    play >> answered(a, ended=False) << []
    play >> Cancelled(b) << []
    play >> failed(b, FailureKind.REFUSED) << []
    assert play.cancelled == 2


def test_an_answer_to_a_call_that_has_gone_is_handed_to_nobody():
    play = Playbook(limit=2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> answered(a, b) << ["resolve b"]
    assert (play.succeeded, play.cancelled) == (1, 1)


def test_a_call_that_has_gone_is_not_tried_again():
    play = Playbook(limit=2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send b"]
    assert play.abandoned == 0


def test_a_call_cancelled_twice_is_counted_once():
    play = Playbook(limit=2)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> Cancelled(a) << []
    assert (play.cancelled, play.abandoned) == (1, 1)


def test_a_batch_is_aborted_with_the_weight_of_every_choice():
    play = Playbook(limit=8)
    a, b = calls("a b", shape(weight=3))
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    assert (play.in_flight, play.abandoned) == (6, 3)
    play >> answered(a, ended=False) << []
    assert (play.in_flight, play.abandoned) == (3, 0)


@pytest.mark.parametrize("sort", ["alike", "ranked", "long"])
def test_many_cancelled_calls_are_swept_out(sort):
    play = Playbook(limit=1, **({"order": "deadline"} if sort == "ranked" else {}))
    first, keeper, *rest = calls(1000)
    play.submit(first) >> Woke() << ["send c0"]
    play.submit(keeper) >> Woke() << []
    for call in rest:
        call.prompt = b"x" * 300 if sort == "long" else call.prompt
        play.scheduler.handle(Submitted(call), 0.0)
        play.scheduler.handle(Cancelled(call), 0.0)
    assert play.queued == 1
    assert held(play.scheduler, Request) < 200
    play >> answered(first) << ["resolve c0", "send c1"]
