"""First tokens open a limit before any answer has ended."""

from batchclient._core.failures import FailureKind
from batchclient._core.limits import KneeLimit
from batchclient._core.messages import Begun, Cancelled, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

ALONE = {"alone_reason": "alone", "max_output_tokens": 16}


def begun(count, limit=10, **about):
    """``count`` calls, as many sent at 1.0 as the limit allows, each in a request of its own."""
    requests = calls(count, shape(**ALONE), **about)
    play = Playbook(KneeLimit(limit))
    play.at(1.0).submit(*requests) >> Woke() << [f"send {request.waiter}" for request in requests[:limit]]
    return play, requests


def test_what_was_in_flight_when_a_batch_was_sent_has_begun_when_it_has():
    play, _ = begun(30)
    assert all(batch.tell_begun for batch in play.sent)
    play.at(1.1) >> Begun(play.sent[6]) << []  # seven were in flight then: no more than are allowed
    # 1.4 times ten, and it swings up by 0.12 of that.
    play.at(1.2) >> Begun(play.sent[9]) << [f"send c{number}" for number in range(10, 16)]
    assert play.adjusted == ["limit 10 -> 16: 10 sequences have begun to be answered"]


def test_what_was_answered_since_is_not_in_flight_any_more():
    play, requests = begun(30)
    for number in range(3):
        play.at(1.1) >> answered(requests[number]) << [f"resolve c{number}", f"send c{10 + number}"]
    play.at(1.2) >> Begun(play.sent[9]) << []
    assert play.adjusted == [], "1.4 times seven is no more than ten"


def test_who_left_and_was_replaced_was_not_seen_to_run():
    play, requests = begun(30)
    for number in range(4):
        play.at(1.1) >> Cancelled(requests[number]) << [f"abort c{number}"]
        play >> failed(requests[number], FailureKind.REFUSED) << [f"send c{10 + number}"]
    play.at(1.2) >> Begun(play.sent[9])
    assert play.adjusted == [], "1.4 times six is no more than ten"


def test_of_a_call_with_several_choices_one_is_known_to_have_begun():
    play = Playbook(KneeLimit(10))
    play.submit(*calls(6, shape(weight=4, **ALONE))) >> Woke()
    play.at(1.1) >> Begun(play.sent[1])
    assert play.adjusted == [], "1.4 times eight less three is no more than ten"


def test_what_is_read_after_our_own_event_loop_stood_still_says_nothing():
    play, _ = begun(30)
    play.at(11.0) >> Woke(stalled=True)
    play.at(11.1) >> Begun(play.sent[9]) << []
    assert play.adjusted == []


def test_a_batch_that_has_an_answer_tells_nothing():
    requests = calls(30)
    play = Playbook(KneeLimit(10))
    play.submit(*requests) >> Woke() << ["send " + " ".join(f"c{number}" for number in range(10))]
    play.at(1.0) >> answered(requests[0]) << ["resolve c0", "send c10"]
    play.at(1.1) >> Begun(play.sent[0]) << []
    assert play.adjusted == []


def test_it_does_not_open_where_callers_have_little_time():
    # A tenth of a second of nine and a half; of eleven it is less than a hundredth.
    play, _ = begun(30, deadline=10.5)
    play.at(1.1) >> Begun(play.sent[9]) << []
    play, _ = begun(30, deadline=12.0)
    play.at(1.1) >> Begun(play.sent[9]) << [f"send c{number}" for number in range(10, 16)]


def test_plain_replies_and_limits_that_do_not_open_are_not_asked():
    plain = Playbook(KneeLimit(10))
    plain.submit(*calls(30, shape(max_output_tokens=4))) >> Woke()
    fixed = Playbook(10)
    fixed.submit(*calls(30)) >> Woke()
    closed = Playbook(KneeLimit(10, opens=False))
    closed.submit(*calls(30)) >> Woke()
    assert [play.last.tell_begun for play in (plain, fixed, closed)] == [False, False, False]
    fixed.at(1.0) >> Begun(fixed.last) << []
    closed.at(1.0) >> Begun(closed.last) << []
    assert (fixed.adjusted, closed.adjusted) == ([], [])
