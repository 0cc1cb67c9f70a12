"""What throughput each load has brought lately."""

import pytest

from batchclient._core.limits.throughputs import Throughputs


def seen(*loads_and_throughputs, each=3):
    throughputs = Throughputs()
    for load, throughput in loads_and_throughputs:
        for _ in range(each):
            throughputs.take_in(load, throughput, 0.0)
    return throughputs


def test_the_smaller_load_that_was_worth_most():
    assert seen((8, 50.0), (16, 100.0), (32, 100.0), (64, 100.0)).as_much(0.1) == pytest.approx(16)


@pytest.mark.parametrize(("elasticity", "least"), [(0.1, None), (0.3, 16)])
def test_as_much_is_a_matter_of_the_elasticity_that_is_asked(elasticity, least):
    # From 16 to 64 throughput grows with the power 0.2 of the load.
    assert seen((16, 100.0), (64, 132.0)).as_much(elasticity) == (least and pytest.approx(least))


def test_more_than_as_much_is_as_much_too():
    assert seen((8, 176.0), (64, 65.0)).as_much(0.05) == pytest.approx(8)


def test_from_beyond_a_cliff_it_is_the_load_that_brought_most():
    assert seen((4, 100.0), (8, 140.0), (16, 65.0), (64, 65.0)).as_much(0.05) == pytest.approx(8)


def test_larger_loads_than_the_newest_say_nothing():
    assert seen((64, 100.0), (16, 100.0)).as_much(0.1) is None


def test_what_was_seen_twice_does_not_count():
    assert seen((16, 100.0), (64, 100.0), each=2).as_much(0.1) is None
    throughputs = seen((64, 100.0))
    throughputs.take_in(16, 100.0, 0.0)
    throughputs.take_in(64, 100.0, 0.0)
    assert throughputs.as_much(0.1) is None
    throughputs = seen((16, 100.0))
    throughputs.take_in(64, 100.0, 0.0)
    assert throughputs.as_much(0.1) is None


def test_one_answer_of_many_is_not_believed():
    throughputs = seen((16, 80.0), (64, 100.0), each=20)
    throughputs.take_in(64, 60.0, 0.0)
    assert throughputs.as_much(0.05) is None


def test_it_is_forgotten_after_twenty_paces():
    throughputs = seen((16, 100.0))
    for paces in (19.0, 0.5, 0.5):
        throughputs.take_in(64, 100.0, paces)
    assert throughputs.as_much(0.1) == pytest.approx(16)
    throughputs.take_in(64, 100.0, 0.5)
    assert throughputs.as_much(0.1) is None


def test_a_peak_lies_between_loads_that_brought_clearly_less():
    assert seen((6, 87.0), (8, 100.0), (10, 80.0)).peak(0.1) == pytest.approx(8)
    assert seen((10, 80.0), (6, 87.0), (8, 100.0)).peak(0.1) == pytest.approx(8), "whatever was seen last"


@pytest.mark.parametrize(
    "loads",
    [
        ((6, 87.0), (8, 100.0)),
        ((8, 100.0), (10, 80.0)),
        ((6, 95.0), (8, 100.0), (10, 80.0)),
        ((6, 87.0), (8, 100.0), (10, 95.0)),
    ],
)
def test_a_plateau_or_one_side_alone_is_no_peak(loads):
    assert seen(*loads).peak(0.1) is None


def test_a_peak_must_be_worth_its_load():
    throughputs = seen((6, 87.0), (8, 100.0), (10, 80.0))
    assert throughputs.peak(0.4) == pytest.approx(8)
    assert throughputs.peak(0.5) is None


def test_a_peak_seen_twice_is_none_and_one_is_forgotten_with_a_side():
    assert seen((6, 87.0), (8, 100.0), (10, 80.0), each=2).peak(0.1) is None
    throughputs = seen((6, 87.0), (8, 100.0), (10, 80.0))
    throughputs.take_in(8, 100.0, 20.0)
    assert throughputs.peak(0.1) == pytest.approx(8)
    throughputs.take_in(8, 100.0, 0.5)
    assert throughputs.peak(0.1) is None


def test_nothing_seen_says_nothing():
    throughputs = Throughputs()
    assert throughputs.as_much(0.1) is None
    assert throughputs.peak(0.1) is None
    seen_before = seen((16, 100.0), (64, 100.0))
    seen_before.forget_all()
    assert seen_before.as_much(0.1) is None
