"""Limits: numbers with reasons, and no permits."""

import itertools
import math
import random

import pytest

from batchclient._core.limits import (
    AimdLimit,
    FixedLimit,
    KneeLimit,
    LatencyCap,
    LimitChange,
    LimitControl,
    Outcome,
    Sample,
)
from batchclient._core.limits.elasticity import Elasticity, ServerChange
from batchclient._core.limits.refused import Refusals


def sample(
    now,
    seconds=1.0,
    load=8.0,
    *,
    sequences=1,
    tokens=10,
    outcome=Outcome.SUCCESS,
    in_flight=None,
    met=None,
    admitted_at=10**6,
    first=0.0,
    weight=1,
):
    return Sample(
        now,
        now - seconds,
        round(load) if in_flight is None else in_flight,
        load,
        round(load) if met is None else met,
        sequences,
        5,
        tokens,
        first,
        outcome,
        admitted_at,
        weight=weight,
    )


class Server:
    """Answers of a closed loop at the limit's own load: each takes ``seconds(load)``."""

    def __init__(self, limit, seconds, tokens=10):
        self.limit, self.seconds, self.tokens, self.now = limit, seconds, tokens, 0.0

    def run(self, until):
        while self.now < until:
            load = self.limit.limit
            took = self.seconds(load)
            self.now += took / load
            self.limit.on_sample(sample(self.now, took, float(load), tokens=self.tokens))
        return self.limit.limit


def knee_at(knee, seconds=1.0):
    """More load is free up to ``knee``; beyond it everybody waits in proportion."""
    return lambda load: seconds * max(1.0, load / knee)


def refused(limit, now, load):
    return limit.on_sample(sample(now, 0.1, load, outcome=Outcome.DROPPED, admitted_at=limit.limit))


# fixed -------------------------------------------------------------------------------------------------------------


def test_a_fixed_limit_stays_what_it_is():
    limit = FixedLimit(7)
    for outcome in Outcome:
        assert limit.on_sample(sample(1.0, outcome=outcome)) is None
    assert limit.limit == 7


@pytest.mark.parametrize("number", [0, -1])
def test_a_limit_is_at_least_one(number):
    with pytest.raises(ValueError, match="at least 1"):
        FixedLimit(number)


def test_its_repr_can_be_typed_in():
    assert repr(FixedLimit(3)) == "FixedLimit(3)"


# aimd --------------------------------------------------------------------------------------------------------------


def test_aimd_doubles_until_the_first_refusal_then_grows_by_five_per_cent():
    limit = AimdLimit(10, ceiling=1000)
    server = Server(limit, lambda load: 1.0)
    assert server.run(6.5) == 80
    change = refused(limit, 6.5, 81.0)
    assert (change.limit, change.reason) == (64, "the server refused work")
    assert server.run(10.0) == 67


def test_aimd_cuts_once_per_episode():
    limit = AimdLimit(100)
    assert limit.on_sample(sample(1.0, outcome=Outcome.DROPPED, admitted_at=100)).limit == 80
    assert limit.on_sample(sample(1.5, outcome=Outcome.DROPPED, admitted_at=80)) is None, "it cools down"
    assert limit.on_sample(sample(2.5, outcome=Outcome.DROPPED, admitted_at=100)) is None, (
        "it was admitted before the cut"
    )
    assert limit.on_sample(sample(2.5, outcome=Outcome.DROPPED, admitted_at=80)).limit == 64


def test_aimd_does_not_grow_while_unused():
    limit = AimdLimit(100)
    for second in range(400):
        limit.on_sample(sample(float(second), 0.5, 50.0))
    assert limit.limit == 100


def test_aimd_comes_down_to_what_was_served_but_not_below_a_half_at_once():
    limit = AimdLimit(1000)
    limit.on_sample(sample(1.0, load=120.0))
    assert [refused(limit, 2.0 * n, 1000.0 / n).limit for n in (1, 2, 3, 4)] == [500, 250, 125, 100]


def test_a_number_that_was_set_holds_until_the_server_refuses_and_comes_back():
    limit = FixedLimit(100)
    server = Server(limit, lambda load: 1.0)
    assert server.run(30.0) == 100
    assert refused(limit, server.now, 101.0).limit == 80
    assert 80 < server.run(33.0) < 100
    assert server.run(60.0) == 100


# knee --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knee", [4, 30, 200, 600])
@pytest.mark.parametrize("seconds", [0.05, 5.0])
def test_the_knee_is_found_wherever_it_is(knee, seconds):
    limit = KneeLimit(32)
    # At least a second passes between two decisions, so that a fast server gets as many of them.
    found = Server(limit, knee_at(knee, seconds)).run(60 * max(1.0, seconds))
    assert 0.8 * knee - 1 <= found <= 1.5 * knee + 2


def test_load_that_thrashes_is_left():
    """From far beyond the peak, where throughput is flat and low, back to it."""

    def seconds(load):
        return 1.0 if load <= 8 else 1.0 + 3.0 * min(1.0, (load - 8) / 4) + max(0.0, load - 12) / 3

    assert Server(KneeLimit(48), seconds).run(160.0) <= 10


def test_time_that_nobody_got_anything_for_lowers_the_limit():
    limit = KneeLimit(128)
    for tenth in range(200):
        limit.on_sample(sample(1.0 + tenth / 10, 1.0, 128.0, sequences=12, tokens=0, outcome=Outcome.WASTED))
    assert limit.limit < 16


@pytest.mark.parametrize("first_share", [0.3, 0.6, 0.75, 0.85, 0.95])
def test_a_wait_that_is_there_at_any_load_is_no_queue(first_share):
    """A long prompt's prefill, a gateway, a router over replicas: more load costs nobody any time."""
    limit = KneeLimit(32)
    now = 0.0
    while now < 60.0:
        load = limit.limit
        now += 1.3 / load
        limit.on_sample(sample(now, 1.3, float(load), tokens=30, first=first_share * 1.3))
    assert limit.limit > 500


@pytest.mark.parametrize(
    ("begun", "came_down", "noise", "most"),
    [(0, False, 0.5, 1.4), (200, False, 0.01, 1.2), (0, True, 0.01, 1.4), (0, True, 0.05, 1.283), (0, True, 0.5, 1.2)],
)
def test_on_a_noisy_server_or_once_opened_the_limit_runs_less_far_ahead(begun, came_down, noise, most):
    # It must grow all the same where callers use 0.85 of it.
    limit = KneeLimit()
    limit.on_begun(begun, 0.0, 1.0)
    limit._came_down, limit._elasticity.noise = came_down, noise
    assert limit._most_ahead() == pytest.approx(most, abs=1e-3)


@pytest.mark.parametrize(("first_share", "felt"), [(0.0, 44.7), (0.8, 31.5), (0.05, 80)])
def test_a_limit_that_grows_runs_no_further_ahead_than_of_the_queue_that_was_met(first_share, felt):
    """Answers that met 25 in flight and were served among 80. All of them waited for their tokens, or most of their time, or hardly."""
    limit = KneeLimit(32)
    now = 0.0
    while now < 60.0:
        now += 1 / limit.limit
        limit.on_sample(sample(now, 1.0, 80.0, in_flight=limit.limit, met=25, tokens=300, first=first_share))
    # 1.4 times what they felt (25 ** 0.5 * 80 ** 0.5, 25 ** 0.8 * 80 ** 0.2, 80), and the swing (1.12).
    assert 1.4 * felt / 1.13 <= limit.limit <= 1.4 * felt * 1.13


def test_a_step_of_a_whole_pace_goes_no_further_either():
    """All answers of a wave end at once, so that the limit is moved once per answer's time."""
    limit = KneeLimit(64)
    most = 72
    for wave in range(1, 12):
        load = limit.limit
        most = max(most, 1.4 * 1.13 * load)
        for _ in range(load):
            limit.on_sample(sample(10.0 * wave, 10.0, float(load)))
        assert limit.limit <= most
    assert limit.limit > 450


@pytest.mark.parametrize("knee", [8, 64])
def test_a_queue_for_the_first_token_is_found_and_left(knee):
    limit = KneeLimit(32)
    now = area = 0.0
    while now < 120.0:
        load = limit.limit
        waits_s = max(0.05, load / knee - 1)
        step_s = (1.0 + waits_s) / load
        now += step_s
        limit.on_sample(sample(now, 1.0 + waits_s, float(load), tokens=60, first=waits_s))
        if now > 60.0:
            assert limit.limit <= 1.65 * knee + 1
            area += step_s * load
    assert 0.8 * knee - 1 <= limit.limit <= 1.4 * knee + 1
    # And not only at that moment.
    assert 0.9 * knee - 1 <= area / 60.0 <= 1.3 * knee + 1


@pytest.mark.parametrize("tokens", [1, 40])
def test_where_answers_come_in_one_piece_a_little_more_throughput_is_followed(tokens):
    """A real vLLM's throughput at one token each grows with the power 0.2 of the load, up to its knee."""
    limit = KneeLimit(32)
    Server(limit, lambda load: (load / 128) ** 0.8 * max(1.0, load / 128) ** 0.2, tokens).run(40.0)
    assert 96 <= limit.limit <= 192


def left_after(seconds, wait_share, tokens):
    """The limit of a plateau at 64, from 256 on; of each answer's time this share is a wait for its first token."""
    limit = KneeLimit(256)
    now = 0.0
    while now < seconds:
        load = limit.limit
        took = load / 64
        now += took / load
        limit.on_sample(sample(now, took, float(load), tokens=tokens, first=wait_share * took))
    return limit.limit


def test_what_smaller_loads_brought_before_the_server_changed_is_forgotten():
    # Throughput grows with the power 0.3 of the load, so that every load on the way up is seen often.
    limit = KneeLimit(16)
    server = Server(limit, lambda load: (load / 128) ** 0.7 * max(1.0, load / 128) ** 0.3, tokens=4)
    assert server.run(16.0) >= 80
    server.seconds = lambda load: 3.0 * (load / 128) ** 0.7 * max(1.0, load / 128) ** 0.3
    assert min(server.run(server.now + 0.5) for _ in range(40)) >= 60
    assert repr(limit._short._throughputs) != "<Throughputs at 0 loads>"
    limit.on_restart(server.now)
    assert repr(limit._short._throughputs) == "<Throughputs at 0 loads>"


@pytest.mark.parametrize(("tokens", "first"), [(40, 0.0), (4, 0.3)])
def test_what_smaller_loads_brought_is_forgotten_where_answers_are_of_another_kind(tokens, first):
    limit = KneeLimit(16)
    server = Server(limit, knee_at(100), tokens=4)
    server.run(10.0)
    assert repr(limit._short._throughputs) != "<Throughputs at 0 loads>"
    for twentieth in range(200):
        now = server.now + twentieth / 20
        limit.on_sample(sample(now, 1.0, float(limit.limit), tokens=tokens, first=first))
    assert repr(limit._short._throughputs) == "<Throughputs at 0 loads>"


def test_where_answers_have_a_few_tokens_it_comes_down_from_a_plateau_too():
    server = Server(KneeLimit(256), knee_at(64), tokens=4)
    server.run(30.0)
    limits = [server.run(float(now)) for now in range(31, 151)]
    assert 60 <= sum(limits) / len(limits) <= 100


def test_it_comes_down_from_a_plateau_by_halves():
    server = Server(KneeLimit(256), knee_at(20), tokens=4)
    limits = [server.run(float(second)) for second in range(1, 121)]
    assert min(limits[:60]) <= 20, "half of it takes a look of more than twelve seconds at first"
    assert 20 <= sum(limits[60:]) / 60 <= 40
    long = Server(KneeLimit(256), knee_at(20), tokens=40)
    long.run(60.0)
    assert repr(long.limit._short.descent) == "<Descent at None>", (
        "answers of more tokens show themselves what is a wait"
    )


def descending():
    """A limit that is looking at a smaller load, and its server."""
    limit = KneeLimit(64)
    server = Server(limit, knee_at(16), tokens=4)
    while not (limit._short.descent.under_way and limit.limit <= 40):
        server.run(server.now + 0.1)
    return limit, server


def test_while_it_looks_at_a_load_it_does_not_swing_and_says_so():
    limit, server = descending()
    seen = set()
    while limit._short.descent.under_way:
        seen.add(server.run(server.now + 0.05))
    assert len(seen) <= 5, "a load, a half of it, …"


def test_a_descent_ends_with_a_refusal_and_begins_anew_with_a_restart():
    limit, server = descending()
    refused(limit, server.now, float(limit.limit))
    assert limit._short.descent.under_way, "one of all that were served: not about load"
    limit = KneeLimit(64)
    limit._short.descent.begin(64.0, 0.0, 6)
    refused(limit, 1.0, 64.0)
    assert not limit._short.descent.under_way
    limit, server = descending()
    limit.on_restart(server.now)
    assert not limit._short.descent.under_way
    began = server.now
    while not limit._short.descent.under_way and server.now < began + 60.0:
        server.run(server.now + 0.1)
    assert limit._short.descent.under_way


def test_a_look_begins_anew_after_a_pause_and_ends_with_late_answers():
    limit, server = descending()
    looked_at = repr(limit._short.descent)
    now = server.now + 10.0
    limit._latency_s = 0.5
    limit.on_sample(sample(now, 0.1, float(limit.limit), tokens=4))
    assert repr(limit._short.descent) == looked_at, "the same load, counted anew"
    assert limit._short.descent._since is None
    limit, server = descending()
    for late in range(200):
        limit.on_sample(sample(server.now + late / 50, 2.0, float(limit.limit), tokens=0, outcome=Outcome.LATE))
    assert not limit._short.descent.under_way


def test_what_holds_a_limit_lower_ends_a_descent():
    limit, server = descending()
    limit.hold(5)
    assert not limit._short.descent.under_way
    held = limit.limit
    assert server.run(server.now + 0.5) <= 1.5 * held, "it does not jump back to the load that it looked at"
    limit, server = descending()
    for missed in range(200):
        limit.on_sample(sample(server.now + missed / 50, 2.0, float(limit.limit), tokens=0, outcome=Outcome.WASTED))
    assert not limit._short.descent.under_way


class Changed(Elasticity):
    """Takes every point for a change of the server."""

    __slots__ = ()

    def take_in(self, point, base, pace_s, now, bursts):
        super().take_in(point, base, pace_s, now, bursts)
        return ServerChange(faster=True, least_load=4.0)


def test_while_it_looks_at_a_load_no_change_of_the_server_is_told():
    limit, server = descending()
    limit._elasticity = Changed()
    looked_at = limit.limit
    server.run(server.now + 0.6)
    assert limit.limit == looked_at, "half the load may bring a half, and no line goes through that"
    while limit._short.descent.under_way:
        server.run(server.now + 0.1)
    assert limit.limit >= 16
    server.run(server.now + 1.0)
    assert limit.limit <= 4, "then it is"


def test_a_descent_is_that_of_short_answers():
    limit, server = descending()
    server.tokens = 40
    server.run(server.now + 5.0)
    assert not limit._short.descent.under_way


def test_a_look_that_callers_do_not_fill_begins_anew():
    limit, server = descending()
    server.run(server.now + 1.0)
    for few in range(40):
        limit.on_sample(sample(server.now + few / 4, 0.5, 4.0, tokens=4))
    assert limit._short.descent.under_way
    assert limit._short.descent._since is None


def test_a_pause_after_a_descent_makes_no_other():
    limit, server = descending()
    while limit._short.descent.under_way:
        server.run(server.now + 0.1)
    limit._latency_s = 0.5
    limit.on_sample(sample(server.now + 10.0, 0.1, float(limit.limit), tokens=4))
    limit._short.descent.begin(64.0, 0.0, 6)
    assert not limit._short.descent.under_way


def cliff_at(best):
    """Throughput grows up to ``best`` in flight and falls off beyond: conversations that share a prefix cache."""
    return lambda load: 0.05 * (load / best) ** (0.5 if load <= best else 2.5)


def test_at_a_peak_the_limit_stays_and_looks_around_now_and_then():
    limit = KneeLimit(8)
    server = Server(limit, cliff_at(9), tokens=4)
    server.run(20.0)
    loads = [server.run(server.now + 0.1) for _ in range(1200)]
    stays = [len(list(same)) for _, same in itertools.groupby(loads)]
    assert max(stays) >= 150, "no swing, for the fifteen seconds until a side of the peak is forgotten"
    assert sum(load == 9 for load in loads) >= 0.65 * len(loads)
    assert min(loads) >= 5, "and not far"
    seconds = cliff_at(9)
    assert sum(load / seconds(load) for load in loads) / len(loads) >= 0.955 * 9 / seconds(9)
    assert max(loads) > 9, "what lies beside the peak is looked at again"


def test_a_peak_that_has_moved_is_left():
    limit = KneeLimit(8)
    server = Server(limit, cliff_at(9), tokens=4)
    server.run(30.0)
    # The same throughput at nine, but twice as many fit.
    server.seconds = lambda load: 0.05 * (load / 9) ** (0.5 if load <= 18 else 2.5)
    server.run(90.0)
    assert sorted(server.run(server.now + 0.1) for _ in range(200))[100] >= 14


def test_the_first_second_after_a_pause_says_nothing():
    """Caches are cold then: answers took four times as long, and the limit fell for it to a third."""
    limit = KneeLimit(64)
    server = Server(limit, knee_at(64, 0.3), tokens=4)
    before = server.run(30.0)
    server.now += 30.0
    began = server.now
    server.seconds = lambda load: 0.3 * max(1.0, load / 64) * max(1.0, 4.0 - 4.0 * (server.now - began))
    assert {server.run(began + tenth / 10) for tenth in range(1, 11)} == {before}


@pytest.mark.parametrize("seconds", [0.7, 0.8, 0.9, 1.05])
def test_a_limit_of_one_is_no_pause(seconds):
    """Four answers, one after another, take longer than what counts as a pause: an earlier version stayed at 1 for ever, its bound with it."""
    limit = KneeLimit(8)
    for tenth in range(40):
        refused(limit, 10.0 * tenth, 1.0)
    assert limit.limit == 1
    server = Server(limit, knee_at(100, seconds), tokens=4)
    server.now = 400.0
    assert server.run(700.0) >= 40


def test_cold_answers_that_take_long_are_left_out_too():
    limit = KneeLimit(64)
    server = Server(limit, knee_at(64, 0.5), tokens=4)
    before = server.run(60.0)
    server.now += 10.0
    for _ in range(32):
        limit.on_sample(sample(server.now + 2.5, 2.5, float(before), tokens=4))
    assert limit.limit == before


def test_what_was_remembered_is_void_after_late_answers_and_a_restart():
    def be_late(limit, now):
        for twentieth in range(1, 20):
            limit.on_sample(sample(now + twentieth / 20, 0.05, 9.0, outcome=Outcome.LATE))

    for forget in (be_late, lambda limit, now: limit.on_restart(now)):
        limit = KneeLimit(8)
        server = Server(limit, cliff_at(9), tokens=4)
        server.run(20.0)
        assert repr(limit._short._throughputs) != "<Throughputs at 0 loads>"
        forget(limit, server.now)
        assert repr(limit._short._throughputs) == "<Throughputs at 0 loads>"


@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_what_was_seen_before_a_pause_is_compared_with_what_comes_on_slow_servers_alone(seconds):
    limit = KneeLimit(64)
    server = Server(limit, knee_at(64, seconds), tokens=300)
    server.run(60.0)
    server.now += 3.5
    server.run(server.now + 0.5)
    assert (len(limit._elasticity.points) <= 2) == (seconds < 1)


def test_where_answers_come_piece_by_piece_each_turn_shortens_the_stride():
    """A server at its knee, as noisy as a shared one: its limit turns all the time."""
    generator = random.Random(0)
    limit = KneeLimit(64)
    now, steps = 0.0, []
    while now < 200.0:
        load, before = limit.limit, limit._base
        took = 2.0 * max(1.0, load / 64) * generator.lognormvariate(0, 0.2)
        now += took / load
        limit.on_sample(sample(now, took, float(load), tokens=300, first=0.05 * took))
        if limit._base != before:
            steps.append((now, abs(math.log(limit._base / before))))
    early = [step for at, step in steps if at < 20.0]
    late = [step for at, step in steps if at > 100.0]
    assert sum(late) / len(late) < 0.6 * sum(early) / len(early)


def test_where_answers_come_in_one_piece_the_limit_falls_faster():
    assert left_after(20.0, 0.0, tokens=40) < 0.8 * left_after(20.0, 0.05, tokens=40)


def test_that_answers_are_short_when_the_limit_has_risen_is_not_taken_for_load():
    """Throughput grows with the power 0.3 of the load. Short answers cost more per token, and with more load they are short."""
    limit = KneeLimit(64)
    now, usual = 0.0, 64.0
    while now < 60.0:
        load = limit.limit
        usual += 0.002 * (load - usual)
        tokens = (70 if load > usual else 130) + (25 if now % 1.7 < 0.8 else -25)
        took = (load / 64) ** 0.7 * tokens / 100 * (100 / tokens) ** 0.25
        now += took / load
        limit.on_sample(sample(now, took, float(load), tokens=tokens))
    assert limit.limit > 128


def test_the_more_of_the_time_is_a_wait_the_faster_the_limit_falls():
    assert left_after(12.0, 0.6, tokens=300) < 0.8 * left_after(12.0, 0.2, tokens=300)
    assert left_after(6.0, 0.95, tokens=300) <= left_after(6.0, 0.6, tokens=300), (
        "a long queue is no answer in one piece"
    )


def test_a_step_of_a_whole_pace_goes_not_far_down_either():
    """Of each answer's time 0.6 is a wait: to a third per pace, if nothing is seen of it meanwhile."""
    limit = KneeLimit(256)
    for wave in range(1, 14):
        load, took = limit.limit, limit.limit / 10
        for _ in range(load):
            limit.on_sample(sample(100.0 * wave, took, float(load), tokens=300, first=0.6 * took))
    assert 60 <= limit.limit <= 128, "and not 2"


def test_a_server_that_changes_is_followed():
    limit = KneeLimit(32)
    server = Server(limit, knee_at(200))
    server.run(30.0)
    server.seconds = knee_at(40, 3.0)
    assert 25 <= server.run(150.0) <= 70


def test_a_limit_that_is_not_used_does_not_grow():
    limit = KneeLimit(100)
    for tenth in range(1000):
        limit.on_sample(sample(tenth / 10, 1.0, 20.0, sequences=2))
    assert limit.limit <= 112


def with_few_callers(limit, until):
    """Twenty answers a second whatever the server does: it is now faster, now slower, and what is in flight follows."""
    now = 0.0
    while now < until:
        now += 0.05
        seconds = 0.6 + 0.4 * math.sin(now / 3)
        limit.on_sample(sample(now, seconds, 20 * seconds))


def test_a_limit_that_is_not_used_does_not_fall():
    limit = KneeLimit(64)
    with_few_callers(limit, 120.0)
    assert limit.limit == 64


def test_nothing_is_learnt_while_the_limit_is_not_used():
    limit = KneeLimit(64)
    with_few_callers(limit, 120.0)
    assert limit.elasticity == 1.0
    server = Server(limit, knee_at(256))
    server.now = 120.0
    assert server.run(126.0) > 120


def test_a_limit_that_has_no_room_for_another_call_is_used():
    """Calls of 40 sequences: one fits into 64, two do not."""
    limit = KneeLimit(64)
    now = 0.0
    while now < 60.0:
        load = limit.limit // 40 * 40
        now += 40 / load
        limit.on_sample(sample(now, 1.0, load, sequences=40, weight=40))
    assert limit.limit > 200


def test_answers_that_come_too_late_bound_it_below_the_load_they_met():
    limit = KneeLimit(128)
    changes = []
    for tenth in range(1, 6):
        changes.append(
            limit.on_sample(sample(1.0 + tenth / 10, 1.0, 100.0, sequences=5, tokens=0, outcome=Outcome.LATE))
        )
        changes.append(limit.on_sample(sample(1.0 + tenth / 10, 0.9, 100.0, sequences=15)))
    made = [change for change in changes if change is not None]
    assert made[0].reason == "answers came too late"
    assert max(change.limit for change in made) <= 95


def test_a_refusal_cuts_once_and_bounds_for_a_while():
    limit = KneeLimit(100)
    server = Server(limit, lambda load: 1.0)
    before = server.run(1.0)
    change = refused(limit, server.now, before + 20.0)
    assert change.limit < before
    assert change.reason == "the server refused work"
    assert refused(limit, server.now + 0.1, before + 20.0) is None, "it cools down"
    assert server.run(20.0) < before
    assert server.run(60.0) > before


def test_what_is_refused_after_the_cut_lowers_the_bound_to_below_that_but_not_below_two_cuts():
    limit = KneeLimit(100)
    assert refused(limit, 1.0, 130.0).limit == 90  # 0.8 of 100, and 0.12 of that: it swings up
    bound = limit._bound.load
    limit.on_sample(sample(1.1, 0.1, 85.0, outcome=Outcome.DROPPED, admitted_at=91))
    assert limit.limit == 90, "it was admitted before the cut"
    assert refused(limit, 1.2, 90.0).limit == 89
    assert refused(limit, 1.2, 90.0) is None, "what was sent beside it is refused as well"
    for _ in range(200):
        refused(limit, 1.3, float(limit.limit))
    assert limit.limit == round(0.64 * bound)


def test_one_refusal_of_many_after_the_cut_does_not_lower_the_bound():
    limit = KneeLimit(100)
    refused(limit, 1.0, 130.0)
    for _ in range(20):
        limit.on_sample(sample(1.1, 0.1, 88.0))
    assert refused(limit, 1.2, 85.0) is None
    assert limit.limit == 90


def test_refusals_of_a_load_that_is_mostly_served_are_not_about_load():
    limit = KneeLimit(100)
    server = Server(limit, lambda load: 1.0)
    for _ in range(60):
        server.run(server.now + 0.5)
        assert refused(limit, server.now, limit.limit - 1.0) is None
    assert limit.limit > 150


def test_refusals_at_any_load_are_not_about_load():
    """One request in twenty is refused, wherever the limit is on its way up: it costs a cut or two at first."""
    limit = KneeLimit(32)
    server = Server(limit, lambda load: 1.0)
    cuts = turns = 0
    while server.now < 30.0:
        server.run(server.now + 0.05)
        turns += 1
        if turns % 20 == 0:
            cuts += refused(limit, server.now, limit.limit) is not None
    assert cuts <= 3
    assert limit.limit > 500


def test_a_refusal_at_the_top_is_judged_by_what_is_refused_below():
    def judged(share_below):
        refusals = Refusals()
        for turn in range(200):
            dropped = share_below and turn % round(1 / share_below) == 0
            refusals.on_sample(
                sample(1.0, load=50.0, sequences=8, outcome=Outcome.DROPPED if dropped else Outcome.SUCCESS)
            )
        verdicts = []
        for _ in range(3):
            refusals.on_sample(sample(2.0, load=100.0, sequences=8, outcome=Outcome.DROPPED))
            verdicts.append(refusals.about_load(100))
        return verdicts

    assert judged(0.0) == [True, True, True]
    assert judged(0.1) == [False, True, True], "one may be chance where a tenth is refused; two in a row are not"
    assert judged(0.5) == [False, False, False]


def test_a_server_that_has_served_nothing_yet_cuts_with_its_first_refusal():
    limit = KneeLimit(100)
    assert refused(limit, 1.0, 90.0).limit < 90


def test_answers_that_took_no_time_say_nothing():
    limit = KneeLimit(10)
    for _ in range(100):
        assert limit.on_sample(sample(1.0, 0.0)) is None


def test_it_never_leaves_its_bounds():
    limit = KneeLimit(8, floor=4, ceiling=16)
    assert Server(limit, lambda load: 1.0).run(50.0) >= 13
    assert Server(limit, lambda load: float(load * load)).run(3000.0) <= 5


@pytest.mark.parametrize(
    "bad", [{"start": 0}, {"start": 32, "floor": 40}, {"start": 32, "ceiling": 8}, {"target": 0.0}, {"target": 1.0}]
)
def test_bounds_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"floor|elasticity"):
        KneeLimit(**bad)


def test_first_tokens_open_it_up_to_256():
    limit = KneeLimit(64)
    change = limit.on_begun(64, 0.0, 1.0)
    assert (change.limit, change.reason) == (
        100,
        "64 sequences have begun to be answered",
    )  # 1.4 times, and it swings up
    assert limit.on_begun(64, 0.0, 1.1) is None
    assert limit.on_begun(40, 0.0, 1.2) is None, "it never lowers it"
    assert limit.on_begun(1000, 0.0, 1.3).limit == 287  # 256 and 0.12 of that
    assert KneeLimit(64, ceiling=80).on_begun(64, 0.0, 1.0).limit == 80


def test_where_callers_have_no_time_first_tokens_do_not_open_it():
    assert KneeLimit(64).on_begun(64, 0.011, 1.0) is None
    assert KneeLimit(64).on_begun(64, 0.009, 1.0).limit == 100


def test_where_latency_is_wanted_first_tokens_do_not_open_it():
    limit = KneeLimit(64, opens=False)
    assert not limit.opening
    assert limit.on_begun(64, 0.0, 1.0) is None


def test_a_limit_that_came_down_does_not_open_again_before_the_server_is_started_anew():
    limit = KneeLimit(64)
    assert limit.opening
    Server(limit, knee_at(20)).run(30.0)
    assert not limit.opening
    assert limit.on_begun(limit.limit, 0.0, 31.0) is None
    limit.on_restart(40.0)
    assert limit.opening
    assert limit.on_begun(200, 0.0, 41.0).reason == "200 sequences have begun to be answered"


@pytest.mark.parametrize("outcome", [Outcome.DROPPED, Outcome.LATE])
def test_a_limit_that_refusals_or_late_answers_cut_does_not_open_again(outcome):
    limit = KneeLimit(100)
    for tenth in range(20):
        limit.on_sample(sample(1.0 + tenth / 10, 1.0, 100.0, sequences=5, outcome=outcome, admitted_at=limit.limit))
    assert not limit.opening
    assert limit.limit < 100
    # An hour later the bound is long gone. Were it to open then, a server that refuses would be flooded every half minute.
    assert limit.on_begun(100, 0.0, 3600.0) is None


def test_a_server_that_was_started_anew_opens_it_again_as_if_it_were_new():
    limit = KneeLimit(64)
    limit.on_begun(100, 0.0, 1.0)
    refused(limit, 2.0, 100.0)
    assert limit._most_ahead() == 1.2
    limit.on_restart(3.0)
    assert limit._most_ahead() == 1.4
    assert limit.on_begun(200, 0.0, 4.0).limit == 287, "nor does the bound hold it"


def test_while_a_server_that_changed_is_looked_at_nothing_opens():
    limit = KneeLimit(64)
    limit._hold_until = 2.0
    assert limit.on_begun(64, 0.0, 1.9) is None
    assert limit.on_begun(64, 0.0, 2.0).limit == 100


def opened(knee):
    """How the limit comes down that first tokens opened to 287, and what the load was at its least: 64 were sent first, then the others."""
    limit = KneeLimit(64)
    limit.on_begun(256, 0.0, 0.1)
    now, loads = 0.1, []
    while limit.opening:
        # As answers end and others take their places, those that end were served beside more and more.
        loads.append(min(limit.limit, 64 + 2.0 * len(loads)))
        seconds = 2.0 * max(1.0, loads[-1] / knee)
        now += seconds / loads[-1]
        before = limit.limit
        limit.on_sample(sample(now, seconds, loads[-1], in_flight=limit.limit))
    return limit, before


@pytest.mark.parametrize("knee", [80, 120])
def test_a_limit_that_was_opened_too_far_comes_down_at_once(knee):
    limit, before = opened(knee)
    assert before > 1.5 * knee
    assert 0.8 * knee < limit.limit < 0.75 * before


# latency -----------------------------------------------------------------------------------------------------------


def test_a_latency_objective_caps_what_breaks_it_and_lets_go():
    control = LimitControl(FixedLimit(100), [LatencyCap(2.0)])
    server = Server(control, lambda load: load / 20)
    assert 34 <= server.run(120.0) <= 40
    assert control.reason.startswith("p95 latency 2.")
    assert control.reason.endswith(" s, 2 s asked for")
    server.seconds = lambda load: 0.1
    assert server.run(400.0) == 100


def test_the_short_answers_that_end_first_do_not_make_an_objective_look_kept():
    """One answer in ten takes 8 s, the others 1 s, whatever the load: only nine in ten end within a second of being sent."""
    cap = LatencyCap(4.0)
    now, ends = 0.0, []
    for call in range(4000):
        now += 0.05
        ends.append((now + (8.0 if call % 10 == 0 else 1.0), now))
        for at, sent_at in sorted(end for end in ends if end[0] <= now):
            cap.on_sample(sample(at, at - sent_at, 34.0))
        ends = [end for end in ends if end[0] > now]
        if cap.cap(now) is not None:
            break
    assert cap.cap(now)[1] == "p95 latency 8 s, 4 s asked for"
    assert now >= 12.0, "the long ones have come to be as many as they are"


def test_an_objective_that_less_load_does_not_bring_nearer_lets_the_load_be():
    control = LimitControl(FixedLimit(100), [LatencyCap(2.0)])
    limits = []
    server = Server(control, lambda load: 5.0)
    for until in range(10, 260, 10):
        limits.append(server.run(float(until)))
    assert min(limits) >= 25
    assert set(limits[15:25]) == {100}
    assert control.reason == "p95 latency 5 s, 2 s asked for; less load hardly lowers it"
    server.seconds = lambda load: load / 20
    assert 34 <= server.run(1000.0) <= 40, "that was five minutes ago"


def test_a_server_that_is_slower_than_the_objective_by_itself_is_not_left_with_one_call_at_a_time():
    control = LimitControl(FixedLimit(8), [LatencyCap(1.0)])
    server = Server(control, lambda load: 1.5 + 0.5 * load)
    limits = [server.run(float(until)) for until in range(50, 3000, 50)]
    assert 1 in limits
    assert limits[limits.index(1) :].count(8) > 10
    assert "p95 latency 2 s, 1 s asked for; less load hardly lowers it" in limits_reasons(control, server)


def limits_reasons(control, server):
    """The reasons of the next two hours."""
    reasons = set()
    while server.now < 10_000.0:
        server.run(server.now + 10.0)
        reasons.add(control.reason)
    return reasons


def test_a_cap_of_one_grows_and_does_not_let_go():
    control = LimitControl(FixedLimit(64), [LatencyCap(1.2)])
    server = Server(control, float)
    server.run(2000.0)
    assert {server.run(float(until)) for until in range(2100, 9000, 100)} == {1, 2}


def test_a_cap_that_is_not_in_force_is_not_lowered():
    cap = LatencyCap(2.0)
    control = LimitControl(FixedLimit(100), [cap])
    control.pin(64, 0.0)
    server = Server(control, lambda load: load / 20)
    server.run(1800.0)
    control.pin(None, server.now)
    assert 30 <= control.limit <= 40


def test_what_was_seen_before_the_objective_was_kept_says_nothing_of_the_server_now():
    control = LimitControl(FixedLimit(64), [LatencyCap(10.0)])
    server = Server(control, lambda load: 10.1 * load / 64)
    assert server.run(3600.0) == 60
    server.seconds = lambda load: 22.2 * load / 64
    assert 25 <= server.run(3900.0) <= 31


def test_callers_who_leave_at_once_do_not_make_an_objective_look_kept():
    cap = LatencyCap(5.0)
    for tenth in range(9000):
        left = tenth % 33 > 0
        cap.on_sample(
            sample(
                50.0 + tenth / 10,
                0.3 if left else 12.0,
                30.0,
                outcome=Outcome.WASTED if left else Outcome.SUCCESS,
            )
        )
    assert cap.cap(950.0)[0] < 30


def test_one_slow_window_is_no_reason_to_give_up():
    control = LimitControl(FixedLimit(100), [LatencyCap(2.0)])
    server = Server(control, lambda load: load / 20)
    assert server.run(12.0) == 50
    server.seconds = lambda load: 5.0
    server.run(27.0)
    server.seconds = lambda load: load / 20
    limits = {server.run(float(second)) for second in range(28, 200)}
    assert max(limits) == 50
    assert min(limits) <= 38


def test_a_cap_that_is_not_used_does_not_grow():
    cap = LatencyCap(2.0)
    server = Server(LimitControl(FixedLimit(100), [cap]), lambda load: load / 20)
    held = server.run(100.0)
    for tenth in range(10_000):
        cap.on_sample(sample(100.0 + tenth / 10, 0.2, 5.0))
    assert cap.cap(1100.0)[0] == held


def test_a_server_that_is_too_slow_for_one_call_at_a_time_is_not_capped_for_it():
    cap = LatencyCap(2.0)
    for call in range(1000):
        cap.on_sample(sample(100.0 + 4 * call, 3.0, 1.2, in_flight=3))
    assert cap.cap(4100.0) is None


def test_a_cut_begins_from_the_load_of_the_burst_not_of_the_lull_after_it():
    cap = LatencyCap(5.0)
    for tenth in range(300):
        cap.on_sample(sample(20.0 + tenth / 10, 6.0, 60.0, in_flight=5))
    assert cap.cap(50.0)[0] == 47


def test_an_idle_night_ends_a_window():
    cap = LatencyCap(2.0)
    for tenth in range(99):
        cap.on_sample(sample(100.0 + tenth / 10, 1.0, 30.0))
    for tenth in range(99):
        cap.on_sample(sample(30_000.0 + tenth / 10, 5.0, 30.0))
    assert cap.cap(30_010.0) is None
    cap.on_sample(sample(30_010.0, 5.0, 30.0))
    assert cap.cap(30_010.0)[0] < 30


def test_calls_whose_deadlines_pass_took_at_least_that_long():
    cap = LatencyCap(1.5)
    for tenth in range(400):
        late = tenth % 5 == 0
        cap.on_sample(
            sample(10.0 + tenth / 10, 2.0 if late else 1.0, 30.0, outcome=Outcome.LATE if late else Outcome.SUCCESS)
        )
    assert cap.cap(50.0)[0] < 30


def test_an_objective_for_the_first_token_ignores_plain_replies():
    cap = LatencyCap(0.5, first_token=True)
    for second in range(100):
        cap.on_sample(sample(float(second), 5.0))
    assert cap.cap(100.0) is None
    for second in range(100, 160):
        cap.on_sample(sample(float(second), 0.9, 50.0, sequences=2, first=1.2))
    assert cap.cap(160.0) == (39, "p95 time to first token 0.6 s, 0.5 s asked for")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_latency_objective_is_positive(bad):
    with pytest.raises(ValueError, match="above 0"):
        LatencyCap(bad)


# control -----------------------------------------------------------------------------------------------------------


class Says:
    """A cap that says what it is told to."""

    def __init__(self, verdict=None):
        self.verdict, self.heard = verdict, []

    def on_sample(self, sample):
        self.heard.append(sample)

    def cap(self, now):
        return self.verdict

    def on_load(self, load, in_flight, now):
        self.verdict = load

    def on_restart(self, now):
        self.verdict = None


def test_the_lowest_number_is_in_force_and_says_why():
    first, second = Says((50, "a")), Says((30, "b"))
    control = LimitControl(FixedLimit(40), [first, second])
    change = control.on_sample(sample(1.0))
    assert (change.limit, change.reason) == (30, "b")
    second.verdict = (45, "b")
    assert control.on_sample(sample(2.0)).limit == 40
    assert control.on_sample(sample(3.0)) is None, "nothing has changed"
    assert len(first.heard) == len(second.heard) == 3


def test_first_tokens_are_told_to_the_algorithm_and_raise_no_more_than_a_cap_or_a_pin_allows():
    free, capped, pinned = (
        LimitControl(KneeLimit(64)),
        LimitControl(KneeLimit(64), [Says((70, "a cap"))]),
        LimitControl(KneeLimit(64)),
    )
    pinned.pin(50, 0.5)
    assert [control.on_begun(64, 0.0, 1.0) for control in (capped, pinned)] == [LimitChange(70, "a cap"), None]
    assert free.on_begun(64, 0.0, 1.0).limit == 100
    assert free.opening


def test_an_algorithm_that_does_not_listen_is_not_told_of_first_tokens():
    control = LimitControl(FixedLimit(64))
    assert not control.opening
    assert control.on_begun(64, 0.0, 1.0) is None


def test_a_cap_never_raises_and_never_falls_below_one():
    control = LimitControl(FixedLimit(4), [Says((0, "nothing at all"))])
    assert control.on_sample(sample(1.0)).limit == 1


def test_what_a_cap_held_back_does_not_jump_when_the_cap_is_gone():
    cap = Says()
    control = LimitControl(KneeLimit(300), [cap])
    cap.verdict = (40, "the server's queue")
    assert control.on_sample(sample(1.0)).limit == 40
    cap.verdict = None
    assert control.on_sample(sample(2.0)).limit <= 1.6 * 40
    assert control.reason == "no cap any more"


def test_a_pin_leaves_what_was_found():
    control = LimitControl(KneeLimit(300), [Says()])
    control.pin(8, 0.0)
    control.on_sample(sample(1.0))
    assert control.pin(None, 2.0).limit == 300


def test_a_pin_holds_whatever_is_said():
    cap = Says((3, "low"))
    control = LimitControl(FixedLimit(40), [cap])
    assert control.pin(64, 1.0).limit == 64
    assert control.on_sample(sample(2.0)) is None
    change = control.pin(None, 3.0)
    assert (change.limit, change.reason) == (3, "low")
    free = LimitControl(FixedLimit(40))
    free.pin(64, 1.0)
    change = free.pin(None, 2.0)
    assert (change.limit, change.reason) == (40, "unpinned")
    with pytest.raises(ValueError, match="at least 1"):
        control.pin(0, 4.0)


def test_what_the_server_says_and_its_restart_reach_the_caps():
    cap = Says()
    control = LimitControl(FixedLimit(40), [cap])
    assert control.on_load((7, "the server"), 12, 1.0).reason == "the server"
    assert control.on_restart(2.0).limit == 40
