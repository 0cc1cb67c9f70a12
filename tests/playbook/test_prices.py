"""Servers with prices and models of their own: which calls go to the dearer one, when, and why."""

import pytest

from batchclient.errors import NotFound
from tests.core import Budget, EndpointRemoved, FailureKind, Offer, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

DEAR = Offer(None, 1e-6, 4e-6)
ALONE = shape(alone_reason="alone")


def served(*, limit=1, offers=(Offer(), DEAR), **settings):
    """An own server and a dear one; eight calls have taken a second each at the own one. It is 8.0."""
    limits = [limit, *[8] * (len(offers) - 1)]
    play = Playbook(limit=limits, offers=list(offers), **settings)
    for number in range(8):
        (call,) = calls("w", ALONE)
        play.at(float(number)).submit(call) >> Woke() << ["send w @0"]
        play.at(number + 1.0) >> answered(call) << ["resolve w"]
        play.ends.clear()
    return play


def overflows(play):
    return {reason: count for (_, reason), count in play.overflows.items()}


def test_calls_wait_for_the_server_that_costs_nothing():
    play = served()
    play.submit(*calls(4, ALONE)) >> Woke() << ["send c0 @0"]
    play.at(9.0) >> Woke() << []
    assert play.queued == 3
    assert overflows(play) == {}


def test_calls_that_a_queue_half_again_as_quick_would_not_serve_in_time_go_to_the_dear_server_at_once():
    play = served()
    # A second each, in turn: the third would begin after two, the fourth after three seconds.
    play.submit(*calls(5, ALONE, deadline=11.0)) >> Woke() << ["send c0 @0", "send c4 @1"]
    assert overflows(play) == {"would miss its deadline": 1}


def test_a_call_that_may_miss_waits_until_the_last_moment_in_which_the_dear_server_answers_in_time():
    play = served()
    play.submit(*calls(3, ALONE, deadline=11.0)) >> Woke() << ["send c0 @0"]
    play.at(9.2) >> Woke() << []
    # A long service takes 1.175 s; a quarter of what is to spare then is kept.
    assert play.wakes_at == pytest.approx(11.0 - 1.175 - 0.25 * (3.0 - 1.175))
    play.at(play.wakes_at) >> Woke() << ["send c2 @1"]
    assert overflows(play) == {"would miss its deadline": 1}


def test_a_queue_that_moves_faster_than_expected_keeps_its_calls():
    play = served()
    requests = calls(3, ALONE, deadline=11.0)
    play.submit(*requests) >> Woke() << ["send c0 @0"]
    play.at(8.1) >> answered(requests[0]) << ["resolve c0", "send c1 @0"]
    play.at(8.2) >> answered(requests[1]) << ["resolve c1", "send c2 @0"]
    assert overflows(play) == {}


def test_a_call_without_a_deadline_waits_for_max_wait_s():
    play = served(max_wait_s=0.9)
    play.submit(*calls(2, ALONE)) >> Woke() << ["send c0 @0"]
    assert play.wakes_at == pytest.approx(8.9)
    play.at(play.wakes_at) >> Woke() << ["send c1 @1"]
    assert overflows(play) == {"would wait for longer than max_wait_s": 1}


def test_a_call_without_a_deadline_waits_for_thirty_seconds_unless_told_otherwise():
    play = served()
    play.submit(*calls(60, ALONE)) >> Woke()
    # Half again as quick, those after 45 s would still wait for longer.
    assert play.seen == ["send c0 @0", *[f"send c{number} @1" for number in range(46, 54)]]


def test_the_cheap_server_that_is_away_holds_no_call():
    play = served()
    a, b = calls("a b", ALONE)
    play.submit(a, b) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.NOT_SENT) << ["send a @1", "send b @1"]
    assert overflows(play) == {"is down": 2}


def test_a_job_with_a_bound_on_its_cost_waits_for_the_cheap_server_once_it_is_reached():
    budget = Budget(115e-6)
    mine = shape(counted=True, alone_reason="alone", max_output_tokens=10, budget=budget, answer_key=ALONE.key)
    play = served(max_wait_s=0.5)
    # Each costs 10 tokens of 1e-6 and 10 of 4e-6 at most, though one is expected.
    play.submit(*calls(4, mine, tokens=10)) >> Woke() << ["send c0 @0", "send c1 @1", "send c2 @1"]
    play.at(9.0) >> Woke() << []
    assert budget.spent == pytest.approx(100e-6)


def test_what_was_not_needed_is_given_back_to_the_job():
    budget = Budget(60e-6)
    mine = shape(counted=True, alone_reason="alone", max_output_tokens=10, budget=budget, answer_key=ALONE.key)
    play = served(max_wait_s=0.5)
    requests = calls(3, mine, tokens=10)
    play.submit(*requests) >> Woke() << ["send c0 @0", "send c1 @1"]
    assert budget.spent == pytest.approx(50e-6)
    # One token of a prompt and one of an answer.
    play.at(8.7) >> answered(requests[1]) << ["resolve c1", "send c2 @1"]
    assert play.costs[("endpoint 1",)] == pytest.approx(5e-6)


def test_an_answer_whose_tokens_are_not_told_may_have_cost_all_that_was_charged():
    budget = Budget(60e-6)
    mine = shape(counted=True, alone_reason="alone", max_output_tokens=10, budget=budget, answer_key=ALONE.key)
    play = served(max_wait_s=0.5)
    requests = calls(3, mine, tokens=10)
    play.submit(*requests) >> Woke() << ["send c0 @0", "send c1 @1"]
    told = answered(requests[1])
    told.answers[0][1].usage = None
    play.at(8.7) >> told << ["resolve c1"]
    assert (budget.under_way, budget.spent) == (0, pytest.approx(50e-6))


def test_a_list_costs_what_is_left_at_most_however_unlike_its_prompts_are():
    budget = Budget(100e-6)
    mine = shape(counted=True, max_output_tokens=1, budget=budget)
    play = Playbook(limit=[8], offers=[DEAR], max_size=8)
    (short,), long = calls("a", mine, tokens=6), calls("b c d e", mine, tokens=36)
    # The short one costs 10e-6, each of the others 40e-6.
    play.submit(short, *long) >> Woke() << ["send a b c"]
    assert budget.spent == pytest.approx(90e-6)
    # The rest waits in its order, and goes once answers have cost less.
    play.at(1.0) >> answered(short, *long[:2]) << ["resolve a b c", "send d e"]
    assert budget.under_way == 2 and play.queued == 0


def test_one_dear_call_makes_no_list_short_that_can_be_paid_for():
    budget = Budget(105e-6)
    mine = shape(counted=True, max_output_tokens=1, budget=budget)
    play = Playbook(limit=[8], offers=[DEAR], max_size=8)
    play.submit(*calls(6, mine, tokens=6), *calls("dear", mine, tokens=36)) >> Woke()
    play << ["send c0 c1 c2 c3 c4 c5 dear"]


def test_a_prompt_that_nobody_has_counted_may_have_a_token_for_each_byte():
    budget = Budget(60e-6)
    mine = shape(alone_reason="alone", max_output_tokens=1, budget=budget, answer_key=ALONE.key)
    play = served(max_wait_s=0.5)
    a, b, c, _ = names = [letter * 16 for letter in "abcd"]
    # 18 bytes of 1e-6, and a token of 4e-6.
    play.submit(*calls(" ".join(names), mine, tokens=5)) >> Woke() << [f"send {a} @0", f"send {b} @1", f"send {c} @1"]
    assert (budget.under_way, budget.spent) == (2, pytest.approx(44e-6))


def test_of_two_dear_servers_the_one_goes_first_where_the_call_costs_less():
    long_answers, long_prompts = Offer(None, 10e-6, 1e-6), Offer(None, 1e-6, 10e-6)
    play = served(offers=[Offer(), long_answers, long_prompts], max_wait_s=0.5)
    short = shape(counted=True, alone_reason="alone", max_output_tokens=1)
    play.submit(*calls("a", ALONE)) >> Woke() << ["send a @0"]
    play.submit(*calls("b", short, tokens=100)) >> Woke() << []
    play.submit(*calls("c", shape(counted=True, alone_reason="alone", max_output_tokens=100), tokens=1)) >> Woke() << []
    play.at(8.6) >> Woke() << ["send b @2", "send c @1"]


def test_a_call_that_names_a_model_goes_to_a_server_of_that_model_alone():
    play = Playbook(limit=[1, 1, 1], offers=[Offer("small"), Offer("large"), Offer()])
    large = shape(model="large", alone_reason="alone")
    play.submit(*calls("a b c", large)) >> Woke() << ["send a @1", "send b @2"]
    small = shape(model="small", alone_reason="alone")
    play.submit(*calls("d", small)) >> Woke() << ["send d @0"]


def test_a_call_that_names_no_model_goes_to_any_server():
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")])
    play.submit(*calls("a b", shape(any_model=True, alone_reason="alone"))) >> Woke() << ["send a @0", "send b @1"]


def test_calls_for_a_busy_server_of_their_model_hold_no_other_back():
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")])
    play.submit(*calls("a b", shape(model="large", alone_reason="alone"))) >> Woke() << ["send a @1"]
    play.submit(*calls("c", shape(model="small"))) >> Woke() << ["send c @0"]


def test_calls_for_a_model_whose_server_is_removed_end():
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")])
    a, b = calls("a b", shape(model="large", alone_reason="alone"))
    play.submit(a, b) >> Woke() << ["send a @1"]
    play >> EndpointRemoved(1) << ["reject b: NotFound"]
    play >> answered(a) << ["resolve a", "gone @1"]


def test_a_session_that_is_homed_at_a_server_of_another_model_goes_elsewhere():
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")])
    play.submit(*calls("a", shape(model="large", home=0))) >> Woke() << ["send a @1"]


def of_models(**settings):
    """Servers of two models, both of which have answered; and a call for the second model, under way. It is 1.0."""
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")], **settings)
    (first,) = calls("first", shape(model="small", alone_reason="alone"))
    play.submit(first) >> Woke() << ["send first @0"]
    play.at(0.5) >> answered(first) << ["resolve first"]
    large = shape(model="large", alone_reason="alone")
    (second,) = calls("second", large)
    play.submit(second) >> Woke() << ["send second @1"]
    play.at(1.0) >> answered(second) << ["resolve second"]
    (call,) = calls("a", large)
    play.submit(call) >> Woke() << ["send a @1"]
    return play, call


def test_a_call_whose_models_only_server_refused_it_finds_out_whether_that_is_back():
    play, a = of_models()
    play >> failed(a, FailureKind.NOT_SENT) << []
    assert play.wakes_at == pytest.approx(1.5)
    play.at(1.5) >> Woke() << ["send a @1"]
    play.at(2.0) >> answered(a) << ["resolve a"]


def test_an_outage_of_a_models_only_server_ends_its_calls_after_the_patience_and_no_others():
    play, a = of_models(outage_patience_s=0.4)
    (b,) = calls("b", shape(model="small", alone_reason="alone"))
    play.submit(b) >> Woke() << ["send b @0"]
    (c,) = calls("c", shape(model="small", alone_reason="alone"))
    play.submit(c) >> failed(a, FailureKind.NOT_SENT) << []
    assert play.wakes_at == pytest.approx(1.4)
    play.at(1.4) >> Woke() << ["reject a: ConnectFailed"]
    play.at(1.6) >> answered(b) << ["resolve b", "send c @0"]


def test_a_budget_that_is_spent_keeps_the_own_server_from_no_probe():
    play = served()
    mine = shape(alone_reason="alone", answer_key=ALONE.key, budget=Budget(1e-9))
    (a,) = calls("a", mine)
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.NOT_SENT) << []
    play.at(8.4) >> Woke() << []
    play.at(8.5) >> Woke() << ["send a @0"]


def test_a_call_that_no_free_server_takes_ends_once_its_jobs_bound_is_spent():
    play = Playbook(limit=[8, 8], offers=[Offer("hosted", 1e-6, 4e-6), Offer("small")])
    mine = shape(model="hosted", counted=True, alone_reason="alone", max_output_tokens=10, budget=Budget(60e-6))
    a, b, c = calls("a b c", mine, tokens=10)
    # 50e-6 each at most: while one is under way, it may yet cost less.
    play.submit(a, b, c) >> Woke() << ["send a @0"]
    play.at(1.0) >> answered(a) << ["resolve a", "send b @0"]
    play.at(2.0) >> answered(b, tokens=10) << ["resolve b", "reject c: ConfigError"]


def test_a_call_whose_model_the_free_server_refuses_waits_for_what_calls_under_way_give_back():
    play = Playbook(limit=[8, 8], offers=[Offer(), DEAR])
    mine = shape(counted=True, alone_reason="alone", max_output_tokens=10, budget=Budget(60e-6))
    a, b = calls("a b", mine, tokens=10)
    play.submit(a, b) >> Woke() << ["send a @0", "send b @0"]
    play >> failed(a, FailureKind.REFUSED, error=NotFound, status=404) << ["send a @1"]
    # 50e-6 each at most.
    play >> failed(b, FailureKind.REFUSED, error=NotFound, status=404) << []
    play.at(1.0) >> answered(a) << ["resolve a", "send b @1"]


def test_a_bound_that_pays_for_no_call_ends_all_at_once_where_every_server_has_a_price():
    play = Playbook(limit=[8, 8], offers=[DEAR, DEAR])
    mine = shape(alone_reason="alone", budget=Budget(1e-9))
    play.submit(*calls("a b", mine)) >> Woke() << ["reject a b: ConfigError"]


def test_a_price_that_is_next_to_nothing_pays_for_any_number_of_calls():
    play = Playbook(limit=1, offers=[Offer(None, 1e-310, 0.0)])
    play.submit(*calls("a", shape(alone_reason="alone", budget=Budget(5.0)))) >> Woke() << ["send a"]


def test_any_number_of_calls_for_a_busy_server_of_their_model_keep_no_other_idle():
    play = Playbook(limit=[1, 1], offers=[Offer("small"), Offer("large")])
    for _ in range(1026):
        play.scheduler.handle(Submitted(*calls("a", shape(model="large", alone_reason="alone"))), 0.0)
    play >> Woke() << ["send a @1"]
    play.submit(*calls("c d", shape(model="small", alone_reason="alone"))) >> Woke() << ["send c @0"]


def test_any_number_of_calls_that_wait_for_the_cheap_server_keep_none_from_the_dear_one():
    play = served()
    for _ in range(1026):
        lone = shape(alone_reason="alone", answer_key=ALONE.key)
        play.scheduler.handle(Submitted(*calls("a", lone, deadline=10_000.0)), 8.0)
    play >> Woke() << ["send a @0"]
    play.at(8.1).submit(*calls("c", ALONE, deadline=11.0)) >> Woke() << ["send c @1"]


def test_before_its_first_answer_a_server_takes_as_long_as_what_is_under_way_there():
    play = Playbook(limit=[1, 8], offers=[Offer(), DEAR])
    play.submit(*calls("a b", ALONE, deadline=20.0)) >> Woke() << ["send a @0"]
    while play.seen != ["send b @1"] and play.wakes_at < 20.0:
        play.at(play.wakes_at) >> Woke()
    # After 6.6 s a call like it is expected to take up to 13.4 s; a look comes each quarter of the age.
    assert play.seen == ["send b @1"]
    assert play.now == pytest.approx(7.4878, abs=1e-4)
