"""Trials of another limit, by what windows say; and whose turn it is."""

import pytest

from batchclient._core.limits.trial import Turn
from batchclient._core.limits.evidence import Window
from batchclient._core.limits.trial import Trial, Verdict
from tests.unit.limits.samples import sample


def rate(per_s, tokens=50.0, **more):
    """So many tokens per second, at 50 tokens an answer."""
    window, seconds = Window(0.0), 20 * 50 / per_s
    for number in range(10):
        window.take_in(sample(seconds + number, seconds, 20.0, tokens=round(tokens), **more))
    return window


def trial(other, *, first=100, trusted=False):
    """A trial of another limit, where the first brings 1,000 tokens per second."""
    return Trial(first, rate(1000.0), "queue", other, trusted, first)


# Less ---------------------------------------------------------------------------------------------------------------


def test_less_holds_if_it_loses_no_more_than_a_twentieth():
    for per_s, verdict in [(1000, "holds"), (951, "holds"), (949, "loses"), (500, "loses")]:
        one = trial(60)
        assert one.judge(rate(per_s)).value == verdict
        assert one.kept == (60 if verdict == "holds" else 100)
        assert one.lost == (0 if verdict == "holds" else pytest.approx(1 - per_s / 1000))


def test_where_a_fifth_of_the_prompts_is_shared_a_loss_below_a_fifth_leads_to_a_look_at_still_less():
    for shared, per_s, verdict in [(21, 810, "perhaps"), (21, 790, "loses"), (19, 810, "loses"), (0, 810, "loses")]:
        assert trial(60).judge(rate(per_s, prompt_tokens=100, shared_tokens=shared)).value == verdict


def test_ten_steps_of_a_twentieth_are_not_small():
    one, per_s, limits = trial(90), 1000.0, []
    for other in range(90, 0, -10):
        one.other = other
        per_s *= 0.97
        if one.judge(rate(per_s)) is Verdict.LOSES:
            break
        limits.append(other)
    assert limits == [90], "0.97 holds, 0.94 does not: against the limit before the first cut"
    assert one.kept == 90


def test_a_lower_limit_is_compared_with_the_best_of_the_trial_too():
    one = trial(60)
    one.judge(rate(1200.0))
    one.other = 30
    assert one.judge(rate(1100.0)) is Verdict.LOSES, "more than the limit before, but less than 60 brought"
    assert one.kept == 60


def test_windows_are_compared_at_the_same_length_of_answers():
    one = Trial(100, rate(1000.0), "queue", 60, False, 100)
    longer = Window(0.0)
    for number in range(10):
        longer.take_in(sample(2.0 + number, 0.5 + 59 * 0.01, 20.0, tokens=60, first_tokens_s=0.5))
    one.judge(longer)
    assert one.gain == pytest.approx(20.0 * 50 / (0.5 + 49 * 0.01) / 1000)


def test_less_that_brings_clearly_more_or_whose_wait_is_the_harm_needs_no_second_look():
    for per_s, trusted, certain in [
        (1000.0, False, False),
        (1090.0, False, False),
        (1150.0, False, True),
        (1000.0, True, True),
    ]:
        one = trial(60, trusted=trusted)
        one.judge(rate(per_s))
        assert one.certain is certain


def test_nothing_that_was_kept_needs_a_second_look():
    one = trial(60)
    one.judge(rate(500.0))
    assert one.certain


def test_what_was_kept_must_hold_against_both_looks_at_the_limit_before():
    for again, holds in [(1000.0, True), (900.0, True), (1100.0, False)]:
        one = trial(60)
        one.judge(rate(970.0))
        assert one.confirms(rate(again)) is holds, "the server has become faster or slower meanwhile"


# More ---------------------------------------------------------------------------------------------------------------


def test_more_is_kept_if_it_brings_more():
    for per_s, kept in [(1000, 100), (1025, 100), (1035, 140)]:
        one = trial(140)
        one.judge(rate(per_s))
        assert one.kept == kept
        assert one.certain, "it is not looked at once more"


# Whose turn it is ---------------------------------------------------------------------------------------------------


def test_of_several_servers_one_is_tried_at_a_time():
    turn = Turn()
    assert turn.take("a", 100.0, 10.0)
    assert not turn.take("b", 110.0, 20.0)
    assert turn.take("a", 130.0, 30.0), "it has it already"
    turn.give_back("b")
    assert not turn.take("b", 140.0, 40.0)
    turn.give_back("a")
    assert turn.take("b", 140.0, 40.0)


def test_a_turn_that_nobody_gives_back_ends():
    turn = Turn()
    turn.take("a", 100.0, 10.0)
    assert not turn.take("b", 200.0, 99.0)
    assert turn.take("b", 200.0, 100.0)
