"""A server's health by what its failures say: when it is ejected, how long its pauses are, how it comes back."""

import pytest

from tests.core import Failure, FailureKind, FixedLimit, LimitChange
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import Health, HealthState, Sign, sign_of
from batchclient.errors import (
    BadRequest,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DialectError,
    OutOfSockets,
    RateLimited,
    ReadTimedOut,
    ServerFault,
)

K = FailureKind


def test_what_a_failure_says_of_the_endpoint():
    for kind, error, status, sign in (
        (K.NOT_SENT, ConnectFailed, None, Sign.REFUSED),
        (K.MAYBE_PROCESSED, ConnectionLost, None, Sign.BROKEN),
        (K.MAYBE_PROCESSED, ReadTimedOut, None, Sign.SILENT),
        (K.MAYBE_PROCESSED, ServerFault, 500, Sign.FAULTY),
        (K.MAYBE_PROCESSED, ServerFault, None, Sign.FAULTY),
        (K.MAYBE_PROCESSED, DialectError, None, Sign.FAULTY),
        (K.MAYBE_PROCESSED, ServerFault, 502, Sign.UNSERVED),
        (K.MAYBE_PROCESSED, ServerFault, 504, Sign.UNSERVED),
        (K.REJECTED, ServerFault, 503, Sign.UNSERVED),
        (K.LIST_TOO_LONG, ServerFault, 502, Sign.FAULTY),
        (K.REJECTED, RateLimited, 429, Sign.ALIVE),
        (K.BAD_CALL, BadRequest, 400, Sign.ALIVE),
        (K.BAD_CALL, BadRequest, 501, Sign.ALIVE),
        (K.MISMATCH, BadRequest, None, Sign.NOTHING),
        (K.REFUSED, BadRequest, None, Sign.NOTHING),
        (K.REFUSED, CertificateRefused, None, Sign.BROKEN),
        (K.REJECTED, OutOfSockets, None, Sign.NOTHING),
    ):
        assert sign_of(Failure(kind, error, "no", status)) is sign, (kind, error)


def test_what_a_gateway_cuts_off_after_a_long_silence_is_a_server_error():
    for error, status, silent_s, sign in (
        (ConnectionLost, None, 20.1, Sign.FAULTY),
        (ConnectionLost, None, 20.0, Sign.BROKEN),
        (ServerFault, 502, 20.1, Sign.FAULTY),
        (ServerFault, 504, 5.1, Sign.FAULTY),
        (ServerFault, 504, 5.0, Sign.UNSERVED),
        (ReadTimedOut, None, 600.0, Sign.SILENT),
    ):
        assert sign_of(Failure(K.MAYBE_PROCESSED, error, "no", status, silent_s=silent_s)) is sign


def fail(health, sign, times, now, *, others=True):
    """How often so many failures in a row ejected it."""
    return sum([health.fail(sign, number, now, others=others) for number in range(times)])


TIMES = {Sign.REFUSED: 1, Sign.BROKEN: 3, Sign.SILENT: 3, Sign.FAULTY: 5, Sign.UNSERVED: 5}
AT_ONCE = (Sign.REFUSED, Sign.UNSERVED)


def test_so_many_failures_in_a_row_eject_and_the_pause_doubles_with_each_failed_probe():
    for sign in TIMES:
        health, now = Health(), 0.0
        assert fail(health, sign, TIMES[sign] - 1, now) == 0
        health.answer(1, 8, now)
        assert fail(health, sign, TIMES[sign] - 1, now) == 0, "an answer starts the count anew"
        assert health.in_use
        assert fail(health, sign, 1, now) == 1
        assert health.state is HealthState.EJECTED and sign.value in health.reason
        pauses = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0] if sign in AT_ONCE else [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        for number, pause in enumerate(pauses):
            assert health.closed_until == pytest.approx(now + pause)
            assert health.is_closed(now + pause - 0.01)
            now += pause
            assert not health.is_closed(now)
            health.begin_probe(100 + number, now)
            assert not health.fail(sign, 7, now, others=True), "it was in flight when the server was ejected"
            assert health.fail(sign, 100 + number, now, others=True)
            health.end_probe(100 + number)


def test_a_probe_that_says_nothing_makes_room_for_another():
    health = Health()
    fail(health, Sign.REFUSED, 1, 0.0)
    health.begin_probe(4, 1.0)
    health.end_probe(3)
    assert health.state is HealthState.PROBING
    health.end_probe(4)
    assert (health.state, health.probe) == (HealthState.EJECTED, None)


def test_the_last_endpoint_in_use_is_ejected_only_when_it_refuses_connections():
    for sign in (Sign.SILENT, Sign.FAULTY):
        health = Health()
        assert fail(health, sign, 50, 0.0, others=False) == 0
        assert health.reason.startswith("in use because no other is: 50 failures in a row")
        assert fail(health, sign, 1, 0.0) == 1, "another is in use again"
    assert fail(Health(), Sign.REFUSED, 1, 0.0, others=False) == 1


def test_it_comes_back_by_and_by():
    endpoint = Endpoint(0, FixedLimit(64), 64)
    health = endpoint.health
    health.fail(Sign.REFUSED, 1, 0.0, others=True)
    health.begin_probe(4, 1.0)
    assert not endpoint.answer(1, 1.0)
    assert (health.state, health.allowed, endpoint.free) == (HealthState.RECOVERING, 8, 8)
    health.answer(8, 64, 2.0)
    health.answer(47, 64, 2.0)
    assert (health.state, health.allowed, endpoint.free) == (HealthState.RECOVERING, 63, 63)
    health.answer(1, 64, 2.0)
    assert (health.state, health.allowed, health.ailing) == (HealthState.HEALTHY, None, False)


def test_who_breaks_or_refuses_connections_and_comes_back_was_started_anew():
    for sign, times in TIMES.items():
        for answered in (True, False):
            health = Health()
            health.answered_once = answered
            fail(health, sign, times, 0.0)
            assert health.answer(1, 64, 1.0) is (answered and sign in (*AT_ONCE, Sign.BROKEN))


def test_one_that_was_healthy_for_a_minute_starts_at_the_shortest_pause_again():
    health = Health()
    for start, pause in ((100.0, 0.5), (110.0, 1.0), (170.0, 2.0), (230.2, 0.5)):
        fail(health, Sign.REFUSED, 1, start)
        assert health.closed_until == start + pause
        health.answer(1, 1, start + 0.1)
        health.answer(1, 1, start + 0.1)
        assert health.state is HealthState.HEALTHY


def test_a_wrong_address_is_one_that_never_answered_and_refused_three_times():
    health = Health()
    fail(health, Sign.REFUSED, 2, 0.0)
    assert not health.is_wrong_address
    fail(health, Sign.REFUSED, 1, 0.0)
    assert health.is_wrong_address
    health.answered_once = True
    assert not health.is_wrong_address


def test_the_limit_of_a_restarted_endpoint_is_told():
    class Restartable(FixedLimit):
        def on_restart(self, now):
            return LimitChange(4, f"restarted at {now:g}")

    endpoint = Endpoint(0, Restartable(64), 64)
    endpoint.answer(1, 0.0)
    endpoint.health.fail(Sign.REFUSED, 1, 1.0, others=True)
    endpoint.speed.measure(1.0, 1, 0.0, 1, 1.0)
    assert endpoint.answer(1, 2.0) == LimitChange(4, "restarted at 2")
    assert not endpoint.speed.is_known
    assert endpoint.answer(1, 3.0) is None
