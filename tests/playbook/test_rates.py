"""Requests and tokens per minute, and gateways that say what is left."""

import pytest

from tests.core import (
    RatesPerMinute,
    EndpointAdded,
    FailureKind,
    FixedLimit,
    RateWindow,
    RatesReported,
    Retuned,
    SchedulerSettings,
    Woke,
)
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def sizes(play):
    return [len(batch.requests) for batch in play.sent]


def test_requests_are_sent_at_their_rate_after_a_burst():
    play = Playbook(limit=64, max_size=1, requests_per_minute=30)
    play.submit(*calls(9)) >> Woke()
    assert len(play.sent) == 3
    assert play.wakes_at == 2.0
    play.at(1.9) >> Woke() << []
    play.at(2.0) >> Woke() << ["send c3"]
    play.at(60.0) >> Woke() << ["send c4", "send c5", "send c6"]


def test_where_requests_are_short_lists_are_as_long_as_permitted():
    play = Playbook(limit=64, max_size=32, requests_per_minute=60, refill_s=0.5, refill_ratio=0.125)
    everyone = calls(900)
    play.submit(*everyone) >> Woke()
    assert sizes(play) == [32, 32]
    # Permits come back one by one, each second ten of them; the burst of six requests is soon used up.
    now, answers = 0.0, iter(everyone)
    while len(play.sent) < 60:
        now += 0.1
        play.at(round(now, 3)) >> answered(next(answers))
    # Six a second would be asked for by permits alone; one a second is sent, with all that has gathered.
    late = [batch for batch in play.sent if batch.sent_at > 20.0]
    assert len(late) / (late[-1].sent_at - late[0].sent_at) == pytest.approx(1.0, rel=0.1)
    assert sorted(len(batch.requests) for batch in late)[len(late) // 2] >= 8


def test_after_a_pause_for_requests_the_next_list_takes_every_permit():
    play = Playbook(limit=64, max_size=64, requests_per_minute=6)
    first = calls(64)
    play.submit(*first) >> Woke()
    assert sizes(play) == [64]
    play.submit(*calls("w x y z"))
    play.at(1.0) >> answered(*first[:40]) << [f"resolve {' '.join(call.waiter for call in first[:40])}"]
    assert play.wakes_at == 10.0
    play.submit(*calls(30))
    play.at(10.0) >> Woke()
    assert sizes(play) == [64, 34]


def test_tokens_are_charged_by_estimate_and_corrected_by_usage():
    play = Playbook(limit=64, max_size=1, tokens_per_minute=6000)
    long = shape(max_output_tokens=200)
    play.submit(*calls(10, long, tokens=100)) >> Woke()
    # 600 at once; 300 a call: a full bucket pays for the first, and what is left for one more.
    assert len(play.sent) == 2
    assert play.wakes_at == 3.0
    # The first answer used 101 tokens instead of 300, and lets expect 200 of the next: 50 + 199 - 200 are left.
    play.at(0.5) >> answered(play.sent[0].requests[0], tokens=100)
    assert len(play.sent) == 3
    assert play.wakes_at == pytest.approx(0.5 + (200 - 49) / 100)


def test_a_call_without_max_tokens_is_charged_256_for_its_answer_before_any_was_seen():
    play = Playbook(limit=64, max_size=1, tokens_per_minute=6000)
    play.submit(*calls(10, shape(max_output_tokens=None))) >> Woke() << ["send c0", "send c1"]
    assert play.wakes_at == pytest.approx((3 * 257 - 600) / 100)


def test_what_could_not_be_sent_is_not_charged():
    play = Playbook(limit=8, requests_per_minute=10, tokens_per_minute=6000)
    a, b = calls("a b", tokens=500)
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.NOT_SENT, delay=0.0) << []
    play.at(0.5) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play.submit(b) >> Woke() << []
    assert play.wakes_at == 6.5


def test_what_was_not_sent_in_the_end_is_not_given_back_once_the_bucket_has_filled_again():
    play = Playbook(limit=8, max_size=1, requests_per_minute=6)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.at(10.0).submit(b) >> Woke() << ["send b"]
    play.at(10.5) >> failed(a, FailureKind.UNSUPPORTED)
    play.submit(c) >> Woke() << []
    assert play.wakes_at == pytest.approx(20.0)
    play.at(12.0) >> failed(b, FailureKind.UNSUPPORTED)
    assert play.seen[1:] == ["send c"]


@pytest.mark.parametrize(
    ("count", "tokens", "waits_s", "sent"), [(32, 20, 1.2, 6), (32, 10, 0.8, 8), (3, 20, 0.6, 3), (1, 20, 0.2, 1)]
)
def test_tokens_are_waited_for_up_to_a_second_until_they_pay_for_a_list_of_eight(count, tokens, waits_s, sent):
    play, one = Playbook(limit=64, tokens_per_minute=6000), shape(max_output_tokens=1)
    play.submit(*calls("dear", one, tokens=599)) >> Woke() << ["send dear"]
    play.submit(*calls(count, one, tokens=tokens - 1)) >> Woke() << []
    assert play.wakes_at == pytest.approx(waits_s)
    play.at(waits_s / 2) >> Woke() << []
    play.at(play.wakes_at) >> Woke()
    assert (sizes(play), play.now) == ([1, sent], pytest.approx(waits_s))


def test_at_the_time_for_which_calls_wait_they_are_sent():
    for began in (0.0, 77.7, 123_456.789):
        play = Playbook(limit=64, max_size=1, requests_per_minute=7).at(began)
        play.submit(*calls(9)) >> Woke() << ["send c0"]
        for number in range(1, 9):
            play.at(play.wakes_at) >> Woke() << [f"send c{number}"]


def test_each_endpoint_has_rates_of_its_own_an_added_one_too():
    play = Playbook(limit=[8, 8], max_size=1, requests_per_minute=10)
    play.submit(*calls("a b c d")) >> Woke() << ["send a @0", "send b @1"]
    play >> EndpointAdded(2, FixedLimit(8), rates=RatesPerMinute(10)) << ["send c @2"]
    assert play.wakes_at == 6.0
    play.at(6.0) >> Woke() << ["send d @0"]


def test_nothing_younger_and_cheaper_goes_before_what_is_too_dear():
    play = Playbook(limit=8, max_size=1, tokens_per_minute=6000)
    (a,), (dear,), (cheap,) = calls("a", tokens=600), calls("dear", tokens=300), calls("cheap", shape(), tokens=1)
    play.submit(a, dear, cheap) >> Woke() << ["send a"]
    play.at(1.0) >> Woke() << []
    play.at(3.32) >> Woke() << ["send dear"]


def test_a_gateway_with_nothing_left_pauses_its_endpoint_and_answers_do_not_end_that():
    play = Playbook(limit=8, max_size=1)
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a", "send b"]
    play >> RatesReported(0, (RateWindow(0, 5.0), RateWindow(3, 50.0))) << []
    play >> answered(a) << ["resolve a"]
    play.submit(c) >> Woke() << []
    assert play.wakes_at == 5.0
    assert play.endpoints[0].blocked_until == 5.0
    play.at(1.0) >> answered(b) << ["resolve b"]
    play.at(5.0) >> Woke() << ["send c"]
    assert play.endpoints[0].blocked_until is None


def test_a_gateways_pause_is_a_minute_at_most_and_a_shorter_one_does_not_shorten_it():
    play = Playbook(limit=8, max_size=1)
    for reset_s, pause_s in ((5.0, 5.0), (3600.0, 60.0), (7.0, 60.0)):
        play >> RatesReported(0, (RateWindow(0, reset_s),)) << []
        assert play.endpoints[0].blocked_until == pause_s


def test_what_holds_calls_back_is_named():
    play = Playbook(limit=8, max_size=1, requests_per_minute=6, tokens_per_minute=6000)
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (None, "")
    (a,), (b,) = calls("a"), calls("b", deadline=8.0)
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b) >> Woke() << []
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (10.0, "requests_per_minute")
    play.at(8.0) >> Woke() << ["reject b: DeadlineExceeded"]
    assert (
        play.errors["b"].message
        == "the call's timeout_s passed in the queue, where requests_per_minute held it back: 8 s in the queue"
    )
    play.at(10.0) >> Woke()
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (None, "")


def test_tokens_that_hold_calls_back_are_named_and_so_is_a_gateway():
    play = Playbook(limit=8, max_size=1, tokens_per_minute=6000)
    a, b = calls("a b", tokens=1200)
    play.submit(a, b) >> Woke() << ["send a"]
    # The full bucket of 600 paid for its 1,216, and fills by 100 a second.
    assert play.endpoints[0].blocked_by == "tokens_per_minute"
    assert play.endpoints[0].blocked_until == pytest.approx(12.16)
    play >> RatesReported(0, (RateWindow(0, 30.0),))
    assert (play.endpoints[0].blocked_until, play.endpoints[0].blocked_by) == (30.0, "the gateway's rate limit")


def test_a_call_that_another_endpoint_could_have_had_was_not_held_back():
    play = Playbook(limit=[8, 1], max_size=1)
    (a,) = calls("a")
    (late,) = calls("late", deadline=3.0)
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.REJECTED, delay=60.0, retry_after_s=9.0) << ["send a @1"]
    play.submit(late) >> Woke() << []
    assert play.endpoints[0].blocked_by == "the server's Retry-After"
    play.at(3.0) >> Woke() << ["reject late: DeadlineExceeded"]
    assert play.errors["late"].message.startswith(
        "the call's timeout_s passed in the queue: 3 s in the queue; the queue counts"
    )


def test_a_paused_endpoint_leaves_its_calls_to_the_others():
    play = Playbook(limit=[8, 8], max_size=1)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> RatesReported(0, (RateWindow(0, 5.0),))
    play >> answered(a)
    play.submit(b) >> Woke() << ["send b @1"]
    assert play.wakes_at is None
