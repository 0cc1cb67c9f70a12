"""What a window of answers says: tokens per second, how sure that is, and what waited."""

import math
import random

import pytest

from batchclient._core.limits import Outcome
from batchclient._core.limits.evidence import Window
from tests.unit.limits.samples import sample


def closed_loop(answers, *, load=20, start=0.0):
    """A window of answers that ended one after another, ``load`` of them in flight.

    Args:
        answers: of each its tokens, its seconds before the first, its seconds per other token, and whatever else a sample has.
    """
    window, now = Window(start), start
    for tokens, first_s, token_s, *more in answers:
        seconds = first_s + token_s * (tokens - 1)
        now += seconds / load
        fields = {"first_tokens_s": first_s, **(more[0] if more else {})}
        told(window, now, seconds, load, tokens=tokens, **fields)
    return window


def told(window, now, seconds=1.0, load=8.0, **fields):
    """Tell a window of an answer, where answers take as long as it on average."""
    window.add(sample(now, seconds, load, **fields), seconds)


def plain(tokens, seconds, **fields):
    """An answer in one piece."""
    return tokens, seconds, 0.0, {"first_tokens_s": 0.0, **fields}


# The rate -----------------------------------------------------------------------------------------------------------


def test_in_a_closed_loop_it_is_what_is_generated_per_second():
    # 20 at once, of 50 tokens in 0.02 + 49 × 0.04 = 1.98 s.
    rate = closed_loop([(50, 0.02, 0.04)] * 400).rate(0.0)
    assert (rate.load, rate.tokens) == pytest.approx((20, 50))
    assert (rate.first_s, rate.token_s) == pytest.approx((0.02, 0.04))
    assert rate.per_s(50) == pytest.approx(20 * 50 / 1.98)


def test_where_answers_come_in_one_piece_too():
    rate = closed_loop([plain(50, 2.0)] * 400).rate(0.0)
    assert rate.per_s(50) == pytest.approx(20 * 50 / 2.0)


def test_where_nobody_counts_tokens_answers_are_counted():
    rate = closed_loop([plain(0, 2.0)] * 400).rate(0.0)
    assert (rate.tokens, rate.per_s(1)) == (1, pytest.approx(10.0))


@pytest.mark.parametrize("few", [0.2, 0.8])
def test_the_mix_of_short_and_long_answers_does_not_move_it(few):
    generator = random.Random(1)
    rate = closed_loop([(20 if generator.random() < few else 200, 0.5, 0.02) for _ in range(2000)]).rate(0.0)
    # What a count of tokens follows: of the one mix 20 × 164 / 3.76 per second, of the other 20 × 56 / 1.6.
    assert rate.per_s(100) == pytest.approx(20 * 100 / (0.5 + 99 * 0.02), rel=1e-6)


def test_of_answers_in_one_piece_among_others_it_is_taken_that_their_tokens_came_alike():
    streamed, whole = (50, 0.5, 0.02), plain(50, 0.5 + 49 * 0.02)
    rate = closed_loop([streamed, streamed, whole] * 200).rate(0.0)
    assert (rate.first_s, rate.token_s) == pytest.approx((0.5, 0.02), rel=0.02)


def test_a_stream_that_comes_at_its_end_is_an_answer_in_one_piece():
    rate = closed_loop([(50, 1.97, 0.0006)] * 400).rate(0.1)
    assert rate.first_s == rate.token_s
    assert rate.waiting == 0
    assert rate.per_s(50) == pytest.approx(20 * 50 / (1.97 + 49 * 0.0006))


@pytest.mark.parametrize("outcome", [Outcome.WASTED, Outcome.LATE])
def test_time_that_nobody_got_anything_for_counts_and_its_tokens_do_not(outcome):
    left = 50, 2.0, 0.0, {"first_tokens_s": 0.0, "outcome": outcome}
    window = closed_loop([(50, 0.04, 0.04), left] * 200)
    assert window.useful == 200
    assert window.rate(0.0).per_s(50) == pytest.approx(0.5 * 20 * 50 / 2.0)


def test_lists_count_as_their_sequences():
    singly = closed_loop([(50, 0.02, 0.04)] * 400).rate(0.0)
    window = Window(0.0)
    for number in range(100):
        at = 0.396 * (number + 1)
        told(window, at, 1.98, 20, sequences=4, tokens=200, prompt_tokens=20, first_tokens_s=0.08, weight=4)
    listed = window.rate(0.0)
    assert (listed.tokens, listed.first_s, listed.token_s) == pytest.approx((50, singly.first_s, singly.token_s))
    assert (listed.prompt, listed.output) == pytest.approx((singly.prompt, singly.output))
    assert listed.heaviest == 4


def test_what_ended_before_the_window_began_is_not_of_it():
    window = Window(10.0)
    told(window, 9.9)
    assert window.useful == 0
    told(window, 10.0)
    assert window.useful == 1


# Its error ----------------------------------------------------------------------------------------------------------


def noisy(deviation, answers=2000, seed=0):
    """Answers whose time wanders from one half second to the next, as a machine's speed does."""
    generator = random.Random(seed)
    speeds = [generator.lognormvariate(0.0, deviation) for _ in range(answers)]
    return [(50, 0.02, 0.04 * speeds[number // 5]) for number in range(answers)]


def test_before_there_are_enough_slices_it_is_infinite():
    # Slices of half a second, six at least: 20 in flight for 2 s each, so 10 per second.
    assert closed_loop([(50, 0.04, 0.04)] * 25).error == math.inf
    assert closed_loop([(50, 0.04, 0.04)] * 45).error < 1e-9


def test_slices_are_as_long_as_the_work_needs():
    window, now = Window(0.0), 0.0
    for _ in range(45):
        now += 0.1
        told(window, now, 40.0, 400.0)
    assert window.error == math.inf, "they last an eighth of a mean latency"


def test_it_falls_with_the_square_root_of_the_time():
    short, long = closed_loop(noisy(0.2, 1000)).error, closed_loop(noisy(0.2, 16_000)).error
    assert short / long == pytest.approx(4.0, rel=0.3)


def test_it_is_how_far_windows_differ():
    windows = [closed_loop(noisy(0.2, 1000, seed)) for seed in range(60)]
    rates = [window.rate(0.0).per_s(50) for window in windows]
    mean = sum(rates) / len(rates)
    spread = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / len(rates)) / mean
    assert sum(window.error for window in windows) / len(windows) == pytest.approx(spread, rel=0.35)


def test_long_and_short_answers_at_random_make_no_error():
    generator = random.Random(0)
    answers = [(generator.choice([20, 200]), 0.0, 0.02) for _ in range(2000)]
    counted = [(tokens, 0.001, 0.02) for tokens, _, _ in answers]
    assert closed_loop(counted).error < 0.002


# What waits ---------------------------------------------------------------------------------------------------------


def test_what_waits_is_the_time_before_first_tokens_beyond_the_least():
    # 0.5 s of 2.0 are before the first token; 0.1 s of them are the prompt's own.
    assert closed_loop([(51, 0.5, 0.03)] * 400).rate(0.1).waiting == pytest.approx(0.2)
    assert closed_loop([(51, 0.5, 0.03)] * 400).rate(0.5).waiting == 0


def test_answers_in_one_piece_show_no_wait():
    assert closed_loop([plain(50, 2.0)] * 400).rate(0.1).waiting == 0


# What the work is like ----------------------------------------------------------------------------------------------


def like(*, prompt=100, tokens=50):
    return closed_loop([(tokens, 0.02, 0.04, {"prompt_tokens": prompt})] * 100).rate(0.0)


@pytest.mark.parametrize(
    ("other", "alike"),
    [({}, True), ({"prompt": 115}, True), ({"prompt": 130}, False), ({"tokens": 45}, True), ({"tokens": 35}, False)],
)
def test_prompts_and_outputs_are_alike_within_a_fifth(other, alike):
    assert like().is_like(like(**other)) is alike
    assert like(**other).is_like(like()) is alike


def test_one_long_answer_does_not_make_work_another():
    usual = [(50, 0.02, 0.04)] * 99
    assert (
        closed_loop([*usual, (50, 0.02, 0.04)]).rate(0.0).is_like(closed_loop([*usual, (5000, 0.02, 0.04)]).rate(0.0))
    )


def test_the_most_in_flight_and_the_heaviest_call():
    window = Window(0.0)
    for number, (in_flight, weight) in enumerate([(10, 1), (40, 8), (25, 2)]):
        told(window, 1.0 + number, load=20.0, in_flight=in_flight, weight=weight)
    rate = window.rate(0.0)
    assert (rate.peak, rate.heaviest, rate.load) == (40, 8, 20)


def test_how_much_of_the_prompts_had_been_sent_before():
    answers = [(50, 0.02, 0.04, {"prompt_tokens": 100, "shared_tokens": shared}) for shared in (0.0, 80.0)]
    assert closed_loop(answers * 100).rate(0.0).shared == pytest.approx(0.4)
