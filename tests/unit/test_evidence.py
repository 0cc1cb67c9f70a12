"""The line through the points: what is load, and what only came with it."""

import math

import pytest

from batchclient._core.limits.evidence import Line, Point, Timed, waiting


def line(loads, values, *, mixes=None, times=None, lags=None, prior=0.0, spreads=(0.8, 0.06, 0.2, 0.2)):
    none = [0.0] * len(loads)
    return Line(loads, times or none, mixes or none, lags or none, values, [1.0] * len(loads), prior, 0.01, spreads)


LOADS = [-0.1, 0.1, -0.08, 0.12, -0.12, 0.09, -0.1, 0.1]


@pytest.mark.parametrize("slope", [0.0, 0.4, 1.0, 1.8])
def test_the_slope_of_a_straight_line_is_found(slope):
    found = line(LOADS, [3 * (1 + slope * load) for load in LOADS])
    assert found.slope == pytest.approx(slope, abs=0.01)
    assert max(map(abs, found.residuals)) < 0.01


def test_where_loads_do_not_differ_the_prior_stands():
    assert line([0.0] * 8, [2.0] * 8, prior=0.7).slope == pytest.approx(0.7)


def test_what_the_mix_of_lengths_costs_is_not_taken_for_load():
    # Whenever there is more load, answers are shorter, and what is shorter costs more per token.
    mixes = [-2 * load + extra for load, extra in zip(LOADS, [0.05, -0.05, -0.05, 0.05] * 2, strict=True)]
    values = [1 + load - 0.5 * mix for load, mix in zip(LOADS, mixes, strict=True)]
    assert line(LOADS, values, mixes=mixes).slope == pytest.approx(1.0, abs=0.1)
    assert line(LOADS, values).slope > 1.6, "without them"


def test_a_ramp_of_the_load_is_not_taken_for_a_drift():
    loads = [-0.35 + 0.05 * step for step in range(8)]
    times = [-0.875 + 0.125 * step for step in range(8)]
    assert line(loads, [1 + load for load in loads], times=times).slope == pytest.approx(1.0, abs=0.15)


def test_one_point_far_off_counts_less():
    values = [1 + 0.5 * load for load in LOADS]
    values[3] *= 3
    outlier = line(LOADS, values)
    assert abs(outlier.residuals[3]) > 1
    assert outlier.slope < 3.5, "least squares alone: 7"


def point(*, tokens, seconds, first_s, answers=10):
    """Answers that are all streamed, or, with no ``first_s``, all plain."""
    timed = Timed(answers, tokens, seconds, first_s) if first_s else Timed()
    return Point(0.0, answers, 8.0, 8.0, tokens, seconds, timed, seconds - timed.seconds)


def test_a_wait_is_told_in_tokens_and_as_a_share():
    # 10 answers of 11 tokens: 1 s until the first, 0.1 s for each of the other ten.
    assert waiting([point(tokens=110, seconds=20.0, first_s=10.0)]) == (pytest.approx(9.0), pytest.approx(0.5), True)


@pytest.mark.parametrize(
    "one",
    [
        point(tokens=0, seconds=20.0, first_s=0.0),
        point(tokens=500, seconds=20.0, first_s=0.0),
        point(tokens=10, seconds=20.0, first_s=20.0),
    ],
    ids=["a few tokens", "many tokens", "one streamed token"],
)
def test_of_a_plain_reply_some_is_taken_for_a_wait(one):
    wait = waiting([one])
    assert wait.share == pytest.approx(0.3)
    assert not wait.seen


def test_a_stream_that_comes_at_its_end_shows_no_queue():
    wait = waiting([point(tokens=110, seconds=20.0, first_s=19.9)])
    assert wait.share == pytest.approx(0.995)
    assert not wait.seen


def test_a_long_queue_is_seen():
    wait = waiting([point(tokens=110, seconds=20.0, first_s=19.0)])
    assert wait.share == pytest.approx(0.95)
    assert wait.seen


def test_a_few_streamed_answers_do_not_speak_for_the_plain_ones():
    plain = point(tokens=990, seconds=180.0, first_s=0.0, answers=90)
    streamed = point(tokens=110, seconds=20.0, first_s=2.0)
    wait = waiting([plain, streamed])
    assert wait.share == pytest.approx(0.9 * 0.3 + 0.1 * 0.1)
    assert not wait.seen
    assert waiting([plain, *[streamed] * 10]).seen


@pytest.mark.parametrize("lives", [2.3, 4.6, 20.0])
@pytest.mark.parametrize("follows", ["queue", "load"])
def test_the_share_that_is_not_seen_hides_little_of_a_plateau(follows, lives):
    """The load swings by 12 %, so many lives a period, and time is in proportion to it: to the load met at the start, or to the mean of a life."""
    half = math.pi / lives
    points = []
    for step in range(40):
        turn = step / 40 * 2 * math.pi
        queue = 16 * (1 + 0.12 * math.sin(turn - half))
        load = 16 * (1 + 0.12 * math.sin(half) / half * math.sin(turn))
        points.append(Point(0.0, 10, load, queue, 0, {"queue": queue, "load": load}[follows] * 10, Timed(), 160.0))
    share = waiting(points).share
    loads = [one.felt(share) / 16 - 1 for one in points]
    found = line(loads, [one.cost_s(1.0) for one in points])
    assert found.slope == pytest.approx(1.0, abs=0.02)


def test_a_point_is_made_of_tokens_and_overhead():
    one = point(tokens=110, seconds=20.0, first_s=10.0)
    assert one.units(9.0) == 20.0
    assert one.cost_s(9.0) == pytest.approx(0.1)
