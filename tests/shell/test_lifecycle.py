"""pause, resume, abort, drain, aclose; and that afterwards no task, timer, permit or connection is left."""

import asyncio

import anyio
import pytest
import sniffio
from tests.shell.clocks import count_alive, run
from tests.shell.scripted import Reply, ScriptedTransport, answer_to, error, make_client, settle, stream

from batchclient import Queue, Batching, CallAborted, ClientClosed, Completion


class Outcomes:
    """What became of calls, each in a task of its own."""

    def __init__(self, client, group):
        self.client, self.group = client, group
        self.by_prompt = {}

    def call(self, *prompts, **params):
        for prompt in prompts:
            self.group.start_soon(self._call, prompt, params)

    async def _call(self, prompt, params):
        try:
            self.by_prompt[prompt] = await self.client.complete(prompt, **params)
        except Exception as caught:
            self.by_prompt[prompt] = caught

    @property
    def kinds(self):
        return {prompt: type(outcome) for prompt, outcome in sorted(self.by_prompt.items())}


async def test_a_client_paused_before_its_first_call_sends_nothing():
    server = ScriptedTransport()
    client = make_client(server)
    client.pause()
    async with client, anyio.create_task_group() as group:
        outcomes = Outcomes(client, group)
        outcomes.call("p")
        await settle()
        assert server.sent == []
        client.resume()
        await server.arrived(1)
    assert outcomes.kinds == {"p": Completion}


async def test_abort_ends_every_call_and_the_client_stays_open():
    server = ScriptedTransport(held=True)
    async with make_client(server, limit=1, queue=Queue(max_calls=1)) as client:
        async with anyio.create_task_group() as group:
            outcomes = Outcomes(client, group)
            for prompt in ("flying", "queued", "waiting"):
                outcomes.call(prompt)
                await settle()
            client.abort()
            await settle()
            assert outcomes.kinds == dict.fromkeys(["flying", "queued", "waiting"], CallAborted)
            assert all(outcome.retryable for outcome in outcomes.by_prompt.values())
        assert server.states == ["cancelled"]
        assert client.statistics().in_flight == 0
        server.release()
        assert (await client.complete("after")).text == answer_to("after")


async def test_a_drain_that_was_given_up_can_still_be_closed():
    """The usual way to stop: drain for a while, then close."""
    server, before = ScriptedTransport(held=True), count_alive()
    async with make_client(server) as client, anyio.create_task_group() as group:
        outcomes = Outcomes(client, group)
        outcomes.call("never answered")
        await server.arrived(1)
        with anyio.move_on_after(5) as scope:
            await client.drain()
        assert scope.cancelled_caught
        await client.aclose()
        await settle()
        assert outcomes.kinds == {"never answered": ClientClosed}
        assert count_alive() == before
    assert server.states == ["cancelled"]
    assert server.closed == 1


async def test_aclose_ends_every_call_and_closes_connections():
    server = ScriptedTransport(
        lambda sent: Reply(chunks=[*stream(sent, last=False), anyio.Event()]),
        error(503, headers={"retry-after": "9"}),
        lambda _: Reply(chunks=[anyio.Event()]),
    )
    before = count_alive()
    async with (
        make_client(server, limit=2, batching=Batching(max_size=1), queue=Queue(max_calls=1)) as client,
        anyio.create_task_group() as group,
    ):
        outcomes = Outcomes(client, group)
        for prompt in ("streaming", "backing off", "silent", "queued", "waiting"):
            outcomes.call(prompt)
            await settle()
        await client.aclose()
        await settle()
        assert outcomes.kinds == dict.fromkeys(
            ["backing off", "queued", "silent", "streaming", "waiting"], ClientClosed
        )
        assert server.states[::2] == ["closed", "closed"]
        assert server.states[1] in ("broken", "read")
        assert count_alive() == before
    assert server.closed == 1


@pytest.mark.parametrize("end", ["aclose", "drain"])
async def test_connections_that_take_their_time_to_close_are_waited_for(end):
    server = ScriptedTransport(held=True)
    send, closed = server.send, []

    async def send_slowly_closed(request, timeouts):
        try:
            return await send(request, timeouts)
        finally:
            with anyio.CancelScope(shield=True):
                await settle(20)
                closed.append("connection")

    async def aclose():
        closed.append("transport")

    server.send, server.aclose = send_slowly_closed, aclose
    async with (
        make_client(server, limit=2, batching=Batching(max_size=1)) as client,
        anyio.create_task_group() as group,
    ):
        outcomes = Outcomes(client, group)
        outcomes.call("a", "b")
        await server.arrived(2)
        if end == "drain":
            group.start_soon(client.drain)
            await settle()
            client.abort()
            await settle(60)
        else:
            await client.aclose()
        assert closed == ["connection", "connection", "transport"]


@pytest.mark.parametrize("again", [True, False])
def test_an_aclose_that_is_cancelled_is_gone_on_with(again):
    """By the next, or by the loop's end. On trio it is not cancelled before it is over."""
    server = ScriptedTransport()
    aclose, tries = server.aclose, []

    async def hang_once():
        tries.append(1)
        if len(tries) == 1:
            await anyio.sleep_forever()
        await aclose()

    async def main():
        server.aclose = hang_once
        client = make_client(server)
        await client.complete("p")
        task = asyncio.ensure_future(client.aclose())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if again:
            await client.aclose()
        assert server.closed == again

    run(main)
    assert server.closed == 1


async def test_after_the_end_calls_are_refused():
    server = ScriptedTransport()
    async with make_client(server) as client:
        rows = client.stream_map(["a"], "{}")
        await client.aclose()
        with pytest.raises(ClientClosed):
            await client.complete("p")
        with pytest.raises(ClientClosed):
            await client.batch_map(["a"], "{}")
        with pytest.raises(ClientClosed):
            await anext(rows)
        with pytest.raises(ClientClosed):
            await client.__aenter__()
        client.pause()
        client.resume()
        client.abort()
        assert client.statistics().queued == 0
        assert "closed" in repr(client)
    assert server.sent == []


async def test_nothing_is_left_when_closed_in_the_turn_a_batch_is_sent():
    server, before = ScriptedTransport(held=True), count_alive()
    async with make_client(server) as client, anyio.create_task_group() as group:
        outcomes = Outcomes(client, group)
        outcomes.call("p")
        while not client.statistics().in_flight:
            await settle(1)
        await client.aclose()
        assert server.open == 0
        if sniffio.current_async_library() == "asyncio":
            # The caller's own task may be there; on trio a task that is over may need another turn.
            assert count_alive() <= before + 1
        await settle()
        assert count_alive() == before
    assert outcomes.kinds == {"p": ClientClosed}


async def test_an_idle_client_holds_no_task_and_no_timer():
    server, before = ScriptedTransport(), count_alive()
    async with make_client(server) as client:
        await client.complete("p", timeout_s=60)
        await settle()
        assert count_alive() == before


async def test_a_body_that_is_cancelled_still_closes_the_client():
    server = ScriptedTransport(held=True)
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(1) as scope:
            async with make_client(server) as client:
                outcomes = Outcomes(client, group)
                outcomes.call("p")
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    assert set(outcomes.kinds) == {"p"}
    assert issubclass(outcomes.kinds["p"], (ClientClosed, CallAborted))
    assert server.states == ["cancelled"]
    assert server.closed == 1
