"""One call of a new prefix family goes ahead, and the others wait for it: with ``warm_prefixes``, in bulk work."""

import pytest

from batchclient._core.messages import (
    AbortRequested, Cancelled, DrainRequested, FailureKind, Paused, Request, RequestState, Woke,
)  # fmt: skip
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

LONG = shape(max_output_tokens=16)


def sharing(names, of=LONG, deadline=None):
    """Calls whose prompts begin alike where their names do: ``a1`` and ``a2`` are of one family."""
    return [
        Request(
            of, b'"' + name[0].encode() * 300 + name.encode() + b'"', prompt_tokens=80, deadline=deadline, waiter=name
        )
        for name in names.split()
    ]


def warming(limit=64, **settings):
    return Playbook(limit, warm_prefixes=True, **settings)


def test_calls_of_a_family_go_together_as_a_rule():
    play = Playbook(64)
    play.submit(*sharing("a1 a2 a3 b1 b2")) >> Woke() << ["send a1 a2 a3 b1 b2"]


def test_one_call_of_a_family_goes_ahead_and_the_others_wait_for_its_answer():
    play = warming()
    a1, a2, a3, b1, b2, c1 = sharing("a1 a2 a3 b1 b2 c1")
    play.submit(a1, a2, a3, b1, b2, c1) >> Woke() << ["send a1 b1 c1"]
    assert play.queued == 3
    play.at(0.2) >> answered(b1) << ["resolve b1", "send b2"]
    play.at(0.3) >> answered(a1) << ["resolve a1", "send a2 a3"]


def test_calls_with_short_prompts_wait_for_nobody():
    play = warming()
    short = calls("x y", LONG)
    play.submit(*sharing("a1 a2"), *short) >> Woke() << ["send a1 x y"]


def test_a_family_is_led_once():
    play = warming()
    a1, a2 = sharing("a1 a2")
    play.submit(a1, a2) >> Woke() << ["send a1"]
    play >> answered(a1) << ["resolve a1", "send a2"]
    play.at(9.0).submit(*sharing("a3 a4")) >> Woke() << ["send a3 a4"]


def test_nobody_waits_longer_than_a_second():
    play = warming()
    a1, a2, a3 = sharing("a1 a2 a3")
    play.at(5.0).submit(a1, a2, a3) >> Woke() << ["send a1"]
    assert play.wakes_at == 6.0
    play.at(5.9) >> Woke() << []
    play.submit(*sharing("a4")) >> Woke() << []
    play.at(6.0) >> Woke() << ["send a2 a3 a4"]
    assert play.wakes_at is None
    play.at(99.0) >> answered(a1) << ["resolve a1"]


@pytest.mark.parametrize("delay", [None, 5.0])
def test_nobody_waits_for_a_call_that_has_failed(delay):
    play = warming()
    a1, a2, a3 = sharing("a1 a2 a3")
    play.submit(a1, a2, a3) >> Woke() << ["send a1"]
    play.at(0.1) >> failed(a1, FailureKind.REFUSED, delay=delay)
    assert play.seen[-1] == "send a2 a3"


def test_a_call_that_went_ahead_and_was_left_by_its_caller_is_waited_for_no_longer_than_another():
    play = warming()
    a1, a2 = sharing("a1 a2")
    play.submit(a1, a2) >> Woke() << ["send a1"]
    play.at(0.1) >> Cancelled(a1) << ["abort a1"]
    play.at(0.2) >> failed(a1, FailureKind.MAYBE_PROCESSED) << ["send a2"]


def test_who_waited_goes_before_families_that_have_not_begun():
    """Else the prefix might have left the cache again."""
    play = warming(2, max_list=1)
    a1, a2, b1, b2, c1, c2 = sharing("a1 a2 b1 b2 c1 c2")
    play.submit(a1, b1, c1, c2, a2, b2) >> Woke() << ["send a1", "send b1"]
    play.at(0.1) >> answered(a1) << ["resolve a1", "send a2"]
    play.at(0.2) >> answered(b1) << ["resolve b1", "send b2"]
    play.at(0.3) >> answered(a2) << ["resolve a2", "send c1"]


def test_a_call_that_waits_ends_like_any_that_is_queued():
    play = warming()
    a1, a2, a3, a4 = sharing("a1 a2 a3 a4")
    (late,) = sharing("a5", deadline=0.5)
    play.submit(a1, a2, late, a3, a4) >> Woke() << ["send a1"]
    play >> Cancelled(a2) << []
    assert (a2.state, play.queued) == (RequestState.DONE, 3)
    play.at(0.5) >> Woke() << ["reject a5: DeadlineExceeded"]
    play.at(0.6) >> answered(a1) << ["resolve a1", "send a3 a4"]


def test_where_all_who_waited_have_gone_there_is_nothing_to_wake_for():
    play = warming()
    a1, a2 = sharing("a1 a2")
    play.submit(a1, a2) >> Woke() << ["send a1"]
    play >> Cancelled(a2) << []
    assert play.wakes_at is None


def test_those_who_wait_are_drained_and_aborted_like_others():
    play = warming()
    a1, a2, a3 = sharing("a1 a2 a3")
    play.submit(a1, a2, a3) >> Woke() << ["send a1"]
    play >> DrainRequested() << []
    play.at(0.1) >> answered(a1) << ["resolve a1", "send a2 a3"]
    play >> answered(a2, a3) << ["resolve a2 a3", "drained"]
    play = warming()
    b1, b2, b3 = sharing("b1 b2 b3")
    play.submit(b1, b2, b3) >> Woke() << ["send b1"]
    play >> AbortRequested() << ["abort b1", "reject b1 b2 b3: CallAborted"]


def test_those_who_came_back_end_once():
    play = warming(1, max_list=1)
    a1, a2, a3, b1 = sharing("a1 a2 a3 b1")
    play.submit(a1, a2, a3) >> Woke() << ["send a1"]
    play.at(0.1).submit(b1) >> answered(a1) << ["resolve a1", "send a2"]
    play >> AbortRequested()
    assert dict(play.ends) == {"a1": 1, "a2": 1, "a3": 1, "b1": 1}


def test_calls_with_other_parameters_lead_and_wait_too():
    play, other = warming(), shape(max_output_tokens=16)
    a1, a2 = sharing("a1 a2")
    b1, b2 = sharing("a3 a4", other)
    play.submit(a1, a2, b1, b2) >> Woke() << ["send a1"]
    play.at(0.1) >> answered(a1) << ["resolve a1", "send a2", "send a3 a4"]


@pytest.mark.parametrize("off", [{"group_prefixes": False}, {"order": "deadline"}, {"length_reach": 1}])
def test_where_prefixes_are_not_looked_at_nobody_goes_ahead(off):
    play = warming(**off)
    play.submit(*sharing("a1 a2 a3")) >> Woke() << ["send a1 a2 a3"]


def test_what_waits_for_company_is_not_held_twice():
    """A step that passes a thousand calls over looks at each once."""
    play = warming(8, max_list=4)
    crowd = sharing(" ".join(f"a{number}" for number in range(1000)))
    play.submit(*crowd) >> Woke() << ["send a0"]
    play.at(0.5) >> answered(crowd[0])
    assert play.seen[1:] == ["send a1 a2 a3 a4", "send a5 a6 a7 a8"]


def test_where_all_that_is_taken_waits_nothing_is_sent():
    play = warming()
    (timed,) = calls("timed", deadline=100.0)
    play.submit(timed) >> Woke() << ["send timed"]
    play.at(0.1) >> answered(timed) << ["resolve timed"]
    assert play.scheduler._times.known
    a1, a2 = sharing("a1 a2")
    play.at(0.2).submit(a1, a2) >> Woke() << ["send a1"]
    a3, a4 = sharing("a3 a4", deadline=50.0)
    play.at(0.3).submit(a3, a4) >> Woke() << []
    play.at(0.4) >> answered(a1) << ["resolve a1", "send a2 a3 a4"]


HEADER = b'"' + b"x" * 300


def under_a_header(names):
    """Calls that share a header, and more where their names begin alike; each is long beyond that."""
    return [
        Request(LONG, HEADER + name[0].encode() * 300 + name.encode() * 300, prompt_tokens=300, waiter=name)
        for name in names.split()
    ]


def test_who_waited_goes_before_others_of_a_wider_family():
    """They share a header, whose run would go on."""
    play = warming(2, max_list=1)
    a1, a2, b1, b2, c1, c2, d1, d2 = under_a_header("a1 a2 b1 b2 c1 c2 d1 d2")
    play.submit(a1, b1, b2, c1, c2, d1, d2, a2) >> Woke() << ["send a1", "send b1"]
    play.at(0.1) >> answered(b1) << ["resolve b1", "send b2"]
    play.at(0.2) >> answered(b2) << ["resolve b2", "send c1"]
    play.at(0.3) >> answered(a1) << ["resolve a1", "send a2"]


def test_who_waited_has_the_place_of_when_it_came():
    play = warming(2, max_list=1)
    a1, a2, b1, c1 = sharing("a1 a2 b1 c1")
    (short,) = calls("short", shape(max_output_tokens=16))
    play.submit(a1, a2, b1) >> Woke() << ["send a1", "send b1"]
    play.submit(short, c1) >> Woke() << []
    play.at(0.1) >> answered(a1) << ["resolve a1", "send a2"]
    play.at(0.2) >> answered(a2) << ["resolve a2", "send short"]


def test_who_came_back_is_there_once():
    play = warming(2, max_list=1)
    (z1,), (short,) = sharing("z1"), calls("short", shape(max_output_tokens=16))
    h1, a1, a2, b1 = under_a_header("h1 a1 a2 b1")
    play.submit(short, h1, z1) >> Woke() << ["send short", "send h1"]
    play.at(0.1).submit(a1, a2, b1) >> Woke() << []
    play.at(0.2) >> answered(h1) << ["resolve h1", "send a1"]
    play.at(0.3) >> answered(short) << ["resolve short", "send b1"]
    play >> Paused() << []
    play.at(0.4) >> answered(a1) << ["resolve a1"]
    play >> AbortRequested() << ["abort b1", "reject b1 z1 a2: CallAborted"]
