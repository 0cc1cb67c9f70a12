"""Errors say what a call's time was spent on; an outage of a server is told in one sentence, wherever it is told."""

import pytest

from tests.core import (
    AbortRequested,
    CloseRequested,
    EndpointAdded,
    FailureKind,
    FixedLimit,
    HealthChanged,
    Paused,
    Resumed,
    Scheduler,
    SchedulerSettings,
    Submitted,
    Woke,
)
from batchclient.errors import ConnectFailed, ConnectionLost, DeadlineExceeded, QueueFull, ServerFault
from batchclient.types import Reply
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

GONE = FailureKind.NOT_SENT
LOST = FailureKind.MAYBE_PROCESSED
URL = "http://one:8000/v1"
THRICE = "3 failures in a row, the last: no connection"


class Story(Playbook):
    """A playbook that knows its servers' names and keeps the warnings."""

    def __init__(self, limit=4, urls=(URL,), **settings):
        super().__init__(limit, **settings)
        self.scheduler = Scheduler(
            SchedulerSettings(trusts_lists=lambda: True, **settings), [FixedLimit(limit) for _ in urls], urls
        )
        self.warned, self.states = [], []
        handed_out = self.scheduler.commands

        def commands():
            made = handed_out()
            told = [one for one in made if isinstance(one, HealthChanged)]
            self.warned += [one.outage for one in told if one.outage]
            self.states += [(self.now, one.state) for one in told]
            return made

        self.scheduler.commands = commands


def gone(**settings):
    """A server that answered at 0.0 and refuses its second call at 10.0."""
    story = Story(**settings)
    first, second = calls("first")[0], calls("second", shape())[0]
    story.submit(first) >> Woke() >> answered(first)
    story.at(10.0).submit(second) >> Woke() >> failed(second, GONE)
    return story, second


def refuse_until(story, until):
    while (wakes_at := story.wakes_at) is not None and wakes_at <= until:
        story.at(wakes_at) >> Woke()
        if story.in_flight:
            story >> failed(story.last.requests[0], GONE)


def test_a_call_that_waited_for_a_server_that_is_gone_says_so_and_not_that_the_queue_is_full():
    story, _ = gone()
    (late,) = calls("late", shape(), deadline=16.0)
    story.at(12.0).submit(late) >> Woke() >> failed(story.last.requests[0], GONE)
    refuse_until(story, 16.0)
    error = story.errors["late"]
    assert error.message == (
        "the call's timeout_s passed in the queue: 4 s in the queue;"
        " an outage of http://one:8000/v1 has lasted 6 s: 5 failures in a row, the last: no connection"
    )
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error.__cause__, ConnectFailed)


def test_an_outage_is_warned_of_once_when_it_begins_and_once_when_it_ends():
    story, second = gone()
    assert story.warned == ["an outage of http://one:8000/v1 has begun: no connection"]
    refuse_until(story, 12.0)
    assert len(story.warned) == 1
    story.at(14.5) >> Woke() >> answered(second)
    assert story.warned[1:] == [f"an outage of {URL} ended after 4.5 s: {THRICE}"]
    refuse_until(story, 100.0)
    assert len(story.warned) == 2


def test_the_statistics_say_the_same_sentence_while_it_lasts():
    story, second = gone()
    story.at(10.25) >> Woke()
    assert story.endpoints[0].outage == "an outage of http://one:8000/v1 has lasted 0.25 s: no connection"
    refuse_until(story, 12.0)
    assert story.endpoints[0].outage == f"an outage of {URL} has lasted 1.5 s: {THRICE}"
    story.at(14.5) >> Woke() >> answered(second)
    assert story.endpoints[0].outage == ""


def test_who_waits_says_for_which_server_and_since_when():
    story, second = gone()
    story.at(10.25) >> Woke()
    assert repr(story.scheduler) == (
        f"<Scheduler: 1 queued, 0 waiting, 0 in flight; an outage of {URL} has lasted 0.25 s: no connection>"
    )
    refuse_until(story, 12.0)
    story.at(14.5) >> Woke() >> answered(second)
    assert repr(story.scheduler) == "<Scheduler: 0 queued, 0 waiting, 0 in flight>"


def test_an_outage_began_with_the_first_failure_after_the_last_answer():
    story = Story(limit=16, max_size=1)
    first, *others = calls("first a b c d e f g h i")
    story.submit(first) >> Woke() >> answered(first)
    for second, call in enumerate(others, 1):
        story.at(float(second)).submit(call) >> Woke() >> failed(call, LOST, delay=500.0)
    assert story.warned == [
        f"an outage of {URL} has begun: 9 failures in a row, the last: a broken connection;"
        " the first failure was 8 s ago"
    ]


def test_every_beginning_is_told_in_the_words_that_one_search_finds():
    story, _ = gone()
    broken = Story(limit=16, max_size=1)
    first, *others = calls("first a b c d e f g h i")
    broken.submit(first) >> Woke() >> answered(first)
    for second, call in enumerate(others, 1):
        broken.at(float(second)).submit(call) >> Woke() >> failed(call, LOST, delay=500.0)
    assert all(one.startswith(f"an outage of {URL} has begun: ") for one in (*story.warned, *broken.warned))


def test_an_ejection_is_told_once_per_outage_however_many_probes_fail():
    story, second = gone()
    refuse_until(story, 14.0)
    # Probes at 10.5, 11.5, 12.5 and 13.5 were refused.
    assert second.attempts == 5
    assert story.states == [(10.0, "ejected")]
    story.at(17.5) >> Woke() >> answered(second)
    assert story.states[1:] == [(17.5, "recovering")]
    (third,) = calls("third", shape())
    story.at(18.0).submit(third) >> Woke() >> failed(third, GONE)
    assert story.states[2:] == [(18.0, "ejected")]


def test_time_in_attempts_and_between_them_is_told_apart_and_the_last_failure_is_the_cause():
    story = Story(limit=1, max_size=1)
    (before,), (call,) = calls("before"), calls("call", shape(), deadline=20.0)
    story.submit(before, call) >> Woke()
    story.at(3.0) >> answered(before)
    story.at(7.0) >> failed(call, LOST, delay=2.0)
    story.at(9.0) >> Woke()
    story.at(14.0) >> failed(call, LOST, delay=0.5)
    story.at(14.5) >> Woke()
    story.at(20.0) >> Woke()
    error = story.errors["call"]
    assert error.message == (
        "the call's timeout_s passed while the server worked on it:"
        " 3 s in the queue, 14.5 s in 3 attempts, 2.5 s between attempts"
    )
    assert isinstance(error.__cause__, ConnectionLost)
    assert error.__cause__.attempt == 3


def test_an_outage_that_is_over_but_took_the_calls_time_is_told():
    story, second = gone(limit=1, max_size=1)
    (late,) = calls("late", deadline=15.0)
    story.at(11.0).submit(late)
    refuse_until(story, 12.0)
    story.at(14.5) >> Woke()
    story >> answered(second)
    story.at(15.0) >> Woke()
    assert story.errors["late"].message == (
        "the call's timeout_s passed while the server worked on it: 3.5 s in the queue, 0.5 s in 1 attempt;"
        f" an outage of {URL} ended after 4.5 s: {THRICE}"
    )


def test_where_another_server_was_in_use_all_the_time_a_call_has_waited_for_none():
    story = Story(limit=1, urls=(URL, "http://two:8000/v1"), max_size=1)
    a, b = calls("a b")
    story.submit(a, b) >> Woke() >> failed(a, GONE)
    (late,) = calls("late", deadline=0.5)
    story.submit(late) >> Woke()
    story.at(0.5) >> Woke()
    assert "outage" not in story.errors["late"].message
    assert story.errors["late"].__cause__ is None
    assert story.warned == [f"an outage of {URL} has begun: no connection"]


def test_a_queue_that_is_full_because_no_server_is_there_says_so():
    story, _ = gone(max_queued=1, raise_when_full=True)
    (refused,) = calls("refused", shape())
    story.at(10.25) >> Submitted(refused)
    error = story.errors["refused"]
    assert isinstance(error, QueueFull)
    assert error.message == (
        "1 calls are queued (max_calls=1); an outage of http://one:8000/v1 has lasted 0.25 s: no connection"
    )
    assert isinstance(error.__cause__, ConnectFailed)


def test_a_call_whose_patience_has_ended_says_which_server_it_waited_for_and_since_when():
    story, _ = gone(outage_patience_s=2.0)
    refuse_until(story, 12.0)
    assert story.errors["second"].message == (
        "no (no server came back within outage_patience_s: 2 s in the queue, 0 s in 3 attempts;"
        f" an outage of {URL} has lasted 2 s: {THRICE})"
    )


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (CloseRequested(), "the client was closed while the call was under way"),
        (AbortRequested(), "the call was ended by abort()"),
    ],
)
def test_calls_that_end_with_their_client_say_the_same(end, words):
    story, _ = gone(max_size=1)
    (waits,) = calls("waits", shape())
    story.at(10.25).submit(waits)
    story.at(10.4) >> end
    assert story.errors["waits"].message == (
        f"{words}: 0.15 s in the queue; an outage of {URL} has lasted 0.4 s: no connection"
    )
    assert isinstance(story.errors["waits"].__cause__, ConnectFailed)


def test_a_server_that_joins_ends_nobodys_outage_but_calls_go_on():
    story, second = gone(max_size=1, limit=1)
    story.at(11.0) >> EndpointAdded(1, FixedLimit(1), "http://two:8000/v1")
    assert len(story.warned) == 1
    assert second.state.value == "in flight"


def test_a_reply_to_one_caller_is_put_behind_no_others_error():
    story, reply = Story(outage_patience_s=0.4), Reply({"error": {"message": "cannot serve: their prompt"}})
    first, theirs, second, impatient = (calls(name, shape())[0] for name in ("first", "theirs", "second", "impatient"))
    (late,) = calls("late", shape(), deadline=10.3)
    story.submit(first) >> Woke() >> answered(first)
    story.at(9.0).submit(theirs) >> Woke()
    story.at(10.0).submit(second) >> Woke() >> failed(second, GONE)
    story.submit(late, impatient)
    story.at(10.2) >> failed(theirs, LOST, error=ServerFault, status=500, reply=reply)
    story.at(10.3) >> Woke()
    story.at(10.4) >> Woke()
    assert story.errors["theirs"].reply == reply
    others = story.errors["late"].__cause__, story.errors["impatient"]
    assert [(type(each), each.status, each.reply) for each in others] == [(ServerFault, 500, None)] * 2


def test_pauses_that_follow_each_other_are_counted_once():
    play = Playbook(limit=8, max_size=8)
    a, b, c, d = calls("a b c d", deadline=33.0)
    (play >> Paused()).submit(a, b, c, d)
    play.at(20.0) >> Resumed() << ["send a b c d"]
    play >> failed(a, LOST, error=ServerFault, status=500, delay=1.0) << []
    play.at(21.0) >> Woke() << ["send a b c d"]
    play >> failed(a, LOST, error=ServerFault, status=500, delay=1.0) << ["send a"]
    # The others wait ten seconds for the end of that one, and then a second to be tried again.
    play.at(31.0) >> failed(a, LOST, delay=1.0) << []
    play.at(32.0) >> Woke() << ["send b c d a"]
    play.at(33.0) >> Woke()
    assert play.errors["b"].message.startswith(
        "the call's timeout_s passed while the server worked on it:"
        " 20 s in the queue, 1 s in 3 attempts, 12 s between attempts"
    )
