"""An objective in seconds: what of the limit keeps to it, at literal times."""

import math

import pytest

from tests.core import FixedLimit, Outcome
from batchclient._core.limits.control import LimitControl
from batchclient._core.limits.objective import Objective
from tests.unit.limits.samples import Server, sample


def test_a_latency_objective_caps_what_breaks_it_and_lets_go():
    control = LimitControl(FixedLimit(100), [Objective(2.0)])
    server = Server(control, lambda load: load / 20)
    assert 34 <= server.run(120.0) <= 40
    assert control.reason.startswith("p95 latency 2.")
    assert control.reason.endswith(" s, 2 s asked for")
    server.seconds = lambda load: 0.1
    assert server.run(400.0) == 100


def lowers_after(per_s, slow_share=1.0):
    """How many answers, of which a share takes a second too long, lower a limit; ``None``: so few are allowed to."""
    objective = Objective(2.0)
    for count in range(1, 5001):
        is_slow = count * slow_share % 1 + slow_share >= 1
        objective.on_sample(sample(50.0 + count / per_s, 3.0 if is_slow else 0.5, 30.0))
        if objective.load < math.inf:
            return count
    return None


def test_a_limit_is_judged_by_a_hundred_answers_over_five_seconds_or_by_a_thousand():
    # Answers that were sent before the first one ended do not count: the second window decides, or the third.
    assert [lowers_after(per_s) for per_s in (10, 25, 1000)] == [200, 252, 3000]


def test_five_answers_in_a_hundred_may_take_longer_than_the_objective():
    assert lowers_after(100, 0.04) is None
    assert lowers_after(100, 0.08) is not None


def test_the_short_answers_that_end_first_do_not_make_an_objective_look_kept():
    """One answer in ten takes 8 s, the others 1 s, whatever the load: only nine in ten end within a second of being sent."""
    objective = Objective(4.0)
    now, ends = 0.0, []
    for call in range(4000):
        now += 0.05
        ends.append((now + (8.0 if call % 10 == 0 else 1.0), now))
        for at, sent_at in sorted(end for end in ends if end[0] <= now):
            objective.on_sample(sample(at, at - sent_at, 34.0))
        ends = [end for end in ends if end[0] > now]
        if objective.load < math.inf:
            break
    assert objective.reason == "p95 latency 8 s, 4 s asked for"
    assert now >= 12.0, "the long ones have come to be as many as they are"


def test_an_objective_that_less_load_does_not_bring_nearer_lets_the_load_be():
    control = LimitControl(FixedLimit(100), [Objective(2.0)])
    limits = []
    server = Server(control, lambda load: 5.0)
    for until in range(10, 260, 10):
        limits.append(server.run(float(until)))
    assert min(limits) >= 25
    assert set(limits[15:25]) == {100}
    assert control.reason == "p95 latency 5 s, 2 s asked for; less load hardly lowers it"
    server.seconds = lambda load: load / 20
    assert 34 <= server.run(1000.0) <= 40, "it is looked at again"


def test_a_server_that_is_slower_than_the_objective_by_itself_is_not_left_with_one_call_at_a_time():
    control = LimitControl(FixedLimit(8), [Objective(1.0)])
    server = Server(control, lambda load: 1.5 + 0.5 * load)
    limits, reasons = [], set()
    for until in range(50, 12_000, 50):
        limits.append(server.run(float(until)))
        reasons.add(control.reason)
    assert 1 in limits
    assert "p95 latency 2 s, 1 s asked for; less load hardly lowers it" in reasons
    lately = limits[len(limits) // 2 :]
    assert lately.count(8) > 0.4 * len(lately), "by then it is let be for a quarter of an hour each time"


def test_a_cap_of_one_grows_and_does_not_let_go():
    control = LimitControl(FixedLimit(64), [Objective(1.2)])
    server = Server(control, float)
    server.run(2000.0)
    assert {server.run(float(until)) for until in range(2100, 9000, 100)} == {1, 2}


def test_a_cap_that_is_not_in_force_is_not_lowered():
    control = LimitControl(FixedLimit(100), [Objective(2.0)])
    control.pin(64, 0.0)
    server = Server(control, lambda load: load / 20)
    server.run(1800.0)
    control.pin(None, server.now)
    assert 30 <= control.limit <= 40


def test_what_was_seen_before_the_objective_was_kept_says_nothing_of_the_server_now():
    control = LimitControl(FixedLimit(64), [Objective(10.0)])
    server = Server(control, lambda load: 10.1 * load / 64)
    assert server.run(3600.0) == 60
    server.seconds = lambda load: 22.2 * load / 64
    assert 25 <= server.run(3900.0) <= 31


def test_callers_who_leave_at_once_do_not_make_an_objective_look_kept():
    objective = Objective(5.0)
    for tenth in range(9000):
        left = tenth % 33 > 0
        outcome = Outcome.WASTED if left else Outcome.SUCCESS
        objective.on_sample(sample(50.0 + tenth / 10, 0.3 if left else 12.0, 30.0, outcome=outcome))
    assert int(objective.load) < 30


def test_one_slow_window_is_no_reason_to_give_up():
    control = LimitControl(FixedLimit(100), [Objective(2.0)])
    server = Server(control, lambda load: load / 20)
    assert server.run(12.0) == 50
    server.seconds = lambda load: 5.0
    server.run(27.0)
    server.seconds = lambda load: load / 20
    limits = {server.run(float(second)) for second in range(28, 200)}
    assert max(limits) == 50
    assert min(limits) <= 38


def test_a_cap_that_is_not_used_does_not_grow():
    objective = Objective(2.0)
    server = Server(LimitControl(FixedLimit(100), [objective]), lambda load: load / 20)
    held = server.run(100.0)
    for tenth in range(10_000):
        objective.on_sample(sample(100.0 + tenth / 10, 0.2, 5.0))
    assert int(objective.load) == held


def test_a_server_that_is_too_slow_for_one_call_at_a_time_is_not_capped_for_it():
    objective = Objective(2.0)
    for call in range(1000):
        objective.on_sample(sample(100.0 + 4 * call, 3.0, 1.2, in_flight=3))
    assert objective.load == math.inf


def test_a_cut_begins_from_the_load_of_the_burst_not_of_the_lull_after_it():
    objective = Objective(5.0)
    for tenth in range(300):
        objective.on_sample(sample(20.0 + tenth / 10, 6.0, 60.0, in_flight=5))
    assert int(objective.load) == 47


def test_an_idle_night_ends_a_window():
    objective = Objective(2.0)
    for tenth in range(99):
        objective.on_sample(sample(100.0 + tenth / 10, 1.0, 30.0))
    for tenth in range(99):
        objective.on_sample(sample(30_000.0 + tenth / 10, 5.0, 30.0))
    assert objective.load == math.inf
    objective.on_sample(sample(30_010.0, 5.0, 30.0))
    assert int(objective.load) < 30


def test_calls_whose_deadlines_pass_took_at_least_that_long():
    objective = Objective(1.5)
    for tenth in range(400):
        late = tenth % 5 == 0
        outcome = Outcome.LATE if late else Outcome.SUCCESS
        objective.on_sample(sample(10.0 + tenth / 10, 2.0 if late else 1.0, 30.0, outcome=outcome))
    assert int(objective.load) < 30


def test_an_objective_for_the_first_token_ignores_plain_replies():
    objective = Objective(0.5, first_token=True)
    for second in range(100):
        objective.on_sample(sample(float(second), 5.0))
    assert objective.load == math.inf
    for second in range(100, 160):
        objective.on_sample(sample(float(second), 0.9, 50.0, sequences=2, first_tokens_s=1.2))
    assert (int(objective.load), objective.reason) == (39, "p95 time to first token 0.6 s, 0.5 s asked for")


def test_a_server_that_was_started_anew_has_broken_no_promise():
    control = LimitControl(FixedLimit(100), [Objective(2.0)])
    assert Server(control, lambda load: load / 20).run(100.0) < 50
    control.on_restart(101.0)
    assert (control.limit, control.reason) == (100, "fixed")


def test_a_latency_objective_is_positive():
    for bad in [0.0, -1.0, math.nan]:
        with pytest.raises(ValueError, match="above 0"):
            Objective(bad)
