"""The soak's judgement, on made-up series: it must see a leak and nothing else."""

import random

import pytest

from tests.soak.slope import LEAK_BYTES_PER_CALL, LEAK_CONNECTIONS, LEAST_BYTES, judge, slope

TIMES = [float(second) for second in range(100, 600)]
RNG = random.Random(7)  # noqa: S311


def noisy(base, per_s, noise):
    return [base + per_s * time + RNG.uniform(-noise, noise) for time in TIMES]


def test_the_slope_is_the_lines():
    assert slope([0, 1, 2, 4], [1, 3, 5, 9]) == 2


def test_bursts_do_not_move_it():
    series = [10.0] * 500
    series[100:200] = [500.0] * 100
    assert slope(TIMES, series) == 0


def test_two_samples_are_the_least():
    with pytest.raises(ValueError, match="two"):
        slope([1.0], [1.0])


def test_a_leak_of_one_request_per_call_is_seen_in_the_noise():
    calls_per_s, bytes_per_call = 500, 200
    verdict = judge(
        "rss", TIMES, noisy(1e8, calls_per_s * bytes_per_call, 5e6), max(LEAST_BYTES, LEAK_BYTES_PER_CALL * 500 * 500)
    )
    assert not verdict.flat


def test_noise_alone_is_flat():
    assert judge("rss", TIMES, noisy(1e8, 0, 5e6), LEAST_BYTES).flat
    assert judge("sockets", TIMES, noisy(40, 0, 20), LEAK_CONNECTIONS).flat


def test_a_socket_lost_every_half_minute_is_seen():
    assert not judge("sockets", TIMES, noisy(40, 1 / 30, 20), LEAK_CONNECTIONS).flat


def test_what_shrinks_is_flat():
    assert judge("rss", TIMES, noisy(1e8, -1000, 0), 0).flat
