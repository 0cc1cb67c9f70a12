"""The limit in force: a number that a person set."""

import pytest

from tests.core import Outcome, ServerLoad
from tests.unit.limits.samples import Loop, found, given, sample

# A number that a person has set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1])
def test_a_limit_is_at_least_one(number):
    with pytest.raises(ValueError, match="at least 1"):
        given(number)


@pytest.mark.parametrize(("make", "reason"), [(given, "fixed"), (lambda limit: found(limit, limit), "the start")])
def test_it_holds_until_the_server_refuses_and_comes_back(make, reason):
    loop = Loop(make(100), lambda load: 1.0)
    assert loop.run(30.0) == 100
    loop.tell(sample(loop.now, 0.1, 101, outcome=Outcome.DROPPED, admitted_at=100))
    assert loop.whys == [(95, "the server refused work")]
    assert loop.run(33.9) == 95
    assert 95 < loop.run(34.9) < 100
    assert loop.run(40.0) == 100
    assert loop.limit.reason == reason


def test_neither_answers_nor_late_ones_nor_a_page_change_a_number_that_was_set():
    limit = given(64)
    for tenth in range(200):
        for outcome in (Outcome.LATE, Outcome.SUCCESS, Outcome.WASTED, Outcome.IGNORED):
            limit.on_sample(sample(1.0 + tenth / 10, load=64.0, outcome=outcome))
        limit.on_load(ServerLoad(running=8, waiting=56), 64, 1.0 + tenth / 10)
    limit.on_known(4, 30.0)
    assert (limit.limit, limit.reason) == (64, "fixed")
