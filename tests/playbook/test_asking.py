"""Questions beside the calls: when servers are asked which they are. Literal times; the shell only reads the pages."""

import pytest

from tests.core import (
    Asked,
    CloseRequested,
    EndpointAdded,
    EndpointRemoved,
    FailureKind,
    FixedLimit,
    Kind,
    Paused,
    Resumed,
    ServerKnown,
    Woke,
)
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def with_two_in_flight():
    play = Playbook(4, asks_first=False)
    play.submit(*(several := calls(2))) >> Woke() << ["send c0 c1"]
    return play, several


def answer(endpoint=0):
    return Asked(endpoint, answered=True)


def silence(endpoint=0):
    return Asked(endpoint, answered=False)


def test_an_open_question_outlives_the_last_call_and_nothing_is_due():
    play, several = with_two_in_flight()
    play.at(0.25) >> Woke() << ["ask"]
    play.at(1.1) >> answered(*several) << ["resolve c0 c1"]
    assert play.wakes_at is None
    play >> silence() << []
    assert play.wakes_at is None


def test_what_ends_in_the_queue_by_its_deadline_leaves_nothing_due():
    play = Playbook(1, asks_first=False, heeds_time=True)
    a, b = *calls("a"), *calls("b", deadline=0.2)
    play.submit(a, b) >> Woke() << ["send a"]
    play >> Paused() << []
    play.at(0.1) >> answered(a) << ["resolve a"]
    assert play.wakes_at is not None
    play.at(0.2) >> Woke() << ["reject b: DeadlineExceeded"]
    assert play.wakes_at is None


def test_which_server_it_is_is_asked_a_quarter_of_a_second_after_the_first_batch_and_once():
    play, several = with_two_in_flight()
    assert play.wakes_at == 0.25
    play.at(0.25) >> Woke() << ["ask"]
    assert play.wakes_at is None
    play.at(0.3) >> answer() << []
    assert play.wakes_at is None
    play.at(9.0) >> answered(*several) << ["resolve c0 c1"]
    play.at(99.0).submit(*calls("d e")) >> Woke() << ["send d e"]
    assert play.wakes_at is None


def test_calls_that_are_over_sooner_see_no_question_and_later_ones_do():
    play, several = with_two_in_flight()
    play.at(0.05) >> answered(*several) << ["resolve c0 c1"]
    assert play.wakes_at is None
    play.at(7.0).submit(*calls("d e")) >> Woke() << ["send d e", "ask"]


def test_after_silence_it_is_asked_again_after_5_and_60_seconds_while_there_are_calls():
    play, several = with_two_in_flight()
    asked_at = []
    for _ in range(4):
        while not (play.at(play.wakes_at) >> Woke()).seen:
            pass
        assert play.seen == ["ask"]
        asked_at.append(play.now)
        play >> silence() << []
    assert asked_at == [0.25, 5.25, 65.25, 125.25]
    play.at(130.0) >> answered(*several) << ["resolve c0 c1"]
    assert play.wakes_at is None


@pytest.mark.parametrize("first", [False, True])
def test_an_endpoint_that_comes_back_is_asked_anew(first):
    play = Playbook(64, asks_first=first)
    play.submit(*(several := calls("a b"))) >> Woke() << (["ask"] if first else ["send a b"])
    assert (waited(play), play.seen) == (0.25, ["send a b"] if first else ["ask"])
    play >> answer() << []
    play.at(1.0) >> answered(*several) << ["resolve a b"]
    play.at(2.0).submit(*(c := calls("c"))) >> Woke() << ["send c"]
    play.at(2.1) >> failed(*c, FailureKind.NOT_SENT) << []
    assert play.endpoints[0].state == "ejected"
    while not (play.at(play.wakes_at) >> Woke()).seen:
        pass
    assert play.seen == ["send c"], "the probe"
    play >> answered(*c) << ["ask anew", "resolve c"]
    play.submit(*calls("d e")) >> Woke() << ([] if first else ["send d e"])
    play.at(play.now + 0.01) >> answer() << (["send d e"] if first else [])


# ... and before the first list ------------------------------------------------------------------------------------------


def waited(play):
    """Wake whenever it is due, until something is done; return when that is."""
    while not (play.at(play.wakes_at) >> Woke()).seen:
        pass
    return round(play.now, 9)


def test_the_first_list_waits_until_the_server_is_known_and_calls_that_go_alone_do_not():
    play = Playbook(8, asks_first=True)
    assert play.wakes_at is None
    play.submit(*calls(3)) >> Woke() << ["ask"]
    play.at(0.001).submit(*calls("alone", shape())) >> Woke() << ["send alone"]
    play.at(0.002).submit(*calls("chat chat2", shape(alone_reason="a chat"))) >> Woke() << ["send chat", "send chat2"]
    play.at(0.003).submit(*calls("late")) >> Woke() << []
    play.at(0.004) >> ServerKnown(0, {Kind.COMPLETION: 3}, None, None) << []
    play >> answer() << ["send c0 c1 c2", "send late"]


def test_to_a_server_known_to_take_no_lists_all_go_singly_from_the_first():
    play = Playbook(8, asks_first=True)
    play.submit(*calls(3)) >> Woke() << ["ask"]
    play.at(0.004) >> ServerKnown(0, dict.fromkeys(Kind, 1), None, None) << ["send c0", "send c1", "send c2"]
    assert [batch.alone for batch in play.sent] == ["no lists of this kind"] * 3


def test_until_the_server_has_said_how_many_it_takes_64_calls_that_go_alone_are_in_flight():
    play = Playbook(256, asks_first=True)
    play.submit(*calls(100, shape(alone_reason="a chat"))) >> Woke()
    assert (len(play.sent), play.wakes_at) == (64, 0.05)
    play.at(0.004) >> answer()
    assert len(play.sent) == 100


def test_a_first_call_that_goes_alone_goes_before_the_question():
    play = Playbook(8, asks_first=True)
    play.submit(*(a := calls("a"))) >> Woke() << ["send a", "ask"]
    play.at(0.1) >> answered(*a) << ["resolve a"]
    play.at(0.2).submit(*calls("b c")) >> Woke() << []
    assert (waited(play), play.seen) == (0.4, ["send b c"])
    play.at(0.5) >> silence() << []


def test_a_loop_that_stood_still_first_reads_what_the_server_has_said_meanwhile():
    play = Playbook(8, asks_first=True)
    play.submit(*calls(3)) >> Woke() << ["ask"]
    # The caller kept the loop busy. What has arrived meanwhile is read after the timers that are due.
    play.at(0.4) >> Woke() << []
    play.at(0.401) >> ServerKnown(0, dict.fromkeys(Kind, 1), None, None) << ["send c0", "send c1", "send c2"]


def test_a_question_that_has_failed_holds_up_nothing_nor_one_that_ended_before_the_first_call():
    for end in (silence(), answer()):
        play = Playbook(8, asks_first=True)
        play.submit(*calls(3)) >> Woke() << ["ask"]
        play.at(0.001) >> end << ["send c0 c1 c2"]
    play = Playbook(8, asks_first=True) >> answer()
    play.submit(*calls(3)) >> Woke() << ["send c0 c1 c2"]


def test_a_waiting_list_keeps_its_deadline_and_ends_with_the_client():
    play = Playbook(8, asks_first=True)
    play.submit(*calls("a b", deadline=0.1), *calls("c d")) >> Woke() << ["ask"]
    play.at(0.1) >> Woke() << ["reject a b: DeadlineExceeded"]
    play.at(0.2) >> CloseRequested() << ["reject c d: ClientClosed", "drained"]
    assert play.wakes_at is None


def test_each_endpoint_is_waited_for_by_itself_and_a_paused_client_asks_nothing():
    play = Playbook([4, 4], asks_first=True)
    play >> Paused() << []
    play.submit(*calls(4)) >> Woke() << []
    play >> Resumed() << []
    play >> Woke() << ["ask @0", "ask @1"]
    play.at(0.01) >> answer(1) << ["send c0 c1 c2 c3 @1"]
    play.submit(*calls(4, shape())) >> Woke() << []
    assert (waited(play), play.seen) == (0.25, ["send c0 c1 c2 c3 @0"])
    play.at(0.3) >> EndpointAdded(2, FixedLimit(4), "new") << []
    play.submit(*calls("x y", shape())) >> Woke() << ["ask @2"]


def test_an_endpoint_that_joins_is_asked_and_one_that_leaves_no_more():
    play = Playbook([4], asks_first=False)
    play.submit(*calls(2)) >> Woke() << ["send c0 c1"]
    play.at(0.25) >> Woke() << ["ask"]
    play >> answer()
    play.at(0.5) >> EndpointAdded(1, FixedLimit(4), "other") << []
    play.submit(*(several := calls("x y z u"))) >> Woke() << ["send x y z u"]
    play.at(0.75) >> Woke() << ["ask"]
    play.at(0.8) >> EndpointRemoved(1, drain=False) << ["abort x y z u"]
    play >> failed(several[0], FailureKind.MAYBE_PROCESSED)
    assert "gone @1" in play.seen
    play >> silence(1) << []


def test_who_is_not_to_be_asked_is_not():
    play = Playbook(2)
    play.submit(*calls(3)) >> Woke() << ["send c0 c1"]
    assert play.wakes_at is None


def test_among_several_servers_a_call_with_little_time_does_not_wait_for_their_word():
    play = Playbook(limit=[4, 4], asks_first=True)
    (hasty,), (patient,) = calls("a", deadline=0.4), calls("b", deadline=9.0)
    play.submit(hasty) >> Woke()
    assert "send a @0" in play.seen
    play.submit(patient) >> Woke()
    assert not [seen for seen in play.seen if seen.startswith("send")]
