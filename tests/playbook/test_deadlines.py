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


def many(letter):
    """Names of 64 calls."""
    return " ".join(f"{letter}{i}" for i in range(64))


def late_list(play, at, of, names=many("a")):
    """A plain list at this time, whose callers leave two seconds later without an answer."""
    play.at(at)
    requests = calls(names, of, deadline=at + 2.0)
    play.submit(*requests) >> Woke() << [f"send {names}"]
    late(play, at + 2.0, requests[0])


def compared(play, of, at=2.0):
    """At this time four calls go singly, and three as a list."""
    play.at(at)
    *singles, m, n, o = calls("i j k l m n o", of, deadline=at + 3.0)
    play.submit(*singles, m, n, o) >> Woke() << ["send i", "send j", "send k", "send l", "send m n o"]
    return singles, m


def singly(play, of, at=2.0):
    """Three seconds later a list has missed what singles were in time for."""
    singles, m = compared(play, of, at)
    play.at(at + 1.0)
    for each in singles:
        play >> answered(each)
    late(play, at + 3.0, m)


def goes(play, of, names, at=None, deadline=900.0):
    """The requests of these calls."""
    if at is not None:
        play.at(at)
    requests = calls(names, of, deadline=deadline)
    play.submit(*requests) >> Woke()
    return requests, play.seen


def test_calls_with_deadlines_go_singly_where_lists_miss_what_singles_meet_and_a_list_tries_it_again():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    late_list(play, 0.0, of)
    singly(play, of)
    assert goes(play, of, "p q")[1] == ["send p", "send q"]
    assert [batch.alone for batch in play.sent[-2:]] == ["lists miss the calls' deadlines"] * 2
    # Who has no deadline waits for the slowest of a list, and other calls were not late.
    assert goes(play, of, "r s", deadline=None)[1] == ["send r s"]
    assert goes(play, shape(max_output_tokens=2), "t u")[1] == ["send t u"]
    assert goes(play, of, "v w", at=14.9)[1] == ["send v", "send w"]
    list_, sent = goes(play, of, "x y", at=15.0)
    assert sent == ["send x y"]
    assert goes(play, of, "z 1")[1] == ["send z", "send 1"]
    play >> answered(*list_)
    assert goes(play, of, "2 3")[1] == ["send 2 3"]
    assert goes(play, of, "4 5")[1] == ["send 4 5"]


def test_the_pause_without_lists_doubles_while_they_are_too_late():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    late_list(play, 0.0, of)
    singly(play, of)
    late_list(play, 15.0, of, "x y z")
    assert goes(play, of, "p q", at=36.9)[1] == ["send p", "send q"]
    assert goes(play, of, "r s", at=37.0)[1] == ["send r s"]


@pytest.mark.parametrize("in_time", [0, 4])
def test_lists_go_on_where_no_single_or_a_list_too_was_in_time(in_time):
    # No call had time enough, or the server stood still for a moment.
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    late_list(play, 0.0, of)
    singles, m = compared(play, of)
    if in_time:
        play.at(3.0)
        for each in singles:
            play >> answered(each)
        play >> answered(*m.batch.requests)
    else:
        late(play, 5.0, *singles, m)
    play.seen.clear()
    late_list(play, 5.0, of, many("b"))
    # The next are compared after a pause.
    assert goes(play, of, "p q", at=12.0)[1] == ["send p q"]
    late_list(play, 16.0, of, "r s")
    assert goes(play, of, "t u v w x y")[1] == ["send t", "send u", "send v", "send w", "send x y"]


def test_a_list_that_was_sent_before_the_comparison_tells_nothing():
    play, of = Playbook(limit=66), shape(max_output_tokens=1)
    (x, _), _ = goes(play, of, "x y", deadline=3.5)
    late_list(play, 0.0, of)
    singles, _ = compared(play, of)
    play.at(3.0)
    for each in singles:
        play >> answered(each)
    late(play, 3.5, x)
    assert goes(play, of, "p q")[1] == ["send p q"]


def test_where_most_calls_in_lists_are_in_time_no_single_is_sent_to_compare():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    a_few = many("a")[: many("a").index(" a33")]
    late_list(play, 0.0, of, a_few)
    list_, _ = goes(play, of, many("b"))
    play.at(3.0) >> answered(*list_)
    assert goes(play, of, "p q")[1] == ["send p q"]


def test_lists_come_back_where_singles_are_no_better():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    late_ones, others = calls(40, of, deadline=0.2), calls(many("b"), of, deadline=9.0)[:24]
    play.submit(*late_ones, *others) >> Woke()
    play.at(0.2) >> Woke()
    # Three of eight are in time.
    play.at(0.3) >> answered(*late_ones, *others)
    play.seen.clear()
    singly(play, of)
    requests, _ = goes(play, of, "1 2 3 4 5 6 7", deadline=9.0)
    late(play, 9.0, *requests[:6])
    assert goes(play, of, "p q")[1] == ["send p", "send q"]
    late(play, 9.0, requests[6])
    assert goes(play, of, "r s")[1] == ["send r s"]


def test_streamed_lists_go_on_where_deadlines_cut_one_or_plain_ones():
    play, of = Playbook(limit=64), shape(max_output_tokens=64)
    late_list(play, 0.0, of)
    assert play.last.streamed
    (p, q), sent = goes(play, of, "p q")
    assert sent == ["send p q"]
    # Streams are refused, and tried again after 300 s.
    play >> failed(p, FailureKind.STREAM_REFUSED)
    play >> answered(p, q)
    late_list(play, 292.0, of, many("b"))
    singly(play, of, 294.0)
    assert goes(play, of, "r s")[1] == ["send r", "send s"]
    for names in ("t u", "v w"):
        list_, sent = goes(play, of, names, at=302.0)
        assert sent == [f"send {names}"] and play.last.streamed
        play >> answered(*list_)


@pytest.mark.parametrize("how", ["late for one", "failed"])
def test_a_list_that_tries_and_tells_nothing_is_followed_by_another(how):
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    late_list(play, 0.0, of)
    singly(play, of)
    play.at(15.0)
    (p,), (q, r) = calls("p", of, deadline=15.5), calls("q r", of, deadline=90.0)
    play.submit(p, q, r) >> Woke() << ["send p q r"]
    if how == "failed":
        play >> failed(p, FailureKind.MAYBE_PROCESSED, delay=50.0)
    else:
        play.at(15.5) >> Woke() << [f"reject p: {TOO_LATE}"]
        play.at(16.0) >> answered(p, q, r) << ["resolve q r"]
    assert goes(play, of, "s t")[1] == ["send s t"]


def test_a_call_whose_caller_left_was_not_late():
    play, of = Playbook(limit=64), shape(max_output_tokens=1)
    (a,), others = calls("a", of, deadline=0.5), calls(63, of, deadline=90.0)
    play.submit(a, *others) >> Woke()
    play.at(0.5) >> Woke() << [f"reject a: {TOO_LATE}"]
    # A task group cancels the others.
    for other in others:
        play >> Cancelled(other)
    play >> failed(a, FailureKind.REFUSED)
    assert goes(play, of, "p q")[1] == ["send p q"]
