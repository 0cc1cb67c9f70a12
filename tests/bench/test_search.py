"""The search, with servers that are formulas, and on a simulated one."""

import collections
import math
from dataclasses import replace

import pytest
from tests.bench.conftest import made

from batchclient.bench import Slo, Times
from batchclient.bench.answer import lines_of_search
from batchclient.bench.find import TOO_BUSY, find_in
from batchclient.bench.marks import BEHIND, LATE, RETRIED
from batchclient.bench.session import Run
from batchclient.bench.intervals import spanning
from batchclient.bench.search import ENOUGH_CALLS, Outcome, is_clear, search, so_far
from batchclient.bench.strategies import Target
from batchclient.errors import ConfigError


def one(hits, calls, share, per_s):
    """The outcome of one window, with one objective or none."""
    return Outcome(() if share is None else (hits,), calls, () if share is None else (share,), (per_s,))


def run(over, window_of, most=1024.0):
    """Drive a search; return what was found and the values in the order in which they were measured."""
    steps, measured, seen = search(over, most), [], {}
    value = next(steps)
    while True:
        measured.append(value)
        window, before = window_of(value), seen.get(value)
        if before is not None:
            hits = tuple(map(sum, zip(before.hits, window.hits, strict=True)))
            window = Outcome(hits, before.calls + window.calls, window.shares, before.per_s + window.per_s)
        seen[value] = window
        try:
            value = steps.send(window)
        except StopIteration as end:
            return end.value, measured


def knee(at, *, bound=None):
    """A server whose throughput grows up to a limit; with a bound, every call above it is too late."""

    def outcome(value):
        within = bound is None or value <= bound
        return one(1000 if within else 0, 1000, None if bound is None else 0.95, 10.0 * min(value, at))

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
        return one(hits, 1000, 0.95, value)

    found, _ = run("limit", outcome)
    assert found.value == 32
    assert found.outcomes[48].hits == (1000,)
    assert found.outcomes[48].calls >= 2000


def test_a_value_that_breaks_the_objective_at_first_alone_is_no_end_of_the_search():
    """Something kept the server busy while 8 was measured, once."""
    looks = []

    def window(value):
        looks.append(value)
        within = value <= 50 and (value != 8 or looks.count(8) > 1)
        return one(1000 if within else 0, 1000, 0.4, value)

    found, _ = run("limit", window)
    assert found.value == 48
    assert found.neighbour == 64


def test_the_knee_is_not_the_last_value_that_was_measured():
    """From 4 on two doublings gain 8 %, and the last one most of it: above it, nobody has looked."""
    found, measured = run("limit", lambda value: one(0, 1000, None, {1: 40, 2: 80, 4: 100, 8: 101}.get(value, 108)))
    assert found.value <= 16 < max(measured)
    assert found.neighbour is not None
    assert "gains nothing" in found.why


def test_the_greatest_value_is_tried_also_between_two_doublings():
    found, measured = run("limit", knee(math.inf, bound=10_000), most=100)
    assert found.value == 100
    assert found.why == "no higher limit was tried than 100"
    found, measured = run("limit", knee(math.inf, bound=90), most=100)
    assert (found.value, found.neighbour) == (82, 100)


@pytest.mark.parametrize("over", ["limit", "rate"])
def test_a_value_without_a_call_keeps_nothing(over):
    found, measured = run(over, lambda value: one(0, 0, 0.95, 0.0), most=8)
    assert found.value is None
    assert not found.decided
    assert "no call was scheduled" in found.why
    assert so_far({1.0: one(0, 0, 0.95, 0.0)}).value is None
    # A low rate has none in a short window; a higher one has.
    found, _ = run(over, lambda value: one(value * 100 if value > 2 else 0, 100 * value if value > 2 else 0, 0.95, 1.0))
    assert found.value == (None if over == "limit" else 4)


def test_a_rate_below_one_is_found():
    found, _ = run("rate", lambda value: one(1000 if value <= 0.6 else 0, 1000, 0.95, value))
    assert (found.value, found.neighbour) == (0.5, 0.75)


def test_of_several_objectives_each_has_its_own_calls():
    """The first is kept by far, the second is just broken."""
    outcome = Outcome((700, 980), 1000, (0.5, 0.99), (1.0,))
    assert outcome.breaks
    assert is_clear(outcome)
    assert is_clear(Outcome((700, 999), 1000, (0.5, 0.99), (1.0,)))
    assert not is_clear(Outcome((700, 992), 1000, (0.5, 0.99), (1.0,)))
    # One that is clearly broken decides, whatever the other is.
    assert is_clear(Outcome((300, 992), 1000, (0.5, 0.99), (1.0,)))


@pytest.mark.parametrize(("text", "hits"), [("p95<1s", 950), ("p99.9<1s", 999), ("p57<1s", 570)])
def test_as_many_calls_as_were_asked_for_are_enough(text, hits):
    share = Slo(text).share
    assert Outcome((hits,), 1000, (share,), (1.0,)).meets
    assert Outcome((hits - 1,), 1000, (share,), (1.0,)).breaks


def test_no_value_within_the_objective():
    found, measured = run("limit", knee(100, bound=0))
    assert found.value is None
    assert measured == [1]
    assert "even a limit of 1" in found.why


def test_what_is_near_the_objective_is_not_decided():
    found, _ = run("limit", lambda value: one(951 if value <= 8 else 0, 1000, 0.95, value))
    assert found.value == 8
    assert not found.decided
    assert "as far as these calls tell" in found.why


def test_a_rate_is_found_to_an_eighth():
    found, _ = run("rate", lambda value: one(1000 if value <= 200 else 500, 1000, 0.95, value))
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
    assert is_clear(one(980, 1000, 0.95, 1.0))
    assert not is_clear(one(95, 100, 0.95, 1.0))
    assert is_clear(one(1, 2, None, 1.0))


async def test_a_limit_is_found_on_a_server(session):
    begun = await session(Slo("p95<130ms"), times=Times(0.2, 0.4, 5))
    result = await find_in(Run(begun), most=64)
    assert result.complete
    fits = {cell.setting.concurrency for cell in result.measurements if cell.slo_shares[0] > 0.97}
    assert result.recommended.limit in fits
    assert result.recommended.interval.low <= 0.130


async def test_a_budget_ends_a_search_within_a_cell(session):
    seen = []
    begun = await session(Slo("p95<1s"), times=Times(0.5, 1.0, 5))
    result = await find_in(Run(begun, 4.0, seen.append))
    assert not result.complete
    assert result.recommended.limit == result.found.value >= 1
    assert not result.recommended.decided
    assert f"at least {result.found.value:g} keeps it; not searched above" in result.recommended.why
    last = lines_of_search(result, [Slo("p95<1s")], "limit")
    assert any("the budget ended the search after " in line for line in last)
    assert last[-1].startswith("suggested: ")
    assert 1 <= len(result.measurements) == len(seen) <= 3


def test_the_answer_so_far_says_what_is_known():
    kept, broken = one(100, 100, 0.95, 4.0), one(0, 100, 0.95, 8.0)
    assert so_far({4.0: kept}).why == "at least 4 keeps it; not searched above 4"
    both = so_far({4.0: kept, 8.0: broken})
    assert both.why == "at least 4 keeps it, 8 breaks it; not searched to the end"
    assert (both.value, both.neighbour, both.decided) == (4.0, 8.0, False)
    nothing = so_far({1.0: broken})
    assert (nothing.value, nothing.why) == (None, "none up to 1 keeps it")
    assert so_far({2.0: one(9, 9, None, 1.0)}).why == "2 is the best so far; not searched above 2"


class Formulas:
    """A session whose measurements are formulas of the setting and the repetition."""

    def __init__(self, formula, *slos):
        self.slos, self.times, self.target = slos, Times(0, 1, 1), Target("http://formulas/v1", "m", transport=print)
        self._formula = formula

    async def measure(self, setting, repetition):
        return self._formula(setting, repetition)


async def test_the_windows_of_two_objectives_are_not_mixed():
    """In the first window the one is nearer to its bound, in the second the other."""

    def window(setting, repetition):
        shares = (0.51, 1.0) if repetition % 2 == 0 else (0.9, 0.985)
        if setting.concurrency > 4:
            shares = (0.0, 0.0)
        return made(setting, repetition, setting.concurrency, slos=shares)

    result = await find_in(Run(Formulas(window, Slo("p50<1s"), Slo("p99<1s"))))
    assert result.recommended.limit == 4
    assert result.found.outcomes[4].shares == (0.5, 0.99)
    windows = [cell for cell in result.measurements if cell.setting.concurrency == 4]
    assert result.found.outcomes[4].hits == tuple(sum(cell.slo_hits[place] for cell in windows) for place in (0, 1))


async def test_a_rate_that_no_longer_window_would_keep_is_not_the_answer():
    """The server makes 100 calls a second; an objective of many seconds holds for a while above it."""

    def window(setting, repetition):
        marks = (BEHIND,) if setting.rate > 100 else ()
        return made(setting, repetition, min(setting.rate, 100), slos=(float(setting.rate < 200),), marks=marks)

    slos = [Slo("p95<10s")]
    result = await find_in(Run(Formulas(window, *slos)), "rate")
    assert (result.recommended.rate, result.recommended.decided) == (96, True)
    assert result.recommended.why == "at 112 calls arrive faster than they are answered"


async def test_low_rates_take_one_window_each_and_the_answer_takes_what_decides():
    """A window has 2 seconds: some calls at a low rate, of which none misses the objective below 20 a second."""

    def window(setting, repetition):
        calls = round(2 * setting.rate) or 1
        hits = calls if setting.rate < 20 else 0
        cell = made(setting, repetition, setting.rate, slos=(hits / calls,))
        return replace(cell, scheduled=calls, answered=calls, slo_hits=(hits,))

    result = await find_in(Run(Formulas(window, Slo("p95<1s"))), "rate")
    windows = collections.Counter(cell.setting.rate for cell in result.measurements)
    assert [windows[rate] for rate in (1, 2, 4, 8)] == [1, 1, 1, 1]
    # 73 calls without a miss have an interval above 0.95.
    assert result.recommended.rate == 16
    assert (windows[16], result.recommended.decided) == (3, True)


async def test_one_late_window_is_measured_again_and_does_not_count():
    def window(setting, repetition):
        late = setting.concurrency in (2, 8) and repetition == 0
        within = setting.concurrency <= 8 and not late
        marks = (LATE,) if late else ()
        return made(setting, repetition, setting.concurrency, slos=(1.0 if within else 0.0,), marks=marks)

    result = await find_in(Run(Formulas(window, Slo("p95<1s"))))
    assert [cell.setting.concurrency for cell in result.measurements][:4] == [1, 2, 2, 4]
    assert (result.recommended.limit, result.recommended.decided) == (8, True)
    assert "busy" not in result.recommended.why


async def test_a_machine_that_is_always_late_decides_nothing():
    def window(setting, repetition):
        return made(setting, repetition, setting.concurrency, slos=(float(setting.concurrency <= 8),), marks=(LATE,))

    result = await find_in(Run(Formulas(window, Slo("p95<1s"))))
    assert result.recommended.limit == 8
    assert not result.recommended.decided
    assert TOO_BUSY in result.recommended.why


async def test_the_interval_is_that_of_the_objectives_own_percentile(session):
    result = await find_in(Run(await session(Slo("p80<1s"), times=Times(0.2, 0.4, 5))), most=2)
    cells = [cell for cell in result.measurements if cell.setting.concurrency == result.recommended.limit]
    assert result.recommended.interval == spanning([cell.times["latency"].intervals[0.8] for cell in cells])
    assert lines_of_search(result, [Slo("p80<1s")], "limit")[0].startswith("p80 < 1 s: limit ")


async def test_calls_that_needed_another_attempt_are_told_with_the_answer():
    def window(setting, repetition):
        return made(setting, repetition, min(setting.concurrency, 4), marks=(RETRIED,), retried=300)

    slos = [Slo("p95<1s")]
    lines = lines_of_search(await find_in(Run(Formulas(window, *slos))), slos, "limit")
    assert "30.0% of the calls needed another attempt: the server fails or refuses some requests." in lines


async def test_nothing_within_the_objective_as_far_as_few_calls_tell_is_not_decided():
    slos = [Slo("p95<1s")]
    result = await find_in(Run(Formulas(lambda *told: made(*told, 1.0, slos=(0.949,)), *slos)), most=1)
    assert result.recommended is None
    assert lines_of_search(result, slos, "limit")[0].startswith("p95 < 1 s: not decided: even a limit of 1 breaks")


@pytest.mark.parametrize(
    ("over", "most"), [("limit", 0.5), ("limit", -1), ("rate", 0), ("rate", math.inf), ("limit", True)]
)
async def test_a_wrong_greatest_value_is_refused(over, most):
    with pytest.raises(ConfigError, match="most") as refused:
        await find_in(Run(Formulas(made, Slo("p95<1s"))), over, most=most)
    assert refused.value.field == "most"


async def test_a_rate_needs_an_objective(session):
    with pytest.raises(ConfigError, match="objective"):
        await find_in(Run(await session()), "rate")
