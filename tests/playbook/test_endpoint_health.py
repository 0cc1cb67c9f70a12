"""Endpoints that refuse connections or ask for rest."""

import pytest

from tests.core import Failed, Failure, FailureKind, FixedLimit, Woke
from batchclient.errors import (
    CallAborted,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DialectError,
    OutOfSockets,
    ReadTimedOut,
    ServerFault,
)
from tests.playbook.playbook import Playbook, answered, calls, failed, shape


LOST = FailureKind.MAYBE_PROCESSED


@pytest.mark.parametrize(
    ("kind", "error", "fields", "ejected_after", "reason"),
    [
        (FailureKind.NOT_SENT, ConnectFailed, {}, 1, "no connection"),
        (LOST, ConnectionLost, {}, 3, "a broken connection"),
        (LOST, ReadTimedOut, {}, 3, "silence"),
        (LOST, ReadTimedOut, {"silent_s": 600.0}, 3, "silence"),
        # The error came whole, so that no connection is to blame.
        (LOST, ServerFault, {}, 5, "a server error"),
        (LOST, DialectError, {}, 5, "a server error"),
        (LOST, ServerFault, {"status": 500}, 5, "a server error"),
        (LOST, ServerFault, {"status": 502}, 5, "a gateway that reaches no server"),
        (FailureKind.REJECTED, ServerFault, {"status": 503}, 5, "a gateway that reaches no server"),
        # What a gateway cuts off after a long silence is a server that is there, and slow.
        (LOST, ConnectionLost, {"silent_s": 20.0}, 3, "a broken connection"),
        (LOST, ConnectionLost, {"silent_s": 20.1}, 5, "a server error"),
        (LOST, ServerFault, {"status": 502, "silent_s": 20.1}, 5, "a server error"),
        (LOST, ServerFault, {"status": 504, "silent_s": 5.0}, 5, "a gateway that reaches no server"),
        (LOST, ServerFault, {"status": 504, "silent_s": 5.1}, 5, "a server error"),
        # No call of its own is sent there again.
        (FailureKind.REFUSED, CertificateRefused, {}, 3, "a broken connection"),
        (FailureKind.REJECTED, OutOfSockets, {}, None, ""),
        (FailureKind.BAD_CALL, ServerFault, {"status": 501}, None, ""),
        (FailureKind.BAD_CALL, ServerFault, {"status": 400}, None, ""),
        (FailureKind.MISMATCH, None, {}, None, ""),
    ],
)
def test_what_a_failure_says_of_its_server(kind, error, fields, ejected_after, reason):
    play = Playbook(limit=[8, 8], max_size=1)
    for number in range(1, 8):
        fail_at_the_first(play, f"c{number}", kind, error=error, **fields)
        if play.endpoints[0].state == "ejected":
            break
    assert number == (ejected_after or 7)
    row = f"{ejected_after} failures in a row, the last: " if ejected_after not in (1, None) else ""
    assert play.endpoints[0].reason == row + reason


def send_to_the_first(play, name):
    (call,) = calls(name, shape())
    call.failed_on = 1
    play.submit(call) >> Woke() << [f"send {name} @0"]
    return call


def fail_at_the_first(play, name, kind, **fields):
    call = send_to_the_first(play, name)
    play >> failed(call, kind, **fields)
    if play.seen == [f"send {name} @1"]:
        play >> answered(call)


def rests(play, failed_at, pause):
    """Whether the first server gets no call in its pause, and one at its end, which is returned."""
    (other,), (probe,) = calls(f"other{failed_at}", shape()), calls(f"probe{failed_at}", shape())
    play.at(failed_at + pause - 0.01).submit(other) >> Woke() << [f"send {other.waiter} @1"]
    play >> answered(other)
    play.at(failed_at + pause).submit(probe) >> Woke() << [f"send {probe.waiter} @0"]
    return probe


@pytest.mark.parametrize(
    ("kind", "times", "pauses"),
    [(FailureKind.NOT_SENT, 1, [0.5, 1, 2, 4, 8, 8]), (LOST, 3, [1, 2, 4, 8, 16, 30, 30])],
    ids=["refused", "broken"],
)
def test_pauses_double_with_each_probe_that_fails(kind, times, pauses):
    play = Playbook(limit=[8, 8], max_size=1)
    for number in range(times):
        fail_at_the_first(play, f"c{number}", kind)
    for pause in pauses:
        probe = rests(play, play.now, pause)
        play >> failed(probe, kind)
        if play.seen == [f"send {probe.waiter} @1"]:
            play >> answered(probe)


def test_one_that_was_healthy_for_a_minute_starts_at_the_shortest_pause_again():
    play = Playbook(limit=[1, 8], max_size=1)
    # It is healthy again at 100.5, 111.0 and 172.9.
    for failed_at, pause in ((100.0, 0.5), (110.0, 1.0), (170.9, 2.0), (233.0, 0.5)):
        fail_at_the_first(play.at(failed_at), f"fails{failed_at}", FailureKind.NOT_SENT)
        play >> answered(rests(play, failed_at, pause))
        play >> answered(send_to_the_first(play, f"well{failed_at}"))
        assert play.endpoints[0].state == "healthy"


def test_a_server_that_refused_or_broke_connections_and_answers_again_was_started_anew():
    class Restartable(FixedLimit):
        def on_restart(self, now):
            self.limit, self.reason = 4, "started anew"

    served_no_more = {"error": ServerFault, "status": 502}
    for kind, fields, times, pause, answered_before, anew in (
        (FailureKind.NOT_SENT, {}, 1, 0.5, True, True),
        (FailureKind.NOT_SENT, {}, 1, 0.5, False, False),
        (LOST, {}, 3, 1.0, True, True),
        (LOST, served_no_more, 5, 0.5, True, True),
        (LOST, {"error": ServerFault, "status": 500}, 5, 1.0, True, False),
        (LOST, {"error": ReadTimedOut}, 3, 1.0, True, False),
    ):
        play = Playbook(limit=[Restartable(8), 8], max_size=1)
        if answered_before:
            play >> answered(send_to_the_first(play, "before"))
        for number in range(times):
            fail_at_the_first(play, f"c{number}", kind, **fields)
        play >> answered(rests(play, 0.0, pause))
        assert play.adjusted == (["limit 8 -> 4: started anew"] if anew else []), (kind, fields)


def test_what_was_in_flight_when_a_server_was_ejected_says_nothing_of_its_probe():
    play = Playbook(limit=[8, 8], max_size=1)
    before, then = send_to_the_first(play, "before"), calls("again more")
    fail_at_the_first(play, "refused", FailureKind.NOT_SENT)
    probe = rests(play, 0.0, 0.5)
    play >> failed(before, LOST) << ["reject before: ConnectionLost"]
    assert play.endpoints[0].state == "probing"
    # A probe that says nothing either makes room for another.
    play >> failed(probe, FailureKind.MISMATCH, error=ServerFault)
    assert play.endpoints[0].state == "ejected"
    play.submit(*then) >> Woke() << ["send again @0", "send more @1"]


def test_a_call_refused_by_one_endpoint_goes_to_the_other_at_once():
    play = Playbook(limit=[1, 1])
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @1"]
    play.at(1.0) >> answered(b) << ["resolve b"]
    play.at(1.1) >> failed(a, FailureKind.NOT_SENT, delay=5.0) << ["send a @1"]
    # The first is left alone for half a second, though it is the one with a permit free.
    play.at(1.2).submit(c) >> Woke() << []
    play.at(1.6) >> Woke() << ["send c @0"]


def test_a_lone_endpoint_that_never_answered_fails_its_calls_after_three_refused_connections():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << []
    play.at(1.5) >> Woke() << ["send a"]
    play.at(2.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << []
    play.at(3.0) >> Woke() << ["send a"]
    play.at(4.0) >> failed(a, FailureKind.NOT_SENT, delay=0.1) << ["reject a: ConnectFailed"]
    play.at(4.1).submit(b) >> Woke() << ["send b"]
    play.at(4.2) >> failed(b, FailureKind.NOT_SENT, delay=0.1) << ["reject b: ConnectFailed"]


def test_an_endpoint_that_answered_once_is_waited_for_whatever_the_policy_says():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a"]
    play.at(1.0).submit(b) >> Woke() << ["send b"]
    for time, pause in ((2.0, 0.5), (4.0, 1.0), (8.0, 1.0), (16.0, 1.0)):
        play.at(time) >> failed(b, FailureKind.NOT_SENT, delay=None) << []
        assert play.wakes_at == time + pause
        play.at(time + pause) >> Woke() << ["send b"]


@pytest.mark.parametrize(("wish", "rest"), [(3.0, 3.0), (86_400.0, 60.0)])
def test_a_wish_to_be_left_alone_is_kept_for_a_minute_at_most(wish, rest):
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, FailureKind.REJECTED, retry_after_s=wish) << ["reject a: RateLimited"]
    play.at(1.1).submit(b) >> Woke() << []
    assert play.wakes_at == 1.0 + rest
    play.at(1.0 + rest) >> Woke() << ["send b"]


def test_a_smaller_wish_does_not_shorten_a_longer_one():
    play = Playbook(max_size=1)
    *three, last, fresh = calls("a b c d e")
    play.submit(*three, last) >> Woke() << ["send a", "send b", "send c", "send d"]
    for each in three:
        play.at(1.0) >> failed(each, FailureKind.REJECTED, retry_after_s=30.0)
    play.at(2.0) >> failed(last, FailureKind.REJECTED, retry_after_s=1.0)
    play.at(3.0).submit(fresh) >> Woke() << []
    assert play.wakes_at == 31.0


def test_when_the_last_in_use_refuses_connections_one_that_had_errors_is_probed_before_its_pause_is_over():
    play = Playbook(limit=[5, 1], max_size=1)
    a, b, c, d, e, f = calls("a b c d e f")
    play.submit(a, b, c, d, e) >> Woke() << ["send a @0", "send b @0", "send c @0", "send d @0", "send e @0"]
    for call in (a, b, c, d, e):
        play >> failed(call, FailureKind.MAYBE_PROCESSED, delay=60.0, status=500) << []
    assert play.endpoints[0].state == "ejected"
    play.at(0.1).submit(f) >> Woke() << ["send f @1"]
    assert play.wakes_at == 60.0
    play.at(0.2) >> failed(f, FailureKind.NOT_SENT) << ["send f @0"]
    assert [endpoint.state for endpoint in play.endpoints] == ["probing", "ejected"]


def test_a_probe_is_one_call_even_of_a_list():
    play = Playbook(limit=[8, 1])
    play.submit(*calls(1)) >> Woke() << ["send c0 @0"]
    play >> failed(play.last.requests[0], FailureKind.NOT_SENT, delay=0.0) << ["send c0 @1"]
    a, b, c = calls("a b c")
    play.at(0.4).submit(a, b, c) >> Woke() << []
    play.at(0.5) >> Woke() << ["send a @0"]
    play.at(0.6) >> failed(a, FailureKind.NOT_SENT, delay=0.0) << []
    assert play.wakes_at == 1.6


def test_an_endpoint_is_probed_when_its_pause_is_over_though_another_is_free_and_was_faster():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c, d, e = calls("a b c d e")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @1"]
    play.at(0.1) >> answered(b)
    play.at(9.0) >> answered(a)
    c.failed_on = 1
    play.submit(c) >> Woke() << ["send c @0"]
    play >> failed(c, FailureKind.NOT_SENT, delay=0.0) << ["send c @1"]
    play.at(9.4).submit(d) >> Woke() << ["send d @1"]
    play.at(9.5).submit(e) >> Woke() << ["send e @0"]
    play >> answered(e)
    assert play.endpoints[0].state == "recovering"


def test_a_call_that_failed_on_an_endpoint_is_not_its_probe_while_another_is_in_use():
    play = Playbook(limit=[4, 1], max_size=1)
    a, b, c, d = calls("a b c d")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.NOT_SENT, delay=0.0) << ["send a @1"]
    play.submit(b) >> Woke() << []
    play.at(0.5) >> Woke() << ["send b @0"]
    play.at(0.6) >> failed(b, FailureKind.NOT_SENT, delay=0.0) << []
    # The pause is over and the other is full: b stays out of harm's way, c finds out.
    play.at(1.7) >> Woke() << []
    play.submit(c) >> Woke() << ["send c @0"]
    play.at(1.8) >> answered(c) << ["resolve c", "send b @0"]


def test_calls_do_not_run_out_of_attempts_while_an_endpoint_is_down_and_another_lives():
    play = Playbook(limit=[2, 1], max_size=1)
    (long,) = calls("long")
    play.submit(long) >> Woke() << ["send long @0"]
    play >> failed(long, FailureKind.NOT_SENT, delay=0.0) << ["send long @1"]
    waiting = calls(6)
    play.submit(*waiting) >> Woke()
    for _ in range(40):
        play.at(max(play.now, play.wakes_at or play.now)) >> Woke()
        if play.last.endpoint == 0 and play.last.unanswered and play.endpoints[0].state == "probing":
            # A policy that never tries again is not asked: nothing was sent.
            play >> failed(play.last.requests[0], FailureKind.NOT_SENT, delay=None)
    play >> answered(long)
    while play.endpoints[1].in_flight:
        play >> answered(play.last.requests[0])
    assert play.failed == 0
    assert play.succeeded == 7


def test_the_last_healthy_endpoint_stays_in_use_whatever_it_answers():
    play = Playbook(limit=[4, 4], max_size=1)
    everyone = calls(12)
    play.submit(*everyone) >> Woke()
    assert len(play.sent) == 8
    for batch in list(play.sent):
        play >> failed(batch.requests[0], FailureKind.MAYBE_PROCESSED, delay=60.0, status=500)
    while any(batch.unanswered for batch in play.sent[8:] if batch.requests[0].batch is batch):
        open_batch = next(batch for batch in play.sent[8:] if batch.requests[0].batch is batch)
        play >> failed(open_batch.requests[0], FailureKind.MAYBE_PROCESSED, delay=60.0, status=500)
    states = sorted(endpoint.state for endpoint in play.endpoints)
    assert states == ["ejected", "healthy"]
    (left,) = [endpoint.reason for endpoint in play.endpoints if endpoint.state == "healthy"]
    assert left.startswith("in use because no other is")


def test_an_answer_of_any_kind_shows_that_it_lives():
    play = Playbook(limit=[4, 4], max_size=1)
    for call in calls(12):
        call.failed_on = 1
        play.submit(call) >> Woke()
        kind = FailureKind.REFUSED if call.waiter in ("c2", "c6", "c10") else FailureKind.MAYBE_PROCESSED
        play >> failed(call, kind, status=418 if kind is FailureKind.REFUSED else 500)
    assert {batch.endpoint for batch in play.sent} == {0}
    assert play.endpoints[0].state == "healthy"


def test_deadlines_that_pass_without_any_answer_are_silence():
    play = Playbook(limit=[4, 4], max_size=1)
    for second in range(3):
        (call,) = calls("x" * (second + 1), deadline=second + 1.0)
        call.failed_on = 1
        play.at(float(second)).submit(call) >> Woke()
        play.at(second + 1.0) >> Woke()
        play >> failed_batch(play.last)
    assert (play.endpoints[0].state, play.endpoints[0].reason) == ("ejected", "3 failures in a row, the last: silence")


def test_deadlines_that_pass_while_others_are_answered_are_no_silence():
    play = Playbook(limit=[8, 8], max_size=1)
    for second in range(5):
        (call,), (other,) = calls("x" * (second + 1), deadline=second + 1.0), calls("y" * (second + 1))
        call.failed_on = other.failed_on = 1
        play.at(float(second)).submit(call, other) >> Woke()
        late = call.batch
        play >> answered(other)
        play.at(second + 1.0) >> Woke()
        play >> failed_batch(late)
    # Answered in the same instant as it was sent: since then, nothing.
    assert play.endpoints[0].state == "healthy"


def failed_batch(batch):
    """A batch whose callers have all gone was closed."""
    return Failed(batch, Failure(FailureKind.REFUSED, CallAborted, "cancelled"))


def test_a_restarted_endpoint_starts_slowly():
    play = Playbook(limit=[16, 1], max_size=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a @0", "send b @0"]
    play >> answered(a) << ["resolve a"]
    play >> failed(b, FailureKind.NOT_SENT, delay=0.0) << ["send b @1"]
    play.at(0.4).submit(*calls(40)) >> Woke()
    sent = len(play.sent)
    play.at(0.5) >> Woke() << ["send c0 @0"]
    play.at(0.6) >> answered(play.last.requests[0])
    # An eighth of the limit, and one more for each answer.
    assert len(play.sent) == sent + 1 + 2
    for in_flight in (3, 4, 5):
        batch = next(batch for batch in play.sent[sent + 1 :] if batch.endpoint == 0 and batch.unanswered)
        play >> answered(batch.requests[0])
        assert play.endpoints[0].in_flight == in_flight
    assert play.endpoints[0].state == "recovering"
