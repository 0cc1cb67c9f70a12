"""Servers that are not there yet: asked until their first answer, and given no call before. Literal times."""

import random

import pytest

from tests.core import (
    Asked,
    Cancelled,
    CloseRequested,
    EndpointAdded,
    EndpointRemoved,
    Failure,
    FailureKind,
    FixedLimit,
    HealthChanged,
    ModelWanted,
    Paused,
    Resumed,
    Submitted,
    Woke,
)
from batchclient.errors import ConnectFailed
from tests.playbook.playbook import Playbook, answered, calls, failed

REFUSED = Failure(FailureKind.NOT_SENT, ConnectFailed, "no connection", seen="a refused connection")


def waiting(*limits, wait=600.0, **settings):
    """A client that waits for its servers."""
    return Playbook(list(limits), asks_first=False, wait_for_server_s=wait, **settings)


def absent(endpoint=0):
    return Asked(endpoint, answered=False, failure=REFUSED)


def there(endpoint=0):
    return Asked(endpoint, answered=True)


def states(play):
    return [each.state for each in play.endpoints]


def test_calls_wait_for_the_servers_answer_to_its_question_and_then_go_together():
    play = waiting(4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["ask"]
    play.at(0.1) >> absent() << []
    assert (states(play), play.endpoints[0].reason) == (["awaited"], "a refused connection")
    play.at(1.1) >> Woke() << ["ask anew"]
    play.at(1.2) >> there() << ["send a b"]
    assert (a.attempts, states(play), play.endpoints[0].outage) == (1, ["healthy"], "")
    play.at(2.0) >> answered(a, b) << ["resolve a b"]


def test_a_server_is_asked_each_second_at_first_and_then_every_five():
    play, asked_at = waiting(4), []
    play.submit(*calls("a"))
    while play.now < 60.0:
        play.at(play.wakes_at) >> Woke()
        if play.seen:
            asked_at.append(play.now)
            play >> absent() << []
    pauses = [later - earlier for earlier, later in zip(asked_at, asked_at[1:])]
    assert pauses == [1.0] * 10 + [2.0, 3.0, 4.0] + [5.0] * 9


def test_no_call_goes_to_another_server_before_that_one_has_answered_however_late():
    play = waiting(1, 1, wait=30.0)
    first, *more = calls(3)
    play.submit(first, *more) >> Woke() << ["ask @0", "ask @1"]
    play.at(0.1) >> absent(1) << []
    play.at(0.2) >> there(0) << ["send c0 @0"]
    play.at(1.1) >> Woke() << ["ask anew @1"]
    play.at(100.0)
    play.scheduler.handle(absent(1), play.now)
    (told,) = [one.outage for one in play.scheduler.commands()]
    assert told == "waiting for endpoint 1, which has not answered yet, for 99.9 s by now: a refused connection"
    assert states(play) == ["healthy", "awaited"]
    play.at(101.0) >> Woke() << ["ask anew @1"]
    play.at(101.1) >> there(1) << ["send c1 @1"]
    assert {call.attempts for call in more} == {1, 0}


def test_a_server_that_joins_later_is_awaited_too():
    play = waiting(1, 1)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["ask @0", "ask @1"]
    play >> there(0) << ["send a @0"]
    play >> there(1) << ["send b @1"]
    play.at(1.0) >> EndpointAdded(2, FixedLimit(1)) << []
    play >> Woke() << ["ask @2"]
    play.at(1.1) >> there(2) << ["send c @2"]


def test_at_the_end_of_the_wait_all_calls_fail_at_once_and_later_ones_are_tried():
    play = waiting(1, 1, wait=600.0)
    a, b, c = calls("a b c")
    play.submit(a).at(0.0) >> Woke() << ["ask @0", "ask @1"]
    play >> absent(0) << []
    play >> absent(1) << []
    play.at(300.0).submit(b) >> Woke() << ["ask anew @0", "ask anew @1"]
    assert play.wakes_at == 600.0
    message = "no server answered in 600 s: endpoint 0 (a refused connection), endpoint 1 (a refused connection)"
    play.at(600.0) >> Woke() << ["reject a b: NoServerAnswered", f"wait over: {message}"]
    assert {name: (error.message, error.attempt) for name, error in play.errors.items()} == {
        "a": (message, 0),
        "b": (message, 0),
    }
    assert [(each.state, each.outage) for each in play.endpoints] == [("healthy", ""), ("healthy", "")]
    play.at(601.0).submit(c) >> Woke() << ["send c @0"]
    play >> failed(c, FailureKind.NOT_SENT, delay=1.0) << ["send c @1"]
    play >> failed(c, FailureKind.NOT_SENT, delay=1.0) << []


def test_no_error_speaks_of_a_wait_that_was_given_up():
    play = waiting(1, 1, wait=10.0)
    (a,) = calls("a", deadline=20.0)
    play.submit(a) >> Woke() << ["ask @0", "ask @1"]
    play >> absent(1) << []
    play >> there(0) << ["send a @0"]
    play >> EndpointRemoved(0) << []
    play.at(10.0) >> Woke()
    assert play.seen[0].startswith("wait over")
    play.at(15.0) >> failed(a, FailureKind.REJECTED, delay=10.0) << ["gone @0"]
    play.at(20.0) >> Woke()
    assert play.errors["a"].message.endswith("0 s in the queue, 15 s in 1 attempt, 5 s between attempts")


def test_a_server_that_has_answered_and_goes_away_has_an_outage():
    play = waiting(2, outage_patience_s=30.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["ask"]
    play >> there() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT, delay=0.0) << []
    assert play.endpoints[0].outage == "an outage of endpoint 0 has begun: no connection"
    play.at(2.0) >> Woke() << ["send a"]
    assert states(play) == ["probing"]


def test_the_other_servers_arrival_ends_an_outage():
    play = waiting(1, 1)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["ask @0", "ask @1"]
    play >> absent(1) << []
    play >> there(0) << ["send a @0"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT, delay=0.0) << []
    play >> Woke() << ["ask anew @1"]
    play.at(1.2) >> there(1) << ["send a @1"]


@pytest.mark.parametrize("gone_first", [False, True])
def test_only_calls_under_way_ask_and_a_wait_ends_with_its_last_caller(gone_first):
    play = waiting(1, wait=10.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["ask"]
    for event in (Cancelled(a), absent()) if gone_first else (absent(), Cancelled(a)):
        play >> event << []
    assert play.wakes_at is None
    # A later call waits anew, for the whole time.
    play.at(3600.0).submit(b) >> Woke() << ["ask anew"]
    play.at(3600.1) >> absent() << []
    play.at(3609.9) >> Woke() << ["ask anew"]
    play >> absent() << []
    play.at(3610.0) >> Woke()
    assert play.seen == [
        "reject b: NoServerAnswered",
        f"wait over: no server answered in 10 s: endpoint 0 ({REFUSED.seen})",
    ]
    assert play.wakes_at is None


def test_a_wait_ends_when_no_call_waits_for_the_model_any_more():
    play = waiting(1, wait=10.0)
    play >> ModelWanted() << []
    play.at(1.0) >> absent() << []
    assert play.wakes_at == 10.0
    play >> ModelWanted(wanted=False) << []
    assert play.wakes_at is None
    play.at(60.0) >> ModelWanted() << []
    assert play.wakes_at == 70.0


def test_a_pause_ends_a_wait_and_it_begins_anew():
    play = waiting(1, wait=10.0)
    play.submit(*calls("a")) >> Woke() << ["ask"]
    play.at(4.0) >> Paused() << []
    play.at(20.0) >> absent() << []
    assert play.endpoints[0].state == "awaited"
    play.at(30.0) >> Resumed() << []
    play >> Woke() << ["ask anew"]
    play >> absent() << []
    play.at(39.9) >> Woke() << ["ask anew"]
    play >> absent() << []
    play.at(40.0) >> Woke()
    assert play.seen[0] == "reject a: NoServerAnswered"


def test_the_servers_left_after_a_removal_are_waited_for_anew():
    play = waiting(1, 1, wait=10.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["ask @0", "ask @1"]
    play >> absent(1) << []
    play >> there(0) << ["send a @0"]
    play.at(0.5) >> answered(a) << ["resolve a"]
    play.at(50.0) >> EndpointRemoved(0) << ["gone @0"]
    play.at(60.0).submit(b) >> Woke() << ["ask anew @1"]
    play >> absent(1) << []
    assert play.wakes_at == 61.0
    play.at(70.0) >> Woke()
    assert play.seen[0] == "reject b: NoServerAnswered"


def test_a_wait_keeps_a_calls_deadline_and_says_what_was_waited_for():
    play = waiting(1)
    (a,) = calls("a", deadline=3.0)
    play.submit(a) >> Woke() << ["ask"]
    play >> absent() << []
    play.at(1.0) >> Woke() << ["ask anew"]
    play.at(3.0) >> Woke() << ["reject a: DeadlineExceeded"]
    told = "3 s in the queue; waiting for endpoint 0, which has not answered yet, for 3 s by now: a refused connection"
    assert (told in play.errors["a"].message, type(play.errors["a"].__cause__)) == (True, ConnectFailed)


def test_the_question_for_the_model_begins_the_wait_and_a_pause_does_not():
    play = waiting(1, 1, wait=15.0)
    play >> ModelWanted() << []
    play.at(12.0) >> absent(1) << []
    over = "no server answered in 15 s: endpoint 0 (it has not answered yet), endpoint 1 (a refused connection)"
    play.at(15.0) >> Woke() << [f"wait over: {over}"]
    play.at(16.0) >> ModelWanted() << []
    assert play.wakes_at is None

    play = waiting(1, wait=15.0)
    play >> Paused() << []
    play.submit(*calls("a")) >> Woke() << []
    play.at(50.0) >> Woke() << []
    play >> Resumed() << []
    play >> Woke() << ["ask"]
    assert play.wakes_at == 65.0


def test_a_server_that_has_told_all_and_still_loads_is_asked_again():
    play = waiting(1)
    play.submit(*calls("a")) >> Woke() << ["ask"]
    play >> Asked(0, answered=True, failure=REFUSED) << []
    play.at(1.0) >> Woke() << ["ask anew"]


def test_every_call_ends_whatever_happens_during_the_wait():
    for seed in range(100):
        draw, play, served, made = random.Random(seed), waiting(1, 1, wait=10.0), [0, 1], []

        def take(event, play=play):
            play >> event
            while play.sent:
                play >> answered(*play.sent.pop().requests)

        def run_until(time, play=play, take=take):
            while play.wakes_at is not None and play.wakes_at <= time:
                play.at(play.wakes_at)
                take(Woke())
            play.at(time)

        for number in range(20):
            run_until(play.now + draw.choice([0.0, 0.5, 3.0]))
            match draw.randrange(9):
                case 0 | 1:
                    made += calls(f"c{number}")
                    take(Submitted(made[-1]))
                case 2 | 3:
                    take(absent(draw.choice(served)))
                case 4:
                    take(there(draw.choice(served)))
                case 5:
                    take(draw.choice([Paused, Resumed, ModelWanted])())
                case 6:
                    served.append(number + 2)
                    take(EndpointAdded(served[-1], FixedLimit(1)))
                case 7 if len(served) > 1:
                    take(EndpointRemoved(served.pop(draw.randrange(len(served)))))
                case 8 if made:
                    take(Cancelled(draw.choice(made)))
        take(Resumed())
        run_until(play.now + 11.0)
        assert play.scheduler.idle and play.wakes_at is None, seed


def test_closing_ends_the_wait_and_a_pause_keeps_calls_back():
    play = waiting(1)
    (a, b) = calls("a b")
    play >> Paused() << []
    play.submit(a) >> Woke() << []
    play.at(0.5) >> Resumed() << []
    play >> Woke() << ["ask"]
    play >> Paused() << []
    play.at(1.0) >> there() << []
    play >> Resumed() << ["send a"]

    play = waiting(1)
    play.submit(b) >> Woke() << ["ask"]
    play.at(1.0) >> CloseRequested() << ["reject b: ClientClosed", "drained"]
    assert play.wakes_at is None


def test_a_wait_is_told_at_its_first_failure_and_then_once_a_minute():
    play, told = waiting(1), []
    play.submit(*calls("a"))
    while play.now < 125.0:
        play.at(play.wakes_at) >> Woke()
        if play.seen:
            play.scheduler.handle(absent(), play.now)
            told += [one.outage for one in play.scheduler.commands() if isinstance(one, HealthChanged)]
    assert told == [
        f"waiting for endpoint 0, which has not answered yet{age}: a refused connection; calls wait 600 s at most"
        for age in ("", ", for 64 s by now", ", for 124 s by now")
    ]
    play.scheduler.handle(there(), play.now)
    ended = [one for one in play.scheduler.commands() if isinstance(one, HealthChanged)]
    arrived = "endpoint 0 has answered, after a wait of 129 s"
    assert [(one.state, one.outage) for one in ended] == [("healthy", arrived)]
