"""What a server does not take: lists, long lists, streams, or anything at all. Rules 6 and 7."""

import pytest

from tests.core import Answered, Failed, Failure, FailureKind, Retuned, SchedulerSettings, Submitted, Woke
from batchclient.errors import ServerFault
from tests.playbook.playbook import Playbook, answered, calls, failed

TOO_LONG = FailureKind.LIST_TOO_LONG


def test_lists_refused_are_sent_as_singles_and_tried_again_after_300_s():
    play = Playbook(limit=4)
    a, b, c, d, e, f = calls("a b c d e f")
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(1.0) >> failed(a, FailureKind.LIST_REFUSED) << ["send a", "send b"]
    play >> answered(a) << ["resolve a"]
    play >> answered(b) << ["resolve b"]
    play.at(300.9).submit(c, d) >> Woke() << ["send c", "send d"]
    assert [batch.alone for batch in play.sent[1:]] == ["lists refused"] * 4
    assert play.endpoints[0].lists_refused
    play >> answered(c) << ["resolve c"]
    play >> answered(d) << ["resolve d"]
    play.at(301.0).submit(e, f) >> Woke() << ["send e f"]


def test_a_single_that_is_refused_as_a_list_has_failed():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.LIST_REFUSED) << ["reject a: BadRequest"]


def test_where_lists_have_worked_a_refused_list_is_searched_for_a_guilty_prompt():
    play = Playbook(limit=4)
    a, b, c, d = calls("a b c d")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> answered(a, b) << ["resolve a b"]
    play.submit(c, d) >> Woke() << ["send c d"]
    play >> failed(c, FailureKind.LIST_REFUSED) << ["send c", "send d"]
    assert not play.endpoints[0].lists_refused
    play >> failed(c, FailureKind.LIST_REFUSED) << ["reject c: BadRequest"]


def test_a_list_too_long_is_sent_in_halves_and_no_list_is_as_long_again():
    play = Playbook(limit=16)
    everyone = calls("a b c d e f g h")
    play.submit(*everyone) >> Woke() << ["send a b c d e f g h"]
    play >> failed(everyone[0], TOO_LONG) << ["send a b c d", "send e f g h"]
    assert play.endpoints[0].batch_size_cap == 4
    play.submit(*calls("s t u v w")) >> Woke() << ["send s t u v", "send w"]


def test_a_stated_cap_is_taken_at_its_word():
    play = Playbook(limit=16)
    everyone = calls("a b c d e f g h")
    play.submit(*everyone) >> Woke() << ["send a b c d e f g h"]
    play >> failed(everyone[0], TOO_LONG, list_cap=3) << ["send a b c", "send d", "send e f g", "send h"]
    assert play.endpoints[0].batch_size_cap == 3


@pytest.mark.parametrize("stated", [0, -1, 8, 1000])
def test_a_stated_cap_that_makes_no_sense_is_not_taken(stated):
    play = Playbook(limit=16)
    everyone = calls("a b c d e f g h")
    play.submit(*everyone) >> Woke() << ["send a b c d e f g h"]
    play >> failed(everyone[0], TOO_LONG, list_cap=stated) << ["send a b c d", "send e f g h"]


def test_a_learnt_cap_grows_again_after_a_minute():
    play = Playbook(limit=64, max_size=32)
    everyone = calls("a b c d")
    play.submit(*everyone) >> Woke() << ["send a b c d"]
    play.at(10.0) >> failed(everyone[0], TOO_LONG) << ["send a b", "send c d"]
    play.at(69.9) >> Woke()
    assert play.endpoints[0].batch_size_cap == 2
    play.at(70.0) >> Woke()
    assert play.endpoints[0].batch_size_cap == 4


def test_a_learnt_cap_never_grows_past_max_list():
    play = Playbook(limit=64, max_size=5)
    everyone = calls("a b c d")
    play.submit(*everyone) >> Woke() << ["send a b c d"]
    play >> failed(everyone[0], TOO_LONG) << ["send a b", "send c d"]
    caps = []
    for minute in range(1, 6):
        play.at(60.0 * minute) >> Woke()
        caps.append(play.endpoints[0].batch_size_cap)
    assert caps == [4, 5, 5, 5, 5]


def test_a_learnt_cap_that_grows_again_is_told_by_the_next_batch():
    play = Playbook(limit=64, max_size=8)
    everyone, more, none = calls("a b c d"), calls("e f g h i"), calls("j")
    grows = "some time has passed: longer lists are tried again"
    play.submit(*everyone) >> Woke()
    play.at(10.0) >> failed(everyone[0], TOO_LONG)
    assert play.adjusted == ["batch_size_cap 8 -> 2: list too long"]
    play.at(10.5) >> answered(*everyone[:2])
    assert play.adjusted == []
    play.at(70.0) >> answered(*everyone[2:])
    assert play.adjusted == [f"batch_size_cap 2 -> 4: {grows}"]
    play.submit(*more) >> Woke() << ["send e f g h", "send i"]
    play.at(130.0) >> answered(*more[:4])
    assert play.adjusted == [f"batch_size_cap 4 -> 8: {grows}"]
    play >> answered(*more[4:])
    play.at(1000.0).submit(*none) >> Woke()
    play >> answered(*none)
    assert play.adjusted == [], "it is what it was"


def test_that_lists_are_tried_again_is_told():
    play = Playbook(limit=4, max_size=2)
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke()
    play.at(1.0) >> failed(a, FailureKind.LIST_REFUSED)
    assert [(change.old, change.new) for change in play.adjustments] == [(2, 1)]
    play >> answered(a) >> answered(b)
    play.at(301.0).submit(c) >> Woke()
    play >> answered(c)
    assert play.adjusted == ["batch_size_cap 1 -> 2: some time has passed: longer lists are tried again"]


def test_a_cap_that_was_lowered_by_hand_meanwhile_is_no_growth():
    play = Playbook(limit=64, max_size=8)
    everyone = calls("a b c d e f g h")
    play.submit(*everyone) >> Woke()
    play >> failed(everyone[0], TOO_LONG)
    play >> Retuned(SchedulerSettings(max_size=2))
    play.at(500.0) >> answered(*everyone[:4])
    assert [(change.new, change.reason) for change in play.adjustments] == [
        (4, "list too long"),
        (2, "set by the caller"),
    ]


def test_a_single_that_is_too_long_has_failed():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, TOO_LONG, status=413) << ["reject a: BadRequest"]


def test_a_refused_stream_is_sent_plain_and_tried_again_after_300_s():
    play = Playbook(limit=4)
    a, b, c, d = calls("a b c d")
    play.submit(a, b) >> Woke() << ["send a b"]
    assert play.last.streamed
    play.at(1.0) >> failed(a, FailureKind.STREAM_REFUSED) << ["send a b"]
    assert not play.last.streamed
    assert play.endpoints[0].streams_refused
    play >> answered(a, b) << ["resolve a b"]
    play.at(300.9).submit(c) >> Woke() << ["send c"]
    assert not play.last.streamed
    play >> answered(c) << ["resolve c"]
    play.at(301.0).submit(d) >> Woke() << ["send d"]
    assert play.last.streamed


def test_the_first_list_is_a_probe_and_what_it_did_not_serve_is_sent_singly_without_asking_the_policy():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, FailureKind.MISMATCH, delay=None) << ["send a", "send b"]
    assert play.last.failures == 0
    assert play.endpoints[0].lists_refused


def test_a_mismatch_that_the_policy_gives_up_has_failed():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> answered(a) << ["resolve a"]
    play >> failed(b, FailureKind.MISMATCH, delay=None) << ["reject b c: DemuxError"]


def test_a_mismatch_where_lists_have_worked_does_not_end_lists():
    play = Playbook(limit=4)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b c"]
    play >> answered(a) << ["resolve a"]
    play >> failed(b, FailureKind.MISMATCH, delay=0.0) << ["send b", "send c"]
    assert not play.endpoints[0].lists_refused


def test_what_concerns_every_call_alike_fails_every_call_of_the_list():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, FailureKind.REFUSED, status=401) << ["reject a b: BadRequest"]


@pytest.mark.parametrize("status", [503, 529])
def test_a_list_that_gets_503_twice_with_nothing_else_there_is_too_long(status):
    play = Playbook(limit=8)
    a, b, c, d = calls("a b c d")
    play.submit(a, b, c, d) >> Woke() << ["send a b c d"]
    play >> failed(a, FailureKind.REJECTED, delay=1.0, status=status, error=ServerFault) << []
    play.at(1.0) >> Woke() << ["send a b c d"]
    play >> failed(a, FailureKind.REJECTED, delay=1.0, status=status, error=ServerFault) << ["send a b", "send c d"]
    assert play.endpoints[0].batch_size_cap == 2


def test_a_list_no_longer_than_one_that_was_answered_is_not_too_long():
    play = Playbook(limit=32)
    everyone = calls("a b c d")
    play.submit(*everyone) >> Woke() << ["send a b c d"]
    play >> answered(*everyone) << ["resolve a b c d"]
    again = calls("e f g h")
    play.submit(*again) >> Woke() << ["send e f g h"]
    # A server that has just answered is not full of this list alone: see ``test_free_refusals``.
    play >> failed(again[0], FailureKind.REJECTED, delay=1.0, status=503, error=ServerFault) << []
    play.at(0.1) >> Woke() << ["send e f", "send g h"]
    play >> failed(again[0], FailureKind.REJECTED, delay=1.0, status=503, error=ServerFault) << []
    assert play.endpoints[0].batch_size_cap == 64


def test_a_list_that_gets_503_while_others_are_in_flight_waits():
    play = Playbook(limit=8)
    a, b, x = calls("a b x")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> failed(a, FailureKind.REJECTED, delay=1.0, status=503, error=ServerFault) << []
    play.submit(x) >> Woke() << ["send x"]
    play.at(1.0) >> Woke() << ["send a b"]
    # Refused at once, while ``x`` is held for a second: no attempt. It goes on in halves, a moment later.
    play >> failed(a, FailureKind.REJECTED, delay=1.0, status=503, error=ServerFault) << []
    play.at(1.1) >> Woke() << ["send a", "send b"]
    assert [batch.failures for batch in play.sent[-2:]] == [0, 0]


def test_the_same_list_refused_twice_with_429_is_halved_unless_a_rest_is_asked_for():
    for rest_s, then in ((1.0, []), (None, ["send a", "send b"])):
        play = Playbook(limit=8)
        a, b = calls("a b")
        play.submit(a, b) >> Woke() << ["send a b"]
        play >> failed(a, FailureKind.REJECTED, delay=1.0, status=429, retry_after_s=rest_s) << []
        play.at(1.0) >> Woke() << ["send a b"]
        play >> failed(a, FailureKind.REJECTED, delay=1.0, status=429, retry_after_s=rest_s) << then


def test_a_batch_that_breaks_after_its_last_answer_fails_nobody():
    play = Playbook(limit=4)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    batch = play.last
    play >> answered(a, b, ended=False) << ["resolve a b"]
    event = failed_after(batch)
    play >> event << []
    assert play.scheduler.idle
    assert play.failed == 0


def failed_after(batch):
    return Failed(batch, Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "no"), 1.0)


def test_an_answer_that_brings_nothing_changes_nothing():
    play = Playbook(limit=4)
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> Answered(play.last, []) << []
    assert play.in_flight == 1


def test_looking_at_the_statistics_changes_nothing():
    def caps(look_at):
        play = Playbook(limit=64, max_size=32)
        everyone = calls("a b c d")
        for call in everyone:
            play.scheduler.handle(Submitted(call), 0.0)
        play.scheduler.handle(Woke(), 0.0)
        play.scheduler.handle(failed(everyone[0], TOO_LONG), 0.0)
        for second in range(0, 150, 10):
            play.scheduler.handle(Woke(), float(second))
            if second in look_at:
                play.scheduler.statistics()
        return play.scheduler.statistics().endpoints[0].batch_size_cap

    assert caps(look_at=[]) == caps(look_at=range(0, 150, 10)) == caps(look_at=[60, 130]) == 8
