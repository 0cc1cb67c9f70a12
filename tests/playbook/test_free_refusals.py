"""Refusals for load: free while the server takes other work, and what the server is sent then."""

import pytest

from batchclient._core.messages import FailureKind, Woke
from batchclient.errors import ConnectionLost, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

REJECTED, LOST = FailureKind.REJECTED, FailureKind.MAYBE_PROCESSED
SINGLE = shape(alone_reason="so that it is no part of a list")


def refused(request, *, status=429, delay=60.0, **fields):
    """A policy's pause of a minute: whoever is sent earlier was refused for free."""
    return failed(request, REJECTED, delay=delay, status=status, error=ServerFault if status == 503 else None, **fields)


def busy(*names, limit=8, **settings):
    """A server that has answered a call at 1.0, and has those of these names since."""
    play = Playbook(limit=limit, **settings)
    first, *rest = calls(" ".join(("first", *names)), SINGLE)
    play.submit(first, *rest) >> Woke()
    play.at(1.0) >> answered(first, tokens=16) << ["resolve first"]
    return play, rest


# What is free -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answered_at", "sent_at", "refused_at", "status", "free"),
    [
        # The server has answered in the last 10 s.
        (1.0, 10.0, 11.0, 429, True),
        (1.0, 10.0, 11.1, 429, False),
        # The server has held ``held`` since 0.0, ten times as long as the refusal took.
        (None, 9.0, 10.0, 429, True),
        (None, 9.0, 10.1, 429, False),
        # A 503 after more than 5 s may be the end of some work.
        (10.0, 10.0, 15.0, 503, True),
        (10.0, 10.0, 15.1, 503, False),
        (10.0, 10.0, 15.1, 429, True),
    ],
)
def test_a_refusal_is_free_while_the_server_takes_other_work(answered_at, sent_at, refused_at, status, free):
    play = Playbook(limit=8)
    one, held, it = calls("one held it", SINGLE)
    if answered_at is None:
        play.submit(held) >> Woke()
    else:
        play.submit(one) >> Woke()
        play.at(answered_at) >> answered(one)
    play.at(sent_at).submit(it) >> Woke() << ["send it"]
    before = play.endpoints[0].retry_budget_tokens
    play.at(refused_at) >> refused(it, status=status, silent_s=refused_at - sent_at)
    # An attempt waits for the policy's pause. What is free waits in the queue for an answer, and then has no failure.
    assert (play.backing_off, play.queued) == ((0, 1) if free else (1, 0))
    if not free and answered_at is not None:
        play.at(refused_at + 60.0) >> Woke() << ["send it"]
        assert play.last.failures == 1
        assert play.endpoints[0].retry_budget_tokens < before, "a failed attempt is paid for"


def test_what_was_refused_before_anything_was_held_is_judged_once_more_after_its_pause():
    play = Playbook(limit=8)
    held, it, lost = calls("held it lost", SINGLE)
    play.submit(held, it, lost) >> Woke()
    play >> refused(it, delay=0.5) << []
    play >> failed(lost, LOST, delay=0.5) << []
    play.at(0.5) >> Woke() << ["send it", "send lost"]
    assert [batch.failures for batch in play.sent[-2:]] == [0, 1]


def test_from_a_calls_twentieth_refusal_on_each_is_an_attempt():
    play, (held,) = busy("held")
    (it,) = calls("it", SINGLE)
    play.submit(it) >> Woke() << ["send it"]
    for count in range(1, 22):
        play >> answered(held) << [f"resolve {held.waiter}"]
        (held,) = calls(f"held{count}", SINGLE)
        play.at(play.now + 9.0).submit(held) >> Woke()
        play >> refused(it, delay=0.0)
        assert (it.batch.failures if it.batch is not None else 0) == max(0, count - 19)
        if it.batch is None:
            play.at(play.now + 1.0) >> Woke()
    assert play.failed == 0


def test_none_of_the_policys_ends_the_call_and_real_failures_alone_count():
    play, (held, it, other) = busy("held", "it", "other")
    play >> failed(other, LOST, delay=0.0, error=ConnectionLost) << ["send other"]
    play >> refused(it, delay=None) << ["reject it: RateLimited"]
    play >> refused(other) << []
    play.at(2.0) >> answered(held) << ["resolve held", "send other"]
    # The shell asks the policy with the count of these and this one.
    assert play.last.failures == 1


def test_what_is_free_neither_pays_into_the_retry_budget_nor_takes_from_it():
    play, (held, *others) = busy("held", *(f"c{number}" for number in range(5)))
    # Two attempts, so that the budget is not full.
    for _ in range(2):
        play >> failed(held, LOST, delay=0.0) << ["send held"]
    before = play.endpoints[0].retry_budget_tokens
    for other in others:
        play >> refused(other) << []
    assert play.endpoints[0].retry_budget_tokens == before - 17
    play >> answered(held, tokens=16)
    for _ in others:
        play >> answered(*play.last.requests, tokens=16)
    # The held call was a retry: its answer is paid back.
    assert play.endpoints[0].retry_budget_tokens == before + 17


def test_for_health_a_free_503_is_life():
    play, (held, *others) = busy("held", *(f"c{number}" for number in range(7)), limit=[8, 8])
    for other in others:
        if other.batch.endpoint == held.batch.endpoint:
            play >> refused(other, status=503)
    assert [endpoint.state for endpoint in play.endpoints] == ["healthy", "healthy"]
    assert all(not endpoint.reason for endpoint in play.endpoints)


# What is sent then --------------------------------------------------------------------------------------------------


def test_while_refusals_are_free_one_request_is_sent_for_each_that_ended_with_an_answer():
    play, (a, b, c) = busy("a", "b", "c")
    play >> refused(c) << []
    fresh = calls("x y z", SINGLE)
    play.submit(*fresh) >> Woke() << []
    play.at(1.1) >> answered(a) << ["resolve a", "send c"]
    # A request that ends without an answer makes no room.
    play >> failed(b, LOST, delay=60.0) << []
    play.at(1.2) >> answered(c) << ["resolve c", "send x"]
    play >> refused(fresh[0]) << []
    assert play.wakes_at == 1.2 + 0.1


def test_a_request_goes_too_where_a_list_has_kept_less_than_three_quarters_of_what_the_server_held():
    play = Playbook(limit=8)
    (first,) = calls("first", SINGLE)
    several, (it, other) = calls("a b c d"), calls("it other", SINGLE)
    play.submit(first) >> Woke()
    play.at(1.0) >> answered(first)
    play.submit(*several) >> Woke() << ["send a b c d"]
    play.submit(it, other) >> Woke() << ["send it", "send other"]
    play >> refused(it) << []
    # Five are held by two requests: d and c are answered while their list goes on.
    play.at(1.1) >> answered(several[3]) << ["resolve d"]
    play.at(1.1) >> answered(several[2]) << ["resolve c", "send it"]


def test_a_spell_ends_by_time_and_lasts_twice_as_long_if_the_next_refusal_comes_soon():
    play, (a, b, c, d) = busy("a", "b", "c", "d")
    for spell_s in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0):
        play >> refused(d) << []
        assert play.wakes_at == pytest.approx(play.now + spell_s)
        play.at(play.wakes_at) >> Woke() << ["send d"]
    play.at(play.now + 16.1) >> answered(a) >> refused(d) << []
    assert play.wakes_at == pytest.approx(play.now + 0.25)


def test_a_spell_ends_early_once_32_were_answered_for_each_that_was_refused():
    play, (held, it) = busy("held", "it", limit=64)
    play >> refused(it) << []
    more = calls(64, SINGLE)
    play.submit(*more) >> Woke() << []
    play >> answered(held) << ["resolve held", "send it"]
    for _ in range(30):
        play >> answered(play.last.requests[0])
        assert play.in_flight == 1
    play >> answered(play.last.requests[0])
    assert play.in_flight == 34


def test_a_spell_after_a_retry_after_lasts_ten_times_as_long_and_begins_with_the_rest():
    play, (a, b, c) = busy("a", "b", "c")
    play >> refused(c, retry_after_s=2.0) << []
    play.at(2.0) >> answered(a) << ["resolve a"]
    play.at(3.0) >> Woke() << ["send c"]
    (fresh,) = calls("fresh", SINGLE)
    play.submit(fresh) >> Woke() << []
    assert play.wakes_at == 21.0
    play.at(21.0) >> Woke() << ["send fresh"]


def test_after_a_rest_one_is_sent_though_another_is_still_under_way():
    play, (long, c) = busy("long", "c")
    play >> refused(c, retry_after_s=2.0) << []
    play.at(3.0) >> Woke() << ["send c"]


def test_a_server_that_refused_all_at_once_is_filled_again_up_to_half():
    play, (held, *others) = busy("held", *(f"c{number}" for number in range(7)), limit=9)
    for other in reversed(others):
        play >> refused(other, retry_after_s=2.0) << []
    play.at(3.0) >> Woke() << ["send c0"]
    play.at(3.1) >> answered(others[0]) << ["resolve c0", "send c1", "send c2"]
    play.at(3.2) >> answered(others[1]) << ["resolve c1", "send c3", "send c4"]
    play >> answered(others[2]) << ["resolve c2", "send c5"]


def test_a_call_with_less_time_than_the_rest_fails_at_once():
    play = Playbook(limit=8)
    first, _held = calls("first held", SINGLE)
    (late,) = calls("late", SINGLE, deadline=11.0)
    play.submit(first, _held, late) >> Woke()
    play.at(1.0) >> answered(first) << ["resolve first"]
    play >> refused(late, retry_after_s=30.0) << ["reject late: RateLimited"]


def test_a_server_that_refuses_all_from_now_on_is_asked_as_the_policy_says():
    play, (it,) = busy("it")
    play >> refused(it) << []
    play.at(1.2) >> Woke() << ["send it"]
    # Nothing was answered for ten seconds: these are attempts, and no pause of the client's own comes on top.
    for at in (12.0, 12.5, 13.0, 13.5, 14.0):
        play.at(at) >> refused(it, delay=0.5) << []
        play.at(at + 0.5) >> Woke() << ["send it"]


def test_who_left_and_who_is_to_blame_give_their_places_back():
    for end in (FailureKind.REFUSED, FailureKind.BAD_CALL):
        play, (a, _held, c) = busy("a", "held", "c")
        play >> refused(c) << []
        play.at(1.1) >> failed(a, end, status=400)
        assert play.seen[-1] == "send c"


@pytest.mark.parametrize(("jitter", "shares"), [(0.0, 1.0), (1.0, 0.5)])
def test_with_none_under_way_one_is_sent_after_a_pause_that_doubles_up_to_two_seconds(jitter, shares):
    play, (it,) = busy("it")
    play >> refused(it, jitter=jitter) << []
    play.submit(*calls("x y", SINGLE)) >> Woke() << []
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
        at = play.now + shares * pause_s
        play.at(at - 0.001) >> Woke() << []
        play.at(at + 0.001) >> Woke() << ["send it"]
        play >> refused(it, jitter=jitter) << []
    # An answer begins anew.
    play.at(play.now + shares * 2.0 + 0.001) >> Woke() << ["send it"]
    play >> answered(it) << ["resolve it", "send x"]
    play >> refused(play.last.requests[0], jitter=jitter) << []
    assert play.wakes_at == pytest.approx(play.now + shares * 0.1)


def test_a_pause_never_ends_before_the_rest_that_the_server_asked_for():
    play, (it,) = busy("it")
    play >> refused(it, retry_after_s=3.0) << []
    play.at(3.9) >> Woke() << []
    play.at(4.0) >> Woke() << ["send it"]


def test_a_long_list_that_is_refused_for_free_goes_in_halves_and_one_that_stands_alone_is_too_long():
    play, (held,) = busy("held", limit=64, max_size=64)
    listed = calls(16)
    play.submit(*listed) >> Woke()
    play >> refused(listed[0], status=503) << []
    play.at(1.1) >> answered(held) << ["resolve held", "send c0 c1 c2 c3 c4 c5 c6 c7"]
    # Refused for the second time with nothing else in flight: no list is as long for a while.
    play >> refused(listed[0], status=503) << []
    assert play.endpoints[0].batch_size_cap == 4
