"""Retry policies: when, and when no more."""

from random import Random

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from batchclient.errors import BadRequest, ConfigError, ConnectionLost, RateLimited, ServerFault
from batchclient.retry import Backoff, TenacityRetry


class Highest(Random):
    """Draws the ceiling, so that it can be read off."""

    def uniform(self, low, high):
        return high


class Lowest(Random):
    def uniform(self, low, high):
        return low


FAULT = ServerFault("x")


def test_the_ceiling_doubles_with_every_attempt_up_to_the_cap():
    policy = Backoff(max_attempts=9, base_s=0.5, cap_s=3.0)
    ceilings = [policy.decide(FAULT, attempt, 0.0, Highest()) for attempt in range(1, 9)]
    assert ceilings == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0]


def test_by_default_there_are_five_attempts_with_pauses_of_half_a_second_to_eight_at_most():
    assert [Backoff().decide(FAULT, attempt, 0.0, Highest()) for attempt in (1, 2, 3, 4, 5)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        None,
    ]
    assert [Backoff(9).decide(FAULT, attempt, 0.0, Highest()) for attempt in (5, 6, 7)] == [8.0, 8.0, 8.0]


def test_the_jitter_is_full():
    assert Backoff().decide(FAULT, 3, 0.0, Lowest()) == 0.0


@given(st.integers(1, 10_000), st.integers(0, 2**32))
def test_a_delay_is_within_zero_and_the_ceiling(attempt, seed):
    policy = Backoff(max_attempts=20_000)
    delay = policy.decide(FAULT, attempt, 0.0, Random(seed))
    assert 0.0 <= delay <= min(8.0, 0.5 * 2.0 ** min(attempt - 1, 60))


def test_the_same_random_numbers_give_the_same_delay():
    assert Backoff().decide(FAULT, 2, 0.0, Random(7)) == Backoff().decide(FAULT, 2, 0.0, Random(7))


def test_after_max_attempts_it_gives_up():
    policy = Backoff(max_attempts=3)
    assert policy.decide(FAULT, 2, 0.0, Highest()) is not None
    assert policy.decide(FAULT, 3, 0.0, Highest()) is None
    assert policy.decide(FAULT, 4, 0.0, Highest()) is None


def test_one_attempt_never_retries():
    assert Backoff(max_attempts=1).decide(FAULT, 1, 0.0, Highest()) is None


def test_what_cannot_succeed_later_is_not_tried_again():
    assert Backoff().decide(BadRequest("x"), 1, 0.0, Highest()) is None


def test_a_delay_is_never_shorter_than_the_servers_wish():
    wish = RateLimited("x", retry_after_s=20.0)
    assert Backoff().decide(wish, 1, 0.0, Highest()) == 20.0
    assert Backoff(base_s=50.0, cap_s=50.0).decide(wish, 1, 0.0, Highest()) == 50.0


def test_a_wish_of_over_a_minute_gives_up():
    for wish_s, delay_s in [(60.0, 60.0), (60.1, None), (1e9, None)]:
        assert Backoff().decide(RateLimited("x", retry_after_s=wish_s), 1, 0.0, Highest()) == delay_s


def test_wrong_numbers_are_refused_by_name():
    for arguments, field in [
        ({"max_attempts": 0}, "max_attempts"),
        ({"base_s": -1.0}, "base_s"),
        ({"cap_s": -0.1}, "cap_s"),
    ]:
        with pytest.raises(ConfigError) as caught:
            Backoff(**arguments)
        assert caught.value.field == field


def test_tenacitys_strategies_decide():
    policy = TenacityRetry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(2.5))
    assert policy.decide(FAULT, 1, 0.0, Random(1)) == 2.5
    assert policy.decide(FAULT, 3, 0.0, Random(1)) is None


def test_tenacity_sees_the_age_of_the_call():
    policy = TenacityRetry(stop=tenacity.stop_after_delay(60), wait=tenacity.wait_none())
    assert policy.decide(FAULT, 1, 59.0, Random(1)) == 0.0
    assert policy.decide(FAULT, 1, 61.0, Random(1)) is None


def test_tenacity_sees_the_delay_it_asked_for():
    policy = TenacityRetry(stop=tenacity.stop_before_delay(10), wait=tenacity.wait_fixed(5))
    assert policy.decide(FAULT, 1, 4.0, Random(1)) == 5.0
    assert policy.decide(FAULT, 1, 6.0, Random(1)) is None


def test_tenacity_sees_the_callers_error():
    policy = TenacityRetry(retry=tenacity.retry_if_exception_type(ConnectionLost), wait=tenacity.wait_fixed(1))
    assert policy.decide(ConnectionLost("x"), 1, 0.0, Random(1)) == 1.0
    assert policy.decide(FAULT, 1, 0.0, Random(1)) is None


def test_tenacity_sees_the_attempt():
    policy = TenacityRetry(wait=tenacity.wait_incrementing(start=1, increment=1, max=9))
    assert [policy.decide(FAULT, attempt, 0.0, Random(1)) for attempt in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_strategies_can_be_combined():
    policy = TenacityRetry(
        stop=tenacity.stop_after_attempt(9) | tenacity.stop_after_delay(60),
        wait=tenacity.wait_fixed(1) + tenacity.wait_fixed(2),
    )
    assert policy.decide(FAULT, 8, 0.0, Random(1)) == 3.0
    assert policy.decide(FAULT, 1, 61.0, Random(1)) is None


def test_by_default_tenacity_retries_what_is_retryable_five_times():
    policy = TenacityRetry()
    assert policy.decide(BadRequest("x"), 1, 0.0, Random(1)) is None
    assert policy.decide(FAULT, 4, 0.0, Random(1)) is not None
    assert policy.decide(FAULT, 5, 0.0, Random(1)) is None


def test_the_servers_wish_also_bounds_tenacitys_wait():
    policy = TenacityRetry(wait=tenacity.wait_fixed(1))
    assert policy.decide(RateLimited("x", retry_after_s=4.0), 1, 0.0, Random(1)) == 4.0


def test_what_is_no_strategy_is_refused_by_name():
    for name in ["stop", "wait", "retry"]:
        with pytest.raises(ConfigError) as caught:
            TenacityRetry(**{name: 5})
        assert caught.value.field == name
