"""First tokens open a limit before any answer has ended."""

from batchclient._core.failures import FailureKind
from batchclient._core.limits.search import Search
from batchclient._core.messages import Begun, Cancelled, Woke
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

ALONE = {"alone_reason": "alone", "max_output_tokens": 2000}


def begun(**settings):
    """Thirty calls, ten of them sent at 1.0, each in a request of its own."""
    requests = calls(30, shape(**ALONE))
    play = Playbook(Search(10), **settings)
    play.at(1.0).submit(*requests) >> Woke() << [f"send {request.waiter}" for request in requests[:10]]
    return play, requests


def test_what_was_in_flight_when_a_batch_was_sent_has_begun_when_it_has():
    play, _ = begun()
    assert all(batch.tell_begun for batch in play.sent)
    play.at(1.1) >> Begun(play.sent[6]) << []  # seven were in flight then: less than three quarters of the limit
    play.at(1.2) >> Begun(play.sent[9]) << [f"send c{number}" for number in range(10, 20)]
    assert play.adjusted == ["limit 10 -> 20: 10 calls were being answered at once"]


def test_what_was_answered_since_is_not_in_flight_any_more():
    play, requests = begun()
    for number in range(3):
        play.at(1.1) >> answered(requests[number]) << [f"resolve c{number}", f"send c{10 + number}"]
    play.at(1.2) >> Begun(play.sent[9]) << []
    assert play.adjusted == [], "seven"


def test_who_left_and_was_replaced_was_not_seen_to_run():
    play, requests = begun()
    for number in range(4):
        play.at(1.1) >> Cancelled(requests[number]) << [f"abort c{number}"]
        play >> failed(requests[number], FailureKind.REFUSED) << [f"send c{10 + number}"]
    play.at(1.2) >> Begun(play.sent[9])
    assert play.adjusted == [], "six"


def test_of_a_call_with_several_choices_one_is_known_to_have_begun():
    play = Playbook(Search(10))
    play.submit(*calls(6, shape(weight=4, **ALONE))) >> Woke()
    play.at(1.1) >> Begun(play.sent[1])
    assert play.adjusted == [], "eight less three"


def test_what_is_read_after_our_own_event_loop_stood_still_says_nothing():
    play, _ = begun(heeds_time=True)
    assert play.wakes_at == 1.5, "a timer that watches"
    play.at(11.0) >> Woke()
    play.at(11.1) >> Begun(play.sent[9]) << []
    assert play.adjusted == []


def test_a_batch_that_has_an_answer_tells_nothing():
    requests = calls(30)
    play = Playbook(Search(10))
    play.submit(*requests) >> Woke() << ["send " + " ".join(f"c{number}" for number in range(10))]
    play.at(1.0) >> answered(requests[0]) << ["resolve c0", "send c10"]
    play.at(1.1) >> Begun(play.sent[0]) << []
    assert play.adjusted == []


def test_plain_replies_and_limits_that_do_not_open_are_not_asked():
    plain = Playbook(Search(10))
    plain.submit(*calls(30, shape(max_output_tokens=4))) >> Woke()
    fixed = Playbook(10)
    fixed.submit(*calls(30)) >> Woke()
    closed = Playbook(Search(10, opens_to=10))
    closed.submit(*calls(30)) >> Woke()
    assert [play.last.tell_begun for play in (plain, fixed, closed)] == [False, False, False]
    fixed.at(1.0) >> Begun(fixed.last) << []
    closed.at(1.0) >> Begun(closed.last) << []
    assert (fixed.adjusted, closed.adjusted) == ([], [])
