"""A fresh limit in the place of another: it is told what is known of the server, and is bound by nothing of before."""

from tests.core import (
    Cancelled,
    FailureKind,
    FixedLimit,
    Limit,
    Paused,
    Request,
    Resumed,
    Retuned,
    SchedulerSettings,
    Search,
    ServerKnown,
    Woke,
)
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def in_force(play):
    """Of the only endpoint."""
    (endpoint,) = play.endpoints
    return endpoint.limit, endpoint.limit_reason


def test_what_the_server_takes_at_once_bounds_a_fresh_limit_too():
    play = Playbook([Limit(Search(64))])
    play >> ServerKnown(0, {}, slots=8, server="other 1.0")
    assert play.adjusted == ["limit 64 -> 8: the server allows 8 calls at once"]
    play.at(1.0) >> Retuned(limits=[Limit(Search(32))])
    assert (play.adjusted, in_force(play)) == ([], (8, "set by the caller"))
    play.at(2.0) >> Retuned(limits=[Limit(Search(4))])
    assert (play.adjusted, in_force(play)) == (["limit 8 -> 4: set by the caller"], (4, "set by the caller"))


def test_but_not_a_number_that_was_given():
    play = Playbook([Limit(Search(64))])
    play >> ServerKnown(0, {}, slots=8, server="other 1.0")
    play.at(1.0) >> Retuned(limits=[Limit(32)])
    assert play.adjusted == ["limit 8 -> 32: set by the caller"]


def test_a_fresh_limit_begins_at_its_start():
    play = Playbook([Limit(Search(64))])
    play >> Retuned(limits=[Limit(Search(32))])
    assert play.adjusted == ["limit 64 -> 32: set by the caller"]


def test_what_the_old_one_was_bounded_by_is_no_more():
    play = Playbook([Limit(10)])
    (first,), requests = calls("first", shape(alone_reason="alone")), calls(10, shape(alone_reason="alone"))
    play.submit(first) >> Woke() >> answered(first)
    play.submit(*requests) >> Woke()
    for request in requests[7:]:
        play.at(1.0) >> failed(request, FailureKind.REJECTED, status=429)
    assert play.adjusted == ["limit 10 -> 9: the server refused work"]
    play.at(2.0) >> Retuned(limits=[Limit(8)])
    assert play.adjusted == ["limit 9 -> 8: set by the caller"]
    play.at(3.0) >> answered(requests[1])
    assert in_force(play) == (8, "set by the caller")
