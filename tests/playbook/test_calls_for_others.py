"""What an endpoint cannot be asked goes to one that can, and is not tried there again for a while."""

import pytest

from tests.core import FailureKind, Submitted, Woke
from batchclient.errors import BadRequest, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

UNSUPPORTED = FailureKind.UNSUPPORTED


def unsupported(request):
    return failed(request, UNSUPPORTED, error=BadRequest)


def test_it_goes_to_another_at_once_and_that_is_no_attempt():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b", shape())
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> unsupported(a) << ["send a b @1"]
    assert (a.attempts, b.attempts) == (1, 1)
    play >> answered(a, b) << ["resolve a b"]
    statistics = play.scheduler.statistics()
    assert (statistics.retries, statistics.failed) == (0, 0)
    assert [endpoint.state for endpoint in statistics.endpoints] == ["healthy", "healthy"]


def test_calls_of_that_shape_wait_for_the_other_and_all_others_do_not():
    play = Playbook(limit=[2, 2], max_size=1)
    lacking, plain = shape(), shape()
    a, b, c, d = calls("a b c d", lacking)
    x, y = calls("x y", plain)
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["send a @1"]
    play.at(1.0).submit(b, c, d) >> Woke() << ["send b @1"]
    play.submit(x, y) >> Woke() << ["send x @0", "send y @0"]
    play >> answered(a) << ["resolve a", "send c @1"]
    play >> answered(x) << ["resolve x"]
    play >> answered(b) << ["resolve b", "send d @1"]


def test_it_is_tried_there_again_after_half_a_minute():
    play = Playbook(limit=[1, 1], max_size=1)
    a, b, c, d = calls("a b c d", shape())
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["send a @1"]
    play.at(29.9).submit(b, c) >> Woke() << []
    assert play.wakes_at == 30.0
    play.at(30.0) >> Woke() << ["send b @0"]
    # By now it is known which server it is, and it takes them after all.
    play >> answered(b) << ["resolve b", "send c @0"]


def test_where_none_takes_it_the_call_hears_why_and_nobody_else_does():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b = calls("a b", shape())
    (x,) = calls("x")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["send a @1"]
    play.submit(b) >> Woke() << ["send b @1"]
    play.scheduler.handle(unsupported(a), play.now)
    ((request, error),) = play.scheduler.commands()[0].errors
    assert request is a
    assert str(error).endswith("; no other server in use takes it")
    assert (error.retryable, error.attempt) == (False, 0)
    play >> unsupported(b) << ["reject b: BadRequest"]
    play.submit(x) >> Woke()
    play >> answered(x) << ["resolve x"]


def test_a_lone_server_is_asked_again_by_the_next_call():
    play = Playbook(limit=4)
    a, b = calls("a b", shape())
    play.submit(a) >> Woke() << ["send a"]
    play.scheduler.handle(unsupported(a), play.now)
    ((_, error),) = play.scheduler.commands()[0].errors
    assert "other server" not in str(error)
    play.submit(b) >> Woke() << ["send b"]


@pytest.mark.parametrize("kind", [UNSUPPORTED, FailureKind.NOT_SENT])
def test_what_was_not_sent_is_not_counted_as_a_request(kind):
    play = Playbook(limit=4)
    a, b, c = calls("a b c", shape())
    play.submit(c) >> Woke() << ["send c"]
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, kind) << ["reject a b: " + ("BadRequest" if kind is UNSUPPORTED else "ConnectFailed")]
    play >> answered(c) << ["resolve c"]
    assert (play.batches, play.list_sizes) == (1, {1: 1})
    assert play.alone == {"no company": 1}


@pytest.mark.parametrize("kind", [UNSUPPORTED, FailureKind.NOT_SENT])
def test_a_lone_call_that_was_not_sent_is_not_counted_as_one(kind):
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    # No count ever falls: a request counts when it has ended, since only then is it known to have been sent.
    assert (play.batches, play.list_sizes, play.alone) == (0, {}, {})
    play >> failed(a, kind)
    assert (play.batches, play.list_sizes, play.alone) == (0, {}, {})


def test_one_that_is_away_does_not_count():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c = calls("a b c", shape())
    x, y = calls("x y")
    play.submit(x) >> Woke() << ["send x @0"]
    play.submit(y) >> Woke() << ["send y @1"]
    play >> failed(y, FailureKind.NOT_SENT)
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["reject a: BadRequest"]


def test_where_every_server_says_no_such_call_that_is_told():
    play = Playbook(limit=[4, 4])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, FailureKind.REFUSED, error=BadRequest, status=405) << ["send a @1"]
    play.scheduler.handle(failed(a, FailureKind.REFUSED, error=BadRequest, status=405), play.now)
    ((_, error),) = play.scheduler.commands()[0].errors
    assert (str(error).endswith("no other server in use takes it"), error.attempt) == (True, 2)


def test_what_a_server_has_no_such_call_for_goes_elsewhere_too():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b", shape())
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> failed(a, FailureKind.BAD_CALL, error=ServerFault, status=501) << ["send a b @1"]
    # It was sent, and that was an attempt.
    assert (a.attempts, play.scheduler.statistics().retries) == (2, 1)
    play >> answered(a, b) << ["resolve a b"]


def test_after_a_405_of_a_list_one_member_finds_out_before_all_go_elsewhere():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b", shape())
    play.submit(a, b) >> Woke() << ["send a b @0"]
    play >> failed(a, FailureKind.REFUSED, error=ServerFault, status=405) << ["send a @0"]
    play >> failed(a, FailureKind.REFUSED, error=ServerFault, status=405) << ["send b a @1"]
    play >> answered(a, b) << ["resolve a b"]


def test_two_that_refuse_many_shapes_do_not_send_calls_back_and_forth():
    play = Playbook(limit=[1, 1], max_size=1)
    for number in range(1100):
        (call,) = calls(f"c{number}", shape())
        play >> Submitted(call)
        play >> Woke()
        play >> unsupported(call)
        play >> unsupported(call)
    assert play.failed == 1100
    assert len(play.sent) == 2200


def test_while_the_one_that_takes_it_is_away_the_call_hears_why():
    play = Playbook(limit=[4, 4], max_size=1)
    a, b, c = calls("a b c", shape())
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["send a @1"]
    play >> answered(a) << ["resolve a"]
    play.submit(b) >> Woke() << ["send b @1"]
    # Its connection is refused: it is ejected, and no call waits for it that only it can take.
    play >> failed(b, FailureKind.NOT_SENT) << ["send b @0"]
    play >> unsupported(b) << ["reject b: BadRequest"]


def test_no_policy_has_it_sent_again():
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, UNSUPPORTED, delay=1.0) << ["reject a: BadRequest"]


def test_what_was_not_sent_is_not_charged():
    play = Playbook(limit=64, max_size=1, requests_per_minute=60)
    for call in calls(40):
        play.submit(call) >> Woke()
        assert play.last.requests == [call], "only a tenth of a minute's worth goes at once"
        play >> unsupported(call)


def test_one_that_is_faster_and_cannot_take_it_keeps_nothing_from_the_others():
    """A fast server that holds calls back for a moment keeps them from slow ones; one that cannot take them must not."""
    play = Playbook(limit=[8, 2], max_size=1)
    (a, b), (x, y) = calls("a b", shape()), calls("x y", shape())
    y.failed_on = 0
    play.submit(x) >> Woke() << ["send x @0"]
    play.at(0.001) >> answered(x) << ["resolve x"]
    play.submit(y) >> Woke() << ["send y @1"]
    play.at(1000.0) >> answered(y) << ["resolve y"]
    play.submit(a) >> Woke() << ["send a @0"]
    play >> unsupported(a) << ["send a @1"]
    play.submit(b) >> Woke() << ["send b @1"]
