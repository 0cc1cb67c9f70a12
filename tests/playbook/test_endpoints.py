"""Several endpoints, each with permits, health and rest of its own."""

import pytest

from batchclient._core.limits import FixedLimit
from batchclient._core.messages import FailureKind, Woke
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import SchedulerSettings
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def test_retry_after_blocks_the_endpoint_for_everybody():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.REJECTED, delay=0.5, retry_after_s=2.0) << []
    assert play.endpoints[0].blocked_until == 3.0
    play.submit(b) >> Woke() << []
    play.at(1.5) >> Woke() << []
    assert play.wakes_at == 3.0
    play.at(3.0) >> Woke() << ["send a", "send b"]
    assert play.endpoints[0].blocked_until is None


def test_a_failure_that_is_no_rejection_blocks_nobody():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, retry_after_s=9.0) << ["reject a: ServerFault"]
    play.submit(b) >> Woke() << ["send b"]


def test_a_rejection_without_a_wish_blocks_nobody():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.REJECTED) << ["reject a: RateLimited"]
    play.submit(b) >> Woke() << ["send b"]


def test_each_endpoint_has_permits_of_its_own():
    play = Playbook(limit=[2, 2])
    a, b, c, d, e = calls("a b c d e")
    play.submit(a, b, c, d, e) >> Woke() << ["send a b @0", "send c d @1"]
    assert [endpoint.in_flight for endpoint in play.endpoints] == [2, 2]
    play >> answered(c) << ["resolve c", "send e @1"]


def test_the_endpoint_with_the_most_free_permits_is_filled_first():
    play = Playbook(limit=[2, 5])
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c @1"]


def test_a_blocked_endpoint_leaves_its_calls_to_the_others():
    play = Playbook(limit=[2, 2])
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.REJECTED, delay=0.0, retry_after_s=9.0) << ["send a @1"]
    play.submit(b) >> Woke() << ["send b @1"]


def test_a_blocked_endpoint_wakes_nobody_once_the_others_took_the_calls():
    play = Playbook(limit=[2, 2])
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.REJECTED, delay=0.0, retry_after_s=9.0) << ["send a @1"]
    assert play.wakes_at is None


def test_what_one_endpoint_refuses_another_may_take():
    play = Playbook(limit=[4, 3])
    a, b, c, d, e, f = calls("a b c d e f")
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> failed(a, FailureKind.LIST_REFUSED) << ["send a @0", "send b @0"]
    assert [endpoint.lists_refused for endpoint in play.endpoints] == [True, False]
    play.submit(c, d) >> Woke() << ["send c d @1"]
    assert play.last.streamed
    play >> failed(c, FailureKind.STREAM_REFUSED) << ["send c d @1"]
    play >> failed(c, FailureKind.LIST_TOO_LONG) << ["send c @1", "send d @1"]
    assert [endpoint.list_cap for endpoint in play.endpoints] == [1, 1]
    assert [endpoint.streams_refused for endpoint in play.endpoints] == [False, True]


def test_a_call_is_bound_to_an_endpoint_when_it_is_granted_not_before():
    play = Playbook(limit=[1, 1])
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a @0", "send b @1"]
    play >> answered(b) << ["resolve b", "send c @1"]


def test_a_group_that_lingers_on_one_endpoint_goes_at_once_to_an_idle_one():
    play = Playbook(limit=[9, 3], linger_s=5.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play.submit(b) >> Woke() << ["send b @1"]
    assert play.wakes_at is None


def test_a_heavy_call_runs_alone_on_the_endpoint_that_is_idle():
    play = Playbook(limit=[4, 4])
    (light,), (heavy,) = calls("light"), calls("heavy", shape(weight=9))
    play.submit(light, heavy) >> Woke() << ["send light @0", "send heavy @1"]


def test_a_scheduler_needs_an_endpoint():
    with pytest.raises(ValueError, match="at least one endpoint"):
        Scheduler(SchedulerSettings(), [])


def test_the_same_events_give_the_same_commands():
    def story():
        play = Playbook(limit=[3, 2], linger_s=0.1, refill_s=0.2, refill_ratio=0.5)
        everyone = calls(12)
        words = []
        for call in everyone:
            play.submit(call)
        for second in range(8):
            play.at(float(second)) >> Woke()
            words += play.seen
            if play.sent:
                open_calls = [call for call in play.last.requests if call.batch is play.last]
                if open_calls:
                    play >> answered(open_calls[0])
                    words += play.seen
        return words

    assert story() == story()


def test_limits_of_endpoints_may_differ():
    limits = [FixedLimit(1), FixedLimit(7)]
    statistics = Scheduler(SchedulerSettings(), limits).statistics()
    assert [endpoint.limit for endpoint in statistics.endpoints] == [1, 7]
