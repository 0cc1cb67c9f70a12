"""A map's row has its time from its grant: none runs out while it waits, be it for permits, a server or its rest."""

from tests.core import (
    FailureKind,
    FixedLimit,
    Outcome,
    Paused,
    Request,
    Resumed,
    Retuned,
    SchedulerSettings,
    Submitted,
    Woke,
)
from tests.inspection import held
from tests.playbook.playbook import Playbook, answered, calls, failed
from tests.playbook.test_outages import refuse, vanished

TOO_LATE = "DeadlineExceeded"
REJECTED, LOST, GONE = FailureKind.REJECTED, FailureKind.MAYBE_PROCESSED, FailureKind.NOT_SENT


def test_a_rows_time_begins_with_its_grant_and_goes_on_in_its_retries():
    play = Playbook(limit=1)
    (a,), (b,) = calls("a"), calls("b", timeout_s=2.0)
    play.submit(a, b) >> Woke() << ["send a"]
    assert play.wakes_at is None
    play.at(100.0) >> answered(a) << ["resolve a", "send b"]
    assert play.wakes_at == 102.0
    play.at(101.0) >> failed(b, LOST, delay=0.5) << []
    play.at(101.5) >> Woke() << ["send b"]
    play.at(102.0) >> Woke() << ["abort b", f"reject b: {TOO_LATE}"]
    # Its time did not count the queue, so no word of that.
    assert play.errors["b"].message == (
        "the call's timeout_s passed while the server worked on it:"
        " 100 s in the queue, 1.5 s in 2 attempts, 0.5 s between attempts"
    )


def test_a_grant_that_the_server_did_not_take_begins_no_time():
    for kind, more in ((REJECTED, {"retry_after_s": 9.0}), (REJECTED, {"status": 503}), (GONE, {})):
        play = Playbook()
        (a,) = calls("a", timeout_s=2.0)
        play.submit(a) >> Woke() << ["send a"]
        play.at(1.0) >> failed(a, kind, delay=9.0, **more) << []
        play.at(5.0) >> Woke() << []
        play.at(10.0) >> Woke() << ["send a"]
        assert play.wakes_at == 12.0
        play.at(12.0) >> Woke() << ["abort a", f"reject a: {TOO_LATE}"]


def test_a_refusal_takes_no_time_back_that_began_with_an_earlier_grant():
    play = Playbook()
    (a,) = calls("a", timeout_s=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play.at(0.5) >> failed(a, LOST, delay=0.25) << []
    play.at(0.75) >> Woke() << ["send a"]
    play.at(1.0) >> failed(a, REJECTED, delay=9.0) << []
    assert play.wakes_at == 2.0
    play.at(2.0) >> Woke() << [f"reject a: {TOO_LATE}"]


def test_the_halves_of_a_list_keep_the_time_of_its_first_grant():
    play = Playbook()
    a, b = calls("a b", timeout_s=2.0)
    play.submit(a, b) >> Woke() << ["send a b"]
    play.at(1.5) >> failed(a, FailureKind.BAD_CALL) << ["send a", "send b"]
    play.at(1.9) >> answered(b) << ["resolve b"]
    play.at(2.0) >> Woke() << ["abort a", f"reject a: {TOO_LATE}"]


def test_no_time_runs_out_in_an_outage_a_pause_a_rest_or_while_the_client_is_retuned():
    play, _ = vanished("b")
    (row,) = calls("row", timeout_s=2.0)
    play >> Submitted(row, may_wait=True) << []
    refuse(play, 500.0)
    assert play.queued == 1

    play = Playbook(max_size=1)
    (a, b) = calls("a b", timeout_s=2.0)
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, REJECTED, retry_after_s=9.0, delay=9.0) << []
    # Nothing is in flight: whoever had less time than the rest would fail at once.
    play.submit(b) >> Woke() << []
    play.at(8.0) >> Paused() << []
    play.at(50.0) >> Woke() << []
    play >> Retuned(SchedulerSettings(max_size=8)) << []
    play >> Resumed()
    assert len(play.sent) == 2


def test_a_row_that_has_waited_is_not_refused_for_having_too_little_time_left():
    play = Playbook(limit=1, max_size=1)
    play.submit(*calls(12, timeout_s=1.5), *calls("last", timeout_s=0.5)) >> Woke()
    for second in range(1, 13):
        play.at(float(second)) >> answered(play.last.requests[0])
    assert (play.succeeded, play.failed, play.in_flight) == (12, 0, 1)
    # Sent again, it has a deadline like any other: such calls take a second.
    play.at(12.1) >> failed(play.last.requests[0], LOST, delay=0.0) << [f"reject last: {TOO_LATE}"]


def test_the_limit_hears_that_a_row_was_late_however_long_the_row_had_waited():
    class Told(FixedLimit):
        outcomes = ()

        def on_sample(self, sample):
            self.outcomes = (*self.outcomes, sample.outcome)
            return super().on_sample(sample)

    limit = Told(1)
    play = Playbook(limit=limit)
    (a,), (b,) = calls("a"), calls("b", timeout_s=2.0)
    play.submit(a, b) >> Woke()
    play.at(100.0) >> answered(a)
    play.at(102.0) >> Woke()
    play >> failed(b, FailureKind.REFUSED) << []
    assert Outcome.LATE in limit.outcomes


def test_a_row_that_ends_refused_leaves_nothing_behind():
    """The deadline that a refusal took back does not hold its row until it would have come."""
    play = Playbook(limit=2500, max_size=1)
    rows = calls(2500, timeout_s=600.0)
    for row in rows:
        play.scheduler.handle(Submitted(row), 0.0)
    play.scheduler.handle(Woke(), 0.0)
    for row in rows:
        play.scheduler.handle(failed(row, REJECTED), 0.0)
    play.scheduler.commands()
    assert play.failed == 2500
    assert held(play.scheduler, Request) < 1300


def test_a_row_that_the_server_did_not_take_at_first_ends_at_its_new_time():
    play = Playbook(limit=2, max_size=1)
    (first,), (row,) = calls("first", deadline=1.5), calls("row", timeout_s=2.0)
    play.submit(first, row) >> Woke() << ["send first", "send row"]
    play.at(0.5) >> failed(row, FailureKind.REJECTED, delay=0.1, status=429) << []
    play.at(play.wakes_at) >> Woke() << ["send row"]
    sent_at = play.now
    play.at(1.5) >> Woke() << ["abort first", f"reject first: {TOO_LATE}"]
    play.at(2.0) >> Woke() << []
    play.at(sent_at + 2.0) >> Woke() << ["abort row", f"reject row: {TOO_LATE}"]
