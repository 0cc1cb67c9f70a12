"""A number that a person has set."""

import pytest

from tests.core import FixedLimit, Outcome, ServerLoad
from batchclient._core.limits.control import LimitControl
from tests.unit.limits.samples import Server, sample


def test_a_fixed_limit_stays_what_it_is():
    limit = FixedLimit(7)
    for outcome in Outcome:
        assert limit.on_sample(sample(1.0, outcome=outcome)) is None
    assert limit.on_known(4, 2.0) is None
    assert (limit.limit, limit.reason) == (7, "fixed")


@pytest.mark.parametrize("number", [0, -1])
def test_a_limit_is_at_least_one(number):
    with pytest.raises(ValueError, match="at least 1"):
        FixedLimit(number)


def test_it_holds_until_the_server_refuses_and_comes_back():
    limit = LimitControl(FixedLimit(100))
    server = Server(limit, lambda load: 1.0)
    assert server.run(30.0) == 100
    change = server.refuse()
    assert (change.limit, change.reason) == (95, "the server refused work")
    assert server.run(33.9) == 95
    assert 95 < server.run(34.9) < 100
    assert server.run(40.0) == 100
    assert limit.reason == "fixed"


def test_neither_late_answers_nor_a_page_lower_it():
    limit = LimitControl(FixedLimit(64))
    for tenth in range(200):
        limit.on_sample(sample(1.0 + tenth / 10, load=64.0, outcome=Outcome.LATE))
        limit.on_load(ServerLoad(running=8, waiting=56), 64, 1.0 + tenth / 10)
    assert limit.on_known(4, 30.0) is None
    assert limit.limit == 64
