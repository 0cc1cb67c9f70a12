"""The retry budget: what flows in, what a retry takes, and how long one waits."""

import pytest

from batchclient._core.servers.budget import RetryBudget

LIMIT = 64


def spent(tokens=100.0, calls=1, at=10.0):
    """A budget of calls of so many tokens, just out of its last one."""
    budget = RetryBudget()
    budget.sent(tokens * calls, calls)
    budget.charge(budget.level(LIMIT, at), LIMIT, at)
    return budget


def test_it_begins_with_all_that_may_be_in_flight_and_at_least_a_hundred_calls():
    for limit, calls in [(8, 100), (100, 100), (512, 512)]:
        budget = RetryBudget()
        budget.sent(3000.0, 10)
        assert budget.level(limit, 0.0) == calls * 300.0
        assert budget.level(limit, 1e6) == calls * 300.0


def test_a_fifth_of_what_is_sent_flows_in():
    budget = spent()
    assert budget.level(LIMIT, 10.0) == 0.0
    budget.sent(1000.0, 10)
    assert budget.level(LIMIT, 10.0) == pytest.approx(200.0)


def test_ten_calls_worth_a_second_flows_in_up_to_what_it_holds():
    budget = spent(tokens=30.0)
    assert budget.level(LIMIT, 12.0) == pytest.approx(2 * 10 * 30.0)
    assert budget.level(LIMIT, 1000.0) == 100 * 30.0


def test_a_retry_takes_its_tokens_and_may_leave_a_debt_that_the_next_waits_for():
    budget = spent()
    assert budget.take(5000.0, LIMIT, 10.0)
    assert budget.level(LIMIT, 10.0) == -5000.0
    assert not budget.take(1.0, LIMIT, 10.0)
    assert budget.when(LIMIT, 10.0) == pytest.approx(15.0)
    assert not budget.take(1.0, LIMIT, 14.9)
    assert budget.take(1.0, LIMIT, budget.when(LIMIT, 10.0))


def test_looking_changes_nothing():
    looked, left = spent(), spent()
    for second in range(11, 20):
        looked.level(LIMIT, float(second))
        looked.sent(50.0, 1)
        left.sent(50.0, 1)
    looked.charge(10.0, LIMIT, 20.0)
    left.charge(10.0, LIMIT, 20.0)
    assert looked.level(LIMIT, 21.0) == left.level(LIMIT, 21.0)


def test_the_worth_of_a_call_follows_what_is_sent_now():
    budget = spent(tokens=10.0, calls=5000)
    for second in range(11, 31):
        budget.sent(1000.0 * 1000, 1000)
        budget.charge(0.0, LIMIT, float(second))
    assert budget.level(LIMIT, 1e6) > 100 * 900.0


def test_it_never_asks_to_be_looked_at_again_at_the_same_instant():
    budget = spent()
    budget.charge(2e-6, LIMIT, 10.0)
    assert not budget.take(1.0, LIMIT, 10.0)
    assert budget.when(LIMIT, 10.0) >= 10.001
