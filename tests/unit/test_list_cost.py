"""The cost of a plain list, fitted to what lists took, and the cap that follows from it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchclient._core.list_cost import ListCost, ListCosts

SIZES = (1, 2, 4, 8, 16, 24, 32)


def fed(lists=64, *, fixed_s=0.1, prompt_s=0.01, sizes=SIZES, hiccups=(), noise=0.0, seed=0):
    rng, cost = random.Random(seed), ListCost()
    for number in range(lists):
        prompts = sizes[number % len(sizes)]
        seconds = (fixed_s + prompt_s * prompts) * (1 + rng.gauss(0, noise))
        cost.learn(prompts, 30.0 if number in hiccups else seconds)
    return cost


def test_the_line_through_exact_points():
    assert fed().fit(0.0) == pytest.approx((0.1, 0.01))


def test_the_documented_cap():
    # 0.1 s fixed, 10 ms a prompt: 90 prompts take 1 s, a tenth of it fixed; 89 do not.
    assert fed().cap(0.0) == 90
    assert 0.1 <= (0.1 + 0.01 * 90) / 10 + 1e-12
    assert not 0.1 <= (0.1 + 0.01 * 89) / 10


@pytest.mark.parametrize("hiccups", [{0}, {63}, set(range(0, 64, 5)), set(range(50, 64))])
def test_hiccups_do_not_move_it(hiccups):
    assert fed(hiccups=hiccups).cap(0.0) == pytest.approx(90, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_a_tenth_moves_it_little(seed):
    fixed_s, prompt_s = fed(noise=0.1, seed=seed).fit(0.0)
    assert fixed_s == pytest.approx(0.1, rel=0.25)
    assert prompt_s == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize(
    ("lists", "sizes", "known"),
    [
        (15, SIZES, False),
        (16, SIZES, True),
        (64, (8, 16, 32), False),
        (64, (8, 10, 12, 16), True),
        (64, (9, 10, 12, 16), False),
        (64, (16,), False),
    ],
)
def test_it_speaks_when_enough_lists_of_enough_sizes_were_seen(lists, sizes, known):
    assert (fed(lists, sizes=sizes).cap(0.0) is not None) is known


@pytest.mark.parametrize("prompt_s", [0.0, -0.001])
def test_where_time_does_not_grow_with_the_list_there_is_no_cap(prompt_s):
    assert fed(prompt_s=prompt_s).cap(0.0) is None


def test_a_list_is_never_capped_below_8():
    assert fed(fixed_s=0.0).cap(0.0) == 8
    assert fed(fixed_s=-0.005).cap(0.0) == 8


def test_the_last_64_lists_count():
    cost = fed()
    for number in range(64):
        cost.learn(SIZES[number % 7], 0.2 + 0.01 * SIZES[number % 7])
    assert cost.cap(0.0) == 180


def test_it_is_fitted_once_a_second_at_most():
    cost = fed()
    assert cost.cap(10.0) == 90
    for number in range(64):
        cost.learn(SIZES[number % 7], 0.2 + 0.01 * SIZES[number % 7])
    assert cost.cap(10.9) == 90
    assert cost.cap(11.0) == 180


def test_too_few_lists_leave_the_second_free_for_the_next():
    cost = fed(15)
    assert cost.cap(0.0) is None
    cost.learn(2, 0.12)
    assert cost.cap(0.5) is None
    assert cost.cap(1.0) == 90


def test_a_fit_that_cannot_be_made_anew_holds_for_a_minute():
    cost = fed()
    assert cost.cap(0.0) == 90
    for _ in range(64):
        cost.learn(90, 1.0)
    assert cost.cap(60.0) == 90
    assert cost.cap(60.1) is None


# What is told of it --------------------------------------------------------------------------------------------------


def refed(cost, fixed_s, prompt_s=0.01):
    for number in range(64):
        cost.learn(SIZES[number % 7], fixed_s + prompt_s * SIZES[number % 7])


def test_a_cap_is_told_with_what_a_list_costs():
    cost = fed(fixed_s=0.012, prompt_s=0.0013)
    assert not cost.has_news, "nobody has asked for the cap"
    assert cost.cap(0.0) == 84
    assert cost.has_news
    told = cost.change(128)
    assert told == (128, 84, "a list costs 12 ms and 1.3 ms a prompt: beyond 84 prompts it only waits")
    assert not cost.has_news
    assert cost.change(128) is None, "it is told once"


def test_a_cap_that_bounds_nothing_is_not_told():
    cost = fed()
    assert cost.cap(0.0) == 90
    assert cost.change(90) is None
    assert cost.change(64) is None


@pytest.mark.parametrize(
    ("fixed_s", "told"), [(0.1, None), (0.13, None), (0.07, None), (0.14, (90, 126)), (0.06, (90, 54))]
)
def test_a_change_of_more_than_a_third_is_told(fixed_s, told):
    cost = fed()
    cost.cap(0.0)
    cost.change(256)
    refed(cost, fixed_s)
    cost.cap(1.0)
    change = cost.change(256)
    assert (None if change is None else change[:2]) == told


def test_many_small_changes_are_told_once_they_have_added_up():
    cost, told = fed(), []
    cost.cap(0.0)
    cost.change(256)
    for second in range(1, 6):
        refed(cost, 0.1 + 0.01 * second)
        cost.cap(float(second))
        told.append(cost.change(256))
    assert [change and change[:2] for change in told] == [None, None, None, (90, 126), None]


def test_a_cap_that_is_gone_is_taken_back_however_little_it_was():
    cost = fed()
    cost.cap(0.0)
    assert cost.change(150)[:2] == (150, 90)
    refed(cost, 0.115)
    cost.cap(1.0)
    assert cost.change(110) is None
    assert cost.change(100) == (90, 100, "a list costs 115 ms and 10 ms a prompt: beyond 104 prompts it only waits")
    assert cost.change(100) is None


def test_a_fit_that_has_been_dropped_is_told():
    cost = fed()
    cost.cap(0.0)
    cost.change(200)
    for _ in range(64):
        cost.learn(90, 1.0)
    assert cost.cap(60.1) is None
    assert cost.has_news
    assert cost.change(200) == (90, 200, "what a list costs is not known any more")
    assert cost.change(300) is None, "that lists may be longer is told by whoever says so"


def test_what_does_not_grow_with_the_list_is_told_so():
    cost = fed()
    cost.cap(0.0)
    cost.change(200)
    refed(cost, 0.1, 0.0)
    cost.cap(1.0)
    assert cost.change(200) == (90, 200, "a list takes no longer for its prompts")


def test_what_others_do_to_the_list_cap_is_not_told_here():
    cost = fed()
    cost.cap(0.0)
    assert cost.change(200)[:2] == (200, 90)
    assert cost.change(40) is None, "the server takes no more than 40 now"
    assert cost.change(200) is None, "and again what it took"


def test_times_are_told_in_milliseconds_of_three_places():
    cost = fed(fixed_s=-0.5, prompt_s=1.2345)
    cost.cap(0.0)
    assert cost.change(64)[2] == "a list costs 0 ms and 1,234 ms a prompt: beyond 8 prompts it only waits"


def test_what_was_told_is_taken_back_after_the_server_was_started_anew():
    costs = ListCosts()
    for number in range(64):
        cost = costs.learn(b"a", SIZES[number % 7], 0.1 + 0.01 * SIZES[number % 7])
    costs.cap(b"a", 0.0)
    assert cost.change(200)[:2] == (200, 90)
    costs.forget()
    cost = costs.learn(b"a", 1, 0.1)
    assert cost.has_news
    assert cost.change(200) == (90, 200, "what a list costs is not known any more")


def test_keys_have_costs_of_their_own():
    costs = ListCosts()
    for number in range(64):
        size = SIZES[number % 7]
        costs.learn(b"a", size, 0.1 + 0.01 * size)
        costs.learn(b"b", size, 0.02 + 0.01 * size)
    assert (costs.cap(b"a", 0.0), costs.cap(b"b", 0.0), costs.cap(b"c", 0.0)) == (90, 18, None)
    costs.forget()
    assert costs.cap(b"a", 0.0) is None


def test_the_keys_used_last_are_kept():
    costs = ListCosts()
    for number in range(64):
        costs.learn(b"kept", SIZES[number % 7], 0.1 + 0.01 * SIZES[number % 7])
    for number in range(200):
        costs.learn(b"%d" % number, 1, 1.0)
        costs.learn(b"kept", SIZES[number % 7], 0.1 + 0.01 * SIZES[number % 7])
    assert len(costs._by_key) == 64
    assert costs.cap(b"kept", 0.0) == 90


@given(st.lists(st.tuples(st.integers(1, 1024), st.floats(0, 1e6)), max_size=80))
def test_any_lists_give_a_cap_or_none(lists):
    cost = ListCost()
    for prompts, seconds in lists:
        cost.learn(prompts, seconds)
    cap = cost.cap(0.0)
    assert cap is None or 8 <= cap <= 1e9
