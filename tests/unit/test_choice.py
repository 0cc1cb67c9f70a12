"""Which of several endpoints the next call goes to."""

import pytest

from batchclient._core.servers.choice import choose, expected_waits
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import Sign
from tests.core import FixedLimit
from batchclient._core.servers.speed import Speed, work


def endpoint(number, limit=10, in_flight=0, speed=None, measured_at=0.0):
    one = Endpoint(number, FixedLimit(limit), 64)
    one.take(in_flight, 0.0)
    if speed is not None:
        one.speed.measure(speed, 1, 0.0, 1, measured_at)
    return one


def chosen(*endpoints, family=0, failed_on=-1, now=0.0):
    return choose(endpoints, family, failed_on, now).id


def test_a_pace_is_that_of_an_idle_server():
    speed = Speed()
    assert not speed.is_known
    speed.measure(3.0, work(14), 0.5, 1, 7.0)
    assert speed.seconds(7.0, idle=False) == pytest.approx(3.0 / 30 / 1.5)
    assert speed.is_known


def test_a_pace_follows_what_is_seen_by_at_most_a_half_at_once():
    speed = Speed()
    speed.measure(1.0, 1, 0.0, 1, 0.0)
    speed.measure(3.0, 1, 0.0, 1, 0.0)
    assert speed.seconds(0.0, idle=False) == pytest.approx(1.2)
    speed.measure(3.2, 1, 0.0, 64, 0.0)
    assert speed.seconds(0.0, idle=False) == pytest.approx(2.2)


def test_an_old_pace_of_an_idle_endpoint_is_found_out_again():
    speed = Speed()
    speed.measure(1.0, 1, 0.0, 1, 10.0)
    assert speed.seconds(20.0, idle=True) == 1.0
    assert speed.seconds(20.1, idle=True) is None
    assert speed.seconds(20.1, idle=False) == 1.0
    speed.forget()
    assert speed.seconds(10.0, idle=False) is None


def test_an_answer_weighs_the_more_the_older_the_measure_is():
    speed = Speed()
    speed.measure(3.0, 1, 0.0, 1, 0.0)
    speed.measure(1.0, 1, 0.0, 1, 5.0)
    assert speed.seconds(5.0, idle=False) == pytest.approx(2.0)
    # One call after a pause is enough to find out that a server has become faster.
    speed.measure(0.5, 1, 0.0, 1, 15.0)
    assert speed.seconds(15.0, idle=False) == pytest.approx(0.5)


def test_one_a_little_slower_is_chosen_when_the_other_is_so_much_fuller():
    assert chosen(endpoint(0, speed=1.2), endpoint(1, in_flight=2, speed=1.0)) == 1
    assert chosen(endpoint(0, speed=1.2), endpoint(1, in_flight=4, speed=1.0)) == 0


def test_one_that_was_not_measured_counts_as_the_fastest_that_was():
    assert expected_waits([endpoint(0, speed=2.0), endpoint(1), endpoint(2, speed=4.0)], 0.0) == pytest.approx(
        [2.2, 2.2, 4.4]
    )


def test_an_ejected_endpoint_that_may_be_probed_gets_the_call_however_slow_it_was():
    ejected = endpoint(0, speed=100.0)
    ejected.health.fail(Sign.REFUSED, 1, 0.0, others=True)
    assert chosen(ejected, endpoint(1, speed=1.0), now=0.5) == 0
    assert all(chosen(ejected, endpoint(1, speed=1.0), family=family, now=0.5) == 0 for family in range(1, 20))
    # It is no probe if the call has failed there.
    assert chosen(ejected, endpoint(1, speed=1.0), failed_on=0, now=0.5) == 1


def test_a_family_stays_on_one_endpoint_while_that_is_not_much_more_loaded():
    places = {family: chosen(endpoint(0), endpoint(1), endpoint(2), family=family) for family in range(1, 301)}
    share = [list(places.values()).count(number) for number in range(3)]
    assert min(share) > 70, share
    for family, home in places.items():
        # (1 + (in_flight + 1) / 10) is 1.1 for the idle ones and 1.3 for the home: within a quarter.
        loaded = [endpoint(number, in_flight=2 if number == home else 0) for number in range(3)]
        assert chosen(*loaded, family=family) == home
        loaded = [endpoint(number, in_flight=3 if number == home else 0) for number in range(3)]
        assert chosen(*loaded, family=family) != home


def test_families_move_only_where_they_must_when_an_endpoint_goes_or_comes():
    three = [endpoint(number) for number in (0, 1, 2)]
    for family in range(1, 301):
        home = chosen(*three, family=family)
        assert home == 1 or chosen(three[0], three[2], family=family) == home
        assert chosen(*three, endpoint(3), family=family) in (home, 3)


def test_a_familys_endpoint_does_not_depend_on_the_order_they_are_listed_in():
    three = [endpoint(number) for number in (0, 1, 2)]
    assert all(chosen(*three, family=family) == chosen(*three[::-1], family=family) for family in range(1, 50))
