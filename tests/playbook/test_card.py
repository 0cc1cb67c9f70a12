"""Models that share a card: which calls go first, when another model's turn comes, and what is found out."""

import itertools

from batchclient.errors import NotFound
from tests.core import FailureKind, Offer, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

SWAPS = Offer(holds_one=True)


def of(model, **fields):
    return shape(alone_reason="alone", model=model, **fields)


A, B, C = of("a"), of("b"), of("c")


def swapping(limit=2, offer=SWAPS, **settings):
    return Playbook(limit=limit, offers=[offer], **settings)


def test_calls_for_the_loaded_model_go_before_older_ones_for_another():
    play = swapping(limit=1)
    a1, b1, a2 = calls("a1", A) + calls("b1", B) + calls("a2", A)
    play.submit(a1, b1, a2) >> Woke() << ["send a1"]
    play.at(1.0) >> answered(a1) << ["resolve a1", "send a2"]
    play.at(2.0) >> answered(a2) << ["resolve a2", "send b1"]


def test_no_call_for_another_model_is_sent_while_one_for_the_loaded_model_is_in_flight():
    play = swapping(limit=8)
    (a1, a2), (b1,) = calls("a1 a2", A), calls("b1", B)
    play.submit(a1, a2, b1) >> Woke() << ["send a1", "send a2"]
    play.at(1.0) >> answered(a1) << ["resolve a1"]
    play.at(2.0) >> answered(a2) << ["resolve a2", "send b1"]


def test_another_model_waits_for_thirty_seconds_at_most_and_then_has_its_turn():
    play = swapping(limit=1)
    a, b = calls(4, A), calls("b1 b2", B)
    play.submit(*a, *b) >> Woke() << ["send c0"]
    play.at(1.0) >> answered(a[0]) << ["resolve c0", "send c1"]
    play.at(32.0) >> answered(a[1]) << ["resolve c1", "send b1"]
    # The loaded model's calls go first again: they are b's now.
    play.at(33.0) >> answered(b[0]) << ["resolve b1", "send b2"]
    play.at(34.0) >> answered(b[1]) << ["resolve b2", "send c2"]


def test_a_call_with_less_time_left_does_not_wait_for_the_loaded_model():
    play = swapping(limit=1)
    a, (late,) = calls(3, A), calls("late", B, deadline=20.0)
    play.submit(*a, late) >> Woke() << ["send c0"]
    play.at(1.0) >> answered(a[0]) << ["resolve c0", "send late"]


def test_a_call_of_a_higher_priority_does_not_wait_for_the_loaded_model():
    play = swapping(limit=2)
    a, (urgent,) = calls(3, A), calls("urgent", of("b", priority=1))
    play.submit(*a) >> Woke() << ["send c0", "send c1"]
    play.at(1.0).submit(urgent) >> Woke() << []
    play.at(2.0) >> answered(a[0]) << ["resolve c0"]
    play.at(3.0) >> answered(a[1]) << ["resolve c1", "send urgent"]


def test_turns_are_taken_in_order_by_three_models():
    play = swapping(limit=1)
    (a1,), (b1,), (c1,) = calls("a1", A), calls("b1", B), calls("c1", C)
    play.submit(a1, b1, c1) >> Woke() << ["send a1"]
    play.at(1.0) >> answered(a1) << ["resolve a1", "send b1"]
    play.at(2.0) >> answered(b1) << ["resolve b1", "send c1"]


def test_a_server_of_which_nothing_is_said_gets_both_models_at_once():
    play = swapping(limit=4, offer=Offer())
    (a1,), (b1,) = calls("a1", A), calls("b1", B)
    play.submit(a1, b1) >> Woke() << ["send a1", "send b1"]


def taking_turns(play, pause_s, *, rounds, start=0.0):
    """Both models have four calls in flight; four are answered, then the other's four, after a pause."""
    now, number = start, itertools.count()

    def four(model):
        return calls(" ".join(f"w{next(number)}" for _ in range(4)), model)

    flight = {name: four(model) for name, model in (("a", A), ("b", B))}
    for several in flight.values():
        play.at(now).submit(*several) >> Woke()
    for _ in range(rounds):
        for name, model in (("a", A), ("b", B)):
            done, now = flight[name], now + pause_s
            flight[name] = four(model)
            for call in done:
                now += 0.1
                play.at(now) >> answered(call)
            play.submit(*flight[name]) >> Woke()
    play.ends.clear()
    return flight, now


def test_pauses_before_another_models_answers_bring_turns():
    play = swapping(limit=8, offer=Offer())
    taking_turns(play, 2.0, rounds=3)
    assert "models_in_turn" in play.notices


def test_a_change_that_costs_nothing_brings_none():
    play = swapping(limit=8, offer=Offer())
    taking_turns(play, 0.3, rounds=8)
    assert play.notices == []


def test_where_a_server_is_said_to_hold_all_nothing_is_looked_at():
    play = swapping(limit=8, offer=Offer(holds_one=False))
    taking_turns(play, 2.0, rounds=4)
    assert play.notices == []


def test_turns_on_trial_end_where_two_changes_cost_nothing():
    play = swapping(limit=8, offer=Offer())
    flight, now = taking_turns(play, 2.0, rounds=3)
    assert play.notices == ["models_in_turn"]
    # From here on the server holds both: each call takes a second.
    waiting = [call for several in flight.values() for call in several if call.batch is not None]
    number = itertools.count(1000)
    for _ in range(12):
        now += 1.0
        for call in waiting:
            play.at(now) >> answered(call)
        for model in (A, B):
            play.submit(*calls(" ".join(f"w{next(number)}" for _ in range(4)), model)) >> Woke()
        waiting = [one for batch in play.sent for one in batch.requests if one.batch is batch]
        if "models_at_once" in play.notices:
            break
    assert play.notices == ["models_in_turn", "models_at_once"]
    assert now < 40.0


def test_a_stranger_that_holds_one_model_gets_both_in_turn():
    play = swapping(limit=4, trusts_lists=False)
    (a1,), (b1,) = calls("a1", of("a")), calls("b1", of("b"))
    play.submit(a1, b1) >> Woke() << ["send a1"]
    play.at(1.0) >> answered(a1) << ["resolve a1", "send b1"]
    play.at(2.0) >> answered(b1) << ["resolve b1"]


def test_calls_for_a_model_that_was_refused_end_and_keep_no_others_waiting():
    play = swapping(limit=1)
    (a1, a2), (b1, b2) = calls("a1 a2", A), calls("b1 b2", B)
    play.submit(a1, b1) >> Woke() << ["send a1"]
    play.at(1.0) >> answered(a1) << ["resolve a1", "send b1"]
    play.at(2.0) >> failed(b1, FailureKind.REFUSED, error=NotFound, status=404) << ["reject b1: NotFound"]
    play.submit(a2, b2) >> Woke() << ["send b2"]
    play.at(3.0) >> failed(b2, FailureKind.REFUSED, error=NotFound, status=404) << ["reject b2: NotFound", "send a2"]
    play.at(4.0) >> answered(a2) << ["resolve a2"]
