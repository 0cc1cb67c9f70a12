"""Endpoints that refuse connections or ask for rest."""

import pytest

from batchclient._core.messages import FailureKind, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed


def test_a_call_refused_by_one_endpoint_goes_to_the_other_at_once():
    play = Playbook(limit=[1, 1])
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @1"]
    play.at(1.0) >> answered(b) << ["resolve b"]
    play.at(1.1) >> failed(a, FailureKind.NOT_SENT, delay=5.0) << ["send a @1"]
    # The first is left alone for half a second, though it is the one with a permit free.
    play.at(1.2).submit(c) >> Woke() << []
    play.at(1.6) >> Woke() << ["send c @0"]


def test_a_lone_endpoint_that_never_answered_fails_its_calls_after_three_refused_connections():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << []
    play.at(1.5) >> Woke() << ["send a"]
    play.at(2.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << []
    play.at(3.0) >> Woke() << ["send a"]
    play.at(4.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << ["reject a: ConnectFailed"]
    play.at(4.1).submit(b) >> Woke() << ["send b"]
    play.at(4.2) >> failed(b, FailureKind.NOT_SENT, delay=0.1) << ["reject b: ConnectFailed"]


def test_an_endpoint_that_answered_once_is_given_what_the_policy_gives():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play.at(1.0).submit(b) >> Woke() << ["send b"]
    for time in (2.0, 12.0, 22.0, 32.0):
        play.at(time) >> failed(b, FailureKind.NOT_SENT, delay=0.1) << []
        play.at(time + 8.0) >> Woke() << ["send b"]


@pytest.mark.parametrize(("wish", "rest"), [(3.0, 3.0), (86_400.0, 60.0)])
def test_a_wish_to_be_left_alone_is_kept_for_a_minute_at_most(wish, rest):
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.REJECTED, retry_after_s=wish) << ["reject a: RateLimited"]
    play.at(1.1).submit(b) >> Woke() << []
    assert play.wakes_at == 1.0 + rest
    play.at(1.0 + rest) >> Woke() << ["send b"]


def test_a_smaller_wish_does_not_shorten_a_longer_one():
    play = Playbook(max_list=1)
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play.at(1.0) >> failed(a, FailureKind.REJECTED, retry_after_s=30.0)
    play.at(2.0) >> failed(b, FailureKind.REJECTED, retry_after_s=1.0)
    play.at(3.0).submit(c) >> Woke() << []
    assert play.wakes_at == 31.0
