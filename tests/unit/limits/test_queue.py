"""Our part of the queue that stands in a server, by its page: what is said of it when less is tried."""

import itertools

import pytest

from tests.core import ServerLoad
from tests.unit.limits.samples import Loop, found


def waited(page, *, ours=100, tokens=0, seconds=1.0, every_s=0.5, until=30.0):
    """How many of our calls in flight are said to have waited in the server all the time, and when; of none 0."""
    loop = Loop(found(ours, ours), lambda load: seconds, tokens=tokens, page=page)
    loop.page_every_s = every_s
    while not loop.changes and loop.now < until:
        loop.run(loop.now + 0.25)
    if not loop.changes:
        return 0, None
    at, _, why = loop.changes[0]
    return int(why.removesuffix(" calls waited in the server all the time")), round(at)


def shows(waiting, running=60, **fields):
    """A page that shows these, of lists one after the other and again."""
    waits, runs = (itertools.cycle(each if isinstance(each, list) else [each]) for each in (waiting, running))
    return lambda load, now: ServerLoad(next(runs), next(waits), **fields)


@pytest.mark.parametrize(
    ("page", "ours", "waits"),
    [
        (shows(40), 100, 40),
        # The smallest of a window counts, not the last.
        (shows([50, 50, 30, 50, 50]), 100, 27),
        (shows([50, 50, 0, 50, 50]), 100, 0),
        # Two are none however few are in flight.
        (shows(2, 8), 10, 0),
        (shows(3, 7), 10, 3),
        # A queue stands where what runs hardly changes, or the cache is full; elsewhere lists wait for the next step.
        (shows(40, [60, 50]), 100, 40),
        (shows(40, [60, 40]), 100, 0),
        (shows(40, [60, 40], kv_usage_ratio=0.95), 100, 40),
        (shows(40, [60, 40], kv_usage_ratio=0.8), 100, 0),
        # A page that does not show what runs tells of our queue.
        (shows(40, None), 100, 40),
        # A server that sleeps with work in its queue says nothing; nor does a page without a queue.
        (shows(100, 0), 100, 0),
        (shows(None), 100, 0),
    ],
)
def test_what_waits_all_the_time_is_ours_as_far_as_the_page_shows_it(page, ours, waits):
    assert waited(page, ours=ours)[0] == waits


@pytest.mark.parametrize(
    ("tokens", "waiting", "waits"), [(1, 64, 0), (1, 136, 72), (4, 16, 0), (4, 56, 40), (200, 56, 56)]
)
def test_what_the_next_step_takes_does_not_stand(tokens, waiting, waits):
    # 64 run: at one token each all of them end with this step and 64 of the queue take their place, at four each a quarter.
    assert waited(shows(waiting, 64), ours=64 + waiting, tokens=tokens)[0] == waits


@pytest.mark.parametrize(("tokens", "waits"), [(1000, 40), (1, 28)])
def test_of_a_queue_that_others_share_only_our_part_is_ours(tokens, waits):
    # A fifth of the 500 is ours. At one token each, our 60 of those that run end with this step.
    assert waited(shows(200, 300), ours=100, tokens=tokens)[0] == waits


@pytest.mark.parametrize(("seconds", "every_s", "is_seen"), [(1.0, 9, True), (40.0, 9, False), (40.0, 33, True)])
def test_the_window_is_as_long_as_the_work(seconds, every_s, is_seen):
    # Now and then nothing waits for a second; the window is 3 s, or 12 s where answers take 40 s.
    page = lambda load, now: ServerLoad(60, 0 if now % every_s < 0.9 else 40)
    assert (waited(page, seconds=seconds, until=300.0)[0] > 0) is is_seen


@pytest.mark.parametrize(("waiting", "is_seen"), [(40, True), ([40, 40, 40, 0], False)])
def test_a_window_has_four_reports_however_far_apart_they_come(waiting, is_seen):
    assert (waited(shows(waiting), every_s=4.0, until=60.0)[0] > 0) is is_seen


@pytest.mark.parametrize(
    ("gap", "report", "seen_at"),
    [
        ((4.9, 60.0), None, None),
        ((5.6, 60.0), None, 10),
        ((5.6, 60.0), ServerLoad(60), None),
        ((4.0, 9.5), None, 14),
    ],
)
def test_reports_grow_stale_and_a_window_spans_no_gap(gap, report, seen_at):
    page = lambda load, now: report if gap[0] < now < gap[1] else ServerLoad(60, 40)
    assert waited(page)[1] == seen_at


@pytest.mark.parametrize("counter", ["generation_tokens", "preemptions", "prefix_query_tokens", "prefix_hit_tokens"])
def test_a_counter_that_goes_down_means_a_restart_and_one_that_disappears_none(counter):
    falls = lambda load, now: ServerLoad(300, 200, **{counter: now % 2.5})
    comes_and_goes = lambda load, now: ServerLoad(300, 200, **{counter: now if now % 2 < 1 else None})
    assert [waited(page)[0] for page in (falls, comes_and_goes)] == [0, 40]
