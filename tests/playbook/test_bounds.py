"""What the limit is told of failures that are about load: what a gateway cuts off, and refusals that name a time."""

import pytest

from tests.core import (
    Cancelled,
    FailureKind,
    FixedLimit,
    Limit,
    Outcome,
    Woke,
)
from batchclient.errors import ReadTimedOut, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

LOST, REJECTED = FailureKind.MAYBE_PROCESSED, FailureKind.REJECTED


class Told(Limit):
    """A limit that never moves and remembers what it is told."""

    __slots__ = ("samples",)

    def __init__(self, limit):
        super().__init__(limit)
        self.samples = []

    def on_sample(self, sample):
        self.samples.append(sample)


def told(limit):
    return [(sample.sequences, sample.outcome) for sample in limit.samples]


# What a gateway cuts off --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        ({"silent_s": 25.0}, Outcome.CUT_OFF),
        ({"silent_s": 25.0, "status": 502, "error": ServerFault}, Outcome.CUT_OFF),
        ({"silent_s": 25.0, "status": 504, "error": ServerFault}, Outcome.CUT_OFF),
        ({"silent_s": 20.0}, Outcome.IGNORED),
        ({"silent_s": 20.0, "status": 504, "error": ServerFault}, Outcome.IGNORED),
        ({"silent_s": 25.0, "status": 500, "error": ServerFault}, Outcome.IGNORED),
        ({"silent_s": 600.0, "error": ReadTimedOut}, Outcome.IGNORED),
    ],
)
def test_a_call_that_a_gateway_cuts_off_after_a_long_silence_is_late(failure, outcome):
    limit = Told(4)
    play = Playbook(limit=limit)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play.at(60.0) >> failed(a, LOST, delay=1.0, **failure) << []
    (sample,) = limit.samples
    assert (sample.outcome, sample.sequences) == (outcome, 1)
    assert (sample.sent_at, sample.now) == (0.0, 60.0)
    # It is tried again as after any other break.
    play.at(61.0) >> Woke() << ["send a"]


def test_of_a_list_that_is_cut_off_each_call_is_told_once():
    limit = Told(4)
    play = Playbook(limit=limit)
    a, b, c = calls("a b c")
    c.deadline = 20.0
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play.at(1.0) >> answered(a) << ["resolve a"]
    play.at(20.0) >> Woke() << ["reject c: DeadlineExceeded"]
    play.at(31.0) >> failed(b, LOST, silent_s=30.0) << ["reject b: ConnectionLost"]
    assert told(limit) == [
        (1, Outcome.SUCCESS),
        (1, Outcome.CUT_OFF),
        # Nobody waited for the third any more when the gateway closed the connection.
        (1, Outcome.LATE),
    ]


# Refusals that name a time ------------------------------------------------------------------------------------------


def play_twenty(*, known=True, at=0.0):
    """Twenty calls in flight from some time on, each in a request of its own; the last of them met the highest load. If it
    is known, the server has answered another call at 0.0."""
    play = Playbook(limit=[Limit(20)], max_size=1)
    (one,), twenty = calls("one"), calls(20)
    if known:
        play.submit(one) >> Woke() >> answered(one)
    play.at(at).submit(*twenty) >> Woke() << [f"send c{number}" for number in range(20)]
    return play, twenty


def refused(request, **fields):
    return failed(request, REJECTED, delay=2.0, status=429, **fields)


def lowered(play):
    """Whether a refusal has lowered the limit, once."""
    changes = [(change.old, change.reason) for change in play.adjustments]
    return changes == [(20, "the server refused work")] and play.endpoints[0].limit < 20


def test_three_refusals_in_a_row_that_name_no_time_lower_the_limit_at_once():
    play, (*_, first, second, third) = play_twenty()
    # One or two beside those that the server took say nothing of load.
    play.at(1.0) >> refused(first) >> refused(second) << []
    assert not play.adjustments
    play >> refused(third) << []
    assert lowered(play)


def test_before_any_answer_refusals_in_a_row_tell_the_limit_nothing():
    # Nobody knows yet whether load is the reason: the model may be refused always.
    play, twenty = play_twenty(known=False)
    for each in twenty[10:]:
        play.at(1.0) >> refused(each)
    assert not play.adjustments


@pytest.mark.parametrize("at", [0.0, 20.0], ids=["just after an answer", "long after the last answer"])
def test_refusals_beside_which_others_are_taken_tell_the_limit_nothing(at):
    play, twenty = play_twenty(at=at)
    for each in twenty[1::2]:
        play.at(at + 1.0) >> refused(each) << []
    assert not play.adjustments


def test_a_call_that_is_refused_with_nothing_beside_it_tells_the_limit_nothing():
    play = Playbook([Limit(20)])
    first, *refused_ones = calls("first one two three", shape(alone_reason="so that it is no part of a list"))
    play.submit(first) >> Woke() >> answered(first)
    for number, each in enumerate(refused_ones):
        # Long after the answer, so that the calls are not refused alone.
        play.at(20.0 + 10 * number).submit(each) >> Woke() << [f"send {each.waiter}"]
        play >> refused(each) >> Cancelled(each)
    assert not play.adjustments


def test_a_refusal_that_names_a_time_lowers_the_limit_only_if_it_comes_again_after_that_time():
    play, (*_, a, b, c, before) = play_twenty()
    for each in (a, b, c):
        play.at(1.0) >> refused(each, retry_after_s=2.0) << []
    assert not play.adjustments
    # This one was sent before anybody had named a time; it names one that ends later.
    play.at(1.5) >> refused(before, retry_after_s=2.0) << []
    assert not play.adjustments
    play.at(3.4) >> Woke() << []
    play.at(3.5) >> Woke() << ["send c16"]
    play.at(3.75) >> Woke() << ["send c17", "send c18", "send c19"]
    assert play.endpoints[0].limit == 20
    for each in (a, b, c):
        play.at(4.0) >> refused(each, retry_after_s=2.0) << []
    assert lowered(play)


def test_a_refusal_that_does_not_come_again_after_the_time_leaves_the_limit_alone():
    play, twenty = play_twenty()
    play.at(1.0) >> refused(twenty[-1], retry_after_s=2.0) << []
    play.at(3.1) >> Woke() << ["send c19"]
    for each in twenty:
        play.at(play.now + 1.0) >> answered(each) << [f"resolve {each.waiter}"]
    assert play.endpoints[0].limit == 20
    assert not play.adjustments
