"""Ejection, the probe, the way back."""

import pytest

from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.servers.health import Health, HealthState, Sign, sign_of
from batchclient._core.limits import FixedLimit, LimitChange
from batchclient._core.messages import Failure, FailureKind
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


@pytest.mark.parametrize(
    ("kind", "error", "status", "sign"),
    [
        (FailureKind.NOT_SENT, ConnectFailed, None, Sign.REFUSED),
        (FailureKind.MAYBE_PROCESSED, ConnectionLost, None, Sign.BROKEN),
        (FailureKind.MAYBE_PROCESSED, ReadTimedOut, None, Sign.SILENT),
        (FailureKind.MAYBE_PROCESSED, ServerFault, 500, Sign.FAULTY),
        (FailureKind.MAYBE_PROCESSED, ServerFault, None, Sign.FAULTY),
        (FailureKind.MAYBE_PROCESSED, DialectError, None, Sign.FAULTY),
        (FailureKind.REJECTED, ServerFault, 503, Sign.FAULTY),
        (FailureKind.REJECTED, RateLimited, 429, Sign.ALIVE),
        (FailureKind.BAD_CALL, BadRequest, 400, Sign.ALIVE),
        (FailureKind.BAD_CALL, BadRequest, 501, Sign.ALIVE),
        (FailureKind.MISMATCH, BadRequest, None, Sign.NOTHING),
        (FailureKind.REFUSED, BadRequest, None, Sign.NOTHING),
        (FailureKind.REFUSED, CertificateRefused, None, Sign.BROKEN),
        (FailureKind.REJECTED, OutOfSockets, None, Sign.NOTHING),
    ],
)
def test_what_a_failure_says_of_the_endpoint(kind, error, status, sign):
    assert sign_of(Failure(kind, error, "no", status)) is sign


@pytest.mark.parametrize(
    ("error", "status", "silent_s", "sign"),
    [
        (ConnectionLost, None, 20.1, Sign.FAULTY),
        (ConnectionLost, None, 20.0, Sign.BROKEN),
        (ServerFault, 502, 20.1, Sign.FAULTY),
        (ServerFault, 504, 0.1, Sign.FAULTY),
        (ReadTimedOut, None, 600.0, Sign.SILENT),
    ],
)
def test_what_a_gateway_cuts_off_after_a_long_silence_is_a_server_error(error, status, silent_s, sign):
    assert sign_of(Failure(FailureKind.MAYBE_PROCESSED, error, "no", status, silent_s=silent_s)) is sign


def fail(health, sign, times, now, *, others=True):
    ejected = [health.fail(sign, number, now, others=others) for number in range(times)]
    return sum(ejected)


@pytest.mark.parametrize(("sign", "times"), [(Sign.REFUSED, 1), (Sign.BROKEN, 3), (Sign.SILENT, 3), (Sign.FAULTY, 5)])
def test_so_many_failures_in_a_row_eject(sign, times):
    health = Health()
    assert fail(health, sign, times - 1, 1.0) == 0
    assert health.in_use
    assert fail(health, sign, 1, 1.0) == 1
    assert health.state is HealthState.EJECTED
    assert sign.value in health.reason


def test_an_answer_starts_the_count_anew():
    health = Health()
    fail(health, Sign.FAULTY, 4, 0.0)
    assert health.ailing
    assert not health.answer(1, 8, 0.0)
    assert not health.ailing
    assert fail(health, Sign.FAULTY, 4, 0.0) == 0
    assert health.in_use


@pytest.mark.parametrize("sign", [Sign.SILENT, Sign.FAULTY])
def test_the_last_endpoint_in_use_is_not_ejected_for_its_answers(sign):
    health = Health()
    assert fail(health, sign, 50, 0.0, others=False) == 0
    assert health.in_use
    assert health.reason.startswith("in use because no other is: 50 failures in a row")
    # Another is in use again: the next failure counts.
    assert fail(health, sign, 1, 0.0) == 1


def test_the_last_endpoint_in_use_is_ejected_when_it_refuses_connections():
    health = Health()
    assert fail(health, Sign.REFUSED, 1, 0.0, others=False) == 1


@pytest.mark.parametrize(
    ("sign", "first", "pauses"),
    [
        (Sign.REFUSED, 1, [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]),
        (Sign.SILENT, 3, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
        (Sign.FAULTY, 5, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
    ],
)
def test_the_pause_doubles_with_each_failed_probe(sign, first, pauses):
    health, now = Health(), 0.0
    fail(health, sign, first, now)
    for number, pause in enumerate(pauses):
        assert health.closed_until == pytest.approx(now + pause)
        assert health.is_closed(now + pause - 0.01)
        now += pause
        assert not health.is_closed(now)
        health.begin_probe(100 + number)
        assert health.fail(sign, 100 + number, now, others=True)
        health.end_probe(100 + number)


def test_what_was_in_flight_when_it_was_ejected_says_nothing_new():
    health = Health()
    fail(health, Sign.BROKEN, 60, 0.0)
    assert health.closed_until == 1.0
    assert not health.is_closed(1.0)
    health.begin_probe(100)
    assert not health.fail(Sign.BROKEN, 7, 1.1, others=True)
    assert health.state is HealthState.PROBING


def test_a_probe_that_says_nothing_makes_room_for_another():
    health = Health()
    fail(health, Sign.REFUSED, 1, 0.0)
    health.begin_probe(4)
    health.end_probe(3)
    assert health.state is HealthState.PROBING
    health.end_probe(4)
    assert health.state is HealthState.EJECTED
    assert health.probe is None


def test_it_comes_back_by_and_by():
    health = Health()
    health.answered_once = True
    fail(health, Sign.REFUSED, 1, 0.0)
    health.begin_probe(4)
    assert health.answer(1, 64, 1.0)
    assert (health.state, health.allowed) == (HealthState.RECOVERING, 8)
    assert not health.answer(8, 64, 2.0)
    assert health.allowed == 16
    assert not health.answer(47, 64, 2.0)
    assert (health.state, health.allowed) == (HealthState.RECOVERING, 63)
    health.answer(1, 64, 2.0)
    assert (health.state, health.allowed, health.ailing) == (HealthState.HEALTHY, None, False)
    assert health.reason == "it has recovered"


@pytest.mark.parametrize(
    ("sign", "times", "answered", "restarted"),
    [
        (Sign.REFUSED, 1, True, True),
        (Sign.REFUSED, 1, False, False),
        (Sign.BROKEN, 3, True, True),
        (Sign.FAULTY, 5, True, False),
        (Sign.SILENT, 3, True, False),
    ],
)
def test_who_breaks_or_refuses_connections_and_comes_back_was_started_anew(sign, times, answered, restarted):
    health = Health()
    health.answered_once = answered
    fail(health, sign, times, 0.0)
    assert health.answer(1, 64, 1.0) is restarted


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


class Restartable(FixedLimit):
    restarts = ()

    def on_restart(self, now):
        self.restarts = (*self.restarts, now)
        return LimitChange(4, "restarted")


def test_the_limit_of_a_restarted_endpoint_is_told():
    endpoint = Endpoint(0, Restartable(64), 64)
    endpoint.answer(1, 0.0)
    endpoint.health.fail(Sign.REFUSED, 1, 1.0, others=True)
    endpoint.speed.measure(1.0, 1, 0.0, 1, 1.0)
    assert endpoint.answer(1, 2.0) == LimitChange(4, "restarted")
    assert endpoint.limit.restarts == (2.0,)
    assert not endpoint.speed.is_known
    assert endpoint.answer(1, 3.0) is None


def test_a_recovering_endpoint_has_fewer_permits():
    endpoint = Endpoint(0, FixedLimit(64), 64)
    endpoint.health.fail(Sign.REFUSED, 1, 1.0, others=True)
    endpoint.answer(1, 2.0)
    assert endpoint.free == 8
    endpoint.take(3, 2.0)
    assert endpoint.free == 5


def test_when_the_last_in_use_refuses_connections_those_ejected_for_other_reasons_are_probed_at_once():
    faulty, refusing, last = (Endpoint(number, FixedLimit(4), 64) for number in range(3))
    endpoints = Endpoints([faulty, refusing, last])
    for number in range(5):
        endpoints.fail(faulty, Sign.FAULTY, number, 0.0)
    endpoints.fail(refusing, Sign.REFUSED, 6, 0.0)
    assert (faulty.health.is_closed(0.1), refusing.health.is_closed(0.1)) == (True, True)
    endpoints.fail(last, Sign.REFUSED, 7, 0.2)
    assert (faulty.health.is_closed(0.2), refusing.health.is_closed(0.2)) == (False, True)
