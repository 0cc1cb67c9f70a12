"""Endpoints that are added and removed while calls are under way."""

from tests.core import (
    Answered,
    CloseRequested,
    DrainRequested,
    EndpointAdded,
    EndpointRemoved,
    Failed,
    Failure,
    FailureKind,
    FixedLimit,
    Retuned,
    Woke,
)
from batchclient.errors import CallAborted
from tests.playbook.playbook import Playbook, answered, calls, failed


def closed(request):
    """The connection of this call's batch was closed by us."""
    return Failed(request.batch, Failure(FailureKind.REFUSED, CallAborted, "cancelled"))


def test_an_added_endpoint_takes_what_waits_at_once():
    play = Playbook(limit=[1, 1])
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a @0", "send b @1"]
    play >> EndpointAdded(7, FixedLimit(3), "http://third/v1") << ["send c @7"]
    third = play.endpoints[2]
    assert (third.id, third.base_url, third.limit, third.in_flight) == (7, "http://third/v1", 3, 1)
    play >> answered(c) << ["resolve c"]


def test_a_removed_endpoint_finishes_what_it_has_and_gets_nothing_more():
    play = Playbook(limit=[4, 1], max_size=1)
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @0"]
    play >> EndpointRemoved(0) << []
    assert [endpoint.state for endpoint in play.endpoints] == ["leaving", "healthy"]
    play.submit(c) >> Woke() << ["send c @1"]
    play >> answered(a) << ["resolve a"]
    play >> answered(b) << ["resolve b", "gone @0"]
    assert [endpoint.id for endpoint in play.endpoints] == [1]


def test_an_endpoint_with_nothing_in_flight_is_gone_at_once():
    play = Playbook(limit=[4, 4])
    play >> EndpointRemoved(1) << ["gone @1"]
    play >> EndpointRemoved(1) << []


def test_of_servers_that_have_gone_the_last_64_keep_counts_of_their_own():
    play = Playbook(limit=1).submit(*calls("held")) >> Woke()
    for number in range(1, 72):
        (call,) = calls(f"call{number}")
        play >> EndpointAdded(number, FixedLimit(1), "http://back" if number in (1, 65) else f"http://pod{number}")
        play.submit(call) >> Woke() >> answered(call) >> EndpointRemoved(number)
    ended = play.outcomes
    assert sum(ended.values()) == 71
    assert (ended["http://back", "completion", "answered"], ended["other", "completion", "answered"]) == (2, 6)


def test_without_drain_what_is_in_flight_goes_elsewhere_and_it_is_no_failure():
    play = Playbook(limit=[4, 4])
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> answered(b) << ["resolve b"]
    play >> EndpointRemoved(0, drain=False) << ["abort a b"]
    play >> closed(a)
    assert sorted(play.seen) == ["gone @0", "send a @1"]
    assert (a.attempts, a.batch.failures, play.failed) == (2, 0, 0)
    play >> answered(a) << ["resolve a"]


def test_what_is_answered_before_the_connection_closes_is_not_sent_again():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> EndpointRemoved(0, drain=False) << ["abort a b"]
    play >> answered(a, b) << ["resolve a b", "gone @0"]


def test_one_that_drains_may_be_told_to_leave_at_once():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> EndpointRemoved(0) << []
    play >> EndpointRemoved(0, drain=False) << ["abort a"]
    play >> closed(a)
    assert sorted(play.seen) == ["gone @0", "send a @1"]


def test_a_caller_that_leaves_while_its_batch_moves_is_not_sent_again():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b", deadline=2.0)
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> EndpointRemoved(0, drain=False) << ["abort a b"]
    play.at(2.0) >> Woke() << ["reject a b: DeadlineExceeded"]
    play >> failed_batch(play.last) << ["gone @0"]


def failed_batch(batch):
    return Failed(batch, Failure(FailureKind.REFUSED, CallAborted, "cancelled"))


def test_a_failure_on_a_leaving_endpoint_is_tried_again_elsewhere():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> EndpointRemoved(0)
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0)
    assert sorted(play.seen) == ["gone @0", "send a @1"]


def test_an_ejected_endpoint_is_probed_at_once_when_the_one_in_use_is_removed():
    play = Playbook(limit=[4, 4], max_size=1)
    everyone = calls("a b c d")
    for call in everyone:
        call.failed_on = 1
    play.submit(*everyone) >> Woke()
    for batch in play.sent[:3]:
        play >> failed(batch.requests[0], FailureKind.MAYBE_PROCESSED, delay=0.5)
    assert play.endpoints[0].state == "ejected"
    play >> EndpointRemoved(1)
    (e,) = calls("e")
    play.submit(e) >> Woke() << ["send e @0"]


def test_a_drain_waits_for_what_is_left_at_a_leaving_endpoint():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> EndpointRemoved(0)
    play >> DrainRequested() << []
    play >> answered(a) << ["resolve a", "gone @0", "drained"]


def test_closing_ends_calls_on_a_leaving_endpoint_too():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    batch = play.last
    play >> EndpointRemoved(0)
    play >> CloseRequested() << ["abort a", "reject a: ClientClosed"]
    play >> failed_batch(batch) << ["gone @0", "drained"]


def test_new_limits_are_for_those_that_stay_in_their_order():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> EndpointRemoved(0)
    play >> EndpointAdded(2, FixedLimit(4))
    play >> Retuned(limits=[FixedLimit(5), FixedLimit(6)])
    assert [(endpoint.id, endpoint.limit) for endpoint in play.endpoints] == [(0, 4), (1, 5), (2, 6)]


def test_it_is_not_gone_before_its_last_connection_is_released():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b = calls("a b")
    a.failed_on = b.failed_on = 1
    play.submit(a, b) >> Woke() << ["send a @0", "send b @0"]
    first = a.batch
    play >> EndpointRemoved(0)
    play >> answered(a, ended=False) << ["resolve a"]
    play >> answered(b) << ["resolve b"]
    play >> Answered(first, [], ended=True) << ["gone @0"]
