"""Calls of a session: they go to their endpoint while it is in use, and share lists as their shape says."""

from tests.core import FailureKind, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def test_calls_of_a_session_wait_for_their_endpoint_and_others_pass():
    play = Playbook(limit=[2, 2], max_size=1)
    here, others = calls(3, shape(home=1)), calls("x y")
    play.submit(*here) >> Woke() << ["send c0 @1", "send c1 @1"]
    play.submit(*others) >> Woke() << ["send x @0", "send y @0"]
    play.at(1.0) >> answered(others[0]) << ["resolve x"]
    play >> answered(here[0]) << ["resolve c0", "send c2 @1"]


def test_they_go_elsewhere_while_it_is_in_an_outage_and_then_come_back():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c = calls("a b c", shape(home=1))
    play.submit(a) >> Woke() << ["send a @1"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT) << ["send a @0"]
    play.submit(b) >> Woke() << ["send b @0"]
    # A single call finds out that it is back.
    play.at(9.0).submit(*calls("x")) >> Woke() << ["send x @1"]
    play.at(9.1) >> answered(play.sent[-1].requests[0]) << ["resolve x"]
    play.submit(c) >> Woke() << ["send c @1"]


def test_they_go_elsewhere_while_it_rests():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c = calls("a b c", shape(home=1))
    play.submit(a) >> Woke() << ["send a @1"]
    play.at(1.0) >> failed(a, FailureKind.REJECTED, status=429, retry_after_s=30.0, delay=30.0)
    play.submit(b) >> Woke()
    assert (play.last.requests, play.last.endpoint) == ([b], 0)
    play.at(32.0).submit(c) >> Woke()
    assert (play.last.requests, play.last.endpoint) == ([c], 1)


def test_many_unlike_calls_that_wait_for_one_endpoint_leave_no_other_idle():
    play = Playbook(limit=[1, 1], max_size=1)
    unlike = [calls(f"u{number}", shape(home=1))[0] for number in range(34)]
    (last,) = calls("last")
    # One goes to its endpoint, and 32 wait for it.
    play.submit(*unlike, last) >> Woke() << ["send u0 @1", "send u33 @0"]
    play.at(1.0) >> answered(unlike[33]) << ["resolve u33", "send last @0"]
    play >> answered(unlike[0]) << ["resolve u0", "send u1 @1"]


def test_an_endpoint_that_is_not_there_is_nobodys():
    play = Playbook(limit=[4, 4], max_size=1)
    play.submit(*calls("a b", shape(home=7))) >> Woke() << ["send a @0", "send b @1"]


def test_a_lone_call_of_a_session_says_that_its_session_has_no_other():
    play = Playbook(limit=8)
    of_a, of_b = shape(session="a"), shape(session="b")
    play.submit(*calls("a b", of_a), *calls("c", of_b)) >> Woke() << ["send a b", "send c"]
    assert [batch.alone for batch in play.sent] == ["", "session"]
