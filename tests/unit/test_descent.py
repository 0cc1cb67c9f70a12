"""Coming down a plateau by halves."""

import math

import pytest

from batchclient._core.limits.descent import Descent


class Server:
    """Answers as many per second as it does under that load, whatever the descent asks for."""

    def __init__(self, per_s, base=128.0):
        self.per_s, self.now, self.base = per_s, 0.0, base
        self.looked_at = []

    def look(self, descent, *, pace_s=1.0, floor=1.0, ceiling=1024.0, turns=1000):
        """Do as it says until it is through; return the base."""
        while descent.under_way and turns:
            self.now += 0.25
            answers = round(0.25 * self.per_s(self.base))
            base = descent.take_in(answers, round(self.base), 0, pace_s, (floor, ceiling), self.now)
            if base != self.base or not self.looked_at:
                self.looked_at.append(base)
            self.base = base
            turns -= 1
        return self.base


def begun(base=128.0, elasticity=0.1):
    descent = Descent()
    descent.begin(base, elasticity, 6)
    return descent


def cliff(load):
    """Conversations that share a prefix cache of nine."""
    return 1000.0 * (load / 9) ** 0.3 if load <= 9.1 else 360.0


def test_it_comes_down_a_plateau_to_where_throughput_falls():
    server = Server(lambda load: 1000.0 * min(1.0, load / 20))
    descent = begun()
    assert server.look(descent) == pytest.approx(32)
    assert server.looked_at == pytest.approx([128, 64, 32, 16, 32 * math.sqrt(2), 32])
    assert not descent.under_way


def test_a_step_that_loses_a_little_is_gone_but_not_kept():
    server = Server(lambda load: 1000.0 * min(1.0, (load / 64) ** 0.1))
    # 7 % per half: noise alone may make that of a plateau, but it is more than a smaller load is worth.
    assert server.look(begun()) == pytest.approx(64)
    assert server.looked_at == pytest.approx([128, 64, 32, 16, 64 * math.sqrt(2), 64])


def test_it_finds_the_foot_of_a_cliff():
    server = Server(cliff, base=144.0)
    # 4.5 brings 19 % less than 9.
    assert server.look(begun(144.0)) == pytest.approx(9)
    assert server.looked_at == pytest.approx([144, 72, 36, 18, 9, 4.5, 9 * math.sqrt(2), 9])


def test_a_peak_between_two_halves_is_found():
    server = Server(cliff, base=200.0)
    assert server.look(begun(200.0)) == pytest.approx(6.25 * math.sqrt(2)), (
        "12.5 is over the cliff, 3.1 brings less than 6.3"
    )


def test_where_throughput_grows_nothing_is_lost_but_a_look():
    server = Server(lambda load: 100.0 * load**0.3)
    assert server.look(begun()) == pytest.approx(128 * math.sqrt(2)), "19 % less with half of it: upwards"
    assert server.looked_at == pytest.approx([128, 64, 128 * math.sqrt(2)])
    full = Server(lambda load: 1000.0 * min(1.0, load / 128))
    assert full.look(begun()) == pytest.approx(128), "nor upwards where that brings no more"


def test_small_losses_do_not_add_up():
    server = Server(lambda load: 1000.0 * (load / 128) ** 0.15, base=128.0)
    # 10 % per half: the second one has lost 19 %.
    server.look(begun())
    assert server.looked_at[:3] == pytest.approx([128, 64, 32])
    assert 16 not in server.looked_at


def test_it_begins_where_more_load_brings_little_more():
    assert not begun(elasticity=0.3).under_way
    assert begun(elasticity=0.2).under_way
    assert begun(elasticity=-0.5).under_way
    assert not begun(16.0).under_way, "a swing tells as much"
    assert begun(17.0).under_way
    few = Descent()
    few.begin(128.0, 0.0, 5)
    assert not few.under_way, "of so few points"


def test_it_is_done_once_until_the_limit_has_grown_or_the_server_may_be_another():
    server = Server(lambda load: 1000.0 * min(1.0, load / 30), base=64.0)
    descent = begun(64.0)
    assert server.look(descent) == pytest.approx(32)
    descent.begin(128.0, 0.0, 6)
    assert not descent.under_way, "four times what it came to is the same"
    descent.begin(129.0, 0.0, 6)
    assert descent.under_way
    descent.give_up()
    descent.begin(257.0, 0.0, 6)
    assert not descent.under_way
    descent.begin(517.0, 0.0, 6)
    assert descent.under_way
    descent.give_up()
    descent.forget()
    descent.begin(257.0, 0.0, 6)
    descent.give_up()
    descent.begin(257.0, 0.0, 6)
    assert not descent.under_way, "what was given up was done"
    descent.forget()
    descent.begin(17.0, 0.0, 6)
    assert descent.under_way


def test_it_goes_no_lower_than_the_floor():
    server = Server(lambda load: 1000.0)
    assert server.look(begun(), floor=20.0) == pytest.approx(32)
    assert server.look(begun(base=128.0)) == pytest.approx(1)


def test_a_load_counts_from_when_it_is_in_flight():
    descent = begun(100.0)
    assert descent.take_in(10_000, 200, 0, 1.0, (1.0, 1024.0), 0.0) == 100, "more is in flight than was asked for"
    assert descent.take_in(10_000, 105, 0, 1.0, (1.0, 1024.0), 5.0) == 100, "now it is"
    assert descent.take_in(60, 100, 0, 1.0, (1.0, 1024.0), 6.0) == 100, "not for long enough"
    assert descent.take_in(30, 100, 0, 1.0, (1.0, 1024.0), 6.5) == 100, "not as many as are in flight"
    assert descent.take_in(30, 100, 0, 1.0, (1.0, 1024.0), 6.6) == 50, "75 a second"
    assert descent.take_in(500, 50, 0, 1.0, (1.0, 1024.0), 7.0) == 50
    assert descent.take_in(75, 50, 0, 1.0, (1.0, 1024.0), 8.3) == pytest.approx(100 * math.sqrt(2)), "58 a second: lost"


@pytest.mark.parametrize("in_flight", [50, 150])
def test_a_load_that_is_not_in_flight_is_given_up_with_patience(in_flight):
    descent = begun(100.0)
    assert descent.take_in(100, in_flight, 0, 2.0, (1.0, 1024.0), 0.0) == 100
    assert descent.take_in(100, in_flight, 0, 2.0, (1.0, 1024.0), 16.0) == 100
    assert descent.under_way
    assert descent.take_in(100, in_flight, 0, 2.0, (1.0, 1024.0), 16.1) == 100
    assert not descent.under_way


def test_a_half_that_is_not_reached_goes_back_to_the_load_that_was_kept():
    descent = begun(100.0)
    for now in (0.0, 1.5):
        base = descent.take_in(100, 100, 0, 1.0, (1.0, 1024.0), now)
    assert base == 50
    for now in (2.0, 10.1):
        base = descent.take_in(100, 100, 0, 1.0, (1.0, 1024.0), now)
    assert base == 100


def test_its_repr_says_where_it_is():
    assert repr(begun(64.0)) == "<Descent at 64.0>"
    assert repr(Descent()) == "<Descent at None>"


def test_it_looks_at_nothing_above_what_the_limit_may_be():
    server = Server(lambda load: 100.0 * load**0.3)
    assert server.look(begun(), ceiling=180.0) == pytest.approx(128)
    assert server.looked_at == pytest.approx([128, 64, 128])


def test_what_was_counted_before_an_interruption_is_void():
    descent = begun(100.0)
    assert descent.take_in(100, 100, 0, 1.0, (1.0, 1024.0), 0.0) == 100
    descent.interrupt()
    assert descent.under_way
    # Sixty seconds later: two hundred in two, not in sixty-two.
    for now in (60.0, 61.0, 62.0):
        base = descent.take_in(100, 100, 0, 1.0, (1.0, 1024.0), now)
    assert base == 50
    descent.take_in(50, 50, 0, 1.0, (1.0, 1024.0), 63.0)
    assert descent.take_in(90, 50, 0, 1.0, (1.0, 1024.0), 64.5) == pytest.approx(100 * math.sqrt(2)), "60 of 100: lost"


def test_calls_of_several_sequences_need_not_fill_a_load():
    descent = begun(20.0)
    for now in (0.0, 1.0, 2.0):
        base = descent.take_in(16, 16, 7, 1.0, (1.0, 1024.0), now)
    assert base == 10


def test_while_it_looks_the_load_to_go_back_to_is_known():
    descent = begun(100.0)
    for now in (0.0, 1.5):
        descent.take_in(200, 100, 0, 1.0, (1.0, 1024.0), now)
    assert descent.kept == 100, "while 50 is looked at"
    descent.give_up()
    assert descent.kept is None
