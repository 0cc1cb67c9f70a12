"""The laboratory (``benchmarks/lab``): that it simulates what it says, and what the knee is worth on its servers.

Every run here is in virtual time and takes a fraction of a second.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import mean, median

import pytest
from benchmarks.lab.algorithms import ALGORITHMS
from benchmarks.lab.driver import Trace, simulate
from benchmarks.lab.once import takes_s
from benchmarks.lab.profiles import SCENARIOS, Cache, Change, Scenario
from benchmarks.lab.results import reached
from benchmarks.lab.server import PrefixCache
from benchmarks.lab.sweep import AlgorithmJob, StaticJob, StaticRun, best, set_constants
from benchmarks.lab.workloads import Call, Calls, Closed, Lengths, Sessions
from benchmarks.length_grouping import STATIC_ANSWERS, STATIC_LIMITS, static_rates

from batchclient._core.limits import AimdLimit, FixedLimit, KneeLimit, LatencyCap, LimitChange, LimitControl
from batchclient._core.limits import knee, load
from batchclient.simulator.profiles import Profile

SHORT_S = 20.0


def short(name: str, **changes: object) -> Scenario:
    return replace(SCENARIOS[name], duration_s=SHORT_S, **changes)


def settled(trace: Trace) -> float:
    return trace.throughput(trace.duration_s / 2, trace.duration_s)


# --- the driver ---


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_ends_once_and_none_is_lost(name):
    trace = simulate(short(name), KneeLimit(), seed=1)
    assert trace.submitted == trace.resolved + trace.failed + trace.left
    assert len(trace.ends) == trace.resolved
    assert trace.resolved


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["A", "rejecting", "timeouts"])
def test_nothing_is_sent_above_the_limit(name, algorithm):
    trace = simulate(short(name), ALGORITHMS[algorithm](), seed=1)
    assert trace.over_limit == 0
    assert trace.requests


def test_the_same_seed_gives_the_same_run():
    first, same, other = (simulate(short("B"), KneeLimit(), seed) for seed in (3, 3, 4))
    assert first == same
    assert first.ends != other.ends


def test_choices_are_counted_as_sequences():
    calls = Calls(Lengths(50), Lengths(100, 0.5), n=4)
    trace = simulate(short("A", workload=Closed(calls)), FixedLimit(32), seed=1)
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
    scenario = Scenario("test", "", engine, Closed(calls), duration_s=60.0, settings=settings)
    assert settled(simulate(scenario, FixedLimit(limit))) == pytest.approx(limit / step_s, rel=0.03)


@pytest.mark.parametrize(("limit", "measured"), [(8, 2461), (16, 3927), (32, 5563), (64, 6525)])
def test_the_fitted_server_gives_what_the_real_one_gave(limit, measured):
    assert settled(simulate(short("tiny-cpu"), FixedLimit(limit))) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("limit", "measured"), [(1, 62), (8, 176), (12, 66), (48, 65)])
def test_the_prefix_cache_thrashes_where_the_real_one_did(limit, measured):
    # Prompts/s; four tokens each. The real figures are medians of up to five runs, 6 to 7 % apart.
    assert settled(simulate(short("prefix"), FixedLimit(limit))) / 4 == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("limit", "useful"), [(64, True), (128, False)])
def test_callers_that_wait_too_little_get_little_from_a_busy_server(limit, useful):
    # The real one, called without a thought for deadlines: 86 useful answers/s at 64, none at 128. This client spends no permit on a call
    # that has waited and is probably late.
    trace = simulate(short("timeouts"), FixedLimit(limit))
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
    trace = simulate(short("padding", server=server, workload=Closed(calls)), FixedLimit(1))
    # One at a time: 100 · 20 µs of prefill, 50 · 12 ms of decoding.
    assert trace.ends[0] == pytest.approx(0.602, rel=1e-6)
    assert trace.ends[9] == pytest.approx(6.02, rel=1e-6)
    long = Closed(replace(calls, prompts=Lengths(4000)))
    eight = simulate(short("padding", server=server, workload=long), FixedLimit(8))
    # The first to come is begun alone (0.68 s), the other seven together (7 · 0.08 s + 0.6 s), and so on.
    assert settled(eight) == pytest.approx(8 * 50 / (0.68 + 1.16), rel=0.05)
    mixed = replace(calls, outputs=Lengths(50, 1.0, 64))
    padded = simulate(short("padding", server=server, workload=Closed(mixed)), FixedLimit(64))
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
    trace = simulate(short("rejecting"), FixedLimit(90), seed=1)
    assert 0 < trace.rejected < 200, "a list of 64 at the start, its halves after it"
    over = simulate(replace(short("rejecting"), duration_s=1.0), FixedLimit(128), seed=1)
    assert over.rejected > 100
    assert max(over.in_flight) <= 128


def test_the_api_server_is_passed_one_after_another():
    # 0.42 ms a prompt, 0.55 ms a request and 0.03 ms a reply, for lists of 32.
    trace = simulate(replace(SCENARIOS["api"], duration_s=10.0), FixedLimit(512))
    assert settled(trace) == pytest.approx(1 / (0.42e-3 + (0.55e-3 + 0.03e-3) / 32), rel=0.02)


def test_what_is_aborted_no_longer_counts_against_the_servers_bound():
    server = replace(SCENARIOS["timeouts"].server, max_queued=128)
    trace = simulate(short("timeouts", server=server), FixedLimit(128))
    # All 128 expire every second, and the next 128 are let in.
    assert trace.failed > 128 * (SHORT_S - 2)
    assert trace.rejected == 0


def test_another_tenant_takes_its_part():
    alone = simulate(short("F"), FixedLimit(256))
    beside = simulate(short("F", changes=(Change(0, tenant_sequences=256),)), FixedLimit(256))
    assert settled(beside) == pytest.approx(settled(alone) / 2, rel=0.06)


@pytest.mark.parametrize("slowdown", [2.0, 1 / 3])
def test_a_change_of_speed_is_felt(slowdown):
    trace = simulate(short("A", changes=(Change(10, slowdown=slowdown),)), FixedLimit(32))
    assert trace.throughput(3, 10) / trace.throughput(11, 20) == pytest.approx(slowdown, rel=0.04)


def test_sessions_are_as_many_as_the_limit_and_take_turns():
    workload = Sessions(Calls(Lengths(20), Lengths(10), max_tokens=64), turns=3)
    trace = simulate(short("A", workload=workload), FixedLimit(5))
    assert trace.left == 5
    assert max(trace.in_flight) == 5


def test_the_servers_load_reaches_an_algorithm_that_listens():
    class Listener:
        def __init__(self) -> None:
            self.limit = 64
            self.loads = []

        def on_sample(self, sample):
            return None

        def on_load(self, load, in_flight, now):
            self.loads.append((now, in_flight, load))
            if now == 10.0:
                self.limit = 16
                return LimitChange(16, "enough")
            return None

    limit = Listener()
    trace = simulate(short("C"), limit)
    assert [now for now, _, _ in limit.loads] == [float(second) for second in range(1, 20)]
    assert trace.limits == [(0.0, 64), (10.0, 16)]
    now, in_flight, load = limit.loads[5]
    assert load.running == in_flight == 64
    assert limit.loads[-1][2].running <= 16


def test_useful_tokens_are_counted_as_they_are_made():
    trace = simulate(short("A"), FixedLimit(64))
    assert trace.useful[-1] > sum(trace.tokens)
    assert trace.useful[-1] == pytest.approx(trace.generated_tokens, rel=0.01)


# --- the sweep ---


def test_the_best_fixed_limit_is_the_smallest_that_is_enough():
    def static(limit: int, tokens_per_s: float) -> StaticRun:
        return StaticRun("C", 0, limit, None, 0, tokens_per_s, 1.0, 1.0, 1.0)

    (found,) = best([static(64, 989.0), static(96, 991.0), static(512, 1000.0)], "C")
    assert found.limit == 96


def test_a_share_is_that_of_the_best_fixed_limit():
    found = StaticJob("C", 0, 96)()
    run = AlgorithmJob("C", "fixed-64", 0, (found,))()
    assert run.share == pytest.approx(0.98, abs=0.02)
    assert run.latency_ratio < 0.75
    assert reached([run]) == "5"
    assert reached([replace(run, reached_s=(float("inf"),))]) == "–"


def test_a_constant_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="_NONSENSE"):
        AlgorithmJob("C", "knee", 0, (StaticJob("C", 0, 64)(),), (("_NONSENSE", 1.0),))()


def test_a_constant_of_a_module_that_is_named_is_set_there_alone(monkeypatch):
    for module in (load, knee):
        monkeypatch.setattr(module, "_USED_RATIO", module._USED_RATIO)
    before = knee._USED_RATIO
    set_constants([("load._USED_RATIO", 0.5)])
    assert (load._USED_RATIO, knee._USED_RATIO) == (0.5, before)
    with pytest.raises(ValueError, match="no constant _NONSENSE in load"):
        set_constants([("load._NONSENSE", 1.0)])


# --- what the algorithms are worth ---

# Scenario: the best fixed limit of its last phase (docs/laboratory.md), then what the knee must reach: a share of its
# throughput over the last half, at most so many times its mean latency, 90 % of it within so many seconds of the start. One seed
# says little: a call that is sent singly instead of in a list moved A's latency from 1.17 to 1.36. Shares of the first and the mean; mean latency; the longest time.
SEEDS = 3
MORE_SEEDS = {"slower": 20}
"""How far the limit overshoots there depends on where its swing is when the server changes: 1.12 to 1.55 times the latency."""
KNEE = {
    "A": (256, 0.92, 1.3, 30),
    "B": (128, 0.92, 1.4, 20),
    "C": (96, 0.92, 1.3, 20),
    "D": (64, 0.92, 1.3, 60),
    "F": (1024, 0.84, 0.7, 70),
    "G": (256, 0.92, 1.3, 30),
    "slower": (256, 0.92, 1.3, 30),
    "faster": (256, 0.92, 1.5, 30),
    "api": (256, 0.92, 1.3, 15),
    "padding": (128, 0.92, 1.3, 30),
    "rejecting": (96, 0.92, 1.3, 15),
    "open": (128, 0.97, 1.1, 30),
    "one-token": (128, 0.94, 1.0, 30),
    "one-token-unsteady": (128, 0.86, 1.5, 60),
    "mixed": (256, 0.92, 1.3, 30),
}


@pytest.mark.parametrize("name", KNEE)
def test_the_knee_comes_near_the_best_fixed_limit(name):
    limit, share, latency_ratio, seconds = KNEE[name]
    phase = len(SCENARIOS[name].phases()) - 1
    fixed = StaticJob(name, phase, limit)()
    runs = [
        AlgorithmJob(name, "knee", seed, (*(fixed,) * (phase + 1),))() for seed in range(MORE_SEEDS.get(name, SEEDS))
    ]
    assert min(runs[0].share, mean(run.share for run in runs)) >= share
    assert min(run.share for run in runs) >= min(0.85, share)
    assert mean(run.latency_ratio for run in runs) <= latency_ratio
    assert max(run.reached_s[-1] for run in runs) <= seconds
    assert max(run.failed for run in runs) <= 50, "who goes on sending what is refused loses calls"


def test_a_server_that_refuses_is_not_flooded_with_what_it_refuses():
    """Some 5,000 sequences are served. Once a list or two were refused, an earlier version sent up to 60,000 more into the same bound."""
    for seed in range(5):
        assert simulate(SCENARIOS["rejecting"], KneeLimit(), seed).rejected <= 500


@pytest.mark.parametrize("seed", range(4))
def test_callers_who_leave_the_limit_unused_do_not_wait_for_it(seed):
    # What a noisy server takes decides what is in flight, and that looks like a plateau. An earlier version let the limit fall for it: the callers'
    # mean latency was 2.3 times that without a limit on these seeds, at worst 3.9 times.
    limited, unlimited = (simulate(SCENARIOS["bursts"], limit, seed) for limit in (KneeLimit(), FixedLimit(1024)))
    assert limited.latency_s(60, 240)[0] <= 1.05 * unlimited.latency_s(60, 240)[0]
    assert limited.mean_limit(60, 240) < 256, "and that is not because there is none"


@pytest.mark.parametrize(("objective_s", "most_s", "least"), [(12.0, 12.5, 0.9), (10.0, 10.8, 0.68), (3.0, 10.0, 0.15)])
def test_a_latency_objective_is_kept_where_lengths_differ(objective_s, most_s, least):
    # Fixed limits of 256, 128 and 16 have 12.65, 9.44 and 8.46 s, at 1, 0.66 and 0.1 of the throughput: what asks for less than 8 s is told so,
    # and not served one call at a time. An earlier version looked only at answers sent after its last change; of those the short ones had ended.
    for seed in range(3):
        control = LimitControl(KneeLimit(opens=False), [LatencyCap(objective_s)])
        trace = simulate(SCENARIOS["A"], control, seed)
        assert trace.latency_s(120, 240)[1] <= most_s
        assert trace.throughput(120, 240) >= least * 12_482


@pytest.mark.parametrize(("algorithm", "least", "seconds"), [("knee", 0.9, 30), ("knee-from-32", 0.7, 110)])
def test_on_a_server_that_pads_the_limit_keeps_to_two_batches(algorithm, least, seconds):
    """A batch ends every few seconds, as long as its longest: one seed says little. With slopes alone it wandered: 1.56 times the latency over forty seeds, and
    begun at 32 one of them had 0.55."""
    fixed = StaticJob("padding", 0, 128)()
    runs = [AlgorithmJob("padding", algorithm, seed, (fixed,))() for seed in range(20)]
    assert mean(run.share for run in runs) >= 0.94
    assert min(run.share for run in runs) >= least
    assert mean(run.latency_ratio for run in runs) <= 1.3
    assert median(run.reached_s[0] for run in runs) <= seconds


@pytest.mark.parametrize(("name", "least"), [("one-token", 0.95), ("one-token-unsteady", 0.88), ("api", 0.95)])
def test_what_waits_for_the_next_step_of_a_server_is_no_queue(name, least):
    # Where answers have a token each, as many wait as run. A cap that took them for a queue held the limit at 42 instead of 100: 0.85 (0.73 on the worst seed).
    fixed = StaticJob(name, 0, 256 if name == "api" else 128)()
    shares = [AlgorithmJob(name, "knee+load", seed, (fixed,))().share for seed in range(6)]
    assert mean(shares) >= least
    assert min(shares) >= 0.85


def test_lucky_answers_at_a_small_load_are_not_believed():
    # What answers of eight tokens on average cost is a matter of their lengths. While loads were remembered there too, the limit fell to a quarter of the throughput.
    answers = Calls(Lengths(200), Lengths(8, 0.9), max_tokens=64)
    server = replace(SCENARIOS["padding"], workload=Closed(answers), duration_s=120.0)
    fixed = settled(simulate(server, FixedLimit(256)))
    assert min(settled(simulate(server, KneeLimit(), seed)) for seed in range(5)) >= 0.85 * fixed


@pytest.mark.parametrize("seed", [10, 18, 20, 34])
def test_conversations_that_overfill_a_cache_are_not_left_on_the_plateau_beyond(seed):
    # A limit that takes the plateau's noise for growth stays there: on each of these seeds an earlier version had 0.37.
    run = AlgorithmJob("prefix", "knee-from-32", seed, (StaticJob("prefix", 0, 8)(),))()
    assert run.share >= 0.85


def test_conversations_that_overfill_a_cache_are_found_from_the_defaults_start_too():
    # From 64, far out on that plateau, to the 8 that are best. Earlier versions looked only at the slope: one was still there after the two minutes on one seed
    # in twenty (0.55), another after more than a minute on most.
    fixed = StaticJob("prefix", 0, 8)()
    runs = [AlgorithmJob("prefix", "knee", seed, (fixed,))() for seed in range(20)]
    assert mean(run.share for run in runs) >= 0.92
    assert min(run.share for run in runs) >= 0.8
    assert sorted(run.reached_s[0] for run in runs)[10] <= 30
    assert max(run.reached_s[0] for run in runs) <= 40


@pytest.mark.parametrize("algorithm", ["knee-from-128", "knee-throughput"])
def test_the_throughput_preset_does_not_stay_on_that_plateau_either(algorithm):
    # With slopes alone an aim of 0.05 stayed there for good: 0.43 on average.
    fixed = StaticJob("prefix", 0, 8)()
    shares = [AlgorithmJob("prefix", algorithm, seed, (fixed,))().share for seed in range(10)]
    assert mean(shares) >= 0.9
    assert min(shares) >= 0.8


@pytest.mark.parametrize(
    ("name", "best", "least", "seconds"),
    [
        ("B", 128, 0.92, 10),
        ("D", 64, 0.95, 20),
        ("shorter", 256, 0.9, 45),
        ("prefix", 8, 0.92, 30),
        ("agents", 64, 0.92, 45),
    ],
)
def test_what_the_server_says_of_its_cache_costs_little_and_may_help_much(name, best, least, seconds):
    # With a bound of 0.85 of the KV cache `shorter` had 0.87. Where what was sent before a cut counted as a cut in vain, and what was
    # found in a ramp as what is to be expected, `prefix` had 0.36 and `agents` 0.74 on one seed in five.
    phase = len(SCENARIOS[name].phases()) - 1
    fixed = StaticJob(name, phase, best)()
    runs = [AlgorithmJob(name, "knee+load", seed, (fixed,) * (phase + 1))() for seed in range(6)]
    assert min(run.share for run in runs) >= least
    assert mean(run.latency_ratio for run in runs) <= 1.15
    assert max(run.reached_s[-1] for run in runs) <= seconds


@pytest.mark.parametrize(("name", "best", "latency_ratio"), [("C", 96, 1.1), ("D", 64, 1.5)])
def test_a_limit_that_begins_far_above_the_knee_comes_down(name, best, latency_ratio, monkeypatch):
    # An earlier version took its slope where there was no point, saw growth and went on: to 29 times the latency.
    fixed = StaticJob(name, 0, best)()
    monkeypatch.setitem(ALGORITHMS, "knee-from-256", partial(KneeLimit, 256))
    runs = [AlgorithmJob(name, "knee-from-256", seed, (fixed,))() for seed in range(SEEDS)]
    assert min(run.share for run in runs) >= 0.92
    assert max(run.latency_ratio for run in runs) <= latency_ratio
    assert max(run.reached_s[0] for run in runs) <= 20


def test_on_a_noisy_server_the_limit_does_not_run_over_the_cliff():
    # Beyond some 110 in flight hardly an answer comes in time. An earlier version ran there again and again: 0.72 on one of these seeds.
    fixed = StaticJob("impatient", 0, 80)()
    assert min(AlgorithmJob("impatient", "knee", seed, (fixed,))().share for seed in range(4, 10)) >= 0.8


def test_a_server_that_gets_faster_is_not_taken_for_one_that_likes_load():
    # Where it takes a pace to get faster, no point lies far off the line. Earlier versions went to the ceiling on one seed of eight, and stayed there
    # so long that the half after the change had 3 times the latency of the best fixed limit.
    fixed = StaticJob("faster", 1, 256)()
    ratios = [AlgorithmJob("faster", "knee", seed, (fixed, fixed))().latency_ratio for seed in range(10)]
    assert mean(ratios) <= 1.5
    assert max(ratios) <= 2.0


def test_that_a_server_has_changed_is_a_reason_of_its_own():
    changes = []

    class Told(KneeLimit):
        __slots__ = ()

        def on_sample(self, sample):
            if (change := super().on_sample(sample)) is not None:
                changes.append((sample.now, change.reason))
            return change

    simulate(SCENARIOS["slower"], Told(), 4)
    assert any(at > 120.0 and reason.startswith("the server has changed") for at, reason in changes)


@pytest.mark.parametrize(("outputs", "closed"), [("200 each", 2.0), ("1,000 each", 2.5), ("1,000 on average", 0.95)])
@pytest.mark.parametrize("count", [256, 1000])
def test_calls_that_are_asked_at_once_take_no_longer_than_without_a_limit(outputs, closed, count):
    # That is what first tokens are worth: a knee that waits for the first answers is no faster than a fixed 64.
    unlimited_s = takes_s("compute-knee", outputs, count, FixedLimit(1024))
    assert takes_s("compute-knee", outputs, count, KneeLimit()) <= 1.06 * unlimited_s
    if count == 256:
        assert takes_s("compute-knee", outputs, count, KneeLimit(opens=False)) >= closed * unlimited_s


def test_aimd_runs_to_its_ceiling_where_nothing_is_refused():
    assert simulate(SCENARIOS["A"], AimdLimit()).limits[-1][1] == 1024
    refused = simulate(SCENARIOS["rejecting"], AimdLimit())
    assert refused.mean_limit(45, 90) < 128
