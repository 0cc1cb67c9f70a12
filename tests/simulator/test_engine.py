"""The engine, told in literal times."""

import random

import pytest

from batchclient.simulator.engine import Engine, Progress, Sequence
from batchclient.simulator import PROFILES, Profile

# A step costs 10 ms, 1 ms for each sequence and 1 ms for each prefilled token.
PLAIN = Profile(
    "t", "", step_s=0.010, sequence_s=0.001, prefill_token_s=0.001, step_tokens=8, max_num_seqs=4, kv_tokens=40
)


def run(engine, until=1e9):
    """Every progress up to ``until`` as (time, sequence, tokens, finished)."""
    seen = []
    while (at := engine.next_deadline()) is not None and at <= until:
        seen += [(round(p.at, 6), p.sequence.sequence_id, p.generated, p.finished) for p in engine.step(at)]
    return seen


def test_empty_engine_waits_for_nothing():
    engine = Engine(PLAIN)
    assert engine.next_deadline() is None
    assert engine.step(5.0) == []


def test_one_sequence_prefills_then_decodes():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 3, 3, report_every=1), 1.0)
    assert engine.next_deadline() == 1.0
    # Prefill 10 + 1 + 3, then two steps of 10 + 1.
    assert run(engine) == [(1.014, 1, 1, False), (1.025, 1, 2, False), (1.036, 1, 3, True)]
    assert (engine.prompt_tokens, engine.generation_tokens) == (3, 3)
    assert repr(engine) == "<Engine t running=0 waiting=0 kv=0>"


def test_only_the_end_is_reported_without_an_interval():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 3, 3), 0.0)
    assert run(engine) == [(0.036, 1, 3, True)]


def test_an_interval_reports_the_first_token_each_interval_and_the_end():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 1, 9, report_every=3), 0.0)
    assert [each[2] for each in run(engine)] == [1, 4, 7, 9]


def test_a_late_step_loses_nothing():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 3, 3, report_every=1), 0.0)
    assert [(round(p.at, 6), p.generated) for p in engine.step(9.0)] == [(0.014, 1), (0.025, 2), (0.036, 3)]


def test_what_arrives_during_a_step_waits_for_the_next():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 1, 2, report_every=1), 0.0)
    engine.step(0.0)
    engine.submit(Sequence(2, 1, 1, report_every=1), 0.001)
    # The first step ends at 12 ms; the second holds a decode and a prefill: 10 + 2 + 1.
    assert run(engine) == [(0.012, 1, 1, False), (0.025, 1, 2, True), (0.025, 2, 1, True)]


def test_a_long_prompt_is_prefilled_in_chunks():
    engine = Engine(PLAIN)
    engine.submit(Sequence(1, 20, 1), 0.0)
    # 8 + 8 + 4 tokens in three steps.
    assert run(engine) == [(0.053, 1, 1, True)]


def test_at_most_max_num_seqs_run():
    engine = Engine(PLAIN)
    for i in range(6):
        engine.submit(Sequence(i, 1, 2), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (4, 2)
    assert [each[1] for each in run(engine)] == [0, 1, 2, 3, 4, 5]


def test_a_full_cache_preempts_the_youngest_which_starts_again():
    engine = Engine(PLAIN)
    for i in range(2):
        engine.submit(Sequence(i, 8, 20, report_every=1), 0.0)
    seen = run(engine)
    # Twice: room for a first chunk is enough to be admitted again.
    assert engine.preemptions == 2
    # Every token is reported once, in order, for both.
    assert [each[2] for each in seen if each[1] == 0] == list(range(1, 21))
    assert [each[2] for each in seen if each[1] == 1] == list(range(1, 21))
    # The preempted one was prefilled again with what it had.
    assert engine.prompt_tokens > 16
    assert engine.kv_usage_ratio == 0


def test_two_half_prefilled_prompts_do_not_block_each_other():
    engine = Engine(Profile("t", "", step_s=0.01, step_tokens=8, kv_tokens=20))
    engine.submit(Sequence(1, 15, 2), 0.0)
    engine.submit(Sequence(2, 15, 2), 0.0)
    assert [(each[1], each[3]) for each in run(engine)] == [(1, True), (2, True)]
    assert engine.kv_usage_ratio == 0


def test_abort_frees_the_cache_at_once_wherever_the_sequence_is():
    engine = Engine(PLAIN)
    for i in range(6):
        engine.submit(Sequence(i, 2, 30, report_every=1), 0.0)
    engine.step(0.030)
    assert (engine.running, engine.waiting) == (4, 2)
    for i in (0, 3, 5):
        assert engine.abort(i, 0.031)
    assert not engine.abort(0, 0.032)
    assert (engine.running, engine.waiting) == (2, 1)
    for i in (1, 2, 4):
        assert engine.abort(i, 0.033)
    assert (engine.running, engine.waiting, engine.kv_usage_ratio) == (0, 0, 0.0)
    assert run(engine) == []


def test_what_can_never_fit_is_refused():
    engine = Engine(PLAIN)
    with pytest.raises(ValueError, match="does not fit 40 tokens"):
        engine.submit(Sequence(1, 30, 11), 0.0)
    engine.submit(Sequence(1, 30, 10), 0.0)
    with pytest.raises(ValueError, match="taken"):
        engine.submit(Sequence(1, 1, 1), 0.0)


def test_a_free_engine_finishes_everything_at_once():
    engine = Engine(PROFILES["instant"])
    for i in range(100):
        engine.submit(Sequence(i, 10, 1 + i), 3.0)
    progress = engine.step(3.0)
    assert {p.at for p in progress} == {3.0}
    assert sorted((p.sequence.sequence_id, p.generated) for p in progress) == [(i, 1 + i) for i in range(100)]
    assert engine.next_deadline() is None
    assert engine.generation_tokens == sum(range(1, 101))


def test_slowdown_and_noise():
    engine = Engine(PLAIN)
    engine.slowdown = 2.0
    engine.submit(Sequence(1, 3, 1), 0.0)
    assert run(engine)[0][0] == 0.028
    noisy = PROFILES["gpu"]
    ends = []
    for seed in (1, 1, 2):
        engine = Engine(noisy, random.Random(seed))
        engine.submit(Sequence(1, 3, 50), 0.0)
        ends.append(run(engine))
    assert ends[0] == ends[1] != ends[2]


@pytest.mark.parametrize(("in_flight", "measured"), [(8, 2461), (16, 3927), (32, 5563), (64, 6525)])
def test_tiny_cpu_is_as_fast_as_the_measured_one(in_flight, measured):
    engine = Engine(PROFILES["tiny-cpu"])
    for i in range(in_flight):
        engine.submit(Sequence(i, 23, 64), 0.0)
    rate = in_flight * 64 / run(engine)[-1][0]
    assert rate == pytest.approx(measured, rel=0.1)


def test_the_gpu_profile_has_its_knee_near_256():
    rates = {}
    for in_flight in (64, 128, 256, 512):
        engine = Engine(PROFILES["compute-knee"])
        for i in range(in_flight):
            engine.submit(Sequence(i, 100, 200), 0.0)
        rates[in_flight] = in_flight * 200 / run(engine)[-1][0]
    assert rates[128] / rates[64] > 1.7
    assert rates[512] / rates[256] < 1.15


def random_run(seed):
    rng = random.Random(seed)
    profile = Profile("t", "", step_s=0.01, step_tokens=16, max_num_seqs=5, kv_tokens=64)
    engine, now, alive, reports, order = Engine(profile), 0.0, {}, {}, []
    for i in range(200):
        now += rng.random() * 0.02
        for p in engine.step(now):
            order.append(Progress(p.at, p.sequence.sequence_id, p.generated, p.finished))
            assert p.generated > reports.get(p.sequence.sequence_id, 0)
            reports[p.sequence.sequence_id] = p.generated
            if p.finished:
                assert p.generated == alive.pop(p.sequence.sequence_id).output_tokens
        if rng.random() < 0.5:
            alive[i] = Sequence(i, rng.randint(1, 30), rng.randint(1, 30), rng.choice([0, 1, 7]))
            engine.submit(alive[i], now)
        elif alive and rng.random() < 0.2:
            gone = rng.choice(list(alive))
            assert engine.abort(gone, now)
            del alive[gone]
        assert engine.running <= 5
        assert engine.running + engine.waiting == len(alive)
    while (at := engine.next_deadline()) is not None:
        for p in engine.step(at):
            alive.pop(p.sequence.sequence_id, None) if p.finished else None
    assert alive == {}
    assert engine.kv_usage_ratio == 0
    return order


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_keeps_the_books(seed):
    assert random_run(seed) == random_run(seed)
