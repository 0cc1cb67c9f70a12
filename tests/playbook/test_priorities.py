"""Priority classes: a head start, a reserve, no linger and no hold, and a place in the queue of their own. Rule 9."""

from tests.core import Cancelled, FailureKind, Paused, Resumed, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

HIGH = shape(priority=1)


def busy(count, **settings):
    """An endpoint whose permits are all taken by singles."""
    play = Playbook(limit=count, **settings)
    holders = calls(count, shape(alone_reason="alone"))
    play.submit(*holders) >> Woke() << [f"send {holder.waiter}" for holder in holders]
    return play, holders


def test_a_higher_class_goes_first():
    play, held = busy(2)
    low, (high,) = calls("a b c"), calls("high", HIGH)
    play.submit(*low, high)
    play.at(1.0) >> answered(held[0]) << ["resolve c0", "send high"]


def test_a_class_is_a_head_start_in_time_so_that_nothing_starves():
    play, (held,) = busy(1, aging_s=10.0)
    (low,), (late,), (early,) = calls("low"), calls("late", HIGH), calls("early", HIGH)
    play.submit(low)
    play.at(9.9).submit(early)
    play.at(10.1).submit(late)
    play.at(11.0) >> answered(held) << ["resolve c0", "send early"]
    play.at(12.0) >> answered(early) << ["resolve early", "send low"]
    play.at(13.0) >> answered(low) << ["resolve low", "send late"]


def test_the_oldest_call_of_each_class_is_told():
    play, (held,) = busy(1)
    (first,), (second,), (high,) = calls("first"), calls("second"), calls("high", HIGH)
    assert {each.oldest_since for each in play.priorities.values()} == {None}
    play.at(2.0).submit(first)
    play.at(3.0).submit(second)
    play.at(4.0).submit(high)
    assert {priority: each.oldest_since for priority, each in play.priorities.items()} == {1: 4.0, 0: 2.0}
    play.at(5.0) >> Cancelled(first) << []
    play.at(6.0) >> answered(held) << ["resolve c0", "send high"]
    assert {priority: each.oldest_since for priority, each in play.priorities.items()} == {1: None, 0: 3.0}
    # A call that goes again is as old as before.
    play.at(7.0) >> failed(high, FailureKind.MAYBE_PROCESSED, delay=0.0) << ["send high"]
    assert play.priorities[0].oldest_since == 3.0


def test_a_cancelled_call_at_the_front_is_nobody_s_rank():
    play = Playbook(limit=1, aging_s=10.0)
    mine = shape(priority=1, tenant="a")
    (held,), (gone,), (late,), (low,) = calls("held", mine), calls("gone", mine), calls("late", mine), calls("low")
    play.submit(held) >> Woke() << ["send held"]
    play.submit(gone, low)
    play.at(12.0).submit(late, *calls("other", shape(priority=1, tenant="b")))
    # In one step, before any statistics are asked for.
    play.scheduler.handle(Cancelled(gone), 12.0)
    play.at(13.0) >> answered(held) << ["resolve held", "send low"]


def test_calls_of_two_classes_never_share_a_request():
    play = Playbook(limit=8)
    low, high = calls("a b"), calls("x y", HIGH)
    play.submit(*low, *high) >> Woke() << ["send x y", "send a b"]


def test_the_lowest_class_leaves_a_reserve_once_a_higher_one_was_seen():
    play = Playbook(limit=32)
    (high,), many = calls("high", HIGH), calls(40)
    play.submit(high, *many) >> Woke()
    assert [len(batch.requests) for batch in play.sent] == [1, 30]
    play.at(1.0) >> answered(high) << ["resolve high"]
    assert play.in_flight == 30
    (late,) = calls("late", HIGH)
    play.submit(late) >> Woke() << ["send late"]


def test_what_a_higher_class_uses_is_not_kept_back_a_second_time():
    play = Playbook(limit=32)
    play.submit(*calls(5, HIGH), *calls(40)) >> Woke()
    assert play.in_flight == 32


def test_without_other_classes_nothing_is_kept_back():
    play = Playbook(limit=32)
    play.submit(*calls(40)) >> Woke()
    assert play.in_flight == 32
    play = Playbook(limit=32)
    play.submit(*calls(40, HIGH)) >> Woke()
    assert play.in_flight == 32


def test_the_reserve_ends_a_minute_after_the_last_call_of_a_higher_class():
    play = Playbook(limit=32)
    (high,), many = calls("high", HIGH), calls(70)
    play.submit(high, *many) >> Woke()
    play.at(1.0) >> answered(high) << ["resolve high"]
    play.at(59.0) >> Woke() << []
    play.at(60.5) >> Woke()
    assert play.in_flight == 32


def test_a_sixteenth_of_the_limit_is_kept_and_below_sixteen_nothing():
    for limit, low_in_flight in [(1, 1), (2, 2), (15, 15), (16, 15), (31, 30), (48, 45)]:
        play = Playbook(limit=limit)
        (high,), many = calls("high", HIGH), calls(60)
        play.submit(high) >> Woke() << ["send high"]
        play >> answered(high) << ["resolve high"]
        play.submit(*many) >> Woke()
        assert play.in_flight == low_in_flight


def test_where_nothing_is_kept_a_higher_class_is_next_when_any_permit_comes_free():
    play, held = busy(15)
    waiting = calls("w x y z")
    play.submit(*waiting) >> Woke() << []
    for second, name in enumerate(("first", "second"), 1):
        (high,) = calls(name, HIGH)
        play.at(float(second)).submit(high) >> Woke() << []
        play >> answered(held[second]) << [f"resolve c{second}", f"send {name}"]


def test_a_higher_class_is_not_held_for_a_quantum_nor_does_it_linger():
    play, held = busy(8, refill_ratio=1.0, refill_s=10.0, linger_s=5.0)
    low, (high,) = calls(20), calls("high", HIGH)
    play.submit(*low) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    play.at(1.1).submit(high) >> Woke() << ["send high"]
    play.at(1.2) >> answered(held[1]) << ["resolve c1"]
    (next_one,) = calls("next", HIGH)
    play.at(1.3).submit(next_one) >> Woke() << ["send next"]


def test_an_aged_background_call_that_is_held_does_not_hold_a_higher_class():
    play, held = busy(8, refill_ratio=1.0, refill_s=1.0, aging_s=2.0)
    low = calls(20)
    play.submit(*low) >> Woke() << []
    (high,) = calls("high", HIGH)
    play.at(5.0).submit(high) >> answered(held[0]) << ["resolve c0", "send high"]


def test_the_reserve_is_there_though_background_calls_are_older_than_their_head_start():
    play = Playbook(limit=32, aging_s=2.0, starvation_s=1.0)
    (first,), many = calls("first", HIGH), calls(100)
    play.submit(first, *many) >> Woke()
    play.at(9.0) >> answered(first) << ["resolve first"]
    (high,) = calls("high", HIGH)
    play.at(10.0).submit(high) >> Woke() << ["send high"]
    assert play.in_flight == 31


def test_a_starving_heavy_call_may_be_passed_by_no_more_than_the_reserve():
    pair = shape(weight=2)
    play = Playbook(limit=16, aging_s=2.0, starvation_s=1.0)
    (high,) = calls("high", HIGH)
    singles = calls(16, shape(alone_reason="alone"))
    play.submit(high) >> Woke() << ["send high"]
    play >> answered(high) << ["resolve high"]
    play.submit(*singles) >> Woke() << [f"send c{number}" for number in range(15)]
    (heavy,) = calls("heavy", pair)
    play.at(1.0).submit(heavy) >> Woke() << []
    highs = calls("h1 h2", HIGH)
    play.at(10.0).submit(*highs) >> Woke() << ["send h1"]
    play.at(11.0) >> answered(highs[0]) << ["resolve h1", "send h2"]
    play.at(12.0) >> answered(singles[0]) << ["resolve c0", "send c15"]
    (late,) = calls("h3", HIGH)
    play.at(13.0).submit(late) >> answered(singles[1]) << ["resolve c1"]
    play.at(14.0) >> answered(singles[2]) << ["resolve c2", "send heavy"]


def test_where_nothing_is_kept_nobody_passes_a_starving_heavy_call():
    play = Playbook(limit=4, aging_s=2.0, starvation_s=1.0)
    singles = calls(4, shape(alone_reason="alone"))
    play.submit(*singles) >> Woke() << [f"send c{number}" for number in range(4)]
    (heavy,) = calls("heavy", shape(weight=2))
    play.at(1.0).submit(heavy) >> Woke() << []
    play.at(10.0).submit(*calls("high", HIGH)) >> Woke() << []
    play.at(11.0) >> answered(singles[0]) << ["resolve c0"]
    play.at(12.0) >> answered(singles[1]) << ["resolve c1", "send heavy"]


def test_a_full_class_keeps_no_other_class_outside():
    play, _ = busy(1, max_queued=2, raise_when_full=True)
    low, (high,) = calls("a b c"), calls("high", HIGH)
    play.submit(*low[:2])
    play >> Submitted(low[2]) << ["reject c: QueueFull"]
    play >> Submitted(high) << []
    assert play.queued == 3


def test_who_waits_outside_is_let_in_when_its_own_class_has_room():
    play, (held,) = busy(1, max_queued=1)
    a, b = calls("a b")
    x, y = calls("x y", HIGH)
    play.submit(a, b, x, y)
    assert (play.queued, play.waiting) == (2, 2)
    play.at(1.0) >> answered(held) << ["resolve c0", "send x"]
    assert (play.queued, play.waiting) == (2, 1)
    assert {p: (s.queued, s.waiting, s.in_flight) for p, s in play.priorities.items()} == {1: (1, 0, 1), 0: (1, 1, 0)}


def test_what_each_class_was_served_is_counted():
    play = Playbook(limit=4)
    (high,), (low,) = calls("high", HIGH), calls("low")
    play.submit(high, low) >> Woke() << ["send high", "send low"]
    play >> answered(high, tokens=7) << ["resolve high"]
    assert {p: (s.prompt_tokens, s.completion_tokens) for p, s in play.priorities.items()} == {1: (1, 7), 0: (0, 0)}
    assert play.tenants == {}


def test_classes_that_waited_for_long_because_nobody_looked_are_in_use():
    play = Playbook(limit=32)
    play >> Paused() << []
    play.submit(*calls("high", HIGH), *calls(40))
    play.at(500.0) >> Resumed()
    assert [len(batch.requests) for batch in play.sent] == [1, 30]


def test_several_calls_of_a_higher_class_take_the_permits_there_are():
    play, held = busy(8, refill_ratio=1.0, refill_s=10.0)
    play.submit(*calls(20), *calls("x y z", HIGH)) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0", "send x"]


def test_a_lone_call_of_a_higher_class_does_not_linger():
    play = Playbook(limit=8, linger_s=5.0)
    play.submit(*calls("low")) >> Woke() << ["send low"]
    play.at(1.0).submit(*calls("high", HIGH)) >> Woke() << ["send high"]
