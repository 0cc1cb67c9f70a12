"""What first tokens raise a limit to, and where it comes back to."""

import pytest

from batchclient._core.limits.evidence import Point, Timed
from batchclient._core.limits.opening import Opening


def point(load, per_s):
    """Ten answers of 100 tokens, served under a load at so many tokens/s."""
    seconds = 10 * load * 100 / per_s
    return Point(0.0, 10, load, load, 1000, seconds, Timed(10, 1000, seconds, 0.1), 0.0)


def test_what_has_begun_may_be_two_fifths_more():
    opening = Opening()
    assert opening.raised(64.0, 60, 0.0) == 84.0
    assert opening.used


def test_what_is_there_already_is_no_news():
    opening = Opening()
    assert opening.raised(64.0, 45, 0.0) == 64.0
    assert not opening.used


def test_it_comes_back_to_the_least_load_that_brought_nearly_as_much():
    points = [point(load, per_s) for load, per_s in ((80, 940), (100, 960), (150, 1000), (250, 990))]
    assert Opening().drained(280.0, points) == pytest.approx(100)
    assert Opening().drained(90.0, points) == 90, "it is never raised for that"


def test_it_comes_back_once():
    opening = Opening()
    opening.raised(64.0, 200, 0.0)
    opening.drained(200.0, [point(80, 900)])
    assert not opening.used
