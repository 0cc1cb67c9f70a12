"""Refused keys, dead engines and long answers as callers meet them, in virtual time."""

import errno
import socket
import ssl

import anyio
import pytest

from batchclient import (
    Backoff,
    Batching,
    ConnectFailed,
    Http,
    ReadTimedOut,
)
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport
from tests.shell.scripted import (
    MetricsPage,
    Reply,
    ScriptedTransport,
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


async def test_a_long_answer_is_neither_cut_by_the_bound_on_silence_nor_taken_for_an_old_servers(caplog):
    transport = SimulatorTransport(SimulatedServer(Profile("slow", "", step_s=0.5), model="m"))
    async with make_client(transport, http=Http(read_timeout_s=150.0), retry=Backoff(max_attempts=1)) as client:
        answer = await client.complete("A novel:", max_tokens=1500, temperature=0)
        # It took 750 s, and said something every 128 s.
        assert answer.usage.completion_tokens == 1500
    assert "event per token" not in caplog.text
