"""What a pilot tells of a job: intervals that hold the truth as often as they say."""

import heapq
import random
from statistics import median

import pytest

from batchclient._maps.forecast import Look, seconds, share, total

ROWS, PILOT, PLACES = 400, 100, 16
ROW_S, TOKEN_S = 0.2, 0.01


def served(rows):
    """A server with so many places, of which each row takes one for its time; what was seen, and how long it took."""
    now, ends, looks = 0.0, [], []
    for place, (_, tokens) in enumerate(rows):
        if len(ends) == PLACES:
            now = heapq.heappop(ends)
        heapq.heappush(ends, now + ROW_S + TOKEN_S * tokens)
        looks.append(Look(now, len(ends), len(rows) - place - 1))
    while ends:
        now = heapq.heappop(ends)
        looks.append(Look(now, len(ends), 0))
    return looks, now


def drawn(rng):
    """A job in the order of its prompts' lengths: bytes of the prompts, tokens of the answers."""
    sizes = sorted(rng.lognormvariate(4, 1) for _ in range(ROWS))
    return [(size, min(rng.lognormvariate(3, 0.8) + size / 5, 120)) for size in sizes]


def test_of_simulated_jobs_nine_in_ten_hold_the_truth():
    rng, jobs = random.Random(1), 50
    held, widths = [0, 0, 0], [[], [], []]
    for _ in range(jobs):
        rows = drawn(rng)
        first = set(rng.sample(range(ROWS), PILOT))
        pilot, others = [rows[at] for at in first], [rows[at] for at in range(ROWS) if at not in first]
        size = sum(size for size, _ in others) / len(others)
        cut = sum(tokens == 120 for _, tokens in pilot)
        told = [
            (seconds(served(pilot)[0], PLACES, pilot, len(others), size), served(others)[1]),
            (total(pilot, len(others), size), sum(tokens for _, tokens in others)),
            (share(PILOT - cut, PILOT, len(others)), sum(tokens < 120 for _, tokens in others) / len(others)),
        ]
        for place, (interval, truth) in enumerate(told):
            held[place] += interval.low <= truth <= interval.high
            widths[place].append((interval.high - interval.low) / truth)
    assert all(0.8 * jobs <= each < jobs for each in held), held
    assert all(median(each) <= 0.4 for each in widths)


def test_a_share_is_wilsons_interval():
    # Wilson's for 8 of 200 at 90 %; and there is always some room for what the pilot has not met.
    assert tuple(share(8, 200, 10**9)) == pytest.approx((0.02268, 0.06960), abs=1e-5)
    assert tuple(share(0, 200, 10**9)) == pytest.approx((0, 0.01335), abs=1e-5)
    assert all(share(0, rows, 300).low == 0 and share(rows, rows, 300).high == 1 for rows in range(1, 300))
    low, high = share(8, 200, 100)
    assert low < 0.02 and high > 0.08, "few other rows may be luckier, or less lucky, than all rows would be"


def test_the_sizes_of_the_other_prompts_are_used():
    rows = [(size, 2 * size + 5) for size in range(40)]
    assert tuple(total(rows, 1000, 100.0)) == pytest.approx((205_000, 205_000))


def test_equal_rows_take_the_time_of_their_places():
    # 60 rows of 1 s, at 4 places, have taken 15 s. Then 400 take 100 s.
    looks = [Look(float(at), 4, 60 - 4 * at) for at in range(15)] + [Look(15.0, 0, 0)]
    low, high = seconds(looks, 4, [(10, 10)] * 60, 400, 10.0)
    assert 96 < low < 100 < high < 104
    # Where the job may have four times more in flight than its pilot, it is faster by up to four times.
    wide = seconds([Look(0.0, 60, 0), Look(1.0, 0, 0)], 240, [(10, 10)] * 60, 2400, 10.0)
    assert wide.low < 12 and wide.high > 38


def test_without_what_tells_the_time_there_is_none():
    assert seconds([Look(0.0, 0, 0)], 4, [(1, 1)], 10, 1.0) == (0, 0)
