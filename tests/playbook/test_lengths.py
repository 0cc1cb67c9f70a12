"""How long answers will be: by the size of the prompt, or by the caller's word; and how well that was foreseen."""

import random

import pytest

from tests.core import Answered, FixedLimit, Request, Scheduler, SchedulerSettings, SendBatch, Shape, Submitted, Woke
from batchclient.types import Choice, Completion, Usage

SHAPE = Shape(key=b"k", body=b"{}", max_output_tokens=4096, alone_reason="alone")


def answer_all(lengths, size=lambda tokens: 100, told=lambda tokens: None):
    """Make calls one after another, whose answers have these lengths; return the scheduler."""
    core = Scheduler(SchedulerSettings(), [FixedLimit(1)])
    for now, tokens in enumerate(lengths):
        core.handle(Submitted(Request(SHAPE, b"p" * size(tokens), expected_tokens=told(tokens))), now)
        core.handle(Woke(), now)
        (batch,) = (command.batch for command in core.commands() if isinstance(command, SendBatch))
        answer = Completion(choices=(Choice(0, "x", "stop"),), usage=Usage(9, tokens))
        core.handle(Answered(batch, [(0, answer)], ended=True), now)
        core.commands()
    return core


def expected(core, size, told=None):
    return core.expected_tokens(Request(SHAPE, b"p" * size, expected_tokens=told))


def lognormal(seed, sigma, count=600):
    rng = random.Random(seed)
    return [max(2, round(rng.lognormvariate(5, sigma))) for _ in range(count)]


def test_no_answer_is_expected_to_be_longer_than_it_may_be():
    core = Scheduler(SchedulerSettings(), [FixedLimit(1)])
    assert (expected(core, 100, told=300), expected(core, 100, told=20_000)) == (300, 4096)


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nine_of_ten_answers_are_no_longer_than_was_told(seed, sigma):
    lengths = answer_all(lognormal(seed, sigma)).statistics().lengths
    assert lengths.answers == 599 and 0.08 <= lengths.above_p90 <= 0.12


def test_nine_of_ten_hold_also_where_most_answers_run_into_their_bound_and_after_they_have_changed():
    at_bound = [min(150, tokens) for tokens in lognormal(4, 0.8)]
    ten_times = [10 * tokens for tokens in lognormal(5, 0.5)]
    lengths = answer_all([*at_bound, *ten_times]).statistics().lengths
    # Some thirty more are above while it learns of the change.
    assert lengths.answers == 1199 and 0.08 <= lengths.above_p90 <= 0.13


def test_answers_are_foreseen_by_the_sizes_of_their_prompts_whether_they_grow_or_shrink_with_them():
    made = [40, 400, 40, 400, 40, 400]
    for size in (lambda tokens: 10 * tokens, lambda tokens: 40_000 // tokens):
        core = answer_all(made, size)
        assert (expected(core, size(40)), expected(core, size(400))) == (40, 400)
        assert core.statistics().lengths.mean_error == 0
    # One size tells nothing: the mean of both, and each answer is nearly as far from it.
    core = answer_all([40, 400] * 100)
    assert 180 <= expected(core, 100) <= 260 and 0.7 <= core.statistics().lengths.mean_error <= 0.9


def test_a_size_of_which_nothing_has_come_is_taken_for_longer_than_what_has():
    core = answer_all([40, 42, 44], lambda _: 100)
    assert expected(core, 5000) > 44 > expected(core, 100)


def test_before_anything_has_come_a_call_may_be_as_long_as_any_of_its_shape():
    assert expected(answer_all([]), 5000) == 256


def test_what_a_caller_expects_is_believed_and_its_error_told():
    core = answer_all([100, 200, 300], told=lambda tokens: tokens // 2)
    assert (expected(core, 100, told=7), expected(core, 100, told=900)) == (7, 900)
    assert core.statistics().lengths.answers == 3 and core.statistics().lengths.mean_error == 0.5
    # Nine of ten answers are no longer than so many times what was said.
    assert 0.08 <= answer_all(lognormal(6, 0.6), told=lambda _: 150).statistics().lengths.above_p90 <= 0.12


def test_words_of_callers_tell_nothing_about_calls_without():
    made = answer_all([100, 900] * 20, told=lambda tokens: tokens)
    assert made.statistics().lengths.mean_error == 0
    # The mean of all, which is known of any call.
    assert expected(made, 100) == expected(made, 5000) > 100
