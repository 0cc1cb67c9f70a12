"""Refused keys, dead engines and long answers as callers meet them, in virtual time."""

import errno
import socket
import ssl

import anyio
import pytest

from batchclient import (
    AuthenticationFailed,
    Backoff,
    Batching,
    ConnectFailed,
    DeadlineExceeded,
    Http,
    NotFound,
    ReadTimedOut,
)
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport
from tests.shell.scripted import (
    MetricsPage,
    Reply,
    ScriptedTransport,
    answer_to,
    error,
    make_client,
    stream,
    stream_end,
)
from tests.shell.test_complete import call_all
from tests.shell.test_feedback import make


@pytest.mark.parametrize(
    ("cause", "seen"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "a refused connection"),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "a name that does not resolve"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION]"), "a failed TLS handshake"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "an unreachable host"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "an unreachable host"),
        (OSError(errno.ETIMEDOUT, "timed out"), "a connect timeout"),
        (OSError("All connection attempts failed"), "no connection"),
        (None, "no connection"),
    ],
    ids=str,
)
async def test_log_and_statistics_say_why_there_is_no_connection(caplog, cause, seen):
    """Also where the cause is behind another exception, as an HTTP library's."""
    behind = RuntimeError("of a library")
    behind.__cause__, failed = cause, ConnectFailed("none")
    failed.__cause__ = behind
    server = ScriptedTransport()
    async with make_client(server) as client:
        await client.complete("it has answered")
        server.script = [failed]
        async with anyio.create_task_group() as group:
            group.start_soon(client.complete, "it waits")
            await anyio.sleep(0.1)
            assert client.statistics().endpoints[0].reason == seen
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned[0].endswith(f"has begun: {seen}")


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationFailed), (403, AuthenticationFailed), (404, NotFound)]
)
async def test_a_refused_key_or_model_costs_one_request_more_and_fails_all_that_is_queued(status, kind):
    server = ScriptedTransport(*[error(status)] * 50)
    async with make_client(server, limit=4, batching=Batching(max_size=4)) as client:
        outcomes = await call_all(client, [f"p{i}" for i in range(200)])
        assert {type(each) for each in outcomes.values()} == {kind}
        assert {each.status for each in outcomes.values()} == {status}
        assert len(server.sent) == 2
        # Later calls find out for themselves, with one request for all of them.
        await call_all(client, [f"q{i}" for i in range(200)])
        assert len(server.sent) == 3
        server.script.clear()
        outcomes = await call_all(client, ["r0", "r1"])
        assert {each.text for each in outcomes.values()} == {answer_to("r0"), answer_to("r1")}


async def test_a_server_that_vanishes_holds_its_callers_even_where_nothing_is_retried():
    server = ScriptedTransport()
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        await client.complete("it has answered")
        server.script = [ConnectFailed("refused")] * 4
        before = anyio.current_time()
        outcomes = await call_all(client, ["a", "b", "c"])
        assert {each.text for each in outcomes.values()} == {answer_to(each) for each in "abc"}
        # Pauses of 0.5, 1, 2 and 2 s.
        assert anyio.current_time() - before == pytest.approx(5.5, abs=0.1)


async def test_the_log_tells_an_outage_once_and_its_end_once_and_the_error_says_the_same(caplog):
    caplog.set_level("INFO", "batchclient")
    server = ScriptedTransport()
    async with make_client(server) as client:
        await client.complete("it has answered")
        server.script = [ConnectFailed("refused")] * 4
        before = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match="an outage of .* has lasted [0-9.]+ s: .*no connection") as caught:
            await client.complete("late", timeout_s=2.0)
        assert isinstance(caught.value.__cause__, ConnectFailed)
        assert anyio.current_time() - before == pytest.approx(2.0, abs=0.1)
        await client.complete("it waits until the server is back")
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 2
    assert warned[0].endswith("has begun: no connection")
    assert "ended after 5.5 s" in warned[1]
    ejected = [record for record in caplog.records if "is ejected" in record.message]
    assert [record.levelname for record in ejected] == ["INFO"]


async def test_a_frozen_server_is_named_by_the_log_the_errors_and_the_statistics_and_gets_calls_as_before(caplog):
    server = ScriptedTransport()
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        await client.complete("it has answered")
        server.held = True
        outcomes = await call_all(client, [f"p{number}" for number in range(8)], timeout_s=6.0)
        assert {type(each) for each in outcomes.values()} == {DeadlineExceeded}
        assert all("nothing came from " in str(each) and " for 6 s" in str(each) for each in outcomes.values())
        assert client.statistics().endpoints[0].silent_since is not None
        server.held = False
        await client.complete("it answers again")
        assert client.statistics().endpoints[0].silent_since is None
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 2
    assert "has begun: " in warned[0] and warned[0].startswith("a silence of ")
    assert " ended after 6 s: 4 requests ended without an answer" in warned[1]


async def test_a_reply_whose_head_has_come_is_no_silence(caplog):
    server = ScriptedTransport()
    async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
        await client.complete("it has answered")
        server.script = [Reply(chunks=[2.0, *stream_end()])] * 4
        caplog.clear()
        await call_all(client, ["a", "b", "c", "d"], timeout_s=1.5)
        server.script = [lambda sent: Reply(chunks=[*stream(sent, last=False), anyio.Event()])] * 4
        await call_all(client, ["a", "b", "c", "d"], timeout_s=4.5)
        assert client.statistics().endpoints[0].silent_since is None
    assert "silence" not in caplog.text


async def test_an_engine_that_stands_still_behind_a_living_server_is_given_up_long_before_the_read_timeout():
    server = ScriptedTransport(held=True)
    async with make(server, MetricsPage(), limit=2, outage_patience_s=10.0) as client:
        server.held = False
        await client.complete("it has answered")
        server.held = True
        before = anyio.current_time()
        outcomes = await call_all(client, ["a", "b", "c", "d"])
        assert {type(each) for each in outcomes.values()} == {ReadTimedOut}
        # A minute, the pause, and another minute for the one call that was the probe.
        assert 120.0 <= anyio.current_time() - before <= 130.0
        assert set(server.states[1:]) == {"cancelled"}
        assert client.statistics().in_flight == 0


async def test_a_long_answer_is_not_cut_by_the_bound_on_silence():
    slow = SimulatedServer(Profile("slow", "", step_s=0.5), model="m")
    transport = SimulatorTransport(slow)
    async with make_client(transport, http=Http(read_timeout_s=150.0), retry=Backoff(max_attempts=1)) as client:
        answer = await client.complete("A novel:", max_tokens=1500, temperature=0)
        # It took 750 s, and said something every 128 s.
        assert answer.usage.completion_tokens == 1500


async def test_events_of_long_answers_are_no_sign_of_an_old_server(caplog):
    transport = SimulatorTransport(SimulatedServer(Profile("slow", "", step_s=0.5), model="m"))
    async with make_client(transport) as client:
        await client.complete("A novel:", max_tokens=1500, temperature=0)
    assert "event per token" not in caplog.text


async def test_patience_lasts_while_the_server_answers_again_however_long_that_takes():
    server = ScriptedTransport()
    async with make_client(server, batching=Batching(max_size=1), limit=1, outage_patience_s=10.0) as client:
        await client.complete("it has answered")
        slowly = lambda sent: Reply(chunks=[*stream(sent, last=False), 60.0, *stream(sent, first=False), *stream_end()])  # noqa: E731
        server.script = [ConnectFailed("refused"), slowly]
        outcomes = await call_all(client, ["a", "b"])
    assert {each.text for each in outcomes.values()} == {answer_to("a"), answer_to("b")}
