"""Limits: numbers with reasons, and no permits."""

import pytest

from batchclient._core.limits import FixedLimit, Outcome, Sample


def test_a_fixed_limit_stays_what_it_is():
    limit = FixedLimit(7)
    for outcome in Outcome:
        assert limit.on_sample(Sample(1.0, 0.0, 7, 7.0, 1, 5, 10, 0.1, outcome, 7)) is None
    assert limit.limit == 7


@pytest.mark.parametrize("number", [0, -1])
def test_a_limit_is_at_least_one(number):
    with pytest.raises(ValueError, match="at least 1"):
        FixedLimit(number)


def test_its_repr_can_be_typed_in():
    assert repr(FixedLimit(3)) == "FixedLimit(3)"
