"""What throughput each load has brought lately."""

import pytest

from batchclient._core.limits.throughputs import Throughputs


def seen(*loads_and_throughputs, each=3):
    throughputs = Throughputs()
    for load, throughput in loads_and_throughputs:
        for _ in range(each):
            throughputs.take_in(load, throughput, 0.0)
    return throughputs


def test_a_peak_lies_between_loads_that_brought_clearly_less():
    assert seen((6, 84.0), (8, 100.0), (10, 80.0)).peak(0.1) == pytest.approx(8)
    assert seen((10, 80.0), (6, 84.0), (8, 100.0)).peak(0.1) == pytest.approx(8), "whatever was seen last"


@pytest.mark.parametrize(
    "loads",
    [
        ((6, 84.0), (8, 100.0)),
        ((8, 100.0), (10, 80.0)),
        ((6, 95.0), (8, 100.0), (10, 80.0)),
        ((6, 84.0), (8, 100.0), (10, 95.0)),
    ],
)
def test_a_plateau_or_one_side_alone_is_no_peak(loads):
    assert seen(*loads).peak(0.1) is None


def test_a_peak_must_be_worth_its_load():
    throughputs = seen((6, 84.0), (8, 100.0), (10, 80.0))
    assert throughputs.peak(0.4) == pytest.approx(8)
    assert throughputs.peak(0.7) is None


def test_a_peak_seen_twice_is_none_and_one_is_forgotten_with_a_side():
    assert seen((6, 84.0), (8, 100.0), (10, 80.0), each=2).peak(0.1) is None
    throughputs = seen((6, 84.0), (8, 100.0), (10, 80.0))
    throughputs.take_in(8, 100.0, 20.0)
    assert throughputs.peak(0.1) == pytest.approx(8)
    throughputs.take_in(8, 100.0, 0.5)
    assert throughputs.peak(0.1) is None


def test_one_answer_of_many_is_not_believed():
    throughputs = seen((6, 95.0), (8, 100.0), (10, 80.0), each=20)
    throughputs.take_in(6, 60.0, 0.0)
    assert throughputs.peak(0.1) is None


def test_nothing_seen_says_nothing():
    throughputs = Throughputs()
    assert throughputs.peak(0.1) is None
    seen_before = seen((6, 84.0), (8, 100.0), (10, 80.0))
    seen_before.forget_all()
    assert seen_before.peak(0.1) is None
