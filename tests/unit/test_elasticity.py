"""The elasticity of throughput to load, from points alone."""

import math

import pytest

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
        elasticity.take_in(Point(now, 15, load, queue, 0, took * 15, Timed(), took * 15), limit(now), 1.0, now)
        values.append(elasticity.value)
    return sum(values[16:]) / 32


@pytest.mark.parametrize("growth", [-0.2, -0.1, -0.05, 0.0, 0.05])
def test_the_queue_that_short_answers_met_lags_behind_the_load_and_is_not_taken_for_it(growth):
    assert abs(plateau(growth)) <= 0.04
