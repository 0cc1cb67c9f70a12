"""Which queued call goes first: ``order``, and what a deadline that cannot be met costs."""

import pytest

from tests.core import Budget, Cancelled, FailureKind, Offer, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def full(limit=1, **settings):
    """An endpoint whose permits are all taken by singles."""
    play = Playbook(limit=limit, **settings)
    holders = calls(limit, shape(alone_reason="alone"))
    play.submit(*holders) >> Woke() << [f"send {holder.waiter}" for holder in holders]
    return play, holders


def test_first_come_is_first_served_whatever_the_length_and_the_deadline():
    play, (held,) = full()
    (long,), (urgent,) = calls("long", tokens=900), calls("urgent", deadline=9.0)
    play.submit(long, urgent)
    play.at(1.0) >> answered(held) << ["resolve c0", "send long"]
    play.at(2.0) >> answered(long) << ["resolve long", "send urgent"]


def test_the_shortest_call_goes_first_within_a_group_and_between_groups():
    play, (held,) = full(order="shortest_first")
    story, word = shape(max_output_tokens=200), shape(max_output_tokens=1)
    calls_made = [*calls("a", story, tokens=50), *calls("b", story, tokens=5), *calls("c", word, tokens=30)]
    play.submit(*calls_made)
    play.at(1.0) >> answered(held) << ["resolve c0", "send c"]
    play.at(2.0) >> answered(calls_made[2]) << ["resolve c", "send b"]
    play.at(3.0) >> answered(calls_made[1]) << ["resolve b", "send a"]


def test_the_length_that_a_caller_expects_stands_before_what_is_known_of_such_calls():
    play, (held,) = full(order="shortest_first")
    several = calls("a b c", shape(max_output_tokens=200))
    for call, tokens in zip(several, (150, None, 5), strict=True):
        call.expected_tokens = tokens
    play.submit(*several)
    # Of the second 200 are expected: its bound.
    play.at(1.0) >> answered(held) << ["resolve c0", "send c"]
    play.at(2.0) >> answered(several[2]) << ["resolve c", "send a"]
    play.at(3.0) >> answered(several[0]) << ["resolve a", "send b"]


def test_a_long_call_ages_past_short_ones_that_come_later():
    play, (held,) = full(order="shortest_first")
    (long,) = calls("long", shape(max_output_tokens=250), tokens=100)
    play.submit(long)
    early, late = calls("early late")
    # 0.02 s for each of the 100 + 2 · 250 - 1 - 2 · 16 tokens more: 11.34 s.
    play.at(11.33).submit(early)
    play.at(11.35).submit(late)
    play.at(20.0) >> answered(held) << ["resolve c0", "send early"]
    play.at(21.0) >> answered(early) << ["resolve early", "send long"]
    play.at(22.0) >> answered(long) << ["resolve long", "send late"]


def test_the_earliest_deadline_goes_first_and_calls_without_one_age_in():
    play, (held,) = full(order="deadline")
    (patient,), (later,), (sooner,) = calls("patient"), calls("later", deadline=61.0), calls("sooner", deadline=59.0)
    # A call without a deadline goes like one that has a minute.
    play.submit(patient, later, sooner)
    play.at(1.0) >> answered(held) << ["resolve c0", "send sooner"]
    play.at(2.0) >> answered(sooner) << ["resolve sooner", "send patient"]
    play.at(3.0) >> answered(patient) << ["resolve patient", "send later"]


@pytest.mark.parametrize("order", ["shortest_first", "deadline"])
def test_a_list_takes_the_first_in_order_and_a_cancelled_call_is_not_among_them(order):
    play, held = full(3, order=order)
    made = [calls(f"t{n}", tokens=n, deadline=100.0 + n)[0] for n in (40, 10, 30, 20)]
    play.submit(*made) >> Cancelled(made[1]) << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0", "send t20"]
    assert play.queued == 2


def test_a_list_in_order_leaves_out_calls_of_other_lengths_that_keep_their_places():
    play = Playbook(limit=8, order="deadline", length_reach=1)
    made = [calls(f"t{n}", tokens=n, deadline=deadline)[0] for n, deadline in ((20, 1.0), (4000, 2.0), (40, 3.0))]
    play.submit(*made) >> Woke() << ["send t20 t40", "send t4000"]


def test_a_failed_call_keeps_its_rank():
    play, (held,) = full(order="deadline")
    (first,), (second,) = calls("first", deadline=50.0), calls("second", deadline=60.0)
    play.submit(first, second)
    play.at(1.0) >> answered(held) << ["resolve c0", "send first"]
    play.at(2.0) >> failed(first, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send first"]


# Deadlines that cannot be met ------------------------------------------------------------------------------------------


def learnt(seconds, of, count=30, **settings):
    """An endpoint that has answered calls in exactly this time."""
    play = Playbook(limit=1, **settings)
    for i in range(count):
        (call,) = calls(f"seen{i}", of, deadline=1e6)
        play.submit(call) >> Woke() << [f"send seen{i}"]
        play.at(play.now + seconds) >> answered(call) << [f"resolve seen{i}"]
    return play


def test_a_call_that_can_no_longer_make_it_is_refused_before_it_costs_anything():
    of = shape()
    play = learnt(2.0, of)
    now = play.now
    doomed, (well,) = calls("a b c", of, deadline=now + 1.0), calls("well", of, deadline=now + 3.0)
    play.submit(*doomed, well) >> Woke() << ["send well", "reject a b c: DeadlineExceeded"]
    assert doomed[0].attempts == 0
    assert play.scheduler.statistics().failed == 3
    play.at(now + 2.0) >> answered(well) << ["resolve well"]
    assert play.wakes_at is None


def test_the_refusal_says_why():
    of = shape()
    play = learnt(2.0, of)
    (doomed,) = calls("doomed", of, deadline=play.now + 1.0)
    play.submit(doomed) >> Woke()
    assert "cannot be met" in str(play.errors["doomed"])
    assert play.errors["doomed"].is_early
    (late,) = calls("late", of, deadline=play.now)
    play >> Submitted(late)
    assert not play.errors["late"].is_early


def test_nothing_is_refused_before_enough_was_seen_or_by_what_another_key_took():
    of = shape()
    for count, seen in ((7, ["send call"]), (8, ["reject call: DeadlineExceeded"])):
        play = learnt(2.0, of, count=count)
        play.submit(*calls("call", of, deadline=play.now + 0.1)) >> Woke() << seen
    play = learnt(2.0, shape())
    (call,) = calls("call", of, deadline=play.now + 0.1)
    play.submit(call) >> Woke() << ["send call"]


def test_a_server_that_was_slow_is_asked_again_after_a_while():
    of = shape()
    for after_s, seen in ((9.9, ["reject call: DeadlineExceeded"]), (10.1, ["send call"])):
        play = learnt(2.0, of)
        play.at(play.now + after_s)
        play.submit(*calls("call", of, deadline=play.now + 0.1)) >> Woke() << seen


def test_a_call_that_was_given_up_took_at_least_so_long():
    of = shape()
    for given_up_after_s, next_one in ((3.0, "c"), (None, "a")):
        play = learnt(0.5, of)
        if given_up_after_s:
            (late,) = calls("late", of, deadline=play.now + given_up_after_s)
            play.submit(late) >> Woke() << ["send late"]
            play.at(late.deadline) >> Woke()
            play >> failed(late, FailureKind.REFUSED)
        holder, (a,), (c,) = calls("holder"), calls("a", of, deadline=play.now + 2.5), calls("c", of, deadline=1e6)
        play.submit(*holder, a, c) >> Woke() << ["send holder"]
        # With 1.5 s left a is probably late if calls take 3 s at times, and not if they take half a second.
        play.at(play.now + 1.0) >> answered(*holder) << ["resolve holder", f"send {next_one}"]


def held_back(of, limit, **settings):
    """A server whose calls took half a second and one and a half in turn, and a call that holds all its permits."""
    play = Playbook(limit=[limit], **settings)
    for number in range(100):
        (call,) = calls(f"seen{number}", of, deadline=1e6)
        play.submit(call) >> Woke() << [f"send seen{number}"]
        play.at(play.now + (1.5 if number % 2 else 0.5)) >> answered(call)
    (holder,) = calls("holder", shape(alone_reason="alone", weight=limit))
    play.submit(holder) >> Woke() << ["send holder"]
    return play, holder, play.now


def test_where_the_oldest_calls_are_probably_late_the_newest_go_first():
    of = shape()
    play, holder, began = held_back(of, limit=2)
    play.submit(*calls("o1 o2 o3", of, deadline=began + 2.5))
    play.at(began + 1.8).submit(*calls("n1", of, deadline=began + 4.4))
    play.at(began + 1.9).submit(*calls("n2", of, deadline=began + 4.4))
    play.at(began + 2.0) >> answered(holder) << ["resolve holder", "send n2 n1"]
    assert play.last.oldest_at == began + 1.8
    assert play.queued == 3, "the others may be lucky yet"


def test_calls_that_their_job_cannot_pay_for_go_back_to_their_places():
    # An answer may cost 18e-6 with a short prompt, and 216e-6 with a long one.
    budget = Budget(1.0)
    of = shape(counted=True, budget=budget)
    play, holder, began = held_back(of, limit=4, offers=[Offer(None, 1e-6, 1e-6)])
    budget.most = budget.spent + 240e-6
    (o1,) = calls("o1", of, tokens=2, deadline=began + 4.4)
    (o2, n1, n2), (o3, n3) = calls("o2 n1 n2", of, tokens=2, deadline=1e6), calls("o3 n3", of, tokens=200, deadline=1e6)
    for at, call in [(0.0, o1), (0.0, o2), (0.0, o3), (1.8, n1), (1.8, n3), (1.9, n2)]:
        play.at(began + at).submit(call)
    play.at(began + 2.6) >> answered(holder) << ["resolve holder", "send n2 n3"]
    play >> Cancelled(o1) << []
    budget.most = 1.0
    play >> answered(n2, n3) << ["resolve n2 n3", "send o2 n1 o3"]
    assert play.queued == 0


def test_while_there_is_time_the_oldest_go_first():
    of = shape()
    play, holder, began = held_back(of, limit=2)
    play.submit(*calls("o1 o2", of, deadline=began + 4.4))
    play.at(began + 1.9).submit(*calls("n1 n2", of, deadline=began + 6.0))
    play.at(began + 2.0) >> answered(holder) << ["resolve holder", "send o1 o2"]


def test_no_permit_goes_to_a_call_that_has_waited_and_is_probably_late_while_others_with_more_time_wait():
    of = shape()
    play, holder, began = held_back(of, limit=1)
    play.submit(*calls("a b", of, deadline=began + 2.5), *calls("c", of, deadline=began + 60.0))
    play.at(began + 1.0) >> answered(holder) << ["resolve holder", "send c"]
    # Now none has more time than another, and they are tried.
    play.at(began + 1.1) >> answered(play.last.requests[0]) << ["resolve c", "send b"]


def test_where_all_have_as_little_time_left_none_is_given_up_for_another():
    """2,000 calls with one deadline: to end all because all are probably late is to serve nobody."""
    of = shape()
    play, holder, began = held_back(of, limit=1)
    # One that had more time, and has gone, waits no more.
    (gone,) = calls("gone", of, deadline=began + 90.0)
    play.submit(*calls("a b", of, deadline=began + 2.5), gone)
    play >> Cancelled(gone)
    play.at(began + 1.0) >> answered(holder) << ["resolve holder", "send b"]
    play.at(began + 1.8) >> answered(play.last.requests[0]) << ["resolve b", "send a"]


def test_a_fresh_call_is_tried_though_it_is_probably_late():
    """Else a server too slow for everybody's deadlines would be sent nothing, and nobody would find out that it recovered."""
    of = shape()
    play, holder, began = held_back(of, limit=4)
    play.submit(*calls("a b c d e f", of, deadline=began + 1.6))
    play.at(began + 0.1) >> answered(holder) << ["resolve holder", "send f e d c"]


def test_where_times_vary_nothing_is_refused():
    of = shape()
    play = Playbook(limit=1)
    for i in range(40):
        (call,) = calls(f"seen{i}", of, deadline=1e6)
        play.submit(call) >> Woke() << [f"send seen{i}"]
        play.at(play.now + (0.2 if i % 2 else 2.0)) >> answered(call) << [f"resolve seen{i}"]
    (call,) = calls("call", of, deadline=play.now + 0.1)
    play.submit(call) >> Woke() << ["send call"]


def test_what_a_silence_took_makes_no_call_hopeless():
    """Calls given up at their deadlines took longer: nobody knows by how much, and the server may be back any moment."""
    of = shape()
    play = learnt(0.5, of, max_size=1)
    for number in range(30):
        (lost,) = calls(f"lost{number}", of, deadline=play.now + 10.0)
        play.submit(lost) >> Woke() << [f"send lost{number}"]
        play.at(lost.deadline) >> Woke()
        play >> failed(lost, FailureKind.REFUSED)
    play.submit(*calls("waited", of, deadline=play.now + 5.0)) >> Woke() << ["send waited"]
