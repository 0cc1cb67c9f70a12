"""Lists that fail and name no culprit: one member goes first, alone. See ``member_first``.

``Server`` plays a whole server: it replies to every open batch, first to those that its rule fails, and lets time pass when nothing is open.
"""

from itertools import count

import pytest

from tests.core import Cancelled, EndpointRemoved, Failed, Failure, FailureKind, Kind, Paused, Resumed, Woke
from batchclient.errors import AuthenticationFailed, BadRequest, ConnectionLost, DialectError, NotFound, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

_numbers = count()
MAYBE = FailureKind.MAYBE_PROCESSED
A_500 = Failure(MAYBE, ServerFault, "500: no", 500)
NO_ANSWER = Failure(MAYBE, DialectError, "the reply is not JSON", once=True)
CLOSED = Failure(MAYBE, ConnectionLost, "the connection broke")
RESET = Failure(MAYBE, ConnectionLost, "the connection broke", while_sending=True)


def refusal(status):
    return Failure(FailureKind.REFUSED, NotFound if status == 404 else BadRequest, f"{status}: no", status)


class Server:
    """Plays a server until nothing is open and nothing waits.

    Args:
        rule: from a batch to why it fails; ``None``: it is answered.
        attempts: of the retry policy, which waits a second after each.
    """

    def __init__(self, rule, *, attempts=5, limit=64, max_size=64, **settings):
        self.play = Playbook(limit=limit, max_size=max_size, **settings)
        self.rule = rule
        self.attempts = attempts
        self.answered = []
        self.rejected = []

    def serve(self, *requests, until=None):
        """Make these calls; return the sizes of the requests that this took, ``"bare"`` or ``""`` beside each."""
        play, first = self.play, len(self.play.sent)
        play.submit(*requests) >> Woke()
        seen, still_open = first, []
        while True:
            while seen < len(play.sent) or still_open:
                still_open += play.sent[seen:]
                seen = len(play.sent)
                # A failure comes sooner than an answer.
                still_open.sort(key=lambda batch: self.rule(batch) is None)
                self._reply(still_open.pop(0))
            if play.wakes_at is None or (until is not None and play.wakes_at > until):
                break
            play.at(max(play.now, play.wakes_at)) >> Woke()
        assert play.in_flight == 0 and play.queued == 0 and play.backing_off == 0
        return [(len(batch.requests), "bare" if batch.bare else "") for batch in play.sent[first:]]

    def _reply(self, batch):
        failure = self.rule(batch)
        if failure is None:
            self.play >> answered(*batch.requests)
            self.answered += [word for word in self.play.seen if word.startswith("resolve")]
            return
        delay = None
        asked = failure.kind not in (FailureKind.BAD_CALL, FailureKind.LIST_TOO_LONG) or len(batch.requests) == 1
        if asked and failure.to_error(1).retryable and batch.failures + 1 < self.attempts:
            delay = 1.0
        self.play >> Failed(batch, failure, delay)
        self.rejected += [word for word in self.play.seen if word.startswith("reject")]


def has(*names):
    """A rule's condition: whether one of these calls is in a batch."""
    return lambda batch: any(request.waiter in names for request in batch.requests)


def more(size):
    """So many calls of a shape and with names of their own, which are as long whatever tests ran before."""
    number = next(_numbers)
    return calls(" ".join(f"m{number:05}.{i}" for i in range(size)), shape())


def is_list(batch):
    return len(batch.requests) > 1


# A dead server ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [A_500, RESET])
@pytest.mark.parametrize("proven", [False, True])
def test_a_dead_server_is_asked_three_times_more_for_a_list_of_64(failure, proven):
    dead = False
    server = Server(lambda _: failure if dead else None)
    if proven:
        server.serve(*more(64))
        assert server.play.succeeded == 64
    dead = True
    sizes = server.serve(*more(64))
    # Five attempts, as ever, and one member alone after the second, the third and the fourth.
    assert sizes == [(64, ""), (64, ""), (1, "bare"), (64, ""), (1, "bare"), (64, ""), (1, "bare"), (64, "")]
    assert server.play.failed == 64


def test_each_trial_is_another_members():
    server = Server(lambda _: A_500)
    server.serve(*calls(64))
    assert [batch.requests[0].waiter for batch in server.play.sent if len(batch.requests) == 1] == ["c0", "c1", "c2"]


def test_many_lists_at_a_dead_server_share_a_trial():
    play = Playbook(limit=8, max_size=4)
    a, b = calls("a a2 a3 a4"), calls("b b2 b3 b4", shape())
    play.submit(*a, *b) >> Woke() << ["send a a2 a3 a4", "send b b2 b3 b4"]
    play >> failed(a[0], MAYBE, error=ServerFault, status=500, delay=1.0) << []
    play >> failed(b[0], MAYBE, error=ServerFault, status=500, delay=1.0)
    # No list was ever answered here, and two failed in a row.
    assert play.seen == ["send b"]
    play.at(1.0) >> Woke() << ["send a a2 a3 a4"]
    play >> failed(a[0], MAYBE, error=ServerFault, status=500, delay=1.0) << []
    assert play.backing_off == 7
    play >> failed(b[0], MAYBE, error=ServerFault, status=500, delay=0.5) << []
    assert play.backing_off == 8
    play.at(2.0) >> Woke() << ["send a a2 a3 a4", "send b2 b3 b4 b"]


# A server that takes no lists ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [A_500, NO_ANSWER, Failure(MAYBE, ServerFault, "424: no", 424)])
def test_a_server_that_takes_no_lists_is_spoken_to_singly_after_two(failure):
    server = Server(lambda batch: failure if is_list(batch) else None)
    sizes = server.serve(*more(8))
    assert sizes == [(8, ""), (8, ""), (1, "bare"), (7, "bare")] + [(1, "")] * 7
    assert (server.play.succeeded, server.play.failed) == (8, 0)
    assert server.serve(*more(8)) == [(1, "")] * 8


@pytest.mark.parametrize(
    ("status", "proven"),
    [(status, proven) for status in (404, 405, 406, 411, 412, 415) for proven in (False, True)],
)
def test_a_status_that_refuses_every_call_alike_may_mean_the_list(status, proven):
    works = proven
    server = Server(lambda batch: refusal(status) if is_list(batch) and not works else None)
    server.serve(*more(8))
    works = False
    if proven:
        assert server.serve(*more(8)) == [(8, ""), (1, "bare")] + [(1, "")] * 7
    assert server.play.failed == 0
    assert server.serve(*more(8)) == [(1, "")] * 8
    # Five minutes later one list tries.
    server.play.at(server.play.now + 301.0)
    assert server.serve(*more(4)) == [(4, ""), (1, "bare")] + [(1, "")] * 3
    # A server that refuses every call so is not taken for one without lists.
    server = Server(lambda _: refusal(status))
    assert server.serve(*more(8)) == [(8, ""), (1, "bare")]
    assert (server.play.failed, server.play.endpoints[0].lists_refused) == (8, False)


def test_a_server_that_closes_the_connection_on_lists_is_spoken_to_singly():
    works = False
    server = Server(lambda batch: CLOSED if is_list(batch) and not works else None)
    assert server.serve(*more(8)) == [(8, ""), (8, ""), (1, "bare"), (7, "bare")] + [(1, "")] * 7
    assert server.serve(*more(8)) == [(1, "")] * 8
    server.play.at(server.play.now + 301.0)
    works = True
    assert server.serve(*more(8)) == [(8, "")]
    # Once lists were answered, one member goes before the list would fail.
    works = False
    assert server.serve(*more(2)) == [(2, "")] * 5 + [(1, "bare"), (1, "")]
    assert server.play.failed == 0


@pytest.mark.parametrize("place", [0, 1, 5, 7])
def test_wherever_it_stands_a_prompt_that_closes_the_connection_fails_alone(place):
    works = True
    server = Server(lambda batch: CLOSED if bad in batch.requests and not works else None)
    requests = more(8)
    bad = requests[place]
    server.serve(*more(8))
    works = False
    server.serve(*requests)
    assert server.rejected == [f"reject {bad.waiter}: ConnectionLost"]


def test_a_restart_alone_says_nothing_of_lists():
    server = Server(lambda batch: CLOSED if batch.id <= 2 else None)
    assert server.serve(*more(4), *more(4)) == [(4, ""), (4, ""), (4, ""), (4, "")]
    assert (server.play.failed, server.play.endpoints[0].lists_refused) == (0, False)
    server = Server(lambda _: CLOSED)
    assert server.serve(*more(4)) == [
        (4, ""),
        (4, ""),
        (1, "bare"),
        (4, ""),
        (1, "bare"),
        (4, ""),
        (1, "bare"),
        (4, ""),
    ]
    assert (server.play.failed, server.play.endpoints[0].lists_refused) == (4, False)


def test_one_that_takes_no_lists_is_asked_again_by_one_list_after_5_then_10_minutes():
    server = Server(lambda batch: A_500 if is_list(batch) else None)
    server.serve(*more(8))
    play = server.play
    play.at(play.now + 299.9)
    assert server.serve(*more(4)) == [(1, "")] * 4
    play.at(play.now + 0.2)
    a, b = calls("a a2 a3"), calls("b b2", shape())
    # One list tries, and is not sent twice; the others stay single.
    sizes = server.serve(*a, *b)
    assert sizes == [(3, ""), (1, ""), (1, ""), (1, "bare"), (1, ""), (1, "")]
    play.at(play.now + 599.0)
    assert server.serve(*more(4)) == [(1, "")] * 4
    play.at(play.now + 2.0)
    assert server.serve(*more(4))[0] == (4, "")


def test_lists_that_are_refused_again_and_again_are_tried_once_an_hour_in_the_end():
    server = Server(lambda batch: A_500 if is_list(batch) else None)
    server.serve(*more(8))
    for pause_s in (300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0):
        server.play.at(server.play.now + pause_s - 0.1)
        assert server.serve(*more(4)) == [(1, "")] * 4
        server.play.at(server.play.now + 0.2)
        assert server.serve(*more(4))[0] == (4, "")


def test_one_that_takes_lists_again_gets_them():
    broken = True
    server = Server(lambda batch: A_500 if is_list(batch) and broken else None)
    server.serve(*more(8))
    broken = False
    server.play.at(server.play.now + 301.0)
    assert server.serve(*more(8)) == [(8, "")]
    assert server.serve(*more(8)) == [(8, "")]


def test_with_one_attempt_the_list_before_counts_as_the_first():
    server = Server(lambda batch: A_500 if is_list(batch) else None, attempts=1)
    assert server.serve(*more(8)) == [(8, "")]
    assert server.play.failed == 8
    assert server.serve(*more(8)) == [(8, ""), (1, "bare"), (7, "bare")] + [(1, "")] * 7
    assert (server.play.succeeded, server.play.failed) == (8, 8)


def test_a_server_without_a_route_for_lists_of_chats_gets_them_singly_whatever_it_says():
    said = Failure(FailureKind.REFUSED, AuthenticationFailed, "403: no", 403)

    def rule(batch):
        batch.wire.to_list_route = is_list(batch)
        return said if is_list(batch) else None

    server = Server(rule)
    sizes = server.serve(*calls(4, shape(kind=Kind.CHAT, lists_plain=True)))
    assert sizes == [(4, ""), (1, "bare"), (1, ""), (1, ""), (1, "")]
    assert (server.play.succeeded, server.play.failed) == (4, 0)


def test_a_refused_key_fails_a_list_of_chats_after_one_member_more():
    said = Failure(FailureKind.REFUSED, AuthenticationFailed, "401: no", 401)

    def rule(batch):
        batch.wire.to_list_route = is_list(batch)
        return said

    server = Server(rule)
    assert server.serve(*calls(4, shape(kind=Kind.CHAT, lists_plain=True))) == [(4, ""), (1, "bare")]
    assert server.play.failed == 4


# A server that fails over our fields -----------------------------------------------------------------------------------


def test_a_server_that_fails_over_our_fields_gets_lists_without_them():
    server = Server(lambda batch: None if batch.bare else A_500)
    assert server.serve(*more(8)) == [(8, ""), (8, ""), (1, "bare"), (7, "bare")]
    assert server.play.succeeded == 8
    # The control: it may have been a bad moment.
    assert server.serve(*more(8)) == [(8, ""), (8, "bare")]
    assert server.serve(*more(8)) == [(8, "bare")]
    assert server.serve(*more(1)) == [(1, "bare")]
    # Five minutes later one batch tries them again, once.
    server.play.at(server.play.now + 301.0)
    assert server.serve(*more(8)) == [(8, ""), (8, "bare")]
    server.play.at(server.play.now + 500.0)
    assert server.serve(*more(8)) == [(8, "bare")]
    assert server.play.failed == 0


def test_a_lone_call_goes_without_our_fields_when_it_has_failed_twice_and_they_were_never_answered():
    server = Server(lambda batch: None if batch.bare else A_500)
    assert server.serve(*calls("a")) == [(1, ""), (1, ""), (1, "bare")]
    assert server.serve(*calls("b", shape())) == [(1, ""), (1, "bare")]
    assert server.serve(*calls("c", shape())) == [(1, "bare")]
    assert (server.play.succeeded, server.play.failed) == (3, 0)


def test_after_a_bad_moment_lists_are_streamed_as_before():
    server = Server(lambda batch: A_500 if batch.id <= 2 else None)
    assert server.serve(*more(8)) == [(8, ""), (8, ""), (1, "bare"), (7, "bare")]
    assert server.serve(*more(8)) == [(8, "")]
    assert server.play.last.streamed
    assert not server.play.endpoints[0].streams_refused


def test_what_only_plain_lists_fail_over_is_no_reason_to_stream_none():
    server = Server(lambda batch: A_500 if is_list(batch) and not batch.streamed and not batch.bare else None)
    plain = shape(max_output_tokens=1)
    assert server.serve(*more(4)) == [(4, "")]
    assert server.serve(*calls("a b c d", plain)) == [(4, ""), (4, ""), (1, "bare"), (3, "bare")]
    assert server.serve(*calls("e f g h", plain)) == [(4, ""), (4, "bare")]
    assert server.serve(*calls("i j k l", plain)) == [(4, "bare")]
    assert server.serve(*more(4)) == [(4, "")]
    assert server.play.last.streamed


def test_who_takes_the_pieces_has_them_without_what_only_we_add():
    server = Server(lambda batch: None if batch.bare else A_500)
    server.serve(*more(8))
    server.serve(*more(8))
    assert server.serve(*calls("a", shape(to_caller=True))) == [(1, "bare")]
    assert server.play.last.streamed


def test_a_lone_call_keeps_its_form_where_it_was_answered_before():
    server = Server(lambda batch: A_500 if has("bad")(batch) else None)
    assert server.serve(*calls("a")) == [(1, "")]
    assert server.serve(*calls("bad", shape())) == [(1, "")] * 5
    assert server.play.failed == 1


# A poisoned prompt -----------------------------------------------------------------------------------------------------


def test_two_poisoned_documents_among_10_000_cost_at_most_40_requests_and_lists_go_on():
    docs = calls(10_000)
    server = Server(lambda batch: A_500 if has("c3", "c7777")(batch) else None)
    sizes = server.serve(*docs)
    assert server.rejected == ["reject c3: ServerFault", "reject c7777: ServerFault"]
    assert (server.play.succeeded, server.play.failed) == (9998, 2)
    assert len(sizes) <= 157 + 40
    assert server.play.endpoints[0].lists_refused is False
    assert server.serve(*more(64)) == [(64, "")]


@pytest.mark.parametrize("failure", [A_500, NO_ANSWER])
def test_one_poisoned_prompt_fails_alone_with_the_servers_words(failure):
    server = Server(lambda batch: failure if has("c5")(batch) else None)
    server.serve(*calls(8))
    assert server.play.failed == 1
    assert str(server.play.errors["c5"]) == failure.message


def test_the_parts_of_a_list_that_is_taken_apart_say_nothing_of_their_servers_health():
    server = Server(lambda batch: A_500 if has("c7")(batch) else None, limit=[512, 512], max_size=512)
    server.serve(*more(16))
    server.serve(*calls(512))
    assert server.play.failed == 1
    assert [endpoint.state for endpoint in server.play.endpoints] == ["healthy", "healthy"]


def test_lists_of_which_no_part_is_answered_but_every_prompt_alone_are_given_up_though_they_were_answered_before():
    works = True
    server = Server(lambda batch: A_500 if is_list(batch) and not works else None)
    assert server.serve(*more(4)) == [(4, "")]
    works = False
    sizes = server.serve(*more(4))
    assert sizes == [(4, ""), (4, ""), (1, "bare"), (2, ""), (1, ""), (1, ""), (1, "")]
    assert server.serve(*more(4)) == [(1, "")] * 4
    # Five minutes later one list tries, and is not taken apart once more.
    server.play.at(server.play.now + 301.0)
    assert server.serve(*more(4)) == [(4, ""), (1, "bare"), (1, ""), (1, ""), (1, "")]
    assert server.play.failed == 0


def test_two_lists_in_a_row_whose_halves_are_answered_were_too_long():
    server = Server(lambda batch: A_500 if len(batch.requests) > 40 else None)
    assert server.serve(*more(40)) == [(40, "")]
    halves = [(64, ""), (64, ""), (1, "bare"), (32, ""), (31, "")]
    assert server.serve(*more(64)) == halves
    assert server.serve(*more(64)) == halves
    assert server.serve(*more(64)) == [(32, ""), (32, "")]
    assert server.play.failed == 0


# Lists that are too long -----------------------------------------------------------------------------------------------


def test_connections_that_break_over_a_long_list_are_a_refusal_for_its_length_if_a_member_is_answered():
    server = Server(lambda batch: RESET if len(batch.requests) > 20 else None)
    sizes = server.serve(*more(64))
    assert [size for size, _ in sizes] == [64, 64, 1, 32, 31, 16, 16, 16, 15]
    assert server.play.failed == 0


def test_out_of_memory_is_413_for_the_list_and_a_refusal_for_the_limit():
    full = Failure(FailureKind.LIST_TOO_LONG, ServerFault, "500: CUDA out of memory", 500, out_of_memory=True)
    server = Server(lambda batch: full if len(batch.requests) > 4 else None)
    assert server.serve(*more(8)) == [(8, ""), (4, ""), (4, "")]
    assert server.play.failed == 0


# What else may happen meanwhile ----------------------------------------------------------------------------------------


def begun_trial():
    play = Playbook(limit=8, max_size=8)
    members = calls("a b c d")
    play.submit(*members) >> Woke() << ["send a b c d"]
    play >> failed(members[0], MAYBE, error=ServerFault, status=500, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a b c d"]
    play >> failed(members[0], MAYBE, error=ServerFault, status=500, delay=1.0) << ["send a"]
    return play, *members


def test_a_member_whose_caller_leaves_is_followed_by_another():
    play, a, *_ = begun_trial()
    play >> Cancelled(a) << ["abort a"]
    play >> failed(a, FailureKind.REFUSED) << ["send b"]


def test_a_member_that_is_refused_for_its_own_sake_fails_and_another_is_asked():
    play, a, b, *_ = begun_trial()
    # The server lives: another member is asked.
    play >> failed(a, FailureKind.BAD_CALL, status=400) << ["send b", "reject a: BadRequest"]
    play >> answered(b) << ["resolve b", "send c d"]


def test_those_who_wait_for_a_trial_can_leave_and_run_out_of_time():
    play = Playbook(limit=8, max_size=8)
    a, b, c = calls("a b c", deadline=5.0)
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> failed(a, MAYBE, error=ServerFault, status=500, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a b c"]
    play >> failed(a, MAYBE, error=ServerFault, status=500, delay=1.0) << ["send a"]
    play >> Cancelled(b) << []
    assert play.backing_off == 1
    play.at(5.0) >> Woke()
    assert sorted(play.seen) == ["abort a", "reject a c: DeadlineExceeded"]
    play >> failed(a, FailureKind.REFUSED) << []
    assert (play.backing_off, play.wakes_at) == (0, None)


def test_a_list_waits_no_longer_than_its_trial():
    play, a, b, c, d = begun_trial()
    play >> failed(a, MAYBE, error=ConnectionLost, delay=1.0) << []
    play.at(2.0) >> Woke() << ["send b c d a"]
    play >> answered(b, c, d, a) << ["resolve b c d a"]
    assert BadRequest not in {type(error) for error in play.errors.values()}


# Several servers -------------------------------------------------------------------------------------------------------


def test_of_two_servers_the_one_that_takes_no_lists_is_spoken_to_singly_and_stays_in_use():
    server = Server(lambda batch: A_500 if is_list(batch) and batch.endpoint == 1 else None, limit=[8, 8], max_size=8)
    for _ in range(4):
        server.serve(*more(16))
    assert [endpoint.lists_refused for endpoint in server.play.endpoints] == [False, True]
    assert [endpoint.state for endpoint in server.play.endpoints] == ["healthy", "healthy"]
    first = len(server.play.sent)
    server.serve(*more(32))
    assert {(batch.endpoint, is_list(batch)) for batch in server.play.sent[first:]} == {(0, True), (1, False)}
    assert (server.play.failed, server.play.succeeded) == (0, 96)


def test_a_list_waits_five_seconds_for_a_member_where_another_server_may_have_it():
    play = Playbook(limit=[8, 8], max_size=8)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d @0"]
    play >> failed(a, MAYBE, error=ServerFault, status=500, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a b c d @1"]
    play >> failed(a, MAYBE, error=ServerFault, status=500, delay=1.0) << ["send a @1"]
    assert play.wakes_at == 6.0
    play.at(6.0) >> Woke() << []
    play.at(7.0) >> Woke() << ["send b c d @0"]
    play >> answered(b, c, d) << ["resolve b c d"]
    play.at(90.0) >> answered(a) << ["resolve a"]


def test_lists_that_wait_for_a_member_at_a_server_that_is_removed_go_elsewhere_whatever_the_policy():
    play = Playbook(limit=[8, 8], max_size=8)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c @0"]
    play >> failed(a, MAYBE, error=ServerFault, status=500, delay=1.0) << []
    play.at(1.0) >> Woke() << ["send a b c @1"]
    play >> failed(a, MAYBE, error=ServerFault, status=500) << ["send a @1"]
    play >> EndpointRemoved(1, drain=False) << ["abort a"]
    play >> failed(a, FailureKind.REFUSED) << ["gone @1", "send a @0", "send b c @0"]


def test_a_success_without_an_answer_names_no_culprit():
    empty = Failure(MAYBE, DialectError, "204: no message", 204, once=True)
    server = Server(lambda batch: empty if is_list(batch) else None)
    assert server.serve(*more(4)) == [(4, ""), (4, ""), (1, "bare"), (3, "bare"), (1, ""), (1, ""), (1, "")]
    assert server.play.failed == 0


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_that_fails_over_a_route_for_lists_gets_chats_singly(status):
    gateway = Failure(MAYBE, ServerFault, f"{status}: no", status)

    def rule(batch):
        batch.wire.to_list_route = is_list(batch)
        return gateway if is_list(batch) else None

    server = Server(rule)
    sizes = server.serve(*more(4))
    assert sizes == [(4, ""), (4, ""), (1, "bare"), (1, ""), (1, ""), (1, "")]
    assert server.play.failed == 0


def test_two_lists_that_failed_long_apart_are_not_two_in_a_row():
    fails = set()
    server = Server(lambda batch: A_500 if batch.id in fails else None)
    for first in (1, 7):
        server.serve(*more(64))
        fails |= {len(server.play.sent) + 1, len(server.play.sent) + 2}
        assert [size for size, _ in server.serve(*more(64))] == [64, 64, 1, 32, 31], first
    assert server.serve(*more(64)) == [(64, "")]


def test_where_a_route_refused_a_list_and_its_member_was_put_off_all_are_put_off():
    play = Playbook(limit=8, max_size=8)
    a, b, c = calls("a b c", shape(kind=Kind.CHAT, lists_plain=True))
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    a.batch.wire.to_list_route = True
    play >> failed(a, FailureKind.REFUSED, error=AuthenticationFailed, status=403) << ["send a"]
    play >> failed(a, FailureKind.REJECTED, status=429, delay=2.0) << []
    play.at(2.0) >> Woke() << ["send b c a"]


def test_nothing_of_a_list_is_sent_while_the_client_is_paused():
    play, a, b, c, d = begun_trial()
    play >> Paused() << []
    play >> answered(a) << ["resolve a"]
    play >> Resumed() << ["send b c d"]
    assert play.last.bare


def test_a_list_of_which_one_caller_is_left_goes_first_itself_and_leaves_nothing_waiting():
    play = Playbook(limit=8, max_size=2)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b", "send c d"]
    play >> Cancelled(c) << []
    play >> failed(a, MAYBE, status=500, error=ServerFault) << ["reject a b: ServerFault"]
    play >> failed(d, MAYBE, status=500, error=ServerFault) << ["send d"]
    assert play.last.bare
    play >> answered(d) << ["resolve d"]
    assert (play.backing_off, play.wakes_at) == (0, None)
