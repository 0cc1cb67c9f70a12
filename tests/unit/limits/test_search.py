"""The limit that is found, against servers that are a formula: where it begins, what it tries, and what it takes back."""

import itertools
import random

import pytest

from tests.core import Outcome, Search, ServerLoad, Turn
from tests.unit.limits.samples import Loop, found, full_at, queue_above, sample


# The beginning -----------------------------------------------------------------------------------------------------


def test_a_number_that_the_server_names_bounds_it():
    limit = found(256)
    limit.on_known(300, 0.2)
    assert limit.limit == 256
    limit.on_known(8, 0.3)
    assert (limit.limit, limit.reason) == (8, "the server allows 8 calls at once")
    limit.on_known(0, 0.4)
    assert limit.limit == 1


def test_what_is_below_the_servers_own_number_is_searched_like_any_other():
    loop = Loop(256, full_at(100), page=queue_above(100))
    loop.limit.on_known(200, 0.0)
    assert loop.run(60.0) == 112


@pytest.mark.parametrize(("start", "ceiling"), [(0, 8), (16, 8)])
def test_bounds_that_make_no_sense_are_refused(start, ceiling):
    with pytest.raises(ValueError, match="1 <= start <= ceiling"):
        Search(start, ceiling)


# Less --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "about", "less", "waited"),
    [(100, {}, 72, 191), (0, {}, 71, 192), (400, {"sequences": 4, "weight": 4, "prompt_tokens": 400}, 72, 191)],
    ids=["single calls", "nobody counts tokens", "lists"],
)
def test_what_waits_in_the_server_all_the_time_is_kept_here_instead(tokens, about, less, waited):
    loop = Loop(256, full_at(64), page=queue_above(64), tokens=tokens)
    assert loop.run(60.0, **about) == less
    assert loop.whys == [
        (less, f"{waited} calls waited in the server all the time"),
        (256, f"to compare with {less} once more"),
        (less, f"{less} in flight bring 100% of what 256 did"),
    ]


@pytest.mark.parametrize(
    ("first", "left"),
    [(lambda load: 1 - 0.9 * 64 / max(64, load), range(60, 90)), (lambda load: 0.99, [256])],
    ids=["", "but not of streams that come at their end"],
)
def test_a_wait_for_first_tokens_shows_it_too(first, left):
    # The first answers of a burst have waited for nobody.
    loop = Loop(found(256, 256), full_at(64), first=first)
    loop.tell(sample(0.1, 0.1, 1, first_tokens_s=0.01))
    assert loop.run(90.0) in left


def test_nothing_is_tried_in_the_first_ten_seconds():
    loop = Loop(256, full_at(64, seconds=0.1), page=queue_above(64))
    loop.run(30.0)
    assert loop.changes[0][0] >= 10.0


def test_a_queue_of_others_is_theirs():
    """Throughput follows what is in flight here: whoever takes less gets less."""
    loop = Loop(found(256, 256), lambda load: 4.0, page=queue_above(64))
    assert loop.run(25.0) == 256
    assert "72 in flight brought 72% less" in [reason for _, _, reason in loop.changes]
    loop.run(540.0)
    tried = [at for at, limit, _ in loop.changes if limit < 256]
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert [60 < gaps[0] < 80, 120 < gaps[1] < 140, 240 < gaps[2] < 260] == [True] * 3, "silent ever longer"


@pytest.mark.parametrize(
    ("at_most", "shared", "left"),
    [(1024, 0.9, range(16, 33)), (48, 0.9, range(16, 33)), (48, 0.1, [256]), (32, 0.9, [256])],
    ids=["used", "not used", "but not where calls share no prefixes", "nor where few are in flight"],
)
def test_a_limit_comes_down_where_conversations_do_not_fit_the_cache_used_or_not(at_most, shared, left):
    """Beyond 32 conversations the server computes every prompt anew: five times as slow, whatever the load. Where 48 are in
    flight all the time, no limit from 48 up shows that."""
    seconds = lambda load: max(0.3, load / (100.0 if load <= 32 else 20.0))
    assert Loop(256, seconds, shared=shared, at_most=at_most).run(300.0) in left


def test_where_it_costs_throughput_fewer_conversations_are_not_kept():
    loop = Loop(256, full_at(256), shared=0.9, at_most=48)
    assert loop.run(600.0) == 256
    lower = sum(
        later - earlier for (earlier, limit, _), (later, _, _) in itertools.pairwise(loop.changes) if limit < 256
    )
    assert lower / 600.0 < 0.05


def test_noise_lowers_nothing():
    """A server whose answers follow the load, and nothing else, under noise of a fifth per answer."""
    for seed in range(4):
        loop = Loop(256, full_at(300), shared=0.9)
        loop.noise, loop.unsteadiness = random.Random(seed), 0.2
        assert loop.run(120.0) >= 256, seed


def test_swings_that_last_for_seconds_are_looked_at_for_longer():
    """A tenth faster for seven seconds and a tenth slower for seven: their slices of time are like their neighbours."""
    loop = Loop(256, None, page=queue_above(64))
    loop.seconds = lambda load: 3.6 if loop.now % 14 < 7 else 4.4
    loop.run(90.0)
    assert 40.0 < loop.changes[0][0] < 70.0


def test_the_luck_of_long_and_short_answers_is_no_noise():
    loop, luck = Loop(256, None, page=queue_above(64)), random.Random(1)
    loop.seconds = lambda load: (0.05 + 0.002 * (loop.tokens - 1)) * max(1.0, load / 64)
    loop.first = lambda load: 0.05 / (0.05 + 0.002 * (loop.tokens - 1))
    while loop.now < 13.0:
        loop.tokens = luck.choice([20, 200])
        loop.run(loop.now + 1e-9)
    assert loop.limits[0] in range(66, 74), "as soon as where all answers are alike"


def test_a_verdict_that_is_beyond_doubt_waits_for_no_calm():
    """A cache that fits 40 calls brings ten times as much, and a noise of 1.5 per answer would hide a twentieth for a minute."""
    loop = Loop(64, lambda load: load / (16 if load > 40 else 160), shared=0.9)
    loop.run_to_change()
    loop.unsteadiness = 1.5
    loop.run(loop.changes[0][0] + 20.0)
    assert loop.limits[:2] == [32, 16]


def bringing(share, limit=256, **more):
    """Another limit brings this share of what the limit brings."""
    page = queue_above(64) if limit > 64 else None
    return Loop(limit, lambda load: load / 100.0 / (1.0 if load == limit else share), page=page, **more)


@pytest.mark.parametrize(
    ("share", "then"),
    [(0.949, (256, "72 in flight brought 5% less")), (0.951, (256, "to compare with 72 once more"))],
)
def test_a_lower_limit_may_lose_a_twentieth_and_no_more(share, then):
    loop = bringing(share)
    loop.run(14.0)
    assert loop.whys[1:] == [then]
    loop.run(60.0)
    assert (loop.limit.limit == 72) is (share > 0.95)


def test_several_steps_of_less_than_a_twentieth_do_not_add_up():
    """A quarter of any load waits, by the page. Each step down loses three in a hundred."""
    page = lambda load, now: ServerLoad(running=load - load // 4, waiting=load // 4)
    loop = Loop(256, lambda load: load**0.85 / 50.0, page=page)
    loop.run(110.0)
    assert loop.whys[2:4] == [
        (256, "to compare with 214 once more"),
        (214, "214 in flight bring 97% of what 256 did"),
    ]
    assert min(loop.limits) == 179, "nor a minute later"
    assert loop.limits[4:6] == [179, 214]


def test_a_lower_limit_is_compared_with_the_best_of_its_trial():
    """Half of any load waits, by the page. 79 bring 1.2 times as much as 256, and 44 bring 1.1 times as much."""
    page = lambda load, now: ServerLoad(running=load // 2, waiting=load - load // 2)
    loop = Loop(256, lambda load: load / (100.0 if load > 150 else 120.0 if load > 60 else 110.0), page=page)
    assert loop.run(60.0) == 79
    assert loop.whys[2:] == [
        (44, "40 calls waited in the server all the time"),
        (79, "79 in flight bring 120% of what 256 did"),
    ]


def test_longer_answers_do_not_flatter_a_limit():
    """72 lose 8 % of what 256 generate. Their answers are longer: less of the time goes before first tokens."""
    loop = bringing(1.0, tokens=50)
    loop.seconds = lambda load: (0.5 + 0.01 * (loop.tokens - 1)) * load / 256 / (1.0 if load == 256 else 0.92)
    loop.first = lambda load: 0.5 / (0.5 + 0.01 * (loop.tokens - 1))
    loop.run_to_change()
    loop.tokens = 59
    loop.run(16.0)
    assert loop.whys[1] == (256, "72 in flight brought 8% less")


def test_answers_in_one_piece_among_streams_tell_the_same():
    loop, numbers = bringing(1.0), itertools.count()
    loop.first = lambda load: 0.2
    loop.run_to_change()
    loop.first = lambda load: 0.2 * (next(numbers) % 2)
    loop.run(16.0)
    assert loop.whys[1] == (256, "to compare with 72 once more")


@pytest.mark.parametrize(("faster", "kept"), [(1.0, True), (1.1, False)])
def test_a_lower_limit_must_hold_against_both_looks_at_the_limit_before(faster, kept):
    loop = bringing(0.97).run_to_change().run_to_change()
    loop.seconds = lambda load: load / 100.0 / faster
    loop.run(loop.now + 15.0)
    assert (loop.limits[2:3] == [72]) is kept


@pytest.mark.parametrize("priority", [0, 3])
def test_a_higher_class_waits_for_no_second_look_and_one_class_is_none(priority):
    for higher, until, limits in [(False, 20.0, [10, 64]), (True, 8.0, [10])]:
        loop = Loop(64, full_at(8, seconds=0.2), page=queue_above(8))
        if higher:
            loop.tell(sample(0.1, 0.05, 8, priority=1))
        loop.run(until, priority=priority)
        assert loop.limits[:2] == limits


# More --------------------------------------------------------------------------------------------------------------


def test_more_is_tried_and_kept_where_it_brings_more():
    loop = Loop(64, full_at(200))
    assert loop.run(200.0) in range(126, 280)
    assert loop.whys[0] == (90, "to see whether more calls at once bring more")
    assert loop.limits[:4] == [90, 126, 177, 248]


def test_more_that_brings_no_more_is_taken_back():
    loop = Loop(256, full_at(200))
    assert loop.run(60.0) == 256
    assert loop.whys[1] == (256, "359 in flight brought no more to speak of")


@pytest.mark.parametrize(("share", "kept"), [(1.025, False), (1.035, True)])
def test_more_is_kept_from_three_in_a_hundred_on(share, kept):
    loop = bringing(share, 64)
    loop.run(22.0)
    assert loop.limits == [90, 126 if kept else 64]


def test_time_that_nobody_got_anything_for_is_no_gain():
    """Every other caller leaves where more than 64 are in flight."""
    loop = Loop(64, lambda load: 1.0)
    while loop.now < 20.0:
        loop.run(loop.now + 1e-9)
        loop.run(loop.now + 1e-9, outcome=Outcome.WASTED if loop.limit.limit > 64 else Outcome.SUCCESS)
    assert loop.whys[1] == (64, "90 in flight brought 30% less")


def test_it_never_goes_above_its_ceiling():
    assert Loop(found(64, 300), full_at(10**6)).run(100.0) == 300


def test_a_low_limit_grows_though_some_of_the_time_is_a_wait_that_less_does_not_shorten():
    # A third of the time is the prompt's own turn, whatever the load.
    loop = Loop(8, lambda load: 1 + load / 1000, first=lambda load: 0.3)
    loop.tell(sample(0.1, 0.1, 1, first_tokens_s=0.01))
    assert loop.run(150.0) > 100


def test_a_limit_does_not_fall_below_the_heaviest_call():
    """What is in flight is one call of 64 sequences, and at times a small one: any lower limit would seem to bring as much."""
    loop = Loop(64, full_at(1000), shared=0.9)
    for second in range(600):
        loop.now = float(second)
        loop.tell(sample(loop.now, 1.0, 64, shared_tokens=90))
        loop.tell(sample(loop.now, 1.0, 64, shared_tokens=90, sequences=64, weight=64))
    assert min([64, *loop.limits]) == 64, "nothing lower is even tried"


def test_trials_that_say_nothing_are_not_repeated_at_once():
    """Jobs of 13 s with a pause between two: no trial comes to an end."""
    loop = Loop(256, full_at(256), shared=0.5)
    while loop.now < 540.0:
        loop.run(loop.now + 13.0)
        loop.now += 5.0
        loop.limit.on_resume(loop.now)
    tried = [at for at, limit, _ in loop.changes if limit < 256]
    assert len(tried) <= 5, "the first void is free; then they are silent for a minute, two, four"


# What ends a trial -------------------------------------------------------------------------------------------------


def trying():
    """A loop in the middle of a trial of less."""
    return Loop(256, full_at(64), page=queue_above(64)).run_to_change()


def test_a_trial_is_void_and_the_limit_back():
    for what in [
        "refusal",
        "a pause",
        "its server is left",
        "the server is known",
        "nothing useful",
        "a restart",
    ]:
        loop = trying()
        if what == "refusal":
            # Of a call that was sent under the limit before: it bounds nothing.
            loop.tell(sample(loop.now, 0.1, 60, outcome=Outcome.DROPPED, admitted_at=256))
        elif what == "a pause":
            loop.limit.on_resume(loop.now + 1.0)
            assert loop.limit.limit < 256
            loop.limit.on_resume(loop.now + 60.0)
        elif what == "its server is left":
            loop.limit.interrupt(loop.now)
        elif what == "the server is known":
            loop.limit.on_known(None, loop.now)
        elif what == "nothing useful":
            for second in range(1, 400):
                loop.tell(sample(loop.now + second, 1.0, 60, outcome=Outcome.WASTED))
        else:
            loop.limit.on_restart(loop.now)
        assert loop.limit.limit == 256, what


@pytest.mark.parametrize("change", [{"at_most": 20}, {"tokens": 200}], ids=["of the load", "of the calls"])
def test_a_trial_says_nothing_beside_a_change(change):
    loop = trying()
    vars(loop).update(change)
    loop.run(loop.now + 12.0)
    assert loop.whys[1] == (256, "the trial of 72 says nothing")


def test_neither_one_long_answer_nor_lists_make_the_calls_others():
    loop = trying()
    loop.tell(sample(loop.now, 1.0, 72, tokens=5000))
    loop.tokens = 400
    assert loop.run(40.0, sequences=4, prompt_tokens=400) == 72


def test_answers_that_were_sent_before_a_change_tell_nothing_of_it():
    loop = trying()
    for _ in range(200):
        loop.now += 0.005
        loop.tell(sample(loop.now, 2.0, 256, in_flight=72, tokens=100))
    loop.run(40.0)
    assert loop.whys[1:] == [(256, "to compare with 72 once more"), (72, "72 in flight bring 100% of what 256 did")]


def test_what_is_silent_speaks_again_where_calls_have_become_others():
    loop = Loop(256, full_at(256), shared=0.9)
    loop.run(230.0)
    assert 200.0 < [at for at, limit, _ in loop.changes if limit == 128][-1] < 220.0
    loop.changes.clear()
    loop.tokens = 400
    # The window in which they change tells nothing for a minute. The next trial would come after 420 s.
    loop.run(310.0)
    assert 128 in loop.limits


def test_of_several_servers_one_is_tried_at_a_time():
    turn = Turn()
    loops = [Loop(found(256, turn=turn), full_at(64), page=queue_above(64)) for _ in range(2)]
    for tenth in range(600):
        for loop in loops:
            loop.run(tenth / 10)
        ended = any(reason.startswith("72 in flight bring") for _, _, reason in loops[0].changes)
        assert ended or loops[1].limit.limit == 256
    assert [loop.limit.limit for loop in loops] == [72, 72]


@pytest.mark.parametrize(("late_ones", "earliest", "latest"), [(0, 60.0, 300.0), (40, 10.0, 20.0)])
def test_a_trial_keeps_other_servers_from_theirs_until_answers_come_late_or_for_minutes(late_ones, earliest, latest):
    turn = Turn()
    first, second = (Loop(found(256, turn=turn), full_at(64), page=queue_above(64)) for _ in range(2))
    first.run_to_change()
    # Nothing more is heard of the first.
    if late_ones:
        first.tell(sample(first.now, 1.0, 72, outcome=Outcome.LATE, sequences=late_ones))
    second.run(latest)
    assert earliest < second.changes[0][0] < latest


def test_an_unsteady_server_that_tells_nothing_apart_is_left_alone():
    loop = Loop(256, full_at(64, seconds=20.0), page=queue_above(64))
    loop.unsteadiness = 3.0
    loop.run(600.0)
    assert loop.limit.limit == 256
