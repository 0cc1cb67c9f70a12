"""Holding and ending: pause, resume, drain, abort, close."""

from tests.core import (
    AbortRequested,
    Cancelled,
    CloseRequested,
    DrainRequested,
    FailureKind,
    Paused,
    Resumed,
    Submitted,
    Woke,
)
from tests.playbook.playbook import Playbook, answered, calls, failed


def test_a_paused_client_sends_nothing_and_asks_for_no_wake_up():
    play = Playbook()
    (a,) = calls("a")
    play >> Paused() << []
    play.submit(a) >> Woke() << []
    assert play.queued == 1
    assert play.wakes_at is None


def test_what_is_in_flight_goes_on_through_a_pause():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a"]
    play >> Paused() << []
    play >> answered(a) << ["resolve a"]
    play.at(9.0) >> Resumed() << ["send b"]


def test_what_backed_off_in_a_pause_is_sent_when_it_ends():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=1.0) << []
    play >> Paused() << []
    play.at(1.0) >> Woke() << []
    assert play.wakes_at is None
    play.at(2.0) >> Resumed() << ["send a"]


def test_a_pause_forgets_the_timer_of_what_lingered():
    play = Playbook(limit=8, linger_s=1.0)
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b) >> Woke() << []
    assert play.wakes_at == 1.0
    play >> Paused() << []
    assert play.wakes_at is None


def test_resuming_a_client_that_is_not_paused_does_no_harm():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Resumed() << ["send a"]


def test_a_drained_client_says_so_once_after_all_have_ended():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a"]
    play >> DrainRequested() << []
    play >> answered(a) << ["resolve a", "send b"]
    play >> answered(b) << ["resolve b", "drained"]
    play >> Woke() << []
    play >> DrainRequested() << []
    assert play.wakes_at is None


def test_an_idle_client_is_drained_at_once():
    play = Playbook()
    play >> DrainRequested() << ["drained"]


def test_a_draining_client_takes_no_more_calls():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a) >> Woke() << ["send a"]
    play >> DrainRequested() << []
    play >> Submitted(b) << ["reject b: ClientClosed"]
    play >> answered(a) << ["resolve a", "drained"]


def test_a_draining_client_waits_for_retries_and_for_calls_outside():
    play = Playbook(limit=1, max_queued=1)
    a, b, c = calls("a b c")
    play.submit(a) >> Woke() << ["send a"]
    play.submit(b, c)
    play >> DrainRequested() << []
    play >> failed(a, FailureKind.MAYBE_PROCESSED, delay=1.0) << ["send b"]
    play >> answered(b) << ["resolve b", "send c"]
    play >> answered(c) << ["resolve c"]
    play.at(1.0) >> Woke() << ["send a"]
    play >> answered(a) << ["resolve a", "drained"]


def test_a_draining_client_waits_for_connections_whose_callers_have_gone():
    play = Playbook()
    (a,) = calls("a")
    play.submit(a) >> Woke() << ["send a"]
    play >> DrainRequested() << []
    play >> Cancelled(a) << ["abort a"]
    play >> failed(a, FailureKind.REFUSED) << ["drained"]


def test_a_client_is_drained_when_its_last_queued_call_is_cancelled():
    play = Playbook()
    (a,) = calls("a")
    play >> Paused() << []
    play.submit(a)
    play >> DrainRequested() << []
    play >> Cancelled(a) << ["drained"]


def test_abort_ends_every_call_wherever_it_is_and_the_client_stays_open():
    play = Playbook(limit=2, max_queued=1, max_size=1)
    flying, backing, queued, outside, later = calls("flying backing queued outside later")
    play.submit(flying) >> Woke() << ["send flying"]
    play.submit(backing) >> Woke() << ["send backing"]
    play >> failed(backing, FailureKind.MAYBE_PROCESSED, delay=9.0) << []
    play >> Paused() << []
    play.submit(queued, outside)
    play >> Resumed() << ["send queued"]
    play >> AbortRequested()
    assert play.seen[-1] == "reject outside backing flying queued: CallAborted" or sorted(play.seen) == [
        "abort flying",
        "abort queued",
        "reject backing flying queued outside: CallAborted",
    ]
    assert (play.queued, play.waiting, play.backing_off, play.failed) == (0, 0, 0, 4)
    assert play.in_flight == play.abandoned == 2
    assert play.wakes_at is None
    play >> failed(flying, FailureKind.REFUSED) << []
    play >> failed(queued, FailureKind.REFUSED) << []
    play.submit(later) >> Woke() << ["send later"]


def test_abort_with_nothing_to_end_says_nothing():
    play = Playbook()
    play >> AbortRequested() << []


def test_abort_leaves_calls_alone_that_have_gone_already():
    play = Playbook()
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a b"]
    play >> Cancelled(a) << []
    play >> AbortRequested() << ["abort a b", "reject b: CallAborted"]
    assert (play.cancelled, play.failed) == (1, 1)


def test_close_ends_every_call_and_takes_no_more():
    play = Playbook(limit=1)
    a, b, c = calls("a b c")
    play.submit(a, b) >> Woke() << ["send a"]
    play >> CloseRequested() << ["abort a", "reject a b: ClientClosed"]
    play >> Submitted(c) << ["reject c: ClientClosed"]
    play >> failed(a, FailureKind.REFUSED) << ["drained"]
    assert play.scheduler.idle
    assert play.wakes_at is None


def test_an_idle_client_closes_at_once():
    play = Playbook()
    play >> CloseRequested() << ["drained"]
    play >> CloseRequested() << []


def test_the_error_of_an_aborted_call_says_how_often_it_was_sent():
    play = Playbook(limit=1)
    a, b = calls("a b")
    play.submit(a, b) >> Woke() << ["send a"]
    play.scheduler.handle(AbortRequested(), 0.0)
    errors = dict(play.scheduler.commands()[-1].errors)
    assert (errors[a].attempt, errors[b].attempt) == (1, 0)
