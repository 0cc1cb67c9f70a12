"""A server asks for a rest that outlasts a call's deadline: its caller hears so at once, and for how long the rest lasts."""

import pytest

from tests.core import EndpointAdded, FailureKind, FixedLimit, Paused, RateWindow, RatesReported, Resumed, Woke
from batchclient.errors import RateLimited, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

REJECTED = FailureKind.REJECTED


def rested():
    """A lone server that asks for a rest of nine seconds at 1.0, in reply to a call without a deadline."""
    play = Playbook(max_size=1)
    (first,) = calls("first")
    play.submit(first) >> Woke() << ["send first"]
    play.at(1.0) >> failed(first, REJECTED, delay=9.0, retry_after_s=9.0, status=429) << []
    return play


@pytest.mark.parametrize(("status", "error"), [(429, RateLimited), (503, ServerFault)])
def test_a_call_whose_next_attempt_would_come_too_late_fails_at_once_with_what_the_server_said(status, error):
    play = Playbook()
    (a,) = calls("a", deadline=3.0)
    play.submit(a) >> Woke() << ["send a"]
    (
        play.at(0.5)
        >> failed(a, REJECTED, delay=9.0, retry_after_s=9.0, status=status, error=error)
        << [f"reject a: {error.__name__}"]
    )
    assert play.errors["a"].message == ("no (not tried again: the next attempt in 9 s is after the call's timeout_s)")
    assert (play.errors["a"].retry_after_s, play.errors["a"].status, play.errors["a"].attempt) == (9.0, status, 1)
    assert (play.retries, play.backing_off, play.failed) == (0, 0, 1)
    assert play.scheduler.idle


def test_of_a_list_those_fail_whose_time_does_not_reach_and_the_others_are_tried_again():
    play = Playbook()
    (a,), (b,), (c,) = calls("a", deadline=9.5), calls("b", deadline=9.6), calls("c")
    # What else is in flight there cannot shorten a pause before the next attempt.
    play.submit(a, b, c, *calls("other", shape())) >> Woke() << ["send a b c", "send other"]
    play.at(0.5) >> failed(a, REJECTED, delay=9.0, retry_after_s=9.0) << ["reject a: RateLimited"]
    assert (play.retries, play.backing_off) == (1, 2)
    play.at(9.5) >> Woke() << ["send b c"]


def test_the_next_attempt_counts_and_not_the_wish_alone():
    play = Playbook()
    (a,) = calls("a", deadline=3.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, REJECTED, delay=5.0, retry_after_s=1.0) << ["reject a: RateLimited"]
    assert play.errors["a"].retry_after_s == 1.0


def test_a_pause_that_no_server_asked_for_is_waited_out():
    play = Playbook()
    (a,) = calls("a", deadline=3.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, REJECTED, delay=5.0) << []
    play.at(3.0) >> Woke() << ["reject a: DeadlineExceeded"]


def test_a_queued_call_that_the_rest_outlasts_fails_at_once_with_the_rest_of_it():
    play = rested()
    (late,), (just,), (patient,) = calls("late", deadline=10.0), calls("just", deadline=10.1), calls("patient")
    play.at(4.0).submit(late, just, patient) >> Woke() << ["reject late: RateLimited"]
    error = play.errors["late"]
    assert error.message == "no (no call is sent for 6 s, and the call's timeout_s ends before)"
    assert (error.retry_after_s, error.status, error.attempt) == (6.0, 429, 0)
    # After the rest one goes, then two for each that is answered. The refused one is not the first.
    play.at(10.0) >> Woke() << ["send just"]
    play.at(10.05) >> answered(just) << ["resolve just", "send patient", "send first"]


def test_calls_that_are_queued_when_the_rest_is_asked_for_fail_with_it_and_so_do_those_outside_the_queue():
    play = Playbook(limit=1, max_queued=1, max_size=1)
    (a,), (b,), (c,) = calls("a"), calls("b", deadline=5.0), calls("c", deadline=6.0)
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c)
    assert (play.queued, play.waiting) == (1, 1)
    play.at(1.0) >> failed(a, REJECTED, retry_after_s=9.0) << ["reject a: RateLimited", "reject b c: RateLimited"]
    assert play.errors["b"].message == (
        "no (no call is sent for 9 s, and the call's timeout_s ends before: 1 s in the queue)"
    )


def test_where_the_rest_ends_every_call_nothing_is_left_to_wake_for():
    play = Playbook(limit=1, max_size=1)
    (a,), (b,) = calls("a"), calls("b", deadline=5.0)
    play.submit(a, b) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, REJECTED, retry_after_s=9.0) << ["reject a: RateLimited", "reject b: RateLimited"]
    assert play.scheduler.idle
    assert play.wakes_at is None


def test_a_call_that_waits_outside_the_queue_gets_the_place_of_one_that_the_rest_ends():
    play = Playbook(limit=1, max_queued=1, max_size=1)
    (a,), (b,), (patient,) = calls("a"), calls("b", deadline=5.0), calls("patient")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, patient)
    play.at(1.0) >> failed(a, REJECTED, retry_after_s=9.0) << ["reject a: RateLimited", "reject b: RateLimited"]
    assert (play.queued, play.waiting, play.wakes_at) == (1, 0, 10.0)
    play.at(10.0) >> Woke() << ["send patient"]


def test_a_call_that_backs_off_for_another_reason_is_held_by_the_rest_as_well():
    play = Playbook(max_size=1)
    (a,), (b,) = calls("a", deadline=5.0), calls("b")
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=1.0) << []
    play.at(0.5) >> failed(b, REJECTED, delay=9.0, retry_after_s=9.0) << ["reject a: RateLimited"]
    assert play.errors["a"].retry_after_s == 9.0


def test_a_rest_lasts_its_time_whatever_older_requests_bring():
    play = Playbook(limit=8, max_size=1)
    (*three, b, c), (late,), (patient,) = calls("x y z b c"), calls("late", deadline=5.0), calls("patient")
    play.submit(*three, b, c) >> Woke()
    for each in three:
        play.at(1.0) >> failed(each, REJECTED, delay=9.0, retry_after_s=9.0) << []
    play.submit(late, patient) >> Woke() << []
    # Something is answered in the rest. One request finds out whether the rest holds: it does.
    play.at(2.0) >> answered(b) << ["resolve b", "send late"]
    play >> failed(late, REJECTED, delay=8.0, retry_after_s=8.0) << ["reject late: RateLimited"]
    # A shorter wish that comes later shortens nothing.
    play.at(2.5) >> failed(c, REJECTED, delay=7.5, retry_after_s=1.0) << ["send patient"]
    play >> failed(patient, REJECTED, delay=7.5, retry_after_s=1.0) << []
    assert play.endpoints[0].blocked_until == 10.0
    play.at(9.999) >> Woke() << []
    play.at(10.0) >> Woke()
    assert play.seen


def test_where_nothing_is_in_flight_any_more_the_call_fails_then():
    play = Playbook(max_size=1)
    (*three, b), (late,) = calls("x y z b"), calls("late", deadline=5.0)
    play.submit(*three, b) >> Woke()
    for each in three:
        play.at(1.0) >> failed(each, REJECTED, delay=9.0, retry_after_s=9.0) << []
    play.submit(late) >> Woke() << []
    play.at(2.0) >> failed(b, FailureKind.BAD_CALL) << ["reject b: BadRequest", "reject late: RateLimited"]
    assert play.errors["late"].retry_after_s == 8.0


def test_another_server_that_takes_the_call_in_time_is_waited_for():
    play = Playbook(limit=[1, 1], max_size=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @1"]
    play >> failed(a, REJECTED, delay=9.0, retry_after_s=9.0) << []
    play >> failed(b, REJECTED, delay=2.0, retry_after_s=2.0) << []
    (early,), (late,) = calls("early", deadline=2.0), calls("late", deadline=3.0)
    # The shorter rest decides.
    play.at(0.5).submit(early, late) >> Woke() << ["reject early: RateLimited"]
    assert play.errors["early"].retry_after_s == 1.5
    play.at(2.0) >> Woke() << ["send late @1"]
    play.at(2.1) >> answered(late) << ["resolve late", "send a @1"]
    play.at(2.5) >> answered(a) << ["resolve a", "send b @1"]


def test_a_server_that_is_not_asked_for_rest_keeps_everybody_waiting_for_it():
    play = Playbook(limit=[1, 1], max_size=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @1"]
    play >> failed(a, REJECTED, delay=9.0, retry_after_s=9.0) << []
    (late,) = calls("late", deadline=3.0)
    play.submit(late) >> Woke() << []
    play.at(1.0) >> answered(b) << ["resolve b", "send a @1"]
    play.at(1.5) >> answered(a) << ["resolve a", "send late @1"]


@pytest.mark.parametrize("deadline", [None, 3.0])
@pytest.mark.parametrize("served", [False, True])
def test_a_rest_holds_its_server_and_never_a_call_that_another_server_can_take(served, deadline):
    play = Playbook(limit=[4, 4], max_size=1)
    if served:
        first, second = calls("first second")
        play.submit(first, second) >> Woke() << ["send first @0", "send second @1"]
        play >> answered(first) >> answered(second) << ["resolve second"]
    (a,) = calls("a", deadline=deadline)
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, REJECTED, delay=9.0, retry_after_s=9.0, status=429) << ["send a @1"]
    play.at(2.0) >> answered(a) << ["resolve a"]


def test_a_call_that_every_server_has_refused_waits_for_the_policys_pause():
    play = Playbook(limit=[4, 4], max_size=1)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, REJECTED, delay=0.5, status=429) << ["send a @1"]
    play >> failed(a, REJECTED, delay=0.5, status=429) << []
    play.at(0.5) >> Woke()
    assert [batch.failures for batch in play.sent] == [0, 1, 2]


def test_a_gateway_with_nothing_left_is_a_server_that_asks_for_rest():
    play = Playbook(max_size=1)
    (a,), (late,) = calls("a"), calls("late", deadline=5.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> RatesReported(0, (RateWindow(0, 9.0),)) << []
    play.at(1.0) >> answered(a) << ["resolve a"]
    play.submit(late) >> Woke() << ["reject late: RateLimited"]
    assert play.errors["late"].message == (
        "the gateway says that nothing is left of its rate limit"
        " (no call is sent for 8 s, and the call's timeout_s ends before)"
    )
    assert play.errors["late"].retry_after_s == 8.0


def test_a_rate_of_the_clients_own_ends_no_call_early():
    play = Playbook(max_size=1, requests_per_minute=6)
    (a,), (late,) = calls("a"), calls("late", deadline=5.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play.submit(late) >> Woke() << []
    play.at(5.0) >> Woke() << ["reject late: DeadlineExceeded"]


def test_a_client_that_is_paused_judges_when_it_goes_on():
    play = rested()
    play >> Paused() << []
    (late,) = calls("late", deadline=5.0)
    play.submit(late)
    play.at(2.0) >> Woke() << []
    play.at(3.0) >> Resumed() << ["reject late: RateLimited"]


def test_calls_without_a_deadline_wait_and_a_server_that_comes_takes_them():
    play = rested()
    (patient,) = calls("patient", shape())
    play.at(2.0).submit(patient) >> Woke() << []
    play >> EndpointAdded(1, FixedLimit(1)) << ["send patient"]
