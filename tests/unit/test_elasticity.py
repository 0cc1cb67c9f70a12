"""The elasticity of throughput to load, from points alone."""

import math

import pytest

from batchclient._core.limits.bursts import Bursts
from batchclient._core.limits.elasticity import Elasticity
from batchclient._core.limits.evidence import Point, Timed


def plateau(growth, per_s=60.0, start=48.0):
    """Mean elasticity of one-token answers from a queue that is served at a constant rate, while a swinging limit grows by so much of its logarithm per second."""

    def limit(now):
        return start * math.exp(growth * now) * (1.12 if now / 2.3 % 1 < 0.5 else 0.88)

    elasticity, now, values = Elasticity(), 0.0, []
    for _ in range(48):
        now += 0.25
        sent_at = now - limit(now) / per_s
        for _ in range(30):
            sent_at = now - limit(sent_at) / per_s
        queue = limit(sent_at)
        took = queue / per_s
        load = sum(limit(sent_at + took * (step + 0.5) / 20) for step in range(20)) / 20
        elasticity.take_in(
            Point(now, 15, load, queue, 0, took * 15, Timed(), took * 15), limit(now), 1.0, now, Bursts()
        )
        values.append(elasticity.value)
    return sum(values[16:]) / 32


@pytest.mark.parametrize("growth", [-0.2, -0.1, -0.05, 0.0, 0.05])
def test_the_queue_that_short_answers_met_lags_behind_the_load_and_is_not_taken_for_it(growth):
    assert abs(plateau(growth)) <= 0.04


def after_loads(tokens, paces, loads=(24.0, 96.0)):
    """The last estimate where one load was seen for so many paces, then the other, and a time per answer of ``1 + N / 32`` wavers together for a second at a time."""
    elasticity, now = Elasticity(), 0.0
    for load in loads:
        for quarter in range(4 * paces):
            now += 0.25
            took = (1 + load / 32) * (1.06 if quarter // 4 % 2 else 0.94)
            elasticity.take_in(
                Point(now, 15, load, load, 15 * tokens, took * 15, Timed(), took * 15), loads[-1], 1.0, now, Bursts()
            )
    return elasticity


def test_for_short_answers_any_load_of_the_last_nine_paces_tells_the_slope():
    # ``a / (a + b N)``: a quarter at 96, whichever way it was come to.
    assert after_loads(0, 4).value == pytest.approx(0.25, abs=0.05)
    assert len(after_loads(0, 20).points) >= 36
    assert len(after_loads(40, 20).points) <= 16


class Batches(Bursts):
    """Of a server that is known to run so many at once."""

    batch = 64
    full = True


class Unequal(Batches):
    """Of which not all were full."""

    full = False


@pytest.mark.parametrize(("load", "queued"), [(120.0, 0.0), (140.0, 0.0), (168.0, 0.2), (268.8, 0.5)])
def test_what_lies_beyond_two_batches_is_a_queue(load, queued):
    for tokens, bursts in ((40, Batches()), (0, Batches()), (40, Bursts()), (40, Unequal())):
        elasticity = Elasticity()
        for now in range(1, 5):
            point = Point(float(now), 15, load, load, 15 * tokens, 8.0 * 15, Timed(), 8.0 * 15)
            elasticity.take_in(point, load, 8.0, float(now), bursts)
        known = bool(tokens) and bursts.batch is not None
        full = known and bursts.full
        assert elasticity.queued == pytest.approx(queued if full else 0.0)
        assert elasticity.clear == pytest.approx(min(0.7, 0.3 + queued) if full and queued else 0.0)
        assert elasticity.unseen is not known
