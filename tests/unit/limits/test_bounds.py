"""What refusals and late answers leave of a limit, at literal times."""

import math

import pytest

from tests.core import Outcome
from batchclient._core.limits.bounds import Bounds
from tests.unit.limits.samples import sample


def refuse(bounds, now, load, *, limit=100, **more):
    """A call that met ``load`` is refused under a limit; return whether that bounds it anew."""
    return bounds.on_sample(sample(now, 0.1, load, outcome=Outcome.DROPPED, **{"admitted_at": limit, **more}), limit)


def answer(bounds, now, load, *, limit=100, count=1, seconds=1.0, outcome=Outcome.SUCCESS, tokens=10):
    return bounds.on_sample(sample(now, seconds, load, sequences=count, outcome=outcome, tokens=count * tokens), limit)


def late(bounds, now, load, share, *, limit=64, count=200, tokens=10):
    """A window of answers that met ``load``, of which a share came too late; return whether that bounds anew."""
    late_ones = round(count * share)
    told = [answer(bounds, now, load, limit=8 * count, count=late_ones, outcome=Outcome.LATE)] if late_ones else []
    told.append(answer(bounds, now, load, limit=limit, count=count - late_ones, tokens=tokens))
    return any(told)


# Refusals -----------------------------------------------------------------------------------------------------------


def test_nothing_is_bounded_at_first_nor_by_answers_nor_by_a_callers_fault():
    bounds = Bounds()
    for second in range(100):
        assert not answer(bounds, float(second), 100)
        assert not answer(bounds, float(second), 100, outcome=Outcome.WASTED)
        assert not answer(bounds, float(second), 100, outcome=Outcome.IGNORED)
    assert bounds.load == math.inf


def test_a_refusal_bounds_just_below_the_load_that_it_met_but_not_below_half_of_the_limit():
    for in_flight, bound in [(100, 95.0), (60, 57.0), (30, 50.0)]:
        bounds = Bounds()
        assert refuse(bounds, 1.0, in_flight)
        assert (bounds.load, bounds.reason) == (pytest.approx(bound), "the server refused work")


def test_it_cuts_once_per_episode():
    bounds = Bounds()
    answer(bounds, 1.0, 100, seconds=4.0)
    refuse(bounds, 2.0, 100)
    assert not refuse(bounds, 5.0, 100, limit=80), "a mean latency is not over"
    assert not refuse(bounds, 7.0, 80, limit=80, admitted_at=100), "it was admitted before the cut"
    assert bounds.load == pytest.approx(95.0)
    assert refuse(bounds, 7.0, 80, limit=80)
    assert bounds.load == pytest.approx(76.0)


def test_what_is_refused_of_a_smaller_load_lowers_the_bound_to_below_that_but_not_below_half():
    bounds = Bounds()
    refuse(bounds, 1.0, 100)
    assert refuse(bounds, 1.2, 75, limit=80)
    assert bounds.load == pytest.approx(0.95 * 75)
    assert not refuse(bounds, 1.2, 75, limit=71), "what was sent beside it is refused as well"
    for load in range(71, 10, -1):
        refuse(bounds, 1.3, load, limit=math.floor(bounds.load))
    assert 0.5 * 95 <= bounds.load < 0.5 * 95 / 0.95


def test_memory_that_ran_out_bounds_just_below_what_was_in_flight_once_for_all_that_were_lost():
    bounds = Bounds()
    lost = {"outcome": Outcome.DROPPED, "admitted_at": 60, "out_of_memory": True}
    # Sent when few were in flight. What was in flight when memory ran out counts, though it is less than half the limit.
    for in_flight in (40, 39, 38):
        bounds.on_sample(sample(1.0, 0.5, in_flight=in_flight, met=10, **lost), 128)
    assert bounds.load == pytest.approx(0.95 * 38)
    for in_flight in range(37, 1, -1):
        bounds.on_sample(sample(1.0, 0.5, in_flight=in_flight, met=10, **lost), 38)
    assert bounds.load == pytest.approx(0.95 * 38), "they were admitted before"
    # What was sent since, before all were known to be lost, bounds to half at most.
    bounds.on_sample(sample(1.05, 0.01, in_flight=2, met=2, **{**lost, "admitted_at": 36}), 36)
    assert bounds.load == pytest.approx(0.5 * 0.95 * 40)
    # A tenth of a second later, or a mean latency, it is another time.
    bounds.on_sample(sample(2.0, 0.5, in_flight=10, met=5, **{**lost, "admitted_at": 19}), 19)
    assert bounds.load == pytest.approx(9.5)


def test_a_call_that_is_too_large_for_the_memory_alone_is_a_refusal_like_others():
    bounds = Bounds()
    alone = {"outcome": Outcome.DROPPED, "admitted_at": 60, "out_of_memory": True}
    bounds.on_sample(sample(1.0, 0.5, in_flight=1, met=1, **alone), 60)
    assert bounds.load == 30.0, "half of the limit at most"


def test_a_refusal_far_above_a_servers_bound_is_about_load_though_less_was_refused_as_well():
    """A server takes 22 at once, and 256 are sent."""
    bounds = Bounds()
    for load in range(20, 257):
        if load <= 22:
            answer(bounds, 1.0, load, limit=256)
        else:
            refuse(bounds, 1.0, load, limit=256)
    for second, limit in ((3.0, 120), (5.0, 90), (7.0, 70), (9.0, 50)):
        assert refuse(bounds, second, limit, limit=limit)
        assert bounds.load == pytest.approx(0.95 * limit)


def test_a_refusal_that_names_a_time_is_about_how_often_calls_come():
    bounds = Bounds()
    assert not refuse(bounds, 1.0, 100, retry_after_s=10.0)
    assert not refuse(bounds, 5.0, 100, retry_after_s=10.0), "it was sent before that time was over"
    assert bounds.load == math.inf


def test_a_refusal_that_names_a_time_is_about_load_if_it_comes_again_after_that_time():
    bounds = Bounds()
    refuse(bounds, 1.0, 100, retry_after_s=10.0)
    assert not refuse(bounds, 11.05, 100, retry_after_s=10.0), "sent at 10.95"
    assert refuse(bounds, 22.0, 100, retry_after_s=10.0)
    assert bounds.load == pytest.approx(95.0)


def test_half_a_minute_after_that_time_it_is_the_first_again():
    bounds = Bounds()
    refuse(bounds, 1.0, 100, retry_after_s=10.0)
    assert not refuse(bounds, 41.2, 100, retry_after_s=10.0), "the wait was over at 11.0, and it was sent at 41.1"
    assert refuse(bounds, 81.2, 100, retry_after_s=10.0), "sent at 81.1, and the wait was over at 51.2"


# How a bound ends ---------------------------------------------------------------------------------------------------


def test_a_bound_holds_for_four_mean_latencies_and_rises_by_a_twentieth_per_mean_latency():
    bounds = Bounds()
    answer(bounds, 0.0, 100, seconds=2.0)
    refuse(bounds, 1.0, 80)
    loads = {}
    for tenth in range(10, 190):
        limit = math.floor(min(100.0, bounds.load))
        answer(bounds, tenth / 10, 76, limit=limit, count=20, seconds=2.0)
        loads.setdefault(round(bounds.load, 2), tenth / 10)
    # The first answers that end after the hold tell that it is over.
    assert list(loads) == [76.0, 79.8, 83.79, 87.98, 92.38, 97.0]
    assert list(loads.values())[1:] == pytest.approx([9.0, 11.0, 13.0, 15.0, 17.0], abs=0.15)
    assert bounds.reason == "some time has passed: more is tried"


def test_where_answers_are_fast_it_holds_for_four_seconds_and_rises_once_a_second():
    bounds, loads = Bounds(), {}
    answer(bounds, 0.0, 100, seconds=0.1)
    refuse(bounds, 1.0, 80)
    for tenth in range(10, 75):
        answer(bounds, tenth / 10, 76, limit=math.floor(min(100.0, bounds.load)), count=20, seconds=0.1)
        loads.setdefault(round(bounds.load, 2), tenth / 10)
    assert loads == {76.0: 1.0, 79.8: 5.0, 83.79: 6.0, 87.98: 7.0}


def test_half_a_minute_after_late_answers_it_rises():
    bounds = Bounds()
    assert late(bounds, 1.0, 50, 0.2)
    held = bounds.load
    for now in (30.9, 31.0):
        assert bounds.load == held
        answer(bounds, now, 40, limit=math.floor(held), count=20)
    assert bounds.load == pytest.approx(1.05 * held)


def test_refused_again_it_holds_again():
    bounds = Bounds()
    refuse(bounds, 1.0, 100)
    answer(bounds, 5.0, 80, limit=95, count=20)
    assert refuse(bounds, 6.0, 84, limit=99)
    held = bounds.load
    assert held == pytest.approx(0.95 * 84)
    answer(bounds, 7.9, 60, limit=79, count=20)
    assert bounds.load == held


def test_all_of_it_is_forgotten():
    bounds = Bounds()
    refuse(bounds, 1.0, 100)
    bounds.forget()
    assert bounds.load == math.inf
    assert refuse(bounds, 1.1, 100), "the next refusal is the first"


# Late answers -------------------------------------------------------------------------------------------------------


def test_late_answers_bound_below_the_load_that_they_met_by_as_large_a_share():
    # The limit of 64 falls by half at most.
    for share, ratio in [(0.045, 0.95), (0.1, 0.9), (0.2, 0.8), (0.6, 32 / 50)]:
        bounds = Bounds()
        assert late(bounds, 1.0, 50, share)
        assert (bounds.load, bounds.reason) == (pytest.approx(ratio * 50), "answers came too late")


def test_what_met_more_than_the_limit_bounds_below_the_limit():
    bounds = Bounds()
    assert late(bounds, 1.0, 90, 0.1, limit=64)
    assert bounds.load == pytest.approx(0.9 * 64)


def test_more_than_one_in_fifty_must_be_late_and_more_than_chance_makes():
    for share, bounded in [(0.02, False), (0.035, False), (0.045, True)]:
        assert late(Bounds(), 1.0, 50, share) is bounded


def test_one_late_answer_says_nothing_however_few_there_are():
    bounds = Bounds()
    for second in range(100):
        answer(bounds, float(second), 8, limit=8, outcome=Outcome.LATE)
        for _ in range(3):
            answer(bounds, second + 0.5, 8, limit=8)
    assert bounds.load == math.inf


def test_where_nothing_is_in_time_the_limit_falls_faster_than_the_load():
    bounds = Bounds()
    for _ in range(32):
        answer(bounds, 1.0, 100, limit=64, outcome=Outcome.LATE)
    assert (bounds.load, bounds.reason) == (pytest.approx(64 / 2), "no answer came in time")


def test_what_was_sent_before_a_bound_says_nothing_of_it():
    bounds = Bounds()
    assert late(bounds, 1.0, 50, 0.5)
    assert not late(bounds, 1.9, 50, 0.5)
    assert late(bounds, 2.1, 35, 0.5, limit=35)


def lowered(bounds, at=0.0, first_tokens=10, **last):
    """Half of what is answered at 64 at once comes too late, and at 52, and at 40; what is said of that.

    Of a fresh bound 1,000 tokens per second come in time under the first load, and 111 under the last unless ``last`` has other answers.
    """
    answer(bounds, at, 64, limit=10**6)
    assert late(bounds, at + 1.0, 64, 0.5, tokens=first_tokens)
    assert late(bounds, at + 10.0, 52, 0.5, limit=52)
    assert bounds.load == pytest.approx(52 / 2), "more than three quarters of the load say nothing yet"
    assert late(bounds, at + 20.0, 40, 0.5, **{"limit": 40, **last})
    return bounds.load, bounds.reason


FUTILE = (64, "fewer at once brought less in time")


def test_if_less_load_brings_less_in_time_it_is_not_load_that_makes_answers_late():
    bounds = Bounds()
    assert lowered(bounds) == FUTILE
    assert not late(bounds, 79.0, 64, 0.5), "lateness bounds nothing for a minute"
    assert late(bounds, 81.0, 64, 0.5)


@pytest.mark.parametrize(("tokens", "goes_back"), [(53, True), (55, False)])
def test_less_is_less_by_more_than_twice_the_error(tokens, goes_back):
    # 100 answers in the 9 s since the last episode was over; the first load brought 1,000 tokens per second, by 100 answers too.
    load, _ = lowered(Bounds(), tokens=tokens)
    assert load == pytest.approx(64 if goes_back else 40 / 2)


def test_of_a_few_answers_it_is_not_known_what_a_load_brings():
    assert lowered(Bounds(), count=30)[0] == pytest.approx(40 / 2), "15 in time"
    assert lowered(Bounds(), count=32) == FUTILE


def test_lateness_is_silent_longer_each_time():
    bounds = Bounds()
    for began, minutes in ((0.0, 1), (100.0, 2), (300.0, 4)):
        assert lowered(bounds, at=began, first_tokens=1000) == FUTILE
        assert not late(bounds, began + 19.0 + 60 * minutes, 64, 0.5)
    assert late(bounds, 300.0 + 21.0 + 240.0, 64, 0.5)


def test_while_it_is_silent_more_load_is_bounded_but_not_to_less_than_what_it_went_back_to():
    bounds = Bounds()
    lowered(bounds)
    assert late(bounds, 30.0, 90, 0.1, limit=100)
    assert bounds.load == pytest.approx(0.9 * 90)
    assert late(bounds, 40.0, 72, 0.5, limit=80)
    assert bounds.load >= 64


def test_if_two_calls_at_once_are_never_in_time_it_is_not_load_that_makes_them_late():
    bounds, limit, seen = Bounds(), 64, []
    for second in range(0, 60, 2):
        for _ in range(8):
            answer(bounds, float(second), limit, limit=limit, outcome=Outcome.LATE)
        limit = 64 if bounds.load == math.inf else max(1, math.floor(bounds.load))
        seen.append(limit)
    assert min(seen) <= 2
    assert seen[seen.index(min(seen)) + 1 :][:10] == [64] * 10, "it is let be"


def test_lateness_may_be_left_out_and_refusals_bound_all_the_same():
    bounds = Bounds(lateness=False)
    assert not late(bounds, 1.0, 64, 0.9)
    assert bounds.load == math.inf
    assert refuse(bounds, 2.0, 100)


def test_late_answers_that_were_seen_before_a_restart_are_forgotten():
    bounds = Bounds()
    assert lowered(bounds) == FUTILE
    bounds.forget()
    assert (bounds.load, bounds.reason) == (math.inf, "")
    assert late(bounds, 22.0, 64, 0.5), "nothing is silent"
