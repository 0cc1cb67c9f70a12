"""However the last call ends: no timer and no task is left. asyncio, virtual time, all that watches beside the calls switched on."""

import asyncio

import pytest
from tests.seams import connected
from tests.shell.clocks import WatchedLoop
from tests.shell.scripted import MetricsPage, Pages, ScriptedTransport, error, make_client
from tests.shell.test_detection import VLLM

from batchclient import Backoff, BatchClientError, Batching, ClientClosed, Completion, DeadlineExceeded, ServerFault

LONG_S = 30.0


async def answered(client, server):
    call = start(client)
    await asyncio.sleep(LONG_S)
    server.release()
    return await call


async def failed(client, server):
    server.script = [error(500)] * 2
    return await answered(client, server)


async def cancelled(client, server):
    call = start(client)
    await asyncio.sleep(LONG_S)
    call.cancel()
    return await call


async def late_in_flight(client, server):
    return await start(client, timeout_s=LONG_S)


async def late_in_the_queue(client, server):
    """Behind a call that is in flight, which goes before it."""
    first = start(client)
    await asyncio.sleep(1.0)
    client.pause()
    second = start(client, timeout_s=LONG_S)
    await asyncio.sleep(1.0)
    server.release()
    await first
    return await second


class LongPause:
    """A policy whose next attempt comes after every deadline here."""

    def decide(self, failure, attempt, elapsed_s, rng):
        return 59.0


async def late_between_attempts(client, server):
    server.script = [error(503)] * 2
    server.release()
    return await start(client, timeout_s=LONG_S)


async def closed(client, server):
    call = start(client)
    await asyncio.sleep(LONG_S)
    await client.aclose()
    return await call


def start(client, **arguments):
    # Two in flight: with one nobody asks how busy the server is.
    calls = [client.complete(prompt, max_tokens=1, **arguments) for prompt in ("a", "b")]
    return asyncio.gather(*calls, return_exceptions=True)


ENDS = {
    answered: Completion,
    failed: ServerFault,
    cancelled: None,
    late_in_flight: DeadlineExceeded,
    late_in_the_queue: DeadlineExceeded,
    late_between_attempts: BatchClientError,
    closed: ClientClosed,
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("pages", [VLLM, dict.fromkeys(VLLM, "hangs")], ids=["known", "silent"])
def test_nothing_is_alive_once_the_last_call_has_ended(end, pages):
    async def main():
        server, load, pages_of = ScriptedTransport(held=True), MetricsPage(), Pages(pages)
        retry = LongPause() if end is late_between_attempts else Backoff(1 if end is failed else 2, base_s=1.0)
        seams = {"calls": lambda url: server, "metrics": lambda url: load, "detection": lambda url: pages_of}
        client = connected(**seams, model="m", limit="auto", batching=Batching(max_size=1), retry=retry)
        loop = asyncio.get_running_loop()
        try:
            ends = await end(client, server)
        except asyncio.CancelledError:
            ends = []
        # What was being asked ends by itself, and a body's end is waited for: two seconds at most.
        await asyncio.sleep(2.0)
        assert loop.alive() == []
        assert all(isinstance(each, ENDS[end]) for each in ends)
        # All that watches was at work.
        assert pages_of.asked
        assert load.asked_at or end is late_between_attempts
        await client.aclose()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        runner.run(main())


def test_nothing_is_alive_at_once_where_nothing_was_being_asked():
    async def main():
        async with make_client(ScriptedTransport(), limit="auto") as client:
            await client.complete("p", timeout_s=LONG_S)
            # The turn in which the call's own task ends.
            await asyncio.sleep(0)
            assert asyncio.get_running_loop().alive() == []

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        runner.run(main())
