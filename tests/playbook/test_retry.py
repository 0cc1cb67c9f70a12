"""What is tried again, when, and with whom."""

import pytest

from tests.core import Cancelled, FailureKind, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed

LOST = FailureKind.MAYBE_PROCESSED


def test_a_failed_batch_is_tried_again_after_the_delay_and_no_earlier():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, LOST, delay=0.5) << []
    assert play.wakes_at == 1.5
    assert play.backing_off == 1
    play.at(1.4) >> Woke() << []
    play.at(1.5) >> Woke() << ["send a"]
    assert play.last.failures == 1
    play.at(2.0) >> answered(a) << ["resolve a"]
    assert a.attempts == 2
    assert play.retries == 1


@pytest.mark.parametrize("kind", [FailureKind.NOT_SENT, LOST, FailureKind.REJECTED])
def test_what_the_policy_gives_up_has_failed(kind):
    play = Playbook()
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, kind, delay=None)
    assert play.failed == 2
    assert play.in_flight == 0


def test_calls_that_failed_together_are_tried_again_together_and_never_with_fresh_ones():
    play = Playbook(limit=4)
    (a, b), fresh = calls("a b"), calls("x y")
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(1.0) >> failed(a, LOST, delay=1.0) << []
    play.at(2.0)
    for call in fresh:
        play >> Submitted(call)
    play >> Woke() << ["send a b", "send x y"]


def test_a_delay_of_zero_sends_again_in_the_same_step():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, LOST, delay=0.0) << ["send a"]


def test_failures_count_up_from_attempt_to_attempt():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    assert play.last.failures == 0
    for failures in (1, 2, 3):
        play >> failed(a, LOST, delay=0.0) << ["send a"]
        assert play.last.failures == failures
    play >> failed(a, LOST) << ["reject a: ConnectionLost"]
    assert a.attempts == 4


def test_delays_end_in_their_order_not_in_that_of_the_failures():
    play = Playbook(limit=4, max_size=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play >> failed(a, LOST, delay=2.0) << []
    play >> failed(b, LOST, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send b"]
    play.at(2.0) >> Woke() << ["send a"]


def test_two_batches_may_be_due_at_the_same_time():
    play = Playbook(limit=4, max_size=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play >> failed(b, LOST, delay=1.0) << []
    play >> failed(a, LOST, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a", "send b"]


def test_an_old_call_that_comes_back_goes_before_younger_ones():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, LOST, delay=0.0) << ["send a"]


def test_only_the_unanswered_calls_of_a_broken_stream_are_tried_again():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play.at(1.0) >> answered(b) << ["resolve b"]
    play.at(2.0) >> failed(a, LOST, delay=0.0) << ["send a c"]


def test_a_call_cancelled_in_backoff_is_not_sent_again():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, LOST, delay=1.0) << []
    play >> Cancelled(a) << []
    play.at(1.0) >> Woke() << ["send b"]


def test_no_timer_is_left_when_what_backed_off_was_cancelled():
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, LOST, delay=30.0) << []
    play >> Cancelled(a) << []
    assert play.wakes_at is None
    assert play.scheduler.idle


def test_a_batch_keeps_the_age_of_its_oldest_call_over_all_attempts():
    play = Playbook(limit=4)
    (a,), (b,) = calls("a"), calls("b")
    play.at(1.0) >> Submitted(a) << []
    play.at(2.0) >> Submitted(b) << []
    play >> Woke() << ["send a b"]
    play.at(9.0) >> failed(a, LOST, delay=0.0) << ["send a b"]
    assert play.last.oldest_at == 1.0
    assert play.last.sent_at == 9.0


def test_an_error_says_how_often_the_call_was_sent():
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, LOST, delay=0.0) << ["send a"]
    play.scheduler.handle(failed(a, LOST, status=502, retry_after_s=2.0, code="x"), play.now)
    ((_, error),) = play.scheduler.commands()[0].errors
    assert (error.attempt, error.status, error.retry_after_s, error.code) == (2, 502, 2.0, "x")
