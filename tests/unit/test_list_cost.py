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
