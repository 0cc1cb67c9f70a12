"""``Price``: the cost of tokens and hours."""

import dataclasses
import pickle

import pytest

from batchclient import ConfigError, Price


def test_the_cost_is_of_tokens_and_hours_together():
    price = Price(per_hour=2.5, input=0.15, output=0.6)
    assert price.cost(prompt_tokens=2_000_000) == pytest.approx(0.3)
    assert price.cost(completion_tokens=500_000) == pytest.approx(0.3)
    assert price.cost(seconds=5400) == pytest.approx(3.75)
    assert price.cost(prompt_tokens=2_000_000, completion_tokens=500_000, seconds=5400) == pytest.approx(4.35)


def test_a_price_that_is_absent_costs_nothing():
    assert Price(output=1).cost(prompt_tokens=10**9, seconds=10**9) == 0
    assert Price(per_hour=0).cost(prompt_tokens=10**9, completion_tokens=10**9, seconds=10**9) == 0


def test_a_price_that_is_none_is_refused_by_name():
    for field in ["per_hour", "input", "output"]:
        for value in [-1, float("nan"), float("inf"), True, "0.15"]:
            with pytest.raises(ConfigError, match=f"^{field} is a number of at least 0, not ") as refused:
                Price(**{field: value})
            assert refused.value.field == field


def test_no_price_at_all_is_refused():
    with pytest.raises(ConfigError, match="input, output, per_hour"):
        Price()


def test_a_price_is_a_value():
    price = Price(per_hour=2)
    assert pickle.loads(pickle.dumps(price)) == price == Price(per_hour=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        price.per_hour = 3
