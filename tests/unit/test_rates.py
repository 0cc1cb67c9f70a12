"""Token buckets, and what a gateway says is left."""

import pytest

from tests.core import RateWindow
from batchclient._core.servers.rates import Rates, TokenBucket


def test_a_bucket_is_full_at_the_start_and_fills_at_its_rate():
    bucket = TokenBucket(60.0, 6.0)
    assert bucket.is_full(100.0)
    bucket.take(6.0, 100.0)
    assert bucket.level(100.0) == 0.0
    assert bucket.level(102.5) == 2.5
    assert bucket.level(1000.0) == 6.0


def test_a_bucket_in_debt_is_paid_back_first():
    bucket = TokenBucket(60.0, 6.0)
    bucket.take(16.0, 0.0)
    assert bucket.level(0.0) == -10.0
    assert bucket.when(1.0, 0.0) == 11.0
    assert not bucket.has(1.0, 10.9)
    assert bucket.has(1.0, 11.0)


def test_a_bucket_says_when_an_amount_was_or_will_be_there():
    bucket = TokenBucket(60.0, 6.0)
    bucket.take(6.0, 10.0)
    assert bucket.when(3.0, 10.0) == 13.0
    assert bucket.when(3.0, 15.0) == 13.0
    # Never more than it can hold.
    assert bucket.when(50.0, 15.0) == 16.0


def test_times_that_were_rounded_are_no_reason_to_wait_again():
    bucket = TokenBucket(7.0, 1.0)
    now = 123_456.789
    bucket.take(1.0, now)
    assert bucket.has(1.0, bucket.when(1.0, now))


def test_a_full_bucket_pays_for_one_list_whatever_it_costs():
    rates = Rates(tokens_per_minute=600)
    assert rates.affordable(32, 100, 0.0) == (32, 0.0)
    rates.charge(3200, 0.0)
    # 60 at the start, 3,200 spent: the debt is paid back at 10 a second, then what one call costs; no more than is held at once.
    count, until = rates.affordable(32, 100, 0.0)
    assert (count, until) == (0, pytest.approx(320.0))
    assert rates.affordable(32, 100, 320.0)[0] == 32


def test_it_is_waited_for_up_to_a_second_for_a_list_of_eight():
    rates = Rates(tokens_per_minute=6000)  # 100 a second, 600 at once
    rates.charge(600, 0.0)
    assert rates.affordable(32, 20, 0.0) == (0, pytest.approx(1.2))
    assert rates.affordable(32, 20, 0.5) == (0, pytest.approx(1.2))
    assert rates.affordable(32, 20, 1.2)[0] == 6
    assert rates.affordable(32, 20, 1.6)[0] == 8
    rates = Rates(tokens_per_minute=6000)
    rates.charge(600, 0.0)
    assert rates.affordable(3, 20, 0.0) == (0, pytest.approx(0.6))
    assert rates.affordable(3, 20, 0.6)[0] == 3


def test_what_is_affordable_at_the_time_named_is_not_nothing():
    for calls, tokens, spent in ((32, 20, 600), (1, 599, 600), (5, 700, 650), (9, 1, 601)):
        rates = Rates(tokens_per_minute=6000)
        rates.charge(spent, 77.7)
        count, until = rates.affordable(calls, tokens, 77.7)
        assert count == 0
        assert rates.affordable(calls, tokens, until)[0] >= 1


def test_what_was_not_sent_is_given_back():
    rates = Rates(requests_per_minute=10, tokens_per_minute=6000)
    rates.charge(600, 0.0)
    rates.refund(600, 0.0, 0.0)
    assert rates.ready_at(0.0) is None
    assert rates.affordable(1, 600, 0.0)[0] == 1


def test_nothing_left_pauses_until_the_reset_for_a_minute_at_most():
    for reset_s, pause in [(5.0, 5.0), (60.0, 60.0), (3600.0, 60.0)]:
        rates = Rates()
        rates.observe([RateWindow(0, reset_s)], 10.0)
        assert rates.ready_at(10.0) == 10.0 + pause
        assert rates.ready_at(10.0 + pause) is None


def test_what_was_not_sent_is_not_given_back_once_the_bucket_has_filled_again():
    rates = Rates(requests_per_minute=6.0)
    rates.charge(1, 0.0)
    rates.charge(1, 10.0)
    # The first of them waited for its connection all the while.
    rates.refund(1, 0.0, 10.5)
    assert rates.ready_at(10.5) == pytest.approx(20.0)
    rates.refund(1, 10.0, 12.0)
    assert rates.ready_at(12.0) is None
