"""401, 403, 404 for a model that was answered: calls of maps wait and find out one by one; a firewall's 403 is its prompt's alone."""

import heapq
from itertools import pairwise

import pytest

from tests.core import FailureKind, Reject, Resolve, SendBatch, Submitted, Woke
from batchclient.errors import AuthenticationFailed, NotFound
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


def refused(request, status=404, **fields):
    error = NotFound if status == 404 else AuthenticationFailed
    return failed(request, FailureKind.REFUSED, error=error, status=status, **fields)


def rows(play, *requests):
    for request in requests:
        play >> Submitted(request, may_wait=True) << []


def amid_a_job(names, *, status=404, may_wait=True, **settings):
    """A job of which ``a`` is answered at 1.0; its next three calls were refused, each within 10 ms, by 1.03."""
    play = Playbook(limit=1, max_size=1, **{"waits_out_refusals": True, "outage_patience_s": 4.0} | settings)
    everyone = calls(names)
    for call in everyone:
        play >> Submitted(call, may_wait=may_wait) << []
    a, b, c, d, *_ = everyone
    play >> Woke() << ["send a"]
    play.at(1.0) >> answered(a) << ["resolve a", "send b"]
    for at, call in ((1.01, b), (1.02, c), (1.03, d)):
        play.at(at) >> refused(call, status)
    return play, everyone


@pytest.mark.parametrize("status", [401, 403, 404])
def test_rows_wait_for_a_model_that_was_answered_and_one_at_a_time_finds_out_at_growing_pauses(status):
    play, (a, b, c, d, e, f, g) = amid_a_job("a b c d e f g", status=status)
    # The first refusal was at 1.01, and two more might have been their calls' own.
    play << []
    play.at(1.53) >> Woke() << ["send e"]
    play.at(1.54) >> refused(e, status) << []
    play.at(2.04) >> Woke() << ["send f"]
    play.at(2.05) >> refused(f, status) << []
    assert play.endpoints[0].outage.startswith("an outage of endpoint 0 has lasted 1 s: ")
    # Half as long as it has lasted.
    play.at(2.57) >> Woke() << ["send g"]
    play.at(2.67) >> answered(g) << ["resolve g", "send b"]
    assert (play.endpoints[0].outage, play.failed) == ("", 0)
    for at, call, next_one in ((2.77, b, "c"), (2.87, c, "d"), (2.97, d, "e"), (3.07, e, "f")):
        play.at(at) >> answered(call) << [f"resolve {call.waiter}", f"send {next_one}"]
    play.at(3.17) >> answered(f) << ["resolve f"]
    assert (play.succeeded, play.failed, play.retries) == (7, 0, 5)


def test_rows_find_out_after_half_as_long_as_the_refusals_last_and_after_eight_seconds_at_most():
    play, _ = amid_a_job("a b c d e f g", outage_patience_s=60.0)
    found_out = [1.03]
    while play.now < 50.0:
        play.at(play.wakes_at) >> Woke()
        if play.in_flight:
            found_out.append(play.now)
            play >> refused(play.last.requests[0])
    pauses = [later - earlier for earlier, later in pairwise(found_out)]
    assert pauses[:5] == pytest.approx([0.5, 0.5, 0.51, 0.765, 1.147], abs=0.001)
    assert pauses[8:12] == pytest.approx([5.809, 8.0, 8.0, 8.0], abs=0.001)


def test_an_older_calls_answer_after_the_first_refusal_hides_no_outage():
    play = Playbook(limit=2, max_size=1, waits_out_refusals=True, outage_patience_s=4.0)
    a, old, b, c, d, e = calls("a old b c d e")
    rows(play, a, old, b, c, d, e)
    play >> Woke() << ["send a", "send old"]
    play.at(1.0) >> answered(a) << ["resolve a", "send b"]
    for at, call in ((1.01, b), (1.02, c)):
        play.at(at) >> refused(call)
    play.at(1.025) >> answered(old) << ["resolve old", "send e"]
    for at, call in ((1.03, d), (1.04, e)):
        play.at(at) >> refused(call)
    while not play.endpoints[0].outage and play.now < 3.0:
        play.at(play.wakes_at) >> Woke()
        if play.seen and play.seen[0].startswith("send"):
            play >> refused(play.last.requests[0])
    assert play.endpoints[0].outage.startswith("an outage of endpoint 0 ")


def test_after_the_patience_all_that_wait_fail_and_those_not_sent_may_be_tried_again():
    play, everyone = amid_a_job("a b c d e f g h i j k l")
    while play.failed == 0:
        play.at(play.wakes_at) >> Woke()
        if play.last.requests[0].batch is play.last:
            play.at(play.now + 0.01) >> refused(play.last.requests[0])
    # At 1.01 + 4.0, by a call that found out once more.
    assert (round(play.now, 2), play.failed) == (5.02, 11)
    assert len(play.sent) == 1 + 3 + 6
    unsent = [name for name, error in play.errors.items() if error.attempt == 0]
    assert unsent == ["k", "l"]
    assert all(error.retryable for error in play.errors.values())
    assert "no (said to another call for the same model, 4 s after the first refusal; this one" in str(play.errors["l"])
    assert str(play.errors["b"]) == "no"


@pytest.mark.parametrize("settings", [{"may_wait": False}, {"waits_out_refusals": False}], ids=["calls", "of mocks"])
def test_other_calls_and_rows_of_mocks_and_of_given_clients_fail_at_once_as_ever(settings):
    settings = {"may_wait": True, "waits_out_refusals": True} | settings
    play = Playbook(limit=1, max_size=1, waits_out_refusals=settings["waits_out_refusals"])
    a, b, c, d, e = calls("a b c d e")
    for call in (a, b, c, d, e):
        play >> Submitted(call, settings["may_wait"]) << []
    play >> Woke() << ["send a"]
    play.at(1.0) >> answered(a) << ["resolve a", "send b"]
    play.at(1.01) >> refused(b) << ["reject b: NotFound", "send c"]
    play.at(1.02) >> refused(c) << ["reject c: NotFound", "reject d e: NotFound"]
    assert play.endpoints[0].outage == ""
    assert not play.errors["d"].retryable


def test_a_call_beside_waiting_rows_is_sent_and_fails_at_once():
    play, _ = amid_a_job("a b c d e f")
    (x,) = calls("x", shape())
    play.at(1.1).submit(x) >> Woke() << ["send x"]
    play.at(1.11) >> refused(x) << ["reject x: NotFound"]


def test_nobody_waits_for_a_model_that_was_never_answered():
    play = Playbook(limit=1, max_size=1, waits_out_refusals=True)
    a, b, c = calls("a b c")
    (x,) = calls("x", shape(model="other"))
    rows(play, x, a, b, c)
    play >> Woke() << ["send x"]
    play.at(1.0) >> answered(x) << ["resolve x", "send a"]
    play.at(1.1) >> refused(a) << ["reject a: NotFound", "send b"]
    play.at(1.2) >> refused(b) << ["reject b: NotFound", "reject c: NotFound"]


def test_a_model_that_works_at_a_call_for_longer_than_refusals_take_has_taken_it_on():
    play = Playbook(limit=8, max_size=1, waits_out_refusals=True)
    a, b = calls("a b")
    rows(play, a)
    play >> Woke() << ["send a"]
    rows(play.at(5.0), b)
    play >> Woke() << ["send b"]
    play.at(5.1) >> refused(b) << []
    play.at(5.6) >> Woke() << ["send b"]
    play.at(6.0) >> answered(b) << ["resolve b"]


def test_the_time_of_a_row_does_not_run_while_its_model_is_refused():
    play = Playbook(limit=1, max_size=1, waits_out_refusals=True)
    (a,) = calls("a")
    (b,) = calls("b", a.shape, timeout_s=0.2)
    rows(play, a, b)
    play >> Woke() << ["send a"]
    play.at(1.0) >> answered(a) << ["resolve a", "send b"]
    play.at(1.1) >> refused(b) << []
    play.at(1.6) >> Woke() << ["send b"]
    play.at(1.75) >> answered(b) << ["resolve b"]


def test_a_403_is_its_calls_own_if_a_call_sent_no_earlier_is_answered():
    play = Playbook(limit=2, max_size=1, waits_out_refusals=True)
    a, b, c, d, e = calls("a b c d e")
    rows(play, a, b, c, d, e)
    play >> Woke() << ["send a", "send b"]
    play.at(1.0) >> answered(a) << ["resolve a", "send c"]
    play.at(1.01) >> refused(c, 403) << ["send d"]
    # Sent at 1.01, and answered: the key is well. Once more, since nobody knew at first.
    play.at(1.2) >> answered(d) << ["resolve d", "send e"]
    play.at(1.51) >> Woke() << []
    play.at(1.6) >> answered(e) << ["resolve e", "send c"]
    play.at(1.61) >> refused(c, 403) << ["reject c: AuthenticationFailed"]
    assert not play.errors["c"].retryable
    play.at(1.7) >> answered(b) << ["resolve b"]


@pytest.mark.parametrize("status", [401, 404])
def test_a_row_that_is_refused_eight_times_beside_answers_fails(status):
    play = Playbook(limit=2, max_size=1, waits_out_refusals=True)
    a, b, c = calls("a b c")
    rows(play, a, b, c)
    play >> Woke() << ["send a", "send b"]
    play.at(1.0) >> answered(a) << ["resolve a", "send c"]
    # ``c`` was sent after ``b``: nobody else has to wait.
    play.at(1.5) >> refused(b, status)
    play.at(2.0) >> answered(c)
    for _ in range(6):
        play.at(play.wakes_at) >> Woke() << ["send b"]
        play.at(play.now + 0.01) >> refused(b, status) << []
        assert play.endpoints[0].outage == ""
    play.at(play.wakes_at) >> Woke() << ["send b"]
    play >> refused(b, status)
    assert play.errors["b"].attempt == 8
    # One of two routers is asked for so long.
    assert 7 < play.now < 30


def test_a_call_taken_on_since_the_refusals_ends_the_doubt_before_its_answer():
    play = Playbook(limit=6, max_size=1, waits_out_refusals=True)
    everyone = calls("a b c d e f g h i j k l m n o p q")
    rows(play, *everyone)
    play >> Woke() << [f"send {name}" for name in "abcdef"]
    for call, sent in zip(everyone[:6], "ghijkl", strict=True):
        play.at(1.0) >> answered(call) << [f"resolve {call.waiter}", f"send {sent}"]
    for call, sent in zip(everyone[6:11], (["send m"], ["send n"], [], [], []), strict=True):
        play.at(1.005) >> refused(call, 403) << sent
    # ``l`` is under way for 0.1 s: refusals took 5 ms.
    assert play.wakes_at == 1.1
    play.at(1.1) >> Woke() << ["send o", "send p", "send q"]


def test_nothing_is_concluded_while_a_call_sent_no_earlier_is_under_way():
    play = Playbook(limit=3, max_size=1)
    a, b, c, d, e = calls("a b c d e")
    play.submit(a, b, c, d, e) >> Woke() << ["send a", "send b", "send c"]
    play.at(0.01) >> refused(a) << ["reject a: NotFound", "send d"]
    play.at(0.02) >> refused(b) << ["reject b: NotFound"]
    play.at(0.03) >> refused(d) << ["reject d: NotFound", "send e"]
    play.at(1.0) >> answered(c) << ["resolve c"]
    play.at(1.1) >> answered(e) << ["resolve e"]


def test_a_list_is_searched_after_a_403_and_the_guilty_fail_alone():
    play = Playbook(limit=8, max_size=4, waits_out_refusals=True)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    # Before the first answer it may be the key: one call finds out.
    play.at(0.01) >> refused(a, 403) << ["send a"]
    play.at(0.02) >> refused(a, 403) << ["reject a: AuthenticationFailed", "send b"]
    play.at(0.5) >> answered(b) << ["resolve b", "send c d"]
    play.at(0.51) >> refused(c, 403) << ["send c", "send d"]
    play.at(0.52) >> refused(d, 403) << ["reject d: AuthenticationFailed"]
    play.at(0.9) >> answered(c) << ["resolve c"]


def test_six_403s_in_a_row_are_the_keys():
    play = Playbook(limit=8, max_size=8, waits_out_refusals=True)
    everyone = calls(40)
    rows(play, *everyone)
    play >> Woke() << ["send c0 c1 c2 c3 c4 c5 c6 c7"]
    # The list may hold a guilty prompt: six of its prompts are asked, one by one.
    for number in range(7):
        assert play.failed == 0
        play.at(0.01 * number) >> refused(play.last.requests[0], 403)
    assert (len(play.sent), play.failed, play.wakes_at) == (7, 40, None)
    assert max(error.attempt for error in play.errors.values()) == 2


def test_what_is_left_of_a_refused_list_says_nothing_of_other_calls():
    """A firewall refuses the prompts of one list, within milliseconds, while the server works at what it has."""
    play = Playbook(limit=8, max_size=8, waits_out_refusals=True)
    first, *others = calls(41)
    guilty, waiting = others[:8], others[8:]
    play.submit(first) >> Woke()
    play.at(1.0) >> answered(first)
    play.submit(*guilty) >> Woke() << ["send c1 c2 c3 c4 c5 c6 c7 c8"]
    play.submit(*waiting)
    while play.failed < 8:
        play.at(play.now + 0.004)
        for batch in {call.batch.id: call.batch for call in guilty if call.batch is not None}.values():
            play >> refused(batch.requests[0], 403)
    assert play.now < 1.05
    play << ["reject c8: AuthenticationFailed", "send c9"]
    play.at(1.1) >> answered(waiting[0])
    assert (play.in_flight, play.failed) == (8, 8), "the others go as before"


def test_of_a_long_list_that_was_refused_no_member_finds_out_while_fresh_calls_can():
    play = Playbook(limit=16, max_size=16, waits_out_refusals=True)
    rows(play, *calls(40))
    play >> Woke()
    assert len(play.last.requests) == 16
    play.at(0.01) >> refused(play.last.requests[0], 403) << ["send c16"]


# A world with a firewall ----------------------------------------------------------------------------------------------


def through_a_firewall(is_refused, *, count, size, limit, answer_s, may_wait, **settings):
    """Send ``count`` calls through a firewall that says 403 within 1 ms to some batches; return what failed, how many were answered, the end, and the requests."""
    play = Playbook(limit=limit, max_size=size, waits_out_refusals=True, **settings)
    for call in calls(count):
        play.scheduler.handle(Submitted(call, may_wait), 0.0)
    coming, now, failures, answers = [(0.0, -1, None)], 0.0, [], 0
    while True:
        wakes_at = play.scheduler.next_deadline()
        if coming and (wakes_at is None or coming[0][0] <= wakes_at):
            now, _, batch = heapq.heappop(coming)
        elif wakes_at is not None:
            now, batch = max(now, wakes_at), None
        else:
            return failures, answers, now, play
        if batch is None:
            event = Woke()
        else:
            event = refused(batch.requests[0], 403) if is_refused(batch) else answered(*batch.requests)
        play.scheduler.handle(event, now)
        for command in play.scheduler.commands():
            match command:
                case SendBatch(batch):
                    play.sent.append(batch)
                    took_s = 0.001 if is_refused(batch) else answer_s
                    heapq.heappush(coming, (now + took_s, len(play.sent), batch))
                case Reject(errors):
                    failures += [request.waiter for request, _ in errors]
                case Resolve(resolved):
                    answers += len(resolved)


@pytest.mark.parametrize("may_wait", [True, False], ids=["rows", "calls"])
@pytest.mark.parametrize("answer_s", [0.02, 5.0])
@pytest.mark.parametrize("size", [1, 8], ids=["singly", "lists"])
@pytest.mark.parametrize("percent", [10, 30])
def test_a_firewall_costs_no_innocent_call_its_answer_and_little_time(percent, size, answer_s, may_wait):
    guilty = {f"c{number}" for number in range(400) if number * 37 % 100 < percent}

    def is_refused(batch):
        return not guilty.isdisjoint(request.waiter for request in batch.requests)

    for limit in (4, 16, 64):
        failures, answers, ended_at, play = through_a_firewall(
            is_refused, count=400, size=size, limit=limit, answer_s=answer_s, may_wait=may_wait
        )
        assert set(failures) == guilty
        assert answers == 400 - len(guilty)
        alone_s = answer_s * (400 - len(guilty)) / limit
        # The guilty rows are asked a second time half a second later at the earliest.
        assert ended_at <= 1.3 * alone_s + (3 if answer_s > 1 else 1) + answer_s
        assert len(play.sent) <= 400 + 2 * len(guilty)


@pytest.mark.parametrize("may_wait", [True, False], ids=["rows", "calls"])
@pytest.mark.parametrize("patience_s", [60.0, 0.0])
@pytest.mark.parametrize("answer_s", [0.02, 1.0])
@pytest.mark.parametrize(("size", "limit"), [(8, 64), (16, 256), (64, 64), (128, 512)])
def test_where_every_list_is_refused_with_403_calls_go_singly_and_none_fails(
    size, limit, answer_s, patience_s, may_wait
):
    failures, answers, ended_at, play = through_a_firewall(
        lambda batch: len(batch.requests) > 1,
        count=600,
        size=size,
        limit=limit,
        answer_s=answer_s,
        may_wait=may_wait,
        outage_patience_s=patience_s,
    )
    assert (failures, answers) == ([], 600)
    assert len(play.sent) <= 620
    assert ended_at <= answer_s * (600 / limit + 2) + 1.0
    assert play.endpoints[0].lists_refused
    # Five minutes later one list tries, is refused, and is not searched.
    play.at(ended_at + 301.0).submit(*calls(8)) >> Woke()
    assert [len(batch.requests) for batch in play.sent if batch.sent_at > ended_at] == [8]
    play >> refused(play.last.requests[0], 403)
    assert len(play.last.requests) == 1
    play >> answered(play.last.requests[0])
    assert {len(batch.requests) for batch in play.sent[-7:]} == {1}


def test_a_firewall_that_refuses_one_prompt_in_thirty_gets_lists():
    guilty = {f"c{number}" for number in range(15, 2000, 30)}

    # All the first lists are refused, and of their halves some are not.
    def is_refused(batch):
        return not guilty.isdisjoint(request.waiter for request in batch.requests)

    for answer_s in (0.02, 1.0):
        failures, answers, _, play = through_a_firewall(
            is_refused, count=2000, size=64, limit=256, answer_s=answer_s, may_wait=True
        )
        assert (set(failures), answers) == (guilty, 2000 - len(guilty))
        assert not play.endpoints[0].lists_refused
        assert len(play.sent) < 1600
