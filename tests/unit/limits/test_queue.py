"""Our part of the queue that stands in a server, by its reports at literal times."""

import pytest

from tests.core import Outcome, ServerLoad
from batchclient._core.limits.queue import StandingQueue
from tests.unit.limits.samples import sample


def report(queue, now, waiting, *, in_flight=None, running=64.0, **fields):
    """What of it is ours after one more report; all that is there is ours unless ``in_flight`` is given."""
    ours = round((running or 0) + (waiting or 0)) if in_flight is None else in_flight
    queue.on_load(ServerLoad(running=running, waiting=waiting, **fields), ours, now)
    return queue.ours(now)


def reports(queue, waitings, *, start=0.0, step=0.5, **fields):
    """The same after one report per half second."""
    return [report(queue, start + number * step, waiting, **fields) for number, waiting in enumerate(waitings)][-1]


def told(*answers, now=1.0):
    """A queue that has had a report, and then answers of so many tokens."""
    queue = StandingQueue()
    queue.on_load(ServerLoad(running=1), 0, 0.0)
    for tokens in answers:
        queue.on_sample(sample(now, tokens=tokens))
    return queue


def test_without_a_report_nothing_is_known():
    assert StandingQueue().ours(0.0) == 0


def test_it_stands_if_it_was_there_for_three_seconds():
    queue = StandingQueue()
    assert reports(queue, [20] * 6) == 0
    assert report(queue, 3.0, 20) == 20


def test_the_smallest_of_the_window_counts_not_the_last():
    assert reports(StandingQueue(), [50, 50, 9, 50, 50, 50, 50]) == 9


def test_bursts_and_small_queues_do_not_stand():
    for waitings in [[50, 50, 50, 5, 50, 50, 50], [0] * 7, [50, 0] * 10]:
        assert reports(StandingQueue(), waitings) == 0


@pytest.mark.parametrize(("waiting", "ours"), [(2, 0), (3, 3)])
def test_two_are_none_however_few_are_in_flight(waiting, ours):
    assert reports(StandingQueue(), [waiting] * 7, in_flight=8, running=5) == ours


def test_it_stands_only_where_what_runs_hardly_changes_or_the_cache_is_full():
    def of(running, **fields):
        queue = StandingQueue()
        return [report(queue, 0.5 * number, 30, running=running[number % 2], **fields) for number in range(8)][-1]

    assert of([64, 50]) == 30
    assert of([64, 40]) == 0, "short answers: every list waits a moment for the next step"
    assert of([64, 40], kv_usage_ratio=0.95) == 30
    assert of([64, 40], kv_usage_ratio=0.8) == 0


def test_what_the_next_step_takes_does_not_stand():
    for tokens, waiting, ours in [(1, 64, 0), (1, 90, 26), (4, 16, 0), (4, 40, 24), (200, 16, 16 - 64 / 200)]:
        # 64 run: at one token each all of them end with this step and 64 of the queue take their place, at four each a quarter.
        assert reports(told(*[tokens] * 64), [waiting] * 8, in_flight=64 + waiting) == pytest.approx(ours)


def test_of_what_runs_only_our_part_ends_as_our_answers_do():
    # Others run 200 long ones; of all 300 a third is ours, at one token each.
    assert reports(told(*[1] * 64), [100] * 8, running=200, in_flight=100) == pytest.approx((100 - 200 / 3) / 3)


def test_before_an_answer_of_ours_has_ended_lately_nothing_is_known_of_what_runs():
    assert reports(told(*[1] * 64), [60] * 8, start=30.0, in_flight=124) == 60


def test_of_a_queue_that_others_share_only_our_part_is_ours():
    assert reports(StandingQueue(), [100] * 7, in_flight=100, running=300) == 25


def test_a_page_without_what_runs_tells_of_our_queue():
    assert reports(StandingQueue(), [20] * 7, running=None) == 20


def test_the_window_is_as_long_as_the_work():
    queue = StandingQueue()
    queue.on_load(ServerLoad(running=1), 0, 0.0)
    queue.on_sample(sample(40.0, 40.0, tokens=0))
    assert reports(queue, [60] * 24, start=40.0) == 0
    assert report(queue, 52.0, 60) == 60


def test_a_window_has_four_reports_however_far_apart_they_come():
    queue = StandingQueue()
    assert reports(queue, [60] * 3, step=2.0) == 0
    assert report(queue, 6.0, 60) == 60
    assert reports(StandingQueue(), [0, 60, 60, 60], step=4.0) == 0, "the oldest of the four ran empty"


def test_after_a_change_of_what_is_in_flight_the_window_begins_anew():
    queue = StandingQueue()
    assert reports(queue, [60] * 7) == 60
    queue.restart()
    assert reports(queue, [40] * 6, start=3.5) == 0
    assert report(queue, 6.5, 40) == 40


def test_callers_who_left_tell_nothing_of_how_long_answers_take():
    queue = StandingQueue()
    queue.on_load(ServerLoad(running=1), 0, 0.0)
    queue.on_sample(sample(40.0, 40.0, outcome=Outcome.WASTED))
    assert reports(queue, [60] * 7, start=40.0) == 60


def test_a_server_that_sleeps_with_work_in_its_queue_says_nothing():
    queue = StandingQueue()
    assert reports(queue, [100] * 20, running=0) == 0
    assert reports(queue, [100] * 6, start=10.0) == 0, "the window begins when it works again"
    assert report(queue, 13.0, 100) > 0


def test_a_page_that_shows_no_queue_any_more_says_nothing():
    queue = StandingQueue()
    reports(queue, [60] * 7)
    assert report(queue, 3.5, None) == 0


def test_reports_grow_stale():
    queue = StandingQueue()
    reports(queue, [60] * 7)
    assert queue.ours(8.0) == 60
    assert queue.ours(8.1) == 0


def test_a_window_does_not_span_a_gap():
    queue = StandingQueue()
    reports(queue, [60] * 6)
    assert report(queue, 10.0, 60) == 0, "nobody looked between 2.5 and 10"


def test_a_counter_that_goes_down_means_a_restart():
    for counter in ["generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens"]:
        queue = StandingQueue()
        assert reports(queue, [60] * 7, **{counter: 9.0}) == 60
        assert report(queue, 3.5, 60, **{counter: 8.0}) == 0


def test_a_counter_that_disappears_means_none():
    queue = StandingQueue()
    reports(queue, [60] * 7, generation_tokens=9.0)
    assert report(queue, 3.5, 60) == 60


def test_being_told_of_a_restart():
    queue = StandingQueue()
    reports(queue, [60] * 7)
    queue.forget()
    assert queue.ours(3.0) == 0
