"""A server that is not known to serve a list's prompts at once proves it first: a list of eight goes beside singles."""

import pytest

from tests.core import (
    Asked,
    EndpointAdded,
    Failed,
    Failure,
    FailureKind,
    FixedLimit,
    Kind,
    ServerKnown,
    Woke,
)
from batchclient.errors import CallAborted, ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed, shape

HOUR_S = 3600.0
CANCELLED = Failure(FailureKind.REFUSED, CallAborted, "the request was cancelled")
"""What the shell tells of a batch that the core has ended."""


def sizes(play, since=0):
    """How many prompts each batch has, from this one on."""
    return [len(batch.requests) for batch in play.sent[since:]]


def sent(*requests):
    """The commands that send these calls singly."""
    return [f"send {request.waiter}" for request in requests]


def named(requests):
    return " ".join(request.waiter for request in requests)


def first_calls(count, *, limit=256, of=None, max_size=32, **settings):
    """Calls made in one turn at a stranger: the play, those sent singly, and those in the list."""
    play = Playbook(limit=limit, trusts_lists=False, max_size=max_size, **settings)
    play.submit(*calls(count, of or shape())) >> Woke()
    (several,) = [batch.requests for batch in play.sent if len(batch.requests) > 1]
    return play, [batch.requests[0] for batch in play.sent if len(batch.requests) == 1], several


def more_calls(play, count, like):
    """Further calls in one turn; return how many prompts their batches have."""
    before = len(play.sent)
    play.submit(*calls(" ".join(f"n{number}" for number in range(len(play.sent), len(play.sent) + count)), like.shape))
    play >> Woke()
    return sizes(play, before)


def judged(*, served, limit=256):
    """A stranger after its verdict at 1.5, with no call under way; and a call like those before."""
    play, singles, several = first_calls(24, limit=limit)
    for single in singles:
        play.at(1.0) >> answered(single)
    if served:
        play.at(1.2) >> answered(*several)
    else:
        play.at(1.5) >> Woke() << []
        play >> answered(*several)
    assert play.scheduler.idle
    return play, singles[0]


# The proof ----------------------------------------------------------------------------------------------------------


def test_a_stranger_gets_singles_and_among_the_first_of_them_one_list_of_eight():
    play, singles, _ = first_calls(100)
    assert sizes(play) == [8] + [1] * 16
    assert [batch.alone for batch in play.sent if len(batch.requests) == 1] == ["lists are not proved yet"] * 16
    # No more than 16 are under way while the list is out.
    for single in singles[:5]:
        play.at(0.5) >> answered(single)
        assert len(play.seen) == 2, play.seen
    assert sizes(play, 17) == [1] * 5


def test_lists_follow_once_most_of_the_list_took_at_most_one_and_a_half_times_the_median_single():
    play, singles, several = first_calls(100)
    for single in singles:
        play.at(0.5) >> answered(single)
    assert play.wakes_at == 0.75
    before = len(play.sent)
    play.at(0.75) >> answered(*several[:6], ended=False)
    assert sizes(play, before) == [32, 28]
    assert play.endpoints[0].batch_size_cap == 32


@pytest.mark.parametrize(("took_s", "more"), [(0.6, [32, 28]), (0.61, [1] * 60)])
def test_a_list_whose_answers_come_all_at_its_end_may_take_a_fifth_more_than_the_median_single(took_s, more):
    # Such a list costs each caller the time of its longest answer.
    play, singles, several = first_calls(100)
    for single in singles:
        play.at(0.5) >> answered(single)
    before = len(play.sent)
    play.at(took_s) >> answered(*several)
    assert sizes(play, before) == more


def test_they_follow_too_if_the_list_was_faster_than_most_of_the_singles():
    play, singles, several = first_calls(100)
    for single in singles[:8]:
        play.at(0.1) >> answered(single)
    assert play.wakes_at == 1.0, "the ninth of sixteen is the median"
    before = len(play.sent)
    play.at(0.7) >> answered(*several)
    assert sizes(play, before) == [32, 32, 4]


def test_nobody_waits_for_long_answers_after_a_second_all_go_singly_until_the_list_has_proved_them():
    play, _, _ = first_calls(60)
    before = len(play.sent)
    play.at(0.999) >> Woke() << []
    play.at(1.0) >> Woke()
    assert sizes(play, before) == [1] * (60 - 8 - 16)


def test_where_a_list_takes_longer_all_others_go_singly_and_after_three_times_the_median_its_calls_too():
    play, singles, several = first_calls(100)
    for single in singles:
        play.at(0.6) >> answered(single)
    trial, waiting = several[0].batch, 100 - 16 - 16 - 8
    play.at(0.899) >> Woke() << []
    before = len(play.sent)
    play.at(0.901) >> Woke()
    assert sizes(play, before) == [1] * waiting, "nobody waits for the end of the list, nor for others to end"
    assert play.adjusted == ["batch_size_cap 32 -> 1: it serves a list's prompts one after another"]
    assert play.wakes_at == pytest.approx(1.8)
    play.at(1.799) >> Woke() << []
    play.at(1.801) >> Woke() << [f"abort {named(several)}"]
    assert play.wakes_at is None
    play.at(1.9) >> Failed(trial, CANCELLED) << sent(*several)
    assert [call.batch.failures for call in several] == [0] * 8, "it was no failed attempt"
    told = [batch.alone for batch in play.sent]
    assert told.count("lists are served one prompt after another") == waiting + 8
    assert not play.endpoints[0].lists_refused


@pytest.mark.parametrize("come", [5, 6])
def test_of_a_streamed_list_three_quarters_of_the_answers_count(come):
    play, singles, several = first_calls(24)
    for single in singles:
        play.at(1.0) >> answered(single)
    trial = several[0].batch
    play.at(1.4) >> answered(*several[:come])
    if come == 6:
        assert play.wakes_at is None
        assert more_calls(play, 20, several[0]) == [20]
        return
    assert play.wakes_at == 1.5
    play.at(1.5) >> Woke() << []
    assert play.adjusted == ["batch_size_cap 32 -> 1: it serves a list's prompts one after another"]
    play.at(3.0) >> Woke() << [f"abort {named(several)}"]
    play >> Failed(trial, CANCELLED) << sent(*several[come:])


def test_what_such_a_list_has_done_by_then_is_not_lost():
    play, singles, several = first_calls(24)
    for single in singles:
        play.at(1.0) >> answered(single)
    play.at(1.5) >> Woke() << []
    play.at(2.9) >> answered(*several)
    assert play.wakes_at is None
    assert more_calls(play, 20, several[0]) == [1] * 20


def test_singles_that_failed_or_are_of_another_shape_or_were_sent_later_say_nothing():
    play, singles, several = first_calls(24)
    for single in singles[:8]:
        play.at(0.1) >> failed(single, FailureKind.BAD_CALL)
    other, late = calls("other", shape(max_output_tokens=5)), calls("late", several[0].shape)
    play.submit(*other, *late) >> Woke() << ["send other", "send late"]
    play.at(0.2) >> answered(*other)
    play >> answered(*late)
    for single in singles[8:12]:
        play.at(2.0) >> answered(single)
    assert play.wakes_at is None, "of eight that are left the fifth is the median"
    play >> answered(singles[12])
    assert play.wakes_at == 3.0


def test_a_list_that_fails_proves_nothing_and_another_follows():
    play, singles, several = first_calls(24)
    play.at(0.5) >> failed(several[0], FailureKind.MAYBE_PROCESSED, error=ServerFault, delay=0.25)
    # Nothing has disproved lists: the same calls go together again, and the next list is the proof.
    play.at(0.75) >> Woke() << [f"send {named(several)}"]
    play.at(0.8) >> answered(*several)
    assert more_calls(play, 20, several[0]) == [8], "the sixteen singles are still under way"
    play.at(0.9) >> answered(singles[0])
    assert len(play.last.requests) == 1


# Who is a stranger ----------------------------------------------------------------------------------------------------


def test_a_server_that_says_which_it_is_gets_lists_at_once():
    play = Playbook(64, trusts_lists=False, max_size=32)
    play >> ServerKnown(0, {}, None, "vllm 0.32.0") << []
    assert more_calls(play, 40, calls("like")[0]) == [32, 8]


@pytest.mark.parametrize("server", ["vllm 0.32.0", None])
def test_the_servers_word_is_waited_for_before_the_first_single_that_could_be_in_a_list(server):
    play = Playbook(64, asks_first=True, trusts_lists=False, max_size=32)
    play.submit(*calls(40)) >> Woke() << ["ask"]
    play.at(0.004) >> ServerKnown(0, {}, None, server)
    play >> Asked(0, answered=True)
    assert sizes(play) == ([32, 8] if server else [8] + [1] * 16)


def test_a_server_that_says_nothing_in_its_quarter_of_a_second_is_a_stranger():
    play = Playbook(64, asks_first=True, trusts_lists=False, max_size=32)
    play.submit(*calls(40)) >> Woke() << ["ask"]
    while not play.sent:
        play.at(play.wakes_at) >> Woke()
    assert (play.now, sizes(play)) == (0.25, [8] + [1] * 16)


@pytest.mark.parametrize("kind", [Kind.EMBEDDING, Kind.SCORE, Kind.RERANK, Kind.CLASSIFICATION])
def test_lists_of_what_is_not_generated_need_no_proof(kind):
    play = Playbook(64, trusts_lists=False, max_size=32)
    play.submit(*calls(40, shape(kind=kind))) >> Woke()
    assert sizes(play) == [32, 8]


def test_each_kind_of_call_and_each_server_has_its_own_proof():
    play, singles, several = first_calls(24)
    for single in singles:
        play.at(0.1) >> answered(single)
    play.at(0.1) >> answered(*several)
    assert more_calls(play, 20, several[0]) == [20]
    assert more_calls(play, 20, calls("chat", shape(kind=Kind.CHAT))[0]) == [8] + [1] * 12
    play >> EndpointAdded(1, FixedLimit(256), "new")
    before = len(play.sent)
    play.submit(*calls(" ".join(f"m{number}" for number in range(200)), several[0].shape)) >> Woke()
    assert {len(batch.requests) for batch in play.sent[before:] if batch.endpoint == 1} == {1, 8}


# How many it gets at first ------------------------------------------------------------------------------------------


def at_a_stranger(count, **more):
    play = Playbook(256, trusts_lists=False, max_size=1, **more)
    play.submit(*calls(count)) >> Woke()
    return play


def test_a_stranger_gets_64_at_first_two_for_each_answer_and_a_quarter_more_each_quarter_of_a_second():
    play = at_a_stranger(300)
    assert len(play.sent) == 64
    assert play.endpoints[0].blocked_by == "the server's slow start"
    play.at(0.1) >> answered(play.sent[0].requests[0]) << ["resolve c0", "send c64", "send c65"]
    assert play.wakes_at == 0.25
    play.at(0.25) >> Woke()
    assert len(play.sent) == 66 + 65 // 4
    while play.wakes_at is not None:
        play.at(play.wakes_at) >> Woke()
    assert play.now == 1.75
    assert play.endpoints[0].in_flight == 256, "answers that take minutes hold nobody back"


def test_what_it_was_never_sent_at_once_adds_up_to_no_more():
    play = at_a_stranger(0)
    for number in range(300):
        play.at(number / 10).submit(*calls(f"early{number}")) >> Woke()
        play >> answered(play.last.requests[0])
    before = len(play.sent)
    play.submit(*calls(300)) >> Woke()
    assert len(play.sent) - before == 64


def test_a_server_that_says_which_it_is_gets_all_at_once():
    play = at_a_stranger(300)
    play.at(0.1) >> ServerKnown(0, {}, None, "vllm 0.32.0")
    assert play.endpoints[0].in_flight == 256


# How many calls it takes ----------------------------------------------------------------------------------------------


def test_so_few_calls_that_no_list_is_left_beside_them_go_singly():
    play = Playbook(64, trusts_lists=False, max_size=32)
    assert more_calls(play, 15, calls("like")[0]) == [1] * 15
    play = Playbook(64, trusts_lists=False, max_size=32)
    assert more_calls(play, 16, calls("like")[0]) == [8] + [1] * 8


@pytest.mark.parametrize(("limit", "max_size", "size"), [(8, 32, 4), (5, 32, 2), (64, 3, 3)])
def test_under_a_low_limit_or_bound_the_list_is_shorter(limit, max_size, size):
    play, _, several = first_calls(24, limit=limit, max_size=max_size)
    assert len(several) == size
    assert sizes(play)[: size + 1] == [size] + [1] * size


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_without_room_for_both_sends_singles(limit):
    play = Playbook(limit, trusts_lists=False, max_size=32)
    assert more_calls(play, 40, calls("like")[0]) == [1] * limit


def test_the_list_waits_for_its_permits_and_no_single_takes_them_meanwhile():
    play = Playbook(16, trusts_lists=False, max_size=32)
    early = calls(12)
    for number, call in enumerate(early):
        # One by one they never have company.
        play.at(number / 10).submit(call) >> Woke() << sent(call)
    play.at(2.0).submit(*(late := calls(" ".join(f"l{number}" for number in range(20))))) >> Woke() << []
    for call in early[:3]:
        play.at(2.1) >> answered(call) << [f"resolve {call.waiter}"]
    play >> answered(early[3]) << ["resolve c3", f"send {named(late[:8])}"]
    play >> answered(early[4]) << ["resolve c4", "send l8"]


# How long the verdict holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [True, False])
def test_the_verdict_holds_for_an_hour(served):
    play, like = judged(served=served)
    play.at(1.5 + HOUR_S - 1)
    assert more_calls(play, 40, like) == ([32, 8] if served else [1] * 40)
    play, like = judged(served=served)
    play.at(1.5 + HOUR_S)
    assert more_calls(play, 40, like) == [8] + [1] * 16


@pytest.mark.parametrize("served", [True, False])
def test_it_is_forgotten_when_all_connections_were_lost(served):
    play, like = judged(served=served)
    (probe,) = calls("probe", like.shape)
    play.at(2.0).submit(probe) >> Woke() << ["send probe"]
    play.at(2.1) >> failed(probe, FailureKind.NOT_SENT)
    while probe.batch is None:
        play.at(play.wakes_at) >> Woke()
    play >> answered(probe)
    play.at(60.0)
    assert more_calls(play, 40, like)[:9] == [8] + [1] * 8


def test_it_is_forgotten_when_the_server_says_to_be_another():
    play, like = judged(served=False)
    play >> ServerKnown(0, {}, None, "vllm 0.32.0")
    assert play.adjusted == ["batch_size_cap 1 -> 32: it was found to be vllm 0.32.0"]
    assert more_calls(play, 40, like) == [32, 8]
