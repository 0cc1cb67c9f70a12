"""A deadline is kept wherever the call is: in the queue, outside it, in backoff, in flight."""

import pytest

from tests.core import Cancelled, FailureKind, Paused, Request, Submitted, Woke
from batchclient.errors import DeadlineExceeded
from tests.inspection import held
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

TOO_LATE = "DeadlineExceeded"
WAY_OUT = (
    "the queue counts: {}, and 1 sequence may be in flight."
    " A job can give more time, or none, and bound the server's silence with http=Http(read_timeout_s=…);"
    " a service can refuse calls earlier, with a lower max_calls and when_full='raise'"
)


def test_a_queued_call_ends_at_its_deadline_and_no_earlier():
    play = Playbook(limit=1)
    (a,), (b,) = calls("a"), calls("b", deadline=2.0)
    play.submit(a, b) >> Woke() << ["send a"]
    assert play.wakes_at == 2.0
    play.at(1.999) >> Woke() << []
    play.at(2.0) >> Woke() << [f"reject b: {TOO_LATE}"]
    assert play.wakes_at is None
    assert (play.queued, play.failed) == (0, 1)


def test_deadlines_are_kept_in_their_own_order_not_in_that_of_the_calls():
    play = Playbook(limit=1)
    play.submit(*calls("a")) >> Woke() << ["send a"]
    for name, deadline in (("b", 5.0), ("c", 2.0), ("d", 9.0), ("e", 3.0), ("f", 3.0)):
        play.submit(*calls(name, deadline=deadline))
    play >> Woke() << []
    for names, deadline in (("c", 2.0), ("e f", 3.0), ("b", 5.0), ("d", 9.0)):
        assert play.wakes_at == deadline
        play.at(deadline) >> Woke() << [f"reject {names}: {TOO_LATE}"]


def test_a_call_in_backoff_ends_at_its_deadline():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=9.0) << []
    assert play.wakes_at == 2.0
    play.at(2.0) >> Woke() << [f"reject a: {TOO_LATE}"]
    assert play.wakes_at is None
    assert play.scheduler.idle


def test_a_call_in_flight_ends_at_its_deadline_and_leaves_its_permit_behind():
    play = Playbook()
    (a,), (b,) = calls("a", deadline=2.0), calls("b")
    b.shape = a.shape
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(2.0) >> Woke() << [f"reject a: {TOO_LATE}"]
    assert (play.in_flight, play.abandoned) == (2, 1)
    play.at(3.0) >> answered(a, b) << ["resolve b"]
    assert (play.in_flight, play.abandoned) == (0, 0)


def test_a_batch_whose_every_caller_is_too_late_is_aborted():
    play = Playbook()
    a, b = calls("a b", deadline=2.0)
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(2.0) >> Woke()
    assert sorted(play.seen) == ["abort a b", f"reject a b: {TOO_LATE}"]
    assert play.in_flight == play.abandoned == 2
    play.at(2.1) >> failed(a, FailureKind.REFUSED) << []
    assert play.in_flight == play.abandoned == 0
    assert play.scheduler.idle


def test_a_call_that_waits_outside_ends_at_its_deadline():
    play = Playbook(limit=1, max_queued=1)
    (a, b), (c,) = calls("a b"), calls("c", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c)
    assert (play.queued, play.waiting) == (1, 1)
    play.at(2.0) >> Woke() << [f"reject c: {TOO_LATE}"]
    assert (play.queued, play.waiting) == (1, 0)
    play >> answered(a) << ["resolve a", "send b"]


def test_a_call_made_after_its_deadline_is_not_queued():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play.at(2.0) >> Submitted(a) << [f"reject a: {TOO_LATE}"]
    assert play.wakes_at is None


def test_a_deadline_is_kept_while_the_client_is_paused():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play >> Paused() << []
    play.submit(a)
    assert play.wakes_at == 2.0
    play.at(2.0) >> Woke() << [f"reject a: {TOO_LATE}"]
    # More time would not have helped it.
    assert (
        play.errors["a"].message
        == "the call's timeout_s passed in the queue, where pause() held it back: 2 s in the queue"
    )


def test_a_call_that_waits_outside_is_told_of_the_pause_too():
    play = Playbook(max_queued=1)
    (a, b) = calls("a b", deadline=2.0)
    play >> Paused() << []
    play.submit(a, b)
    assert (play.queued, play.waiting) == (1, 1)
    play.at(2.0) >> Woke()
    assert (
        play.errors["b"].message
        == "the call's timeout_s passed in the queue, where pause() held it back: 2 s in the queue"
    )


def test_a_deadline_is_kept_while_the_endpoint_asks_for_rest():
    play = Playbook(max_size=1)
    (c, *three), (b,) = calls("c x y z"), calls("b", deadline=2.0)
    play.submit(c, *three) >> Woke() << ["send c", "send x", "send y", "send z"]
    for each in three:
        play >> failed(each, FailureKind.REJECTED, retry_after_s=9.0) << [f"reject {each.waiter}: RateLimited"]
    # The answer to c could end the rest.
    play.submit(b) >> Woke() << []
    play.at(2.0) >> Woke() << [f"reject b: {TOO_LATE}"]
    assert play.errors["b"].message == (
        "the call's timeout_s passed in the queue, where the server's Retry-After held it back: 2 s in the queue"
    )


def test_an_answer_in_the_nick_of_time_is_handed_out():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play.at(2.0) >> answered(a) << ["resolve a"]


def test_a_failure_after_the_deadline_is_no_reason_to_try_again():
    play = Playbook()
    (a,), (b,) = calls("a", deadline=2.0), calls("b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(2.0) >> Woke() << [f"reject a: {TOO_LATE}"]
    play.at(2.5) >> failed(b, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send b"]


def test_a_deadline_that_falls_due_with_the_failure_is_told_once():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play.at(2.0) >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0) << [f"reject a: {TOO_LATE}"]
    assert play.scheduler.idle


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("flight", "while the server worked on it: 0 s in the queue, 2 s in 1 attempt"),
        ("backoff", "while waiting to be tried again: 0 s in the queue, 0 s in 1 attempt, 2 s between attempts"),
        ("outside", f"in the queue: 2 s in the queue; {WAY_OUT.format('2 calls are queued')}"),
        ("queue", f"in the queue: 2 s in the queue; {WAY_OUT.format('1 call is queued')}"),
        ("submission", "before it was queued"),
    ],
)
def test_the_error_says_where_the_deadline_passed(where, words):
    play = Playbook(limit=1, max_queued=1)
    holder, (queued,), (a,) = calls("h"), calls("q"), calls("a", deadline=2.0)
    if where in ("flight", "backoff"):
        play.submit(a) >> Woke() << ["send a"]
        if where == "backoff":
            play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=9.0) << []
    elif where in ("queue", "outside"):
        play.submit(*holder) >> Woke() << ["send h"]
        play.submit(*([queued] if where == "outside" else []), a)
    play.scheduler.handle(Submitted(a) if where == "submission" else Woke(), 2.0)
    ((_, error),) = play.scheduler.commands()[-1].errors
    assert type(error) is DeadlineExceeded
    assert error.message == f"the call's timeout_s passed {words}"
    assert error.attempt == a.attempts


def test_calls_that_end_together_are_told_of_the_same_queue():
    play = Playbook(limit=1, max_size=1)
    play.submit(*calls("a")) >> Woke() << ["send a"]
    play.submit(*calls("b c d", deadline=2.0))
    play.at(2.0) >> Woke() << [f"reject b c d: {TOO_LATE}"]
    words = f"the call's timeout_s passed in the queue: 2 s in the queue; {WAY_OUT.format('3 calls are queued')}"
    assert {play.errors[name].message for name in "bcd"} == {words}


def test_deadlines_of_answered_calls_wake_nobody():
    play = Playbook()
    (a,) = calls("a", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    assert play.wakes_at is None


def test_a_cancelled_calls_deadline_wakes_nobody():
    play = Playbook(limit=1)
    (a,), (b,) = calls("a"), calls("b", deadline=2.0)
    play.submit(a, b) >> Woke() << ["send a"]
    play >> Cancelled(b) << []
    assert play.wakes_at is None


def test_the_deadlines_of_calls_refused_by_a_full_queue_do_not_pile_up():
    play = Playbook(limit=1, max_queued=1, raise_when_full=True)
    (a,), (b,) = calls("a"), calls("b", deadline=500.0)
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b) >> Woke() << []
    for call in calls(5000, deadline=600.0):
        play.scheduler.handle(Submitted(call), 0.0)
    play.scheduler.commands()
    assert held(play.scheduler, Request) == 2
    assert play.wakes_at == 500.0


def late(play, at, *firsts):
    """At this time callers leave without an answer, and the requests end whose first calls these are."""
    play.at(at) >> Woke()
    for first in firsts:
        play >> failed(first, FailureKind.REFUSED)
    play.seen.clear()


def late_list(play, at, of, names="a b c"):
    """A plain list at this time, whose callers leave two seconds later without an answer."""
    play.at(at)
    requests = calls(names, of, deadline=at + 2.0)
    play.submit(*requests) >> Woke() << [f"send {names}"]
    late(play, at + 2.0, requests[0])


def compared(play, of, *, at=0.0, deadline=4.0):
    """After a late list, 2 s later four calls went singly and three as a list."""
    late_list(play, at, of)
    d, e, f, g, *others = calls("d e f g h i j", of, deadline=at + deadline)
    play.submit(d, e, f, g, *others) >> Woke() << ["send d", "send e", "send f", "send g", "send h i j"]
    return [d, e, f, g], others


def singly(play, of, *, at=0.0):
    """After 4 s lists have missed what singles were in time for."""
    singles, others = compared(play, of, at=at)
    play.at(at + 3.0)
    for each in singles:
        play >> answered(each)
    late(play, at + 4.0, others[0])


def test_calls_with_deadlines_go_singly_where_lists_miss_what_singles_meet_and_a_list_tries_it_again():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singly(play, of)
    play.submit(*calls("k l", of, deadline=20.0)) >> Woke() << ["send k", "send l"]
    assert [batch.alone for batch in play.sent[-2:]] == ["lists miss the calls' deadlines"] * 2
    # Who has no deadline waits for the slowest of a list, and other calls were not late.
    play.submit(*calls("m n", of)) >> Woke() << ["send m n"]
    play.submit(*calls("o p", shape(max_output_tokens=2), deadline=20.0)) >> Woke() << ["send o p"]
    play.at(13.9).submit(*calls("q r", of, deadline=20.0)) >> Woke() << ["send q", "send r"]
    s, t = calls("s t", of, deadline=20.0)
    play.at(14.0).submit(s, t) >> Woke() << ["send s t"]
    play.submit(*calls("u v", of, deadline=20.0)) >> Woke() << ["send u", "send v"]
    play >> answered(s, t) << ["resolve s t"]
    play.submit(*calls("w x", of, deadline=20.0)) >> Woke() << ["send w x"]


def test_the_pause_without_lists_doubles_while_they_are_too_late():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singly(play, of)
    late_list(play, 14.0, of, "x y z")
    play.at(35.9).submit(*calls("k l", of, deadline=99.0)) >> Woke() << ["send k", "send l"]
    play.at(36.0).submit(*calls("m n", of, deadline=99.0)) >> Woke() << ["send m n"]


@pytest.mark.parametrize("in_time", [0, 2])
def test_lists_go_on_where_singles_were_no_better(in_time):
    # The server stood still, or no call had time enough.
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singles, others = compared(play, of)
    play.at(3.0)
    for each in singles[:in_time]:
        play >> answered(each)
    late(play, 4.0, *singles[in_time:], others[0])
    # The next are compared again.
    k, *others = calls("k l m n o p", of, deadline=9.0)
    play.submit(k, *others) >> Woke() << ["send k", "send l", "send m", "send n", "send o p"]


def test_lists_go_on_where_one_is_in_time_beside_singles():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singles, others = compared(play, of)
    play.at(3.0)
    for each in singles:
        play >> answered(each)
    play.at(3.5) >> answered(*others)
    play.seen.clear()
    play.submit(*calls("k l", of, deadline=9.0)) >> Woke() << ["send k l"]


def test_a_list_that_was_sent_before_the_comparison_tells_nothing():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    x, y = calls("x y", of, deadline=3.5)
    play.submit(x, y) >> Woke() << ["send x y"]
    singles, _ = compared(play, of, deadline=9.0)
    play.at(3.0)
    for each in singles:
        play >> answered(each)
    late(play, 3.5, x)
    play.submit(*calls("k l", of, deadline=9.0)) >> Woke() << ["send k l"]


def test_lists_come_back_at_once_where_hardly_a_single_is_in_time():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singly(play, of)
    a, *others = calls(9, of, deadline=6.0)
    play.submit(a, *others) >> Woke()
    play.at(5.0) >> answered(a)
    play.seen.clear()
    for other in others[:7]:
        late(play, 6.0, other)
    play.submit(*calls("k l", of, deadline=9.0)) >> Woke() << ["send k", "send l"]
    late(play, 6.0, others[7])
    play.submit(*calls("m n", of, deadline=9.0)) >> Woke() << ["send m n"]


def test_streamed_lists_go_on_where_deadlines_cut_one_or_plain_ones():
    play, of = Playbook(limit=64), shape(max_output_tokens=64)
    late_list(play, 0.0, of, "x y z")
    r, s = calls("r s", of, deadline=99.0)
    play.at(2.0).submit(r, s) >> Woke() << ["send r s"]
    assert play.last.streamed
    # Streams are refused, and tried again after 300 s.
    play >> failed(r, FailureKind.STREAM_REFUSED)
    play >> answered(r, s)
    singly(play, of, at=297.0)
    play.submit(*calls("k l", of, deadline=999.0)) >> Woke() << ["send k", "send l"]
    m, n = calls("m n", of, deadline=999.0)
    play.at(302.0).submit(m, n) >> Woke() << ["send m n"]
    assert play.last.streamed
    play >> answered(m, n) << ["resolve m n"]
    play.submit(*calls("o p", of, deadline=999.0)) >> Woke() << ["send o p"]


def test_a_trial_that_is_late_for_one_and_answered_for_others_is_followed_by_another():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    singly(play, of)
    play.at(14.0)
    (k,), (m, n) = calls("k", of, deadline=14.5), calls("m n", of, deadline=90.0)
    play.submit(k, m, n) >> Woke() << ["send k m n"]
    play.at(14.5) >> Woke() << [f"reject k: {TOO_LATE}"]
    play.at(15.0) >> answered(k, m, n) << ["resolve m n"]
    play.submit(*calls("o p", of, deadline=90.0)) >> Woke() << ["send o p"]


def test_a_list_that_ends_while_callers_have_time_was_not_cut_by_deadlines():
    play, of = Playbook(limit=16), shape(max_output_tokens=1)
    (a,), (b, c) = calls("a", of, deadline=0.5), calls("b c", of, deadline=90.0)
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play.at(0.5) >> Woke() << [f"reject a: {TOO_LATE}"]
    # A task group cancels the others.
    play >> Cancelled(b)
    play >> Cancelled(c)
    play >> failed(a, FailureKind.REFUSED)
    play.seen.clear()
    play.submit(*calls("g h", of, deadline=90.0)) >> Woke() << ["send g h"]
