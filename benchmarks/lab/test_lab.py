"""The laboratory simulates what it says, as real servers were measured; and what the client's limit promises on it.

    python -m pytest benchmarks/lab

Every run is in virtual time. ``make long`` runs this file, and nothing else in ``tests`` knows the laboratory.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from benchmarks.lab.asker import client_setup, limit_setup
from benchmarks.lab.drawn_check import check
from benchmarks.lab.drawn_runs import ARMS, ArmRun, FixedRun, best
from benchmarks.lab.drawn_table import Result
from benchmarks.lab.draws import FAMILIES, draw
from benchmarks.lab.driver import Run, Trace, simulate
from benchmarks.lab.length_grouping import STATIC_ANSWERS, STATIC_LIMITS, static_rates
from benchmarks.lab.profiles import SCENARIOS, RateLimit, Scenario
from benchmarks.lab.strategies import BATCH, STRATEGIES, cases, run
from benchmarks.lab.workloads import Callers, Calls, Closed, Conversations, Lengths, Once
from tests.core import (
    Limit,
    Objective,
    Search,
)

from batchclient.simulator import PROFILES, Profile

pytestmark = pytest.mark.long

SHORT_S = 20.0
SERVER = Profile("test", "", 0.01, 10e-9, 50e-6, prefill_token_s=20e-6, max_num_seqs=256)
SHORT = Calls(Lengths(50), Lengths(20), 20)


def short(name: str, **changes: object) -> Scenario:
    return replace(SCENARIOS[name], duration_s=SHORT_S, **changes)


def found() -> Limit:
    """The limit of a client that was told nothing."""
    return Limit(Search())


def fixed(limit: int) -> Limit:
    return Limit(limit)


def settled(trace: Trace) -> float:
    return trace.throughput(trace.duration_s / 2, trace.duration_s)


def nothing_is_lost(trace: Trace) -> bool:
    return trace.submitted == trace.resolved + trace.failed + trace.left and trace.over_limit == 0


# --- draws ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draw_is_within_its_ranges_always_the_same_and_loses_no_call(family):
    assert [draw(family, seed) for seed in range(5)] == [draw(family, seed) for seed in range(5)]
    for seed in range(30):
        scenario = draw(family, seed).scenario
        server, calls = scenario.server, scenario.workload.calls
        assert 0.004 <= server.step_s <= 0.03 and 15e-6 <= server.compute_s <= 300e-6
        longest = calls.prompts.most_tokens if calls.prompts.sigma else calls.prompts.mean_tokens
        assert longest + calls.outputs.most_tokens <= server.kv_tokens
    scenario = draw(family, 2).scenario
    if family == "once":
        scenario = replace(scenario, workload=replace(scenario.workload, count=50))
    else:
        scenario = replace(scenario, duration_s=3.0, join_every_s=scenario.join_every_s / 20)
    for setup in (limit_setup(scenario, fixed(16)), client_setup(ARMS["default"])):
        traces = Run(scenario, setup, 2).run()
        assert len(traces) == scenario.clients and traces[0].resolved
        assert all(map(nothing_is_lost, traces))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_of_a_scenario_ends_once_and_the_same_seed_is_the_same_run(name):
    first, same = (simulate(short(name), found(), seed=1) for _ in range(2))
    assert first == same
    assert nothing_is_lost(first) and len(first.ends) == first.resolved > 0


def test_the_best_fixed_limit_is_the_smallest_within_a_hundredth_and_shares_are_of_it():
    grid = [FixedRun(limit, whole, whole, 1.0, 0.0) for limit, whole in ((8, 99), (4, 98.5), (16, 99.4))]
    assert best(grid).limit == 4
    shares = [0.8, 0.9]
    rest = 2.0, 0.0, 1.0, 9, 0, 9, 0, 0, 8, ((0.0, 8),), "-", 60, 0
    runs = [
        ArmRun("neighbour", 1, arm, False, False, 100 * share, 100 * share, *rest)
        for arm, share in zip(("default", "fixed-64"), shares, strict=True)
    ]
    results = [Result(draw("neighbour", 1), run, [FixedRun(16, 100, 100, 1.0, 0.0)]) for run in runs]
    assert [result.share for result in results] == pytest.approx(shares)
    (missed,) = check(results)
    assert not missed.reached


# --- the server, and what stands before it ---


@pytest.mark.parametrize(
    ("limit", "step_s"),
    [
        # max(12 ms + 12 ns · 32 · (100 + 150/2), 32 · 60 µs) + 32/150 · 100 · 20 µs
        (32, 0.0120672 + 0.00042667),
        # max(12 ms + 12 ns · 300 · 175, 300 · 60 µs) + 300/150 · 100 · 20 µs
        (300, 0.018 + 0.004),
    ],
)
def test_a_fixed_limit_has_the_throughput_of_the_engines_formula(limit, step_s):
    engine = Profile("test", "", 0.012, 12e-9, 60e-6, prefill_token_s=20e-6, max_num_seqs=1024)
    # Resident tokens of spread outputs would be more than p + o/2; with sigma 0.3 they do not run in step.
    calls = Calls(Lengths(100), Lengths(150, 0.3), max_tokens=1024)
    settings = {"refill_s": 0.0, "refill_ratio": 0.0, "linger_s": 0.0}
    scenario = Scenario("test", engine, Closed(calls), duration_s=60.0, settings=settings)
    assert settled(simulate(scenario, fixed(limit))) == pytest.approx(limit / step_s, rel=0.03)


@pytest.mark.parametrize(("limit", "measured"), [(8, 2461), (16, 3927), (32, 5563), (64, 6525)])
def test_the_fitted_server_gives_what_the_real_one_gave(limit, measured):
    assert settled(simulate(short("tiny-cpu"), fixed(limit))) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("limit", "measured"), [(1, 62), (8, 176), (48, 65)])
def test_the_prefix_cache_thrashes_where_the_real_one_did(limit, measured):
    # Prompts/s; four tokens each. The real figures are medians of up to five runs, 6 to 7 % apart. The cache holds
    # nine conversations; with twelve the real one gave 66, and this one finds every second prefix.
    talks = replace(SCENARIOS["prefix"].workload, count=limit)
    assert settled(simulate(short("prefix", workload=talks), fixed(limit))) / 4 == pytest.approx(measured, rel=0.2)


def test_the_api_server_is_passed_one_after_another():
    # 0.42 ms a prompt, 0.55 ms a request and 0.03 ms a reply, for lists of 32.
    busy = replace(PROFILES["gpu"], request_s=0.55e-3, prompt_s=0.42e-3, event_s=0.03e-3)
    scenario = Scenario("", busy, Closed(Calls(Lengths(12), Lengths(1), max_tokens=1)), duration_s=10.0)
    trace = simulate(scenario, fixed(512))
    assert settled(trace) == pytest.approx(1 / (0.42e-3 + (0.55e-3 + 0.03e-3) / 32), rel=0.02)


def test_what_stands_before_a_server_refuses_counts_and_cuts():
    bounded = replace(SERVER, max_queued=10)
    allowed, refused = (simulate(Scenario("", bounded, Closed(SHORT), duration_s=3.0), fixed(n)) for n in (10, 12))
    assert allowed.refused == 0 and allowed.resolved and refused.refused and refused.rejected
    rated = Closed(replace(SHORT, alone_reason="one a request"), depth=64)
    trace = simulate(Scenario("", SERVER, rated, duration_s=9.9, rate=RateLimit(5, 2.0)), fixed(4))
    assert 20 <= trace.resolved <= 25 and trace.refused
    # A call takes 1.01 s; of 8 at once in one slot the fifth's first token would come after 4 s.
    calls = Calls(Lengths(50), Lengths(100), 2000, alone_reason="one a request")
    gateway = Scenario("", replace(SERVER, max_num_seqs=1), Closed(calls, 16), duration_s=8.0, gateway_s=3.5)
    alone, crowded = (simulate(gateway, fixed(limit)) for limit in (2, 8))
    assert (alone.cut, alone.resolved) == (0, 7)
    assert crowded.cut >= 4 and nothing_is_lost(crowded)


def test_who_asks():
    job = simulate(Scenario("", SERVER, Once(SHORT, 40), duration_s=1000.0), fixed(16))
    assert job.resolved == 40 and job.duration_s == job.ends[-1] < 2.0
    joining = Scenario("", SERVER, Closed(SHORT, 64), duration_s=4.0, clients=3, join_every_s=1.0)
    traces = Run(joining, limit_setup(joining, fixed(8)), 1).run()
    assert [trace.limits[0][0] for trace in traces] == [0.0, 1.0, 2.0]
    talks = simulate(
        Scenario("", SERVER, Conversations(Calls(Lengths(300), Lengths(4), 4), 20, 5), duration_s=3.0), fixed(1024)
    )
    assert talks.submitted - talks.resolved == talks.left == 20
    impatient = Callers(replace(SHORT, timeout_s=0.5), 30)
    again = simulate(Scenario("", replace(SERVER, max_num_seqs=2), impatient, duration_s=3.0), fixed(4))
    assert again.failed and again.resolved and again.left <= 30


@pytest.mark.parametrize("limit", STATIC_LIMITS)
@pytest.mark.parametrize("answers", ["1 token", "16 tokens"])
def test_grouping_by_length_is_worth_half_as_much_again_on_a_server_that_pads(answers, limit):
    came, nearest, one = (
        mean(static_rates(arm, STATIC_ANSWERS[answers], STATIC_LIMITS[limit], texts=2048, seeds=2))
        for arm in ("arrival order", "nearest lengths", "one bucket")
    )
    assert min(nearest, one) > 1.5 * came


def test_the_textbooks_strategies_answer_everything_and_stand_in_its_order():
    for title, scenario in cases(quick=True).items():
        figures = {strategy.name: run(scenario, strategy, seed=1) for strategy in STRATEGIES}
        assert all(one["unanswered"] == 0 and one["answers"] > 100 for one in figures.values()), title
        assert all(
            one["prompts_per_request"] <= (1 if name == "sequential" else BATCH) for name, one in figures.items()
        )
        if "continuous batching: a job" in title:
            sequential, static, *_, continuous, limit_found = (one["answers_per_s"] for one in figures.values())
            assert 5 * sequential < static < 0.5 * min(continuous, limit_found)


# --- what the limit promises ---


@pytest.mark.xfail(reason="the search that begins at 256: up to 831 refused")
def test_a_server_that_refuses_is_not_flooded_with_what_it_refuses():
    """Some 5,000 sequences are served. An earlier version sent up to 60,000 more once a list or two were refused.

    From a first limit of 64, which such a server takes whole, 324 to 497 are refused; from 256 up to 831.
    """
    for seed in range(5):
        assert simulate(SCENARIOS["rejecting"], found(), seed).rejected <= 500


@pytest.mark.parametrize(
    ("objective_s", "most_s", "least"),
    [(12.0, 12.5, 0.9), (10.0, 10.8, 0.66)],
)
def test_a_latency_objective_is_kept_where_lengths_differ(objective_s, most_s, least):
    # Fixed limits of 256, 128 and 16 have 12.65, 9.44 and 8.46 s, at 1, 0.66 and 0.1 of the throughput.
    # An earlier version looked only at answers sent after its last change; of those the short ones had ended.
    for seed in range(3):
        trace = simulate(SCENARIOS["A"], Limit(Search(), [Objective(objective_s)]), seed)
        assert trace.latency_s(120, 240)[1] <= most_s
        assert trace.throughput(120, 240) >= least * 12_482


def test_callers_who_leave_early_get_their_answers():
    # In one flight of 128 hardly one is answered in time. A fixed 64 answers nearly all that this server can.
    answered = simulate(SCENARIOS["timeouts"], found()).resolved
    assert answered >= 0.8 * simulate(SCENARIOS["timeouts"], fixed(64)).resolved


@pytest.mark.xfail(reason="each halving from 256 takes 30 s: 35 on the mean, and 18 from 125 s on")
def test_what_a_gateway_cuts_after_a_long_silence_lowers_the_limit():
    # One slot, answers of 1.2 s, a gateway that waits for 30 s: of 64 in flight it would cut more than half.
    server = replace(SCENARIOS["A"].server, max_num_seqs=1)
    calls = Calls(Lengths(50), Lengths(100), 100, alone_reason="one a request")
    scenario = Scenario("", server, Closed(calls, 256), duration_s=150.0, gateway_s=30.0, has_page=False)
    trace = simulate(scenario, found())
    assert trace.cut
    assert trace.mean_limit(75, 150) <= 30
