"""What a window of answers says: tokens per second, how sure that is, and what waited. And when a limit has settled."""

import math
import random

import pytest

from tests.core import Outcome
from batchclient._core.limits.evidence import Settling, Window
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
        window.take_in(sample(now, seconds, load, tokens=tokens, **fields))
    return window


def plain(tokens, seconds, **fields):
    """An answer in one piece."""
    return tokens, seconds, 0.0, {"first_tokens_s": 0.0, **fields}


# The rate -----------------------------------------------------------------------------------------------------------


def test_in_a_closed_loop_it_is_what_is_generated_per_second():
    # 20 at once, of 50 tokens in 0.02 + 49 × 0.04 = 1.98 s.
    rate = closed_loop([(50, 0.02, 0.04)] * 400)
    assert (rate.load, rate.tokens) == pytest.approx((20, 50))
    assert rate.per_s(50) == pytest.approx(20 * 50 / 1.98)


def test_where_answers_come_in_one_piece_too():
    rate = closed_loop([plain(50, 2.0)] * 400)
    assert rate.per_s(50) == pytest.approx(20 * 50 / 2.0)


def test_where_nobody_counts_tokens_answers_are_counted():
    rate = closed_loop([plain(0, 2.0)] * 400)
    assert (rate.tokens, rate.per_s(1)) == (1, pytest.approx(10.0))


@pytest.mark.parametrize("few", [0.2, 0.8])
def test_the_mix_of_short_and_long_answers_does_not_move_it(few):
    generator = random.Random(1)
    rate = closed_loop([(20 if generator.random() < few else 200, 0.5, 0.02) for _ in range(2000)])
    # What a count of tokens follows: of the one mix 20 × 164 / 3.76 per second, of the other 20 × 56 / 1.6.
    assert rate.per_s(100) == pytest.approx(20 * 100 / (0.5 + 99 * 0.02), rel=1e-6)


def test_of_answers_in_one_piece_among_others_it_is_taken_that_their_tokens_came_alike():
    streamed, whole = (50, 0.5, 0.02), plain(50, 0.5 + 49 * 0.02)
    rate = closed_loop([streamed, streamed, whole] * 200)
    assert rate.per_s(50) == pytest.approx(20 * 50 / (0.5 + 49 * 0.02))
    assert rate.per_s(100) == pytest.approx(20 * 100 / (0.5 + 99 * 0.02))


def test_a_stream_that_comes_at_its_end_is_an_answer_in_one_piece():
    rate = closed_loop([(50, 1.97, 0.0006)] * 400)
    assert rate.waiting(0.1) == 0
    assert rate.per_s(50) == pytest.approx(20 * 50 / (1.97 + 49 * 0.0006))


@pytest.mark.parametrize("outcome", [Outcome.WASTED, Outcome.LATE])
def test_time_that_nobody_got_anything_for_counts_and_its_tokens_do_not(outcome):
    left = 50, 2.0, 0.0, {"first_tokens_s": 0.0, "outcome": outcome}
    window = closed_loop([(50, 0.04, 0.04), left] * 200)
    assert window.per_s(50) == pytest.approx(0.5 * 20 * 50 / 2.0, rel=0.01)


def test_lists_count_as_their_sequences():
    singly = closed_loop([(50, 0.02, 0.04)] * 400)
    window = Window(0.0)
    for number in range(100):
        at = 0.396 * (number + 1)
        window.take_in(sample(at, 1.98, 20, sequences=4, tokens=200, prompt_tokens=20, first_tokens_s=0.08, weight=4))
    assert (window.tokens, window.heaviest) == (50, 4)
    assert [window.per_s(tokens) for tokens in (50, 100)] == pytest.approx([singly.per_s(50), singly.per_s(100)])
    assert window.times_as_long(singly) == pytest.approx(1.0)


# Its error ----------------------------------------------------------------------------------------------------------


def noisy(deviation, answers=2000, seed=0):
    """Answers whose time wanders from one half second to the next, as a machine's speed does."""
    generator = random.Random(seed)
    speeds = [generator.lognormvariate(0.0, deviation) for _ in range(answers)]
    return [(50, 0.02, 0.04 * speeds[number // 5]) for number in range(answers)]


def test_before_there_are_six_slices_it_is_infinite():
    # Slices of 0.7 s: 20 in flight for 2 s each, so 10 per second.
    assert closed_loop([(50, 0.04, 0.04)] * 39).error == math.inf
    assert closed_loop([(50, 0.04, 0.04)] * 50).error < 1e-9


def test_slices_last_an_eighth_of_what_an_answer_takes():
    # 10 per second, of 40 s each: six slices of 5 s.
    assert closed_loop([plain(50, 40.0)] * 290, load=400).error == math.inf
    assert closed_loop([plain(50, 40.0)] * 310, load=400).error < 1e-9


def test_a_slice_has_four_answers_somebody_got():
    left = plain(50, 10.0, outcome=Outcome.WASTED)
    # One answer in 1 s is of use: six slices are over after 24.
    assert closed_loop([left, plain(50, 10.0)] * 22).error == math.inf
    assert closed_loop([left, plain(50, 10.0)] * 25).error < math.inf


def test_slices_that_are_like_their_neighbours_tell_less():
    """The same answers, half of them slow: in turns slice by slice, and ten slices after ten."""

    def taking_turns(answers):
        return closed_loop([plain(50, 3.0 if number // answers % 2 else 1.0) for number in range(2800)])

    together, in_turns = taking_turns(140), taking_turns(14)
    assert together.per_s(50) == pytest.approx(in_turns.per_s(50), rel=0.01)
    assert together.error > 2 * in_turns.error


def test_it_falls_with_the_square_root_of_the_time():
    short, long = closed_loop(noisy(0.2, 1000)).error, closed_loop(noisy(0.2, 16_000)).error
    assert short / long == pytest.approx(4.0, rel=0.3)


def test_it_is_how_far_windows_differ():
    windows = [closed_loop(noisy(0.2, 1000, seed)) for seed in range(60)]
    rates = [window.per_s(50) for window in windows]
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
    assert closed_loop([(51, 0.5, 0.03)] * 400).waiting(0.1) == pytest.approx(0.2)
    assert closed_loop([(51, 0.5, 0.03)] * 400).waiting(0.5) == 0


def test_answers_in_one_piece_show_no_wait():
    assert closed_loop([plain(50, 2.0)] * 400).waiting(0.1) == 0


# What the work is like ----------------------------------------------------------------------------------------------


def like(*, prompt=100, tokens=50):
    return closed_loop([(tokens, 0.02, 0.04, {"prompt_tokens": prompt})] * 100)


def test_how_many_times_as_long_prompts_or_outputs_are():
    for other, times in [
        ({}, 1.0),
        ({"prompt": 115}, 1.15),
        ({"prompt": 50}, 2.0),
        ({"tokens": 45}, 50 / 45),
        ({"tokens": 200}, 4.0),
    ]:
        assert like().times_as_long(like(**other)) == pytest.approx(times)
        assert like(**other).times_as_long(like()) == pytest.approx(times)


def test_one_long_answer_does_not_make_work_another():
    usual = [(50, 0.02, 0.04)] * 99
    assert closed_loop([*usual, (50, 0.02, 0.04)]).times_as_long(closed_loop([*usual, (5000, 0.02, 0.04)])) < 1.1


def test_the_most_in_flight_and_the_heaviest_call():
    window = Window(0.0)
    for number, (in_flight, weight) in enumerate([(10, 1), (40, 8), (25, 2), (10, 1)]):
        window.take_in(sample(1.0 + number, load=20.0, in_flight=in_flight, weight=weight))
    assert (window.peak, window.heaviest, window.load) == (40, 8, 20)


def test_how_much_of_the_prompts_had_been_sent_before():
    answers = [(50, 0.02, 0.04, {"prompt_tokens": 100, "shared_tokens": shared}) for shared in (0.0, 80.0)]
    assert closed_loop(answers * 100).shared == pytest.approx(0.4)


# When a limit has settled -------------------------------------------------------------------------------------------


def settles_at(settling, ends, *, in_flight=8):
    """When it is over, of samples that end one after another at ``(end, seconds)``; ``None``: it is not."""
    for now, seconds in ends:
        if settling.is_over(sample(now, seconds, in_flight=in_flight)):
            return now
    return None


def test_a_limit_has_settled_when_half_of_it_that_was_sent_since_has_ended():
    settling = Settling(8, 1)
    assert settles_at(settling, [(10.0, 1.0)]) is None, "since then it is looked at"
    assert settles_at(settling, [(10.5, 1.0), (10.6, 1.0), (10.7, 1.0), (10.8, 1.0)]) is None, "they were sent before"
    assert settles_at(settling, [(11.0, 1.0), (11.1, 1.0), (11.2, 1.0), (11.3, 1.0), (11.4, 1.0)]) == 11.3


def test_while_more_is_in_flight_than_the_limit_nothing_has_settled():
    settling = Settling(8, 1)
    for tenth in range(100):
        assert not settling.is_over(sample(10.0 + tenth / 10, 0.05, in_flight=10)), "nine are left"
    assert not settling.is_over(sample(20.0, 0.05, in_flight=9)), "eight are"
    assert settles_at(settling, [(20.0 + tenth / 10, 0.05) for tenth in range(1, 10)], in_flight=20) == 20.4


def test_of_two_generations_the_second_was_sent_after_the_first_had_ended():
    ends = [(10.0 + tenth / 10, 1.0) for tenth in range(40)]
    assert settles_at(Settling(8, 1), ends) == 11.3
    assert settles_at(Settling(8, 2), ends) == 12.6


def test_the_sequences_of_a_list_count_each():
    settling = Settling(8, 1)
    assert not settling.is_over(sample(10.0, in_flight=12, sequences=4))
    assert not settling.is_over(sample(11.0, sequences=3))
    assert settling.is_over(sample(11.1, sequences=1))
