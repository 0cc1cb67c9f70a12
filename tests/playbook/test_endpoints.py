"""Several endpoints, each with permits, health and rest of its own."""

import pytest

from tests.core import FailureKind, FixedLimit, HealthChanged, Scheduler, SchedulerSettings, Woke
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
    # After the rest one request goes that was not refused yet, then two for each that is answered.
    play.at(3.0) >> Woke() << ["send b"]
    play.at(3.2) >> answered(b) << ["resolve b", "send a"]
    assert play.endpoints[0].blocked_until is None


def refused_thrice(**deadline):
    """Four are under way; one is answered, and then three are refused in a row, at 1.1, 1.2 and 1.3."""
    play = Playbook(limit=4)
    requests = calls(12, shape(alone_reason="alone"), **deadline)
    play.submit(*requests) >> Woke() << ["send c0", "send c1", "send c2", "send c3"]
    play.at(1.0) >> answered(requests[0]) << ["resolve c0", "send c4"]
    for number in (1, 2):
        play.at(1.0 + number / 10) >> refused(requests[number]) << [f"send c{number + 4}"]
    return play.at(1.3), requests


def refused(request, **fields):
    return failed(request, FailureKind.REJECTED, delay=1.0, status=429, **fields)


def test_the_statistics_say_that_refusals_hold_calls_back_and_until_when():
    play, requests = refused_thrice()
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (None, "")
    play >> refused(requests[3]) << []
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (1.55, "the server's refusals")
    play.at(1.6) >> Woke() << ["send c1"]
    # All permits are in use: nothing but the limit holds calls back.
    assert (play.in_flight, play.endpoints[0].blocked_by) == (4, "")


def test_the_statistics_say_that_an_outage_holds_calls_back_and_then_the_slow_start():
    play = Playbook(limit=[8, 8], max_size=1)
    requests = calls(8)
    play.submit(requests[0]) >> Woke() << ["send c0 @0"]
    play.at(1.0) >> failed(requests[0], FailureKind.NOT_SENT) << ["send c0 @1"]
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (1.5, "the server's outage")
    # One call may go now. None has come, so nobody knows how long the outage lasts.
    play.at(1.6) >> Woke() << []
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (None, "the server's outage")
    play.submit(requests[1]) >> Woke() << ["send c1 @0"]
    # By then the server will have held it for ten times as long as the failure took.
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (11.6, "the server's outage")
    # An eighth of the limit at first.
    play.at(1.7) >> answered(requests[1]) << ["resolve c1"]
    assert play.endpoints[0].blocked_by == ""
    play.submit(requests[2]) >> Woke() << ["send c2 @0"]
    assert (play.endpoints[0].in_flight, play.endpoints[0].blocked_until) == (1, 3.2)
    assert play.endpoints[0].blocked_by == "the server's slow start"


def test_a_call_that_misses_its_deadline_behind_a_slow_start_says_so():
    play = Playbook(limit=8, max_size=1)
    (a, b), (c, d) = calls("a b"), calls("c d", deadline=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play.submit(b) >> Woke() << ["send b"]
    play.at(1.0) >> failed(b, FailureKind.NOT_SENT) << []
    play.at(1.5) >> Woke() << ["send b"]
    play.submit(c, d) >> Woke() << []
    # An eighth of the limit at first.
    play.at(1.6) >> answered(b) << ["resolve b", "send c"]
    play.at(2.0) >> Woke() << ["abort c", "reject c d: DeadlineExceeded"]
    assert "in the queue, where the server's slow start held it back: 0.5 s" in play.errors["d"].message


def test_an_answer_of_another_server_sends_no_second_probe():
    play = Playbook(limit=[8, 1], max_size=1)
    a, b, c, d = calls("a b c d")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.NOT_SENT) << ["send a @1"]
    play.at(0.5).submit(b) >> Woke() << ["send b @0"]
    play.submit(c, d) >> Woke() << []
    # Now b is under way for long enough to be taken on; an answer of the other server comes before its timer.
    play.at(0.8) >> answered(a) << ["resolve a", "send c @1"]
    play.at(0.9) >> Woke() << []
    assert (play.endpoints[0].state, play.endpoints[0].blocked_by) == ("recovering", "the server's slow start")


def test_it_is_told_once_a_minute_that_refusals_hold_queued_calls_back():
    play, requests = refused_thrice()
    told = []
    for number, now, rest_s in ((3, 1.3, None), (4, 1.4, None), (5, 61.2, 9.0), (6, 61.3, 9.0)):
        play.scheduler.handle(refused(requests[number], retry_after_s=rest_s), now)
        told += [(now, one.state, one.reason) for one in play.scheduler.commands() if isinstance(one, HealthChanged)]
    assert told == [(1.3, "held", "the server's refusals"), (61.3, "held", "the server's Retry-After")]

    # A rest that nobody waits for is none of anybody's business.
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.scheduler.handle(failed(a, FailureKind.REJECTED, retry_after_s=9.0), 1.0)
    assert not [one for one in play.scheduler.commands() if isinstance(one, HealthChanged)]


def test_a_call_that_misses_its_deadline_behind_refusals_says_so():
    play, requests = refused_thrice(deadline=1.5)
    play >> refused(requests[3]) << []
    play.at(1.5) >> Woke()
    assert play.errors["c11"].message == (
        "the call's timeout_s passed in the queue, where the server's refusals held it back: 1.5 s in the queue"
    )


def test_a_failure_that_is_no_rejection_blocks_nobody():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, retry_after_s=9.0) << ["reject a: ConnectionLost"]
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


def test_the_least_loaded_endpoint_is_filled_first():
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
    play = Playbook(limit=[2, 3])
    a, b, c, d = calls("a b c d")
    play.submit(a, b) >> Woke() << ["send a b @1"]
    play >> failed(a, FailureKind.LIST_REFUSED) << ["send a @1", "send b @0"]
    assert [endpoint.lists_refused for endpoint in play.endpoints] == [False, True]
    play >> answered(b) << ["resolve b"]
    play.submit(c, d) >> Woke() << ["send c d @0"]
    assert play.last.streamed
    play >> failed(c, FailureKind.STREAM_REFUSED) << ["send c d @0"]
    play >> failed(c, FailureKind.LIST_TOO_LONG) << ["send c @0", "send d @1"]
    assert [endpoint.batch_size_cap for endpoint in play.endpoints] == [1, 1]
    assert [endpoint.streams_refused for endpoint in play.endpoints] == [True, False]


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


def measured(play, fast, slow, slow_s=3.0):
    """Let one answer come from each endpoint, so that one is known to be three times slower."""
    a, b = calls("a b")
    play.submit(a) >> Woke() << [f"send a @{fast}"]
    play.submit(b) >> Woke() << [f"send b @{slow}"]
    play.at(1.0) >> answered(a) << ["resolve a"]
    play.at(slow_s) >> answered(b) << ["resolve b"]


def test_one_a_little_slower_gets_a_call_when_the_other_is_so_much_fuller():
    play = Playbook(limit=[10, 10], max_size=1)
    measured(play, 0, 1, slow_s=1.2)
    play.submit(*calls("c d e f")) >> Woke() << ["send c @0", "send d @0", "send e @0", "send f @1"]


def test_one_that_was_not_measured_counts_as_the_fastest():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a @0"]
    play.at(1.0) >> answered(a)
    play.submit(b, c) >> Woke() << ["send b @0", "send c @1"]


def test_a_slow_one_that_was_idle_for_ten_seconds_gets_a_call_that_may_find_it_faster():
    play = Playbook(limit=[4, 4], max_size=1)
    measured(play, 0, 1)
    c, d, e, f, g = calls("c d e f g")
    play.at(12.9).submit(c, d) >> Woke() << ["send c @0", "send d @0"]
    play.at(13.1).submit(e) >> Woke() << ["send e @1"]
    play.at(13.4) >> answered(e)
    play.submit(f, g) >> Woke() << ["send f @1", "send g @1"]


@pytest.mark.parametrize(("most", "together"), [(16, 4), (240, 1)], ids=["under load", "with long answers"])
def test_a_server_that_has_more_to_do_is_not_taken_for_a_slow_one(most, together):
    play = Playbook(limit=[4, 4], max_size=1)
    here, (there,), (next_one,) = calls(together, shape(max_output_tokens=most)), calls("x"), calls("y")
    for call in here:
        call.failed_on = 1
    there.failed_on = 0
    play.submit(*here, there) >> Woke()
    assert [batch.endpoint for batch in play.sent] == [0] * together + [1]
    play.at(1.5) >> answered(there, tokens=16)
    for call in here:
        play.at(2.0) >> answered(call, tokens=most)
    play.submit(next_one) >> Woke() << ["send y @0"]


def test_a_slow_endpoint_gets_nothing_while_the_fast_one_has_permits():
    play = Playbook(limit=[4, 4], max_size=1)
    measured(play, 0, 1)
    c, d, e, f, g = calls("c d e f g")
    play.at(3.1).submit(c, d) >> Woke() << ["send c @0", "send d @0"]
    play.submit(e, f, g) >> Woke() << ["send e @0", "send f @0", "send g @1"]


def test_what_a_fast_endpoint_holds_for_a_moment_is_not_given_to_a_slow_one():
    play = Playbook(limit=[4, 4], linger_s=0.1)
    measured(play, 0, 1)
    c, d = calls("c d")
    play.at(3.1).submit(c) >> Woke() << ["send c @0"]
    # It waits for company on the fast one, though the slow one is idle.
    play.submit(d) >> Woke() << []
    assert play.wakes_at == pytest.approx(3.2)
    play.at(3.2) >> Woke() << ["send d @0"]


def test_an_idle_endpoint_that_is_as_fast_takes_what_the_other_would_hold():
    play = Playbook(limit=[4, 4], linger_s=0.1)
    a, b, c, d = calls("a b c d")
    play.submit(a) >> Woke() << ["send a @0"]
    play.submit(b) >> Woke() << ["send b @1"]
    play.at(1.0) >> answered(a) << ["resolve a"]
    play >> answered(b) << ["resolve b"]
    play.submit(c) >> Woke() << ["send c @0"]
    play.submit(d) >> Woke() << ["send d @1"]


def test_a_shallow_queue_is_shared_between_endpoints_that_are_idle():
    # But into lists of at least eight.
    for queued, sizes in ((40, [20, 20]), (10, [8, 2])):
        play = Playbook(limit=[64, 64])
        play.submit(*calls(queued)) >> Woke()
        assert [len(batch.requests) for batch in play.sent] == sizes
        assert [batch.endpoint for batch in play.sent] == [0, 1]


def test_a_deep_queue_makes_lists_as_long_as_permits_allow():
    play = Playbook(limit=[64, 64])
    play.submit(*calls(400)) >> Woke()
    assert [len(batch.requests) for batch in play.sent] == [64, 64]


def test_a_hold_lasts_no_longer_because_another_batch_was_granted_meanwhile():
    play = Playbook(limit=[8, 1], refill_s=1.0, refill_ratio=0.5)
    everyone = calls(24)
    play.submit(*everyone) >> Woke()
    assert sorted(len(batch.requests) for batch in play.sent) == [1, 8]
    first = next(batch for batch in play.sent if batch.endpoint == 0)
    other = next(batch for batch in play.sent if batch.endpoint == 1)
    play.at(1.0) >> answered(first.requests[0])
    assert play.wakes_at == 2.0
    play.at(1.5) >> answered(other.requests[0])
    assert play.last.endpoint == 1
    assert play.wakes_at == 2.0


def test_a_retry_prefers_an_endpoint_where_it_did_not_fail():
    play = Playbook(limit=[9, 2])
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send a @1"]
    # Preferred, not required: the other has no permit left.
    play.submit(b) >> Woke() << ["send b @0"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send a @0"]


def test_a_hold_lasts_no_longer_because_part_of_it_was_granted():
    play = Playbook(limit=[8, 1], max_size=4, refill_s=1.0, refill_ratio=0.5)
    play.submit(*calls(40)) >> Woke()
    one, two = [batch for batch in play.sent if batch.endpoint == 0]
    play.at(1.0) >> answered(*one.requests[:3])
    assert play.wakes_at == 2.0
    play.at(1.5) >> answered(*two.requests[:2])
    assert len(play.last.requests) == 4
    assert play.endpoints[0].in_flight == 7
    # The permit that is left has been held since 1.0.
    assert play.wakes_at == 2.0
