"""Tenants: equal shares of tokens for those that wait, nothing owed to those that were away."""

import random

import pytest

from tests.core import Cancelled, FailureKind, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, counted, failed, shape


def busy(count, of, **settings):
    play = Playbook(limit=count, **settings)
    holders = calls(count, of)
    play.submit(*holders) >> Woke()
    return play, holders


def test_calls_of_two_tenants_never_share_a_request():
    play = Playbook(limit=8)
    a, b = calls("a1 a2", shape(tenant="a")), calls("b1 b2", shape(tenant="b"))
    play.submit(*a, *b) >> Woke() << ["send a1 a2", "send b1 b2"]


def test_the_tenant_that_was_served_least_goes_next():
    one, other = shape(tenant="one", alone_reason="alone"), shape(tenant="other", alone_reason="alone")
    play, (held,) = busy(1, one)
    many, few = calls("a b c d", one), calls("x y", other)
    play.submit(*many, *few)
    play.at(1.0) >> answered(held, tokens=16) << ["resolve c0", "send x"]
    play.at(2.0) >> answered(few[0], tokens=16) << ["resolve x", "send a"]
    play.at(3.0) >> answered(many[0], tokens=16) << ["resolve a", "send y"]


@pytest.mark.parametrize("how", [answered, counted], ids=["by usage", "by output tokens alone"])
def test_a_tenant_is_charged_what_it_used_not_what_was_expected(how):
    one, other = shape(tenant="one", alone_reason="alone"), shape(tenant="other", alone_reason="alone")
    play, (held,) = busy(1, shape(alone_reason="alone"))
    many, few = calls("a b c", one), calls("x y z", other)
    play.submit(*many, *few)
    play.at(1.0) >> answered(held, tokens=1) << ["resolve c0", "send a"]
    play.at(2.0) >> how(many[0], tokens=2) << ["resolve a", "send x"]
    play.at(3.0) >> how(few[0], tokens=900) << ["resolve x", "send b"]
    play.at(4.0) >> how(many[1], tokens=100) << ["resolve b", "send c"]
    play.at(5.0) >> how(many[2], tokens=100) << ["resolve c", "send y"]
    served = {tenant: each.completion_tokens for tenant, each in play.tenants.items()}
    assert served == {"one": 202, "other": 900}


def test_what_nobody_got_is_not_charged():
    one, other = shape(tenant="one", alone_reason="alone"), shape(tenant="other", alone_reason="alone")
    play, (held,) = busy(1, shape(alone_reason="alone"))
    (a,), (x,) = calls("a", one, tokens=50), calls("x", other, tokens=5)
    play.submit(a, x)
    play.at(1.0) >> answered(held) << ["resolve c0", "send a"]
    play.at(2.0) >> failed(a, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send a"]


def test_a_tenant_that_was_away_is_owed_nothing():
    one, other = shape(tenant="one", alone_reason="alone"), shape(tenant="other", alone_reason="alone")
    play, (held,) = busy(1, one)
    many = calls(" ".join(f"m{i}" for i in range(40)), one)
    play.submit(*many)
    open_call = held
    for i, call in enumerate(many[:20]):
        play.at(1.0 + i) >> answered(open_call, tokens=16)
        open_call = call
    late = calls("x y z", other)
    play.submit(*late)
    order = []
    for i in range(6):
        play.at(100.0 + i) >> answered(open_call, tokens=16)
        open_call = play.last.requests[0]
        order.append(open_call.waiter)
    assert order == ["x", "m20", "y", "m21", "z", "m22"]


@pytest.mark.parametrize("limit", [1, 8, 64])
def test_of_two_tenants_one_sending_ten_times_more_both_get_equal_shares(limit):
    """Both have calls waiting throughout; lengths differ between them and from call to call."""
    served = shares(limit, {"greedy": (3000, 30, 40), "modest": (300, 120, 80)})
    assert served["modest"] == pytest.approx(served["greedy"], rel=0.1)


def test_a_weight_of_two_is_twice_the_share():
    served = shares(16, {"gold": (2000, 30, 16), "iron": (2000, 30, 16)}, tenant_weights={"gold": 2.0})
    assert served["gold"] == pytest.approx(2 * served["iron"], rel=0.1)


def shares(limit, tenants, **settings):
    """Weighted tokens served to each tenant until the first has no call waiting; virtual time, a second per call."""
    dice = random.Random(7)
    play = Playbook(limit=limit, max_size=8, **settings)
    for name, (count, prompt_tokens, output_tokens) in tenants.items():
        of = shape(tenant=name, max_output_tokens=2 * output_tokens)
        for call in calls(count, of):
            call.prompt_tokens = prompt_tokens
            call.waiter = f"{name}-{call.waiter}"
            play.submit(call)
    play >> Woke()
    while all(play.tenants[name].queued for name in tenants):
        batch = play.sent.pop(0)
        name = batch.shape.tenant
        _, prompt_tokens, output_tokens = tenants[name]
        event = answered(*batch.requests, tokens=dice.randint(1, 2 * output_tokens))
        for _, completion in event.answers:
            completion.usage.prompt_tokens = prompt_tokens
        play.at(play.now + 1.0) >> event
    return {name: each.prompt_tokens + 2 * each.completion_tokens for name, each in play.tenants.items()}


def test_a_priority_comes_before_fairness():
    one, other = shape(tenant="one", priority=1, alone_reason="x"), shape(tenant="other", alone_reason="x")
    play, (held,) = busy(1, one)
    play.submit(*calls("x", other), *calls("a", one))
    play.at(1.0) >> answered(held, tokens=999) << ["resolve c0", "send a"]


def test_one_tenants_flood_keeps_no_other_outside():
    play = Playbook(limit=1, max_queued=2)
    play.submit(*calls("a b c d", shape(tenant="one")), *calls("x", shape(tenant="other"))) >> Woke() << ["send a"]
    assert {tenant: (s.queued, s.waiting) for tenant, s in play.tenants.items()} == {"one": (2, 1), "other": (1, 0)}


def test_thousands_of_tenants_that_came_once_are_forgotten_and_those_with_calls_are_not():
    play, (held,) = busy(1, shape(tenant="in flight", alone_reason="alone"))
    play.submit(*calls("queued", shape(tenant="queued")))
    for number in range(5_000):
        (call,) = calls(f"c{number}", shape(tenant=f"t{number}"))
        play.scheduler.handle(Submitted(call), 0.0)
        play.scheduler.handle(Cancelled(call), 0.0)
    assert len(play.tenants) <= 4096
    play.at(1.0) >> answered(held) << ["resolve c0", "send queued"]
    assert {"in flight", "queued"} <= play.tenants.keys()
