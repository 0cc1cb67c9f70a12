"""The laboratory (``benchmarks/lab``): that it simulates what it says, and what the client's own limit promises on servers of it.

Every run here is in virtual time and takes a fraction of a second.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from benchmarks.lab.driver import Trace, simulate
from benchmarks.lab.prefix_cache import PrefixCache
from benchmarks.lab.profiles import SCENARIOS, Cache, Change, Scenario
from benchmarks.lab.workloads import Call, Calls, Closed, Lengths, Sessions
from benchmarks.length_grouping import STATIC_ANSWERS, STATIC_LIMITS, static_rates

from batchclient._core.limits import FixedLimit, Limit, LimitChange
from batchclient._core.limits.control import LimitControl
from batchclient._core.limits.objective import Objective
from batchclient._core.limits.search import Search
from batchclient.simulator.profiles import Profile

pytestmark = pytest.mark.long

SHORT_S = 20.0


def short(name: str, **changes: object) -> Scenario:
    return replace(SCENARIOS[name], duration_s=SHORT_S, **changes)


def found() -> LimitControl:
    """The limit of a client that was told nothing."""
    return LimitControl(Search())


def fixed(limit: int) -> LimitControl:
    """As a client makes it of a number."""
    return LimitControl(FixedLimit(limit))


def settled(trace: Trace) -> float:
    return trace.throughput(trace.duration_s / 2, trace.duration_s)


# --- the driver ---


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_ends_once_and_none_is_lost(name):
    trace = simulate(short(name), found(), seed=1)
    assert trace.submitted == trace.resolved + trace.failed + trace.left
    assert len(trace.ends) == trace.resolved
    assert trace.resolved


@pytest.mark.parametrize("limit", [found, lambda: fixed(64)], ids=["found", "fixed"])
@pytest.mark.parametrize("name", ["A", "rejecting", "timeouts"])
def test_nothing_is_sent_above_the_limit(name, limit):
    trace = simulate(short(name), limit(), seed=1)
    assert trace.over_limit == 0
    assert trace.requests


def test_the_same_seed_gives_the_same_run():
    first, same, other = (simulate(short("A"), found(), seed) for seed in (3, 3, 4))
    assert first == same
    assert first.ends != other.ends


def test_choices_are_counted_as_sequences():
    calls = Calls(Lengths(50), Lengths(100, 0.5), n=4)
    trace = simulate(short("A", workload=Closed(calls)), fixed(32), seed=1)
    assert max(trace.in_flight) == 32
    assert trace.submitted == trace.resolved + trace.failed + trace.left
    assert sum(trace.tokens) / trace.resolved == pytest.approx(400, rel=0.1)


# --- the server ---


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
    # Resident tokens of spread outputs would be more than p + o/2; sigma 0.3 is enough to keep them from running in step.
    calls = Calls(Lengths(100), Lengths(150, 0.3), max_tokens=1024)
    settings = {"refill_s": 0.0, "refill_ratio": 0.0, "linger_s": 0.0}
    scenario = Scenario("test", engine, Closed(calls), duration_s=60.0, settings=settings)
    assert settled(simulate(scenario, fixed(limit))) == pytest.approx(limit / step_s, rel=0.03)


@pytest.mark.parametrize(("limit", "measured"), [(8, 2461), (16, 3927), (32, 5563), (64, 6525)])
def test_the_fitted_server_gives_what_the_real_one_gave(limit, measured):
    assert settled(simulate(short("tiny-cpu"), fixed(limit))) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("limit", "measured"), [(1, 62), (8, 176), (12, 66), (48, 65)])
def test_the_prefix_cache_thrashes_where_the_real_one_did(limit, measured):
    # Prompts/s; four tokens each. The real figures are medians of up to five runs, 6 to 7 % apart.
    assert settled(simulate(short("prefix"), fixed(limit))) / 4 == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("limit", "useful"), [(64, True), (128, False)])
def test_callers_that_wait_too_little_get_little_from_a_busy_server(limit, useful):
    # The real one, called without a thought for deadlines: 86 useful answers/s at 64, none at 128. This client spends no permit on a call
    # that has waited and is probably late.
    trace = simulate(short("timeouts"), fixed(limit))
    assert (trace.resolved / SHORT_S > 80) is useful
    assert (trace.resolved / SHORT_S < 45) is not useful
    assert trace.failed or useful


def test_the_oldest_prefix_is_dropped_first():
    cache = PrefixCache(Cache(tokens=100, held_tokens=50, found_tokens=40))

    def uncached(conversation: int) -> int:
        return cache.uncached(Call(45, (1,), conversation))

    assert [uncached(1), uncached(2), uncached(1)] == [45, 45, 5]
    assert uncached(3) == 45  # the second leaves
    assert [uncached(1), uncached(2)] == [5, 45]
    assert (cache.hits, cache.queries) == (80, 270)


def test_a_static_batch_takes_as_long_as_its_longest():
    server = replace(SCENARIOS["padding"].server, request_s=0.0, prompt_s=0.0, event_s=0.0)
    calls = Calls(Lengths(100), Lengths(50), max_tokens=64)
    trace = simulate(short("padding", server=server, workload=Closed(calls)), fixed(1))
    # One at a time: 100 · 20 µs of prefill, 50 · 12 ms of decoding.
    assert trace.ends[0] == pytest.approx(0.602, rel=1e-6)
    assert trace.ends[9] == pytest.approx(6.02, rel=1e-6)
    long = Closed(replace(calls, prompts=Lengths(4000)))
    eight = simulate(short("padding", server=server, workload=long), fixed(8))
    # The first to come is begun alone (0.68 s), the other seven together (7 · 0.08 s + 0.6 s), and so on.
    assert settled(eight) == pytest.approx(8 * 50 / (0.68 + 1.16), rel=0.05)
    mixed = replace(calls, outputs=Lengths(50, 1.0, 64))
    padded = simulate(short("padding", server=server, workload=Closed(mixed)), fixed(64))
    # Somebody among the 64 needs all 64 tokens, and everybody waits for it.
    assert padded.latencies_s[0] >= 64 * 0.012


@pytest.mark.parametrize("limit", STATIC_LIMITS)
@pytest.mark.parametrize("answers", ["1 token", "16 tokens"])
def test_grouping_by_length_is_worth_half_as_much_again_on_a_server_that_pads(answers, limit):
    came, nearest, one = (
        mean(static_rates(arm, STATIC_ANSWERS[answers], STATIC_LIMITS[limit], texts=2048, seeds=2))
        for arm in ("arrival order", "nearest lengths", "one bucket")
    )
    assert min(nearest, one) > 1.5 * came


def test_a_list_that_is_too_long_is_learnt_and_a_refusal_is_no_answer():
    trace = simulate(short("rejecting"), fixed(90), seed=1)
    assert 0 < trace.rejected < 200, "a list of 64 at the start, its halves after it"
    over = simulate(replace(short("rejecting"), duration_s=1.0), fixed(128), seed=1)
    assert over.rejected > 100
    assert max(over.in_flight) <= 128


def test_the_api_server_is_passed_one_after_another():
    # 0.42 ms a prompt, 0.55 ms a request and 0.03 ms a reply, for lists of 32.
    trace = simulate(replace(SCENARIOS["api"], duration_s=10.0), fixed(512))
    assert settled(trace) == pytest.approx(1 / (0.42e-3 + (0.55e-3 + 0.03e-3) / 32), rel=0.02)


def test_what_is_aborted_no_longer_counts_against_the_servers_bound():
    server = replace(SCENARIOS["timeouts"].server, max_queued=128)
    trace = simulate(short("timeouts", server=server), fixed(128))
    # All 128 expire every second, and the next 128 are let in.
    assert trace.failed > 128 * (SHORT_S - 2)
    assert trace.rejected == 0


def test_another_tenant_takes_its_part():
    alone = simulate(short("A"), fixed(256))
    beside = simulate(short("A", changes=(Change(0, tenant_sequences=256),)), fixed(256))
    assert settled(beside) == pytest.approx(settled(alone) / 2, rel=0.06)


@pytest.mark.parametrize("slowdown", [2.0, 1 / 3])
def test_a_change_of_speed_is_felt(slowdown):
    trace = simulate(short("A", changes=(Change(10, slowdown=slowdown),)), fixed(32))
    assert trace.throughput(3, 10) / trace.throughput(11, 20) == pytest.approx(slowdown, rel=0.04)


def test_sessions_are_as_many_as_the_limit_and_take_turns():
    workload = Sessions(Calls(Lengths(20), Lengths(10), max_tokens=64), turns=3)
    trace = simulate(short("A", workload=workload), fixed(5))
    assert trace.left == 5
    assert max(trace.in_flight) == 5


def test_the_servers_load_reaches_a_limit():
    class Listener(Limit):
        def __init__(self) -> None:
            super().__init__(64, "the start")
            self.loads = []

        def on_load(self, load, in_flight, now) -> LimitChange | None:
            self.loads.append((now, in_flight, load))
            return self._set(16, "enough") if now == 10.0 else None

    limit = Listener()
    trace = simulate(short("A", server=replace(SCENARIOS["A"].server, max_num_seqs=64)), limit)
    assert [now for now, _, _ in limit.loads] == [half / 2 for half in range(2, 40)]
    assert trace.limits == [(0.0, 64), (10.0, 16)]
    now, in_flight, load = limit.loads[10]
    assert load.running == in_flight == 64
    assert limit.loads[-1][2].running <= 16


def test_useful_tokens_are_counted_as_they_are_made():
    trace = simulate(short("A"), fixed(64))
    assert trace.useful[-1] > sum(trace.tokens)
    assert trace.useful[-1] == pytest.approx(trace.generated_tokens, rel=0.01)


# --- what the limit promises ---


def test_a_server_that_refuses_is_not_flooded_with_what_it_refuses():
    """Some 5,000 sequences are served. Once a list or two were refused, an earlier version sent up to 60,000 more into the same bound."""
    for seed in range(5):
        assert simulate(SCENARIOS["rejecting"], found(), seed).rejected <= 500


@pytest.mark.parametrize(("objective_s", "most_s", "least"), [(12.0, 12.5, 0.9), (10.0, 10.8, 0.66)])
def test_a_latency_objective_is_kept_where_lengths_differ(objective_s, most_s, least):
    # Fixed limits of 256, 128 and 16 have 12.65, 9.44 and 8.46 s, at 1, 0.66 and 0.1 of the throughput. An earlier version looked only at answers
    # sent after its last change; of those the short ones had ended.
    for seed in range(3):
        trace = simulate(SCENARIOS["A"], LimitControl(Search(), [Objective(objective_s)]), seed)
        assert trace.latency_s(120, 240)[1] <= most_s
        assert trace.throughput(120, 240) >= least * 12_482


def test_callers_who_leave_early_get_their_answers():
    # In one flight of 128 hardly one is answered in time. A fixed 64 answers nearly all that this server can.
    answered = simulate(SCENARIOS["timeouts"], found()).resolved
    assert answered >= 0.8 * simulate(SCENARIOS["timeouts"], fixed(64)).resolved


def test_what_a_gateway_cuts_after_a_long_silence_lowers_the_limit():
    # One slot, answers of 1.2 s, a gateway that waits for 30 s: of 64 in flight it would cut more than half.
    server = replace(SCENARIOS["A"].server, max_num_seqs=1)
    calls = Calls(Lengths(50), Lengths(100), 100, alone_reason="one a request")
    scenario = Scenario("", server, Closed(calls, 256), duration_s=150.0, gateway_s=30.0, has_page=False)
    trace = simulate(scenario, found())
    assert trace.cut
    assert trace.mean_limit(75, 150) <= 30
