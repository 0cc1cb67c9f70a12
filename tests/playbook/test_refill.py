"""How a busy endpoint is refilled: quanta, ``refill_s``, ``linger_s``. Rules 3 and 4."""

from tests.core import Cancelled, Submitted, Woke
from tests.playbook.playbook import Playbook, answered, calls, shape


def busy(count, **settings):
    """An endpoint whose permits are all taken by singles, so that they can be answered one by one."""
    play = Playbook(limit=count, **settings)
    holders = calls(count, shape(alone_reason="alone"))
    play.submit(*holders) >> Woke() << [f"send {holder.waiter}" for holder in holders]
    return play, holders


def test_freed_permits_are_held_until_there_is_a_quantum_of_them():
    play, held = busy(8, refill_ratio=0.5, refill_s=10.0)
    waiting = calls("a b c d e f g h")
    play.submit(*waiting) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    play.at(1.1) >> answered(held[1]) << ["resolve c1"]
    play.at(1.2) >> answered(held[2]) << ["resolve c2"]
    play.at(1.3) >> answered(held[3]) << ["resolve c3", "send a b c d"]


def test_a_hold_ends_refill_s_after_the_oldest_permit_came_free():
    play, held = busy(8, refill_ratio=0.5, refill_s=0.5)
    play.submit(*calls("a b c d e")) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    assert play.wakes_at == 1.5
    play.at(1.25) >> answered(held[1]) << ["resolve c1"]
    assert play.wakes_at == 1.5
    play.at(1.5) >> Woke() << ["send a b"]
    assert play.wakes_at is None


def test_a_queue_no_longer_than_the_free_permits_is_sent_at_once():
    play, held = busy(8, refill_ratio=1.0, refill_s=10.0)
    play.submit(*calls("a b")) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    play.at(1.1) >> answered(held[1]) << ["resolve c1", "send a b"]


def test_without_a_quantum_each_permit_is_granted_as_it_comes_free():
    play, held = busy(4)
    play.submit(*calls("a b c")) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0", "send a"]
    play.at(1.1) >> answered(held[1]) << ["resolve c1", "send b"]


def test_while_permits_are_held_nothing_younger_is_granted():
    play, held = busy(4, refill_ratio=1.0, refill_s=0.5)
    play.submit(*calls("a b", shape())) >> Woke() << []
    play.submit(*calls("y", shape())) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    play.at(1.5) >> Woke() << ["send a"]
    play.at(1.6) >> answered(held[1]) << ["resolve c1", "send b"]
    play.at(1.7) >> answered(held[2]) << ["resolve c2", "send y"]


def test_the_quantum_is_a_share_of_the_limit_in_sequences():
    play, held = busy(8, refill_ratio=0.5, refill_s=10.0)
    play.submit(*calls("a b c d", shape(weight=2))) >> Woke() << []
    for i in range(3):
        play.at(1.0 + i) >> answered(held[i]) << [f"resolve c{i}"]
    play.at(5.0) >> answered(held[3]) << ["resolve c3", "send a b"]


def test_a_full_endpoint_starts_its_hold_anew():
    play, held = busy(4, refill_ratio=1.0, refill_s=0.5)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << []
    play.at(1.0) >> answered(held[0]) << ["resolve c0"]
    play.at(1.5) >> Woke() << ["send a"]
    play.at(2.0) >> answered(held[1]) << ["resolve c1"]
    assert play.wakes_at == 2.5
    play.at(2.5) >> Woke() << ["send b"]


def test_a_call_lingers_only_on_a_busy_endpoint():
    play = Playbook(limit=8, linger_s=0.25)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    assert play.wakes_at == 1.25
    play.at(1.25) >> Woke() << ["send b"]


def test_company_that_comes_within_linger_s_travels_along():
    play = Playbook(limit=8, linger_s=0.25)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.2).submit(c) >> Woke() << []
    assert play.wakes_at == 1.25
    play.at(1.25) >> Woke() << ["send b c"]


def test_a_group_as_large_as_the_free_permits_lingers_no_longer():
    play = Playbook(limit=3, linger_s=9.0)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.1).submit(c) >> Woke() << ["send b c"]


def test_a_full_list_lingers_no_longer():
    play = Playbook(limit=64, max_size=2, linger_s=9.0)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.1).submit(c) >> Woke() << ["send b c"]


def test_a_call_that_goes_alone_waits_for_no_company():
    play = Playbook(limit=8, linger_s=9.0)
    (a,), (b,) = calls("a"), calls("b", shape(alone_reason="alone"))
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << ["send b"]


def test_a_lingering_group_does_not_keep_a_younger_one_from_going():
    play = Playbook(limit=8, linger_s=9.0)
    (a, b), (c,) = calls("a b"), calls("c", shape(alone_reason="alone"))
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.1).submit(c) >> Woke() << ["send c"]


def test_a_lingering_group_goes_when_the_endpoint_falls_idle():
    play = Playbook(limit=8, linger_s=9.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.1) >> answered(a) << ["resolve a", "send b"]


def test_permits_that_were_never_taken_are_held_as_long_as_others():
    play = Playbook(limit=8, linger_s=0.25, refill_s=0.5, refill_ratio=1.0)
    (first,), waiting = calls("first"), calls("a b c d e f g h")
    play.at(1.0).submit(first) >> Woke() << ["send first"]
    # Seven permits are free and a quantum has eight.
    play.at(1.1).submit(*waiting) >> Woke() << []
    assert play.wakes_at == 1.6
    play.at(1.6) >> Woke() << ["send a b c d e f g"]


def test_a_permit_that_heavy_calls_cannot_use_does_not_end_their_hold():
    play = Playbook(limit=7, refill_s=9.0, refill_ratio=1.0)
    waiting = calls("a b c d", shape(weight=3))
    # One permit of the seven is always left over.
    play.submit(*waiting) >> Woke() << ["send a b"]
    play.at(20.0) >> answered(waiting[0]) << ["resolve a"]
    play.at(21.0) >> answered(waiting[1]) << ["resolve b", "send c d"]


def test_no_timer_is_left_when_what_lingered_was_cancelled():
    play = Playbook(limit=8, linger_s=0.25)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play >> Cancelled(b) << []
    assert play.wakes_at is None


def test_the_linger_of_a_group_starts_with_its_oldest_live_call():
    play = Playbook(limit=8, linger_s=1.0)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0).submit(b) >> Woke() << []
    play.at(1.5).submit(c) >> Woke() << []
    play >> Cancelled(b) << []
    assert play.wakes_at == 2.5


def test_batch_size_follows_queue_depth():
    shallow = Playbook(limit=64, max_size=32)
    shallow.submit(*calls("a")) >> Woke() << ["send a"]
    deep = Playbook(limit=64, max_size=32)
    for call in calls(100):
        deep >> Submitted(call) << []
    deep >> Woke()
    assert [len(batch.requests) for batch in deep.sent] == [32, 32]
