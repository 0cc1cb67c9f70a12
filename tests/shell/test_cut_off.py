"""Gateways that give up what is silent for too long: late for the limit, a server error for health; in virtual time."""

import anyio
import pytest

from batchclient import AdaptiveLimit, Backoff, Batching, ConnectionLost, ServerFault
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client, stream
from tests.shell.test_complete import call_all
from tests.shell.test_stream import piece

BROKEN = ConnectionLost("the connection broke")


def breaks_after(seconds):
    """The first half of an answer, so long nothing, and a closed connection."""
    return lambda sent: Reply(chunks=[*stream(sent, last=False), seconds, BROKEN])


@pytest.mark.parametrize(
    ("headers_after_s", "reply", "kind"),
    [
        (25.0, BROKEN, ConnectionLost),
        (25.0, error(502), ServerFault),
        (25.0, error(504), ServerFault),
        # The status has come, and the body that explains it takes its time.
        (25.0, Reply(504, {}, [60.0]), ServerFault),
        (0.0, breaks_after(25.0), ConnectionLost),
        (15.0, breaks_after(25.0), ConnectionLost),
        # Headers, and nothing more.
        (0.0, Reply(chunks=[25.0, BROKEN]), ConnectionLost),
    ],
)
async def test_what_is_cut_off_after_a_long_silence_is_late_and_a_server_error(headers_after_s, reply, kind):
    reasons, health = await fail_all(headers_after_s, reply, kind)
    assert reasons == ["no answer came in time"]
    assert health.endswith("a server error")


@pytest.mark.parametrize(
    ("headers_after_s", "reply", "kind", "sign"),
    [
        (15.0, BROKEN, ConnectionLost, "a broken connection"),
        (15.0, error(504), ServerFault, "a server error"),
        # The status came after 18 s, and the end of its body 5 s later.
        (18.0, Reply(504, {}, [60.0]), ServerFault, "a server error"),
        (25.0, error(500), ServerFault, "a server error"),
        # Half a minute in all, but never so long without a byte.
        (15.0, breaks_after(15.0), ConnectionLost, "a broken connection"),
        (15.0, Reply(chunks=[15.0, BROKEN]), ConnectionLost, "a broken connection"),
    ],
)
async def test_what_fails_sooner_or_otherwise_is_not_late(headers_after_s, reply, kind, sign):
    reasons, health = await fail_all(headers_after_s, reply, kind)
    assert reasons == []
    assert health.endswith(sign)


async def fail_all(headers_after_s, reply, kind):
    """Nine calls that all fail so, with a limit of nine; return why the limit changed, and what is said of the server's health."""
    server = ScriptedTransport(*[reply] * 9, held=True)
    async with make_client(
        server, batching=Batching(max_size=1), limit=AdaptiveLimit(start=9), retry=Backoff(max_attempts=1)
    ) as client:
        async with anyio.create_task_group() as group:
            outcomes = {}

            async def call():
                outcomes.update(await call_all(client, [f"p{number}" for number in range(9)]))

            group.start_soon(call)
            await server.arrived(9)
            await anyio.sleep(headers_after_s)
            server.release()
        assert [type(each) for each in outcomes.values()] == [kind] * 9
        seen = client.statistics()
        return [each.reason for each in seen.adjustments if each.setting == "limit"], seen.endpoints[0].reason


async def test_the_time_that_a_caller_takes_is_no_silence_of_the_server():
    # So many pieces that the reading stops until the caller goes on; after the last the connection closes at once.
    pieces = [piece(f"{number} ", tokens=number + 1) for number in range(300)]
    server = ScriptedTransport(*[Reply(chunks=[*pieces, BROKEN])] * 3)
    async with make_client(server, retry=Backoff(max_attempts=1)) as client:
        for _ in range(3):
            taken = 0
            with pytest.raises(ConnectionLost):
                async for _ in client.stream("p", max_tokens=3000):
                    taken += 1
                    if taken == 1:
                        await anyio.sleep(25.0)
            assert taken == 300
        # Three broken connections would eject a server that is not the last; so few server errors would not.
        assert client.statistics().endpoints[0].reason.endswith("a broken connection")
