"""401, 403 and 404: one more request finds out, then everything queued fails. Row 24: no hammering."""

import pytest

from tests.core import FailureKind, Kind, Submitted, Woke
from batchclient.errors import AuthenticationFailed, BadRequest, NotFound
from batchclient.types import Reply
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

NO = FailureKind.REFUSED


def refused(request, status=401, **fields):
    return failed(request, NO, error=AuthenticationFailed, status=status, **fields)


def test_a_404_of_lists_is_also_found_out_by_one_member():
    play = Playbook(limit=8, max_size=2)
    a, b, c, d, e, f = calls("a b c d e f")
    play.submit(a, b, c, d) >> Woke() << ["send a b", "send c d"]
    play >> refused(a, 404) << ["send a"]
    play >> refused(c, 404) << []
    play >> refused(a, 404) << ["reject b a: AuthenticationFailed", "reject c d: AuthenticationFailed"]
    play.submit(e, f) >> Woke() << ["send e"]
    play >> refused(e, 404) << ["reject e: AuthenticationFailed", "reject f: AuthenticationFailed"]


@pytest.mark.parametrize("status", [401, 403])
def test_after_the_first_refusal_one_call_finds_out_and_all_that_is_queued_fails(status):
    play = Playbook(limit=4, max_size=2, max_queued=8)
    everyone = calls("a b c d e f g h i j k l m n")
    for call in everyone:
        play >> Submitted(call, may_wait=True)
    play >> Woke() << ["send a b", "send c d"]
    play >> refused(everyone[0], status) << ["reject a b: AuthenticationFailed", "send e"]
    # What was in flight before says nothing new.
    play >> refused(everyone[2], status) << ["reject c d: AuthenticationFailed"]
    rest = "f g h i j k l m n"
    play >> refused(everyone[4], status) << ["reject e: AuthenticationFailed", f"reject {rest}: AuthenticationFailed"]
    assert (len(play.sent), play.failed, play.wakes_at) == (3, 14, None)
    play.scheduler.handle(Woke(), play.now)


@pytest.mark.parametrize(
    ("kind", "status", "error", "concerns_all"),
    [
        *((NO, status, AuthenticationFailed, True) for status in (401, 403, 404)),
        (NO, 400, NotFound, True),
        *((NO, status, BadRequest, False) for status in (400, 405, 418, None)),
        (FailureKind.BAD_CALL, 404, BadRequest, False),
    ],
)
def test_what_a_refusal_says_of_the_other_calls_for_the_model(kind, status, error, concerns_all):
    play = Playbook(limit=1, max_size=1)
    a, b, *_ = calls("a b c d")
    play.submit(a, b, *_) >> Woke() << ["send a"]
    play >> failed(a, kind, status=status, error=error) << [f"reject a: {error.__name__}", "send b"]
    play >> failed(b, kind, status=status, error=error)
    assert play.seen[1:] == ([f"reject c d: {error.__name__}"] if concerns_all else ["send c"])


def test_an_answer_to_an_older_call_or_to_one_of_another_kind_says_nothing_of_a_refused_key():
    play = Playbook(limit=8, max_size=1)
    (old, *three, b, c), (vector,) = calls("old x y z b c"), calls("vector", shape(kind=Kind.EMBEDDING))
    play.submit(old) >> Woke() << ["send old"]
    play.at(0.5).submit(*three) >> Woke() << ["send x", "send y", "send z"]
    # A model that was answered is in doubt from the third refusal in a row on.
    for call in three:
        play.at(1.0) >> refused(call) << [f"reject {call.waiter}: AuthenticationFailed"]
    play.at(1.1) >> answered(old) << ["resolve old"]
    play.submit(vector) >> Woke() << ["send vector"]
    play.at(1.2) >> answered(vector) << ["resolve vector"]
    play.submit(b, c) >> Woke() << ["send b"]


def test_calls_made_later_find_out_anew_with_one_request():
    play = Playbook(limit=8)
    a, b, c, d, e = calls("a b c d e")
    play.submit(a) >> Woke() << ["send a"]
    play >> refused(a) << ["reject a: AuthenticationFailed"]
    play.at(5.0).submit(b, c) >> Woke() << ["send b"]
    play >> refused(b) << ["reject b: AuthenticationFailed", "reject c: AuthenticationFailed"]
    play.at(6.0).submit(d, e) >> Woke() << ["send d"]
    play >> answered(d) << ["resolve d", "send e"]


def test_the_error_says_that_another_call_was_refused():
    play = Playbook(limit=1)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a"]
    play >> refused(a) << ["reject a: AuthenticationFailed", "send b"]
    reply = Reply({"error": {"message": "not for: b's prompt"}})
    play >> refused(b, reply=reply) << ["reject b: AuthenticationFailed", "reject c: AuthenticationFailed"]
    error = play.errors["c"]
    assert "no (said to another call for the same model" in str(error)
    assert (error.status, error.attempt) == (401, 0)
    assert (play.errors["b"].reply, error.reply) == (reply, None), "it may speak of b's prompt"


def test_a_refusal_that_the_next_call_does_not_meet_was_that_calls_alone():
    play = Playbook(limit=4, max_size=1)
    a, b, c, d, e, f = calls("a b c d e f")
    play.submit(a, b, c, d, e, f) >> Woke()
    play.at(1.0) >> refused(a, 403) << ["reject a: AuthenticationFailed", "send e"]
    # ``b`` was sent with ``a``: the key is well.
    play.at(2.0) >> answered(b) << ["resolve b", "send f"]
    play >> answered(e) << ["resolve e"]


def test_a_doubt_concerns_one_model():
    play = Playbook(limit=2, max_size=1)
    other = shape(model="other")
    a, b, c = calls("a b c")
    x, y = calls("x y", other)
    play.submit(x, a, b, c, y) >> Woke() << ["send x", "send a"]
    play >> refused(x, 403) << ["reject x: AuthenticationFailed", "send b"]
    play >> answered(a) << ["resolve a", "send c"]
    play >> answered(b) << ["resolve b", "send y"]
    play >> refused(y, 403) << ["reject y: AuthenticationFailed"]
    play >> answered(c) << ["resolve c"]


def test_a_probe_that_fails_otherwise_makes_room_for_another():
    play = Playbook(limit=4, max_size=1)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play >> refused(a) << ["reject a: AuthenticationFailed"]
    play.submit(b, c) >> Woke() << ["send b"]
    play >> failed(b, FailureKind.MAYBE_PROCESSED, delay=9.0) << ["send c"]
    play >> answered(c) << ["resolve c"]
    play.at(9.0) >> Woke() << ["send b"]


def test_calls_go_to_a_server_that_takes_the_key_and_the_other_is_asked_again_after_a_while():
    play = Playbook(limit=[2, 2], max_size=1)
    a, b, c, d, e = calls("a b c d e")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> refused(a) << ["send a @1"]
    play >> answered(a) << ["resolve a"]
    play.at(29.0).submit(b, c, d) >> Woke() << ["send b @1", "send c @1"]
    play >> answered(b) << ["resolve b", "send d @1"]
    play >> answered(c, ended=True)
    play >> answered(d)
    play.at(31.0).submit(e) >> Woke()
    assert play.last.endpoint in (0, 1)
    play >> (refused(e) if play.last.endpoint == 0 else answered(e))
    assert play.failed == 0


def test_a_server_that_others_stand_in_for_is_asked_again_after_half_a_minute():
    play = Playbook(limit=[1, 1], max_size=1)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> refused(a) << ["send a @1"]
    play.at(29.9).submit(b) >> Woke() << []
    play.at(30.0) >> Woke() << ["send b @0"]


def test_where_every_server_refuses_the_call_fails():
    play = Playbook(limit=[2, 2], max_size=1)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> refused(a) << ["send a @1"]
    play >> refused(a) << ["reject a: AuthenticationFailed"]
    play.at(1.0).submit(b) >> Woke()
    assert len(play.sent) == 3
    play >> refused(b) << ["reject b: AuthenticationFailed"]


def test_a_policy_that_tries_refusals_again_is_heeded():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a"]
    play >> refused(a, delay=2.0) << ["send b"]
    play >> answered(b) << ["resolve b"]
    play.at(2.0) >> Woke() << ["send a"]


def test_whatever_else_the_server_says_of_the_call_that_finds_out_all_goes_on():
    said = [
        (FailureKind.BAD_CALL, 400),
        (FailureKind.LIST_TOO_LONG, 413),
        (NO, 405),
        (FailureKind.MAYBE_PROCESSED, 500),
        (FailureKind.MAYBE_PROCESSED, 200),
    ]
    # Nothing of this call: no reply, a full server, a gateway.
    silent = [
        (FailureKind.MAYBE_PROCESSED, None),
        (FailureKind.REJECTED, 429),
        (FailureKind.REJECTED, 503),
        (FailureKind.MAYBE_PROCESSED, 502),
    ]
    for kind, status in said + silent:
        play = Playbook(limit=4, max_size=1)
        a, b, c, d = calls("a b c d")
        play.submit(a) >> Woke() << ["send a"]
        play >> refused(a, 404) << ["reject a: AuthenticationFailed"]
        play.at(1.0).submit(b, c, d) >> Woke() << ["send b"]
        sent = ["send c", "send d"] if (kind, status) in said else ["send c"]
        play >> failed(b, kind, error=BadRequest, status=status) << ["reject b: BadRequest", *sent]


def test_many_shapes_of_a_doubted_model_hide_no_other_call():
    play = Playbook(limit=64)
    asked, *others = [calls(f"a{i}", shape(model="away"))[0] for i in range(200)]
    (b,) = calls("b")
    play.submit(asked) >> Woke() << ["send a0"]
    play >> refused(asked, 404) << ["reject a0: AuthenticationFailed"]
    play.at(1.0).submit(*others, b) >> Woke() << ["send a1", "send b"]
    play >> answered(b) << ["resolve b"]
    play >> answered(others[0])
    assert play.queued == 199 - 1 - 64
