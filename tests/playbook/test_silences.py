"""A lone server that accepts requests and says nothing: the log, the errors and the statistics say so, and nothing else changes."""

import pytest

from tests.core import EndpointAdded, FailureKind, FixedLimit, LoadReported, Paused, ServerLoad, Woke
from batchclient.errors import DeadlineExceeded, ReadTimedOut
from tests.playbook.playbook import answered, calls, failed, shape
from tests.playbook.test_spent import URL, Story

LOST = FailureKind.MAYBE_PROCESSED
BEGAN = f"a silence of {URL} has begun: 3 requests ended without an answer; nothing has come for 6 s"


def frozen(count=3, *, until=16.0, **settings):
    """A server that answered at 1.0, and took ``count`` requests at 10.0 whose calls have time until 16.0."""
    story = Story(**{"limit": 8, "max_size": 1} | settings)
    (first,) = calls("first")
    story.submit(first) >> Woke()
    story.at(1.0) >> answered(first)
    everyone = calls(count, deadline=until)
    story.at(10.0).submit(*everyone) >> Woke()
    assert story.in_flight == count
    return story, everyone


def end(story, everyone):
    """The requests of calls that have ended are aborted."""
    for call in everyone:
        story >> failed(call, FailureKind.REFUSED)


def test_three_requests_that_end_unanswered_are_a_silence_and_the_log_the_errors_and_the_statistics_say_so():
    story, _ = frozen()
    story.at(15.9) >> Woke()
    assert (story.warned, story.endpoints[0].silent_since) == ([], None)
    story.at(16.0) >> Woke()
    assert story.warned == [BEGAN]
    assert story.states == [(16.0, "silent")]
    assert (story.endpoints[0].silent_since, story.endpoints[0].state) == (10.0, "healthy")
    error = story.errors["c0"]
    assert isinstance(error, DeadlineExceeded)
    assert error.message == (
        f"the call's timeout_s passed while nothing came from {URL} for 6 s: 0 s in the queue, 6 s in 1 attempt"
    )
    assert repr(story.scheduler) == (f"<Scheduler: 0 queued, 0 waiting, 3 in flight; nothing came from {URL} for 6 s>")


def test_it_is_told_once_until_the_server_answers_again_and_then_its_end_is_told():
    story, everyone = frozen()
    story.at(16.0) >> Woke()
    end(story, everyone)
    more = calls("a b c d", deadline=22.0)
    story.submit(*more) >> Woke()
    story.at(22.0) >> Woke()
    assert len(story.warned) == 1
    assert "nothing came from http://one:8000/v1 for 12 s" in story.errors["a"].message
    end(story, more)
    (back,) = calls("back")
    story.at(23.0).submit(back) >> Woke()
    story.at(24.5) >> answered(back)
    assert story.warned[1:] == [f"a silence of {URL} ended after 14.5 s: 7 requests ended without an answer"]
    assert story.states[1:] == [(24.5, "healthy")]
    assert story.endpoints[0].silent_since is None


def test_two_requests_are_no_silence_and_the_error_says_that_the_server_worked():
    story, _ = frozen(2)
    story.at(16.0) >> Woke()
    assert (story.warned, story.endpoints[0].silent_since) == ([], None)
    assert story.errors["c0"].message == (
        "the call's timeout_s passed while the server worked on it: 0 s in the queue, 6 s in 1 attempt"
    )


def test_less_than_five_seconds_are_no_silence():
    story, _ = frozen(until=14.9)
    story.at(14.9) >> Woke()
    assert story.warned == []


def test_plain_requests_that_take_long_are_no_silence_as_long_as_nobody_gives_them_up():
    story, everyone = frozen(until=None)
    story.at(500.0) >> Woke()
    assert (story.warned, story.endpoints[0].silent_since) == ([], None)
    story >> answered(everyone[0])
    assert story.warned == []


def test_an_answer_in_between_begins_the_count_anew():
    story, everyone = frozen(4, until=None)
    late = calls("a b c", shape(), deadline=17.0)
    story.submit(*late) >> Woke()
    story.at(12.1) >> answered(everyone[0])
    # 4.9 s after the answer.
    story.at(17.0) >> Woke()
    assert story.warned == []
    end(story, late)
    others = calls("d", shape(), deadline=17.5)
    story.submit(*others) >> Woke()
    story.at(17.5) >> Woke()
    # What came last came at 12.1, before all of it.
    assert story.endpoints[0].silent_since == 12.1


@pytest.mark.parametrize("what", ["a reply's head", "a page", "a refusal"])
def test_whatever_comes_is_no_silence(what):
    story, _ = frozen()
    (other,) = calls("other", shape())
    story.submit(other) >> Woke()
    story.at(15.0)
    if what == "a reply's head":
        other.batch.wire.replied, other.batch.wire.read_at = True, 15.0
    elif what == "a page":
        story >> LoadReported(0, ServerLoad(running=4, waiting=0))
    else:
        story >> failed(other, FailureKind.REJECTED, status=429)
    story.at(16.0) >> Woke()
    assert story.warned == []


def test_a_page_ends_a_silence():
    story, _ = frozen()
    story.at(16.0) >> Woke()
    story.at(18.0) >> LoadReported(0, ServerLoad(running=4, waiting=0))
    assert story.warned[1:] == [f"a silence of {URL} ended after 8 s: 3 requests ended without an answer"]


def test_a_reply_that_stopped_before_the_silence_does_not_end_it():
    story, _ = frozen()
    (stuck,) = calls("stuck", shape(), deadline=16.5)
    story.submit(stuck) >> Woke()
    stuck.batch.wire.replied, stuck.batch.wire.read_at = True, 10.25
    story.at(16.0) >> Woke()
    assert story.endpoints[0].silent_since == 10.25
    batch_of = stuck.batch
    story.at(16.5) >> Woke()
    assert "while the server worked on it" in story.errors["stuck"].message
    assert batch_of.aborting
    story >> failed(stuck, FailureKind.REFUSED)
    assert (len(story.warned), story.endpoints[0].silent_since) == (1, 10.25)


def test_requests_that_end_by_the_read_timeout_count_as_well():
    story, everyone = frozen(until=None)
    story.at(16.0)
    for call in everyone:
        story >> failed(call, LOST, error=ReadTimedOut)
    assert story.warned == [BEGAN]
    assert story.endpoints[0].silent_since == 10.0


def test_a_queued_call_is_told_of_the_silence_and_not_to_give_more_time():
    story, _ = frozen(limit=3)
    (queued,) = calls("queued", shape(), deadline=17.0)
    story.submit(queued) >> Woke()
    story.at(16.0) >> Woke()
    story.at(17.0) >> Woke()
    assert story.errors["queued"].message == (
        f"the call's timeout_s passed in the queue, and nothing came from {URL} for 7 s: 7 s in the queue"
    )


def test_what_holds_a_queued_call_back_is_said_before_a_silence():
    story, _ = frozen(limit=3)
    (queued,) = calls("queued", shape(), deadline=17.0)
    story.submit(queued) >> Woke()
    story.at(16.0) >> Woke()
    story >> Paused()
    story.at(17.0) >> Woke()
    assert story.errors["queued"].message == (
        "the call's timeout_s passed in the queue, where pause() held it back: 7 s in the queue"
    )


def test_beside_another_server_in_use_a_silent_server_is_ejected_and_its_outage_is_told_alone():
    story, everyone = frozen()
    story >> EndpointAdded(1, FixedLimit(8), "http://two:8000/v1")
    story.at(16.0) >> Woke()
    end(story, everyone)
    assert story.endpoints[0].state == "ejected"
    assert story.endpoints[0].silent_since is None
    assert [one.partition(":")[0] for one in story.warned] == ["an outage of http"]


def test_a_silent_server_that_vanishes_has_an_outage_and_no_silence():
    story, everyone = frozen()
    story.at(16.0) >> Woke()
    end(story, everyone)
    (gone,) = calls("gone", shape())
    story.at(17.0).submit(gone) >> Woke() >> failed(gone, FailureKind.NOT_SENT)
    assert story.endpoints[0].silent_since is None
    assert len(story.warned) == 2
    assert story.warned[1].startswith(f"an outage of {URL} has begun: ")


def test_a_server_that_falls_silent_again_and_again_is_told_once_a_minute():
    story, everyone = frozen()
    story.at(16.0) >> Woke()
    end(story, everyone)
    for began in (20.0, 50.0, 80.0):
        (back,) = calls("back%d" % began, shape())
        story.at(began).submit(back) >> Woke() >> answered(back)
        more = [calls(f"{began}-{number}", shape(), deadline=began + 6.0)[0] for number in range(3)]
        story.submit(*more) >> Woke()
        story.at(began + 6.0) >> Woke()
        assert story.endpoints[0].silent_since == began
        end(story, more)
    # Told at 16, with its end at 20; not at 26 and 56; told again at 86.
    assert [one.partition(URL)[2][:10] for one in story.warned] == [" has begun", " ended aft", " has begun"]


def test_nothing_but_words_depends_on_a_silence():
    story, everyone = frozen(limit=4)
    story.at(16.0) >> Woke()
    end(story, everyone)
    (a,), (b,) = calls("a", shape()), calls("b", shape())
    story.submit(a, b) >> Woke() << ["send a", "send b"]
    assert story.endpoints[0].limit == 4
