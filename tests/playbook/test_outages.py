"""The last endpoint in use vanishes: dispatch pauses, callers wait for their patience, and nothing is lost."""

import pytest

from tests.core import (
    AbortBatch,
    EndpointAdded,
    FailureKind,
    FixedLimit,
    LoadReported,
    Reject,
    RequestState,
    SchedulerSettings,
    ServerLoad,
    Submitted,
    Woke,
)
from batchclient.errors import ReadTimedOut
from tests.playbook.playbook import Playbook, answered, calls, failed

GONE = FailureKind.NOT_SENT
LOST = FailureKind.MAYBE_PROCESSED


def vanished(names="b", **settings):
    """A lone endpoint that answered once and refuses connections at 1.0; these calls wait for it, 30 s unless told."""
    play = Playbook(**{"outage_patience_s": 30.0, **settings})
    (first,), waiting = calls("first"), calls(names)
    play.submit(first) >> Woke() << ["send first"]
    play >> answered(first) << ["resolve first"]
    play.at(1.0).submit(*waiting) >> Woke()
    for batch in play.sent[1:]:
        play >> failed(batch.requests[0], GONE) << []
    return play, waiting


def refuse(play, until):
    """Refuse every probe; return when they were sent."""
    probes = []
    while (wakes_at := play.wakes_at) is not None and wakes_at <= until:
        play.at(wakes_at) >> Woke()
        if play.in_flight:
            probes.append(play.now)
            play >> failed(play.last.requests[0], GONE)
    return probes


def probe_after_a_slow_one(play):
    """Refuse every probe until 20.0, and after 2 s the one of 20.5; the next goes at 24.5."""
    refuse(play, 20.0)
    play.at(20.5) >> Woke()
    play.at(22.5) >> failed(play.last.requests[0], GONE) << []
    play.at(24.5) >> Woke() << ["send b"]


def test_probes_go_at_growing_pauses_of_a_second_at_most_until_patience_ends():
    play, _ = vanished("a b c", outage_patience_s=SchedulerSettings().outage_patience_s)
    probes = refuse(play, 60.9)
    assert probes == [1.5, *(2.5 + number for number in range(59))]
    assert {len(batch.requests) for batch in play.sent[2:]} == {1}
    assert (play.queued, play.failed) == (3, 0)
    play.at(61.0) >> Woke() << ["reject a b c: ConnectFailed"]
    assert play.wakes_at is None


def test_patience_counts_from_when_a_call_was_made_if_that_was_later():
    play, _ = vanished("b")
    refuse(play, 20.0)
    (late,) = calls("late")
    play.at(20.0).submit(late) >> Woke()
    refuse(play, 30.9)
    play.at(31.0) >> Woke() << ["reject b: ConnectFailed"]
    refuse(play, 49.9)
    assert play.queued == 1
    play.at(50.0) >> Woke() << ["reject late: ConnectFailed"]


def test_what_a_caller_is_told_names_the_cause_and_the_setting():
    play, _ = vanished("b", outage_patience_s=2.0)
    refuse(play, 2.9)
    play.scheduler.handle(Woke(), 3.0)
    (command,) = (one for one in play.scheduler.commands() if isinstance(one, Reject))
    ((_, error),) = command.errors
    assert str(error) == (
        "no (no server came back within outage_patience_s: 2 s in the queue, 0 s in 3 attempts; an outage of endpoint 0"
        " has lasted 2 s: 3 failures in a row, the last: no connection)"
    )


def test_calls_of_maps_wait_as_long_as_their_deadlines_allow():
    play, _ = vanished("b")
    patient, bounded = calls("patient")[0], calls("bounded", deadline=40.0)[0]
    for call in (patient, bounded):
        play >> Submitted(call, may_wait=True) << []
    play >> Woke() << []
    refuse(play, 39.9)
    assert play.failed == 1
    play.at(40.0) >> Woke() << ["reject bounded: DeadlineExceeded"]
    refuse(play, 500.0)
    assert play.queued == 1


def test_calls_that_back_off_or_wait_outside_lose_their_patience_too():
    play = Playbook(limit=2, max_size=1, max_queued=1, outage_patience_s=30.0)
    first, broken, queued, outside = calls("first broken queued outside")
    play.submit(first) >> Woke() << ["send first"]
    play >> answered(first) << ["resolve first"]
    play.submit(broken) >> Woke() << ["send broken"]
    play >> failed(broken, LOST, delay=100.0) << []
    play.submit(queued) >> Woke() << ["send queued"]
    play.at(1.0) >> failed(queued, GONE) << []
    play.submit(outside) >> Woke() << []
    assert (play.backing_off, play.queued, play.waiting) == (1, 1, 1)
    refuse(play, 30.9)
    play.at(31.0) >> Woke() << ["reject broken queued outside: ConnectFailed"]


def test_an_outage_uses_up_no_attempts_and_what_is_back_is_given_its_calls_slowly():
    play, (b, c, *_) = vanished(" ".join(f"x{i}" for i in range(16)), limit=16)
    refuse(play, 20.0)
    play.at(24.5) >> Woke() << ["send x0"]
    assert play.last.failures == 0
    play >> answered(b)
    assert play.endpoints[0].state == "recovering"
    assert play.in_flight == 2
    assert play.failed == 0
    assert play.last.failures == 0


def test_where_answers_take_long_a_server_that_is_back_is_given_all_of_its_limit_within_five_seconds():
    play, (b, *_) = vanished(" ".join(f"x{i}" for i in range(16)), limit=16, max_size=1)
    play.at(1.5) >> Woke() << ["send x0"]
    play >> answered(b)
    seen = []
    for _ in range(3):
        seen.append((play.now, play.in_flight))
        assert play.wakes_at == play.now + 1.5
        play.at(play.wakes_at) >> Woke()
    assert seen == [(1.5, 2), (3.0, 4), (4.5, 8)]
    assert (play.in_flight, play.endpoints[0].state) == (15, "healthy")


def test_patience_lasts_while_the_probe_is_being_answered():
    play, (b, c) = vanished("b c", max_size=1, limit=1)
    probe_after_a_slow_one(play)
    play.last.wire.heard = True
    play.at(40.0) >> Woke() << []
    assert play.wakes_at == 44.5, "the end of the probe is an event"
    play.at(41.0) >> answered(b) << ["resolve b", "send c"]


def test_patience_is_over_when_the_probe_that_it_lasted_for_fails():
    play, (b, c) = vanished("b c", max_size=1, limit=1)
    probe_after_a_slow_one(play)
    play.last.wire.heard = True
    play.at(40.0) >> Woke() << []
    play.at(41.0) >> failed(b, GONE) << ["reject b c: ConnectFailed"]


def test_a_probe_that_outlasts_its_callers_patience_wakes_nobody_and_is_its_last():
    play, (b, c) = vanished("b c", max_size=1, limit=1)
    probe_after_a_slow_one(play)
    play.at(31.0) >> Woke() << ["reject c: ConnectFailed"]
    (d,) = calls("d")
    play.at(31.5).submit(d) >> Woke() << []
    play.at(32.0) >> Woke() << []
    woken = 0
    while play.wakes_at is not None and play.wakes_at < 44.0:
        play.at(play.wakes_at) >> Woke()
        woken += 1
    assert woken <= 2
    play.at(44.0) >> failed(b, GONE)
    assert b.state is RequestState.DONE and d.state is RequestState.QUEUED


def test_a_probe_that_says_nothing_holds_nobody_back():
    play, (b, c) = vanished("b c", max_size=1, limit=1)
    probe_after_a_slow_one(play)
    play.at(31.0) >> Woke() << ["reject c: ConnectFailed"]


def test_a_probe_that_is_taken_on_ends_the_outage_long_before_it_is_answered():
    play, (b, c) = vanished("b c", max_size=1, limit=16)
    play.at(1.5) >> Woke() << ["send b"]
    play.at(1.749) >> Woke() << []
    assert (play.endpoints[0].state, play.wakes_at) == ("probing", 1.75)
    play.at(1.75) >> Woke() << ["send c"]
    assert play.endpoints[0].state == "recovering"
    play.at(2.0) >> failed(b, GONE) << []
    assert play.endpoints[0].state == "ejected"


def test_what_a_probe_is_taken_on_after_is_ten_times_as_long_as_the_last_failure_took():
    play, (b, c) = vanished("b c", max_size=1, limit=16)
    play.at(1.5) >> Woke() << ["send b"]
    play.at(1.6) >> failed(b, GONE) << []
    play.at(2.6) >> Woke() << ["send b"]
    play.at(3.59) >> Woke() << []
    play.at(3.61) >> Woke() << ["send c"]


def test_another_server_ends_the_outage():
    play, (b, c) = vanished("b c", limit=1)
    play.at(1.2) >> EndpointAdded(1, FixedLimit(1)) << ["send b"]
    assert play.last.endpoint == 1
    # c waits its turn, not for the end of an outage; it happens to find out about the first server.
    play.at(40.0) >> Woke() << ["send c"]
    assert (play.failed, play.last.endpoint) == (0, 0)


def test_where_no_server_ever_answered_there_is_no_patience():
    play = Playbook(limit=[1, 1])
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a @0"]
    play >> failed(a, GONE) << ["send a @1"]
    for _ in range(8):
        if play.failed:
            break
        play >> failed(a, GONE)
        play.at(play.wakes_at or play.now) >> Woke()
    assert play.failed == 1


# A server that breaks every connection ------------------------------------------------------------------------------------


def test_a_lone_server_that_breaks_everything_sent_after_the_first_break_has_vanished():
    play = Playbook(limit=16, max_size=1)
    (first,), together, later = calls("first"), calls(16), calls(" ".join(f"x{i}" for i in range(9)))
    play.submit(first) >> Woke() << ["send first"]
    play >> answered(first) << ["resolve first"]
    play.at(1.0).submit(*together) >> Woke()
    for call in together:
        play.at(2.0) >> failed(call, LOST, delay=50.0) << []
    # Sixteen breaks at once are one event: one of several behind a load balancer may have died.
    assert play.endpoints[0].state == "healthy"
    play.at(3.0).submit(*later[:8]) >> Woke()
    for call in later[:7]:
        play >> failed(call, LOST, delay=50.0) << []
    assert play.endpoints[0].state == "healthy"
    play >> failed(later[7], LOST, delay=50.0) << []
    assert play.endpoints[0].state == "ejected"
    play.submit(later[8]) >> Woke() << []
    # What has not failed there finds out; nobody's attempts are used up.
    play.at(4.0) >> Woke() << ["send x8"]


def test_one_answer_between_the_breaks_shows_that_somebody_is_there():
    play = Playbook(limit=16, max_size=1)
    for second in range(40):
        (call,) = calls(f"c{second}")
        play.at(float(second)).submit(call) >> Woke() << [f"send c{second}"]
        if second % 8 == 7:
            play >> answered(call)
        else:
            play >> failed(call, LOST, delay=1000.0) << []
    assert play.endpoints[0].state == "healthy"


def test_where_all_have_failed_before_one_of_them_finds_out_all_the_same():
    play = Playbook(limit=16, max_size=1)
    first, *others = calls(10)
    play.submit(first) >> Woke()
    play >> answered(first)
    for call in others:
        play.submit(call) >> Woke()
        play >> failed(call, LOST, delay=0.5) << []
    assert play.endpoints[0].state == "ejected"
    play.at(0.5) >> Woke() << []
    play.at(1.0) >> Woke() << ["send c1"]


# An engine that is dead behind a living server ------------------------------------------------------------------------------


def report(play, until, every=0.5, running=2.0, tokens=100.0):
    """The server's reports, up to a time or to when it is given up."""
    while play.now < until and play.endpoints[0].state != "ejected":
        play.at(play.now + every) >> LoadReported(0, ServerLoad(running=running, generation_tokens=tokens))


def test_an_engine_that_generates_nothing_for_a_minute_is_given_up_and_its_calls_are_tried_again():
    play = Playbook(limit=[4, 4])
    a, b = calls("a b", tokens=85)
    play.submit(a, b) >> Woke() << ["send a b @0"]
    # A second for the 2 · (85 + 16) tokens, rounded up.
    report(play, 62.4)
    assert play.endpoints[0].state == "healthy"
    play.at(63.0) >> LoadReported(0, ServerLoad(running=2.0, generation_tokens=100.0)) << ["abort a b"]
    assert (play.endpoints[0].state, play.endpoints[0].reason) == ("ejected", "an engine that stands still")
    verdict = a.batch.ended_for
    assert verdict.kind is LOST and verdict.error is ReadTimedOut
    play >> failed(a, verdict.kind, delay=0.0, error=verdict.error) << ["send a b @1"]


def test_the_last_server_is_given_up_too_and_its_callers_patience_begins():
    play = Playbook(limit=2)
    a, b, c = calls("a b c")
    play.submit(a, b, c) >> Woke() << ["send a b"]
    report(play, 70.0)
    given_up_at = play.now
    play >> failed(a, LOST, delay=0.0, error=ReadTimedOut) << []
    play.at(given_up_at + 1.0) >> Woke() << ["send c"]
    play.at(given_up_at + 31.0) >> Woke() << []


@pytest.mark.parametrize(
    "sign_of_life",
    ["tokens", "idle", "an answer", "a gap"],
)
def test_any_sign_of_life_starts_the_minute_anew(sign_of_life):
    play = Playbook(limit=[4, 4])
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b @0"]
    report(play, 50.0)
    if sign_of_life == "tokens":
        report(play, 50.5, tokens=101.0)
    elif sign_of_life == "idle":
        report(play, 50.5, running=0.0)
    elif sign_of_life == "an answer":
        play >> answered(a) << ["resolve a"]
    else:
        play.at(61.5) >> Woke()
    report(play, play.now + 50.0, tokens=100.0 + (sign_of_life == "tokens"))
    assert play.endpoints[0].state == "healthy"


def test_a_server_that_does_not_count_its_tokens_is_not_judged_by_them():
    play = Playbook(limit=[4, 4])
    play.submit(*calls("a b")) >> Woke() << ["send a b @0"]
    report(play, 500.0, every=5.0, tokens=None)
    assert play.endpoints[0].state == "healthy"
