"""Servers and work drawn at random (``benchmarks/lab/draws.py``): that they are what they say, and that nothing is lost on them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from benchmarks.lab import drawn_page
from benchmarks.lab.asker import client_setup, limit_setup
from benchmarks.lab.drawn_check import Finding, check
from benchmarks.lab.drawn_runs import ARMS, ArmRun, FixedRun, _may_be_best, best, run_fixed
from benchmarks.lab.drawn_table import Result, lines, percentile
from benchmarks.lab.draws import FAMILIES, draw
from benchmarks.lab.driver import Run, simulate
from benchmarks.lab.gateway import CallWindow
from benchmarks.lab.prefix_cache import CachingEngine
from benchmarks.lab.profiles import RateLimit, Scenario
from benchmarks.lab.workloads import Callers, Calls, Closed, Conversations, Lengths, Once

from batchclient._core.limits import FixedLimit
from batchclient._core.limits.control import LimitControl
from batchclient.simulator.engine import Sequence
from batchclient.simulator.profiles import Profile

pytestmark = pytest.mark.long

SERVER = Profile("test", "", 0.01, 10e-9, 50e-6, prefill_token_s=20e-6, max_num_seqs=256)
SHORT = Calls(Lengths(50), Lengths(20), 20)


def fixed(limit: int) -> LimitControl:
    """As a client makes it."""
    return LimitControl(FixedLimit(limit))


def shortened(family: str, seed: int, seconds: float = 3.0):
    """A draw with its work, for a few seconds."""
    drawn = draw(family, seed)
    workload = drawn.scenario.workload
    if isinstance(workload, Once):
        workload = replace(workload, count=min(50, workload.count))
    scenario = replace(drawn.scenario, workload=workload, join_every_s=drawn.scenario.join_every_s / 20)
    if family != "once":
        scenario = replace(scenario, duration_s=seconds)
    return replace(drawn, scenario=scenario, judged_from_s=0.0)


# --- what is drawn ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_and_a_seed_always_give_the_same_draw(family):
    assert [draw(family, seed) for seed in range(5)] == [draw(family, seed) for seed in range(5)]
    assert draw(family, 1) != draw(family, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_are_within_their_ranges(family):
    for seed in range(30):
        scenario = draw(family, seed).scenario
        server, calls = scenario.server, scenario.workload.calls
        assert 0.004 <= server.step_s <= 0.03 and 15e-6 <= server.compute_s <= 300e-6
        if family != "agents":
            assert server.kv_tokens >= 8 * (calls.prompts.mean_tokens + calls.outputs.mean_tokens)
        longest = calls.prompts.most_tokens if calls.prompts.sigma else calls.prompts.mean_tokens
        assert longest + calls.outputs.most_tokens <= server.kv_tokens
        assert 0 < scenario.duration_s <= (20_000 if family == "once" else 600)
        if scenario.known is not None:
            assert 0.1 <= scenario.known.after_s <= 0.3
            assert scenario.known.facts.slots == (server.max_num_seqs if family == "small" else None)


def test_half_are_known_and_half_have_a_page():
    for first in (1, 200):
        draws = [draw("small", seed) for seed in range(first, first + 8)]
        mixtures = {(each.known, each.has_page, each.scenario.gateway_s is not None) for each in draws}
        assert len(mixtures) == 8
    assert draws[0].with_page(True).has_page and not draws[0].with_page(False).has_page


# --- that they run ---


@pytest.mark.parametrize("arm", ["default", None])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost(family, arm):
    drawn = shortened(family, 2)
    setup = limit_setup(drawn.scenario, fixed(16)) if arm is None else client_setup(ARMS[arm])
    traces = Run(drawn.scenario, setup, 2).run()
    assert len(traces) == drawn.scenario.clients
    for trace in traces:
        assert trace.submitted == trace.resolved + trace.failed + trace.left
        assert not trace.over_limit
    assert traces[0].resolved


def test_a_job_ends_with_its_last_answer():
    trace = simulate(Scenario("", SERVER, Once(SHORT, 40), duration_s=1000.0), fixed(16))
    assert trace.resolved == 40 and trace.duration_s == trace.ends[-1] < 2.0


def test_a_client_is_told_which_server_it_is_if_it_asks():
    drawn = next(each for each in map(lambda seed: shortened("closed", seed, 1.0), range(20)) if each.known)
    for arm, server in (("default", "vllm 0.32.0"), ("no-page", None)):
        run = Run(drawn.scenario, client_setup(ARMS[arm]), 1)
        run.run()
        assert run.clients[0].core.statistics().endpoints[0].server == server


def test_slots_bound_a_limit_that_is_found():
    drawn = next(each for each in map(lambda seed: shortened("small", seed), range(20)) if each.known)
    trace = Run(drawn.scenario, client_setup({}), 1).run()[0]
    assert trace.limits[-1][1] <= drawn.slots


# --- what stands before a server ---


def test_calls_above_the_number_are_refused():
    server = replace(SERVER, max_queued=10)
    allowed, refused = (
        simulate(Scenario("", server, Closed(SHORT), duration_s=3.0), fixed(limit)) for limit in (10, 12)
    )
    assert allowed.refused == 0 and allowed.resolved
    assert refused.refused and refused.rejected


def test_a_window_takes_so_many_calls_and_says_when_the_next_begins():
    window = CallWindow(RateLimit(3, 2.0))
    assert [window.refuses(2, 0.0), window.refuses(1, 0.1), window.refuses(1, 0.5)] == [None, None, 2.0]
    assert window.refuses(1, 1.9) == 1.0
    assert [window.refuses(3, 2.0), window.refuses(1, 3.5)] == [None, 1.0]


def test_no_more_is_answered_than_the_rate_allows():
    calls = replace(SHORT, alone_reason="one a request")
    scenario = Scenario("", SERVER, Closed(calls, depth=64), duration_s=9.9, rate=RateLimit(5, 2.0))
    trace = simulate(scenario, fixed(4))
    assert 20 <= trace.resolved <= 25 and trace.refused
    assert trace.requests == trace.prompts


def test_a_gateway_cuts_what_says_nothing_for_too_long():
    # A call takes 1.01 s; 8 at once in one slot: the fifth's first token would come after 4 s.
    calls = Calls(Lengths(50), Lengths(100), 2000, alone_reason="one a request")
    scenario = Scenario("", replace(SERVER, max_num_seqs=1), Closed(calls, 16), duration_s=8.0, gateway_s=3.5)
    alone, crowded = (simulate(scenario, fixed(limit)) for limit in (2, 8))
    assert alone.cut == 0 and alone.resolved == 7
    # Four of the first eight are cut at 3.5 s; and so on, while one is always served.
    assert crowded.cut >= 4 and crowded.resolved >= 6
    assert crowded.submitted == crowded.resolved + crowded.failed + crowded.left


# --- who asks ---


def test_clients_join_one_after_the_other():
    scenario = Scenario("", SERVER, Closed(SHORT, 64), duration_s=4.0, clients=3, join_every_s=1.0)
    traces = Run(scenario, limit_setup(scenario, fixed(8)), 1).run()
    assert [trace.limits[0][0] for trace in traces] == [0.0, 1.0, 2.0]
    assert traces[2].useful[:3] == [0, 0, 0] and traces[2].throughput(3.0, 4.0) > 0
    assert all(len(trace.useful) == len(traces[0].useful) for trace in traces)


def test_as_many_conversations_as_were_asked_for_are_under_way():
    calls = Calls(Lengths(300), Lengths(4), 4)
    trace = simulate(Scenario("", SERVER, Conversations(calls, 20, 5), duration_s=3.0), fixed(1024))
    assert trace.submitted - trace.resolved == trace.left == 20
    paused = simulate(Scenario("", SERVER, Conversations(calls, 20, 5, 1.0), duration_s=3.0), fixed(1024))
    # A turn takes about a second: the pause.
    assert 40 <= paused.resolved <= 80


def test_who_was_not_answered_in_time_asks_again():
    calls = replace(SHORT, timeout_s=0.5)
    slow = replace(SERVER, max_num_seqs=2)
    trace = simulate(Scenario("", slow, Callers(calls, 30), duration_s=3.0), fixed(4))
    assert trace.failed and trace.resolved
    assert trace.submitted == trace.resolved + trace.failed + trace.left
    assert trace.left <= 30


# --- the cache in the engine's own KV ---


def _turn(number: int, conversation: int, prompt: int = 40, output: int = 2) -> Sequence:
    call = SimpleNamespace(conversation=conversation)
    batch = SimpleNamespace(requests=[SimpleNamespace(waiter=call)])
    return Sequence(number, prompt, output, 0, (SimpleNamespace(batch=batch), 0))


def test_a_prefix_stays_until_running_sequences_need_its_room():
    engine = CachingEngine(replace(SERVER, kv_tokens=100, noise_ratio=0.0), None, found_tokens=32)
    now = 0.0
    for number, conversation in enumerate((1, 2, 1, 3, 1, 2)):
        engine.submit(_turn(number, conversation), now)
        while (at := engine.next_deadline()) is not None:
            engine.step(at)
            now = at
    # The third conversation takes most of the room of the second, which was left longest: of its prefix one block stays.
    assert (engine.hits, engine.queries) == (32 + 32 + 16, 6 * 40)
    assert engine.kv_usage_ratio == 0


# --- what is made of it ---


def test_a_limit_that_is_left_out_could_not_have_been_the_best():
    drawn = shortened("closed", 2, 6.0)
    runs = [run_fixed(drawn, limit) for limit in (64, 32, 16, 8, 4)]
    most = max(run.whole for run in runs)
    left_out = [run for run in runs if not _may_be_best(drawn, run.limit, most)]
    assert left_out and all(run.whole < 0.99 * most for run in left_out)


def test_the_best_is_the_smallest_within_a_hundredth():
    runs = [
        FixedRun(limit, whole, half, 1.0, 0.0) for limit, whole, half in ((8, 99, 90), (4, 98.5, 99), (16, 99.4, 100))
    ]
    assert best(runs).limit == 4
    assert best([*runs, FixedRun(2, 90, 99, 1.0, 0.0)], half=True).limit == 2


def result(arm: str, share: float, seed: int = 1, family: str = "neighbour") -> Result:
    run = ArmRun(
        family,
        seed,
        arm,
        False,
        False,
        100 * share,
        100 * share,
        2.0,
        0.0,
        1.0,
        9,
        0,
        9,
        0,
        0,
        8,
        ((0.0, 8),),
        "-",
        60,
        0,
    )
    return Result(draw(family, seed), run, [FixedRun(16, 100, 100, 1.0, 0.0)])


def test_the_table_has_shares_of_the_best_fixed_limit():
    table = list(lines([result("default", share, seed) for seed, share in enumerate((0.4, 0.8, 0.9))]))
    assert table[2].startswith("| neighbour | default | 3 | 0.700 | 0.480 | 1 | 0.400 |")
    assert "0.400 seed 0" in "\n".join(table)
    assert percentile([1.0, 2.0, 3.0], 0.1) == pytest.approx(1.2)


def usual_arms(share: float, seeds: range) -> list[Result]:
    return [result(arm, share, seed) for arm in (*drawn_page.ARMS, "fixed-64") for seed in seeds]


def test_what_draws_came_to_is_put_into_the_page(tmp_path):
    page = tmp_path / "laboratory.md"
    page.write_text("# The laboratory\n\nBy hand.\n")
    seeds = range(5, 8)
    for share in (0.7, 0.9):
        results = usual_arms(share, seeds)
        missed = Finding("neighbour", "mean", share, 0.95)
        drawn_page.write(results, [missed, *check(results)], seeds, tmp_path, page)
    text = page.read_text()
    assert text.startswith("# The laboratory\n\nBy hand.\n\n<!-- results:draws -->\n## What the draws came to\n")
    assert "| neighbour | 3 | 0.900 | 0.900 | 2.00 × | 0.900 | 0.900 | 2.00 × | 0.900 |" in text and "0.700" not in text
    assert "Seeds 5 to 7: `python -m benchmarks.lab --draws 3 --first-seed 5 --write`" in text
    assert "Of 2 bars 1 are reached. Missed: neighbour: mean 0.900, to be at least 0.950.\n" in text
    kept = json.loads((tmp_path / "draws.json").read_text())
    assert kept["groups"]["neighbour"]["fixed-64"]["mean"] == 0.9
    assert [finding["reached"] for finding in kept["findings"]] == [False, True]


def test_a_closed_jobs_latency_is_that_of_its_last_half():
    run = replace(result("default", 1.0, family="closed").run, mean_s=3.0)
    grid = [FixedRun(16, 100, 90, 1.0, 0.0), FixedRun(32, 98, 100, 2.0, 0.0)]
    # In the last half 32 is the best fixed limit; over the whole run 16 would be.
    assert Result(draw("closed", 1), run, grid).latency == 1.5
    assert Result(draw("changes", 1), run, grid).latency == 3.0


def test_what_is_not_reached_is_said():
    (missed,) = check([result("default", 0.8), result("fixed-64", 0.9)])
    assert (
        not missed.reached
        and str(missed) == "MISSED  neighbour: mean, against a fixed 64's 0.800, to be at least 0.900"
    )
    assert Finding("rated", "refused", 0.04, 0.05, at_most=True).reached
