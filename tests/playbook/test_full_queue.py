"""A full queue makes calls wait outside, in order, or refuses them."""

from tests.core import AbortRequested, Cancelled, Request, Retuned, SchedulerSettings, Submitted, Woke
from tests.inspection import held
from tests.playbook.playbook import Playbook, answered, calls


def test_calls_over_max_queued_are_counted_apart_and_go_in_order():
    play = Playbook(limit=1, max_queued=2)
    a, b, c, d, e = calls("a b c d e")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c, d, e) >> Woke() << []
    assert (play.queued, play.waiting) == (2, 2)
    for gone, sent in [(a, b), (b, c), (c, d), (d, e)]:
        play >> answered(gone) << [f"resolve {gone.waiter}", f"send {sent.waiter}"]
        play >> Woke() << []
    assert (play.queued, play.waiting) == (0, 0)


def test_calls_over_max_queued_travel_with_those_before_them():
    play = Playbook(limit=4, max_queued=2)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d)
    assert (play.queued, play.waiting) == (2, 2)
    play >> Woke() << ["send a b c d"]
    assert (play.queued, play.waiting) == (0, 0)


def test_a_full_queue_refuses_calls_where_that_was_asked_for():
    play = Playbook(limit=1, max_queued=1, raise_when_full=True)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b)
    play >> Submitted(c) << ["reject c: QueueFull"]
    assert (play.queued, play.waiting, play.failed) == (1, 0, 1)


def test_a_call_that_may_wait_waits_even_where_others_are_refused():
    play = Playbook(limit=1, max_queued=1, raise_when_full=True)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b)
    play >> Submitted(c, may_wait=True) << []
    assert play.waiting == 1


def test_a_call_that_comes_later_does_not_pass_one_that_waits_outside():
    play = Playbook(limit=1, max_queued=1)
    a, b, c, d = calls("a b c d")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c)
    play >> answered(a) << ["resolve a", "send b"]
    play >> Submitted(d) << []
    assert play.waiting == 1
    play >> answered(b) << ["resolve b", "send c"]


def test_calls_that_wait_outside_are_aborted_too():
    play = Playbook(limit=1, max_queued=1)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c)
    play >> AbortRequested()
    assert sorted(play.seen) == ["abort a", "reject a b c: CallAborted"]
    assert (play.queued, play.waiting) == (0, 0)


def test_calls_that_gave_up_outside_do_not_pile_up_while_the_queue_stands_still():
    play = Playbook(limit=1, max_queued=1)
    a, b, keeper = calls("a b keeper")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, keeper)
    for call in calls(10_000):
        play.scheduler.handle(Submitted(call), 0.0)
        play.scheduler.handle(Cancelled(call), 0.0)
    assert held(play.scheduler, Request) < 1100
    assert play.waiting == 1
    play >> answered(a) << ["resolve a", "send b"]
    play >> Woke() << []
    play >> answered(b) << ["resolve b", "send keeper"]


def test_a_bound_given_anew_holds_for_calls_to_come_and_for_those_outside():
    narrow, wide = SchedulerSettings(max_queued=10, raise_when_full=True), SchedulerSettings(max_queued=100)
    play = Playbook(limit=1, max_queued=100, raise_when_full=True)
    first, *rest = calls(201)
    play.submit(first) >> Woke() << ["send c0"]
    play >> Retuned(narrow) << []
    for call in rest:
        play >> Submitted(call)
    assert (play.queued, play.failed) == (10, 190)
    play = Playbook(limit=1, max_queued=10)
    first, *rest = calls(31)
    play.submit(first) >> Woke() << ["send c0"]
    play.submit(*rest)
    assert (play.queued, play.waiting) == (10, 20)
    play >> Retuned(wide) << []
    assert (play.queued, play.waiting) == (30, 0)
