"""The search, with servers that are formulas, and on a simulated one."""

import math

import pytest

from batchclient.bench import Slo, Times
from batchclient.bench.answer import lines_of_search
from batchclient.bench.find import find_in
from batchclient.bench.search import ENOUGH_CALLS, Outcome, is_clear, search, so_far
from batchclient.errors import ConfigError


def run(over, outcome_of, most=1024.0):
    """Drive a search; return what was found and the values in the order in which they were measured."""
    steps, measured = search(over, most), []
    value = next(steps)
    while True:
        measured.append(value)
        try:
            value = steps.send(outcome_of(value))
        except StopIteration as end:
            return end.value, measured


def knee(at, *, bound=None):
    """A server whose throughput grows up to a limit; with a bound, every call above it is too late."""

    def outcome(value):
        within = bound is None or value <= bound
        return Outcome(1000 if within else 0, 1000, None if bound is None else 0.95, (10.0 * min(value, at),))

    return outcome


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 8, 13, 48, 64, 100, 700])
def test_the_highest_limit_within_the_objective_is_found_to_a_step(bound):
    found, _ = run("limit", knee(10_000, bound=bound))
    assert found.value <= bound < 1.5 * found.value + 1
    assert found.decided
    assert found.neighbour > bound


@pytest.mark.parametrize("at", [1, 6, 16, 60, 256])
def test_without_an_objective_the_knee_is_found(at):
    found, _ = run("limit", knee(at))
    assert at / 1.5 <= found.value <= at * 1.5
    assert "gains nothing" in found.why


def test_the_chosen_value_and_its_neighbour_are_measured_again():
    found, measured = run("limit", knee(10_000, bound=50))
    assert found.value == 48
    assert measured.count(48) == 2
    assert measured.count(64) == 2
    assert measured[:7] == [1, 2, 4, 8, 16, 32, 64]


def test_a_second_look_that_is_worse_leads_to_the_next_choice():
    looks = []

    def outcome(value):
        looks.append(value)
        # 48 held at first, and did not hold again.
        hits = 1000 if value < 48 or (value == 48 and looks.count(48) == 1) else 0
        return Outcome(hits, 1000, 0.95, (value,))

    found, _ = run("limit", outcome)
    assert found.value == 32
    assert found.outcomes[48].hits == 1000
    assert found.outcomes[48].calls >= 2000


def test_no_value_within_the_objective():
    found, measured = run("limit", knee(100, bound=0))
    assert found.value is None
    assert measured == [1]
    assert "even a limit of 1" in found.why


def test_what_is_near_the_objective_is_not_decided():
    found, _ = run("limit", lambda value: Outcome(951 if value <= 8 else 0, 1000, 0.95, (value,)))
    assert found.value == 8
    assert not found.decided
    assert "as far as these calls tell" in found.why


def test_a_rate_is_found_to_an_eighth():
    found, _ = run("rate", lambda value: Outcome(1000 if value <= 200 else 500, 1000, 0.95, (value,)))
    assert found.value == 192
    assert found.neighbour == 224


def test_the_search_ends_at_the_greatest_value():
    found, measured = run("limit", knee(math.inf, bound=10_000), most=16)
    assert found.value == max(measured) == 16
    assert "no higher limit" in found.why


def test_833_calls_tell_97_from_95_of_100():
    """One-sided 5 %, power 0.9: (1.645 sqrt(.95 .05) + 1.282 sqrt(.97 .03))² / .02²."""
    calls = ((1.645 * math.sqrt(0.95 * 0.05) + 1.282 * math.sqrt(0.97 * 0.03)) / 0.02) ** 2
    assert round(calls) == pytest.approx(ENOUGH_CALLS, abs=3)
    assert is_clear(Outcome(980, 1000, 0.95, (1.0,)))
    assert not is_clear(Outcome(95, 100, 0.95, (1.0,)))
    assert is_clear(Outcome(1, 2, None, (1.0,)))


def test_a_limit_is_found_on_a_server(virtually, session):
    async def search_it():
        begun = await session(Slo("p95<130ms"), times=Times(0.2, 0.4, 5))
        return await find_in(begun, most=64)

    result = virtually(search_it())
    assert result.complete
    fits = {cell.setting.concurrency for cell in result.cells if cell.slo_shares[0] > 0.97}
    assert result.recommended.limit in fits
    assert result.recommended.interval.low <= 0.130


def test_a_budget_ends_a_search_within_a_cell(virtually, session):
    seen = []

    async def search_it():
        begun = await session(Slo("p95<1s"), times=Times(0.5, 1.0, 5))
        return await find_in(begun, budget_s=4.0, on_cell=seen.append)

    result = virtually(search_it())
    assert not result.complete
    assert result.recommended.limit == result.found.value >= 1
    assert not result.recommended.decided
    assert f"at least {result.found.value:g} keeps it; not searched above" in result.recommended.why
    last = lines_of_search(result, [Slo("p95<1s")], "limit")
    assert any("the budget ended the search after " in line for line in last)
    assert last[-1].startswith("suggested: ")
    assert 1 <= len(result.cells) == len(seen) <= 3


def test_the_answer_so_far_says_what_is_known():
    kept, broken = Outcome(100, 100, 0.95, (4.0,)), Outcome(0, 100, 0.95, (8.0,))
    assert so_far({4.0: kept}).why == "at least 4 keeps it; not searched above 4"
    both = so_far({4.0: kept, 8.0: broken})
    assert both.why == "at least 4 keeps it, 8 breaks it; not searched to the end"
    assert (both.value, both.neighbour, both.decided) == (4.0, 8.0, False)
    nothing = so_far({1.0: broken})
    assert (nothing.value, nothing.why) == (None, "none up to 1 keeps it")
    assert so_far({2.0: Outcome(9, 9, None, (1.0,))}).why == "2 is the best so far; not searched above 2"


def test_a_rate_needs_an_objective(virtually, session):
    async def search_it():
        await find_in(await session(), "rate")

    with pytest.raises(ConfigError, match="objective"):
        virtually(search_it())
