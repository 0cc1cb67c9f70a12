"""Whether a server runs one batch after another."""

import random

import pytest

from batchclient._core.limits import KneeLimit, Outcome, Sample
from batchclient._core.limits.bursts import Bursts


def answer(now, took, tokens, *, request=0, first_s=None, sequences=1, outcome=Outcome.SUCCESS):
    first_s = took if first_s is None else first_s
    return Sample(now, now - took, 128, 128.0, 100 + request, sequences, 20, tokens * sequences, first_s, outcome, 128)


def lengths(count, seed=0):
    rng = random.Random(seed)
    return [max(1, min(256, round(rng.lognormvariate(4.0, 0.9)))) for _ in range(count)]


def batches(sizes, *, tokens=None, requests=4, period_s=4.0, span_s=0.0, took=None, first_s=None):
    """One batch after another, each answered at once (within ``span_s``); ``took(tokens)`` is an answer's time."""
    bursts = Bursts()
    for number, size in enumerate(sizes):
        for index, each in enumerate(tokens or lengths(size, number)):
            now = (number + 1) * period_s + span_s * index / size
            seconds = 2 * period_s if took is None else took(each)
            bursts.add(answer(now, seconds, each, request=index % requests, first_s=first_s))
    return bursts


def test_what_ends_together_again_and_again_after_the_same_time_is_a_batch():
    assert batches([64] * 6).batch == 64


def test_before_four_bursts_nothing_is_said():
    # The fourth is still under way: what comes next may belong to it.
    assert batches([64] * 4).batch is None
    assert batches([64] * 5).batch == 64


def test_the_largest_of_the_last_bursts_is_what_the_server_takes():
    # With 96 in flight every other batch is a small one.
    assert batches([32, 64, 32, 64, 32, 64]).batch == 64
    assert batches([64, 64, *[16] * 7]).batch == 16, "of the last six: what it took long ago is gone"


@pytest.mark.parametrize("step_tokens", [16, 64])
@pytest.mark.parametrize("queue_s", [0.0, 4.0])
def test_a_server_that_makes_many_tokens_a_step_runs_no_batches(step_tokens, queue_s):
    # A burst is what ended in one step, and a long answer took more of them. With two steps at most, who was sent first ends first there too.
    steps = batches([40] * 8, took=lambda tokens: queue_s + 4.0 * (1 + min(tokens, 2 * step_tokens - 1) // step_tokens))
    assert steps.batch is None


def test_answers_of_equal_length_that_were_sent_together_say_nothing():
    assert batches([64] * 8, tokens=[64] * 64).batch is None


def test_the_answers_of_one_request_end_together_and_say_nothing():
    assert batches([32] * 8, requests=1).batch is None
    assert batches([32] * 8, requests=2).batch == 32


def test_answers_that_come_piece_by_piece_are_not_looked_at():
    assert batches([64] * 8, first_s=1.0).batch is None


def test_what_ends_one_after_another_is_no_burst():
    assert batches([64] * 8, span_s=1.0).batch is None
    assert batches([64] * 8, span_s=0.1).batch == 64


def test_many_bursts_in_an_answers_time_are_the_steps_of_a_server_that_batches_continuously():
    assert batches([8] * 40, period_s=1.0, took=lambda tokens: 4.5).batch is None
    assert batches([8] * 40, period_s=1.0, took=lambda tokens: 3.5).batch == 8


def test_who_was_sent_first_ends_first():
    # Several servers that take turns: of what was sent together some ends two bursts later than the rest.
    late = iter(range(10**6))
    assert batches([64] * 8, took=lambda tokens: 8.0 + 8.0 * (next(late) % 2)).batch is None


def test_batches_are_full_where_all_are_as_large():
    assert batches([64] * 8).full
    assert batches([64, 62, 64, 63, 64, 64, 64]).full
    # Several servers, each with all that it was given: the bursts follow the load.
    assert not batches([34, 34, 34, 27, 27, 27, 34, 34]).full
    assert not Bursts().full


def test_an_answer_whose_tokens_are_not_known_was_in_the_batch_too():
    bursts = Bursts()
    for number in range(1, 8):
        for index, tokens in enumerate(lengths(64, number)):
            bursts.add(answer(4.0 * number, 8.0, tokens if index % 2 else 0, request=index % 4))
    assert bursts.batch == 64


def test_bursts_are_forgotten_once_answers_end_one_after_another():
    bursts = batches([64] * 6)
    for number in range(400):
        bursts.add(answer(24.1 + 0.02 * number, 8.0, 20 + number % 200, request=number))
    assert bursts.batch is None


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.SUCCESS])
def test_only_answers_that_somebody_got_count(outcome):
    bursts = batches([64] * 5)
    for number in range(6, 16):
        bursts.add(answer(4.0 * number, 8.0, 50, outcome=outcome))
    assert bursts.batch == 64


def test_a_restart_forgets_them():
    limit = KneeLimit(64)
    for number in range(1, 8):
        for index, tokens in enumerate(lengths(32, number)):
            limit.on_sample(answer(4.0 * number, 8.0, tokens, request=index % 4))
    assert limit._bursts.batch == 32
    limit.on_restart(60.0)
    assert limit._bursts.batch is None


def test_a_pause_is_no_time_from_burst_to_burst():
    limit = KneeLimit(64)
    for number in [*range(1, 7), 40]:
        for index, tokens in enumerate(lengths(32, number)):
            limit.on_sample(answer(4.0 * number, 8.0, tokens, request=index % 4))
    assert limit._bursts.batch is None
