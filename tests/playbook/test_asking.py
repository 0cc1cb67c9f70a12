"""Questions beside the calls: when servers are asked for their pages. Literal times; the shell only fetches."""

import pytest

from tests.core import (
    AskOutcome,
    Asked,
    CloseRequested,
    EndpointAdded,
    EndpointRemoved,
    FailureKind,
    FixedLimit,
    Kind,
    LoadReported,
    Page,
    Paused,
    Resumed,
    ServerKnown,
    ServerLoad,
    Woke,
)
from batchclient.errors import DialectError
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

LOAD, SERVER = Page.LOAD, Page.SERVER
ANSWERED, NOTHING, SILENCE = AskOutcome.ANSWERED, AskOutcome.NOTHING, AskOutcome.SILENCE


def with_two_in_flight(*pages, limit=4):
    play = Playbook(limit, pages)
    play.submit(*(several := calls(2))) >> Woke() << ["send c0 c1"]
    return play, several


def told(page, outcome, endpoint=0):
    return Asked(endpoint, page, outcome)


# How busy it is --------------------------------------------------------------------------------------------------------


def test_its_load_is_asked_for_after_a_second_and_twice_a_second_from_then_on():
    play, _ = with_two_in_flight(LOAD)
    assert play.wakes_at == 1.0
    play.at(1.0) >> Woke() << ["ask LOAD"]
    play.at(1.01) >> LoadReported(0, ServerLoad(running=2, waiting=0)) << []
    play >> told(LOAD, ANSWERED) << []
    assert play.wakes_at == 1.5
    play.at(1.5) >> Woke() << ["ask LOAD"]


def test_a_question_that_is_open_is_not_asked_twice():
    play, _ = with_two_in_flight(LOAD)
    play.at(1.0) >> Woke() << ["ask LOAD"]
    play.at(1.5) >> Woke() << []


def test_a_lone_call_is_not_worth_a_question():
    play = Playbook(4, [LOAD])
    play.submit(*calls("a")) >> Woke() << ["send a"]
    play.at(1.0) >> Woke() << []
    assert play.wakes_at is None
    play.at(5.0).submit(*calls("b")) >> Woke() << ["send b"]
    play.at(6.0) >> Woke() << ["ask LOAD"]


def test_with_the_last_call_an_open_question_is_dropped_and_nothing_is_due():
    play, several = with_two_in_flight(LOAD, SERVER)
    play.at(0.25) >> Woke() << ["ask SERVER"]
    play.at(1.0) >> Woke() << ["ask LOAD"]
    play.at(1.1) >> answered(*several) << ["resolve c0 c1", "drop LOAD"]
    assert play.wakes_at is None
    play >> told(LOAD, SILENCE) << []
    play >> told(SERVER, SILENCE) << []
    assert play.wakes_at is None


def test_what_ends_in_the_queue_by_its_deadline_leaves_nothing_due():
    play = Playbook(1, [LOAD, SERVER], heeds_time=True)
    a, b = *calls("a"), *calls("b", deadline=0.2)
    play.submit(a, b) >> Woke() << ["send a"]
    play >> Paused() << []
    play.at(0.1) >> answered(a) << ["resolve a"]
    assert play.wakes_at is not None
    play.at(0.2) >> Woke() << ["reject b: DeadlineExceeded"]
    assert play.wakes_at is None


def test_a_page_that_takes_long_is_asked_for_less_often():
    play, _ = with_two_in_flight(LOAD)
    play.at(1.0) >> Woke() << ["ask LOAD"]
    play.at(1.5) >> Woke() << []
    play.at(1.8) >> told(LOAD, ANSWERED) << []
    play.at(2.0) >> Woke() << []
    play.at(2.5) >> Woke() << []
    play.at(3.0) >> Woke() << ["ask LOAD"], "twice 0.8 s after 1.0, at the next look"


@pytest.mark.parametrize(
    ("outcome", "asked_at"),
    [(NOTHING, [1.0, 61.0, 121.0]), (SILENCE, [1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0])],
)
def test_no_page_is_asked_for_once_a_minute_and_silence_doubles_the_pause(outcome, asked_at):
    play, _ = with_two_in_flight(LOAD)
    seen = []
    while play.wakes_at <= asked_at[-1]:
        play.at(play.wakes_at) >> Woke()
        if play.seen:
            assert play.seen == ["ask LOAD"]
            seen.append(play.now)
            play >> told(LOAD, outcome) << []
    assert seen == asked_at


def test_each_endpoint_is_asked_for_itself():
    play = Playbook([4, 4], [LOAD])
    play.submit(*calls(8)) >> Woke()
    play.at(1.0) >> Woke() << ["ask LOAD @0", "ask LOAD @1"]
    play >> told(LOAD, NOTHING, endpoint=0) << []
    play >> told(LOAD, ANSWERED, endpoint=1) << []
    play.at(1.5) >> Woke() << ["ask LOAD @1"]


# Which server it is ----------------------------------------------------------------------------------------------------


def test_which_server_it_is_is_asked_a_quarter_of_a_second_after_the_first_batch_and_once():
    play, several = with_two_in_flight(SERVER)
    assert play.wakes_at == 0.25
    play.at(0.25) >> Woke() << ["ask SERVER"]
    assert play.wakes_at is None
    play.at(0.3) >> told(SERVER, ANSWERED) << []
    assert play.wakes_at is None
    play.at(9.0) >> answered(*several) << ["resolve c0 c1"]
    play.at(99.0).submit(*calls("d e")) >> Woke() << ["send d e"]
    assert play.wakes_at is None


def test_calls_that_are_over_sooner_see_no_question_and_later_ones_do():
    play, several = with_two_in_flight(SERVER)
    play.at(0.05) >> answered(*several) << ["resolve c0 c1"]
    assert play.wakes_at is None
    play.at(7.0).submit(*calls("d e")) >> Woke() << ["send d e", "ask SERVER"]


def test_after_silence_it_is_asked_again_after_5_and_60_seconds_while_there_are_calls():
    play, several = with_two_in_flight(SERVER)
    asked_at = []
    for _ in range(4):
        while not (play.at(play.wakes_at) >> Woke()).seen:
            pass
        assert play.seen == ["ask SERVER"]
        asked_at.append(play.now)
        play >> told(SERVER, SILENCE) << []
    assert asked_at == [0.25, 5.25, 65.25, 125.25]
    play.at(130.0) >> answered(*several) << ["resolve c0 c1"]
    assert play.wakes_at is None


@pytest.mark.parametrize("first", [False, True])
def test_an_endpoint_that_comes_back_is_asked_anew(first):
    play = Playbook(64, [SERVER], asks_first=first)
    play.submit(*(several := calls("a b"))) >> Woke() << (["ask SERVER"] if first else ["send a b"])
    assert (waited(play), play.seen) == (0.25, ["send a b"] if first else ["ask SERVER"])
    play >> told(SERVER, ANSWERED) << []
    play.at(1.0) >> answered(*several) << ["resolve a b"]
    play.at(2.0).submit(*(c := calls("c"))) >> Woke() << ["send c"]
    play.at(2.1) >> failed(*c, FailureKind.NOT_SENT) << []
    assert play.endpoints[0].state == "ejected"
    while not (play.at(play.wakes_at) >> Woke()).seen:
        pass
    assert play.seen == ["send c"], "the probe"
    play >> answered(*c) << ["ask SERVER anew", "resolve c"]
    play.submit(*calls("d e")) >> Woke() << ([] if first else ["send d e"])
    play.at(play.now + 0.01) >> told(SERVER, ANSWERED) << (["send d e"] if first else [])


# ... and before the first list ------------------------------------------------------------------------------------------


def waited(play):
    """Wake whenever it is due, until something is done; return when that is."""
    while not (play.at(play.wakes_at) >> Woke()).seen:
        pass
    return round(play.now, 9)


def test_the_first_list_waits_until_the_server_is_known_and_calls_that_go_alone_do_not():
    play = Playbook(8, [SERVER], asks_first=True)
    assert play.wakes_at is None
    play.submit(*calls(3)) >> Woke() << ["ask SERVER"]
    play.at(0.001).submit(*calls("alone", shape())) >> Woke() << ["send alone"]
    play.at(0.002).submit(*calls("chat chat2", shape(alone_reason="a chat"))) >> Woke() << ["send chat", "send chat2"]
    play.at(0.003).submit(*calls("late")) >> Woke() << []
    play.at(0.004) >> ServerKnown(0, {Kind.COMPLETION: 3}, None, None) << []
    play >> told(SERVER, ANSWERED) << ["send c0 c1 c2", "send late"]


def test_to_a_server_known_to_take_no_lists_all_go_singly_from_the_first():
    play = Playbook(8, [SERVER], asks_first=True)
    play.submit(*calls(3)) >> Woke() << ["ask SERVER"]
    play.at(0.004) >> ServerKnown(0, dict.fromkeys(Kind, 1), None, None) << ["send c0", "send c1", "send c2"]
    assert [batch.alone for batch in play.sent] == ["no lists of this kind"] * 3


def test_until_the_server_has_said_how_many_it_takes_64_calls_that_go_alone_are_in_flight():
    play = Playbook(256, [SERVER], asks_first=True)
    play.submit(*calls(100, shape(alone_reason="a chat"))) >> Woke()
    assert (len(play.sent), play.wakes_at) == (64, 0.05)
    play.at(0.004) >> told(SERVER, ANSWERED)
    assert len(play.sent) == 100


def test_a_first_call_that_goes_alone_goes_before_the_question():
    play = Playbook(8, [SERVER], asks_first=True)
    play.submit(*(a := calls("a"))) >> Woke() << ["send a", "ask SERVER"]
    play.at(0.1) >> answered(*a) << ["resolve a"]
    play.at(0.2).submit(*calls("b c")) >> Woke() << []
    assert (waited(play), play.seen) == (0.4, ["send b c"])
    play.at(0.5) >> told(SERVER, SILENCE) << []


def test_a_loop_that_stood_still_first_reads_what_the_server_has_said_meanwhile():
    play = Playbook(8, [SERVER], asks_first=True)
    play.submit(*calls(3)) >> Woke() << ["ask SERVER"]
    # The caller kept the loop busy. What has arrived meanwhile is read after the timers that are due.
    play.at(0.4) >> Woke() << []
    play.at(0.401) >> ServerKnown(0, dict.fromkeys(Kind, 1), None, None) << ["send c0", "send c1", "send c2"]


def test_a_question_that_has_failed_holds_up_nothing_nor_one_that_ended_before_the_first_call():
    for outcome in (SILENCE, ANSWERED):
        play = Playbook(8, [SERVER], asks_first=True)
        play.submit(*calls(3)) >> Woke() << ["ask SERVER"]
        play.at(0.001) >> told(SERVER, outcome) << ["send c0 c1 c2"]
    play = Playbook(8, [SERVER], asks_first=True) >> told(SERVER, ANSWERED)
    play.submit(*calls(3)) >> Woke() << ["send c0 c1 c2"]


def test_a_waiting_list_keeps_its_deadline_and_ends_with_the_client():
    play = Playbook(8, [SERVER], asks_first=True)
    play.submit(*calls("a b", deadline=0.1), *calls("c d")) >> Woke() << ["ask SERVER"]
    play.at(0.1) >> Woke() << ["reject a b: DeadlineExceeded"]
    play.at(0.2) >> CloseRequested() << ["drop SERVER", "reject c d: ClientClosed", "drained"]
    assert play.wakes_at is None


def test_each_endpoint_is_waited_for_by_itself_and_a_paused_client_asks_nothing():
    play = Playbook([4, 4], [SERVER], asks_first=True)
    play >> Paused() << []
    play.submit(*calls(4)) >> Woke() << []
    play >> Resumed() << []
    play >> Woke() << ["ask SERVER @0", "ask SERVER @1"]
    play.at(0.01) >> told(SERVER, ANSWERED, endpoint=1) << ["send c0 c1 c2 c3 @1"]
    play.submit(*calls(4, shape())) >> Woke() << []
    assert (waited(play), play.seen) == (0.25, ["send c0 c1 c2 c3 @0"])
    play.at(0.3) >> EndpointAdded(2, FixedLimit(4), "new") << []
    play.submit(*calls("x y", shape())) >> Woke() << ["ask SERVER @2"]


def test_an_endpoint_that_joins_is_asked_and_one_that_leaves_no_more():
    play = Playbook([4], [LOAD, SERVER])
    play.submit(*calls(2)) >> Woke() << ["send c0 c1"]
    play.at(0.25) >> Woke() << ["ask SERVER"]
    play >> told(SERVER, ANSWERED)
    play.at(0.5) >> EndpointAdded(1, FixedLimit(4), "other") << []
    play.submit(*(several := calls("x y z u"))) >> Woke() << ["send x y z u"]
    play.at(0.75) >> Woke() << ["ask SERVER"]
    play.at(0.8) >> EndpointRemoved(1, drain=False) << ["abort x y z u"]
    play >> failed(several[0], FailureKind.MAYBE_PROCESSED)
    assert {"gone @1", "drop SERVER"} <= {*play.seen}


def test_without_pages_nothing_is_asked():
    play = Playbook(2)
    play.submit(*calls(3)) >> Woke() << ["send c0 c1"]
    assert play.wakes_at is None


def test_a_client_that_closes_drops_its_questions():
    play, several = with_two_in_flight(LOAD)
    play.at(1.0) >> Woke() << ["ask LOAD"]
    play.at(1.1) >> CloseRequested() << ["drop LOAD", "abort c0 c1", "reject c0 c1: ClientClosed"]
    assert play.wakes_at is None, "though the batch is still to end"
    play >> failed(several[0], FailureKind.MAYBE_PROCESSED) << ["drained"]
    assert play.wakes_at is None


def asked_until(play, end):
    """Let time pass; each question is answered. Return how many there were."""
    asked = 0
    while play.wakes_at is not None and play.wakes_at < end:
        play.at(play.wakes_at) >> Woke()
        if "ask LOAD" in play.seen:
            asked += 1
            play >> told(LOAD, ANSWERED)
    return asked


def test_what_is_sent_past_the_queue_is_asked_about_too():
    """After one member of a failed list was answered, the others go as a bare list, which nobody granted."""
    play = Playbook(8, [LOAD])
    play.submit(*(several := calls(8))) >> Woke() << ["send c0 c1 c2 c3 c4 c5 c6 c7"]
    unforeseen = {"error": DialectError, "status": 400, "delay": 0.2}
    play.at(0.1) >> failed(several[0], FailureKind.MAYBE_PROCESSED, **unforeseen) << []
    play.at(0.4) >> Woke() << ["send c0 c1 c2 c3 c4 c5 c6 c7"]
    play.at(0.5) >> failed(several[0], FailureKind.MAYBE_PROCESSED, **unforeseen) << ["send c0"]
    asked_until(play, 2.0)
    play.at(3.0) >> answered(several[0])
    assert "send c1 c2 c3 c4 c5 c6 c7" in play.seen
    assert asked_until(play, 10.0) > 10
