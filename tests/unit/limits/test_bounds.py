"""What refusals and late answers leave of a limit, at literal times."""

import pytest

from tests.core import Outcome
from tests.unit.limits.samples import found, given, sample


def refuse(limit, now, load, **more):
    """A call that met this load is refused; return whether that changes the limit."""
    fields = {"outcome": Outcome.DROPPED, "admitted_at": limit.limit, **more}
    before = limit.limit
    limit.on_sample(sample(now, 0.1, load, **fields))
    return limit.limit != before


def answer(limit, now, load, count=1, *, seconds=1.0, outcome=Outcome.SUCCESS, tokens=10):
    limit.on_sample(sample(now, seconds, load, sequences=count, outcome=outcome, tokens=count * tokens))
    return limit.limit


def late(limit, now, load, late_ones, *, of=250, tokens=10):
    """Of a window of answers that met this load some came too late; return the limit."""
    if late_ones:
        answer(limit, now, load, late_ones, outcome=Outcome.LATE)
    return answer(limit, now, load, of - late_ones, tokens=tokens)


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_flight", "more", "left"),
    # The last is too large for the memory with nothing beside it.
    [(100, {}, 95), (60, {}, 57), (30, {}, 50), (1, {"outcome": Outcome.OUT_OF_MEMORY}, 50)],
)
def test_a_refusal_bounds_just_below_the_load_that_it_met_but_not_below_half_of_the_limit(in_flight, more, left):
    limit = given(100)
    assert refuse(limit, 1.0, in_flight, **more)
    assert (limit.limit, limit.reason) == (left, "the server refused work")


def test_it_cuts_once_per_episode():
    limit = given(100)
    answer(limit, 1.0, 100, seconds=4.0)
    refuse(limit, 2.0, 100)
    assert not refuse(limit, 5.0, 97), "a mean latency is not over"
    assert not refuse(limit, 7.0, 80, admitted_at=100), "it was admitted before the cut"
    assert limit.limit == 95
    assert refuse(limit, 7.0, 80)
    assert limit.limit == 76


def test_what_is_refused_of_a_smaller_load_lowers_the_bound_to_below_that_but_not_below_half():
    limit = given(100)
    refuse(limit, 1.0, 100)
    assert refuse(limit, 1.2, 75)
    assert limit.limit == 71
    assert not refuse(limit, 1.2, 75), "what was sent beside it is refused as well"
    for load in range(71, 10, -1):
        refuse(limit, 1.3, load)
    assert 47 <= limit.limit < 50


def test_memory_that_ran_out_bounds_below_what_was_in_flight_once_for_all_that_were_lost():
    limit, lost = given(128), {"outcome": Outcome.OUT_OF_MEMORY}
    # Sent when few were in flight. What was in flight when memory ran out counts, though it is less than half the limit.
    for in_flight in range(40, 19, -1):
        refuse(limit, 1.0, 10, in_flight=in_flight, admitted_at=60, **lost)
        assert limit.limit == 38, "the others were admitted before, and half may go on"
    for in_flight in range(19, 1, -1):
        refuse(limit, 1.0, 10, in_flight=in_flight, admitted_at=60, **lost)
        assert limit.limit == 28, "most are lost, which costs the more"
    # What was sent since, before all were known to be lost, bounds to half at most.
    refuse(limit, 1.02, 2, in_flight=30, **lost)
    assert limit.limit == 26
    refuse(limit, 1.05, 2, in_flight=2, **lost)
    assert limit.limit == 19
    # A tenth of a second later, or a mean latency, it is another time.
    refuse(limit, 2.0, 5, in_flight=10, **lost)
    assert limit.limit == 9


def test_a_refusal_far_above_a_servers_bound_is_about_load_though_less_was_refused_as_well():
    """A server takes 22 at once, and 256 are sent."""
    limit = given(256)
    for load in range(20, 257):
        if load <= 22:
            answer(limit, 1.0, load)
        else:
            refuse(limit, 1.0, load, admitted_at=256)
    for second, load, left in ((3.0, 120, 114), (5.0, 90, 85), (7.0, 70, 66), (9.0, 50, 47)):
        assert refuse(limit, second, load)
        assert limit.limit == left


def test_a_refusal_that_names_a_time_is_about_how_often_calls_come():
    limit = given(100)
    assert not refuse(limit, 1.0, 100, retry_after_s=10.0)
    assert not refuse(limit, 5.0, 100, retry_after_s=10.0), "it was sent before that time was over"
    assert limit.limit == 100


def test_half_a_minute_after_that_time_it_is_the_first_again():
    limit = given(100)
    refuse(limit, 1.0, 100, retry_after_s=10.0)
    assert not refuse(limit, 41.2, 100, retry_after_s=10.0), "the wait was over at 11.0, and it was sent at 41.1"
    assert refuse(limit, 81.2, 100, retry_after_s=10.0), "sent at 81.1, and the wait was over at 51.2"


def test_where_twice_as_many_were_taken_within_a_minute_a_refusal_is_not_about_load():
    """A gateway counts calls a second. When its server is fast few are in flight, and some are refused all the same."""
    limit = given(100)
    answer(limit, 1.0, 90)
    assert not refuse(limit, 30.0, 44)
    assert refuse(limit, 30.0, 45)
    limit = given(100)
    answer(limit, 1.0, 90)
    assert not refuse(limit, 60.0, 44)
    assert refuse(limit, 60.2, 44), "they were taken at 0.0, and this one was sent at 60.1"
    limit = given(100)
    answer(limit, 1.0, 90)
    answer(limit, 62.0, 30)
    assert refuse(limit, 62.2, 44), "a minute has passed since: 30 are the most"


# How a bound ends ---------------------------------------------------------------------------------------------------


def test_a_bound_holds_for_four_mean_latencies_and_rises_by_a_twentieth_per_mean_latency():
    limit, seen = given(100), {}
    answer(limit, 0.0, 100, seconds=2.0)
    refuse(limit, 1.0, 80)
    for tenth in range(10, 190):
        seen.setdefault(answer(limit, tenth / 10, 76, 20, seconds=2.0), (tenth / 10, limit.reason))
    # The first answers that end after the hold tell that it is over.
    assert list(seen) == [76, 79, 83, 87, 92, 97]
    assert [at for at, _ in seen.values()][1:] == pytest.approx([9.0, 11.0, 13.0, 15.0, 17.0], abs=0.15)
    assert seen[79][1] == "some time has passed: more is tried"
    assert (answer(limit, 19.0, 76, seconds=2.0), limit.reason) == (100, "fixed")


def test_where_answers_are_fast_it_holds_for_four_seconds_and_rises_once_a_second():
    limit, seen = given(100), {}
    answer(limit, 0.0, 100, seconds=0.1)
    refuse(limit, 1.0, 80)
    for tenth in range(10, 75):
        seen.setdefault(answer(limit, tenth / 10, 76, 20, seconds=0.1), tenth / 10)
    assert seen == {76: 1.0, 79: 5.0, 83: 6.0, 87: 7.0}


def test_refused_again_it_holds_again():
    limit = given(100)
    refuse(limit, 1.0, 100)
    assert answer(limit, 5.0, 80, 20) == 99
    assert refuse(limit, 6.0, 84)
    assert limit.limit == 79
    assert answer(limit, 7.9, 60, 20) == 79


@pytest.mark.parametrize("make", [given, found])
def test_a_server_that_was_started_anew_is_not_bound_by_what_the_old_one_refused(make):
    limit = make(100)
    refuse(limit, 1.0, 100)
    limit.on_restart(1.05)
    assert limit.limit == 100
    assert refuse(limit, 1.1, 100), "the next refusal is the first"


# Late answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "late_ones", "left"), [(400, 10, 380), (400, 25, 360), (400, 50, 320), (400, 150, 250), (700, 25, 450)]
)
def test_late_answers_bound_below_the_load_and_the_limit_by_as_large_a_share_and_by_half_at_most(load, late_ones, left):
    limit = found(500, 500)
    late(limit, 1.0, load, late_ones)
    assert (limit.limit, limit.reason) == (left, "answers came too late")


@pytest.mark.parametrize(("late_ones", "bounded"), [(5, False), (9, False), (10, True)])
def test_more_than_one_in_fifty_must_be_late_and_more_than_chance_makes(late_ones, bounded):
    assert (late(found(500, 500), 1.0, 400, late_ones) < 500) is bounded


def test_one_late_answer_says_nothing_however_few_there_are():
    limit = found(8, 8)
    for second in range(100):
        assert late(limit, float(second), 8, 1, of=4) == 8


def test_where_nothing_is_in_time_the_limit_falls_faster_than_the_load():
    limit = found(64, 64)
    for _ in range(32):
        answer(limit, 1.0, 100, outcome=Outcome.LATE)
    assert (limit.limit, limit.reason) == (32, "no answer came in time")


def test_what_was_sent_before_a_bound_says_nothing_of_it():
    limit = found(500, 500)
    assert late(limit, 1.0, 400, 100) == 250
    assert late(limit, 1.9, 400, 100) == 250
    assert late(limit, 2.1, 250, 100) == 150


def lowered(limit, at=0.0, first_tokens=10, **last):
    """One in five of what is answered at 400 at once comes too late, and at 320, and at 256; what is said of that.

    Of a fresh bound 2,000 tokens per second come in time under the first load, and 222 under the last unless ``last`` has other answers.
    """
    answer(limit, at, 400)
    assert late(limit, at + 1.0, 400, 50, tokens=first_tokens) == 320
    assert late(limit, at + 10.0, 320, 50) == 256, "more than three quarters of the load say nothing yet"
    late(limit, at + 20.0, 256, **{"late_ones": 50, **last})
    return limit.limit, limit.reason


FUTILE = (400, "fewer at once brought less in time")


def test_if_less_load_brings_less_in_time_it_is_not_load_that_makes_answers_late():
    limit = found(500, 500)
    assert lowered(limit) == FUTILE
    assert late(limit, 79.0, 400, 125) >= 400, "lateness bounds nothing for a minute"
    assert late(limit, 81.0, 400, 125) < 400


@pytest.mark.parametrize(("tokens", "left"), [(64, 400), (65, 204)])
def test_less_is_less_by_more_than_twice_the_error(tokens, left):
    # 200 answers in the 9 s since the last episode was over; the first load brought 2,000 tokens per second, by 200 answers too.
    assert lowered(found(500, 500), tokens=tokens)[0] == left


@pytest.mark.parametrize(("in_time", "left"), [(15, 128), (16, 400)])
def test_of_a_few_answers_it_is_not_known_what_a_load_brings(in_time, left):
    assert lowered(found(500, 500), late_ones=120, of=120 + in_time)[0] == left


def test_lateness_is_silent_longer_each_time():
    limit = found(500, 500)
    for began, minutes in ((0.0, 1), (100.0, 2), (300.0, 4)):
        assert lowered(limit, at=began, first_tokens=1000) == FUTILE
        assert late(limit, began + 19.0 + 60 * minutes, 400, 125) >= 400
    assert late(limit, 300.0 + 21.0 + 240.0, 400, 125) < 400


def test_while_it_is_silent_more_load_is_bounded_but_not_to_less_than_what_it_went_back_to():
    limit = found(500, 500)
    lowered(limit)
    for second in range(50, 60):
        answer(limit, float(second), 400)
    assert limit.limit == 500
    assert late(limit, 60.0, 480, 25) == 433
    assert late(limit, 70.0, 433, 125) == 400


def test_if_two_calls_at_once_are_never_in_time_it_is_not_load_that_makes_them_late():
    limit, seen = found(64, 64), []
    for second in range(0, 60, 2):
        seen.append([answer(limit, float(second), limit.limit, outcome=Outcome.LATE) for _ in range(8)][-1])
    assert min(seen) <= 2
    assert seen[seen.index(min(seen)) + 1 :][:10] == [64] * 10, "it is let be"


def test_of_a_server_that_was_started_anew_late_answers_leave_a_guess_and_nothing_is_silent():
    limit = found(500, 500)
    assert lowered(limit) == FUTILE
    limit.on_restart(21.0)
    assert limit.limit == 400
    assert late(limit, 22.0, 400, 125) == 200
