"""A profile that is fitted to what was seen: it tells loads between those seen, and refuses what they do not show."""

import random
from collections import deque
from dataclasses import replace

import pytest

from batchclient.simulator.engine import Engine, Sequence
from batchclient.simulator.fit import Call, NotSeen, fit
from batchclient.simulator.profiles import PROFILES

SERVERS = {
    "compute-knee": ((16, 64, 256), (32, 128, 256), PROFILES["compute-knee"]),
    "max-seqs-64": ((8, 24, 64), (16, 48, 64), PROFILES["max-seqs-64"]),
    "tiny-cpu": ((8, 24, 64), (16, 48, 64), PROFILES["tiny-cpu"]),
    "a knee at 100": ((16, 96, 256), (48, 160, 256), replace(PROFILES["gpu"], compute_s=120e-6)),
}


def lengths(count, seed, answer=40):
    rng = random.Random(seed)
    return [
        (max(5, int(120 * rng.lognormvariate(0, 0.4))), max(2, int(answer * rng.lognormvariate(0, 0.6))))
        for _ in range(count)
    ]


def closed_loop(profile, rows, limit, seed=1, at=0.0, away_s=0.0):
    """Run rows with so many in flight; return them as a client sees them, and how long they took.

    A row begins on the server ``away_s`` after it was sent.
    """
    engine, left, calls, under_way = Engine(profile, random.Random(seed)), [*enumerate(rows)][::-1], [], {}
    to_begin = deque()

    def send(now):
        new = [left.pop() for _ in range(min(limit - len(under_way), len(left)))]
        for number, row in new:
            under_way[number] = now, len(under_way) + 1
            to_begin.append((now + away_s, Sequence(number, *row)))
        for number, _ in new:
            under_way[number] = now, len(under_way)

    send(at)
    while under_way:
        now = min(each for each in (engine.next_deadline(), to_begin and to_begin[0][0]) if each or each == 0.0)
        while to_begin and to_begin[0][0] <= now:
            engine.submit(to_begin.popleft()[1], now)
        for progress in engine.step(now):
            if progress.finished:
                of = progress.sequence
                sent, beside = under_way.pop(of.sequence_id)
                calls.append(Call(sent, now - sent, beside, 4 * of.prompt_tokens, of.prompt_tokens, of.output_tokens))
        send(now)
    return calls, now_of(calls) - at


def now_of(calls):
    return max(each.sent + each.seconds for each in calls)


def replaced(call, **fields):
    return Call(**{**dict(zip(Call.__match_args__, call, strict=True)), **fields})


def job(profile, limits, rows=300):
    """Rows at several loads, one after the other."""
    calls, at = [], 0.0
    for limit in limits:
        more, took = closed_loop(profile, lengths(max(rows // 2, 3 * limit), limit), limit, limit, at)
        calls, at = calls + more, at + took + 5
    return calls


@pytest.fixture(scope="module")
def calls():
    return job(PROFILES["tiny-cpu"], (8, 24, 64), rows=120)


@pytest.mark.parametrize(
    "name", [name if name == "tiny-cpu" else pytest.param(name, marks=pytest.mark.long) for name in SERVERS]
)
def test_loads_and_lengths_between_those_seen_come_out_within_5_percent(name):
    seen, asked, profile = SERVERS[name]
    found = fit(job(profile, seen))
    assert profile.noise_ratio == 0.03 and found.most == seen[-1] and found.least <= seen[0]
    for limit in asked:
        for answer in (25, 60):
            rows = lengths(800, 7 * limit, answer)
            _, took = closed_loop(profile, rows, limit, 5)
            _, told = closed_loop(found.profile, rows, limit, 5, away_s=found.away_s)
            assert told == pytest.approx(took, rel=0.05), (limit, answer)


@pytest.mark.long
def test_the_same_rows_and_seed_give_the_same_fit_whatever_their_order(calls):
    assert fit(calls) == fit(calls[::-1]) != fit(calls, seed=1)
    assert fit(calls).profile == fit(calls, seed=1).profile


@pytest.mark.long
def test_the_spread_is_less_for_a_load_that_was_seen():
    beyond, seen = (fit(job(PROFILES["tiny-cpu"], limits, 60)).spread(64, 130, 40) for limits in ((8, 24), (8, 24, 64)))
    assert 0 < 2 * seen < beyond < 0.5


def test_rows_on_two_servers_are_those_of_one_with_half_as_many(calls):
    one, two = fit(calls), fit(calls + [replaced(each, sent=each.sent + 1e-9) for each in calls])
    assert two.most == one.most and two.least == pytest.approx(one.least, rel=0.02)
    (_, of_one), (_, of_two) = (
        closed_loop(each.profile, lengths(300, 3), 32, away_s=each.away_s) for each in (one, two)
    )
    assert of_two == pytest.approx(of_one, rel=0.05)


def test_one_load_is_refused():
    calls, _ = closed_loop(PROFILES["gpu"], [(100, 40)] * 320, 64)
    with pytest.raises(NotSeen, match="one load"):
        fit(calls)
    at_half, _ = closed_loop(PROFILES["gpu"], [(100, 40)] * 160, 32, at=1000.0)
    assert fit(calls + at_half).most == 64, "of two loads there is a fit"


def test_few_rows_are_refused():
    with pytest.raises(NotSeen, match="49 of its rows"):
        fit(job(PROFILES["gpu"], (8, 32))[:49])


def test_rows_with_other_calls_beside_them_are_refused():
    calls = job(PROFILES["gpu"], (8, 32))
    with pytest.raises(NotSeen, match="other calls"):
        fit([replaced(each, in_flight=2 * each.in_flight) for each in calls])
