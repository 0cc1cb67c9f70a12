"""How long calls take: what next to none undercuts, and what most keep to."""

import pytest

from batchclient._core.learnt.times import ServiceTimes

KEY = b"k"


def test_nothing_is_said_before_eight_answers_nor_ten_seconds_after_the_last():
    times = ServiceTimes()
    times.learn(KEY, 1.0, 0.0, 7)
    assert (times.shortest(KEY, 0.0), times.likely(KEY, 0.0)) == (0.0, 0.0)
    for _ in range(40):
        times.learn(KEY, 1.0, 1.0)
    assert times.shortest(KEY, 1.0) == pytest.approx(1.0, abs=0.05)
    assert times.likely(KEY, 1.0) == pytest.approx(1.0, abs=0.05)
    assert times.likely(KEY, 11.1) == times.shortest(KEY, 11.1) == 0.0


def test_times_that_vary_have_no_shortest_but_a_likely_one():
    times = ServiceTimes()
    for step in range(200):
        times.learn(KEY, 0.5 if step % 2 else 1.5, float(step) / 100)
    assert times.shortest(KEY, 2.0) == 0.0
    assert 1.6 < times.likely(KEY, 2.0) < 2.5


def test_what_was_given_up_took_at_least_so_long():
    times = ServiceTimes()
    for _ in range(20):
        times.learn(KEY, 0.5, 0.0)
    before = times.likely(KEY, 0.0)
    times.learn_at_least(KEY, 0.1, 0.0)
    assert times.likely(KEY, 0.0) == before, "that says nothing"
    times.learn_at_least(KEY, 1.0, 0.0)
    assert times.likely(KEY, 0.0) > before
    times.learn_at_least(b"unknown", 1.0, 0.0)
    assert times.likely(b"unknown", 0.0) == 0.0
