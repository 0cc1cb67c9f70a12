"""``finish_by_s``: from what was seen of a map to its manner, by literal times."""

import math

import pytest
from tests.unit.test_log import records

from types import SimpleNamespace as Namespace

from batchclient._maps.finish_by import FinishBy, Pace
from batchclient._maps.forecast import Look

LIMIT = 64


class Playing:
    """A map whose rows take 8 to 12 s, at a server where a guest has 10 in flight, and else 40: 1 or 4 rows a second."""

    def __init__(self, by_s, rows, *, guest=10, usual=40):
        self.pace, self.queued, self.now = Pace(by_s), rows, 0
        self.in_flight = {True: guest, False: usual}
        self.ends, self.manners = [], []
        self.pace.look(Look(0.0, 0, rows))
        self.begin()

    @property
    def left(self):
        return self.queued + len(self.ends)

    def begin(self):
        while len(self.ends) < self.in_flight[self.pace.is_guest] and self.queued:
            self.queued -= 1
            self.ends.append(self.now + 8 + self.queued * 3 % 5)

    def minute(self):
        for self.now in range(self.now + 1, self.now + 61):
            for end in [end for end in self.ends if end <= self.now]:
                self.ends.remove(end)
                self.pace.add(float(self.now), 100, 50)
            self.begin()
            self.pace.look(Look(float(self.now), len(self.ends), self.queued))
        self.pace.decide(float(self.now), LIMIT, self.left)
        self.manners.append(self.pace.is_guest)
        return self.pace

    def minutes(self, count):
        for _ in range(count):
            self.minute()
        return self.manners


def test_stays_a_guest_while_the_bound_keeps_the_time():
    playing = Playing(by_s=1100, rows=1000)
    assert all(playing.minutes(10))
    pace = playing.minute()
    # The last row's answer comes at 1012 s.
    assert 980 < pace.ends.low < 1012 < pace.ends.high < 1020 and not pace.late_s


def test_goes_as_usual_where_the_bound_does_not_and_is_a_guest_again_once_it_does():
    playing = Playing(by_s=900, rows=1000)
    # After a minute 940 rows are left, or 940 s. As usual 4 rows a second come.
    assert playing.minutes(1) == [False]
    assert playing.pace.ends is None, "nothing is known of this manner"
    # At 120 s 721 rows and 780 s are left.
    assert all(playing.minutes(13)[1:]) and not playing.left
    assert playing.now < 900


def test_the_bound_and_not_the_middle_has_to_keep_the_time():
    # It ends by 943 to 1004 s, and aims at 980.
    assert Playing(by_s=1011, rows=1000).minutes(1) == [False]


def test_tells_that_it_will_be_late_as_soon_as_the_low_bound_says_so():
    playing = Playing(by_s=200, rows=1000)
    assert playing.minutes(1) == [False] and not playing.pace.late_s
    pace = playing.minute()
    assert not pace.is_guest and pace.ends.low > 200
    # The last row's answer comes at 306 s.
    assert pace.late_s == pytest.approx(106, abs=6)
    playing = Playing(by_s=300, rows=1000)
    playing.minutes(2)
    assert playing.pace.ends.low < 300 < playing.pace.ends.high and not playing.pace.late_s


def test_a_time_that_has_passed_is_no_guests():
    assert Pace(0.0).is_guest is False and Pace(-3600.0).is_guest is False
    playing = Playing(by_s=-3600, rows=1000)
    playing.minute()
    # 764 rows are left, for 191 s and the longest row's time.
    assert playing.pace.late_s == pytest.approx(3600 + 251, abs=8)


def test_no_two_answers_give_no_bound_and_half_of_the_time_at_most():
    playing = Playing(by_s=600, rows=1, guest=0)
    assert playing.minutes(5) == [True] * 5 and playing.pace.ends is None
    assert playing.minutes(3)[5:] == [False] * 3, "nobody knows the pace as a guest"


def test_the_pace_is_that_of_the_last_minute():
    playing = Playing(by_s=1500, rows=1000)
    playing.minutes(2)
    # Others came.
    playing.in_flight[True] = 2
    assert playing.minutes(2)[2:] == [True, False]


def test_a_guest_who_is_too_slow_is_as_usual_in_as_many_minutes_as_keep_the_time():
    playing = Playing(by_s=1800, rows=1000)
    playing.minutes(2)
    # Others came: a guest has 0.3 rows a second, and is to have 0.6.
    playing.in_flight[True] = 3
    while playing.left:
        playing.minute()
    usual = playing.manners.count(False)
    assert playing.now <= 1800 and 2 <= usual <= 5, playing.manners
    assert not all(playing.manners[:10]) and not all(playing.manners[15:]), "not all at the beginning, nor at the end"


def test_with_little_to_spare_it_stays_as_usual():
    # As usual 2.2 rows a second come. After 6 minutes 322 are left, for 147 of the 200 s, and that is less than the
    # even course has; after 7 it is 189, for 86 of 140 s.
    playing = Playing(by_s=560, rows=1000, guest=5, usual=22)
    assert playing.minutes(7) == [False] * 6 + [True] and playing.pace.is_kept


def test_a_pilots_rows_count_from_the_start():
    pace = Pace(1500.0)
    for at in range(-20, 1):
        pace.look(Look(float(at), 10, 100))
    for number in range(20):
        pace.add(-20.0, 100, 50 + number % 2)
    pace.decide(0.0, LIMIT, 980)
    assert pace.is_guest and pace.ends.low < 980 < pace.ends.high < 1300 and pace.is_kept


class Runner:
    """What looks at a client and turns it, at literal times."""

    ended, no_guest = False, ""

    def __init__(self):
        self.at, self.due, self.wishes = 0.0, None, []
        self.backend, self.core, self.total_limit = self, self, 8

    def now(self):
        return self.at

    def call_at(self, at, tick):
        self.due = at, tick
        return self

    def cancel(self):
        self.due = None

    def statistics(self):
        return Namespace(in_flight=8, queued=100)

    def wish(self, of, is_guest):
        self.wishes.append(is_guest)

    def go_to(self, at):
        while self.due[0] <= at:
            self.at, tick = self.due
            tick()
        self.at = at


@pytest.mark.parametrize(
    ("left_s", "took_s", "wishes", "said"),
    [
        (35.0, 44.0, [False, None], ["the map has ended 9 s later than asked for"]),
        (299.0, 299.9, [False, None], []),
        (300.0, 50.0, [True, None], []),
        (-10.0, 50.0, [False, None], []),
    ],
)
def test_a_map_with_less_than_five_minutes_is_no_guest_and_one_that_is_late_says_so(left_s, took_s, wishes, said):
    runner, finish_by = Runner(), FinishBy(lambda: left_s, 100)
    owner = Namespace(counts=Namespace(answered=0, failed=0, reused=0), all_ended=True)
    finish_by.owner = lambda: owner
    pilot = finish_by.of_pilot(10)
    pilot.owner = finish_by.owner
    pilot.start(Runner())
    assert pilot.pace.is_guest is wishes[0]
    pilot.stop()
    with records() as kept:
        finish_by.start(runner)
        runner.go_to(took_s)
        finish_by.stop()
    assert runner.wishes == wishes
    assert [each.getMessage() for each in kept] == said


def test_of_the_rows_of_a_journal_no_pace_is_learnt():
    # 300 rows of six seconds take half an hour: a quarter of an hour is too short, whatever the journal has.
    runner, finish_by = Runner(), FinishBy(lambda: 900.0, 5300)
    counts = Namespace(answered=0, failed=0, reused=5000)
    owner = Namespace(counts=counts)
    finish_by.owner = lambda: owner
    finish_by.start(runner)
    for index in range(5000):
        finish_by.end(index, Namespace(index=index, answer=None), reused=True)
    with records() as kept:
        for index in range(5000, 5020):
            runner.go_to(runner.at + 6.0)
            finish_by.end(index, Namespace(index=index, answer=Namespace(output_tokens=400)), reused=False)
            counts.answered += 1
    assert runner.wishes == [True, False], "as usual as soon as the first minute is over"
    assert [(each.event, each.guest, each.getMessage()) for each in kept] == [
        ("manner_changed", False, "the map goes on as usual")
    ]
    assert not finish_by.pace.is_kept
